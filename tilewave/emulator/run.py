"""Run the waves of some workgroups to their end, in an order, with checks at every instruction.

Waves at the same instruction form a convoy and execute a block of instructions together: numpy's cost per call
is then paid once for all of them. The order in which the waves of a workgroup run does not change what the checks find.
"""

from __future__ import annotations

import random
from typing import Literal

import numpy as np

from tilewave.emulator.machine import Convoy, MachineState
from tilewave.emulator.numbers import I32, I64, U64, Array
from tilewave.emulator.paths import Passage, Paths
from tilewave.emulator.program import BasicBlock, DecodedProgram
from tilewave.emulator.step import unsupported

Order = Literal["barrier", "random"]
RUNNING, WAITING, ENDED = 0, 1, 2
FAIR_TURNS = 1024
"""Every so many turns the wave that ran least goes first: another may spin in a loop on what it will store."""
SPINS, REST = 64, 512
"""Waves that ran one block so many times in a row may wait for others, and rest for so many turns, if any can run."""
LONGEST_CHUNK = 40


class EmulatedWaves:
    """Positions and states of the waves of one machine."""

    def __init__(self, machine: MachineState, program: DecodedProgram, entry: int, paths: Paths, limit: int) -> None:
        self.machine, self.program, self.paths, self.limit = machine, program, paths, limit
        count = machine.count
        self.position = np.full(count, entry, I64)
        self.status = np.zeros(count, I32)
        self.path = np.zeros(count, I64)
        self.entered = np.zeros(count, bool)
        """Whether a wave stopped in the middle of a block whose path checks are already done."""
        self.executed = np.zeros(count, I64)
        self.at_barrier = np.zeros((2, count), I64)
        """Accesses of shared memory that the end of the block finds outstanding: by instructions, by direct loads."""
        self.suspects: dict[int, tuple[str, str, Array]] = {}
        self.repeated, self.repeats, self.rests_until = -1, 0, 0
        """The block that ran last, how often in a row, and the turn until which its waves rest."""

    def finish(self, order: Order, rng: random.Random) -> None:
        """Run until every wave has ended."""
        turn = 0
        while True:
            running = np.flatnonzero(self.status == RUNNING)
            if not len(running):
                return
            if order == "random":
                self._advance(self._random_convoy(running, rng), rng.randint(1, LONGEST_CHUNK))
            else:
                turn += 1
                self._advance(self._next_convoy(running, turn), 0)

    # -- who goes next -----------------------------------------------------------------------------------------------

    def _next_convoy(self, running: Array, turn: int) -> Array:
        """Return the waves at the lowest position in the text, so that diverged waves meet again."""
        positions = self.position[running]
        if turn % FAIR_TURNS == 0:
            first = positions[np.argmin(self.executed[running])]
        else:
            rested = positions[positions != self.repeated] if turn < self.rests_until else positions
            first = (rested if len(rested) else positions).min()
            self._note_repeats(int(first), turn)
        together = positions == first
        if self.entered[running[together]].any():
            together &= self.entered[running]
        chosen: Array = running[together]
        return chosen

    def _note_repeats(self, first: int, turn: int) -> None:
        if turn < self.rests_until:
            return
        self.repeats = self.repeats + 1 if first == self.repeated else 0
        self.repeated = first
        if self.repeats == SPINS:
            self.repeats, self.rests_until = 0, turn + REST

    def _random_convoy(self, running: Array, rng: random.Random) -> Array:
        """Return one wave of a workgroup, and that wave of all other workgroups that are at the same position."""
        chosen = int(running[rng.randrange(len(running))])
        same_wave = self.machine.wave_of[running] == self.machine.wave_of[chosen]
        same_place = self.position[running] == self.position[chosen]
        together: Array = running[same_wave & same_place & (self.entered[running] == self.entered[chosen])]
        return together

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _advance(self, indices: Array, budget: int) -> None:
        """Take one block, or a part of it that fits the budget (0: all of it)."""
        first = int(self.position[indices[0]])
        block = self.program.block(first)
        if self.machine.checking and not self.entered[indices[0]]:
            self._check_path(indices, block)
        convoy = Convoy(self.machine, indices)
        length = len(block.steps)
        stop = length if not budget or budget >= length else budget
        self._execute(convoy, block, first + stop)
        self._count(indices, stop, block)
        if stop < length:
            self.position[indices], self.entered[indices] = first + stop, True
            return
        self.entered[indices] = False
        self._leave(convoy, block)

    def _execute(self, convoy: Convoy, block: BasicBlock, stop: int) -> None:
        for position, execute in block.actions:
            if position >= stop:
                return
            if position in self.suspects:
                self._suspect(convoy, position)
            try:
                execute(convoy)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                raise unsupported(self.program.instructions[position], "its operands do not fit") from error

    def _count(self, indices: Array, steps: int, block: BasicBlock) -> None:
        self.executed[indices] += steps
        self.machine.clock += steps
        longest = int(indices[np.argmax(self.executed[indices])])
        if self.executed[longest] > self.limit:
            what = f"a wave has run more than {self.limit} instructions"
            remedy = f"does the loop end? If it does, pass a higher limit: limit={10 * self.limit}"
            machine = self.machine
            workgroup, wave = machine.workgroups[int(machine.workgroup_of[longest])], int(machine.wave_of[longest])
            machine.findings.stop("endless run", block.steps[-1].instruction, workgroup, wave, what, remedy)

    def _leave(self, convoy: Convoy, block: BasicBlock) -> None:
        indices = convoy.indices
        match block.ending:
            case "falls through":
                self.position[indices] = block.after
            case "branches":
                self.position[indices] = block.target
            case "may branch":
                condition = block.steps[-1].condition
                assert condition is not None
                self.position[indices] = np.where(condition(convoy), block.target, block.after)
            case "jumps":
                self._jump(convoy, block)
            case "barrier":
                self.position[indices] = block.after
                self.status[indices] = WAITING
                if self.machine.checking:
                    self._arrive(indices)
                self._release(block)
            case "ends":
                self.status[indices] = ENDED
                self.machine.flight.end(convoy)
                self._release(block)

    def _jump(self, convoy: Convoy, block: BasicBlock) -> None:
        jump = block.steps[-1].jump
        assert jump is not None
        # The step itself has run, and a call has saved its return address in other registers than it reads.
        for index, address in zip(convoy.members, jump(convoy).astype(U64).tolist(), strict=True):
            if address not in self.program.position_of:
                raise unsupported(block.steps[-1].instruction, f"there is no instruction at {address:#x}")
            self.position[index] = self.program.position_of[address]

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _arrive(self, indices: Array) -> None:
        for index in indices.tolist():
            self.machine.shared.arrive(index, int(self.at_barrier[0, index]), int(self.at_barrier[1, index]))

    def _release(self, block: BasicBlock) -> None:
        """Let the waves of a workgroup go on when none of them is still on its way."""
        status = self.status.reshape(self.machine.waves_each, -1)
        ready = ~(status == RUNNING).any(axis=0) & (status == WAITING).any(axis=0)
        if not ready.any():
            return
        waiting = np.flatnonzero(((status == WAITING) & ready).reshape(-1))
        ended = np.flatnonzero(((status == ENDED) & ready).reshape(-1))
        if len(ended) and self.machine.checking:
            self._mismatch(int(waiting[0]), int(ended[0]))
        self.status[waiting] = RUNNING
        self.machine.shared.release(waiting)

    def _mismatch(self, waiting: int, ended: int) -> None:
        barrier = self.program.instructions[int(self.position[waiting]) - 1]
        what = f"waits for wave {int(self.machine.wave_of[ended])}, which has ended and passed fewer barriers"
        remedy = "every wave of a workgroup must pass the same number of barriers"
        self.machine.report("barrier mismatch", barrier, waiting, what, remedy)

    # -- checks that depend on the path ------------------------------------------------------------------------------

    def _check_path(self, indices: Array, block: BasicBlock) -> None:
        states = self.path[indices]
        for state in np.unique(states).tolist():
            members = indices[states == state]
            passage, is_new = self.paths.enter(state, block)
            self.path[members] = passage.state
            self.at_barrier[:, members] = ((passage.shared_accesses,), (passage.direct_accesses,))
            if is_new:
                for said in passage.findings:
                    self.machine.report(said.kind, said.step.instruction, int(members[0]), said.what, said.remedy)
            self._note_suspects(passage, members)

    def _note_suspects(self, passage: Passage, members: Array) -> None:
        for position, used, origin in passage.suspects:
            waves = self.suspects.setdefault(position, (used, origin, np.zeros(self.machine.count, bool)))[2]
            waves[members] = True

    def _suspect(self, convoy: Convoy, position: int) -> None:
        used, origin, waves = self.suspects[position]
        guilty = waves[convoy.indices] & convoy.any_on
        if not guilty.any():
            return
        from_where = "" if used == origin else f", computed from {origin}"
        what = f"uses {used}{from_where}, which was never written"
        index = int(convoy.indices[int(np.argmax(guilty))])
        self.machine.report("unwritten register", self.program.instructions[position], index, what, "write it first")
