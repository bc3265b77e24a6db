"""Facts about chips, each number with its source: `find("MI300X")`, `load("chip.toml")`, `MACHINES`."""

from tilewave.machine.chips import MACHINES, find
from tilewave.machine.custom import find_or_load, load
from tilewave.machine.description import L2, Hbm, LastLevel, Machine, MachineError, Merging, Rate, Seats, Source

__all__ = [
    "L2",
    "MACHINES",
    "Hbm",
    "LastLevel",
    "Machine",
    "MachineError",
    "Merging",
    "Rate",
    "Seats",
    "Source",
    "find",
    "find_or_load",
    "load",
]
