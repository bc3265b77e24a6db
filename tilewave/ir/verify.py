"""What every kernel satisfies, before and after every pass: scoping, types, and the ops of its level."""

from __future__ import annotations

from math import prod
from typing import NoReturn

from tilewave.errors import TilewaveError
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    COMPARISONS,
    FUNCTIONS,
    LANE_OPS,
    LEVELS,
    LOGIC,
    Accumulate,
    Allocate,
    AwaitBrought,
    Barrier,
    Binary,
    Bring,
    Broadcast,
    Cast,
    Const,
    Copy,
    Div,
    FloorDiv,
    Gather,
    HandOver,
    Iota,
    LoadAccumulator,
    Loop,
    MakeExchange,
    Mma,
    Mod,
    Not,
    Overlay,
    Permute,
    Prepack,
    Read,
    ReadAccumulator,
    ReadPanel,
    Scatter,
    Select,
    TakeOver,
    TileOf,
    Unary,
    While,
    Workgroup,
    Write,
    WriteThrough,
    Xor,
    Yield,
    ZeroAccumulator,
)
from tilewave.ir.overlays import size_bytes
from tilewave.ir.types import BOOL, INDEX_SCALAR, Accumulator, Exchange, Memory, Scalar, Tile, Type, Vector, elementwise
from tilewave.ir.verify_lanes import check_cluster, check_lane_op


class VerifyError(TilewaveError):
    """A kernel's text says something that has no meaning."""


def verify(kernel: Kernel) -> Kernel:
    if kernel.level not in LEVELS:
        raise VerifyError(f"{kernel.name}: no level is called {kernel.level!r}; the levels are {', '.join(LEVELS)}")
    if kernel.workgroups < 1:
        raise VerifyError(f"{kernel.name}: {kernel.workgroups} workgroups compute nothing")
    if kernel.cluster < 1 or kernel.workgroups % kernel.cluster:
        raise VerifyError(f"{kernel.name}: {kernel.workgroups} workgroups are no whole clusters of {kernel.cluster}")
    _Verifier(LEVELS[kernel.level], kernel.level, kernel.cluster).block(kernel.body, {})
    return kernel


class _Verifier:
    def __init__(self, allowed: tuple[type[Op], ...], level: str, cluster: int) -> None:
        self.allowed, self.level, self.cluster = frozenset(allowed), level, cluster
        self.defined: set[str] = set()

    def block(self, block: Block, visible: dict[str, Value]) -> None:
        seen = dict(visible)
        for v in block.args:
            self.define(v, seen, block.ops[0] if block.ops else Yield(()))
        for position, op in enumerate(block.ops):
            if type(op) not in self.allowed:
                _fail(op, f"the {self.level} level has no such op")
            if isinstance(op, Yield) and position != len(block.ops) - 1:
                _fail(op, "nothing may follow it")
            for v in op.operands:
                if seen.get(v.name) != v:
                    _fail(op, f"{v}: {v.type} is not defined here")
            _check(op)
            check_cluster(op, self.cluster, lambda holds, why, op=op: _want(op, holds, why))  # type: ignore[misc]
            for inner in op.blocks:
                self.block(inner, seen)
            for v in op.results:
                self.define(v, seen, op)

    def define(self, v: Value, seen: dict[str, Value], op: Op) -> None:
        if v.name in self.defined:
            _fail(op, f"{v} is already defined")
        self.defined.add(v.name)
        seen[v.name] = v


