"""Scalar instructions: values, condition bits, branches and loops."""

import numpy as np
import pytest
from emulated_code import compute

A, B = 0x8000_0005, 0x7FFF_FFFE


def scalar(body, results=1):
    """What a body leaves in s20, s21, …, with A in s10 and B in s11, and a condition as 0 or 1."""
    moves = "\n".join(f"\tv_mov_b32_e32 v{100 + at}, s{20 + at}" for at in range(results))
    return compute(f"\ts_mov_b32 s10, {A:#x}\n\ts_mov_b32 s11, {B:#x}\n{body}\n{moves}", results=results)[0].tolist()


@pytest.mark.parametrize(
    "name, result, condition",
    [
        ("s_add_u32", (A + B) % 2**32, 1),
        ("s_sub_u32", A - B, 0),
        ("s_add_i32", (A + B) % 2**32, 0),
        ("s_sub_i32", A - B, 1),
        ("s_and_b32", A & B, 1),
        ("s_andn2_b32", A & ~B, 1),
        ("s_min_u32", B, 0),
        ("s_min_i32", A, 1),
        ("s_max_i32", B, 0),
        ("s_lshl_b32", (A << (B & 31)) % 2**32, 1),
        ("s_lshr_b32", A >> (B & 31), 1),
        ("s_ashr_i32", 0xFFFFFFFE, 1),
        ("s_lshl2_add_u32", (4 * A + B) % 2**32, 1),
    ],
)
def test_results_and_conditions(name, result, condition):
    assert scalar(f"\t{name} s20, s10, s11\n\ts_cselect_b32 s21, 1, 0", 2) == [result, condition]


def test_products_have_no_condition():
    body = "\ts_mul_i32 s20, s10, s11\n\ts_mul_hi_u32 s21, s10, s11\n\ts_mul_hi_i32 s22, s10, s11"
    signed = (A - 2**32) * B
    assert scalar(body, 3) == [A * B % 2**32, A * B >> 32, (signed >> 32) % 2**32]


def test_fields_and_bits():
    body = """
	s_bfe_u32 s20, s10, 0x1f0001
	s_bfe_i32 s21, s10, 0x30000
	s_ff1_i32_b32 s22, s11
	s_flbit_i32_b32 s23, s11
	s_bcnt1_i32_b32 s24, s11
	s_brev_b32 s25, s10
	s_movk_i32 s26, 0xff80
	s_sext_i32_i8 s27, 0x80"""
    assert scalar(body, 8) == [
        A >> 1, 0xFFFFFFFD, 1, 1, 30, int(f"{A:032b}"[::-1], 2), 2**32 - 128, 2**32 - 128,
    ]  # fmt: skip


def test_64_bit_values():
    body = """
	s_mov_b64 s[12:13], -2
	s_lshr_b64 s[20:21], s[12:13], 4
	s_lshl_b64 s[22:23], s[12:13], 33
	s_ashr_i64 s[24:25], s[12:13], 60"""
    assert scalar(body, 6) == [0xFFFFFFFF, 0x0FFFFFFF, 0, 0xFFFFFFFC, 0xFFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize("name, taken", [("lt_u32", 0), ("lt_i32", 1), ("eq_u32", 0), ("lg_u32", 1), ("ge_i32", 0)])
def test_branches_follow_comparisons(name, taken):
    body = f"\ts_mov_b32 s20, 1\n\ts_cmp_{name} s10, s11\n\ts_cbranch_scc1 .L1\n\ts_mov_b32 s20, 0\n.L1:"
    assert scalar(body) == [taken]


def test_a_loop_runs_as_often_as_it_says():
    body = """
	s_mov_b32 s20, 0
	s_movk_i32 s12, 0x7
.L1:
	s_add_i32 s20, s20, 3
	s_sub_u32 s12, s12, 1
	s_cmpk_lg_i32 s12, 0x0
	s_cbranch_scc1 .L1"""
    assert scalar(body) == [21]


def test_lanes_go_different_ways_through_the_mask():
    body = """
	v_mov_b32_e32 v100, 1
	v_cmp_lt_u32_e32 vcc, 20, v0
	s_and_saveexec_b64 s[10:11], vcc
	s_cbranch_execz .L1
	v_mov_b32_e32 v100, 2
.L1:
	s_or_b64 exec, exec, s[10:11]"""
    assert (compute(body)[:, 0] == np.where(np.arange(64) > 20, 2, 1)).all()
