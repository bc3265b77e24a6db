"""What a tuner may turn is a field of a pass, and its default is what lists take."""

from dataclasses import replace

import pytest
from kernels import compiled, gemm, sizes

from tilewave import *
from tilewave.backend.nvidia.build import copying_passes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Role
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import GFX942, SM_90A
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name, run

LISTS = {
    "gfx942": lists.lanes(GFX942, Places(), lists.prefetch(1, GFX942)),
    "sm_90a": lists.hopper(SM_90A, Places(), None, 132),
}


def made(target, name="", **fields):
    """The kernel of each lane, where one pass has other parameters."""
    tiles = compiled(gemm(), target="numpy", subs=sizes(1024, 1024, 512, 128, 128, 64)).kernel
    passes = [replace(p, **fields) if pass_name(p) == name else p for p in LISTS[target]]
    return run(tiles, passes)[0]


@pytest.mark.parametrize(
    ("target", "name", "default", "other"),
    [
        ("gfx942", "select_mma", {"each_way": 2}, {"each_way": 4}),
        ("gfx942", "interleave_mma", {"spare": 40, "margin": 64}, {"spare": 4000}),
        ("sm_90a", "select_mma", {"each_way": 2}, {"each_way": 1}),
        ("sm_90a", "specialize_waves", {"stages": 4, "fewest": 1, "producer_registers": 40}, {"stages": 3}),
        ("sm_90a", "specialize_waves", {"stages": 4}, {"producer_registers": 24}),
        ("sm_90a", "stage_epilogue", {"buffers": 2}, {"buffers": 1}),
    ],
    ids=lambda x: str(x),
)
def test_a_field_decides_and_its_default_is_what_the_list_takes(target, name, default, other):
    plain = made(target)
    assert made(target, name, **default) == plain
    assert made(target, name, **other) != plain


def test_stages_that_are_asked_for_are_not_made_fewer():
    for stages, wanted in ((None, (None, 1)), (7, (7, 7))):
        (p,) = (p for p in copying_passes(SM_90A, Places(), stages) if pass_name(p) == "specialize_waves")
        assert (p.stages, p.fewest) == wanted


def test_registers_of_waves_that_copy_stand_in_the_text():
    roles = [op for op in walk(made("sm_90a").body) if isinstance(op, Role)]
    assert [op.others_keep for op in roles[:1]] == [40]
