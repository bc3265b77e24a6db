"""Runs gfx942 and gfx950 machine code on a CPU and says what a card would hide."""

from tilewave.emulator.emulator import EmulationReport, Emulator
from tilewave.emulator.findings import EmulationError, Finding
from tilewave.emulator.statistics import LoopStatistics, loop_statistics

__all__ = ["EmulationError", "EmulationReport", "Emulator", "Finding", "LoopStatistics", "loop_statistics"]
