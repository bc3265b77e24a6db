"""The targets: a new chip of a known vendor is a record in `machine`, a new vendor a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache

from tilewave.backend.amd.backend import AmdBackend
from tilewave.backend.cpu.backend import CpuBackend
from tilewave.backend.interpreter.backend import InterpreterBackend
from tilewave.backend.names import DEFAULT_TARGET, INTERPRETER
from tilewave.backend.nvidia.backend import NvidiaBackend
from tilewave.backend.protocol import Backend
from tilewave.errors import TargetError, here
from tilewave.machine.cards import MACHINES
from tilewave.machine.chips import CHIPS, Chip
from tilewave.machine.description import Machine

VENDORS: dict[str, Callable[[str, Chip], Backend]] = {"amd": AmdBackend, "nvidia": NvidiaBackend}

TARGETS: dict[str, Backend] = {
    target.name: target
    for target in (
        CpuBackend(DEFAULT_TARGET),
        *(VENDORS[chip.vendor](chip.name, chip) for chip in CHIPS.values()),
        InterpreterBackend(INTERPRETER),
    )
}
"""The targets by name, in the order in which they are listed and searched."""

CHIP = re.compile(r"(gfx|sm)_?([0-9]+)[a-z]?")
"""A vendor's name of a chip: a family and a number."""


def target_named(name: str) -> Backend:
    """Return the target of that name; TargetError with the nearest name where there is none."""
    if name not in TARGETS:
        raise TargetError(f"unknown target {name!r}{_meant(name)}", loc=here(), remedy=f"The targets are {_names()}.")
    return TARGETS[name]


def _names() -> str:
    return ", ".join(TARGETS)


def _meant(name: object) -> str:
    """Return the hint after `unknown target …`: the target of a card, a vendor or a system, or the nearest name.

    A chip with another number is another chip, so the nearest name is no hint for it.
    """
    word = str(name).strip().lower()
    cards = {card.lower(): machine.target for card, machine in MACHINES.items()}
    named = next((t.name for t in TARGETS.values() if word in (t.device, *t.also_called)), cards.get(word))
    chip = CHIP.fullmatch(word)
    same = [t for t in TARGETS if chip and (found := CHIP.fullmatch(t)) and found.groups() == chip.groups()]
    near = same or get_close_matches(word, TARGETS, 1, 0.85 if chip else 0.6)
    if named or near:
        return f"; did you mean {named or near[0]!r}?"
    return ": there is none for this chip" if chip else ""


def target_of(machine: Machine) -> str:
    """Return the target of a machine's chip; the interpreter for a user-defined machine without one."""
    return machine.target if machine.target in TARGETS else INTERPRETER


def target_here() -> str:
    """Return the default target where neither the kernel nor its arrays name one: TILEWAVE_TARGET, else the target of
    this machine's GPU, else the CPU.
    """
    said = os.environ.get("TILEWAVE_TARGET", "")
    if said and said not in TARGETS:
        what = f"TILEWAVE_TARGET: unknown target {said!r}{_meant(said)}"
        raise TargetError(what, remedy=f"The targets are {_names()}.")
    return said or _found_here()


@cache
def _found_here() -> str:
    for target in TARGETS.values():
        if any(target.runs_on(number) for number in range(target.device_count())):
            return target.name
    return DEFAULT_TARGET


def target_on(kernel: str, device: str) -> Backend:
    """Return the target whose code runs on `cpu`, `cuda:1`, …; raise an error where there is none."""
    kind, _, number = device.partition(":")
    able = targets_on(kind)
    try:
        for target in able:
            if target.runs_on(int(number or 0)):
                return target
    except TargetError as error:
        what = f"{kernel}: its arrays are on {device}, but {error.what}"
        raise TargetError(what, loc=here(), remedy=error.remedy) from None
    if not able:
        kinds = " or ".join(dict.fromkeys(target.device for target in TARGETS.values() if target.device))
        raise TargetError(f"{kernel}: no target is for arrays on {kind}", loc=here(), remedy=f"pass arrays on {kinds}")
    what = (
        f"{kernel}: its arrays are on {device}, {able[0].device_name(int(number or 0))}, for which there is no target"
    )
    remedy = (
        f"the targets on {kind} are {', '.join(target.name for target in able)}; copy the arrays to the CPU, or there"
    )
    raise TargetError(what, loc=here(), remedy=remedy)


def targets_on(device: str) -> list[Backend]:
    """Return the targets for a kind of device, such as `cuda`."""
    return [target for target in TARGETS.values() if target.device == device]


def quoted(targets: Iterable[Backend]) -> str:
    """Return the targets as they are written after `target=` in a remedy."""
    return " or ".join(f'"{target.name}"' for target in targets)
