"""The semantics of the ops on whole tiles, in numpy: simple, and the reference for every pass and every target.

A kernel runs one workgroup after the other. Each output records which workgroup wrote and read each element, so that
whatever depends on the order of workgroups is found in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewave.errors import EndlessLoop
from tilewave.interp.arithmetic import Array, unmapped_tile
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.numbers import DTYPE_NUMBERS, Numbers
from tilewave.interp.observations import check_assertion, log
from tilewave.interp.reductions import reduced_along, reduced_by_runs, shifted
from tilewave.interp.tile_memory import (
    allocate,
    bring,
    copy,
    gather,
    overlay,
    prepack,
    read,
    read_indexed,
    read_panel,
    read_rows,
    scatter,
    wait_async,
    write,
    write_indexed,
    write_through,
)
from tilewave.interp.tile_run import ATOMICALLY, Meaning, TileRun, TrackedMemory
from tilewave.interp.turns import Standpoint, counter_of, place
from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op
from tilewave.ir.split_steps import steps_of_a_split
from tilewave.mapping.ragged import RaggedGrid

MOST_ROUNDS = 1 << 20
"""A while loop with more iterations than this is taken to be endless."""


def interpret(
    kernel: Kernel,
    arrays: Sequence[Array],
    symbols: Mapping[str, float],
    order: Iterable[int] | None = None,
    numbers: Numbers = DTYPE_NUMBERS,
) -> None:
    """Run every workgroup, in launch order or in the order given; results are kept only if no error is found.

    `arrays` hold what `numbers` holds for their dtypes.
    """
    state = TileRun(kernel, arrays, symbols, numbers, MEANINGS)
    with np.errstate(all="ignore"):
        for w in range(kernel.workgroup_count) if order is None else order:
            state.run_workgroup(w)
    state.want_all_taken()
    state.keep()


def spread(x: Any, axes: tuple[int, ...], rank: int) -> Array:
    """Return x with its axes at `axes` of `rank`, and length 1 elsewhere."""
    x = np.asarray(x)
    shape = [1] * rank
    order = np.argsort(axes)
    for axis, extent in zip(axes, x.shape, strict=True):
        shape[axis] = extent
    spread: Array = (x.transpose(order) if axes else x).reshape(shape)
    return spread


def elementwise(run: TileRun, op: ir.Elementwise) -> tuple[Any, ...]:
    return (run.numbers.elementwise(op, [run.env[v] for v in op.operands]),)


def constant(run: TileRun, op: ir.Const) -> tuple[Any, ...]:
    return (run.numbers.constant(op, op.value),)


def workgroup_number(run: TileRun, op: ir.Workgroup) -> tuple[Any, ...]:
    return (run.workgroup,)


def tile_of(run: TileRun, op: ir.TileOf) -> tuple[Any, ...]:
    return unmapped_tile(run.env[op.number], op.rows, op.cols)


def ragged_tile(run: TileRun, op: ir.RaggedTile) -> tuple[Any, ...]:
    ends = run.env[op.memory].data
    found = RaggedGrid(op.block).tiles(ends, np.asarray(run.env[op.number]))
    return int(found.group), int(found.first), int(found.end)


def tile_in_group(run: TileRun, op: ir.TileInGroup) -> tuple[Any, ...]:
    row, column, columns = (np.asarray(run.env[v]) for v in (op.row, op.column, op.columns))
    found = RaggedGrid(op.block).tiles_in_groups(run.env[op.memory].data, (row, column), columns, op.band)
    return tuple(map(int, found))


def broadcast(run: TileRun, op: ir.Broadcast) -> tuple[Any, ...]:
    shape = op.result.type.shape
    return (np.broadcast_to(spread(run.env[op.x], op.axes, len(shape)), shape),)


def extract_slice(run: TileRun, op: ir.ExtractSlice) -> tuple[Any, ...]:
    count = op.result.type.shape[op.axis]
    return (run.env[op.x].take(range(op.first, op.first + count), axis=op.axis),)


def permute(run: TileRun, op: ir.Permute) -> tuple[Any, ...]:
    return (run.env[op.x].transpose(op.axes),)


def iota(run: TileRun, op: ir.Iota) -> tuple[Any, ...]:
    kind = op.result.type
    return (run.numbers.counted(np.arange(kind.shape[0]), kind.dtype),)


def reduce(run: TileRun, op: ir.Reduce) -> tuple[Any, ...]:
    x = run.env[op.x]
    if op.run:
        return (reduced_by_runs(run.numbers, op.how, op.x.type.dtype, x, op.axes[0], op.run),)
    found = reduced_along(run.numbers, op.how, op.x.type.dtype, x, op.axes)
    return (found if found.shape else found[()],)


def shift(run: TileRun, op: ir.Shift) -> tuple[Any, ...]:
    return (shifted(run.env[op.x], op.axis, op.by),)


def multiply(run: TileRun, op: ir.Mma | ir.Accumulate) -> tuple[Any, ...]:
    return (run.numbers.multiplied(run.env[op.a], run.env[op.b], run.env[op.acc]),)


def zero_accumulator(run: TileRun, op: ir.ZeroAccumulator) -> tuple[Any, ...]:
    return (np.zeros(op.result.type.shape, run.numbers.storage(op.result.type.dtype)),)


def same_numbers(run: TileRun, op: ir.Convert | ir.LoadAccumulator | ir.ReadAccumulator) -> tuple[Any, ...]:
    (x,) = op.operands
    return (run.env[x],)


def loop(run: TileRun, op: ir.Loop) -> tuple[Any, ...]:
    carried = tuple(run.env[v] for v in op.init)
    if op.split > 1:
        return in_parts(run, op, carried)
    for i in range(run.env[op.trips]):
        carried = run.block(op.body, i, *carried)
    return carried


def in_parts(run: TileRun, op: ir.Loop, carried: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the carried sums plus those of each part, in order; each part starts from zeros."""
    steps = run.env[op.trips]
    each = steps_of_a_split(steps, op.split)
    for first in range(0, op.split * each, max(1, each)):
        sums = tuple(np.zeros_like(v) for v in carried)
        for i in range(first, min(first + each, steps)):
            sums = run.block(op.body, i, *sums)
        carried = tuple(
            run.numbers.added(v.type.dtype, a, b) for v, a, b in zip(op.results, carried, sums, strict=True)
        )
    return carried


