"""Loads that write shared memory without passing through registers."""

from __future__ import annotations

import numpy as np

from tilewave.emulator.access import load, widened
from tilewave.emulator.atomics import Lanes
from tilewave.emulator.chips import OPINIONS
from tilewave.emulator.instruction import M0
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.numbers import I64, U8, U32
from tilewave.emulator.shared import report_race
from tilewave.emulator.shared_state import TouchedGranules
from tilewave.emulator.step import Draft, Execute, Traffic


def build_direct(draft: Draft, size: int, lanes: Lanes) -> Execute:
    """Lane l writes at m0 + offset + 4 · l, or 16 · l where it loads more; lanes outside of a buffer write zeros."""
    draft.scalar_reads.append(M0)
    draft.traffic = Traffic(("vm",), "direct", accesses=1)
    instruction, offset, step = draft.instruction, draft.instruction.integer("offset"), max(4, size)
    apart = 4 if size <= 4 else 16
    reach = OPINIONS[draft.chip].direct_reach

    def execute(c: Convoy) -> None:
        shared = c.machine.shared
        addresses, waves_inside, positions = lanes(c)
        waves = c.active_waves
        base = (c.active(c.su[M0, c.sel][:, None]).astype(I64) + offset) & reach
        at = base + c.active(np.arange(LANES)[None, :]) * apart
        data = np.zeros((len(waves), step), U8)
        values = load(c, instruction, addresses, waves_inside, size)
        words = values if size >= 4 else widened(values, is_signed=False)[:, None]
        data[positions] = np.ascontiguousarray(words.astype(U32)).view(U8)
        outside = at + step > shared.size
        if outside.any():
            lane = int(np.argmax(outside))
            what = f"writes byte {int(at[lane])} of {shared.size} bytes of shared memory"
            c.report("out of bounds", instruction, int(waves[lane]), what, "the kernel asks for too little of it")
            at, waves, data = at[~outside], waves[~outside], data[~outside]
        places = at + shared.base_of[waves]
        shared.bytes[places[:, None] + np.arange(step)] = data
        if c.machine.checking:
            granules = shared.granules(places, step)
            report_race(c, instruction, waves, "overwrites", shared.write(granules, waves))
            shared.will_arrive(granules, waves)
            shared.remember(c.members, TouchedGranules(granules, waves, "write"), direct=True)

    return execute
