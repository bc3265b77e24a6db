"""What every kernel satisfies, before and after every pass: scoping, types, and the ops of its level."""

from __future__ import annotations

from math import prod
from typing import NoReturn

from tilewave.errors import NOWHERE, Loc, TilewaveError
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    ARITHMETIC,
    COMPARISONS,
    ELEMENTWISE,
    FUNCTIONS,
    LANE_OPS,
    LEVELS,
    LOGIC,
    Accumulate,
    Allocate,
    AwaitAsync,
    Barrier,
    Binary,
    Broadcast,
    Cast,
    Const,
    Copy,
    CopyAsync,
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
from tilewave.ir.placements import lies_in
from tilewave.ir.types import (
    BOOL,
    INDEX,
    INDEX_SCALAR,
    Accumulator,
    Exchange,
    Memory,
    Scalar,
    Tile,
    Type,
    Vector,
    elementwise,
)
from tilewave.ir.verify_kinds import (
    MOST_WORKGROUPS,
    are_axes,
    check_argument,
    check_constant,
    check_kernel,
    check_parts,
    check_type,
    is_held,
)
from tilewave.ir.verify_lanes import check_cluster, check_lane_op

FORMULA: tuple[type[Op], ...] = (Const, *ELEMENTWISE, Yield)
"""What says where the elements of a tile lie."""


class VerifyError(TilewaveError):
    """A kernel's text says something that has no meaning."""


def verify(kernel: Kernel) -> Kernel:
    """The kernel, which a lowering can take, or an error that names the op and its line."""
    loc = kernel.body.ops[0].loc if kernel.body.ops else NOWHERE
    for v in kernel.body.args:
        check_argument(v.type, lambda holds, why, v=v: _want_of(f"{kernel.name}: {v}", loc, holds, why))  # type: ignore[misc]
    return verify_part(kernel)


def verify_part(kernel: Kernel) -> Kernel:
    """As `verify`, for a piece cut out of a kernel, whose arguments may be what ops in front of it made."""
    check_kernel(kernel, lambda holds, why: _want_of(kernel.name, NOWHERE, holds, why))
    _Verifier(LEVELS[kernel.level], kernel.level, kernel.cluster).body(kernel.body)
    return kernel


class _Verifier:
    def __init__(self, allowed: tuple[type[Op], ...], level: str, cluster: int) -> None:
        self.allowed, self.level, self.cluster = frozenset(allowed), level, cluster
        self.defined: set[str] = set()
        self.visible: dict[str, Value] = {}

    def body(self, block: Block) -> None:
        """Of a kernel: nobody takes what it yields."""
        self.block(block, Yield(()))
        for op in block.ops[-1:]:
            _want(op, not isinstance(op, Yield), "nothing takes what a kernel's own block yields")

    def block(self, block: Block, owner: Op) -> None:
        for v in block.args:
            check_type(v.type, lambda holds, why: _want(owner, holds, why))
            self.define(v, owner)
        for position, op in enumerate(block.ops):
            if type(op) not in self.allowed:
                _fail(op, f"the {self.level} level has no such op")
            if isinstance(op, Yield) and position != len(block.ops) - 1:
                _fail(op, "nothing may follow it")
            self.op(op)
        for v in (*block.args, *(v for op in block.ops for v in op.results)):
            del self.visible[v.name]

    def op(self, op: Op) -> None:
        for v in op.operands:
            if self.visible.get(v.name) != v:
                _fail(op, f"{v}: {v.type} is not defined here")

        def want(holds: bool, why: str) -> None:
            _want(op, holds, why)

        check_parts(op, want)
        _check(op)
        check_cluster(op, self.cluster, want)
        for inner in op.blocks:
            self.block(inner, op)
        for v in op.results:
            self.define(v, op)

    def define(self, v: Value, op: Op) -> None:
        if v.name in self.defined:
            _fail(op, f"{v} is already defined")
        self.defined.add(v.name)
        self.visible[v.name] = v


