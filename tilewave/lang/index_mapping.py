"""Index mappings: where the elements of a tile are in memory, when their dimensions alone do not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NoReturn, Protocol

from tilewave.errors import Loc, TraceError, here
from tilewave.ir.build import Number
from tilewave.lang.symbols import Combined, Expression, Symbol, Whole, expression, replaced
from tilewave.records import dataclass

ITERATORS = "write num_iterators=n for IndexMapping.iterator(0) to iterator(n - 1), one for each dim of the tile"


class HasDims(Protocol):
    """Anything with dims, such as a memory."""

    @property
    def dims(self) -> tuple[Expression, ...]: ...


@dataclass(frozen=True)
class Iterator(Symbol):
    """An index along one dimension of a tile; `IndexMapping.iterator(i)` makes it."""

    __hash__ = Symbol.__hash__
    __str__ = Symbol.__str__

    def __repr__(self) -> str:
        return f"IndexMapping.{self.name}"


@dataclass(frozen=True)
class DynamicValue(Symbol):
    """One of the indices given as `mapping_dynamic_vals`; `IndexMapping.dynamic_val(i)` makes it."""

    __hash__ = Symbol.__hash__
    __str__ = Symbol.__str__

    def __repr__(self) -> str:
        return f"IndexMapping.{self.name}"


@dataclass(frozen=True)
class IndexMapping:
    """A mapping between tile and memory: for a read `inputs` index memory, `outputs` the tile; reversed for a write.

    `dynamic_val(i)` in a position is element by element what `mapping_dynamic_vals[i]` has; the i-th of
    `dynamic_val_mappings` gives, for each of its dims, the iterator that runs along it.
    """

    num_iterators: int
    inputs: Mapping[Expression, Expression]
    outputs: Mapping[Expression, Expression]
    dynamic_val_mappings: Mapping[Expression, Expression] | Sequence[Mapping[Expression, Expression]] = ()
    loc: Loc = field(default_factory=here, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, self._side(name, getattr(self, name)))
        given = self.dynamic_val_mappings
        each = (given,) if isinstance(given, Mapping) else tuple(given or ())
        object.__setattr__(
            self, "dynamic_val_mappings", tuple(self._side("dynamic_val_mappings", one) for one in each if one)
        )
        expected = [self.iterator(i) for i in range(self.num_iterators)]
        used = {s for e in (*self.inputs.values(), *self.outputs.values()) for s in iterators_in(e)}
        if unknown := sorted(map(str, used - {*expected})):
            self._refuse(f"{unknown[0]} is not among the {self.num_iterators} iterators", ITERATORS)
        if unused := [i for i in expected if i not in used]:
            what = f"the mapping has {self.num_iterators} iterators, but {unused[0]} is nowhere in it"
            self._refuse(what, self._by_iterators(unused) or ITERATORS)

    def _side(self, name: str, given: object) -> dict[Expression, Expression]:
        if not isinstance(given, Mapping) or not all(isinstance(dim, Expression) for dim in given):
            self._refuse(
                f"the mapping's {name} are a dict from dims to places, not {given!r}",
                f"write {name}={{M: IndexMapping.iterator(0), …}}",
            )
        return {dim: expression(e) for dim, e in given.items()}

    def _by_iterators(self, unused: Sequence[Iterator]) -> str:
        """Return the mapping with iterators in place of sizes; empty where not each unused one has such a size."""
        sides = (self.inputs, self.outputs)
        sizes = [d for d in {**self.outputs, **self.inputs} if isinstance(d, Symbol) and _is_size(d, sides)]
        if len(sizes) != len(unused):
            return ""
        iterators = [self.iterator(i) for i in range(self.num_iterators)]
        pairs = (*zip(iterators, iterators, strict=True), *zip(sizes, unused, strict=True))
        by = {d: Symbol(repr(i)) for d, i in pairs}
        written = ", ".join(
            f"{name}={{{', '.join(f'{d}: {replaced(e, by)}' for d, e in side.items())}}}"
            for name, side in zip(("inputs", "outputs"), sides, strict=True)
        )
        return f"{sizes[0]} is a size; an index along it is an iterator: write {written}"

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise TraceError(what, loc=self.loc, remedy=remedy)

    def keeps(self, dim: Expression) -> bool:
        """Return whether an index along this dim is the same in the tile and in memory."""
        return dim in self.inputs and self.inputs[dim] == self.outputs.get(dim)

    def named_as(self, dims: Sequence[Expression]) -> IndexMapping:
        """Return the mapping with dims such as K / 32 of a memory in the place of K, by which Wave names them."""
        by = {part: d for d in dims if not isinstance(d, Symbol) and len({*d.symbols()}) == 1 for part in d.symbols()}
        named = {**self.inputs, **self.outputs}
        by = {s: d for s, d in by.items() if s in named and d not in named and s not in dims}
        if not by:
            return self

        def renamed(side: Mapping[Expression, Expression]) -> dict[Expression, Expression]:
            return {by.get(d, d) if isinstance(d, Symbol) else d: e for d, e in side.items()}

        return replace(self, inputs=renamed(self.inputs), outputs=renamed(self.outputs))

    def tile_dims(self, name: str) -> tuple[Expression, ...]:
        """Return the dims of the tile that one side names, each by a separate iterator."""
        side, other = (getattr(self, n) for n in ((name, "inputs") if name == "outputs" else (name, "outputs")))
        dim_of: dict[Expression, Expression] = {}
        for dim, e in side.items():
            if not isinstance(e, Iterator):
                mine = min(map(str, iterators_in(e)), default="iterator(0)")
                self._refuse(
                    f"the mapping's {name} name the tile's dims, each by one iterator; {dim} is {e}",
                    f"write {name}={{{dim}: IndexMapping.{mine}, …}} and shift the other side",
                )
            if e in dim_of:
                self._refuse(
                    f"the mapping's {name} name {dim_of[e]} and {dim} of the tile by one iterator, {e}",
                    "give each dim of the tile its own iterator",
                )
            dim_of[e] = dim
        if lost := sorted(str(s) for e in other.values() for s in iterators_in(e) if s not in dim_of):
            dim = next((d for d, e in other.items() if lost[0] in map(str, iterators_in(e))), "K")
            self._refuse(
                f"{lost[0]} runs over no dim of the tile", f"name its dim: {name}={{…, {dim}: IndexMapping.{lost[0]}}}"
            )
        return tuple(side)

    @property
    def dynamic_values(self) -> list[DynamicValue]:
        """The dynamic values in the mapping's positions."""
        places = (*self.inputs.values(), *self.outputs.values())
        return list(dict.fromkeys(s for e in places for s in e.symbols() if isinstance(s, DynamicValue)))

    def along(self, i: int) -> Mapping[Expression, Expression]:
        """Return the place, for each dim of the i-th dynamic value, of the value that an element takes."""
        each = self.dynamic_val_mappings
        assert not isinstance(each, Mapping)
        return each[i] if i < len(each) else {}

    @staticmethod
    def iterator(i: int) -> Iterator:
        return Iterator(f"iterator({i})")

    @staticmethod
    def dynamic_val(i: int) -> DynamicValue:
        return DynamicValue(f"dynamic_val({i})")


