"""Kernels compiled to machine code of AMD and emulated with every check on, as they are or with a wait taken out."""

import math
import re

import numpy as np
from kernels import check_product, poisoned, random_array
from lane_runs import operands
from quick_code import compile_here
from sampled import some_of

from tilewave import *
from tilewave.backend.amd.program import launch_arguments
from tilewave.backend.amd.spelling import Amdgcn
from tilewave.emulator import EmulationError
from tilewave.emulator.emulator import Emulator
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.lower.gpu.kernel import lower_lanes
from tilewave.machine.chips import CHIPS


def kernel_of(text):
    kernel = parse(text)
    verify(kernel)
    return kernel


class MachineCode:
    """A kernel compiled for a chip."""

    def __init__(self, kernel, chip="gfx942", any_strides=()):
        self.kernel = kernel
        self.lowered = lower_lanes(kernel, Amdgcn(CHIPS[chip]), frozenset(any_strides))
        # In this process: starting another for each of the many small kernels takes longer than compiling them.
        self.asm = compile_here(self.lowered.llvm_ir, Amdgcn(CHIPS[chip]).machine._replace(gives="text")).asm
        self.emulator = Emulator.from_assembly(self.asm)

    def run(self, *arrays, **symbols):
        """Run it in some order of waves, or in every one; the arrays hold what the last one left."""
        orders = some_of(("barrier", "random")) if math.prod(self.kernel.waves) > 1 else ("barrier",)
        given = [a.copy() for a in arrays]
        for order in orders:
            for a, original in zip(arrays, given, strict=True):
                a[...] = original
            report = self.emulator.launch(
                self.lowered.name,
                (self.lowered.workgroups, 1, 1),
                (self.lowered.workgroup_size, 1, 1),
                self.arguments(arrays, symbols),
                order=order,
                seed=3,
            )
            assert report.findings == (), report.findings
        return report

    def arguments(self, arrays, symbols):
        pointers = [a.name for a in self.lowered.arguments if a.kind == "pointer"]
        named = dict(zip(pointers, arrays, strict=True))
        found = []
        for a in self.lowered.arguments:
            match a.kind:
                case "pointer":
                    found.append(named[a.name])
                case "stride":
                    array = named[a.name]
                    found.append(array.strides[a.axis] // array.itemsize)
                case "symbol":
                    found.append(symbols[a.name])
        return found


def lanes_of(kernel, subs, chip, schedule=SchedulingType.NONE, **options):
    return wave_compile(WaveCompileOptions(subs=subs, target=chip, schedule=schedule, **options), kernel).build.lanes


def check_gemm(lanes, shape, chip, dtype=f16, out=f32, turned=(False, False)):
    m, n, k = shape
    rng = np.random.default_rng(7)
    a, b, c = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype), poisoned((m, n), out)
    given = [np.ascontiguousarray(x.T) if is_transposed else x for x, is_transposed in zip((a, b), turned, strict=True)]
    code = MachineCode(lanes, chip)
    code.run(*given, c)
    check_product(c, a, b, out)
    return code


SEPARATES = re.compile(r"\s+(s_waitcnt|s_barrier|s_nop)\b")


LGKMCNT = re.compile(r"\s+s_waitcnt lgkmcnt\((\d+)\)\s*$")


def is_implied(lines, i):
    """Whether fewer LDS instructions are in flight without this wait: the one before, and the few issued since.

    Where two paths meet, LLVM waits for what may be in flight on any.
    """
    wait, issued = LGKMCNT.match(lines[i]), 0
    for line in reversed(lines[:i] if wait else []):
        if before := LGKMCNT.match(line):
            return int(before[1]) + issued <= int(wait[1])
        issued += bool(re.match(r"\s+ds_", line))
        if re.match(r"\S+:|\s+s_(load|branch|cbranch|barrier|waitcnt)", line):
            break
    return False


def deletions(asm):
    """Every instruction that keeps others apart, and the assembly without it; not waits that others imply."""
    lines = asm.splitlines()
    for i, line in enumerate(lines):
        if SEPARATES.match(line) and not is_implied(lines, i):
            yield line.strip(), "\n".join([*lines[:i], *lines[i + 1 :]]) + "\n"


def finding(compiled, text, shape):
    """The first finding in either order of waves, or None."""
    code = compiled.build.program.code
    a, b = operands(shape)
    emulator = Emulator.from_assembly(text, compiled.target)
    for order in ("barrier", "random"):
        given = launch_arguments(code.arguments, ["a", "b", "c"], [a, b, poisoned(shape[:2], f32)], {})
        grid, block = (compiled.kernel.workgroups, 1, 1), (code.workgroup_size, 1, 1)
        try:
            emulator.launch(compiled.name, grid, block, given, order=order, seed=1)
        except EmulationError as error:
            return error
    return None