def _check(op: Op) -> None:
    match op:
        case Binary():
            _binary(op)
        case Cast(x):
            fits = is_held(x.type) and op.result.type == elementwise(x.type, op.result.type.dtype)
            _want(op, fits, f"{x.type} cannot become {op.result.type}")
        case Unary(x):
            _want(op, is_held(x.type), f"takes a number or a tile, not {x.type}")
            _want(op, isinstance(op, Not) or x.type.dtype != BOOL, f"takes numbers, not {x.type}")
            _want(op, not isinstance(op, FUNCTIONS) or x.type.dtype.is_float, f"needs floats, not {x.type}")
            _want(op, not isinstance(op, Not) or x.type.dtype == BOOL, f"needs truth values, not {x.type}")
            _results(op, x.type)
        case Select(condition, a, b):
            _want(op, a.type == b.type and is_held(a.type), f"chooses between {a.type} and {b.type}")
            _want(op, condition.type in (elementwise(a.type, BOOL), Scalar(BOOL)), f"chooses by {condition.type}")
            _results(op, a.type)
        case Const(value):
            check_constant(value, op.result.type, lambda holds, why: _want(op, holds, why))
        case Workgroup():
            _results(op, INDEX_SCALAR)
        case TileOf(number, rows, cols, batches):
            _want(op, number.type == INDEX_SCALAR, f"takes an index, not {number.type}")
            _want(
                op,
                rows * cols * batches <= MOST_WORKGROUPS,
                f"deals {rows * cols * batches} tiles, more than any launch",
            )
            _results(op, *[INDEX_SCALAR] * 3)
        case Iota():
            kind = op.result.type
            fits = isinstance(kind, Tile) and len(kind.shape) == 1 and kind.dtype != BOOL
            _want(op, fits, f"makes a tile of one axis that holds numbers, not {kind}")
        case Broadcast() | Permute():
            _shape(op)
        case Allocate():
            _want(op, lies_in(op.result, "shared"), f"makes a shared memory, not {op.result.type}")
        case Overlay(memory):
            _overlay(op, memory.type, op.results[0].type)
        case Read() | Write() | Gather() | Scatter() | WriteThrough():
            _memory(op)
        case Prepack() | ReadPanel():
            _panels(op)
        case Mma() | Accumulate():
            _mma(op)
        case ZeroAccumulator():
            _want(op, _is_accumulator(op.result.type), f"makes an accumulator of two axes, not {op.result.type}")
        case LoadAccumulator(x) | ReadAccumulator(x):
            kinds = {type(x.type), type(op.results[0].type)} == {Tile, Accumulator}
            same = (x.type.shape, x.type.dtype) == (op.results[0].type.shape, op.results[0].type.dtype)
            two = len(x.type.shape) == 2
            _want(op, kinds and same and two, f"{x.type} cannot become {op.result.type}")
        case Loop() | While():
            _control(op)
        case MakeExchange():
            made = op.result.type
            _want(op, isinstance(made, Exchange) and len(made.shape) > 1, "makes slots for tiles")
        case HandOver() | TakeOver():
            _exchange(op)
        case Barrier(over=over) if type(op) is Barrier:
            _want(op, over in ("shared", "global"), f"hands over shared or global memory, not {over!r}")
        case _ if type(op) in (*LANE_OPS, Copy, CopyAsync, AwaitAsync):
            check_lane_op(op, lambda holds, why: _want(op, holds, why))
        case Barrier() | Yield():
            pass  # their parts are all there is to them; what a yield gives is its block's affair
        case _:
            raise NotImplementedError(f"{op.loc}: nothing is checked of {op.name}")


