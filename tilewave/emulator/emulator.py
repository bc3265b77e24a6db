"""The emulator as a caller sees it: machine code in, a launch, a report."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from tilewave.emulator.assembly import MachineCode, read_assembly
from tilewave.emulator.chips import OPINIONS, ChipName
from tilewave.emulator.code_object import read_code_object
from tilewave.emulator.findings import Check, Finding, Findings, UnsupportedCode
from tilewave.emulator.kernel import LoadedKernel, is_usual
from tilewave.emulator.launch import Extent, Given, known_at_start, make_machine, prepare
from tilewave.emulator.machine import LANES
from tilewave.emulator.memory import GlobalMemory
from tilewave.emulator.numbers import MASK32
from tilewave.emulator.paths import Paths
from tilewave.emulator.program import DecodedProgram
from tilewave.emulator.races import Races
from tilewave.emulator.run import EmulatedWaves, Order
from tilewave.errors import CallError
from tilewave.files import read_plain
from tilewave.records import dataclass

WAVES_AT_A_TIME = 128
"""More do not make numpy's calls cheaper per lane, and leave the caches."""
LARGEST_WORKGROUP = 1024
MOST_PRIVATE_BYTES = 1024 * ((1 << 13) - 1) // 64
"""Private bytes per lane: the hardware counts a wave's private memory in units of 1024 bytes, with 13 bits."""
PRIVATE_AT_A_TIME = 1 << 28
"""Bytes of private memory of all waves that run at a time."""
FEWEST_INSTRUCTIONS, INSTRUCTIONS_A_PIECE, PIECE_BYTES = 50_000, 20, 256
ROUNDS_OF_CODE = 50
"""Limits on a wave's instructions, so that an endless loop is reported within seconds. A wave may go through all arrays
once, a word per lane at a time, with twenty instructions for each, and fifty times through its code (a persistent
workgroup computes several tiles); no kernel here needs more."""


@dataclass(frozen=True)
class EmulationReport:
    """What a launch did and what was found; `instructions` counts each wave's."""

    kernel: str
    chip: ChipName
    order: Order
    seed: int
    workgroups: int
    waves: int
    instructions: int
    seconds: float
    findings: tuple[Finding, ...]


MOST_CODE_BYTES = 1 << 28
"""The largest file of machine code; the largest kernel libraries take about 100 MB."""


def read_machine_code(path: str | Path) -> bytes:
    """What a file of assembly or a code object holds."""
    try:
        return read_plain(path, MOST_CODE_BYTES)
    except OSError as error:
        remedy = (
            f"name LLVM's assembly (.s) or a code object (.hsaco), a plain file of at most {MOST_CODE_BYTES:,} bytes"
        )
        raise CallError(f"{path} cannot be read: {error.strerror or error}", remedy=remedy) from None


