"""Constraints and sizes, resolved: the grid of tiles, its loop, and the part of each dimension of a workgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import reduce
from typing import Any, TypeVar, cast

from tilewave.errors import NOWHERE, ConstraintError, Loc, SymbolError
from tilewave.ir.build import Number
from tilewave.ir.constraint_locations import Places, Side
from tilewave.lang.constraints import (
    Constraint,
    DeviceConstraint,
    GridConstraint,
    HardwareConstraint,
    IteratorBindings,
    Ragged,
    ReorderingConstraint,
    SplitConstraint,
    SymbolicAlias,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.reordering import Reordering, places
from tilewave.lang.symbols import COORDINATES, LANES, Expression, Symbol, ceiling, expression, no_value
from tilewave.mapping import Grid, MappingError, OpenGrid, is_right_on_every_grid, linear
from tilewave.mapping import Mapping as TileMapping
from tilewave.mapping.ragged import MOST_ROWS, RaggedGrid
from tilewave.records import dataclass
from tilewave.trace import DimensionWindow, WalkedDimension, steps_along

BATCHES = 2
"""The first of the grid axes that are counted as batches: they follow rows and columns."""
MOST_AXES = 5
"""The dimensions of a grid: rows, columns, and three that are counted as batches."""

C = TypeVar("C", bound=Constraint)
Subs = Mapping[Symbol, Any]


@dataclass(frozen=True)
class Named:
    """A mapping by name; its errors are raised at the line where it is named."""

    mapping: TileMapping
    values: Mapping[Any, Any]
    loc: Loc

    def known(self) -> Named:
        """The mapping with the values of its parameters that are known."""
        return self._with(lambda e: e.evaluate(self.values) if all(s in self.values for s in e.symbols()) else e)

    def bind(self, lookup: Callable[[Symbol], Any]) -> Named:
        def number(e: Expression) -> Any:
            return e.evaluate({s: self.values[s] if s in self.values else lookup(s) for s in e.symbols()})

        return self._with(number)

    def _with(self, number: Callable[[Expression], Any]) -> Named:
        with given_at(self.loc):
            return replace(self, mapping=self.mapping.bind(lambda parameter: number(expression(parameter))))

    def tile(self, number: Any, grid: Grid | OpenGrid, workgroups: Any) -> tuple[Any, Any, Any]:
        with given_at(self.loc):
            return self.mapping.tile(number, grid, workgroups)

    @property
    def doubt(self) -> str:
        """Why the mapping may not be a permutation on every grid; empty where it is one."""
        if not is_right_on_every_grid(self.mapping):
            return f"the order of tiles, {self}, is not made of named mappings alone"
        computed = next((e for e in self._parameters() if not isinstance(e, Symbol)), None)
        return "" if computed is None else f"a parameter of the order of tiles is computed, {computed}"

    @property
    def positive(self) -> tuple[str, ...]:
        """The symbols that must be at least 1."""
        return tuple(e.name for e in self._parameters() if isinstance(e, Symbol))

    def _parameters(self) -> list[Expression]:
        """The parameters that are known only at the call."""
        found: list[Expression] = []
        self._with(lambda e: found.append(e) or e)  # type: ignore[func-returns-value]
        return found

    def __repr__(self) -> str:
        return str(self.mapping)


@contextmanager
def given_at(loc: Loc) -> Iterator[None]:
    """Raise errors of a mapping or a symbol inside the `with` block at `loc`."""
    try:
        yield
    except (MappingError, SymbolError) as error:
        raise error.at(loc) from None


Order = Named | Reordering


@dataclass(frozen=True)
class GridShare:
    """A dimension divided over the grid: along which grid axis, and how long a tile is."""

    axis: int
    tile: int
    loc: Loc
    count: Any = 1
    """The number of tiles."""
    before: Any = 1
    """For a batch axis: the product of the tile counts of the batch axes before it."""

    begins: Callable[[Any], Any] | None = None
    """The author's formula for the start of the n-th tile."""
    ragged: Ragged | None = None
    """The groups of a ragged dim."""

    def window(self, tile: tuple[Any, Any, Any], batches: Any) -> DimensionWindow:
        """Return the part of the dimension for a row, column and batch of the grid."""
        n = self.coordinate(tile, batches)
        if self.begins is None:
            return DimensionWindow.tile(n, self.tile)
        return DimensionWindow(self.begins(n), self.tile)

    def coordinate(self, tile: tuple[Any, Any, Any], batches: Any) -> Any:
        """Return the index along this axis of the tile in a row, column and batch of the grid."""
        if self.axis < BATCHES:
            return tile[self.axis]
        batch = tile[BATCHES]
        alone = batches is self.count or (isinstance(batches, int) and batches == self.count)
        after = batch if _is_one(self.before) else batch // self.before
        return batch if alone else after % self.count