def _check(op: Op) -> None:
    match op:
        case Binary():
            _binary(op)
        case Cast(x):
            _want(op, op.results[0].type.shape == x.type.shape, f"{x.type} cannot become {op.results[0].type}")
        case Unary(x):
            _want(op, not isinstance(op, FUNCTIONS) or x.type.dtype.is_float, f"needs floats, not {x.type}")
            _want(op, not isinstance(op, Not) or x.type.dtype == BOOL, f"needs truth values, not {x.type}")
            _results(op, x.type)
        case Select(condition, a, b):
            _want(op, a.type == b.type, f"chooses between {a.type} and {b.type}")
            _want(op, condition.type in (elementwise(a.type, BOOL), Scalar(BOOL)), f"chooses by {condition.type}")
            _results(op, a.type)
        case Const():
            _want(op, len(op.results) == 1 and not isinstance(op.result.type, Memory), "makes a number or a tile")
        case Workgroup():
            _results(op, INDEX_SCALAR)
        case TileOf(number):
            _want(op, number.type == INDEX_SCALAR, f"takes an index, not {number.type}")
            _results(op, *[INDEX_SCALAR] * 3)
        case Iota():
            _want(op, _is_tile(op) and len(op.result.type.shape) == 1, "makes a tile of one axis")
        case Broadcast() | Permute():
            _shape(op)
        case Allocate():
            _want(op, len(op.results) == 1 and isinstance(op.result.type, Memory), "makes a memory")
        case Overlay(memory):
            _overlay(op, memory.type, op.results[0].type)
        case Read() | Write() | Gather() | Scatter() | WriteThrough():
            _memory(op)
        case Prepack() | ReadPanel():
            _panels(op)
        case Mma() | Accumulate():
            _mma(op)
        case ZeroAccumulator():
            _want(op, isinstance(op.results[0].type, Accumulator), "makes an accumulator")
        case LoadAccumulator(x) | ReadAccumulator(x):
            kinds = {type(x.type), type(op.results[0].type)} == {Tile, Accumulator}
            same = (x.type.shape, x.type.dtype) == (op.results[0].type.shape, op.results[0].type.dtype)
            _want(op, kinds and same, f"{x.type} cannot become {op.results[0].type}")
        case Loop() | While():
            _control(op)
        case MakeExchange():
            kind = op.results[0].type if op.results else None
            _want(op, isinstance(kind, Exchange) and len(kind.shape) > 1, "makes slots for tiles")
        case HandOver() | TakeOver():
            _exchange(op)
        case Barrier(over=over) if type(op) is Barrier:
            _want(op, over in ("shared", "global"), f"hands over shared or global memory, not {over!r}")
        case _ if type(op) in (*LANE_OPS, Copy, Bring, AwaitBrought):
            check_lane_op(op, lambda holds, why: _want(op, holds, why))
        case _:
            pass


def _binary(op: Binary) -> None:
    a, b = op.a.type, op.b.type
    _want(op, a == b and not isinstance(a, Memory), f"{a} and {b} do not go together")
    if isinstance(op, Div):
        _want(op, a.dtype.is_float, f"divides floats, not {a}; floor_div divides integers")
    if isinstance(op, (FloorDiv, Mod)):
        _want(op, a.dtype.is_int, f"divides integers, not {a}")
    if isinstance(op, Xor):
        _want(op, a.dtype.is_int, f"takes the bits of integers, not {a}")
    if isinstance(op, LOGIC):
        _want(op, a.dtype == BOOL, f"joins truth values, not {a}")
    _results(op, elementwise(a, BOOL) if isinstance(op, COMPARISONS) else a)


def _shape(op: Broadcast | Permute) -> None:
    _want(op, len(op.results) == 1, "has one result")
    x, out = op.x.type, op.result.type
    match op:
        case Broadcast(axes=axes):
            fits = (
                isinstance(out, (Tile, Vector)) and len(axes) == len(x.shape) and all(a < len(out.shape) for a in axes)
            )
            _want(op, fits and tuple(out.shape[a] for a in axes) == x.shape, f"{x} along {axes} is not {out}")
        case Permute(axes=axes):
            fits = isinstance(x, (Tile, Vector)) and sorted(axes) == list(range(len(x.shape)))
            _want(op, fits and tuple(x.shape[a] for a in axes) == out.shape, f"{x} along {axes} is not {out}")
    _want(op, x.dtype == out.dtype, f"{x} and {out} differ in dtype")


def _overlay(op: Op, under: Type, over: Type) -> None:
    shared = all(isinstance(kind, Memory) and kind.space == "shared" for kind in (under, over))
    _want(op, shared, f"lays a shared memory over another, not {over} over {under}")
    assert isinstance(under, Memory) and isinstance(over, Memory)
    _want(op, size_bytes(over) <= size_bytes(under), f"{over} is longer than {under}")


def _memory(op: Read | Write | Gather | Scatter | WriteThrough) -> None:
    memory = op.memory.type
    tile = op.results[0].type if isinstance(op, (Read, Gather)) else op.tile.type
    if not isinstance(memory, Memory) or not isinstance(tile, Tile):
        _fail(op, f"moves a tile, {tile}, and a memory, {memory}")
    _want(op, tile.dtype == memory.dtype, f"{tile} and {memory} differ in dtype")
    rank = len(memory.shape)
    match op:
        case Read(at=at, axes=axes) | Write(at=at, axes=axes) | WriteThrough(at=at, axes=axes):
            _want(op, len(at) == rank, f"{memory} needs {rank} positions, not {len(at)}")
            _want(op, all(v.type == INDEX_SCALAR for v in at), "positions are of type index")
            fits = len(axes) == len(tile.shape) and len(set(axes)) == len(axes) and all(a < rank for a in axes)
            _want(op, fits, f"axes {list(axes)} do not lay {tile} into {memory}")
        case Gather(where=where) | Scatter(where=where):
            _want(
                op, [v.type for v in where.args] == [INDEX_SCALAR] * len(tile.shape), f"{tile} needs an index per axis"
            )
            _yields(op, where, [INDEX_SCALAR] * rank)


