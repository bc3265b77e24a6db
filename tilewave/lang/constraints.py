"""How a kernel is divided into workgroups, waves and steps. Constraints are values; compiling never changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from tilewave.errors import ConstraintError, Loc, SymbolError, here
from tilewave.lang.mma_types import MMAType, instruction_asked
from tilewave.lang.reordering import ReorderedTiles, places
from tilewave.lang.symbols import CONDITIONS, Combined, Expression, Symbol, expression, want_no_hardware
from tilewave.mapping import Coverage, MappingError, as_mapping
from tilewave.mapping import Mapping as TileMapping
from tilewave.records import dataclass

WAVE_LANES = (32, 64)
"""Lanes of a wave, on the known chips."""


@dataclass(frozen=True)
class Constraint:
    """The base of all constraints: how a kernel is divided, or a wish of its author, with its source line."""

    loc: Loc = field(default_factory=here, compare=False, repr=False, kw_only=True)

    def symbols(self) -> Iterator[Symbol]:
        """Yield every symbol in the constraint."""
        for part in (getattr(self, f.name) for f in fields(self)):
            if isinstance(part, Expression):
                yield from part.symbols()

    def tile_order(self, others: Sequence[Any], subs: Mapping[Symbol, Any]) -> Coverage:
        """Return the order of tiles, on every grid, of a kernel with this constraint and others."""
        return order_of_tiles((self, *others), subs)


OF_WORKGROUPS = ("iters", "expr")
"""The fields of a constraint that may depend on the workgroup."""


def _as_expression(constraint: Constraint, *names: str) -> None:
    dim = getattr(constraint, "dim", None)
    if hasattr(dim, "free_symbols"):  # sympy's symbol of that name
        dim = expression(dim)
        object.__setattr__(constraint, "dim", dim)
    if dim is not None and not is_dim(dim):
        raise ConstraintError(
            f"{type(constraint).__name__}: {dim!r} is no symbol",
            loc=constraint.loc,
            remedy=_symbol_in_place_of(dim),
        )
    want_no_hardware(type(constraint).__name__, *(() if dim is None else dim.symbols()))
    for name in names:
        given = getattr(constraint, name)
        try:
            found = expression(given)
        except SymbolError as error:
            of = f" of {dim}" if dim is not None else ""
            what = f"{type(constraint).__name__}: {name}{of} is {given!r}, no whole number and no expression of symbols"
            raise ConstraintError(what, loc=constraint.loc, remedy=error.remedy) from None
        if name not in OF_WORKGROUPS:
            want_no_hardware(f"{type(constraint).__name__}: {name}", *found.symbols())
        object.__setattr__(constraint, name, found)


def is_dim(x: object) -> bool:
    """Return whether a constraint may divide a dim: a symbol, or an expression of several, such as HF * WF * C."""
    return isinstance(x, Symbol) or (isinstance(x, Expression) and len(set(x.symbols())) > 1)


def _symbol_in_place_of(dim: object) -> str:
    """Return what to write for the dim of a constraint that is no symbol."""
    symbol = next(dim.symbols(), None) if isinstance(dim, Expression) else None
    if symbol is None:
        return "write sym.M, with its size in subs"
    return f"cut {symbol}, and {dim} goes with it; or give it its own symbol, sym.L, with subs={{sym.L: {dim}}}"


@dataclass(frozen=True)
class Ragged:
    """Groups of a dim's elements, one after the other: the dim that counts the groups, and the array of their ends.

    `ends` names a parameter of the kernel, `Memory[groups, …]` of integers: group g ends where group g + 1 begins.
    `band`: within a group, so many rows of tiles are computed for all columns before the next ones, where the order of
    tiles is row by row, `linear(along="n")`. 0: the order of tiles alone decides, and takes no notice of groups.
    """

    groups: Symbol
    ends: str
    band: int = 0


@dataclass(frozen=True)
class WorkgroupConstraint(Constraint):
    """Divide `dim` into tiles over a dimension of the grid; dimension 0 is the fastest.

    A constraint that is not `primary` uses the grid index of the primary one. `apply_fn` says where the n-th tile
    begins, if not at n · tile, and `iters` how many there are. With `ragged`, the dim consists of groups, and no tile
    has elements of two groups.
    """

    dim: Symbol
    tile: Any
    workgroup_dim: int
    apply_fn: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    primary: bool = True
    iters: Any = field(default=None, kw_only=True)
    ragged: Ragged | None = field(default=None, kw_only=True)

    def __new__(cls, *given: Any, **named: Any) -> WorkgroupConstraint:
        """Refuse a constraint without its dimension of the grid, before the fields are set."""
        if len(given) == 2 and "workgroup_dim" not in named:
            shown = ", ".join(map(str, given))
            raise ConstraintError(
                f"WorkgroupConstraint({shown}) names no dimension of the grid",
                loc=here(),
                remedy=f"write WorkgroupConstraint({shown}, 0); 0 is the fastest, and each dim has its own",
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _as_expression(self, "tile", *(("iters",) if self.iters is not None else ()))
        if self.ragged is not None:
            _want_ragged(self)


def _want_ragged(c: WorkgroupConstraint) -> None:
    """Refuse a ragged dim that is divided in another way too, or whose groups are not named."""
    ragged = c.ragged
    if not isinstance(ragged, Ragged) or not isinstance(ragged.groups, Symbol) or not isinstance(ragged.ends, str):
        what = f"WorkgroupConstraint: ragged of {c.dim} is {ragged!r}"
        raise ConstraintError(what, loc=c.loc, remedy='write ragged=Ragged(G, "ends"), with ends: Memory[G, …, i32]')
    other = next((name for name in ("apply_fn", "iters") if getattr(c, name) is not None), "")
    if other or not c.primary:
        what = f"the tiles of {c.dim} follow from its groups, and {other or 'primary=False'} says otherwise"
        raise ConstraintError(what, loc=c.loc, remedy=f"leave out one of ragged and {other or 'primary'}")


@dataclass(frozen=True)
class WaveConstraint(Constraint):
    """Divide a workgroup's tile of `dim` among its waves."""

    dim: Symbol
    tile: Any

    def __post_init__(self) -> None:
        _as_expression(self, "tile")