def mapping_between(
    op: str, memory: HasDims, bindings: Mapping[Symbol, Symbol], source: Sequence[Any], target: Sequence[Any]
) -> tuple[IndexMapping, list[Any]]:
    """Return the mapping of `source=` and `target=` of a read or write; symbols of `IteratorBindings` are iterators.

    Places that are tiles or numbers of the kernel are the dynamic values of the mapping.
    """
    tile_side, memory_side = (target, source) if op == "read" else (source, target)
    names = [_iterator_name(op, e, bindings) for e in tile_side]
    by = {name: IndexMapping.iterator(at) for at, name in enumerate(names)}
    if len(memory_side) != len(memory.dims):
        what = f"{op}: {len(memory_side)} places are given for {memory}, which has {len(memory.dims)} dims"
        raise TraceError(what, loc=here(), remedy="give each dim of the memory its place, in their order")
    tile: dict[Expression, Expression] = {bindings[name]: by[name] for name in names}
    values = [e for e in memory_side if isinstance(e, Number)]
    numbers = iter(range(len(values)))
    places: dict[Expression, Expression] = {
        d: IndexMapping.dynamic_val(next(numbers)) if isinstance(e, Number) else replaced(expression(e), by)
        for d, e in zip(memory.dims, memory_side, strict=True)
    }
    inputs, outputs = (places, tile) if op == "read" else (tile, places)
    return IndexMapping(len(names), inputs, outputs, [tile] * len(values)), values


def _iterator_name(op: str, e: Any, bindings: Mapping[Symbol, Symbol]) -> Symbol:
    if isinstance(e, Symbol) and e in bindings:
        return e
    raise TraceError(
        f"{op}: {e} names no dim of the tile",
        loc=here(),
        remedy="name the tile's dims by symbols of an IteratorBindings({m: M, …}) among the constraints",
    )


def _is_size(dim: Symbol, sides: Sequence[Mapping[Expression, Expression]]) -> bool:
    """Return whether a mapping's index along a dim is written with its size, and with no iterator."""
    indices = [side[dim] for side in sides if dim in side]
    return not any(map(iterators_in, indices)) and any(dim in e.symbols() for e in indices)


def iterators_in(e: Expression) -> set[Iterator]:
    return {s for s in e.symbols() if isinstance(s, Iterator)}


def unit_step(e: Expression) -> tuple[Iterator | None, Expression] | None:
    """Return (i, rest) where e = i + rest with no iterator in rest; None for any other expression."""
    if not iterators_in(e):
        return None, e
    match e:
        case Iterator():
            return e, Whole(0)
        case Combined("+", a, b) if not iterators_in(b):
            return _and_then(unit_step(a), "+", b)
        case Combined("+", a, b) if not iterators_in(a):
            return _and_then(unit_step(b), "+", a)
        case Combined("-", a, b) if not iterators_in(b):
            return _and_then(unit_step(a), "-", b)
        case _:
            return None


def _and_then(
    step: tuple[Iterator | None, Expression] | None, how: str, more: Expression
) -> tuple[Iterator | None, Expression] | None:
    if step is None:
        return None
    iterator, rest = step
    return iterator, more if how == "+" and rest == Whole(0) else Combined(how, rest, more)
