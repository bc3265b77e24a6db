"""The search space: tunable symbols, which are tile sizes without a value, and the values to try for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Protocol

from tilewave.lang.constraints import Constraint, SplitConstraint, TilingConstraint, WaveConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, given_subs, unsaid_sizes
from tilewave.lang.symbols import Expression, Symbol
from tilewave.trace import TileWork

ROLES = (
    "rows",
    "cols",
    "depth",
    "narrow depth",
    "grid",
    "walk",
    "waves",
    "wave rows",
    "split",
    "num_stages",
    "in_place",
)
"""What a symbol sets: a side of the mma tile, its depth, that of a `NARROW` one, another dimension of the grid or of a
loop, a wave's part, split-K, the number of stages, or whether operands are read in place."""
NARROW = 64
"""Rows or columns of a product, up to which deeper steps are tried as well: they have little to multiply."""
NUM_STAGES, SPLIT, IN_PLACE = Symbol("num_stages"), Symbol("split"), Symbol("in_place")
KNOBS = {NUM_STAGES: "num_stages", SPLIT: "split", IN_PLACE: "in_place"}
"""What no constraint of a kernel names, and its role. A point without it leaves it to the compiler."""
UNSAID = 0


Cut = WorkgroupConstraint | TilingConstraint | WaveConstraint | SplitConstraint
KINDS = (WorkgroupConstraint, TilingConstraint, WaveConstraint, SplitConstraint)
"""Constraints with a tunable number; the first kind that contains a symbol sets its role."""


class FittedLengths(Protocol):
    """Tile lengths with which all units of a machine get equally many tiles."""

    def lengths(self, size: int, across: int) -> Sequence[int]: ...