@dataclass(frozen=True)
class TilingConstraint(Constraint):
    """Let `iterate` loop over `dim`, a tile a step; without a tile, a while loop with a condition.

    `iters` is the most steps of a workgroup; WORKGROUP_0, … in it are the coordinates of the workgroup's tile.
    """

    dim: Symbol
    tile: Any = None
    iters: Any = None
    start: Any = field(default=None, kw_only=True, repr=False)
    """Where the first step begins, if not at 0."""

    def __post_init__(self) -> None:
        given = ("tile", "iters", "start")
        _as_expression(self, *(name for name in given if getattr(self, name) is not None))
        if self.tile is None and self.iters is not None:
            raise ConstraintError(
                f"iters is the number of tiles of {self.dim} to iterate over, but it has none",
                loc=self.loc,
                remedy=f"write TilingConstraint({self.dim}, BLOCK_{self.dim}, iters=…), or give iterate a condition",
            )


@dataclass(frozen=True)
class SplitConstraint(Constraint):
    """Split-K: divide the steps of `iterate` over `dim` into `parts`, for workgroups that add up one tile together."""

    dim: Symbol
    parts: Any

    def __post_init__(self) -> None:
        _as_expression(self, "parts")


@dataclass(frozen=True)
class GridConstraint(Constraint):
    """Exactly this many workgroups, in one dimension: a persistent kernel."""

    workgroups: Any

    def __post_init__(self) -> None:
        _as_expression(self, "workgroups")


@dataclass(frozen=True)
class DeviceConstraint(Constraint):
    """Wave's division of a dim among several devices: one device has all of it, and others are refused."""

    dim: Symbol
    tile: Any
    device_dim: int = 0

    def __post_init__(self) -> None:
        _as_expression(self, "tile")


@dataclass(frozen=True)
class ReorderingConstraint(Constraint):
    """Replaces a workgroup's coordinate in one dimension of the grid by an expression."""

    expr: Any
    workgroup_dim: int

    def __post_init__(self) -> None:
        _as_expression(self, "expr")


@dataclass(frozen=True)
class WorkgroupMapping(Constraint):
    """Map workgroups to tiles by the name of any mapping of `tilewave.mapping`."""

    mapping: TileMapping | str | Callable[..., Any]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mapping", as_mapping(self.mapping))
        except MappingError as error:
            raise error.at(self.loc) from None

    def symbols(self) -> Iterator[Symbol]:
        for parameter in self.mapping.parameters():  # type: ignore[union-attr]  # a mapping since __post_init__
            yield from expression(parameter).symbols()


def order_of_tiles(constraints: Sequence[Any], subs: Mapping[Symbol, Any]) -> Coverage:
    """Return the order of tiles of a kernel with these constraints, on every grid."""
    for c in constraints:
        if not isinstance(c, Constraint):
            raise ConstraintError(f"{c!r:.80} is no constraint", loc=here(), remedy=A_LIST)
    known = {s: expression(n).evaluate(subs) for s, n in subs.items() if isinstance(n, (int, Expression))}
    named = next((c for c in constraints if isinstance(c, WorkgroupMapping)), None)
    if named is not None:
        mapping: TileMapping = named.mapping  # type: ignore[assignment]  # a mapping since __post_init__
        return mapping.bind(lambda parameter: expression(parameter).evaluate(known))
    formulas = [c for c in constraints if isinstance(c, ReorderingConstraint)]
    if not formulas:
        return as_mapping("linear()")
    cuts = (c for c in constraints if isinstance(c, WorkgroupConstraint) and c.primary and c.workgroup_dim <= 2)
    tiles = {c.workgroup_dim: (c.dim, c.tile) for c in cuts}
    return ReorderedTiles(
        tuple((c.workgroup_dim, c.expr) for c in formulas), tiles, known, places([c.loc for c in formulas])
    )


