"""Ragged dims: the group of a workgroup's tile, found in the array of the groups' ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewave.errors import ConstraintError
from tilewave.ir import ops as ir
from tilewave.ir.types import INDEX_SCALAR
from tilewave.lang.geometry import GridShare
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced
from tilewave.trace import DimensionWindow, Trace


def place_in_group(trace: Trace, dim: Any, share: GridShare, number: Any) -> DimensionWindow:
    """Return the window of the tile of that number of a ragged dim, and set its group."""
    assert share.ragged is not None
    groups, ends = share.ragged.groups, ends_of(trace, dim, share)
    found = tuple(trace.fresh(name, INDEX_SCALAR) for name in ("group", "first", "end"))
    count = trace.index(share.count)
    trace.effect(ir.RaggedTile, ends.value, trace.index(number), count, share.tile, results=found)
    group, first, end = (trace.number(v) for v in found)
    trace.groups[groups] = group
    trace.windows[groups] = DimensionWindow(group, 1)
    return DimensionWindow(first, share.tile, end=end)


def ordered_in_group(trace: Trace, dim: Any, share: GridShare, along: tuple[Any, Any, Any], columns: Any) -> Any:
    """Return the row, column and batch of a tile whose place in its group decides them; see `Ragged.band`."""
    if share.ragged is None or not share.ragged.band:
        return along
    row, column, batch = along
    found = tuple(trace.fresh(name, INDEX_SCALAR) for name in ("tile_m", "tile_n"))
    numbers = (trace.index(n) for n in (row, column, columns))
    ends = ends_of(trace, dim, share)
    trace.effect(ir.TileInGroup, ends.value, *numbers, share.tile, share.ragged.band, results=found)
    return (*map(trace.number, found), batch)


def ends_of(trace: Trace, dim: Any, share: GridShare) -> MemoryArgument:
    """Return the array of the groups' ends, which the kernel takes by that name."""
    assert share.ragged is not None
    groups, name = share.ragged.groups, share.ragged.ends
    found: MemoryArgument | None = trace.arrays.get(name)
    if found is None or found.dims != (groups,) or not found.value.type.dtype.is_int:
        what = f"the groups of {dim} end where {name} says, and {_but(name, groups, found)}"
        raise ConstraintError(what, loc=share.loc, remedy=f"add the parameter {name}: Memory[{groups}, …, i32]")
    return found


def _but(name: str, groups: Any, found: MemoryArgument | None) -> str:
    if found is None:
        return "the kernel has no such array"
    return f"{found} has {found.value.type.dtype}, not integers along {groups} alone"


def at_groups(trace: Trace, memory: MemoryArgument, at: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
    """Return the indices of an access, those of the tile's group among them."""
    mine = {d: Traced(trace, trace.groups[d].value, ()) for d in memory.dims if d in trace.groups}
    return {**mine, **(at or {})} if mine else at
