"""Damaged kernel texts: parse, verify, print, parse again and compile to LLVM IR; only TilewaveErrors may come out."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from tilewave import *
from tilewave.backend.amd.spelling import Amdgcn
from tilewave.backend.cpu.build import run_passes
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.backend.nvidia.build import copying_passes
from tilewave.backend.nvidia.code import ALIGNED
from tilewave.backend.nvidia.compiler import lowered_for
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.ir.launch import HostLaunch, numbers_of, skeleton
from tilewave.ir.ops import VOCABULARY
from tilewave.ir.parse import parse
from tilewave.ir.types import DTYPES
from tilewave.ir.verify import verify
from tilewave.lower.cpu.kernel import lower
from tilewave.lower.gpu.kernel import lower_lanes
from tilewave.machine.chips import CHIPS, SM_90A
from tilewave.machine.matrix import BY_NAME
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

from .mutations import damaged_text

CHECKED = Path(__file__).parents[1] / "check"
SEPARATOR = "// -----\n"
M, N, K = sym.M, sym.N, sym.K
LARGEST_TEXT = 60_000
"""The longest text that is damaged, so that a case is quick."""

WORDS = (
    *VOCABULARY,
    *DTYPES,
    *BY_NAME,
    *("tile<8x8xf32>", "vector<4xf16>", "accumulator<16x16xf32>", "mbarriers<2>", "exchange<2x8x8xf32>", "index"),
    *("memory<8x8xf32, shared>", "memory<8x8xf32, global>", "memory<1x1x8x4x2xf32, packed>", "tile<0x4xf32>"),
    *("memory<{M}x{N}xf32, global>", "{M}", "{}", "{K}x{K}", "tile<{M}x8xf32>", "memory<{M}xf32, shared>", "launch"),
    *("workgroups = M", "workgroups = mul", "%M", "%M_tiles", "%K_steps"),
    *(
        "memory<8x8xf16, shared, xor(2, 4, 1)>",
        "memory<8x8xf32, shared, pad(0)>",
        "memory<8x8xf16, shared, panels(4, 2, 2, 1)>",
        "rows",
        "linear",
        "lane",
        "tile",
    ),
    *("true", "false", "inf", "-inf", "[]", "[0, 1]", "[1, 0, 2]", '"', "//", "do", "{", "}", "(", ")", "\0", "\u202e"),
    *("٣", "1e999", "level = lane", "waves = [2, 2]", "lanes = 64", "cluster = 2", "guard = [0]", "axes = [0, 0]"),
)


def constraints() -> list[object]:
    return [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 32)]


@wave(constraints())
def product(
    a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16],
    b: Memory[N, K, GLOBAL_ADDRESS_SPACE, f16],
    c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
):
    zero = Register[M, N, f32](0)

    @iterate(K, init_args=[zero])
    def total(sum):
        return mma(read(a), read(b), sum)

    write(exp(total) + 1.0, c)


@wave(constraints()[:2])
def numbers(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, i32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]):
    x = read(a)
    write(cast(select(x < 3, x // 2, -x) + 1, f16), c)


@cache
def corpus() -> tuple[str, ...]:
    """Kernels of the tests of passes, and every step that two kernels take to each target."""
    texts = [part for file in sorted(CHECKED.glob("*.ir")) for part in file.read_text().split(SEPARATOR)]
    for target in ("cpu", "gfx942", "sm_90a"):
        for kernel, sizes in ((product, (64, 40, 96)), (numbers, (33, 64, 1))):
            options = WaveCompileOptions(subs=dict(zip((M, N, K), sizes, strict=True)), target=target)
            made = wave_compile(options, kernel)
            texts += dict.fromkeys(str(step.after) for step in made.steps)
    for kernel in (product, numbers):
        left_open = wave_compile(WaveCompileOptions(target="numpy"), kernel)
        texts += dict.fromkeys(str(known) for known in (left_open.traced, left_open.kernel, skeleton(left_open.kernel)))
    return tuple(text for text in texts if len(text) <= LARGEST_TEXT)


def _cpu(kernel: Kernel, name: str) -> str:
    found = INSTRUCTION_SETS[name]
    return lower(run_passes(kernel, found)[0], found).llvm_ir + found.runtime


def _amd(kernel: Kernel, chip: str) -> str:
    lanes = kernel
    if kernel.level == "tile":
        lanes, _ = run(kernel, lists.lanes(CHIPS[chip], Places(), ()))
    return lower_lanes(lanes, Amdgcn(CHIPS[chip])).llvm_ir


def _nvidia(kernel: Kernel, _: str) -> str:
    lanes = run(kernel, copying_passes(SM_90A, Places()))[0] if kernel.level == "tile" else kernel
    return lowered_for(lanes, SM_90A, ALIGNED).llvm_ir


STAGES: dict[str, Callable[[Kernel, str], str]] = {
    **dict.fromkeys(("avx2", "avx512", "amx"), _cpu),
    **dict.fromkeys(("gfx942", "gfx950"), _amd),
    "sm_90a": _nvidia,
}


def case(seed: int) -> str | None:
    """One text, damaged, through everything that reads texts."""
    rng = random.Random(seed)
    text = damaged_text(rng, rng.choice(corpus()), WORDS)
    target = rng.choice(tuple(STAGES))
    try:
        kernel = parse(text)
        again = parse(str(kernel))
        if again != kernel:
            return f"the text reads back as another kernel:\n{text}"
        _launched(kernel)
        llvm_ir = STAGES[target](verify(kernel), target)
    except TilewaveError as error:
        return None if str(error).strip() else f"an error without words: {type(error).__name__}\n{text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}, for {target}\n{text}"
    return _invalid(llvm_ir, target, text)


def _launched(kernel: Kernel) -> None:
    """What a host computes of it; numbers as a call gives them."""
    verify(kernel)
    HostLaunch(kernel)([1] * len(numbers_of(kernel)))


def _invalid(llvm_ir: str, target: str, text: str) -> str | None:
    try:
        llvm.parse_assembly(llvm_ir).verify()
    except RuntimeError as error:
        return f"LLVM does not take it for {target}: {str(error)[:200]}\n{text}"
    return None
