"""Follows one workgroup through a loop with no data, to see which banks of shared memory its lanes ask for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tilewave.emulator.assembly import MachineCode
from tilewave.emulator.banks import Direction, access_cycles
from tilewave.emulator.findings import Findings
from tilewave.emulator.instruction import Instruction
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.launch import Given, known_at_start, make_machine, prepare
from tilewave.emulator.loops import MachineLoop
from tilewave.emulator.machine import Convoy, MachineState
from tilewave.emulator.memory import ZeroMemory
from tilewave.emulator.paths import Paths
from tilewave.emulator.program import BasicBlock, DecodedProgram
from tilewave.emulator.races import Races
from tilewave.emulator.run import RUNNING, EmulatedWaves

ACCESS = re.compile(r"ds_(read|write)(2?)(st64)?_[bui](8|16|32|64|96|128)")
UNKNOWN_SIZE = 4096
"""Replaces every scalar argument, so that a loop over K is entered."""
LONGEST_RUN = 200_000


def bank_conflicts(module: MachineCode, kernel: LoadedKernel, loop: MachineLoop) -> dict[int, float]:
    """Return the cycles lost to bank conflicts by an instruction's position, per wave and iteration of the loop.

    Memory is all zeros, and scalar arguments are large enough for a loop over K to be entered.
    """
    given: list[Given] = [0 if a.is_pointer else UNKNOWN_SIZE for a in kernel.arguments if not a.is_hidden]
    lanes = max(64, kernel.resources.largest_workgroup)
    launch = prepare(module, kernel, (1, 1, 1), (lanes, 1, 1), given, 0, ZeroMemory())
    program = DecodedProgram(module.instructions, module.chip)
    with np.errstate(all="ignore"):
        machine = make_machine(
            launch, program, [(0, 0, 0)], range(1), Races(launch.memory.buffers, launch.memory.places), Findings("off")
        )
        probe = _Probe(machine, program, kernel.entry, Paths(known_at_start(launch, machine)), loop)
        return probe.follow()


class _Probe(EmulatedWaves):
    """A run that records the addresses in a loop and stops after its first iteration."""

    def __init__(
        self, machine: MachineState, program: DecodedProgram, entry: int, paths: Paths, loop: MachineLoop
    ) -> None:
        super().__init__(machine, program, entry, paths, LONGEST_RUN)
        self.lost: Counter[int] = Counter()
        self.body, self.ends = frozenset(loop.body), frozenset(loop.ends)
        self.rounds = np.zeros(machine.count, int)

    def follow(self) -> dict[int, float]:
        for turn in range(1, LONGEST_RUN):
            running = np.flatnonzero((self.status == RUNNING) & (self.rounds == 0))
            if not len(running):
                running = np.flatnonzero(self.status == RUNNING)
            if not len(running) or self.rounds.all():
                break
            self._advance(self._next_convoy(running, turn), 0)
        return {at: lost / max(1, int(self.rounds.sum())) for at, lost in self.lost.items()}

    def _execute(self, convoy: Convoy, block: BasicBlock, stop: int) -> None:
        for position, execute in block.actions:
            if position in self.body:
                self._look(convoy, position)
            execute(convoy)
        if block.after - 1 in self.ends:
            self.rounds[convoy.indices] += 1

    def _look(self, convoy: Convoy, position: int) -> None:
        instruction = self.program.instructions[position]
        found = ACCESS.match(instruction.mnemonic)
        if found is None:
            return
        direction: Direction = "read" if found[1] == "read" else "write"
        size, row = int(found[4]) // 8, instruction.operands[1 if direction == "read" else 0].row
        for offset in _offsets(instruction, size, bool(found[2]), bool(found[3])):
            for wave in range(convoy.count):
                addresses = (convoy.vu[row, convoy.sel][wave].astype(np.int64) + offset).tolist()
                cycles = access_cycles(self.program.chip, direction, size, addresses, convoy.on[wave].tolist())
                self.lost[position] += cycles.taken - cycles.least


def _offsets(instruction: Instruction, size: int, is_double: bool, is_far: bool) -> Iterator[int]:
    if not is_double:
        yield instruction.integer("offset")
        return
    unit = size * (64 if is_far else 1)
    yield instruction.integer("offset0") * unit
    yield instruction.integer("offset1") * unit
