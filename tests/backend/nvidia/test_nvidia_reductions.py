"""Reductions as PTX: lanes exchange words by butterflies, and NVIDIA's assembler takes it without spills."""

import pytest
from ptx_code import assembled_well, needs_ptxas
from reduced_tiles import Case, compiled_for
from softmax_rows import M, N, softmax_of

from tilewave import *
from tilewave import kernels as shipped

CASES = [
    Case((4, 1024), (1,)),
    Case((4, 1000), (1,), "max", "f16", use="beside"),
    Case((37, 8), (0,), "prod", "f64", tile=(64, 8), waves=(4, 1)),
    Case((4, 40), (1,), "min", "f8e4m3fn", tile=(4, 0)),
    Case((4, 6, 8), (0, 1, 2), "sum", "i64"),
    Case((5, 100), (1,), "argmax", "bf16", tile=(4, 0)),
    Case((5, 100), (1,), "any", "bool", tile=(4, 128), waves=(1, 4)),
]


@needs_ptxas
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reductions_are_assembled_without_spills(case):
    assembled_well(compiled_for(case, "sm_90a").asm)


@needs_ptxas
@pytest.mark.parametrize("dtype", [f16, f32])
def test_a_softmax_is_assembled_without_spills(dtype):
    options = WaveCompileOptions(subs={M: 64, N: 4096}, target="sm_90a")
    assembled_well(wave_compile(options, softmax_of(1, dtype=dtype)).asm)


KERNELS = {
    "softmax": lambda rows: shipped.softmax_kernel(rows, f16, f16),
    "rms_norm": lambda rows: shipped.rms_norm_kernel(rows, f16, f16, f16),
    "layer_norm": lambda rows: shipped.layer_norm_kernel(rows, f16, f16, f16, f16),
}


@needs_ptxas
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("columns", [256, 1024, 5120, 16384, 65536])
def test_a_thousand_lanes_hold_their_rows_without_spills(name, columns):
    """64 registers each, whether the length of rows is known or open."""
    kernel = KERNELS[name](shipped.rows_for("sm_90a", columns, f16))
    for length in ({"max_sizes": {N: columns}}, {"subs": {N: columns}}):
        asm = wave_compile(WaveCompileOptions(target="sm_90a", **length), kernel).asm
        assert assembled_well(asm) <= 64


def test_lanes_are_combined_by_butterflies():
    ptx = compiled_for(Case((4, 128), (1,), "max"), "sm_90a").asm
    assert ptx.count("shfl.sync.bfly.b32") == 5


def test_lanes_share_the_registers_that_come_behind_them():
    """With 4 chunks each lane sends 2 sums, then 1, and one for each of 5 bits; otherwise it would be 5 times 4."""
    ptx = compiled_for(Case((4, 1024), (1,)), "sm_90a").asm
    assert ptx.count("shfl.sync.bfly.b32") == 2 + 1 + 5


@pytest.mark.parametrize("dtype, words", [("f16", 4), ("i8", 2)])
def test_narrow_elements_are_exchanged_a_word_at_a_time(dtype, words):
    """A lane holds eight columns, and exchanges the words of these for each of 5 bits."""
    ptx = compiled_for(Case((64, 8), (0,), "max", dtype, tile=(64, 8)), "sm_90a").asm
    assert ptx.count("shfl.sync.bfly.b32") == 5 * words


def test_lanes_share_what_many_waves_left():
    ptx = compiled_for(Case((4, 16384), (1,)), "sm_90a").asm
    assert "ld.shared.v4" not in ptx and ptx.count("ld.shared.b32") == 1
