"""Kernels of every class as PTX, and what NVIDIA's assembler says of them."""

import subprocess

import kernels
import pytest
import seeds

from tilewave import *
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas

needs_ptxas = pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
LARGE = {"block_m": 128, "block_n": 256, "block_k": 64}


def build(kernel, subs, way="copies"):
    """Compile a kernel for sm_90a, with tiles loaded by TMA or by lanes."""
    made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel).build
    return made if way == "copies" else made.plain


def half_gemm(**more):
    """f16 in and out, sums in f32."""
    return kernels.gemm(f16, f32, out=f16, epilogue=lambda x: cast(x, f16), **more)


def gelu(x):
    return cast(0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x))), f16)


def assembled_well(ptx, most_spilled=0):
    """Neither spills, beyond those known, nor products that wait; the number of registers."""
    made = assemble_ptx(ptx, "sm_90a")
    assert made.spilled_bytes <= most_spilled, made.log
    assert made.serialized == (), made.log
    return made.registers


def machine_code(ptx, folder):
    """The bytes that the assembler makes of a text."""
    text, made = folder / "kernel.ptx", folder / "kernel.cubin"
    text.write_text(ptx)
    subprocess.run([ptxas(), "-arch=sm_90a", str(text), "-o", str(made)], check=True, capture_output=True)
    return made.read_bytes()


SEEDS = {repr(seed): seed for seed in seeds.SEEDS}