def _binary(op: Binary) -> None:
    a, b = op.a.type, op.b.type
    _want(op, a == b and is_held(a), f"{a} and {b} do not go together")
    _want(op, not isinstance(op, ARITHMETIC) or a.dtype != BOOL, f"computes with numbers, not {a}")
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
    x, out = op.x.type, op.result.type
    _want(op, is_held(x) and isinstance(out, (Tile, Vector)), f"{x} cannot become {out}")
    _want(op, isinstance(x, (Scalar, type(out))), f"{x} cannot become {out}")
    match op:
        case Broadcast(axes=axes):
            fits = len(axes) == len(x.shape) and are_axes(axes, len(out.shape))
            _want(op, fits and tuple(out.shape[a] for a in axes) == x.shape, f"{x} along {axes} is not {out}")
        case Permute(axes=axes):
            fits = sorted(axes) == list(range(len(x.shape)))
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
    _want(op, memory.space != "packed", f"{memory} is read by read_panel, and written by prepack")
    rank = len(memory.shape)
    match op:
        case Read(at=at, axes=axes) | Write(at=at, axes=axes) | WriteThrough(at=at, axes=axes):
            _want(op, len(at) == rank, f"{memory} needs {rank} positions, not {len(at)}")
            _want(op, all(v.type == INDEX_SCALAR for v in at), "positions are of type index")
            fits = len(axes) == len(tile.shape) and are_axes(axes, rank)
            _want(op, fits, f"axes {list(axes)} do not lay {tile} into {memory}")
            _want(op, are_axes(op.guard, rank), f"{memory} has no axes {list(op.guard)} to guard")
        case Gather(where=where) | Scatter(where=where):
            _want(
                op, [v.type for v in where.args] == [INDEX_SCALAR] * len(tile.shape), f"{tile} needs an index per axis"
            )
            _yields(op, where, [INDEX_SCALAR] * rank)
            for inner in where.ops:
                _want(inner, type(inner) in FORMULA, "has no place among the positions of a tile")
    if isinstance(op, WriteThrough):
        _want(op, lies_in(op.shared, "shared"), f"goes through a shared memory, not {op.shared.type}")
        _want(op, op.shared.type.dtype == tile.dtype, f"{op.shared.type} does not hold {tile.dtype}")


def _panels(op: Prepack | ReadPanel) -> None:
    memory, out = op.memory.type, op.result.type
    _want(op, isinstance(memory, Memory), f"reads a memory, not {memory}")
    match op:
        case Prepack(_, row_axis, depth_axis):
            rank = len(memory.shape)
            _want(op, lies_in(op.memory, "global"), f"copies a global memory, not {memory}")
            _want(op, lies_in(op.result, "packed"), f"makes a packed memory, not {out}")
            fits = len(out.shape) == rank + 2 and are_axes((row_axis, depth_axis), rank)
            _want(op, fits, f"{memory} has no such panels")
            *batches, panels, groups, rows, depth = out.shape
            others = [n for axis, n in enumerate(memory.shape) if axis not in (row_axis, depth_axis)]
            whole = panels * rows >= memory.shape[row_axis] and groups * depth >= memory.shape[depth_axis]
            _want(op, whole and batches == others, f"{out} does not hold all of {memory}")
        case ReadPanel(_, at):
            fits = lies_in(op.memory, "packed") and isinstance(out, Tile) and 2 <= len(out.shape) <= len(at)
            _want(op, fits and len(at) == len(memory.shape) - 2, f"reads {out} from {memory}")
            *_, rows, depth = memory.shape
            _want(op, out.shape[-2] == rows and out.shape[-1] % depth == 0, f"{out} is no part of a panel of {memory}")
            same = all(v.type == INDEX_SCALAR for v in at) and out.dtype == memory.dtype
            _want(op, same and set(out.shape[:-2]) <= {1}, f"reads {out} from {memory}")


def _mma(op: Mma | Accumulate) -> None:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    ok = all(isinstance(t, Tile) and len(t.shape) == len(acc.shape) >= 2 for t in (a, b))
    ok = ok and (isinstance(acc, Tile) if isinstance(op, Mma) else _is_accumulator(acc))
    ok = ok and not {a.dtype, b.dtype, acc.dtype} & {BOOL, INDEX}
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
    _want(op, all(is_held(t) or isinstance(t, Accumulator) for t in carried), "carries numbers and tiles")
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


def _is_accumulator(kind: Type) -> bool:
    return isinstance(kind, Accumulator) and len(kind.shape) == 2


def _results(op: Op, *types: Type) -> None:
    found = [v.type for v in op.results]
    _want(op, found == list(types), f"gives ({', '.join(map(str, types))}), not ({', '.join(map(str, found))})")


def _want(op: Op, holds: bool, why: str) -> None:
    if not holds:
        _fail(op, why)


def _want_of(what: str, loc: Loc, holds: bool, why: str) -> None:
    if not holds:
        raise VerifyError(f"{what}: {why}", loc=loc)


def _fail(op: Op, why: str) -> NoReturn:
    raise VerifyError(f"{op.name}: {why}", loc=op.loc)
