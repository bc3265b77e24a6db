"""Checks of operands, attributes and results that several ops share."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from tilewave.ir.core import Axis, Block, Op, Places, Value, Want
from tilewave.ir.types import INDEX_SCALAR, Type

Words = tuple[str, ...]
ON_TILES: Words = ("tile",)
ON_LANES: Words = ("lane",)
ON_BOTH: Words = (*ON_TILES, *ON_LANES)
GLOBAL: Words = ("global",)
SHARED: Words = ("shared",)
PACKED: Words = ("packed",)
GLOBAL_OR_SHARED: Words = (*GLOBAL, *SHARED)


def places(**fields: Words) -> Places:
    """`places(memory=GLOBAL)`: the field `memory` holds a memory of one of these address spaces."""
    return MappingProxyType(fields)


def are_axes(axes: tuple[int, ...], rank: int) -> bool:
    """Return whether these are axes of something of that rank, without duplicates."""
    return len(set(axes)) == len(axes) and all(0 <= axis < rank for axis in axes)


def are_indices(values: tuple[Value, ...]) -> bool:
    return all(v.type == INDEX_SCALAR for v in values)


def parts_only(op: Op, want: Want) -> None:
    """A `check` for ops whose fields need no check besides their kinds."""


def want_results(op: Op, want: Want, *types: Type) -> None:
    found = [v.type for v in op.results]
    if found != list(types):
        want(False, f"gives ({', '.join(map(str, types))}), not ({', '.join(map(str, found))})")


def want_yields(block: Block, types: Sequence[Type], want: Want) -> None:
    """Check that a block yields values of these types."""
    last = block.ops[-1] if block.ops else None
    want(last is not None and type(last).ends_blocks, "its block must end in yield")
    assert last is not None
    found = [v.type for v in last.operands]
    want(found == list(types), f"its block must yield ({', '.join(map(str, types))})")


def same_axes(first: Value, *others: Value) -> tuple[tuple[Axis, Axis], ...]:
    """Return pairs of equal axes; a scalar has no axes, and combines with any value."""
    return tuple(((first, i), (other, i)) for other in others for i in range(len(other.type.shape)))
