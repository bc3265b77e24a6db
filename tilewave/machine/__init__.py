"""Facts about chips and the cards that carry them, each number with its source.

`chips.CHIPS["gfx942"]` is what code is compiled for; `find("MI300X")`, `load("card.toml")` are what is simulated.
"""

from tilewave.machine.cards import MACHINES, find
from tilewave.machine.custom import find_or_load, load
from tilewave.machine.description import (
    L2,
    Hbm,
    LastLevel,
    Machine,
    MachineError,
    Merging,
    PowerLimit,
    Rate,
    Source,
    SustainedClock,
    UnitRun,
)

__all__ = [
    "L2",
    "MACHINES",
    "Hbm",
    "LastLevel",
    "Machine",
    "MachineError",
    "Merging",
    "PowerLimit",
    "Rate",
    "Source",
    "SustainedClock",
    "UnitRun",
    "find",
    "find_or_load",
    "load",
]
