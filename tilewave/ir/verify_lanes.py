"""What every op of the lane level satisfies."""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Op, Value
from tilewave.ir.fragments import GROUP_ROWS, NEIGHBOURS, Fragment
from tilewave.ir.layouts import LANES
from tilewave.ir.ops import (
    Arrive,
    Await,
    AwaitAsync,
    AwaitAsyncOut,
    AwaitEarlier,
    AwaitLoads,
    ClusterBarrier,
    Copy,
    CopyAsync,
    CopyAsyncChunks,
    CopyAsyncCluster,
    CopyAsyncOut,
    CopyAsyncSignal,
    KeepOrder,
    Lane,
    LetNextStart,
    Load,
    LoadEach,
    MakeSignals,
    Matrix,
    MatrixShared,
    Meet,
    Part,
    Priority,
    Ramp,
    Role,
    Store,
    StoreEach,
    Together,
    Unset,
    Wave,
    Yield,
)
from tilewave.ir.placements import lies_in
from tilewave.ir.types import BOOL, F32, I64, INDEX, INDEX_SCALAR, Memory, Padded, Scalar, Signals, Vector, elementwise
from tilewave.ir.verify_kinds import MOST_WAVES, Want, are_axes

F32_MANTISSA = 23
"""Bits behind the leading one."""
KINDS = ("matrix", "load", "shared_load", "shared_store")
"""What `together` groups."""


def check_lane_op(op: Op, want: Want) -> None:
    """`want(holds, why)` is called for everything that must hold."""
    match op:
        case Lane() | Wave():
            want([v.type for v in op.results] == [INDEX_SCALAR], "gives an index")
        case Ramp(steps):
            want(isinstance(op.result.type, Vector) and op.result.type.dtype.is_int, "makes a vector of integers")
            want(len(steps) == len(op.result.type.shape), f"{list(steps)} are not the steps of {op.result.type}")
        case Unset():
            want(isinstance(op.result.type, Vector), "makes a vector")
        case Part(x, axis, first):
            _part(op, x, axis, first, want)
        case Load(steps=steps) | Store(steps=steps):
            _access(op, steps, want)
        case LoadEach() | StoreEach():
            _each(op, want)
        case Matrix():
            _matrix(op, want)
        case MatrixShared():
            _matrix_shared(op, want)
        case Role(first, last, body):
            want(0 <= first < last <= MOST_WAVES and not body.args, "takes waves first to last - 1")
            want(not body.ops or not isinstance(body.ops[-1], Yield), "yields nothing")
            want(op.others_keep >= 0, "leaves the other waves some registers")
        case MakeSignals(arrivals):
            want(isinstance(op.result.type, Signals) and arrivals > 0, "makes signals")
            want(len(op.result.type.shape) == 1 and op.result.type.dtype == I64, "makes a row of signals")
        case Arrive(signals, at):
            _signal(signals, at, want)
            want(op.waves > 0, "is the arrival of one wave at least")
        case Await(signals, at, parity):
            _signal(signals, at, want)
            want(parity.type == INDEX_SCALAR, f"takes a phase's parity as an index, not {parity.type}")
        case Copy() | CopyAsyncSignal() | CopyAsyncOut() | CopyAsyncCluster() | CopyAsync():
            _copy(op, want)
        case CopyAsyncChunks():
            _bring_chunks(op, want)
        case Priority(level):
            want(0 <= level <= 3, "is a priority from 0 to 3")
        case Together(kind, count):
            want(kind in KINDS and count > 0, f"groups {', '.join(KINDS)}")
        case (
            AwaitAsync()
            | AwaitAsyncOut()
            | Meet()
            | KeepOrder()
            | AwaitLoads()
            | ClusterBarrier()
            | AwaitEarlier()
            | LetNextStart()
        ):
            pass
        case _:
            raise NotImplementedError(f"{op.loc}: nothing is checked of {op.name}")


def _signal(signals: Value, at: Value, want: Want) -> None:
    want(isinstance(signals.type, Signals) and at.type == INDEX_SCALAR, f"takes signals, not {signals.type}")


