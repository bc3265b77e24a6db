"""The semantics of the lane level's ops on values in registers, for one wave, all its lanes at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.interp.positions import by_lane
from tilewave.interp.reductions import reduced_along
from tilewave.interp.tiles import spread
from tilewave.interp.wave_state import WaveState
from tilewave.ir import ops as ir
from tilewave.ir.core import Op
from tilewave.ir.types import Scalar
from tilewave.layouts.bits import applied
from tilewave.layouts.fragments import Fragment
from tilewave.machine.matrix import NAMED


def constant(wave: WaveState, op: ir.Const) -> Any:
    known = wave.state.launch.constants
    if id(op) not in known:
        found = wave.numbers.constant(op, op.value)
        known[id(op)] = found if isinstance(op.result.type, Scalar) else _unchanging(found[None])
    return known[id(op)]


def _unchanging(x: Array) -> Array:
    x.flags.writeable = False
    return x


def elementwise(wave: WaveState, op: Op) -> Any:
    kind = op.results[0].type
    operands = [wave.env[v] for v in op.operands]
    if isinstance(op, ir.Select) and kind.shape:
        operands[0] = by_lane(operands[0], len(kind.shape))
    found = wave.numbers.elementwise(op, operands)
    if isinstance(found, np.ndarray) and found.dtype != (storage := wave.numbers.storage(kind.dtype)):
        return found.astype(storage)
    return found


def broadcast(wave: WaveState, op: ir.Broadcast) -> Array:
    shape = op.result.type.shape
    x = by_lane(wave.env[op.x], len(op.x.type.shape))
    return np.broadcast_to(spread(x, (0, *(a + 1 for a in op.axes)), len(shape) + 1), (len(x), *shape))


def permute(wave: WaveState, op: ir.Permute) -> Array:
    x: Array = wave.env[op.x].transpose(0, *(a + 1 for a in op.axes))
    return x


def extract_slice(wave: WaveState, op: ir.ExtractSlice) -> Array:
    count = op.result.type.shape[op.axis]
    part: Array = wave.env[op.x].take(range(op.first, op.first + count), axis=op.axis + 1)
    return part


def concatenate(wave: WaveState, op: ir.Concatenate) -> Array:
    whole: Array = np.concatenate([wave.every_lane(part) for part in op.vectors], axis=op.axis + 1)
    return whole


def rearrange(wave: WaveState, op: ir.Rearrange) -> Array:
    x, lane = wave.each_register(op.x), np.arange(wave.state.lanes)[:, None]
    register = np.arange(1 << len(op.of_register))
    found: Array = x[lane, applied(op.of_register, register) ^ applied(op.of_lane, lane)]
    return found.reshape(-1, *op.result.type.shape)


def shuffle(wave: WaveState, op: ir.Shuffle) -> Array:
    x, lane = wave.each_register(op.x), np.arange(wave.state.lanes)[:, None]
    register = np.arange(1 << len(op.of_register))
    found: Array = x[applied(op.of_register, register) ^ applied(op.of_lane, lane), register]
    return found.reshape(-1, *op.result.type.shape)


def opaque_copy(wave: WaveState, op: ir.OpaqueCopy) -> Array:
    held: Array = wave.env[op.x]
    return held


def reduce_registers(wave: WaveState, op: ir.ReduceRegisters) -> Array:
    x = reduced_along(wave.numbers, op.how, op.x.type.dtype, wave.env[op.x], tuple(axis + 1 for axis in op.axes))
    return x.reshape(-1, *op.result.type.shape)


def reduce_lanes(wave: WaveState, op: ir.ReduceLanes) -> Array:
    x, lane = wave.every_lane(op.x), np.arange(wave.state.lanes)
    for bit in op.bits:
        x = wave.numbers.combined(op.how, op.x.type.dtype, x[lane & ~(1 << bit)], x[lane | 1 << bit])
    return x


def reduce_halves(wave: WaveState, op: ir.ReduceHalves) -> Array:
    x, lane, bit = wave.every_lane(op.x), np.arange(wave.state.lanes), 1 << op.bit
    both = wave.numbers.combined(op.how, op.x.type.dtype, x[lane & ~bit], x[lane | bit])
    first, second = np.split(both, 2, op.axis + 1)
    has_bit = (lane & bit != 0).reshape(-1, *[1] * (x.ndim - 1))
    return np.where(has_bit, second, first)


def all_of(wave: WaveState, op: ir.AllOf) -> Any:
    held = wave.every_lane(op.x).reshape(-1)
    assert held.tobytes() == held[:1].tobytes() * len(held), f"{op.loc}: lanes hold different numbers"
    return held[0]


def ramp(wave: WaveState, op: ir.Ramp) -> Array:
    kind = op.result.type
    numbers = zip(np.indices(kind.shape), op.steps, strict=True)
    far = sum((n * step for n, step in numbers), np.zeros(kind.shape, np.int64))
    return wave.numbers.counted(far, kind.dtype)[None]


def below(wave: WaveState, op: ir.Below) -> Array:
    shape = op.result.type.shape
    far = sum((n * step for n, step in zip(np.indices(shape), op.steps, strict=True)), np.zeros(shape, np.int64))
    first, bound = (by_lane(wave.env[v], 0) for v in (op.first, op.bound))
    lanes = np.broadcast_to(np.asarray(first).reshape(-1, *[1] * len(shape)), (wave.state.lanes, *[1] * len(shape)))
    found: Array = lanes + far < np.asarray(bound).reshape(-1, *[1] * len(shape))
    return found


def unset(wave: WaveState, op: ir.Unset) -> Array:
    """Return poison, which is noticed where it is used."""
    kind = op.result.type
    shows = wave.numbers.poison(kind.dtype) if kind.dtype.is_float else 0x5A
    return np.full((1, *kind.shape), shows, wave.numbers.storage(kind.dtype))


def workgroup(wave: WaveState, op: ir.Workgroup) -> int:
    return wave.state.number


def wave(wave: WaveState, op: ir.Wave) -> int:
    return wave.number


def lane(wave: WaveState, op: ir.Lane) -> Array:
    return np.arange(wave.state.lanes)


def matrix(wave: WaveState, op: ir.Matrix) -> Array:
    fragment = fragment_of(wave, op)
    a, b, acc = (wave.every_lane(v) for v in (op.a, op.b, op.acc))
    factors = fragment.matrix(a, 0), fragment.matrix(b, 1)
    sums = wave.numbers.multiplied(*factors, fragment.from_sums(acc, op.transposed))
    whole = fragment.to_sums(sums, op.transposed)
    if not op.rows:
        return whole
    kept = np.array(acc)
    kept[..., slice(*op.rows), :, :, :] = whole[..., slice(*op.rows), :, :, :]
    return kept


def fragment_of(wave: WaveState, op: ir.Matrix) -> Fragment:
    """Return the fragment of an instruction."""
    if op.instruction not in NAMED:
        wave.fail(op, f"no matrix instruction of a wave is called {op.instruction!r}")
    found = _deepened(op.instruction, op.shape[2])
    if found.shape != op.shape or found.lanes != wave.state.lanes or found.per_lane != op.a.type.shape[-1]:
        wave.fail(op, f"{op.instruction} computes no blocks of {list(op.shape)} of {op.a.type}")
    return found


@lru_cache(maxsize=64)
def _deepened(instruction: str, depth: int) -> Fragment:
    """Return the fragment of as many instructions of a name as a depth takes, and of one at least."""
    row = NAMED[instruction]
    return row.fragment(max(depth, row.depth))


def schedule(wave: WaveState, op: Op) -> None:
    """Do nothing, because scheduling has no effect on results."""
