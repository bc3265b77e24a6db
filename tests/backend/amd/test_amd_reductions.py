"""Reductions in AMD's code: lanes of a row are combined without shared memory, and nothing can be left out."""

import numpy as np
import pytest
from lane_runs import CHIPS
from machine_code import MachineCode, deletions, kernel_of
from softmax_rows import M, N, softmax_in_float64, softmax_of

from tilewave import *
from tilewave.backend.amd.program import launch_arguments
from tilewave.emulator import EmulationError
from tilewave.emulator.emulator import Emulator
from tilewave.ir.types import DTYPES

TEXT = """
kernel @k {{workgroups = 1, level = lane, waves = [1, 1], lanes = 64}} (
  %a: memory<64x{count}x{dtype}, global>, %c: memory<64x{count}x{dtype}, global>
) {{
  %lane = lane() : index
  %zero = const() {{value = 0}} : index
  %x = load(%a, [%lane, %zero], []) {{steps = [[0, 1]]}} : vector<{count}x{dtype}>
  %y = reduce_lanes(%x) {{bits = {bits}, how = {how}}} : vector<{count}x{dtype}>
  store(%y, %c, [%lane, %zero], []) {{steps = [[0, 1]]}}
}}
"""
BITS = [(0,), (1,), (2,), (3,), (4,), (5,), (0, 1, 2), (2, 0, 1), (5, 3, 1), (4, 2), (0, 1, 2, 3, 4, 5)]


def combined(x, bits, how):
    lane = np.arange(64)
    for bit in bits:
        x = (np.add if how == "sum" else np.maximum)(x, x[lane ^ (1 << bit)])
    return x


@pytest.mark.share(8)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("bits", BITS, ids=str)
def test_lanes_that_differ_in_any_bits_are_combined(chip, bits):
    for dtype, how, count in [("f32", "sum", 3), ("f64", "sum", 2), ("i8", "max", 4), ("f16", "max", 2)]:
        text = TEXT.format(count=count, dtype=dtype, bits=list(bits), how=how)
        x = np.random.default_rng(3).integers(-50, 50, (64, count)).astype(DTYPES[dtype].numpy)
        y = np.zeros_like(x)
        MachineCode(kernel_of(text), chip).run(x, y)
        np.testing.assert_array_equal(y, combined(x, bits, how))


REGISTERS = """
kernel @k {{workgroups = 1, level = lane, waves = [1, 1], lanes = 64}} (
  %a: memory<64x3x5xf32, global>, %c: memory<64xf32, global>
) {{
  %lane = lane() : index
  %zero = const() {{value = 0}} : index
  %x = load(%a, [%lane, %zero, %zero], []) {{steps = [[0, 1, 0], [0, 0, 1]]}} : vector<3x5xf32>
  %y = reduce_registers(%x) {{axes = [0, 1], how = {how}}} : vector<1xf32>
  store(%y, %c, [%lane], []) {{steps = [[1]]}}
}}
"""


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("how", ["max", "min"])
def test_the_extreme_of_registers_is_nan_where_one_of_them_is(chip, how):
    x = np.random.default_rng(5).standard_normal((64, 3, 5)).astype(np.float32)
    x.reshape(64, 15)[np.arange(15), np.arange(15)] = np.nan  # in lanes 0 to 14, each in another register
    x[15], x[16], x[17] = np.nan, np.inf, -np.inf
    x[18, 1:], x[19] = -np.inf, -0.0
    y = np.zeros(64, np.float32)
    MachineCode(kernel_of(REGISTERS.format(how=how)), chip).run(x, y)
    np.testing.assert_array_equal(y, getattr(x.reshape(64, 15), how)(1))
    assert np.isnan(y[:16]).all()


HALVES = """
kernel @k {{workgroups = 1, level = lane, waves = [1, 1], lanes = 64}} (
  %a: memory<64x2x4x{dtype}, global>, %c: memory<64x{first}x{second}x{dtype}, global>
) {{
  %lane = lane() : index
  %zero = const() {{value = 0}} : index
  %x = load(%a, [%lane, %zero, %zero], []) {{steps = [[0, 1, 0], [0, 0, 1]]}} : vector<2x4x{dtype}>
  %y = reduce_halves(%x) {{axis = {axis}, bit = {bit}, how = {how}}} : vector<{first}x{second}x{dtype}>
  store(%y, %c, [%lane, %zero, %zero], []) {{steps = [[0, 1, 0], [0, 0, 1]]}}
}}
"""


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("bit", range(6))
def test_two_lanes_share_their_registers(chip, bit):
    lane = np.arange(64)
    for dtype, how, axis in [("f32", "sum", 1), ("f64", "sum", 0), ("i8", "max", 1), ("f16", "max", 0)]:
        first, second = (1, 4) if axis == 0 else (2, 2)
        text = HALVES.format(first=first, second=second, dtype=dtype, axis=axis, bit=bit, how=how)
        x = np.random.default_rng(3).integers(-50, 50, (64, 2, 4)).astype(DTYPES[dtype].numpy)
        y = np.zeros((64, first, second), x.dtype)
        MachineCode(kernel_of(text), chip).run(x, y)
        halves = np.array(np.split(combined(x, (bit,), how), 2, 1 + axis))
        np.testing.assert_array_equal(y, halves[lane >> bit & 1, lane])


