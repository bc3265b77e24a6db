"""Wait states: what LLVM puts between two instructions is enough, and one less is found.

Each case is what LLVM (llvmlite 0.50) emitted for a few lines of IR: an instruction, the `s_nop` after it, and the
instruction that it protects.
"""

import numpy as np
import pytest
from emulated_code import findings_of, kernel_text

START = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v0, 2, v0
	s_waitcnt lgkmcnt(0)
	s_mov_b32 s8, s4
	s_and_b32 s9, s5, 0xffff
	s_mov_b32 s10, 0x4000
	s_mov_b32 s11, 0x27000
	s_mov_b32 s12, 0
	s_mov_b64 vcc, 0
""" + "".join(f"\tv_mov_b32_e32 v{row}, 0\n" for row in range(1, 32)) + "\ts_nop 7\n"  # fmt: skip
BOTH = ("gfx942", "gfx950")
F16 = "v_mfma_f32_16x16x16_f16 v[2:5], v[2:3], v[4:5], 0"
WIDE = "v_mfma_f32_32x32x8_f16 v[2:17], v[18:19], v[20:21], 0"
F32 = "v_mfma_f32_16x16x4_f32 v[2:5], v2, v3, 0"
TINY = "v_mfma_f32_4x4x4_16b_f16 v[2:5], v[2:3], v[4:5], 0"
F64 = "v_mfma_f64_16x16x4_f64 v[2:9], v[10:11], v[12:13], 0"
STORE = "global_store_dwordx4 v0, v[2:5], s[6:7]"
CASES = [
    (F16, {"gfx942": 7, "gfx950": 8}, STORE),
    (F16, {"gfx942": 7, "gfx950": 8}, "v_pk_add_f32 v[4:5], v[4:5], v[4:5]"),
    (F16, {"gfx942": 7, "gfx950": 8}, "v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[12:13], 0"),
    (WIDE, {"gfx942": 11, "gfx950": 12}, "global_store_dwordx4 v0, v[14:17], s[6:7]"),
    (WIDE, {"gfx942": 9, "gfx950": 10}, "v_mfma_f32_16x16x16_f16 v[2:5], v[18:19], v[20:21], v[2:5]"),
    (F32, dict.fromkeys(BOTH, 10), STORE),
    ("v_mfma_f32_32x32x2_f32 v[2:17], v18, v18, 0", dict.fromkeys(BOTH, 18), "v_pk_add_f32 v[2:3], v[2:3], v[2:3]"),
    ("v_mfma_f32_4x4x1_16b_f32 v[2:5], v6, v6, 0", dict.fromkeys(BOTH, 4), "v_pk_add_f32 v[2:3], v[2:3], v[2:3]"),
    ("v_mfma_i32_16x16x32_i8 v[2:5], v[6:7], v[6:7], 0", {"gfx942": 7, "gfx950": 8}, "v_lshlrev_b32_e32 v3, 1, v3"),
    (
        "v_mfma_f32_32x32x16_fp8_fp8 v[2:17], v[18:19], v[18:19], 0",
        {"gfx942": 11, "gfx950": 12},
        "v_mov_b32_e32 v17, 0",
    ),
    (TINY, dict.fromkeys(BOTH, 5), STORE),
    (F64, dict.fromkeys(BOTH, 18), STORE),
    (F64, {"gfx942": 11, "gfx950": 19}, "v_add_f64 v[14:15], v[2:3], v[2:3]"),
    (F64, {"gfx942": 11, "gfx950": 19}, "v_mov_b32_e32 v9, 0"),
    (F64, {"gfx942": 11, "gfx950": 19}, "v_mfma_f64_16x16x4_f64 v[14:21], v[2:3], v[12:13], 0"),
    (F64, {"gfx942": 9, "gfx950": 17}, "v_mfma_f64_4x4x4_4b_f64 v[2:3], v[10:11], v[12:13], v[2:3]"),
    ("v_mfma_f64_4x4x4_4b_f64 v[2:3], v[10:11], v[12:13], 0", dict.fromkeys(BOTH, 9), STORE),
    (TINY, dict.fromkeys(BOTH, 2), "v_mfma_f32_4x4x4_16b_f16 v[2:5], v[6:7], v[8:9], v[2:5]"),
    (
        "v_mfma_f64_4x4x4_4b_f64 v[2:3], v[6:7], v[8:9], v[2:3]",
        dict.fromkeys(BOTH, 4),
        "v_mfma_f64_4x4x4_4b_f64 v[2:3], v[6:7], v[8:9], v[2:3]",
    ),
    ("v_mfma_f64_4x4x4_4b_f64 v[2:3], v[6:7], v[8:9], 0", dict.fromkeys(BOTH, 6), "v_add_f64 v[6:7], v[2:3], v[2:3]"),
    ("v_mfma_f32_16x16x128_f8f6f4 v[2:5], v[8:15], v[16:23], v[2:5]", {"gfx950": 12}, STORE),
    ("v_mfma_f32_16x16x128_f8f6f4 v[2:5], v[8:11], v[12:15], v[2:5] cbsz:4 blgp:4", {"gfx950": 8}, STORE),
    ("v_pk_add_f16 v2, v2, v4", dict.fromkeys(BOTH, 2), F16),
    ("v_cmp_lt_f32_e32 vcc, v1, v2", dict.fromkeys(BOTH, 2), "v_cndmask_b32_e32 v1, v3, v1, vcc"),
    ("v_cmp_gt_f32_e32 vcc, 1.0, v1", dict.fromkeys(BOTH, 4), "v_div_fmas_f32 v1, v1, v1, v1"),
    ("v_readfirstlane_b32 s12, v1", dict.fromkeys(BOTH, 2), "v_add3_u32 v1, v1, s12, 7"),
    ("v_readfirstlane_b32 s12, v1", dict.fromkeys(BOTH, 4), "v_readlane_b32 s13, v1, s12"),
    ("v_readfirstlane_b32 s12, v1", dict.fromkeys(BOTH, 5), "buffer_load_dword v1, v1, s[8:11], s12 offen"),
    ("v_mul_lo_u32 v1, v2, v1", dict.fromkeys(BOTH, 1), "v_readfirstlane_b32 s12, v1"),
    ("v_mul_lo_u32 v1, v1, 7", dict.fromkeys(BOTH, 2), "v_mov_b32_dpp v1, v1 row_shr:1 row_mask:0xf bank_mask:0xf"),
    ("v_mul_lo_u32 v1, v2, v1", {"gfx950": 2}, "v_permlane32_swap_b32_e32 v1, v2"),
    ("v_exp_f32_e32 v1, v1", dict.fromkeys(BOTH, 1), "v_add_f32_e32 v1, 1.0, v1"),
    ("v_cvt_pk_fp8_f32 v1, v4, v5 op_sel:[0,0,1]", dict.fromkeys(BOTH, 1), "v_add_u32_e32 v1, 3, v1"),
    (STORE, dict.fromkeys(BOTH, 2), "v_pk_add_f32 v[2:3], v[2:3], v[6:7]"),
    ("buffer_store_dwordx4 v[2:5], v0, s[8:11], 0 offen", dict.fromkeys(BOTH, 2), "v_or_b32_e32 v4, 16, v8"),
    ("s_add_i32 m0, s12, 0x100", dict.fromkeys(BOTH, 1), "global_load_lds_dword v0, s[4:5]"),
]
EVERY = [(before, chip, states, after) for before, wanted, after in CASES for chip, states in wanted.items()]


def found_with(before, states, after, chip):
    nops = "".join(f"\ts_nop {min(left, 16) - 1}\n" for left in range(states, 0, -16))
    text = kernel_text(f"{START}\t{before}\n{nops}\t{after}\n", chip=chip, shared=1024)
    return findings_of(text, np.zeros(4096, np.uint32), np.zeros(4096, np.uint32))


@pytest.mark.parametrize("before, chip, states, after", EVERY)
def test_as_many_as_llvm_inserts_are_needed(before, chip, states, after):
    assert not found_with(before, states, after, chip)
    (finding,) = found_with(before, states - 1, after, chip)
    assert (finding.kind, finding.instruction, finding.remedy) == ("missing nops", after, "s_nop 0 is missing")
    assert f"{states} wait states are needed, {states - 1} found" in finding.what


def test_other_instructions_count_as_wait_states():
    assert not found_with(F16, 0, "s_nop 2\n\ts_mov_b32 s12, 1\n\ts_nop 2\n\t" + STORE, "gfx942")


def test_the_whole_text_of_a_finding():
    (finding,) = found_with("v_exp_f32_e32 v1, v1", 0, "v_add_f32_e32 v1, 1.0, v1", "gfx942")
    assert str(finding) == (
        "missing nops: v1 comes from a transcendental instruction: 1 wait states are needed, 0 found\n"
        "  wave 0 of workgroup (0, 0, 0), line 47: v_add_f32_e32 v1, 1.0, v1\n"
        "  s_nop 0 is missing"
    )


def test_a_loop_carries_wait_states_around_its_edge():
    body = f"""
	s_mov_b32 s12, 0
.L1:
	v_add_u32_e32 v30, v2, v30
	s_add_i32 s12, s12, 1
	s_cmp_lt_u32 s12, 3
	{F16.replace("v[2:3], v[4:5]", "v[6:7], v[8:9]")}
	s_cbranch_scc1 .L1
	s_nop 7"""
    (finding,) = findings_of(kernel_text(START + body), np.zeros(64, np.uint32), np.zeros(64, np.uint32))
    assert finding.what == "v2 comes from a matrix instruction: 7 wait states are needed, 1 found"
