"""A kernel's instructions made ready to run, in blocks that are entered at their head and left at their end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from tilewave.emulator.chips import ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import NO_REGISTER, Instruction
from tilewave.emulator.machine import Convoy
from tilewave.emulator.matrix import build_matrix
from tilewave.emulator.scalar import build_scalar
from tilewave.emulator.shared import build_shared
from tilewave.emulator.step import Draft, Execute, ReadyInstruction, nothing, unsupported
from tilewave.emulator.vector import build_vector
from tilewave.emulator.vector_memory import build_buffer, build_flat
from tilewave.emulator.wait_counters import SCALAR, VECTOR
from tilewave.records import dataclass

FAMILIES: tuple[tuple[str, Callable[[Draft], Execute | None]], ...] = (
    ("s_", build_scalar),
    ("v_mfma", build_matrix),
    ("v_", build_vector),
    ("ds_", build_shared),
    ("global_", build_flat),
    ("flat_", build_flat),
    ("scratch_", build_flat),
    ("buffer_", build_buffer),
)
Ending = Literal["falls through", "branches", "may branch", "barrier", "ends", "jumps"]
NARROW_SHARED = ("b8", "u8", "i8", "b16", "u16", "i16")
FLOATS = re.compile(r"_b?f(16|32|64)(_|$)")


def make_step(instruction: Instruction, chip: ChipName) -> ReadyInstruction:
    """The meaning of an instruction, from the table of its family."""
    for operand in instruction.operands:
        if operand.kind == "word" and NO_REGISTER.match(operand.text):
            raise unsupported(instruction, f"there is no register {operand.text}")
    draft = Draft(instruction, chip)
    for prefix, build in FAMILIES:
        if instruction.mnemonic.startswith(prefix):
            try:
                execute = build(draft)
            except (AssertionError, LookupError, TypeError, ValueError) as error:
                raise unsupported(instruction, "it does not have the operands that it needs") from error
            if execute is None:
                break
            return draft.finish(_counted(draft, execute))
    raise unsupported(instruction, "please report it")


def _counted(draft: Draft, execute: Execute) -> Execute:
    """What a memory operation does, after a counter has gone up."""
    if draft.traffic is None or draft.traffic.order == "shared":
        return execute
    queue = SCALAR if draft.traffic.order == "scalar" else VECTOR

    def counted(c: Convoy) -> None:
        c.machine.flight.issue(c, queue)
        execute(c)

    return counted


@dataclass(frozen=True, eq=False)
class BasicBlock:
    """Steps that always run one after the other."""

    first: int
    steps: tuple[ReadyInstruction, ...]
    ending: Ending
    target: int
    actions: tuple[tuple[int, Execute], ...]
    """The steps that change something, with their positions."""

    @property
    def after(self) -> int:
        return self.first + len(self.steps)


class DecodedProgram:
    """Instructions by position; steps and blocks are made when they are reached."""

    def __init__(self, instructions: Sequence[Instruction], chip: ChipName) -> None:
        self.instructions, self.chip = tuple(instructions), chip
        targets = {i.target for i in self.instructions if i.target is not None}
        later = {at + 1 for at, i in enumerate(self.instructions) if ending_of(i) != "falls through"}
        self._heads = targets | later
        self._steps: dict[int, ReadyInstruction] = {}
        self._blocks: dict[int, BasicBlock] = {}
        self.position_of = {i.address: at for at, i in enumerate(self.instructions) if i.address >= 0}

    def step(self, position: int) -> ReadyInstruction:
        if position not in self._steps:
            if not 0 <= position < len(self.instructions):
                raise UnsupportedCode("a wave runs out of the code", remedy="every path must come to s_endpgm")
            self._steps[position] = make_step(self.instructions[position], self.chip)
        return self._steps[position]

    def block(self, first: int) -> BasicBlock:
        if first not in self._blocks:
            self._blocks[first] = self._make_block(first)
        return self._blocks[first]

    def _make_block(self, first: int) -> BasicBlock:
        steps = [self.step(first)]
        while ending_of(steps[-1].instruction) == "falls through" and first + len(steps) not in self._heads:
            steps.append(self.step(first + len(steps)))
        last = steps[-1].instruction
        actions = tuple((first + at, step.execute) for at, step in enumerate(steps) if step.execute is not nothing)
        return BasicBlock(first, tuple(steps), ending_of(last), -1 if last.target is None else last.target, actions)

    def vector_rows(self) -> int:
        """How many rows of vector registers the instructions name."""
        rows = [o.row + o.count for i in self.instructions for o in i.operands if o.kind == "vector"]
        return max([1, *rows]) + 16  # operands such as a matrix instruction's may reach further than they say

    def shared_granule(self) -> int:
        """The smallest piece of shared memory that an instruction touches, up to a word."""
        names = [i.mnemonic for i in self.instructions if i.mnemonic.startswith("ds_")]
        return 1 if any(part in NARROW_SHARED for name in names for part in name.split("_")) else 4

    def has_floats(self) -> bool:
        """Whether it may compute with floats, which is where the mode matters."""
        return any(FLOATS.search(i.mnemonic) for i in self.instructions)

    def loads_directly(self) -> bool:
        return any("load_lds" in i.mnemonic or "lds" in i.modifiers for i in self.instructions)


def ending_of(instruction: Instruction) -> Ending:
    """What an instruction does to the flow."""
    match instruction.mnemonic:
        case "s_branch" | "s_call_b64":
            return "branches"
        case "s_barrier":
            return "barrier"
        case "s_endpgm":
            return "ends"
        case "s_setpc_b64" | "s_swappc_b64":
            return "jumps"
        case name if name.startswith("s_cbranch"):
            return "may branch"
        case _:
            return "falls through"
