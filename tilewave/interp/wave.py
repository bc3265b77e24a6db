"""The semantics of the lane level's ops: one wave runs them, all its lanes at once.

A scalar is one number where all lanes agree, else an array of lanes; a vector is an array (lanes or 1) x its shape,
1 where all lanes hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from tilewave.errors import EndlessLoop
from tilewave.interp import copies, exchange_ops, mbarrier_ops, turn_ops
from tilewave.interp import tiles as interp
from tilewave.interp.positions import RegisterOffsets
from tilewave.interp.wave_memory import (
    allocate,
    copy_async_chunks,
    load,
    load_each,
    load_transposed,
    misalignment,
    overlay,
    store,
    store_each,
)
from tilewave.interp.wave_state import WaveState
from tilewave.interp.wave_values import (
    all_of,
    below,
    broadcast,
    concatenate,
    constant,
    elementwise,
    extract_slice,
    lane,
    matrix,
    opaque_copy,
    permute,
    ramp,
    rearrange,
    reduce_halves,
    reduce_lanes,
    reduce_registers,
    schedule,
    shuffle,
    unset,
    wave,
    workgroup,
)
from tilewave.interp.wave_wgmma import wait_mma, wait_older_mma, wgmma_registers, wgmma_shared
from tilewave.interp.workgroup import Wait, WorkgroupState
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Op
from tilewave.ir.dispatch import find_row, row_of

Running = Generator[None, None, tuple[Any, ...]]
"""A running wave; it yields wherever another wave may run."""

WITHOUT_END = -1
"""The `stretch` of a wave that runs until it must wait."""


class WaveRun(WaveState):
    """One wave of a workgroup: its values, and its position in the program."""

    def __init__(self, number: int, state: WorkgroupState, registers: dict[int, RegisterOffsets]) -> None:
        super().__init__(number, state, registers)
        self.stretch = WITHOUT_END
        """How many more memory accesses until another wave may run."""
        self.has_ended = False

    @property
    def can_run(self) -> bool:
        return not self.has_ended and (self.wait is None or self.wait.is_over())

    def run(self, body: Block) -> Running:
        result = yield from self.block(body)
        self.has_ended = True
        copies.want_nothing_under_way(self)
        if self.begun:
            why = f"{self.name} ends while its MMA {self.begun[0][0]} may still read shared memory"
            self.fail(body.ops[-1], why, "a wait_mma must be between the MMA and the end")
        if self.products < len(self.state.products.get(self.number // ir.Wgmma.group.waves, ())):
            self.fail(
                body.ops[-1], f"wave {self.number} ends without an MMA that the other waves of its warpgroup execute"
            )
        return result

    def block(self, block: Block, *args: Any, round: int = 0) -> Running:
        outer = self.path, self.place
        self.path = (*self.path, self.place, round)
        results = yield from self.ops(block, *args)
        self.path, self.place = outer
        return results

    def ops(self, block: Block, *args: Any) -> Running:
        env = self.env
        env.update(zip(block.args, args, strict=False))
        known = self.state.launch.rows
        if id(block) not in known:
            known[id(block)] = [(op, find_row(AT_ONCE, op), _is_seen_by_others(op)) for op in block.ops]
        for self.place, (op, at_once, is_seen) in enumerate(known[id(block)]):
            if at_once is not None:
                result = at_once(self, op)
                if op.results:
                    env[op.results[0]] = result
                if is_seen and self.stretch != WITHOUT_END:
                    self.stretch -= 1
                    if self.stretch <= 0:
                        yield
            elif isinstance(op, ir.Yield):
                return tuple(env[v] for v in op.values)
            else:
                results = yield from row_of(IN_STEPS, op, "no meaning is given to")(self, op)
                env.update(zip(op.results, results, strict=True))
        return ()

    def loop(self, op: ir.Loop) -> Running:
        carried = tuple(self.env[v] for v in op.init)
        rounds = self.uniform(op, op.trips)
        for i in range(rounds):
            carried = yield from self.block(op.body, i, *carried, round=i)
        if rounds == 0:
            self.state.leave_out(op)
        return carried

    def loop_while(self, op: ir.While) -> Running:
        carried = tuple(self.env[v] for v in op.init)
        for i in range(interp.MOST_ROUNDS):
            (goes_on,) = yield from self.block(op.condition, *carried, round=i)
            if not self.agreed(op, goes_on):
                return carried
            carried = yield from self.block(op.body, *carried, round=i)
        rounds = f"{interp.MOST_ROUNDS:,}"
        raise EndlessLoop(
            f"wave {self.number} of workgroup {self.state.number} ran {rounds} iterations and is not done",
            loc=op.loc,
        )

    def role(self, op: ir.Role) -> Running:
        if op.first <= self.number < op.last:
            outer, self.leader = self.leader, max(self.leader, op.first)
            yield from self.block(op.body)
            self.leader = outer
        return ()

    def barrier(self, op: ir.Barrier) -> Running:
        self.end_loads()
        self.state.come_to_barrier(self.number, op)
        if self.is_past_barrier():
            yield  # let others run first, so that the last wave to arrive does not always continue first
        yield from self.until(Wait(op, self.is_past_barrier, lambda: f"at the barrier of {op.loc}"))
        return ()

    def agree(self, op: ir.Agree) -> Running:
        self.end_loads()
        self.state.come_to_barrier(self.number, op, bool(np.all(self.env[op.x])))
        yield from self.until(Wait(op, self.is_past_barrier, lambda: f"at {op.loc} for others to agree"))
        return (self.state.agreed[self.number],)

    def is_past_barrier(self) -> bool:
        return self.number not in self.state.at_barrier


AT_ONCE: dict[type[Op], Callable[[WaveRun, Any], Any]] = {
    ir.Elementwise: elementwise,
    ir.Const: constant,
    ir.Broadcast: broadcast,
    ir.Permute: permute,
    ir.ExtractSlice: extract_slice,
    ir.Concatenate: concatenate,
    ir.Rearrange: rearrange,
    ir.Shuffle: shuffle,
    ir.OpaqueCopy: opaque_copy,
    ir.ReduceRegisters: reduce_registers,
    ir.ReduceLanes: reduce_lanes,
    ir.ReduceHalves: reduce_halves,
    ir.AllOf: all_of,
    ir.Ramp: ramp,
    ir.Below: below,
    ir.Unset: unset,
    ir.Workgroup: workgroup,
    ir.Wave: wave,
    ir.Lane: lane,
    ir.Matrix: matrix,
    ir.WgmmaShared: wgmma_shared,
    ir.WgmmaRegisters: wgmma_registers,
    ir.WaitOlderMma: wait_older_mma,
    ir.WaitMma: wait_mma,
    ir.Allocate: allocate,
    ir.Overlay: overlay,
    ir.Load: load,
    ir.LoadUnaligned: load,
    ir.LoadTransposed: load_transposed,
    ir.Misalignment: misalignment,
    ir.Store: store,
    ir.StoreUnaligned: store,
    ir.LoadEach: load_each,
    ir.StoreEach: store_each,
    ir.MakeMbarriers: mbarrier_ops.make_mbarriers,
    ir.Arrive: mbarrier_ops.arrive,
    ir.CopyAsyncChunks: copy_async_chunks,
    ir.Copy: copies.copy,
    ir.TmaLoad: copies.tma_load,
    ir.TmaLoadMulticast: copies.tma_load_multicast,
    ir.TmaStore: copies.tma_store,
    ir.WaitPriorLaunch: mbarrier_ops.wait_prior_launch,
    ir.LaunchDependents: schedule,
    ir.MakeExchange: exchange_ops.make_exchange,
    ir.HandOver: exchange_ops.hand_over,
    ir.PassTurn: turn_ops.pass_turn,
    ir.Scheduling: schedule,
}
"""Ops that a wave runs without a pause."""

IN_STEPS: dict[type[Op], Callable[[WaveRun, Any], Running]] = {
    ir.Loop: WaveRun.loop,
    ir.While: WaveRun.loop_while,
    ir.Role: WaveRun.role,
    ir.Barrier: WaveRun.barrier,
    ir.Agree: WaveRun.agree,
    ir.Meet: WaveRun.barrier,
    ir.ClusterBarrier: mbarrier_ops.cluster_barrier,
    ir.WaitMbarrier: mbarrier_ops.wait_mbarrier,
    ir.WaitTmaStores: copies.wait_tma_stores,
    ir.TakeOver: exchange_ops.take_over,
    ir.TakeOverAll: exchange_ops.take_over_all,
    ir.WaitTurn: turn_ops.wait_turn,
    ir.WaitAsync: copies.wait_async,
}
"""Ops during which other waves may run."""


def _is_seen_by_others(op: Op) -> bool:
    """Return whether other waves can observe when the op runs."""
    return bool(op.reads or op.writes) or isinstance(op, ir.MakeMbarriers)