def _panels(op: Prepack | ReadPanel) -> None:
    memory, out = op.memory.type, op.results[0].type
    match op:
        case Prepack(_, row_axis, depth_axis):
            _want(op, isinstance(out, Memory) and out.space == "packed", f"makes a packed memory, not {out}")
            _want(
                op, len(out.shape) == len(memory.shape) + 2 and row_axis != depth_axis, f"{memory} has no such panels"
            )
            *_, panels, groups, rows, depth = out.shape
            whole = panels * rows >= memory.shape[row_axis] and groups * depth >= memory.shape[depth_axis]
            _want(op, whole, f"{out} does not hold all of {memory}")
        case ReadPanel(_, at):
            fits = isinstance(memory, Memory) and memory.space == "packed" and isinstance(out, Tile)
            _want(op, fits and len(at) == len(memory.shape) - 2, f"reads {out} from {memory}")
            *_, rows, depth = memory.shape
            _want(op, out.shape[-2] == rows and out.shape[-1] % depth == 0, f"{out} is no part of a panel of {memory}")
            _want(
                op, all(v.type == INDEX_SCALAR for v in at) and out.dtype == memory.dtype, f"reads {out} from {memory}"
            )


def _mma(op: Mma | Accumulate) -> None:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    ok = all(isinstance(t, Tile) and len(t.shape) == len(acc.shape) >= 2 for t in (a, b))
    ok = ok and isinstance(acc, Tile if isinstance(op, Mma) else Accumulator)
    ok = ok and a.shape[:-2] == b.shape[:-2] == acc.shape[:-2] and a.shape[-1] == b.shape[-1]
    _want(op, ok and acc.shape[-2:] == (a.shape[-2], b.shape[-2]), f"{a} times {b} does not fit the accumulator {acc}")
    _results(op, acc)


def _exchange(op: HandOver | TakeOver) -> None:
    tile, exchange = op.tile.type, op.exchange.type
    if not isinstance(exchange, Exchange) or not isinstance(tile, (Tile, Vector)):
        _fail(op, f"moves a tile, {tile}, and an exchange, {exchange}")
    _want(op, op.slot.type == INDEX_SCALAR, f"counts slots by an index, not {op.slot.type}")
    fits = (
        tile.shape == exchange.shape[1:] if isinstance(tile, Tile) else prod(exchange.shape[1:]) % prod(tile.shape) == 0
    )
    _want(op, fits and tile.dtype == exchange.dtype, f"{tile} is not what the slots of {exchange} hold")
    _results(op, *([tile] if isinstance(op, TakeOver) else []))


def _control(op: Loop | While) -> None:
    carried = [v.type for v in op.init]
    match op:
        case Loop(trips, _, body):
            _want(op, trips.type == INDEX_SCALAR, f"counts by an index, not {trips.type}")
            _want(
                op,
                [v.type for v in body.args] == [INDEX_SCALAR, *carried],
                "its block takes an index and what it carries",
            )
        case While(_, condition, body):
            for block in (condition, body):
                _want(op, [v.type for v in block.args] == carried, "its blocks take what it carries")
            _yields(op, condition, [Scalar(BOOL)])
    _yields(op, body, carried)
    _results(op, *carried)


def _yields(op: Op, block: Block, types: list[Type] | list[Scalar]) -> None:
    last = block.ops[-1] if block.ops else None
    if not isinstance(last, Yield):
        _fail(op, "its block must end in yield")
    _want(op, [v.type for v in last.values] == types, f"its block must yield ({', '.join(map(str, types))})")


def _is_tile(op: Op) -> bool:
    return len(op.results) == 1 and isinstance(op.result.type, Tile)


def _results(op: Op, *types: Type) -> None:
    found = [v.type for v in op.results]
    _want(op, found == list(types), f"gives ({', '.join(map(str, types))}), not ({', '.join(map(str, found))})")


def _want(op: Op, holds: bool, why: str) -> None:
    if not holds:
        _fail(op, why)


def _fail(op: Op, why: str) -> NoReturn:
    raise VerifyError(f"{op.name}: {why}", loc=op.loc)