def _part(op: Part, x: Value, axis: int, first: int, want: Want) -> None:
    whole, part = x.type, op.results[0].type
    vectors = isinstance(whole, Vector) and isinstance(part, Vector) and len(whole.shape) == len(part.shape)
    want(vectors and axis < len(whole.shape), f"takes a part of {whole}")
    others = whole.shape[:axis] + whole.shape[axis + 1 :] == part.shape[:axis] + part.shape[axis + 1 :]
    inside = len(whole.shape) == len(part.shape) and 0 <= first <= whole.shape[axis] - part.shape[axis]
    want(others and inside and whole.dtype == part.dtype, f"{part} at {first} is no part of {whole}")


def _access(op: Load | Store, steps: tuple[tuple[int, ...], ...], want: Want) -> None:
    memory, held = _moved(op, want)
    want(all(v.type == INDEX_SCALAR for v in op.at), "positions are of type index")
    fits = len(steps) == len(held.shape) and all(len(step) == len(memory.shape) for step in steps)
    want(fits, f"{list(map(list, steps))} do not step through {memory} for each axis of {held}")
    want(are_axes(op.guard, len(memory.shape)), f"{memory} has no axes {list(op.guard)}")


def _each(op: LoadEach | StoreEach, want: Want) -> None:
    _, held = _moved(op, want)
    want(all(v.type == elementwise(held, INDEX) for v in op.at), f"each element of {held} needs a position")


def _moved(op: Load | Store | LoadEach | StoreEach, want: Want) -> tuple[Memory, Vector]:
    """The memory and the vector that an op moves between."""
    memory = op.memory.type
    held = op.x.type if isinstance(op, (Store, StoreEach)) else op.results[0].type
    want(isinstance(memory, Memory) and isinstance(held, Vector), f"moves a vector, {held}, and a memory, {memory}")
    assert isinstance(memory, Memory) and isinstance(held, Vector)
    want(held.dtype == memory.dtype and memory.space != "packed", f"{held} and {memory} do not go together")
    want(len(op.at) == len(memory.shape), f"{memory} needs {len(memory.shape)} positions, not {len(op.at)}")
    want(len(op.mask) <= 1 and all(v.type == Scalar(BOOL) for v in op.mask), "is masked by one truth value")
    return memory, held


def _matrix(op: Matrix, want: Want) -> None:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    vectors = all(isinstance(t, Vector) for t in (a, b, acc)) and len(a.shape) == len(b.shape) == len(acc.shape) - 1
    want(vectors and len(a.shape) >= 3, f"multiplies vectors of blocks, not {a} and {b}, added to {acc}")
    want(len(op.shape) == 3 and min(op.shape) > 0, f"a block has rows, columns and a depth, not {list(op.shape)}")
    rows, cols, depth = op.shape
    fragment = Fragment(rows, depth)
    want(rows == cols and rows * depth % LANES == 0, f"no block is {rows}x{cols}x{depth}")
    same = a.shape[:-3] == b.shape[:-3] == acc.shape[:-4] and a.shape[-2] == b.shape[-2]
    blocks = acc.shape[-4:-2] == (a.shape[-3], b.shape[-3]) and acc.shape[-2:] == (fragment.groups, NEIGHBOURS)
    depths = a.shape[-1] == b.shape[-1] == fragment.per_lane
    want(not op.rows or (len(op.rows) == 2 and 0 <= op.rows[0] < op.rows[1] <= a.shape[-3]), f"{a} has no such rows")
    want(same and blocks and depths, f"{a} times {b} does not fit {acc} in blocks of {rows}x{cols}x{depth}")
    want([v.type for v in op.results] == [acc], f"gives {acc}")