@dataclass(frozen=True)
class Covering:
    """Tiles that cover a dim evenly: no longer than `most`, as few as do, up to `parts` of them, or one more."""

    most: int = 0
    grains: tuple[int, ...] = (1,)
    """Whole multiples of each are tried."""
    least: int = 1
    """From here on; shorter ones are as long as the dim."""
    parts: int = 1
    filling: tuple[int, ...] = ()
    """Numbers of tiles that are tried as well, where these are `shortest` or longer: they fill a machine."""
    shortest: int = 1
    is_enough: bool = False
    """Whether no longer tile is tried if one covers the dimension."""
    fitted: FittedLengths | None = None
    """The lengths that fill a machine, given the size of the other side."""

    def tiles(self, size: int, across: int = 0) -> set[int]:
        """`across`: the size of the other side, where that is known."""
        if not self.most:
            return set()
        fewest = -(-size // self.most)
        even = [-(-size // n) for n in (fewest, fewest + 1) if n <= self.parts]
        full = (n for n in (-(-size // count) for count in self.filling) if self.shortest <= n <= self.most)
        cut = {n if n < self.least else -(-n // grain) * grain for n in (*even, *full) for grain in self.grains}
        return cut | ({*self.fitted.lengths(size, across)} if self.fitted and across else set())


NO_COVERING = Covering()
ACROSS = {"rows": "cols", "cols": "rows"}
"""The other side of a product."""


class TileValues(Protocol):
    """A machine, as far as it says which tiles are worth a try."""

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]: ...
    def grows_to(self, role: str) -> int: ...
    def covers(self, role: str, is_across: bool) -> Covering:
        """`is_across`: whether rows of an operand go along the dim, and not along the depth of the product."""


@dataclass(frozen=True)
class Decision:
    """A symbol, what it decides, and among which values."""

    symbol: Symbol
    role: str
    values: tuple[int, ...]
    dim: Symbol | None = None
    """The dimension that the symbol tiles."""
    grows_to: int = 1
    """The least that a machine computes along it: tiles up to there are tried however short the dim is."""
    covers: Covering = NO_COVERING
    if_narrow: tuple[int, ...] = ()
    """Additional values for products that are `NARROW`."""


@dataclass(frozen=True)
class Space:
    """All points: a value for each symbol."""

    decisions: tuple[Decision, ...]

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(d.symbol for d in self.decisions)

    def __len__(self) -> int:
        return prod(len(d.values) for d in self.decisions)

    @property
    def tiles(self) -> tuple[Symbol, ...]:
        """The symbols of the kernel."""
        return tuple(s for s in self.symbols if s not in KNOBS)

    def configs(self) -> Iterator[dict[Symbol, int]]:
        """The knobs that a point leaves to the compiler are not in it."""
        for values in product(*(d.values for d in self.decisions)):
            chosen = zip(self.decisions, values, strict=True)
            yield {d.symbol: n for d, n in chosen if d.symbol not in KNOBS or n != UNSAID}

    def without(self, *symbols: Symbol) -> Space:
        return Space(tuple(d for d in self.decisions if d.symbol not in symbols))

    def with_only(self, symbol: Symbol, value: int) -> Space:
        """One value for a decision; where that is none here, nothing changes."""
        return Space(
            tuple(
                replace(d, values=(value,), covers=NO_COVERING, if_narrow=()) if d.symbol == symbol else d
                for d in self.decisions
            )
        )

    def within(self, sizes: Mapping[Symbol, Any]) -> Space:
        """Without tiles that a smaller one covers as well: the first that is as long as the dim is long enough."""
        sides = [sizes.get(d.dim) for d in self.decisions if d.dim is not None and d.role in ("rows", "cols")]
        is_narrow = any(isinstance(size, int) and size <= NARROW for size in sides)
        given = (replace(d, values=(*d.values, *d.if_narrow)) if is_narrow else d for d in self.decisions)
        of_roles = {d.role: sizes.get(d.dim) for d in self.decisions if d.dim is not None}
        return Space(tuple(_within(d, sizes, of_roles.get(ACROSS.get(d.role, ""))) for d in given))


def _within(d: Decision, sizes: Mapping[Symbol, Any], across: Any) -> Decision:
    size = sizes.get(d.dim) if d.dim is not None else None
    if not isinstance(size, int):
        return d
    covering = d.covers.tiles(size, across if isinstance(across, int) else 0)
    known = sorted({*d.values, *covering} if d.covers.is_enough else d.values)
    enough = next((v for v in known if v >= max(size, d.grows_to)), known[-1])
    return replace(d, values=tuple(sorted({v for v in d.values if v <= enough} | covering)))


@dataclass(frozen=True)
class Tunable:
    """A symbol without a value, and the constraint that it is in."""

    symbol: Symbol
    constraint: Cut


def tunable(kernel: WaveKernel, subs: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> tuple[Tunable, ...]:
    """Return the symbols of tile sizes, wave parts and splits that have no value, each once."""
    said = said_of(kernel, subs, dynamic)
    known = {*said, *unsaid_sizes(kernel, said), *dynamic}
    return tuple(Tunable(s, c) for s, c in cut_by(kernel).items() if s not in known)


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


def space_of(found: Sequence[Tunable], work: TileWork, machine: TileValues, constraints: Sequence[Constraint]) -> Space:
    """The space of a kernel, as its work says what each symbol decides."""
    taken = {one.symbol for one in found}
    knobs = [knob for knob in _knobs(work, machine, constraints) if knob.symbol not in taken]
    return Space((*(_decision(one, work, machine) for one in found), *knobs))


def _decision(one: Tunable, work: TileWork, machine: TileValues) -> Decision:
    role, dim = _role(one.constraint, work)
    values = machine.values(role, _element_bytes(work))
    deeper = machine.values("narrow depth", _element_bytes(work)) if role == "depth" else ()
    is_across = any(t.dims[-1:] == (dim,) for t in work.transfers if not t.is_written)
    return Decision(one.symbol, role, values, dim, machine.grows_to(role), machine.covers(role, is_across), deeper)


def _knobs(work: TileWork, machine: TileValues, constraints: Sequence[Constraint]) -> Iterator[Decision]:
    """What a machine can also decide of products that a loop adds up."""
    adds_up = len(work.products) == 1 and work.products[0].walked == (work.products[0].depth,)
    is_split = any(isinstance(c, SplitConstraint) for c in constraints)
    for symbol, role in KNOBS.items():
        values = [v for v in machine.values(role, _element_bytes(work)) if v > 1 or symbol != SPLIT]
        if adds_up and values and not (is_split and symbol == SPLIT):
            yield Decision(symbol, role, (UNSAID, *values))


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
