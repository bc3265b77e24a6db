"""The search space: tunable symbols, which are tile sizes without a value, and the configs to choose among."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from tilewave.cost.work import UNSAID
from tilewave.lang.constraints import Constraint, SplitConstraint, TilingConstraint, WaveConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, given_subs, unsaid_sizes
from tilewave.lang.symbols import Expression, Symbol
from tilewave.trace import TileWork

if TYPE_CHECKING:
    from tilewave.tune.configs import Roles
    from tilewave.tune.machines import TileMachine

NUM_STAGES, SPLIT, IN_PLACE = Symbol("num_stages"), Symbol("split"), Symbol("in_place")
KNOBS = {NUM_STAGES: "num_stages", SPLIT: "split", IN_PLACE: "in_place"}
"""What no constraint of a kernel names, and its role. A config without it leaves it to the compiler."""
Cut = WorkgroupConstraint | TilingConstraint | WaveConstraint | SplitConstraint
KINDS = (WorkgroupConstraint, TilingConstraint, WaveConstraint, SplitConstraint)
"""Constraints with a tunable number; the first kind that contains a symbol sets its role."""


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

    def __len__(self) -> int:
        return len(self.configs_of_set) or prod(len(d.values) for d in self.decisions)

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


def tunable(kernel: WaveKernel, subs: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> dict[Symbol, Cut]:
    """Return the symbols of tile sizes, wave parts and splits without a value, each with a constraint that it is in."""
    said = said_of(kernel, subs, dynamic)
    known = {*said, *unsaid_sizes(kernel, said), *dynamic}
    return {s: c for s, c in cut_by(kernel).items() if s not in known}


def cut_by(kernel: WaveKernel) -> dict[Symbol, Cut]:
    """Return the symbols in the numbers of constraints, each with the first constraint, by kind, that it is in."""
    found: dict[Symbol, Cut] = {}
    for kind in KINDS:
        for c in kernel.constraints:
            if isinstance(c, kind) and isinstance(number := _number(c), Expression):
                found.update({s: c for s in number.symbols() if s not in found})
    return found


def _number(c: Cut) -> Any:
    return c.parts if isinstance(c, SplitConstraint) else c.tile


def said_of(kernel: WaveKernel, subs: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> dict[Symbol, Any]:
    """What symbols are worth: as `subs` say, or else the kernel."""
    return {**{s: v for s, v in kernel.subs.items() if s not in dynamic}, **given_subs(subs)}


def space_of(
    found: Mapping[Symbol, Cut], work: TileWork, machine: TileMachine, constraints: Sequence[Constraint]
) -> Space:
    """Return the space of a kernel, as its work says what each symbol decides."""
    size = _element_bytes(work)
    roles = [(s, *_role(c, work)) for s, c in found.items()]
    adds_up = len(work.products) == 1 and work.products[0].walked == (work.products[0].depth,)
    of_set = machine.product_set(size) if adds_up else ()
    knobs = [(s, role) for s, role in KNOBS.items() if any(one.get(role) for one in of_set)]
    if any(isinstance(c, SplitConstraint) for c in constraints):
        knobs = [knob for knob in knobs if knob[0] != SPLIT]
    taken = {s for s, _, _ in roles}
    decisions = [Decision(s, role, machine.values(role, size), dim) for s, role, dim in roles]
    decisions += [Decision(s, role, (UNSAID, *_said(of_set, role))) for s, role in knobs if s not in taken]
    if not any(d.role in SIDES for d in decisions):
        return Space(tuple(decisions))
    configs = [_config(one, decisions) for one in of_set]
    return Space(tuple(decisions), tuple(dict.fromkeys(configs)))


SIDES = ("rows", "cols", "depth")


def _said(of_set: Sequence[Roles], role: str) -> tuple[int, ...]:
    """Return the values of a knob in a set, other than leaving it to the compiler."""
    return tuple(dict.fromkeys(one[role] for one in of_set if one[role] != UNSAID))


def _config(one: Roles, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """Return the values of a set's config; what a set does not decide has the first of its values."""
    return tuple(one.get(d.role, d.values[0]) for d in decisions)


def _element_bytes(work: TileWork) -> int:
    dtypes = [p.dtype for p in work.products] or [t.dtype for t in work.transfers]
    return max((d.bytes for d in dtypes), default=4)


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