@dataclass(frozen=True)
class WaveShare:
    """A workgroup's tile of a dimension, divided among waves: their number, and the length of each part."""

    count: int
    tile: int
    loc: Loc


@dataclass(frozen=True)
class Geometry:
    grid: Grid | OpenGrid
    shares: Mapping[Symbol, GridShare]
    walks: Mapping[Symbol, WalkedDimension]
    driven: frozenset[Symbol]
    workgroups: Any
    """An int, or a number that is known at the launch."""
    persistent: bool
    order: Order
    waves: Mapping[Symbol, WaveShare]
    hardware: HardwareConstraint
    goes_with: Mapping[Symbol, Symbol] = field(default_factory=dict)
    """Dims that have the tiles of another dim."""
    bindings: Mapping[Symbol, Symbol] = field(default_factory=dict)
    """The dims of tiles, by the author's iterator symbols."""

    @property
    def author_walks_grid(self) -> bool:
        """Return whether the author's while loop decides which tiles a persistent workgroup computes."""
        return self.persistent and bool(self.driven)


def resolve(constraints: Sequence[Constraint], subs: Subs, dynamic: Sequence[Symbol]) -> Geometry:
    """Return the geometry of constraints with these sizes; an error at the constraint that cannot hold."""
    cuts = _all(constraints, WorkgroupConstraint)
    _refuse_twice(_all(constraints, TilingConstraint), "tiled for iterate")
    _refuse_twice(_all(constraints, WaveConstraint), "cut among waves")
    _refuse_devices(constraints, subs)
    parts = _parts(constraints, subs)
    shares, counts = _shares([c for c in cuts if c.primary], subs)
    grid = _grid(counts, cuts)
    goes_with, followers = _followers(constraints, shares, subs)
    shares |= followers
    known = {s: v for s, v in subs.items() if not isinstance(v, Number)}
    _refuse_derived(constraints, {s for s in subs if s not in known and s not in dynamic})
    walks = {
        c.dim: WalkedDimension(
            size(c.dim, subs, c.loc), positive(c.tile, subs, c.loc, "tile"), c.iters, parts.get(c.dim, 1), c.start
        )
        for c in _all(constraints, TilingConstraint)
        if c.tile is not None
    }
    for c in _all(constraints, TilingConstraint):
        if c.dim in shares:
            raise ConstraintError(
                f"{c.dim} is both cut over the grid and tiled for iterate",
                loc=c.loc,
                remedy=f"keep one of them; it is cut over the grid at {shares[c.dim].loc}",
            )
    launch = _one(constraints, GridConstraint)
    hardware = _one(constraints, HardwareConstraint) or HardwareConstraint(loc=NOWHERE)
    driven = frozenset(c.dim for c in _all(constraints, TilingConstraint) if c.tile is None)
    if launch and driven:
        _refuse_order(constraints)
    _refuse_groups_twice(cuts, driven if launch else frozenset())
    return Geometry(
        grid=grid,
        shares=shares,
        walks=walks,
        driven=driven,
        workgroups=size(launch.workgroups, subs, launch.loc, "number of workgroups", least=1) if launch else grid.size,
        persistent=launch is not None,
        order=_order(constraints, known, dynamic),
        waves=_waves_as_said(hardware, _waves(_all(constraints, WaveConstraint), shares, subs), shares),
        hardware=hardware,
        goes_with=goes_with,
        bindings=bound.bindings if (bound := _one(constraints, IteratorBindings)) else {},
    )


