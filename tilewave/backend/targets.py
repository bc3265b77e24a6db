"""What a kernel can be compiled for: a new chip of a known vendor is a record in `machine`, a new vendor a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

from tilewave.backend.amd.backend import AmdBackend
from tilewave.backend.cpu.backend import CpuBackend
from tilewave.backend.interpreter.backend import InterpreterBackend
from tilewave.backend.nvidia.backend import NvidiaBackend
from tilewave.backend.protocol import Backend
from tilewave.errors import TargetError, here
from tilewave.machine.chips import CHIPS, Chip

VENDORS: dict[str, Callable[[str, Chip], Backend]] = {"amd": AmdBackend, "nvidia": NvidiaBackend}

TARGETS: dict[str, Backend] = {
    target.name: target
    for target in (
        CpuBackend("cpu"),
        *(VENDORS[chip.vendor](chip.name, chip) for chip in CHIPS.values()),
        InterpreterBackend("numpy"),
    )
}
"""By the name that authors write; in the order in which they are listed, and looked through."""

DEFAULT_TARGET = "cpu"
"""Where nothing is said: every machine has one."""


def target_named(name: str) -> Backend:
    """The target of that name, or an error with those that there are."""
    if name not in TARGETS:
        near = get_close_matches(name, TARGETS, 1, 0.3)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise TargetError(
            f"no target is called {name!r}", loc=here(), remedy=f"{guess}The targets are {', '.join(TARGETS)}."
        )
    return TARGETS[name]


def targets_on(device: str) -> list[Backend]:
    """Those for a kind of device: `cuda`."""
    return [target for target in TARGETS.values() if target.device == device]


def quoted(targets: Iterable[Backend]) -> str:
    """As they are written behind `target=` in a remedy."""
    return " or ".join(f'"{target.name}"' for target in targets)
