"""The search space: tunable symbols, which are tile sizes without a value, and the configs to choose among."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from tilewave.cost.work import UNSAID
from tilewave.errors import SymbolError
from tilewave.lang.constraints import Constraint, SplitConstraint, TilingConstraint, WaveConstraint, WorkgroupConstraint
from tilewave.lang.open_tiles import Cut
from tilewave.lang.symbols import Symbol
from tilewave.lang.tuning import Tune
from tilewave.records import dataclass
from tilewave.trace import TileWork

if TYPE_CHECKING:
    from tilewave.tune.machines import TileMachine

NUM_STAGES, SPLIT, IN_PLACE = Symbol("num_stages"), Symbol("split"), Symbol("in_place")
KNOBS = {NUM_STAGES: "num_stages", SPLIT: "split", IN_PLACE: "in_place"}
"""What no constraint of a kernel names, and its role. A config without it leaves it to the compiler."""


@dataclass(frozen=True)
class Decision:
    """A symbol, its role, and its values."""

    symbol: Symbol
    role: str
    values: tuple[int, ...]
    dim: Symbol | None = None
    """The dimension that the symbol tiles."""


@dataclass(frozen=True)
class Space:
    """The configs of a kernel: those of a kernel set, or all combinations of values."""

    decisions: tuple[Decision, ...]
    configs_of_set: tuple[tuple[int, ...], ...] = ()
    """The configs of a set, a value for each decision; empty: all combinations."""

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(d.symbol for d in self.decisions)

    @property
    def tiles(self) -> tuple[Symbol, ...]:
        """The symbols of the kernel."""
        return tuple(s for s in self.symbols if s not in KNOBS)

    def configs(self) -> Iterator[dict[Symbol, int]]:
        """Yield the configs; the knobs that one leaves to the compiler are not in it."""
        for values in self.configs_of_set or product(*(d.values for d in self.decisions)):
            chosen = zip(self.decisions, values, strict=True)
            yield {d.symbol: n for d, n in chosen if d.symbol not in KNOBS or n != UNSAID}

    def without(self, symbol: Symbol) -> Space:
        """Return the space without a decision, which the compiler then makes."""
        if symbol not in self.symbols:
            return self
        at = self.symbols.index(symbol)
        alone = dict.fromkeys(c[:at] + c[at + 1 :] for c in self.configs_of_set if c[at] == UNSAID)
        return Space(self.decisions[:at] + self.decisions[at + 1 :], tuple(alone))

    def with_only(self, symbol: Symbol, value: int) -> Space:
        """Return the space with this value for a decision; where that is none here, nothing changes."""
        if symbol not in self.symbols:
            return self
        at = self.symbols.index(symbol)
        named = replace(self.decisions[at], values=(value,))
        every = dict.fromkeys((*c[:at], value, *c[at + 1 :]) for c in self.configs_of_set)
        return Space((*self.decisions[:at], named, *self.decisions[at + 1 :]), tuple(every))


def narrowed(space: Space, tune: Tune) -> Space:
    """Return the space of the configs, or of the values, that an author names; however long a dimension is."""
    known = [s.name for s in space.symbols]
    for name in tune.names:
        if name not in known and name not in KNOBS.values():
            remedy = f"what can be tuned: {', '.join(known) or 'nothing'}"
            raise SymbolError(f"{tune.called}: {name} cannot be tuned here", loc=tune.loc, remedy=remedy)
    for config in map(dict, tune.configs):
        if missing := [s.name for s in space.tiles if s.name not in config]:
            what = f"autotune: a config gives no {', '.join(missing)}: {config}"
            raise SymbolError(what, loc=tune.loc, remedy="give every tile size in each config")
    if tune.configs:
        found = [tuple(config.get(name, UNSAID) for name in known) for config in map(dict, tune.configs)]
        return Space(space.decisions, tuple(dict.fromkeys(found)))
    given = dict(tune.values)
    return Space(tuple(replace(d, values=given.get(d.symbol.name, d.values)) for d in space.decisions))


def space_of(
    found: Mapping[Symbol, Cut], work: TileWork, machine: TileMachine, constraints: Sequence[Constraint]
) -> Space:
    """Return the space of a kernel, as its work says what each symbol decides."""
    size = max((one.dtype.bytes for one in work.products or work.transfers), default=4)
    roles = [(symbol, *_role(c, work)) for symbol, c in found.items()]
    decisions = [Decision(symbol, role, machine.values(role, size), dim) for symbol, role, dim in roles]
    adds_up = len(work.products) == 1 and work.products[0].walked == (work.products[0].depth,)
    of_set = machine.product_set(size, _layout(work)) if adds_up else ()
    taken = {*found} | ({SPLIT} if any(isinstance(c, SplitConstraint) for c in constraints) else set())
    for knob, role in KNOBS.items():
        values = dict.fromkeys(one[role] for one in of_set if one.get(role))
        if values and knob not in taken:
            decisions.append(Decision(knob, role, (UNSAID, *values)))
    if not any(d.role in ("rows", "cols", "depth") for d in decisions):
        of_set = ()
    # What a set does not decide has the first of its values.
    configs = dict.fromkeys(tuple(one.get(d.role, d.values[0]) for d in decisions) for one in of_set)
    return Space(tuple(decisions), tuple(configs))


def _layout(work: TileWork) -> tuple[str, str]:
    """Return the axis along which each operand of a product is contiguous: its depth, or its side."""
    (p,) = work.products
    read = [t.dims for t in work.transfers if not t.is_written and p.depth in t.dims]
    first, second = ("side" if any(side == dims[-1] for dims in read) else "depth" for side in (p.rows, p.cols))
    return first, second


def _role(c: Cut, work: TileWork) -> tuple[str, Symbol | None]:
    match c:
        case WorkgroupConstraint():
            sides = {side: role for p in reversed(work.products) for side, role in ((p.rows, "rows"), (p.cols, "cols"))}
            return sides.get(c.dim, "grid"), c.dim
        case TilingConstraint():
            depths = {p.depth for p in work.products[:1]}
            others = {p.cols for p in work.products}
            return "depth" if c.dim in depths else "cols" if c.dim in others else "walk", c.dim
        case WaveConstraint():
            return "waves" if work.products else "wave rows", None
        case SplitConstraint():
            return "split", None