def _refuse_devices(constraints: Sequence[Constraint], subs: Subs) -> None:
    """Refuse a dim that is divided among several devices: a launch is on one."""
    for c in _all(constraints, DeviceConstraint):
        length, part = size(c.dim, subs, c.loc), positive(c.tile, subs, c.loc, "part of a device")
        if not isinstance(length, int) or length > part:
            what = f"{c.dim} is divided among devices, {part} elements each, and a launch is on one device"
            raise ConstraintError(what, loc=c.loc, remedy="leave it out, and call the kernel with each device's arrays")


def one_part_each(constraints: Sequence[Constraint], subs: Subs) -> tuple[Constraint, ...]:
    """Return the constraints with workgroups in the place of waves along a dim where each wave has its own result.

    Wave's formula of a `SymbolicAlias` gives the parts of a tile that its waves compute one each, such as two of
    `ceiling(x / (BLOCK_K2 / 2))`: reductions end with a wave's part. A workgroup for each part computes the same.
    """
    for alias in _all(constraints, SymbolicAlias):
        part = next((c for c in _all(constraints, WaveConstraint) if c.dim == alias.target), None)
        cut = next((c for c in _all(constraints, WorkgroupConstraint) if c.dim == alias.target), None)
        if part is None or cut is None:
            continue
        parts, of_one = (positive(alias.of(c.tile), subs, alias.loc, "tile") for c in (cut, part))
        if parts > of_one == 1:
            smaller = replace(cut, tile=part.tile)
            constraints = [smaller if c is cut else c for c in constraints if c is not part]
    return tuple(constraints)


def _followers(
    constraints: Sequence[Constraint], shares: dict[Symbol, GridShare], subs: Subs
) -> tuple[dict[Symbol, Symbol], dict[Symbol, GridShare]]:
    """Return dims that follow another dim's grid axis: those with its tiles, and those with other tiles."""
    same: dict[Symbol, Symbol] = {}
    own: dict[Symbol, GridShare] = {}
    for c in _all(constraints, WorkgroupConstraint):
        if c.primary:
            continue
        dim = next((dim for dim, share in shares.items() if share.axis == c.workgroup_dim), None)
        if dim is None or c.dim in shares:
            what = (
                "is cut over the grid itself" if c.dim in shares else f"no dim is cut over dimension {c.workgroup_dim}"
            )
            raise ConstraintError(
                f"{c.dim} is to go with another dim of the grid, but {what}",
                loc=c.loc,
                remedy="leave primary=False out",
            )
        tile, leader = positive(c.tile, subs, c.loc, "tile"), shares[dim]
        _refuse_groups(leader, f"{c.dim} is to go with {dim}", c.loc)
        if tile == leader.tile and c.apply_fn is None and leader.begins is None:
            same[c.dim] = dim
        else:
            own[c.dim] = replace(leader, tile=tile, loc=c.loc, begins=c.apply_fn)
    for alias in _all(constraints, SymbolicAlias):
        own[alias.source] = _alias(alias, constraints, shares, subs)
    return same, own