def loop_while(run: TileRun, op: ir.While) -> tuple[Any, ...]:
    carried = tuple(run.env[v] for v in op.init)
    for _ in range(MOST_ROUNDS):
        (goes_on,) = run.block(op.condition, *carried)
        if not goes_on:
            return carried
        carried = run.block(op.body, *carried)
    raise EndlessLoop(f"workgroup {run.workgroup} ran {MOST_ROUNDS:,} iterations and is not done", loc=op.loc)


def barrier(run: TileRun, op: ir.Barrier) -> tuple[Any, ...]:
    return ()  # no effect on whole tiles, because waves exist at the lane level only


def make_exchange(run: TileRun, op: ir.MakeExchange) -> tuple[Any, ...]:
    return (run.exchange(op.result),)


def hand_over(run: TileRun, op: ir.HandOver) -> tuple[Any, ...]:
    for i, part in enumerate(np.split(run.env[op.tile], op.wide, axis=-1)):
        run.env[op.exchange].put(op, run.workgroup, run.env[op.slot] + i, 0, part)
    return ()


def take_over(run: TileRun, op: ir.TakeOver) -> tuple[Any, ...]:
    return (taken(run, op, run.env[op.tile], run.env[op.slot]),)


def take_over_all(run: TileRun, op: ir.TakeOverAll) -> tuple[Any, ...]:
    found = run.env[op.tile]
    for i in range(op.count):
        found = taken(run, op, found, run.env[op.slot] + i * run.env[op.apart])
    return (found,)


def taken(run: TileRun, op: ir.TakeOver, tile: Array, slot: int) -> Array:
    slots: ExchangeSlots = run.env[op.exchange]
    slots.want_inside(op, run.workgroup, slot)
    if (slot, 0) not in slots.full:
        run.fail(op, f"waits for {slots.name(slot)}, which no earlier workgroup handed over")
    found: Array = run.numbers.added(op.tile.type.dtype, tile, slots.take(op, run.workgroup, slot, 0))
    return found


def wait_turn(run: TileRun, op: ir.WaitTurn) -> tuple[Any, ...]:
    turns, counter = counted(run, op)
    turn = int(run.env[op.turn])
    if not run.turns.has_come(op, turns, counter, turn):
        run.fail(op, f"waits for turn {turn} of {place(op, turns, counter)}, which no earlier workgroup passes on")
    run.turns.take(Standpoint(run.workgroup), op, turns, counter, turn)
    return ()


def pass_turn(run: TileRun, op: ir.PassTurn) -> tuple[Any, ...]:
    turns, counter = counted(run, op)
    run.turns.give(Standpoint(run.workgroup), op, turns, counter)
    return ()


def counted(run: TileRun, op: ir.TurnOp) -> tuple[Array, int]:
    """Return the array of an op's counter, and the counter's position in the array."""
    buffer: TrackedMemory = run.env[op.turns]
    counter = counter_of(run.workgroup, op, buffer.data, tuple(run.env[v] for v in op.at))
    run.note_write(op, buffer, np.unravel_index(np.array([counter]), buffer.data.shape), ATOMICALLY)
    return buffer.data, counter


MEANINGS: dict[type[Op], Meaning] = {
    ir.Elementwise: elementwise,
    ir.Const: constant,
    ir.Workgroup: workgroup_number,
    ir.TileOf: tile_of,
    ir.RaggedTile: ragged_tile,
    ir.TileInGroup: tile_in_group,
    ir.Broadcast: broadcast,
    ir.ExtractSlice: extract_slice,
    ir.Permute: permute,
    ir.Convert: same_numbers,
    ir.Iota: iota,
    ir.Reduce: reduce,
    ir.Shift: shift,
    ir.Mma: multiply,
    ir.Accumulate: multiply,
    ir.ZeroAccumulator: zero_accumulator,
    ir.LoadAccumulator: same_numbers,
    ir.ReadAccumulator: same_numbers,
    ir.Loop: loop,
    ir.While: loop_while,
    ir.Barrier: barrier,
    ir.MakeExchange: make_exchange,
    ir.HandOver: hand_over,
    ir.TakeOver: take_over,
    ir.TakeOverAll: take_over_all,
    ir.WaitTurn: wait_turn,
    ir.PassTurn: pass_turn,
    ir.Allocate: allocate,
    ir.Overlay: overlay,
    ir.Prefetch: lambda run, op: (),
    ir.Prepack: prepack,
    ir.ReadPanel: read_panel,
    ir.ReadRows: read_rows,
    ir.Read: read,
    ir.Write: write,
    ir.WriteThrough: write_through,
    ir.Gather: gather,
    ir.Scatter: scatter,
    ir.ReadIndexed: read_indexed,
    ir.ReadIndexedShared: read_indexed,
    ir.WriteIndexed: write_indexed,
    ir.Copy: copy,
    ir.CopyAsync: bring,
    ir.WaitAsync: wait_async,
    ir.Assert: check_assertion,
    ir.DebugLog: log,
}
"""The function of each op on the tile level; it returns as many values as the op has results."""
