"""Lowering of the tile level's ops, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewave.ir import ops as ir
from tilewave.ir.core import Op, Value
from tilewave.ir.types import Accumulator, Memory, Tile
from tilewave.lower.cpu.arguments import load_packed
from tilewave.lower.cpu.body import Lowerings, TaskBody
from tilewave.lower.cpu.memory import add, times
from tilewave.lower.cpu.row_vectors import RowVectors
from tilewave.lower.cpu.scratch_tiles import ComputedTile, ProductTile, ScratchTile
from tilewave.lower.cpu.target import OperandRows, Panel
from tilewave.lower.cpu.turns import pass_turn, wait_turn
from tilewave.lower.elements import in_memory, literal, stored
from tilewave.lower.llvm import Typed
from tilewave.lower.numbers import elementwise


def constant(body: TaskBody, op: ir.Const) -> None:
    kind = op.result.type
    is_tile = isinstance(kind, Tile)
    body.give(op, body.tiles.constant(kind, op.value) if is_tile else literal(op.value, kind.dtype))


def launch(body: TaskBody, op: ir.Launch) -> None:
    """Emit nothing: the results were loaded as words with the scalar arguments."""


def workgroup(body: TaskBody, op: ir.Workgroup) -> None:
    body.give(op, "%number")


def allocate(body: TaskBody, op: ir.Allocate) -> None:
    assert body.scratch and isinstance(op.result.type, Memory)
    body.give(op, body.scratch.allocate(op.result.type))


def broadcast(body: TaskBody, op: ir.Broadcast) -> None:
    body.give(op, body.tiles.broadcast(body.values[op.x], op.axes, op.result.type))


def permute(body: TaskBody, op: ir.Permute) -> None:
    body.give(op, body.tiles.permute(body.values[op.x], op.axes, op.result.type))


def iota(body: TaskBody, op: ir.Iota) -> None:
    body.give(op, body.tiles.iota(op.result.type))


def barrier(body: TaskBody, op: ir.Barrier) -> None:
    """Emit nothing: one thread runs a workgroup."""


def reduce(body: TaskBody, op: ir.Reduce) -> None:
    body.give(op, body.tiles.reduce(op, body.values[op.x]))


def shift(body: TaskBody, op: ir.Shift) -> None:
    body.give(op, body.tiles.shift(op, body.values[op.x]))


def read(body: TaskBody, op: ir.Read) -> None:
    read = body.tiles.operand if op.result in body.uses.operands else body.tiles.read
    place, at = body.values[op.memory], body.taken(op.at)
    body.give(op, read(place, at, op.axes, op.result.type))
    if op.ahead:
        body.tiles.prefetch(
            place, [add(body.f, v, n) for v, n in zip(at, op.ahead, strict=True)], op.axes, op.result.type
        )


def write_tile(body: TaskBody, op: ir.Write) -> None:
    body.tiles.write(body.values[op.memory], body.taken(op.at), op.axes, body.values[op.tile])


def prefetch(body: TaskBody, op: ir.Prefetch) -> None:
    place = body.values[op.memory]
    body.tiles.prefetch(place, body.taken(op.at), op.axes, Tile(op.shape, place.dtype))


def gather(body: TaskBody, op: ir.Gather) -> None:
    body.give(op, body.tiles.gather(body.values[op.memory], op.result.type, body.formula(op.where)))


def scatter(body: TaskBody, op: ir.Scatter) -> None:
    body.tiles.scatter(body.values[op.memory], body.values[op.tile], body.formula(op.where))


def read_indexed(body: TaskBody, op: ir.ReadIndexed | ir.ReadIndexedShared) -> None:
    body.give(op, body.tiles.read_indexed(op, body.values[op.memory], body.taken(op.at), op.result.type))


def write_indexed(body: TaskBody, op: ir.WriteIndexed) -> None:
    body.tiles.write_indexed(op, body.values[op.memory], body.taken(op.at), body.values[op.tile])


def packed_operand(body: TaskBody, op: ir.Prepack) -> None:
    body.give(op, load_packed(body.f, op.result, body.slots))


def multiply(body: TaskBody, op: ir.Mma) -> None:
    found = body.tiles.multiply(*body.taken((op.a, op.b, op.acc)))
    if isinstance(found, ProductTile) and op.result not in body.uses.finished:
        carried = body.uses.accumulated.get(op.result)
        found = body.tiles.stored(found, None if carried is None else body.values[carried])
    body.give(op, found)


def matrix_unit(body: TaskBody, op: Op) -> None:
    """Lower an op of the matrix unit, which holds one block of sums; so their type alone identifies them."""
    unit, values, kind = body.target.matrix_unit, body.values, op.results[0].type
    assert unit is not None, f"{op.loc}: no matrix unit for {op.name}"
    match op, kind:
        case ir.ZeroAccumulator(), Accumulator():
            unit.zero(body.f, kind)
        case ir.LoadAccumulator(x), Accumulator():
            unit.load(body.f, kind, body.tiles.to_buffer(values[x]))
        case ir.Accumulate(a, b), Accumulator():
            unit.multiply(body.f, values[a], values[b], kind)
        case ir.ReadAccumulator(acc), Tile():
            buffer = body.tiles.buffer(kind)
            unit.store(body.f, values[acc], buffer)
            values[op.results[0]] = body.tiles.whole_buffer(buffer, kind)
            return
        case _:
            raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")
    values[op.results[0]] = kind


def lower_elementwise(body: TaskBody, op: ir.Elementwise) -> None:
    operands, kind = body.taken(op.operands), op.result.type
    if isinstance(kind, Tile):
        body.give(op, body.tiles.elementwise(op, operands, kind, body.ranges.of))
    else:
        body.give(op, elementwise(body.f, op, operands, op.operands[-1].type.dtype, 1, body.ranges.of))


def read_panel(body: TaskBody, op: ir.ReadPanel) -> None:
    body.give(op, panel(body, op))


def panel(body: TaskBody, op: ir.ReadPanel) -> Panel:
    f, packed = body.f, body.values[op.memory]
    *batch, panels, groups, _, _ = packed.extents
    rows, group = packed.group
    *outer, panel, depth = (body.values[v] for v in op.at)
    number = "0"
    for index, count in zip((*outer, panel), (*batch, panels), strict=True):
        scaled = number if number == "0" else f.value(f"mul i64 {number}, {count}")
        number = index if scaled == "0" else f.value(f"add i64 {scaled}, {index}")
    first = f.value(f"mul i64 {number}, {times(f, groups, rows * group)}")
    along = f.value(f"mul i64 {depth}, {rows}")
    offset = f.value(f"add i64 {first}, {along}")
    element = in_memory(packed.dtype)
    pointer = f.value(f"getelementptr {element}, ptr {packed.pointer}, i64 {offset}")
    *_, read_rows, depth_read = op.result.type.shape
    return Panel(pointer, read_rows, depth_read, group, packed.dtype, rows)


def read_rows(body: TaskBody, op: ir.ReadRows) -> None:
    at = tuple(body.taken(op.at))
    body.give(op, OperandRows(body.values[op.memory], at, op.row_axis, op.depth_axis, op.result.type.shape[-1]))


def loop(body: TaskBody, op: ir.Loop) -> None:
    carry = _Carry(body, op.init, op.results)
    results = body.f.loop(
        body.values[op.trips],
        carry.start(),
        lambda i, carried: carry.next(body.block(op.body, i, *carry.values(carried))),
    )
    body.values.update(zip(op.results, carry.values(results), strict=True))


def loop_while(body: TaskBody, op: ir.While) -> None:
    carry = _Carry(body, op.init, op.results)
    results = body.f.loop_while(
        carry.start(),
        lambda carried: str(body.block(op.condition, *carry.values(carried))[0]),
        lambda carried: carry.next(body.block(op.body, *carry.values(carried))),
    )
    body.values.update(zip(op.results, carry.values(results), strict=True))


LOWERINGS: Lowerings = {
    ir.Elementwise: lower_elementwise,
    ir.Const: constant,
    ir.Launch: launch,
    ir.Workgroup: workgroup,
    ir.Allocate: allocate,
    ir.Broadcast: broadcast,
    ir.Permute: permute,
    ir.Iota: iota,
    ir.Barrier: barrier,
    ir.Reduce: reduce,
    ir.Shift: shift,
    ir.Read: read,
    ir.Write: write_tile,
    ir.Prefetch: prefetch,
    ir.Gather: gather,
    ir.Scatter: scatter,
    ir.ReadIndexed: read_indexed,
    ir.ReadIndexedShared: read_indexed,
    ir.WriteIndexed: write_indexed,
    ir.WaitTurn: wait_turn,
    ir.PassTurn: pass_turn,
    ir.Prepack: packed_operand,
    ir.ReadPanel: read_panel,
    ir.ReadRows: read_rows,
    ir.MatrixUnitOp: matrix_unit,
    ir.Mma: multiply,
    ir.Loop: loop,
    ir.While: loop_while,
}
"""The lowering of each tile-level op."""


class _Carry:
    """Maps the values that a loop carries in the IR to those that it carries in LLVM."""

    def __init__(self, body: TaskBody, init: Sequence[Value], results: Sequence[Value]) -> None:
        self.body = body
        self.first = [body.values[v] for v in init]
        self.types = [v.type for v in results]
        for place, x in enumerate(self.first):
            if isinstance(x, (ScratchTile, ComputedTile)):  # the loop needs a copy: the initial tile may be used later
                mine = body.tiles.new(x.type)
                body.tiles.copy(x, mine)
                self.first[place] = mine

    def start(self) -> list[Typed]:
        return self.flat(self.first)

    def flat(self, values: Sequence[Any]) -> list[Typed]:
        found: list[Typed] = []
        for kind, x in zip(self.types, values, strict=True):
            if isinstance(x, RowVectors):
                found += x.typed()
            elif not isinstance(x, (ScratchTile, ComputedTile, Accumulator)):
                found.append((stored(kind.dtype), x))
        return found

    def values(self, carried: Sequence[Typed]) -> list[Any]:
        left = iter(carried)
        found: list[Any] = []
        for x in self.first:
            if isinstance(x, RowVectors):
                count = sum(len(row) for row in x.rows)
                found.append(self.body.tiles.rebuilt(x, [next(left)[1] for _ in range(count)]))
            else:
                found.append(x if isinstance(x, (ScratchTile, Accumulator)) else next(left)[1])
        return found

    def next(self, values: Sequence[Any]) -> list[Typed]:
        """Return the body's values for the next step; tiles in memory are copied after all of them are known."""
        own = {mine.pointer for mine in self.first if isinstance(mine, ScratchTile)}
        pairs = [
            (self.body.tiles.kept(x), mine)
            for x, mine in zip(values, self.first, strict=True)
            if isinstance(mine, ScratchTile)
        ]
        pairs = [(self.apart(x) if x.pointer in own - {mine.pointer} else x, mine) for x, mine in pairs]
        for x, mine in pairs:
            if x.pointer != mine.pointer:
                self.body.tiles.copy(x, mine)
        return self.flat(values)

    def apart(self, x: ScratchTile) -> ScratchTile:
        other: ScratchTile = self.body.tiles.new(x.type)
        self.body.tiles.copy(x, other)
        return other
