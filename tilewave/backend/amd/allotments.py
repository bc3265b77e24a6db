"""How LLVM allots registers, and what that costs the K loop.

A lane may carry 256 registers of sums beside its operands. With open sizes they go through several loops: the steps
that lie inside, the one at the edge, the last. LLVM's usual way then moves some of them between ordinary and
accumulation registers in every step. Which other way moves fewer depends on the kernel, so the code is looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilewave.emulator.assembly import read_assembly
from tilewave.emulator.chips import MOST_WAVES
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.statistics import LANES, classify, find_loop, longest_gap, waves_per_unit

USUAL: tuple[str, ...] = ()
WIDE_FIRST = "--greedy-regclass-priority-trumps-globalness=1"
ORDERED = "--amdgpu-sched-strategy="
OTHERS: tuple[tuple[str, ...], ...] = ((WIDE_FIRST,), (f"{ORDERED}iterative-ilp",))
"""LLVM's options: wide registers get theirs before those that live long; instructions are put into another order before
registers are allotted. Each of them is the best for some kernel of `benchmarks/amd_kloop.py`."""
ASKED_FOR = ("v_accvgpr", "scratch_")
"""What stands in code that moves sums, or keeps registers in memory."""


@dataclass(frozen=True, order=True)
class AllotmentCost:
    """Of one allotment; the smallest is the best."""

    waves_missing: int
    """That could share a matrix unit, were there registers for them."""
    fetched: int
    """Times that the K loop takes registers from memory, or puts them there."""
    instructions: int
    """Of the K loop; so are the next two."""
    longest_gap: int
    moves: int
    """Of sums."""
    spills: int
    """Of the whole kernel; behind the loop, or into other registers, they cost little."""

    @property
    def is_least(self) -> bool:
        """Whether another way need not be tried; none was seen to spill fewer scalar registers."""
        return not (self.fetched or self.moves)


NOTHING = AllotmentCost(0, 0, 0, 0, 0, 0)


def cost_of(asm: str, kernel: str, cpu: str) -> AllotmentCost:
    """What an allotment costs; nothing where no loop multiplies."""
    module = read_assembly(asm, cpu)
    found = module.kernels[kernel]
    try:
        body = [module.instructions[at] for at in find_loop(module, found).body]
    except UnsupportedCode:
        return NOTHING
    counts = Counter(map(classify, body))
    waves = waves_per_unit(module.chip, found, max(1, found.resources.largest_workgroup // LANES))
    fetched, moves = counts["scratch"], counts["accumulator move"]
    return AllotmentCost(MOST_WAVES - waves, fetched, len(body), longest_gap(body), moves, found.resources.spills)


def may_move(asm: str) -> bool:
    """Whether a loop may move sums, or fetch registers; most code need not be looked at any further."""
    return any(word in asm for word in ASKED_FOR)
