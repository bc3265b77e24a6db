"""LLVM's register allocation, and its cost in the K loop.

A lane may have 256 accumulator registers besides its operands. With dynamic shapes they are live through several loops:
the inner steps, the boundary step, the last. LLVM's default strategy then moves some of them between VGPRs and AGPRs in
every step. Which other strategy moves fewer depends on the kernel, so the generated code is inspected.
"""

from __future__ import annotations

from collections import Counter

from tilewave.emulator.assembly import read_assembly
from tilewave.emulator.chips import MOST_WAVES
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.statistics import LANES, classify, find_loop, longest_gap, waves_per_unit
from tilewave.records import dataclass

USUAL: tuple[str, ...] = ()
WIDE_FIRST = "--greedy-regclass-priority-trumps-globalness=1"
ORDERED = "--amdgpu-sched-strategy="
OTHERS: tuple[tuple[str, ...], ...] = ((WIDE_FIRST,), (f"{ORDERED}iterative-ilp",))
"""LLVM options: wide registers are allocated before long live ranges; another instruction order before register
allocation. Each of them is the best for some kernel of `benchmarks/amd_kloop.py`."""
FEW_MOVES = 1 / 64
"""Moves of accumulators, as a share of the K loop, that no other strategy is tried for: attention has some, and its
vectors of scores make other strategies slow, up to ten times as slow, and their code longer."""
ASKED_FOR = ("v_accvgpr", "scratch_")
"""Text of code that moves accumulators, or spills registers to memory."""


@dataclass(frozen=True, order=True)
class AllotmentCost:
    """The cost of one register allocation; the smallest is the best."""

    waves_missing: int
    """Waves that a SIMD unit could hold but for the registers."""
    fetched: int
    """Spills and reloads of registers in the K loop."""
    instructions: int
    """Instructions of the K loop; the next two are of the K loop as well."""
    longest_gap: int
    moves: int
    """Moves of accumulators."""
    spills: int
    """Spills of the whole kernel; those after the loop, or of scalars into lanes, cost little."""

    @property
    def is_least(self) -> bool:
        """Whether no other strategy need be tried; none was seen to spill fewer scalar registers."""
        return not self.fetched and self.moves <= FEW_MOVES * self.instructions


NOTHING = AllotmentCost(0, 0, 0, 0, 0, 0)


def cost_of(asm: str, kernel: str, cpu: str) -> AllotmentCost:
    """Return the cost of a register allocation; zero where no loop has matrix instructions."""
    module = read_assembly(asm, cpu)
    found = module.kernels[kernel]
    try:
        body = [module.instructions[at] for at in find_loop(module, found).body]
    except UnsupportedCode:
        return NOTHING
    counts = Counter(map(classify, body))
    waves = waves_per_unit(module.chip, found, max(1, found.resources.largest_workgroup // LANES))
    fetched, moves = counts["scratch"], counts["accumulator move"]
    spills = found.resources.spills + found.resources.scalars_in_lanes
    return AllotmentCost(MOST_WAVES - waves, fetched, len(body), longest_gap(body), moves, spills)


def may_move(asm: str) -> bool:
    """Return whether a loop may move accumulators or reload registers; most code needs no closer inspection."""
    return any(word in asm for word in ASKED_FOR)
