"""Asynchronous memory operations, and the s_waitcnt that is needed before their results are used.

vmcnt counts vector-memory operations, lgkmcnt those of shared memory and scalar loads. Operations of one kind complete
in order, so `vmcnt(2)` means "all but the last two"; scalar loads complete in any order, so only `lgkmcnt(0)` covers
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilewave.emulator.instruction import Instruction, register_name
from tilewave.emulator.step import ReadyInstruction

MOST_VECTOR, MOST_OTHER = 63, 15
"""What the counters can count: what would overflow its own is not issued before an older operation has ended."""


def allowed_outstanding(instruction: Instruction) -> tuple[int | None, int | None]:
    """Return how many operations of vmcnt and of lgkmcnt an s_waitcnt leaves outstanding; None: any number.

    Its operand is `vmcnt(1) lgkmcnt(0)`, or the number that encodes them.
    """
    found = {name: int(n) for name, n in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", instruction.text)}
    if instruction.operands and instruction.operands[0].kind == "integer":
        code = int(instruction.operands[0].number)
        found = {"vmcnt": (code & 15) | (code >> 14 & 3) << 4, "lgkmcnt": code >> 8 & 15}
    vector, other = found.get("vmcnt", MOST_VECTOR), found.get("lgkmcnt", MOST_OTHER)
    return (vector if vector < MOST_VECTOR else None, other if other < MOST_OTHER else None)


class Outstanding:
    """The operations that a wave has issued and not waited for, oldest first."""

    def __init__(self, vector_memory: tuple[ReadyInstruction, ...], other_memory: tuple[ReadyInstruction, ...]) -> None:
        self.vector_memory, self.other_memory = list(vector_memory), list(other_memory)
        self._note()

    def _note(self) -> None:
        """Which operation will write which register."""
        steps = [*self.vector_memory, *self.other_memory]
        self._vector = {row: step for step in steps for row in step.vector_writes}
        self._scalar = {row: step for step in steps for row in step.scalar_writes}

    def check(self, step: ReadyInstruction) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with executing this step now, and what should come before it."""
        if self._vector:
            for row in step.vector_reads:
                if row in self._vector:
                    yield self._say(step, "reads", register_name(row), self._vector[row])
                    return
            for row in step.vector_writes:
                if row in self._vector and not _in_order(step, self._vector[row]):
                    yield self._say(step, "overwrites", register_name(row), self._vector[row])
                    return
        if self._scalar:
            for row in step.scalar_reads:
                if row in self._scalar:
                    yield self._say(step, "reads", f"s{row}", self._scalar[row])
                    return
            for row in step.scalar_writes:
                if row in self._scalar:
                    yield self._say(step, "overwrites", f"s{row}", self._scalar[row])
                    return

    def _say(self, step: ReadyInstruction, verb: str, register: str, pending: ReadyInstruction) -> tuple[str, str]:
        what = f"{verb} {register} before `{pending.instruction.text}` has delivered it"
        wants = []
        for name, queue in (("vmcnt", self.vector_memory), ("lgkmcnt", self.other_memory)):
            if pending in queue:
                newest = len(queue) - 1 - queue[::-1].index(pending)
                in_order = all(s.traffic is None or s.traffic.order != "scalar" for s in queue)
                wants.append(f"{name}({len(queue) - 1 - newest if in_order else 0})")
        return what, f"s_waitcnt {' '.join(wants)} must be between them"

    def take(self, step: ReadyInstruction) -> None:
        """Issue an operation, or wait."""
        if step.traffic is not None:
            for counter in step.traffic.counters:
                if counter == "vm":
                    self._issue(step, self.vector_memory, MOST_VECTOR)
                else:
                    self._issue(step, self.other_memory, MOST_OTHER)
            self._vector.update(dict.fromkeys(step.vector_writes, step))
            self._scalar.update(dict.fromkeys(step.scalar_writes, step))
        vector, other = step.waits
        if vector is not None:
            del self.vector_memory[: max(0, len(self.vector_memory) - vector)]
        if other is not None:
            self._wait_for_others(other)
        if vector is not None or other is not None:
            self._note()

    def _issue(self, step: ReadyInstruction, queue: list[ReadyInstruction], most: int) -> None:
        queue.append(step)
        if len(queue) > most and not any(
            _is_scalar(s) for s in queue
        ):  # among unordered ones it is unknown which has completed
            del queue[:-most]
            self._note()

    def _wait_for_others(self, outstanding: int) -> None:
        queue = self.other_memory
        if outstanding == 0:
            queue.clear()
            return
        unordered = sum(_is_scalar(step) for step in queue)
        ended = len(queue) - outstanding - unordered
        for at in [at for at, step in enumerate(queue) if not _is_scalar(step)][: max(0, ended)][::-1]:
            del queue[at]

    def accesses(self) -> tuple[int, int]:
        """How many accesses of shared memory are outstanding, by instructions and by direct loads."""
        plain = sum(
            s.traffic.accesses for s in self.other_memory if s.traffic and s.traffic.order in ("shared", "flat")
        )
        direct = sum(s.traffic.accesses for s in self.vector_memory if s.traffic and s.traffic.order == "direct")
        return plain, direct


def _is_scalar(step: ReadyInstruction) -> bool:
    return step.traffic is not None and step.traffic.order == "scalar"


def _in_order(step: ReadyInstruction, pending: ReadyInstruction) -> bool:
    """A later load of the same kind delivers later."""
    return step.traffic is not None and pending.traffic is not None and step.traffic.order == pending.traffic.order
