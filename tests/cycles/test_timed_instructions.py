"""What single instructions occupy."""

import pytest
from emulated_code import kernel_text

from tilewave.cycles.facts import COMPUTE_UNITS
from tilewave.cycles.instructions import timed
from tilewave.emulator.assembly import read_assembly


def occupied(*lines, chip="gfx950"):
    body = "".join(f"\t{line}\n" for line in lines)
    code = read_assembly(kernel_text(body, chip=chip))
    return timed(code.instructions[: len(lines)], COMPUTE_UNITS[chip])


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], v[0:15]", 8),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3]", 8),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3] cbsz:4 blgp:4", 4),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3] cbsz:7", 8),
        ("v_mfma_f32_1x1x1_f99 v[0:3], v[8:11], v[16:19], v[0:3]", 8),
    ],
    ids=["32x32", "f8", "f4", "a format that does not exist", "unknown"],
)
def test_a_matrix_instruction_has_its_passes(text, passes):
    (found,) = occupied(text)
    assert (found.kind, found.slots) == ("matrix", passes)


@pytest.mark.parametrize(
    ("text", "kind", "cycles"),
    [
        ("ds_read_b64 v[0:1], v4", "shared", 64 * 8 / 256),
        ("ds_write_b128 v4, v[0:3]", "shared", 64 * 16 / 128),
        ("ds_read2_b32 v[0:1], v4 offset1:1", "shared", 64 * 8 / 256),
        ("ds_read_b64_tr_b16 v[0:1], v4", "shared", 64 * 8 / 256),
        ("ds_bpermute_b32 v0, v4, v5", "shared", 64 * 4 / 256),
        ("global_load_dwordx2 v[0:1], v[4:5], off", "global", 64 * 8 / 64),
        ("buffer_store_dword v0, v1, s[8:11], 0 offen", "global", 64 * 4 / 64),
    ],
)
def test_an_access_takes_its_bytes_over_the_rate(text, kind, cycles):
    (found,) = occupied(text)
    assert (found.kind, found.cycles) == (kind, cycles)


def test_who_computes_an_operand_is_known():
    found = occupied(
        "v_mfma_f32_16x16x16_f16 v[16:19], v[8:9], v[10:11], v[16:19]",
        "v_add_f32_e32 v3, v17, v4",
        "v_exp_f32_e32 v8, v3",
        "v_mfma_f32_16x16x16_f16 v[20:23], v[16:17], v[8:9], v[16:19]",
    )
    assert [(one.producers, one.chained) for one in found] == [((2,), (0,)), ((0,), ()), ((2,), ()), ((0, 2), (0,))]
    overwritten = occupied(
        "v_mfma_f32_16x16x16_f16 v[16:19], v[8:9], v[10:11], 0", "v_mov_b32_e32 v16, 0", "v_add_f32_e32 v3, v16, v4"
    )
    assert [one.producers for one in overwritten] == [(), (0,), ()]


def test_operands_that_make_no_sense_take_the_least():
    found = occupied("s_nop", "s_setprio v3", "s_nop -5", "ds_read_b32", "global_load_dword", "v_add_f32_e32")
    assert [one.slots for one in found] == [1] * 6
