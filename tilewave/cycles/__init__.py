"""Cycles of a kernel's K loop from its machine code, for gfx942 and gfx950, without a GPU."""

from tilewave.cycles.loop import LATENCIES, LoopCycles, conflicts_of, cycles_by_latency, loop_cycles
from tilewave.cycles.stalls import LineStall, Stall, by_line, by_reason

__all__ = [
    "LATENCIES",
    "LineStall",
    "LoopCycles",
    "Stall",
    "by_line",
    "by_reason",
    "conflicts_of",
    "cycles_by_latency",
    "loop_cycles",
]
