"""What the emulator found wrong, reported with the instruction, the wave and the author's line."""

from __future__ import annotations

from typing import Literal

from tilewave.emulator.instruction import Instruction
from tilewave.errors import Loc, TilewaveError
from tilewave.records import dataclass

Kind = Literal[
    "missing wait",
    "missing nops",
    "shared-memory race",
    "global-memory race",
    "unwritten shared memory",
    "unwritten register",
    "out of bounds",
    "misaligned access",
    "barrier mismatch",
    "endless run",
]
Check = Literal["strict", "warn", "off"]


@dataclass(frozen=True)
class Finding:
    """One mistake of the machine code; `str` is what a person reads."""

    kind: Kind
    what: str
    instruction: str
    place: str
    """The line of the assembly, or the address in a code object."""
    workgroup: tuple[int, int, int]
    wave: int
    loc: Loc
    remedy: str

    @property
    def where(self) -> str:
        return f"wave {self.wave} of workgroup {self.workgroup}, {self.place}: {self.instruction}"

    def __str__(self) -> str:
        return str(EmulationError(self))


class UnsupportedCode(TilewaveError):
    """The emulator cannot run this: an instruction it does not know, a file it cannot read, a missing tool."""


class EmulationError(TilewaveError):
    """The machine code does what a card would hide; no array was changed."""

    def __init__(self, finding: Finding) -> None:
        remedy = f"{finding.where}\n{finding.remedy}"
        super().__init__(f"{finding.kind}: {finding.what}", loc=finding.loc, remedy=remedy)
        self.finding = finding


class Findings:
    """Collects each finding once, or raises the first, as the check asks."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.found: list[Finding] = []
        self._seen: set[tuple[str, int]] = set()

    def stop(self, kind: Kind, instruction: Instruction, workgroup: tuple[int, int, int], wave: int, what: str,
             remedy: str) -> None:  # fmt: skip
        """A finding that there is no going on from, whatever the check."""
        text, loc = instruction.text, instruction.loc
        raise EmulationError(Finding(kind, what, text, instruction.place, workgroup, wave, loc, remedy))

    def report(
        self,
        kind: Kind,
        instruction: Instruction,
        workgroup: tuple[int, int, int],
        wave: int,
        what: str,
        remedy: str,
    ) -> None:
        """One finding per kind and instruction: the second wave makes the same mistake."""
        key = (kind, instruction.line)
        if self.check == "off" or key in self._seen:
            return
        self._seen.add(key)
        finding = Finding(kind, what, instruction.text, instruction.place, workgroup, wave, instruction.loc, remedy)
        self.found.append(finding)
        if self.check == "strict":
            raise EmulationError(finding)
