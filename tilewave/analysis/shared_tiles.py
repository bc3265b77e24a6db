"""Tiles whose K loop several workgroups may share (stream-K, split-K): the K loop, and what is before and after it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewave.analysis.k_loops import Depths
from tilewave.analysis.tile_programs import computes_one_tile, only_adds_up
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import known_at_launch, launch_and_rest
from tilewave.ir.ops import Const, Loop, MakeExchange, Mma, Read, While
from tilewave.ir.remarks import RemarkKind, want
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.records import dataclass

SUM_BITS = 32
"""The accumulator width of loops that workgroups may share; other tiles are computed whole."""
NOT_ONE_LOOP = RemarkKind("the tile is not computed by a single K loop, so it is not split among workgroups")
DOES_MORE = RemarkKind("this loop does more than accumulate products, so it is not split among workgroups")
UNKNOWN_STEPS = RemarkKind(
    "the trip count of this loop is dynamic, so it is not split among workgroups",
    "give the loop's dimension a value in subs",
)
NOT_FROM_ZERO = RemarkKind(
    "this loop does not start from one tile of zeros of {bits} bits each, so it is not split among workgroups",
    "start from zeros, and add the initial value after the loop",
)
WRITES_BEFORE = RemarkKind("this is written before the loop, so the loop is not split among workgroups")
READS_WRITTEN = RemarkKind(
    "{memory} is read before the loop and written after it, so the loop is not split among workgroups",
    "read it after the loop",
)


@dataclass(frozen=True)
class TileProgram:
    """The program of a tile: its K loop, which accumulates from zero, and the epilogue."""

    before: tuple[Op, ...]
    loop: Loop
    after: tuple[Op, ...]
    steps: Any
    """An int, or a scalar of the launch."""
    step_bytes: int
    depths: Depths

    @property
    def memories(self) -> list[Value]:
        return [op.memory for op in self.loop.body.ops if isinstance(op, Read)]

    @property
    def sums_bytes(self) -> int:
        sums = self.loop.init[0].type
        return prod(sums.shape) * int(sums.dtype.bytes)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the tiles that a step loads."""
        tiles = [op.result.type for op in self.loop.body.ops if isinstance(op, Read)]
        return sum(prod(tile.shape) * int(tile.dtype.bytes) for tile in tiles)

    @property
    def ends_in_zeros(self) -> bool:
        return self.depths.end_in_zeros(self.loop)

    @property
    def running_on(self) -> TileProgram:
        """The tile program with predicated reads, so that steps after the last one read zeros."""
        return replace(self, loop=replace(self.loop, body=self.depths.running_on(self.loop)))

    def steps_at(self, builder: Builder) -> Number:
        return Number(builder, self.steps if isinstance(self.steps, Value) else builder.const(self.steps))

    @staticmethod
    def of(kernel: Kernel) -> TileProgram:
        """Return the program of a kernel's tile; raise `Left` where partial sums may not add up to the sums."""
        ops = launch_and_rest(kernel.body)[1].ops
        loops = [op for op in walk(kernel.body) if isinstance(op, (Loop, While))]
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        want(computes_one_tile(kernel) and len(loops) == 1, NOT_ONE_LOOP, products[0].loc)
        (loop,) = loops
        want(only_adds_up(loop), DOES_MORE, loop.loc)
        assert isinstance(loop, Loop)
        made = {op.results[0]: op for op in ops if isinstance(op, Const)}
        want(loop.trips in made or loop.trips in known_at_launch(kernel), UNKNOWN_STEPS, loop.loc)
        want(_begins_with_zero(loop, made), NOT_FROM_ZERO, loop.loc, bits=SUM_BITS)
        steps = int(made[loop.trips].value) if loop.trips in made else loop.trips
        before = ops[: ops.index(loop)]
        _check_before(kernel, before)
        own = [op for op in loop.body.ops if isinstance(op, Mma)]
        step_bytes = sum(op.a.type.shape[-1] * op.a.type.dtype.bytes for op in own)
        return TileProgram(before, loop, ops[len(before) + 1 :], steps, step_bytes, Depths(kernel))


def _check_before(kernel: Kernel, before: tuple[Op, ...]) -> None:
    """Refuse ops before the loop that write or read what is written: every workgroup of the tile runs them."""
    written, _ = touched(kernel)
    for op in before:
        want(not op.has_effect, WRITES_BEFORE, op.loc)
        for memory in op.read:
            want(memory not in written, READS_WRITTEN, op.loc, memory=memory.name)


def _begins_with_zero(loop: Loop, made: dict[Value, Const]) -> bool:
    zeros = [made[v].value == 0 for v in loop.init if v in made and isinstance(v.type, Tile)]
    return zeros == [True] == [loop.init[0].type.dtype.bits == SUM_BITS] and len(loop.init) == 1


def hands_over(kernel: Kernel) -> bool:
    """Return whether workgroups wait for each other: in launch order, which then must not be changed."""
    return any(isinstance(op, MakeExchange) for op in walk(kernel.body))
