"""`ordered_add`: sums across workgroups, in an order that the kernel gives.

turns     [m]     0 0 0 … 0 …          a counter for each tile of the array, 0 before the launch
total     [m, n]  ┌─────┐              workgroups add to a tile in turns 0, 1, 2, …
                  │  +  │ ← turn 0     each waits until the counter is its turn,
                  │  +  │ ← turn 1     adds, and increases the counter
                  └─────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewave.errors import DimensionError, DTypeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.core import Value
from tilewave.ir.types import I32
from tilewave.lang.accesses import want_atomic, want_memory, write_indexed
from tilewave.lang.indexed import IndexedPlace
from tilewave.lang.operands import want_tile
from tilewave.lang.tags import taggable
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, index_of, want_number
from tilewave.trace import Trace, current

NAME = "ordered_add"


@taggable
def ordered_add(
    tile: Traced, memory: MemoryArgument, turns: MemoryArgument, turn: Any, at: Mapping[Any, Any] | None = None
) -> None:
    """Add a tile to what `memory` has, after everything that is added to it in lower turns: 0, 1, 2, …, each once.

    `turns` is an array of i32 with some of the memory's dims, 0 before the launch; its element where the tile begins
    counts the turns of that tile. Out-of-bounds elements are left out. `at` gives positions along some dims: numbers
    along those of `turns`, and numbers or tiles along others.
    """
    trace = current(NAME)
    want_tile(NAME, tile)
    want_memory(NAME, memory)
    want_memory(NAME, turns)
    want_atomic(NAME, memory.value.type.dtype, "add")
    want_number(NAME, turn, "turn is one number for the workgroup, such as first_index(K) // BLOCK_K")
    given = dict(at or {})
    counter = _counter(trace, memory, turns, given)
    trace.effect(ir.WaitTurn, memory.value, turns.value, counter, index_of(trace, NAME, turn).value)
    write_indexed(trace, NAME, tile, memory, given, "add")
    trace.effect(ir.PassTurn, memory.value, turns.value, counter)


def _counter(trace: Trace, memory: MemoryArgument, turns: MemoryArgument, at: Mapping[Any, Any]) -> tuple[Value, ...]:
    """Return the position in `turns` of the counter of the tile."""
    if turns.value.type.dtype != I32:
        what = f"{NAME}: {turns.name} counts turns, and is an array of {turns.value.type.dtype}"
        raise DTypeError(what, loc=here(), remedy=f"declare {turns.name} as Memory[…, i32]")
    if turns is memory or not set(memory.dims).issuperset(turns.dims):
        named = ", ".join(map(str, memory.dims))
        remedy = f"count in an array of its own, with some of the dims {named}"
        raise DimensionError(f"{NAME}: {turns} cannot count turns at tiles of {memory}", loc=here(), remedy=remedy)
    found = IndexedPlace(trace, NAME, memory, at).numbers(turns.dims)
    if found is None:
        what = f"{NAME}: {memory} is added to at indices that are tiles, and a turn is for one tile of it"
        raise TraceError(what, loc=here(), remedy="write atomic_add, which adds in any order")
    return found