def _matrix_shared(op: MatrixShared, want: Want) -> None:
    acc = op.acc.type
    want(len(op.shape) == 3 and min(op.shape) > 0, f"a block has rows, columns and a depth, not {list(op.shape)}")
    rows, cols, depth = op.shape
    want(isinstance(acc, Vector) and len(acc.shape) >= 4, f"adds to a vector, not {acc}")
    want(rows % GROUP_ROWS == 0 and cols % 8 == 0, f"no group of waves computes {rows}x{cols}")
    want(acc.shape[-4:] == (rows // GROUP_ROWS, cols // 8, 2, 2), f"{rows}x{cols} sums are not {acc}")
    want(len(op.adds) <= 1 and all(v.type == Scalar(BOOL) for v in op.adds), "adds where one truth value says so")
    for memory, at, needed in ((op.a.type, op.a_at, rows), (op.b.type, op.b_at, cols)):
        shared = isinstance(memory, Memory) and memory.space == "shared" and len(at) == len(memory.shape)
        want(shared and _indices(at), f"reads shared memory at an index for each axis, not {memory}")
        want(len(at) >= 2, f"{memory} has no rows and columns")
        want(len(at) >= len(acc.shape) - 2, f"{memory} has no axes for the batches of {acc}")
        want(memory.shape[-2] >= needed and memory.shape[-1] >= depth, f"{memory} holds no {needed}x{depth}")
        fewer = op.ignored_bits == 0 or (memory.dtype == F32 and 0 < op.ignored_bits <= F32_MANTISSA)
        want(fewer, f"cannot ignore {op.ignored_bits} bits of {memory.dtype}")
    want([v.type for v in op.results] == [acc], f"gives {acc}")


def check_cluster(op: Op, members: int, want: Want) -> None:
    """What an op says of the workgroups that run side by side, `members` of them."""
    match op:
        case Arrive(expect=expect, members=told):
            want(told in (1, members), f"arrives in {told} workgroups, and a cluster has {members}")
            want(told == 1 or not expect, "tells other workgroups to expect nothing: each expects its own bytes")
        case CopyAsyncCluster() | ClusterBarrier():
            want(members == 2, f"is done by a cluster of two workgroups, not of {members}")


def _bring_chunks(op: CopyAsyncChunks, want: Want) -> None:
    memory, to = op.memory.type, op.to.type
    shared = isinstance(to, Memory) and to.space == "shared" and not isinstance(to.placement, Padded)
    want(lies_in(op.memory, "global") and shared and memory.dtype == to.dtype, f"brings {memory} to {to}")
    want(are_axes(op.guard, len(memory.shape)), f"{memory} has no axes {list(op.guard)}")
    want(len(op.at) == len(memory.shape) and _indices(op.at), f"{memory} needs {len(memory.shape)} positions")
    want(len(op.to_at) == len(to.shape) - 1 and _indices(op.to_at), f"{to} needs the index of a row")
    want(len(op.shape) == 2 and min(op.shape) > 0, f"{list(op.shape)} are not rounds and neighbours")
    fits = len(op.steps) == 2 and all(len(step) == len(memory.shape) for step in op.steps)
    want(fits and op.steps[1] == (*[0] * (len(memory.shape) - 1), 1), f"chunks run along the last axis of {memory}")
    want(to.shape[-1] % op.shape[1] == 0, f"chunks of {op.shape[1]} do not fit rows of {to}")


def _copy(op: Copy | CopyAsyncSignal | CopyAsyncOut | CopyAsyncCluster | CopyAsync, want: Want) -> None:
    shared, indices = (op.source, op.source_at) if isinstance(op, CopyAsyncOut) else (op.to, op.to_at)
    memory = op.memory.type
    spaces = lies_in(op.memory, "global") and lies_in(shared, "shared")
    want(spaces and memory.dtype == shared.type.dtype, f"copies between {memory} and {shared.type}")
    want(are_axes(op.axes, len(memory.shape)) and op.axes != (), f"{memory} has no axes {list(op.axes)}")
    want(not isinstance(op, CopyAsync) or are_axes(op.guard, len(memory.shape)), f"{memory} has no such axes to guard")
    want(len(op.at) == len(memory.shape), f"{memory} needs {len(memory.shape)} positions")
    want(len(indices) + len(op.axes) == len(shared.type.shape), f"{shared.type} needs an index for each leading axis")
    want(prod(shared.type.shape) > 0 and _indices(op.at) and _indices(indices), "positions are of type index")
    if isinstance(op, (CopyAsyncSignal, CopyAsyncCluster)):
        _signal(op.signals, op.signal, want)
    if isinstance(op, CopyAsyncCluster):
        box = shared.type.shape[len(indices) :]
        want(len(box) > 1 and prod(box[:-2]) == 1 and box[-2] % 2 == 0, f"a box of {list(box)} has no two halves")
        want(op.together.type == Scalar(BOOL), f"is decided by a truth value, not {op.together.type}")


def _indices(values: tuple[Value, ...]) -> bool:
    return all(v.type == INDEX_SCALAR for v in values)