def _alias(
    alias: SymbolicAlias, constraints: Sequence[Constraint], shares: dict[Symbol, GridShare], subs: Subs
) -> GridShare:
    """Return the tiles of a dim that is a function of another one, which the grid divides."""
    if alias.target not in shares or alias.source in shares:
        what = "is cut itself" if alias.source in shares else f"{alias.target} is not cut over the grid"
        raise ConstraintError(
            f"{alias.source} is to be cut as {alias.target} is, but {what}",
            loc=alias.loc,
            remedy=f"write WorkgroupConstraint({alias.target}, BLOCK_{alias.target}, …), and none of {alias.source}",
        )
    _refuse_groups(shares[alias.target], f"{alias.source} is to be cut as {alias.target} is", alias.loc)
    cut = next(c for c in _all(constraints, WorkgroupConstraint) if c.dim == alias.target)
    tile = positive(alias.of(cut.tile), subs, alias.loc, "tile")
    length, whole = (size(e, subs, alias.loc) for e in (alias.source, alias.of(alias.target)))
    if isinstance(length, int) and isinstance(whole, int) and length != whole:
        raise ConstraintError(
            f"{alias.source} is {length}, but its alias makes {whole} of {alias.target}",
            loc=alias.loc,
            remedy=f"give it that value: subs={{{alias.source}: {whole}}}",
        )
    return replace(shares[alias.target], tile=tile, loc=alias.loc)


def _refuse_groups(share: GridShare, what: str, loc: Loc) -> None:
    """Refuse a dim that has the tiles of a ragged dim: its groups end elsewhere."""
    if share.ragged is not None:
        what = f"{what}, which is divided group by group, and where groups end is known of that dim alone"
        raise ConstraintError(what, loc=loc, remedy="give the arrays the ragged dim itself; leave this constraint out")


def _refuse_groups_twice(cuts: Sequence[WorkgroupConstraint], driven: frozenset[Symbol]) -> None:
    """Refuse two ragged dims with the same groups, and one whose tiles the kernel's own loop places."""
    seen: dict[Symbol, WorkgroupConstraint] = {}
    for c in cuts:
        if c.ragged is None:
            continue
        first = seen.setdefault(c.ragged.groups, c)
        if first is not c:
            what = f"{first.dim} and {c.dim} are both divided by the groups {c.ragged.groups}, and a tile has one group"
            raise ConstraintError(what, loc=c.loc, remedy=f"divide {c.dim} without ragged, or by groups of its own")
        if driven:
            what = f"{c.dim} is divided group by group, and the kernel's own while loop places its tiles"
            raise ConstraintError(
                what, loc=c.loc, remedy="leave the loop out: GridConstraint alone makes it persistent"
            )


def _refuse_derived(constraints: Sequence[Constraint], derived: set[Symbol]) -> None:
    """Refuse an order of tiles that depends on symbols which `subs` computes from dynamic sizes."""
    for c in (*_all(constraints, WorkgroupMapping), *_all(constraints, ReorderingConstraint)):
        for s in c.symbols():
            if s in derived:
                raise ConstraintError(
                    f"the order of tiles depends on {s}, which subs gives as an expression of dynamic sizes",
                    loc=c.loc,
                    remedy=f"write that expression in the place of {s}",
                )


def _parts(constraints: Sequence[Constraint], subs: Subs) -> dict[Symbol, int]:
    """Return the split-K parts of each dim."""
    splits = _all(constraints, SplitConstraint)
    _refuse_twice(splits, "split into parts")
    walked = [c.dim for c in _all(constraints, TilingConstraint) if c.tile is not None]
    for c in splits:
        if c.dim not in walked:
            raise ConstraintError(
                f"the steps along {c.dim} are to be split into parts, but no loop iterates over it",
                loc=c.loc,
                remedy=f"add TilingConstraint({c.dim}, BLOCK_{c.dim}), or leave SplitConstraint out",
            )
    return {c.dim: positive(c.parts, subs, c.loc, "number of parts") for c in splits}


def _refuse_twice(
    constraints: Sequence[TilingConstraint] | Sequence[WaveConstraint] | Sequence[SplitConstraint], how: str
) -> None:
    first: dict[Symbol, Loc] = {}
    for c in constraints:
        if c.dim in first:
            remedy = f"the first is at {first[c.dim]}; keep one of them"
            raise ConstraintError(f"{c.dim} is {how} twice", loc=c.loc, remedy=remedy)
        first[c.dim] = c.loc


