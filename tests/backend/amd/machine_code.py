"""Kernels written as lane-level text, compiled to machine code and emulated with every check on."""

from math import prod

import numpy as np

from tilewave.backend.amd.spelling import Amdgcn
from tilewave.backend.llvm_child import compile_here
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

    def __init__(self, kernel, chip="gfx942", anyhow=()):
        self.kernel = kernel
        self.lowered = lower_lanes(kernel, Amdgcn(CHIPS[chip]), frozenset(anyhow))
        # In this process: starting another for each of the many small kernels takes longer than compiling them.
        self.asm = compile_here(self.lowered.llvm_ir, Amdgcn(CHIPS[chip]).machine).asm

    def run(self, *arrays, **symbols):
        """Run it in every order of waves; the arrays hold what the last one left."""
        orders = ("barrier", "random") if prod(self.kernel.waves) > 1 else ("barrier",)
        given = [a.copy() for a in arrays]
        for order in orders:
            for a, original in zip(arrays, given, strict=True):
                a[...] = original
            report = Emulator.from_assembly(self.asm).launch(
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


def poisoned(shape, dtype):
    """What no kernel computes by chance."""
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 77, dtype)
