"""Checks that depend on a wave's path and not on its data: waits, wait states, registers that were never written.

A path is summarized in a state: which memory operations are outstanding, what was issued in the last wait states, and
which registers were written. A block maps one state to another, always in the same way. So each pair of a state and a
block is checked once, and a loop of a thousand iterations costs a thousand look-ups.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewave.emulator.findings import Kind
from tilewave.emulator.hazards import History, WaitStates
from tilewave.emulator.instruction import register_name
from tilewave.emulator.program import BasicBlock
from tilewave.emulator.step import SCALAR_ROWS, Private, ReadyInstruction
from tilewave.emulator.waits import Outstanding
from tilewave.records import dataclass

WORD = 32
"""Bits of a register."""


class PathState(NamedTuple):
    """All that the checks remember of a path."""

    vector_memory: tuple[ReadyInstruction, ...]
    other_memory: tuple[ReadyInstruction, ...]
    history: History
    known: int
    """One bit per register that holds a value; scalar registers from SCALAR_ROWS on."""
    origins: tuple[tuple[int, int], ...]
    """For each register computed from an unwritten one: which register that was."""
    spilled: tuple[tuple[int, int], ...]
    """Bytes of private memory that keep something unwritten, and which register that was."""
    partly: tuple[tuple[int, int], ...]
    """For each register computed from an unwritten one: how many of its lowest bits are well defined."""


@dataclass(frozen=True)
class PathFinding:
    """A mistake on this path, whatever the data."""

    kind: Kind
    step: ReadyInstruction
    what: str
    remedy: str


@dataclass(frozen=True)
class Passage:
    """The findings of a block, and the state after it."""

    state: int
    findings: tuple[PathFinding, ...]
    suspects: tuple[tuple[int, str, str], ...]
    """Positions of accesses that use what was never written, if a lane is on: the register used, the one meant."""
    shared_accesses: int
    direct_accesses: int


class Paths:
    """States by number, and the passages between them."""

    def __init__(self, known: int) -> None:
        first = PathState((), (), (), known, (), (), ())
        self._states = [first]
        self._number = {first: 0}
        self._passages: dict[tuple[int, int], Passage] = {}

    def enter(self, state: int, block: BasicBlock) -> tuple[Passage, bool]:
        """Return the passage through a block, and whether this pair of state and block is new."""
        key = (state, block.first)
        if key in self._passages:
            return self._passages[key], False
        self._passages[key] = self._walk(self._states[state], block)
        return self._passages[key], True

    def _walk(self, state: PathState, block: BasicBlock) -> Passage:
        outstanding = Outstanding(state.vector_memory, state.other_memory)
        wait_states = WaitStates(state.history)
        registers = Known(state.known, dict(state.origins), dict(state.spilled), dict(state.partly))
        findings, suspects = [], []
        for at, step in enumerate(block.steps):
            findings += [PathFinding("missing wait", step, *said) for said in outstanding.check(step)]
            findings += [PathFinding("missing nops", step, *said) for said in wait_states.check(step)]
            if (used := registers.check(step)) is not None:
                suspects.append((block.first + at, *used))
            outstanding.take(step)
            wait_states.take(step)
            registers.take(step)
        after = PathState(
            tuple(outstanding.vector_memory),
            tuple(outstanding.other_memory),
            wait_states.history(),
            registers.known,
            tuple(sorted(registers.origins.items())),
            tuple(sorted(registers.spilled.items())),
            tuple(sorted(registers.partly.items())),
        )
        return Passage(self._numbered(after), tuple(findings), tuple(suspects), *outstanding.accesses())

    def _numbered(self, state: PathState) -> int:
        if state not in self._number:
            self._number[state] = len(self._states)
            self._states.append(state)
        return self._number[state]


class Known:
    """Which registers hold something, and where a missing value came from.

    LLVM spills registers in pairs of which one half may be open. So what is kept in private memory counts as used
    when it comes back and is used, and not before.
    """

    def __init__(self, known: int, origins: dict[int, int], spilled: dict[int, int], partly: dict[int, int]) -> None:
        self.known, self.origins, self.spilled, self.partly = known, origins, spilled, partly
        self.constants: dict[int, int] = {}
        """Scalar registers that got a number in this block; far places in private memory are said so."""

    def _is_known(self, row: int) -> bool:
        return bool(self.known >> row & 1)

    def _unknown(self, step: ReadyInstruction) -> list[int]:
        rows = [*step.vector_reads, *(SCALAR_ROWS + row for row in step.scalar_reads)]
        if step.keeps_rest:
            rows = [row for row in rows if row not in step.vector_writes]
        return [row for row in rows if self._known_bits(row) < step.low_bits.get(row, WORD)]

    def _known_bits(self, row: int) -> int:
        """How many of the lowest."""
        return WORD if self._is_known(row) else self.partly.get(row, 0)

    def check(self, step: ReadyInstruction) -> tuple[str, str] | None:
        """Return a finding for an access whose address or data was never written; mere computing with it is allowed."""
        if step.traffic is None:
            return None
        kept = step.private.rows if step.private and self._place(step.private) is not None else ()
        unknown = [row for row in self._unknown(step) if row not in kept]
        if not unknown:
            return None
        return row_name(unknown[0]), row_name(self._origin(unknown[0]))

    def _origin(self, row: int) -> int:
        return self.origins.get(row, row)

    def take(self, step: ReadyInstruction) -> None:
        unknown = self._unknown(step) if step.traffic is None else []
        writes = [*step.vector_writes, *(SCALAR_ROWS + row for row in step.scalar_writes)]
        came_from = {row: self._origin(row) for row in unknown}
        moved_in = self._move(step.private) if step.private else {}
        moved = {row: max(0, self._known_bits(source) - by) for row, (source, by) in step.moved_down.items()}
        for row in writes:
            self.partly.pop(row, None)
            missing = [source for source in unknown if source in step.flows.get(row, unknown)]
            if missing or row in moved_in:
                self.origins[row] = came_from[missing[0]] if missing else moved_in[row]
                self.known &= ~(1 << row)
                if moved.get(row):
                    self.partly[row] = moved[row]
            else:
                self.origins.pop(row, None)
                self.known |= 1 << row
        self._take_constant(step)

    # -- private memory

    def _place(self, private: Private) -> int | None:
        base = 0 if private.base is None else self.constants.get(private.base)
        return None if base is None else base + private.offset

    def _move(self, private: Private) -> dict[int, int]:
        """Record a spill to private memory; for a reload, return the still unwritten registers, and their origin."""
        place = self._place(private)
        if place is None:
            if not private.loads:
                self.spilled.clear()  # it may have been written over
            return {}
        moved_in: dict[int, int] = {}
        for word, row in enumerate(private.rows):
            here = range(place + 4 * word, place + min(4 * word + 4, private.size))
            if private.loads:
                if open_bytes := self.spilled.keys() & here:
                    moved_in[row] = self.spilled[min(open_bytes)]
            elif self._is_known(row):
                for byte in here:
                    self.spilled.pop(byte, None)
            else:
                self.spilled |= dict.fromkeys(here, self._origin(row))
        return moved_in

    def _take_constant(self, step: ReadyInstruction) -> None:
        for row in step.scalar_writes:
            self.constants.pop(row, None)
        if step.instruction.mnemonic in ("s_mov_b32", "s_movk_i32") and step.instruction.operands[1].kind == "integer":
            (row,) = step.scalar_writes
            self.constants[row] = step.instruction.operands[1].whole


def row_name(row: int) -> str:
    return register_name(row) if row < SCALAR_ROWS else f"s{row - SCALAR_ROWS}"