def _refuse_order(constraints: Sequence[Constraint]) -> None:
    """Refuse an order of tiles for a kernel whose own loop over the grid decides it."""
    for c in (*_all(constraints, WorkgroupMapping), *_all(constraints, ReorderingConstraint)):
        raise ConstraintError(
            f"{type(c).__name__} has no effect: the kernel's own while loop decides which tiles it computes",
            loc=c.loc,
            remedy="leave it out, or leave out the loop: GridConstraint alone makes the kernel persistent",
        )


def _grid(counts: list[Any], cuts: list[WorkgroupConstraint]) -> Grid | OpenGrid:
    if any(isinstance(n, Number) for n in counts):
        return OpenGrid(*counts)
    try:
        return Grid(*counts)
    except MappingError as error:
        raise ConstraintError(error.what, loc=cuts[-1].loc, remedy="cut it into larger tiles") from None


def _shares(constraints: list[WorkgroupConstraint], subs: Subs) -> tuple[dict[Symbol, GridShare], list[Any]]:
    shares: dict[Symbol, GridShare] = {}
    counts, taken = list[Any]([1] * MOST_AXES), dict[int, WorkgroupConstraint]()
    for c in constraints:
        _check_axis(c, MOST_AXES)
        if c.workgroup_dim in taken:
            other = taken[c.workgroup_dim]
            if other.dim == c.dim:
                what = f"{c.dim} is cut twice over dimension {c.workgroup_dim} of the grid"
                raise ConstraintError(what, loc=c.loc, remedy=f"the first is at {other.loc}; leave one of them out")
            raise ConstraintError(
                f"grid dimension {c.workgroup_dim} is constrained twice: by {other.dim} and by {c.dim}",
                loc=c.loc,
                remedy=f"the first is at {other.loc}; give each its own dimension, 0 to {MOST_AXES - 1}",
            )
        if c.dim in shares:
            raise ConstraintError(
                f"{c.dim} is cut twice over the grid",
                loc=c.loc,
                remedy=f"the first is at {shares[c.dim].loc}; leave one of them out",
            )
        taken[c.workgroup_dim] = c
        length, tile = size(c.dim, subs, c.loc, least=1), positive(c.tile, subs, c.loc, "tile")
        many = _tiles(c, length, tile, subs)
        counts[c.workgroup_dim] = many
        shares[c.dim] = GridShare(c.workgroup_dim, tile, c.loc, many, begins=c.apply_fn, ragged=c.ragged)
    rows, cols, *batches = counts
    first = {BATCHES + i: _product(batches[:i]) for i in range(len(batches))}
    return {d: replace(s, before=first.get(s.axis, 1)) for d, s in shares.items()}, [rows, cols, _product(batches)]


def _tiles(c: WorkgroupConstraint, length: Any, tile: int, subs: Subs) -> Any:
    """Return how many tiles a dim is divided into."""
    if c.ragged is not None:
        if isinstance(length, int) and length > MOST_ROWS:
            what = f"{c.dim} is {length:,}, and the groups of a ragged dim have at most {MOST_ROWS:,} rows in all"
            raise ConstraintError(what, loc=c.loc, remedy="call the kernel for some of the groups at a time")
        return RaggedGrid(tile).count(length, size(c.ragged.groups, subs, c.loc, least=1))
    return steps_along(length, tile, f"{c.dim}_tiles") if c.iters is None else size(c.iters, subs, c.loc, least=1)


def _product(counts: Sequence[Any]) -> Any:
    """Return the product of numbers that may be known only at the launch; factors of 1 are left out."""
    return reduce(lambda a, b: a if _is_one(b) else b if _is_one(a) else a * b, counts, 1)