class Emulator:
    """Machine code of one chip, ready to be launched any number of times."""

    def __init__(self, module: MachineCode) -> None:
        self.module = module
        self._program = DecodedProgram(module.instructions, module.chip)

    @staticmethod
    def from_assembly(text: str, chip: str | None = None) -> Emulator:
        """From the assembly text that LLVM emits; it says itself which chip it is for."""
        return Emulator(read_assembly(text, chip))

    @staticmethod
    def from_code_object(source: str | Path | bytes) -> Emulator:
        """From a code object of any compiler, a path or its bytes; llvm-objdump decodes it."""
        return Emulator(read_code_object(source if isinstance(source, bytes) else read_machine_code(source)))

    @property
    def chip(self) -> ChipName:
        return self.module.chip

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(self.module.kernels)

    def kernel(self, name: str) -> LoadedKernel:
        if name not in self.module.kernels:
            raise CallError(f"no kernel is called {name!r}", remedy=f"there are: {', '.join(self.kernels) or 'none'}")
        return self.module.kernels[name]

    def launch(
        self,
        kernel_name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Given],
        *,
        order: Order = "barrier",
        seed: int = 0,
        check: Check = "strict",
        dynamic_shared: int = 0,
        limit: int | None = None,
    ) -> EmulationReport:
        """Run a kernel; arrays are its pointers and hold its results afterwards, unless it raises."""
        start = time.perf_counter()
        kernel = self.kernel(kernel_name)
        memory, findings = GlobalMemory(), Findings(check)
        whole, each = _extent("grid", grid), _extent("block", block)
        self._check_needs(kernel, dynamic_shared)
        _check_size(whole, each)
        launch = prepare(self.module, kernel, whole, each, args, dynamic_shared, memory)
        limit = instruction_limit(memory, len(self._program.instructions)) if limit is None else limit
        executed, rng, paths, races = 0, random.Random(seed), None, Races(memory.buffers, memory.places)
        workgroups = launch.workgroups()
        private = LANES * max(kernel.descriptor.private_bytes, 1)
        together = max(1, min(WAVES_AT_A_TIME, PRIVATE_AT_A_TIME // private) // launch.waves_each)
        with np.errstate(all="ignore"):
            for first in range(0, len(workgroups), together):
                running = range(first, min(first + together, len(workgroups)))
                machine = make_machine(launch, self._program, workgroups, running, races, findings)
                paths = paths or Paths(known_at_start(launch, machine))
                run = EmulatedWaves(machine, self._program, kernel.entry, paths, limit)
                run.finish(order, rng)
                executed += int(run.executed.sum())
        memory.write_back()
        seconds = time.perf_counter() - start
        waves = len(workgroups) * launch.waves_each
        return EmulationReport(
            kernel_name, self.chip, order, seed, len(workgroups), waves, executed, seconds, tuple(findings.found)
        )

    def _check_needs(self, kernel: LoadedKernel, dynamic_shared: int) -> None:
        limit, private = OPINIONS[self.chip].shared_bytes, kernel.descriptor.private_bytes
        shared = kernel.descriptor.shared_bytes + dynamic_shared
        if dynamic_shared < 0:
            raise CallError(f"dynamic_shared is {dynamic_shared}", remedy="give a number of bytes, 0 or more")
        if shared > limit:
            what = f"{shared} bytes of shared memory do not fit {self.chip}, which has {limit}"
            raise UnsupportedCode(what, remedy="smaller tiles need less")
        if not is_usual(kernel.descriptor.mode) and self._program.has_floats():
            what = f"{kernel.name} flushes denormals, or does not round to nearest: the emulator does neither"
            remedy = "compile it with denormals, as LLVM does by default; in assembly: .amdhsa_float_denorm_mode_32 3"
            raise UnsupportedCode(what, remedy=remedy)
        if private > MOST_PRIVATE_BYTES:
            what = f"{kernel.name} asks for {private} bytes of private memory per lane"
            raise UnsupportedCode(what, remedy=f"{self.chip} has {MOST_PRIVATE_BYTES}; large arrays belong to memory")


def _check_size(grid: Extent, block: Extent) -> None:
    """Whether a packet can say that many lanes."""
    if prod(block) > LARGEST_WORKGROUP:
        raise CallError(f"a workgroup has 1 to {LARGEST_WORKGROUP} lanes, not {prod(block)}")
    if max(g * b for g, b in zip(grid, block, strict=True)) > MASK32:
        what = f"a grid of {grid} workgroups of {block} lanes has 2³² lanes along an axis, or more"
        raise CallError(what, remedy="launch fewer workgroups")


def instruction_limit(memory: GlobalMemory, code: int) -> int:
    """How many instructions a wave may take before its run counts as endless, if the caller does not say."""
    pieces = sum(b.size for b in memory.buffers if b.host) // PIECE_BYTES
    return max(FEWEST_INSTRUCTIONS, ROUNDS_OF_CODE * code) + INSTRUCTIONS_A_PIECE * pieces


def _extent(what: str, given: Sequence[int]) -> Extent:
    x, y, z = (*(int(n) for n in given), 1, 1, 1)[:3]
    if min(x, y, z) < 1 or len(given) > 3:
        raise CallError(f"{what} is {tuple(given)}", remedy="give one to three positive numbers")
    return x, y, z
