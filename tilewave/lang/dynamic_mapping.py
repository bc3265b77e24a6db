"""Index mappings with dynamic values, as the positions that `at=` takes.

    inputs={N_KV: d0, BH: j, K1: l}, outputs={BH: j, K2: k, K1: l}, dynamic_val_mappings={K2: k}

reads at={N_KV: d0}: BH and K1 are the same in the tile and in memory, and d0 is a tile of indices along K2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tilewave.errors import DimensionError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.types import I64, Tile
from tilewave.lang.index_mapping import DynamicValue, IndexMapping, Iterator
from tilewave.lang.indexed import index_along, read_at
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, describe, extents_of, scalar_of, without_single_dims
from tilewave.lang.windows import extent_here, is_whole, window_of
from tilewave.records import dataclass
from tilewave.trace import Trace


@dataclass(frozen=True)
class DynamicMapping:
    """A mapping of one access and the dynamic values that it is given; `tile` and `memory` are its two sides."""

    trace: Trace
    op: str
    argument: MemoryArgument
    mapping: IndexMapping
    values: Sequence[Any]
    tile: str
    memory: str

    @property
    def dims(self) -> tuple[Expression, ...]:
        """The dims of the tile."""
        return self.mapping.tile_dims(self.tile)

    @property
    def extents(self) -> dict[Any, int]:
        return {d: extent_here(self.trace, d, f"{self.op}: {self.argument}") for d in self.dims}

    def positions(self) -> dict[Any, Any]:
        """Return the index, or the tile of indices, along each dim of the memory where it is not that of the tile."""
        places = getattr(self.mapping, self.memory)
        missing = [d for d in self.argument.dims if d not in places]
        if missing:
            what = f"{self.op}: the mapping does not say where {missing[0]} of {self.argument} is"
            raise DimensionError(what, loc=here(), remedy=f"add {missing[0]}: …")
        moved = [d for d in self.argument.dims if not self._keeps(d, places[d])]
        known = {**self.trace.symbols, **self._iterators(), **self._dynamic_values()}
        return {d: self._one_number(places[d].evaluate(known)) for d in moved}

    def _keeps(self, dim: Expression, place: Expression) -> bool:
        return isinstance(place, Iterator) and self._dim_of[place] == dim

    @property
    def _dim_of(self) -> dict[Expression, Expression]:
        """The tile's dim that each iterator runs along."""
        return {e: d for d, e in getattr(self.mapping, self.tile).items()}

    def _iterators(self) -> dict[Symbol, Traced]:
        """Return a tile with the position of each element, for each iterator."""
        return {i: self._counted(d) for i, d in self._dim_of.items() if isinstance(i, Iterator)}

    def _counted(self, dim: Expression) -> Traced:
        window = window_of(self.trace, dim, f"{self.op}: {self.argument}")
        start = scalar_of(self.trace, window.start, I64)
        if window.extent == 1:
            return start
        counted = Traced(self.trace, self.trace.emit(ir.Iota, type=Tile((window.extent,), I64)), (dim,))
        places: Traced = counted + start
        return places

    def _dynamic_values(self) -> dict[Symbol, Any]:
        used = self.mapping.dynamic_values
        missing = [v for v in used if v not in self._numbered]
        if missing:
            what = f"{self.op}: the mapping has {missing[0]}, but {len(self.values)} dynamic values are given"
            raise TraceError(what, loc=here(), remedy="give each a tile of integers: mapping_dynamic_vals=(indices, …)")
        placed = {v: self._placed(self._numbered[v]) for v in used}
        return {v: x.make(self.trace.cast(x.value, I64)) for v, x in placed.items()}  # sums of indices may wrap

    @property
    def _numbered(self) -> dict[DynamicValue, int]:
        return {IndexMapping.dynamic_val(i): i for i in range(len(self.values))}

    def _placed(self, i: int) -> Traced:
        """Return a dynamic value as a tile of indices that has dims of the accessed tile only."""
        along: dict[Any, Expression] = {**self.mapping.along(i)}
        value = self.values[i]
        x = index_along(self.trace, self.op, IndexMapping.dynamic_val(i), value)
        places = {d: along.get(d, self._own_place(d)) for d in x.dims}
        if any(not self._is_taken(d, e) for d, e in places.items()):
            return self._read_again(i, value, {**places, **along})
        kept = without_single_dims(self.trace, x, [d for d, e in places.items() if not isinstance(e, Iterator)])
        renamed = tuple(self._dim_of[e] for d in kept.dims if (e := places[d]) is not None)
        return Traced(self.trace, kept.value, renamed)

    def _own_place(self, dim: Any) -> Expression | None:
        """Return the iterator of a value's dim that its mapping does not name: that of the tile's dim of this name."""
        found: Expression | None = getattr(self.mapping, self.tile).get(dim)
        return found

    def _is_taken(self, dim: Any, place: Expression | None) -> bool:
        """Return whether the elements of a value's tile along a dim are those that the place asks for."""
        what = f"{self.op}: {self.argument}"
        if not isinstance(place, Iterator):
            return is_whole(self.trace, dim) and extent_here(self.trace, dim, what) == 1
        mine, theirs = (window_of(self.trace, d, what) for d in (dim, self._dim_of[place]))
        return mine.extent == theirs.extent and (dim == self._dim_of[place] or _same(mine.start, theirs.start))

    def _read_again(self, i: int, value: Any, places: Mapping[Any, Expression | None]) -> Traced:
        """Return the elements of the memory that a value was read from at the places that its mapping gives."""
        memory = self.trace.read_from.get(value.value)
        if memory is None or any(places.get(d) is None for d in memory.dims):
            self._refuse(i, value, places)
        known = {**self.trace.symbols, **self._iterators()}
        strange = {d: e for d in memory.dims if (e := places[d]) is not None and not self._is_taken(d, e)}
        at = {d: e.evaluate(known) for d, e in strange.items()}
        found = read_at(self.trace, self.op, memory, at)
        return index_along(self.trace, self.op, IndexMapping.dynamic_val(i), found)

    def _refuse(self, i: int, value: Any, places: Mapping[Any, Expression | None]) -> NoReturn:
        strange = next(d for d in value.dims if not self._is_taken(d, places[d]))
        raise DimensionError(
            f"{self.op}: dynamic value {i}, {describe(value)}, has no element along {strange} for each of the tile's",
            loc=here(),
            remedy=f"say which it takes, dynamic_val_mappings=({{{strange}: …}},); or write at={{…: indices}}, whose "
            "tile has the dims of the indices",
        )

    def _one_number(self, x: Any) -> Any:
        """Return a tile of one index as a number, so that it moves a window."""
        if isinstance(x, Traced) and x.dims and all(n == 1 for n in extents_of(x).values()):
            return without_single_dims(self.trace, x, x.dims)
        return x


def _same(a: Any, b: Any) -> bool:
    """Return whether two starts of windows are certainly equal."""
    if isinstance(a, Number) and isinstance(b, Number):
        return a.value is b.value
    return isinstance(a, int) and isinstance(b, int) and a == b
