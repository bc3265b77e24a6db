"""A list without one of its passes makes a kernel that can be looked at, or says which pass it lacks."""

from dataclasses import replace
from functools import cache

import pytest
from kernels import compiled, gemm, sizes

from tilewave import *
from tilewave.backend.amd.build import AmdBuild
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.backend.nvidia.build import build_with
from tilewave.errors import TilewaveError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.rewrite import unnamed
from tilewave.lower.cpu.kernel import lower
from tilewave.machine.chips import CHIPS, SM_90A
from tilewave.pipeline import cpu_lists, lists
from tilewave.pipeline.runner import numbered_apart, pass_name, run
from tilewave.pipeline.why import Why
from tilewave.runtime.cache import compile_key

pytestmark = pytest.mark.share(4)

AVX2 = INSTRUCTION_SETS["avx2"]
AMX = INSTRUCTION_SETS["amx"]


@cache
def tiles(dtype=f16):
    return compiled(gemm(dtype, f32), target="numpy", subs=sizes(512, 512, 256, 128, 128, 64))


def amd(chip, passes):
    passed = run(tiles().kernel, passes)
    key = compile_key("left out", unnamed(passed[0]))
    return replace(tiles(), target=chip, build=AmdBuild(tiles().kernel, CHIPS[chip], key, lambda: passed))


def nvidia(_, passes):
    return replace(tiles(), target="sm_90a", build=build_with(tiles().kernel, SM_90A, passes))


def on_gpu(make, target, passes):
    made = make(target, passes)
    assert made.resources.shared_bytes >= 0 and made.asm
    return made.build.steps


def on_cpu(dtype):
    def steps(instruction_set, passes):
        last, found = run(tiles(dtype).kernel, passes)
        assert lower(last, instruction_set).llvm_ir
        return found

    return steps


def of_cpu(s):
    return (cpu_lists.cpu_with_matrix_unit if s.matrix_unit else cpu_lists.cpu)(
        s.block(tiles().kernel), s.unit, s.panel_formats()
    )


LISTS = {
    "avx2": (on_cpu(f16), AVX2, of_cpu(AVX2)),
    "amx": (on_cpu(bf16), AMX, of_cpu(AMX)),
    **{
        chip: (lambda t, p: on_gpu(amd, t, p), chip, lists.lanes(CHIPS[chip], Places(), lists.prefetch(1, CHIPS[chip])))
        for chip in ("gfx942", "gfx950")
    },
    "sm_90a": (lambda t, p: on_gpu(nvidia, t, p), "sm_90a", lists.hopper(SM_90A, Places(), None, 132)),
    "sm_90a, plain": (
        lambda t, p: on_gpu(nvidia, t, p),
        "sm_90a",
        lists.hopper_plain(SM_90A, Places(), lists.prefetch(1, SM_90A)),
    ),
}
NEEDED = {"select_mma", "distribute_lanes", "use_matrix_unit"}
GROUPS_NEED = {"stage_shared"}
"""Where warpgroups multiply operands in shared memory."""
LEFT_OUT = [
    (name, number, told)
    for name, (_, _, passes) in LISTS.items()
    for number, told in enumerate(numbered_apart(map(pass_name, passes)))
]


@pytest.mark.share(8)
@pytest.mark.parametrize(("name", "number", "left_out"), LEFT_OUT, ids=[f"{n}-{told}" for n, _, told in LEFT_OUT])
def test_a_list_without_one_of_its_passes(name, number, left_out):
    make, target, passes = LISTS[name]
    rest = (*passes[:number], *passes[number + 1 :])
    needed = NEEDED | GROUPS_NEED if name.startswith("sm_") else NEEDED
    if left_out in needed:
        with pytest.raises(TilewaveError, match=f"the list of passes lacks {left_out}"):
            make(target, rest)
        return
    steps = make(target, rest)
    assert [s.name for s in steps] == [pass_name(p) for p in rest]
    assert all(s.diff() for s in steps)
    assert str(Why.of(steps))