def _is_one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _check_axis(c: WorkgroupConstraint | ReorderingConstraint, count: int = BATCHES + 1) -> None:
    if c.workgroup_dim not in range(count):
        remedy = f"its dimensions are 0 to {count - 1}"
        raise ConstraintError(f"the grid has no dimension {c.workgroup_dim!r}", loc=c.loc, remedy=remedy)


def _order(constraints: Sequence[Constraint], subs: Subs, dynamic: Sequence[Symbol]) -> Order:
    formulas = _all(constraints, ReorderingConstraint)
    named = _one(constraints, WorkgroupMapping)
    if named and formulas:
        raise ConstraintError(
            "the order of tiles is given twice: by WorkgroupMapping and by ReorderingConstraint",
            loc=named.loc,
            remedy=f"the other is at {formulas[0].loc}; keep one of them",
        )
    if named:
        _check_symbols(named, {*subs, *dynamic})
        return Named(cast(TileMapping, named.mapping), subs, named.loc).known()
    if not formulas:
        return Named(TileMapping((), linear()), {}, NOWHERE)
    dims = [c.workgroup_dim for c in formulas]
    for c in formulas:
        _check_axis(c)
        _check_symbols(c, {*subs, *dynamic, *COORDINATES})
        if dims.count(c.workgroup_dim) > 1:
            raise ConstraintError(
                f"grid dimension {c.workgroup_dim} is reordered twice", loc=formulas[-1].loc, remedy="keep one of them"
            )
    sides = () if _all(constraints, GridConstraint) else _sides(_all(constraints, WorkgroupConstraint))
    lines = places([c.loc for c in formulas])
    return Reordering(tuple((c.workgroup_dim, c.expr) for c in formulas), dict(subs), lines, sides)


def _sides(cuts: Sequence[WorkgroupConstraint]) -> tuple[Expression, ...]:
    """Return the number of tiles along dimensions 0 and 1 of the grid, up to the last that is divided."""
    tiles = {c.workgroup_dim: _tiles_said(c) for c in cuts if c.primary}
    return tuple(tiles.get(dim, expression(1)) for dim in range(min(BATCHES, 1 + max(tiles, default=-1))))


