"""Where the waves of a loop lose time: by instruction, by reason, and by the author's line."""

from __future__ import annotations

from collections.abc import Iterable

from tilewave.cycles.compute_unit import Mark, Reason
from tilewave.cycles.facts import SLOT_CYCLES
from tilewave.cycles.instructions import TimedInstruction
from tilewave.emulator.instruction import Instruction
from tilewave.errors import Loc
from tilewave.records import dataclass

BUSY: tuple[Reason, ...] = ("matrix unit",)
"""Reasons that are no loss: while a wave waits for the matrix unit, it multiplies."""


@dataclass(frozen=True)
class Stall:
    """What an instruction of the loop costs each wave: cycles per iteration in which it is not issued."""

    reason: Reason
    cycles: float
    instruction: Instruction


@dataclass(frozen=True)
class LineStall:
    """What an author's line costs each wave for one reason, in cycles per iteration."""

    reason: Reason
    cycles: float
    loc: Loc
    """Unknown for code without source lines."""
    instruction: Instruction
    """The one that costs most."""

    @property
    def place(self) -> str:
        """The author's line, or the line or address of the instruction."""
        return str(self.loc) if self.loc.line else self.instruction.place


def stalls_between(body: Iterable[TimedInstruction], first: Mark, last: Mark) -> tuple[Stall, ...]:
    """Return what stalled between two moments, per wave and iteration, largest first."""
    instructions = [one.instruction for one in body]
    iterations = sum(last.iterations) - sum(first.iterations)
    found = [
        Stall(reason, SLOT_CYCLES * slots / iterations, instructions[at])
        for (at, reason), slots in (last.stalls - first.stalls).items()
    ]
    return tuple(sorted(found, key=lambda stall: (-stall.cycles, stall.instruction.line)))


def by_reason(stalls: Iterable[Stall]) -> dict[Reason, float]:
    """Return the cycles of each reason, largest first."""
    found: dict[Reason, float] = {}
    for stall in stalls:
        found[stall.reason] = found.get(stall.reason, 0) + stall.cycles
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def by_line(stalls: Iterable[Stall]) -> tuple[LineStall, ...]:
    """Return what each of the author's lines loses for each reason, largest first; without lines, each instruction."""
    groups: dict[tuple[object, ...], list[Stall]] = {}
    for stall in stalls:
        loc, instruction = stall.instruction.loc, stall.instruction
        place = (loc.file, loc.line) if loc.line else (instruction.line, instruction.address)
        if stall.reason not in BUSY:
            groups.setdefault((place, stall.reason), []).append(stall)
    found = [_of_line(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda line: (-line.cycles, line.instruction.line)))


def _of_line(group: list[Stall]) -> LineStall:
    worst = max(group, key=lambda stall: stall.cycles)
    total = sum(stall.cycles for stall in group)
    return LineStall(worst.reason, total, worst.instruction.loc, worst.instruction)