def compiled_row(chip, columns=256):
    return wave_compile(WaveCompileOptions(subs={M: 4, N: columns}, target=chip), row_sums())


def row_sums():
    @wave([WorkgroupConstraint(M, 1, 0)])
    def sums(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x).sum(dim=N), y)

    return sums


@pytest.mark.parametrize("chip", CHIPS)
def test_lanes_of_a_row_are_added_in_one_instruction_each(chip):
    asm = compiled_row(chip).asm
    assert asm.count("v_add_f32_dpp") == 4  # bits 0 to 3
    assert "v_mov_b32_dpp" not in asm


def test_rows_are_added_through_swizzles_where_a_chip_cannot_swap_them():
    asm = compiled_row("gfx942").asm
    assert asm.count("ds_swizzle_b32") == 1 and asm.count("ds_bpermute_b32") == 1


def test_rows_are_swapped_where_a_chip_can():
    asm = compiled_row("gfx950").asm
    assert asm.count("v_permlane16_swap_b32") == 1 and asm.count("v_permlane32_swap_b32") == 1
    assert "ds_" not in asm


@pytest.mark.parametrize("chip", CHIPS)
def test_bytes_that_begin_anywhere_are_not_stored_as_one(chip):
    """Truths of rows of 17 change lanes through shared memory, where a row begins at byte 17."""
    depth = sym.K

    @wave([WorkgroupConstraint(M, 2, 0), WorkgroupConstraint(N, 17, 1), TilingConstraint(depth, 1)])
    def found(a: Memory[M, N, depth, GLOBAL_ADDRESS_SPACE, i32], y: Memory[N, M, GLOBAL_ADDRESS_SPACE, f32]):
        @iterate(depth, init_args=[Register[N, M, f32](0.0)])
        def most(before):
            return maximum(before, cast(read(a).any(dim=depth), f32))

        write(most, y)

    a = np.random.default_rng(0).integers(-1, 2, (2, 17, 2)).astype(np.int32)
    y = np.full((17, 2), np.nan, np.float32)
    compiled = wave_compile(WaveCompileOptions(subs={M: 2, N: 17, depth: 2}, target=chip), found)
    assert compiled.emulate(a, y).findings == ()
    np.testing.assert_array_equal(y, (a != 0).any(axis=2).T)


# -- what keeps waves and instructions apart ---------------------------------------------------------------------------


def finding(compiled, text, x):
    """The first finding in either order of waves, or None; what is written then is right."""
    code = compiled.build.program.code
    emulator = Emulator.from_assembly(text, compiled.target)
    for order in ("barrier", "random"):
        y = np.full_like(x, np.nan)
        given = launch_arguments(code.arguments, ["x", "y"], [x, y], {})
        try:
            grid, block = (compiled.kernel.workgroups, 1, 1), (code.workgroup_size, 1, 1)
            emulator.launch(compiled.name, grid, block, given, order=order, seed=1)
        except EmulationError as error:
            return error
    bound = 2.0**-18  # of numbers below 1 that f32 rounds some ten times
    assert np.abs(y - softmax_in_float64(x)).max() < bound
    return None


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("waves", [(1, 4), (1, 8), (2, 2)], ids=str)
def test_every_deletion_from_a_softmax_is_found(chip, waves):
    x = np.random.default_rng(5).standard_normal((4, 250)).astype(np.float32)
    compiled = wave_compile(WaveCompileOptions(subs={M: 4, N: 250}, target=chip), softmax_of(2, 256, waves))
    assert finding(compiled, compiled.asm, x) is None
    found = [(deleted, finding(compiled, text, x)) for deleted, text in needed(compiled.asm)]
    assert [deleted for deleted, error in found if error is None] == []
    assert sum(deleted.startswith("s_barrier") for deleted, _ in found) == 2
    assert all(error.loc.file.endswith("softmax_rows.py") for _, error in found)


def needed(asm):
    """Ignore the nops after packed additions: LLVM treats the halves that these select as a partial register write,
    which none of them is."""
    before = asm.splitlines()
    for deleted, text in deletions(asm):
        at = next(i for i, (old, new) in enumerate(zip(before, text.splitlines(), strict=False)) if old != new)
        last = next(line for line in reversed(before[:at]) if line.startswith("\t") and line[1] not in ".;")
        if not (deleted == "s_nop 0" and last.strip().startswith("v_pk_")):
            yield deleted, text