def _tiles_said(c: WorkgroupConstraint) -> Expression:
    """Return the number of a dim's tiles as an expression."""
    if c.ragged is not None:
        return expression(c.dim // c.tile + c.ragged.groups)
    return ceiling(c.dim / c.tile) if c.iters is None else expression(c.iters)


def _check_symbols(order: WorkgroupMapping | ReorderingConstraint, known: set[Symbol]) -> None:
    missing = [s for s in dict.fromkeys(order.symbols()) if s not in known and s not in LANES]
    for s in order.symbols():
        if s in LANES:
            raise SymbolError(
                f"the order of tiles depends on {s}, but a tile is a whole workgroup's, and no lane is known there",
                loc=order.loc,
                remedy="write it with WORKGROUP_0, WORKGROUP_1, WORKGROUP_2 and sizes",
            )
        if s not in known:
            left_open = ", ".join(map(str, missing))
            otherwise = f"or leave {_it(missing)} dynamic until the call: dynamic_symbols=[{left_open}]"
            otherwise = otherwise if all(s.name.isidentifier() for s in missing) else ""
            raise no_value(*missing, otherwise=otherwise).at(order.loc)


def _it(symbols: Sequence[Symbol]) -> str:
    return "it" if len(symbols) == 1 else "them"


def _waves(
    constraints: list[WaveConstraint], shares: Mapping[Symbol, GridShare], subs: Subs
) -> dict[Symbol, WaveShare]:
    waves = {}
    for c in constraints:
        tile = positive(c.tile, subs, c.loc, "tile")
        if c.dim not in shares:
            raise ConstraintError(
                f"{c.dim} is cut among waves, but not over the grid",
                loc=c.loc,
                remedy=f"add WorkgroupConstraint({c.dim}, BLOCK_{c.dim}, …)",
            )
        waves[c.dim] = WaveShare(-(-shares[c.dim].tile // tile), tile, c.loc)
    return waves


def _waves_as_said(
    hardware: HardwareConstraint, waves: dict[Symbol, WaveShare], shares: Mapping[Symbol, GridShare]
) -> dict[Symbol, WaveShare]:
    """Return the waves with those of `waves_per_block`, along the dims that no WaveConstraint divides."""
    if hardware.waves_per_block is None:
        return waves
    cut = {share.axis: dim for dim, share in shares.items()}
    found = dict(waves)
    for axis, count in enumerate(hardware.waves_per_block):
        dim = cut.get(axis)
        known = waves[dim].count if dim in waves else count if dim is not None else 1
        if known != count:
            where = (
                f"{dim} is cut among {known}" if dim in waves else f"nothing is cut over dimension {axis} of the grid"
            )
            raise ConstraintError(
                f"waves_per_block asks for {count} waves along dimension {axis} of the grid, but {where}",
                loc=hardware.loc,
                remedy="leave waves_per_block out: the waves follow from WaveConstraint",
            )
        if dim is not None and dim not in waves and count > 1:
            found[dim] = WaveShare(count, -(-shares[dim].tile // count), hardware.loc)
    return found


def places_of(constraints: Sequence[Constraint], geometry: Geometry, dims: Sequence[Symbol], kernel: Loc) -> Places:
    """Return the source lines of constraints; `dims` are those of the result's rows and columns."""

    def first(kind: type[C]) -> Loc:
        return next((c.loc for c in _all(constraints, kind)), kernel)

    def side(dim: Symbol | None) -> Side:
        share = geometry.shares.get(dim) if dim is not None else None
        if dim is None or share is None:
            return Side(tiled_at=kernel, cut_at=kernel)
        waves = geometry.waves.get(dim)
        return Side(str(dim), share.tile, waves.tile if waves else 0, share.loc, waves.loc if waves else share.loc)

    rows, cols, *_ = (*dims, None, None)
    depth = next((c.loc for c in _all(constraints, TilingConstraint) if c.tile is not None), kernel)
    hardware = first(HardwareConstraint)
    return Places(first(WorkgroupConstraint), depth, first(WaveConstraint), hardware, (side(rows), side(cols)))


def size(e: Expression, subs: Subs, loc: Loc, what: str = "size", least: int = 0) -> Any:
    """Return the value of a size, which may be known only at the launch; an error at `loc` where it is invalid."""
    with given_at(loc):
        value = e.evaluate(subs)
    if not isinstance(value, (int, Number)) or (isinstance(value, int) and value < least):
        name = str(e) if any(True for _ in e.symbols()) else f"the {what}"
        raise ConstraintError(f"{name} is {value}", loc=loc, remedy=f"a {what} is at least {least}")
    return value


def positive(e: Expression, subs: Subs, loc: Loc, what: str = "size") -> int:
    """Return the value of a size that must be known at compile time; an error where it is not at least 1."""
    value = size(e, subs, loc, what, least=1)
    if isinstance(value, Number):
        left_open = next(s for s in e.symbols() if isinstance(subs[s], Number))
        raise ConstraintError(
            f"{e} is a {what}, and fixed when a kernel is compiled, but {left_open} is known only at the launch",
            loc=loc,
            remedy=f"give it a number: subs={{{left_open}: …}}",
        )
    return cast(int, value)


def _all(constraints: Sequence[Constraint], kind: type[C]) -> list[C]:
    return [c for c in constraints if isinstance(c, kind)]


def _one(constraints: Sequence[Constraint], kind: type[C]) -> C | None:
    found = _all(constraints, kind)
    if len(found) > 1:
        raise ConstraintError(f"there are {len(found)} {kind.__name__}s", loc=found[1].loc, remedy="keep one of them")
    return found[0] if found else None
