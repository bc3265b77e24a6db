"""Cycles of a kernel's K loop from its machine code, for AMD's CDNA 3 and CDNA 4, without a GPU."""

from tilewave.cycles.loop import (
    LATENCIES,
    LoopCycles,
    LoopModel,
    conflicts_of,
    cycles_by_latency,
    loop_cycles,
    loop_model,
)
from tilewave.cycles.stalls import LineStall, Stall, by_line, by_reason

__all__ = [
    "LATENCIES",
    "LineStall",
    "LoopCycles",
    "LoopModel",
    "Stall",
    "by_line",
    "by_reason",
    "conflicts_of",
    "cycles_by_latency",
    "loop_cycles",
    "loop_model",
]
