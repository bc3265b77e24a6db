"""Cycles of a kernel's K loop from its machine code, for gfx942 and gfx950, without a GPU."""

from tilewave.cycles.loop import LATENCIES, LoopCycles, Stall, cycles_by_latency, loop_cycles

__all__ = ["LATENCIES", "LoopCycles", "Stall", "cycles_by_latency", "loop_cycles"]