A_LIST = "write a list of constraints: find_counterexample([WorkgroupConstraint(…), ReorderingConstraint(…)])"


@dataclass(frozen=True)
class SymbolicAlias(Constraint):
    """`source` is a function of `target`, which the grid divides; the tiles of `source` are that function of tiles."""

    source: Symbol
    target: Symbol
    source_to_target: Callable[[Any], Any]

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            if not isinstance(name, Symbol):
                what = f"SymbolicAlias: {name!r} is no symbol"
                raise ConstraintError(what, loc=self.loc, remedy="write SymbolicAlias(U, K2, lambda x: …)")

    def of(self, x: Expression) -> Expression:
        """Return the function of the target's length, or of its tile."""
        return expression(self.source_to_target(x))


@dataclass(frozen=True)
class IteratorBindings(Constraint):
    """The symbols by which `read(a, source=…, target=…)` names the dims of a tile."""

    bindings: Mapping[Symbol, Symbol] = field(hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bindings, Mapping) or not all(
            isinstance(s, Symbol) and is_dim(d) for s, d in self.bindings.items()
        ):
            what = f"IteratorBindings: {self.bindings!r} is no dict from symbols to dims"
            raise ConstraintError(what, loc=self.loc, remedy="write IteratorBindings({sym.m: M, sym.k: K})")


@dataclass(frozen=True)
class Assumption(Constraint):
    """A condition on sizes that holds in every call; a call that breaks it is refused. Where a dim is assumed to be a
    multiple of its tile, `Eq(M % 64, 0)`, no element of a tile is masked along it. It changes the code in no other way.
    """

    expr: Any

    def __post_init__(self) -> None:
        if hasattr(self.expr, "free_symbols"):  # sympy's Eq, Ne, <, … over tilewave's symbols
            object.__setattr__(self, "expr", expression(self.expr))
        if not isinstance(self.expr, Combined) or self.expr.how not in CONDITIONS:
            raise ConstraintError(
                f"Assumption: {self.expr!r} is no condition",
                loc=self.loc,
                remedy="write a < b, a >= b, …, or Eq(a, b), since a == b compares the expressions themselves",
            )


@dataclass(frozen=True)
class HardwareConstraint(Constraint):
    """The author's wish of a wave size and a matrix instruction; a target that lacks them uses others."""

    threads_per_wave: int = 64
    mma_type: MMAType | None = None
    """The instruction of a `mma` that names none, the first of several; Wave's `GenericDot` leaves it to the target."""
    vector_shapes: Mapping[Expression, int] | None = field(default=None, hash=False)
    """Accepted without effect: the layout of a tile over lanes follows from the matrix instruction."""
    waves_per_block: tuple[int, int, int] | None = None
    """Waves along the dimensions of the grid, where no WaveConstraint says it."""
    n_service_waves: int = field(default=0, repr=False)
    """Accepted without effect: passes decide whether there are producer waves."""
    max_bits_per_load: int = field(default=128, repr=False)
    """Accepted without effect: loads are as wide as alignment allows."""

    def __post_init__(self) -> None:
        lanes: object = self.threads_per_wave
        if isinstance(lanes, bool) or lanes not in WAVE_LANES:
            raise ConstraintError(
                f"a wave of {lanes!r} lanes does not exist",
                loc=self.loc,
                remedy="write threads_per_wave=64 (AMD) or 32 (NVIDIA); a target whose waves differ takes its own",
            )
        asked: object = self.mma_type
        first = asked[0] if isinstance(asked, (tuple, list)) and asked else asked
        object.__setattr__(self, "mma_type", instruction_asked("", first, self.loc))
        waves: object = self.waves_per_block
        if waves is not None and not (
            isinstance(waves, (tuple, list)) and len(waves) == 3 and all(map(_counts, waves))
        ):
            raise ConstraintError(
                f"waves_per_block is {waves!r}",
                loc=self.loc,
                remedy="write three numbers, (2, 2, 1) say: waves along each dimension of the grid",
            )
        if self.vector_shapes is not None and not isinstance(self.vector_shapes, Mapping):
            raise ConstraintError(
                f"vector_shapes is {self.vector_shapes!r}, no dict",
                loc=self.loc,
                remedy="leave it out: it has no effect",
            )


def _counts(x: object) -> bool:
    """Return whether a value is a count of at least one."""
    return isinstance(x, int) and not isinstance(x, bool) and x >= 1
