"""Wait states that gfx942 and gfx950 leave to the compiler: instructions or s_nop between a write and its use.

The rules are those of AMD's instruction-set documents for these chips; LLVM inserts s_nop by the same. Distances count
instructions; `s_nop n` counts n + 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewave.emulator.instruction import M0, register_name
from tilewave.emulator.step import SCALAR_ROWS, MatrixTiming, ReadyInstruction, Unit

REACH = 24
"""No rule asks for more wait states."""
VECTOR_TO_MATRIX = 2
TRANSCENDENTAL_TO_VECTOR = 1
PART_TO_VECTOR = 1
SCALAR_TO_VECTOR = 2
SCALAR_TO_MEMORY = 5
M0_TO_DIRECT_LOAD = 1
STORED_TO_VECTOR = 2
DOUBLE_TO_VECTOR, DOUBLE_TO_MEMORY, DOUBLE_TO_C = {4: 6, 8: 11}, {4: 9, 8: 18}, {4: 4, 8: 9}
"""By passes, for products in float64; gfx950 adds to all but those of memory."""
C_TO_VECTOR = {2: 1, 4: 3, 8: 7, 16: 15}

History = tuple[tuple[int, ReadyInstruction], ...]
"""Steps that wrote registers lately, each with its age in wait states."""
Said = tuple[str, str]


class WaitStates:
    """When the registers were written last, along one path."""

    def __init__(self, history: History) -> None:
        self._now = 0
        self._matrix: dict[int, tuple[int, MatrixTiming]] = {}
        self._read_as_c: dict[int, tuple[int, MatrixTiming]] = {}
        self._vector: dict[int, tuple[int, ReadyInstruction]] = {}
        self._stored: dict[int, int] = {}
        self._scalar: dict[int, int] = {}
        self._m0 = -REACH
        self._recent: list[tuple[int, ReadyInstruction]] = []
        for age, step in history:
            self._note(step, -age)

    def history(self) -> History:
        return tuple((self._now - at, step) for at, step in self._recent if self._now - at <= REACH)

    def take(self, step: ReadyInstruction) -> None:
        self._note(step, self._now)
        self._now += step.wait_states

    def _note(self, step: ReadyInstruction, at: int) -> None:
        if step.matrix is not None:
            for row in step.matrix.d:
                self._matrix[row] = (at, step.matrix)
                self._vector.pop(row, None)
            if step.matrix.is_xdl:
                self._read_as_c.update(dict.fromkeys(step.matrix.c, (at, step.matrix)))
        elif step.unit in ("vector", "transcendental"):
            for row in step.vector_writes:
                self._vector[row] = (at, step)
                self._matrix.pop(row, None)
            self._scalar.update(dict.fromkeys(step.scalar_writes, at))
        elif step.held_data:
            self._stored.update(dict.fromkeys(step.held_data, at))
        elif step.unit == "scalar" and step.scalar_writes:
            for row in step.scalar_writes:
                self._scalar.pop(row, None)
            self._m0 = at if M0 in step.scalar_writes else self._m0
        else:
            return
        self._recent.append((at, step))

    def check(self, step: ReadyInstruction) -> Iterator[Said]:
        """What comes too early if this step is taken now; the first rule that is broken."""
        for rule in (self._after_matrix, self._after_vector, self._after_store, self._after_scalar):
            said = next(rule(step), None)
            if said is not None:
                yield said
                return

    # -- rules -------------------------------------------------------------------------------------------------------

    def _after_matrix(self, step: ReadyInstruction) -> Iterator[Said]:
        if not self._matrix and not self._read_as_c:
            return
        if step.matrix is not None:
            yield from self._matrix_after_matrix(step.matrix)
            return
        if step.unit == "scalar":
            return
        for row in step.vector_writes:
            if row in self._read_as_c:
                at, before = self._read_as_c[row]
                yield from self._say(row, "is still read as C by a matrix instruction", C_TO_VECTOR[before.passes], at)
        for row in (*step.vector_reads, *step.vector_writes):
            if row in self._matrix:
                at, before = self._matrix[row]
                yield from self._say(row, "comes from a matrix instruction", _result_delay(before, step.unit), at)

    def _matrix_after_matrix(self, matrix: MatrixTiming) -> Iterator[Said]:
        for row in matrix.a_and_b:
            if row in self._matrix:
                at, before = self._matrix[row]
                why = "comes from a matrix instruction and is A or B of this one"
                yield from self._say(row, why, _result_delay(before, "matrix"), at)
        for row in matrix.c:
            if row not in self._matrix:
                continue
            at, before = self._matrix[row]
            if before.d != matrix.c:
                why = "is part of C here and part of another D in a matrix instruction"
                yield from self._say(row, why, _part_delay(before), at)
            elif before.passes == 2 or (before.is_double and before.passes == 4):
                yield from self._say(
                    row, "comes from a small matrix instruction and is C of this one", before.passes, at
                )

    def _after_vector(self, step: ReadyInstruction) -> Iterator[Said]:
        for early in step.early:
            if early.row in self._vector:
                yield from self._say(early.row, early.why, early.wait_states, self._vector[early.row][0])
        if step.unit not in ("vector", "transcendental", "matrix"):
            return
        for row in step.vector_reads:
            if row not in self._vector:
                continue
            at, before = self._vector[row]
            if step.matrix is not None:
                yield from self._say(row, "comes from a vector instruction", VECTOR_TO_MATRIX, at)
            elif before.unit == "transcendental" and step.unit == "vector":
                yield from self._say(row, "comes from a transcendental instruction", TRANSCENDENTAL_TO_VECTOR, at)
            elif before.shifts_result:
                yield from self._say(row, "was written in part", PART_TO_VECTOR, at)

    def _after_store(self, step: ReadyInstruction) -> Iterator[Said]:
        if self._stored and step.unit in ("vector", "transcendental", "matrix"):
            for row in step.vector_writes:
                if row in self._stored:
                    yield from self._say(row, "is still read by a wide store", STORED_TO_VECTOR, self._stored[row])

    def _after_scalar(self, step: ReadyInstruction) -> Iterator[Said]:
        for early in step.early:
            if early.row >= SCALAR_ROWS:
                yield from self._say_scalar(early.row - SCALAR_ROWS, early.why, early.wait_states)
        for row in step.scalar_reads:
            if step.unit == "memory":
                yield from self._say_scalar(row, "is read by a memory instruction", SCALAR_TO_MEMORY)
            elif step.unit != "scalar":
                yield from self._say_scalar(row, "is read by another", SCALAR_TO_VECTOR)
        if step.traffic is not None and step.traffic.order == "direct":
            yield from self._reported("m0 says where a direct load writes", M0_TO_DIRECT_LOAD, self._m0)

    # -- words -------------------------------------------------------------------------------------------------------

    def _say_scalar(self, row: int, why: str, wanted: int) -> Iterator[Said]:
        if row in self._scalar:
            yield from self._reported(f"s{row}, written by a vector instruction, {why}", wanted, self._scalar[row])

    def _say(self, row: int, why: str, wanted: int, at: int) -> Iterator[Said]:
        yield from self._reported(f"{register_name(row)} {why}", wanted, at)

    def _reported(self, why: str, wanted: int, at: int) -> Iterator[Said]:
        found = self._now - at - 1
        if found < wanted:
            missing = f"s_nop {wanted - found - 1} is missing"
            yield f"{why}: {wanted} wait states are needed, {found} found", missing


def _result_delay(before: MatrixTiming, unit: Unit) -> int:
    """How long a matrix instruction's result is not there for others."""
    if before.is_double:
        return DOUBLE_TO_MEMORY[before.passes] if unit == "memory" else DOUBLE_TO_VECTOR[before.passes] + before.delay
    return before.passes + 2 + before.is_xdl + before.delay


def _part_delay(before: MatrixTiming) -> int:
    """How long a part of its result is not there as C of another."""
    return (DOUBLE_TO_C[before.passes] if before.is_double else before.passes + before.is_xdl) + before.delay
