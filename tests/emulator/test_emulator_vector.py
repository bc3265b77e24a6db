"""Vector instructions against numpy, on random bits and on the values where formats end."""

import ml_dtypes
import numpy as np
import pytest
from emulated_code import compute

rng = np.random.default_rng(5)
U32, I32, F32, F64, F16, U64 = np.uint32, np.int32, np.float32, np.float64, np.float16, np.uint64
BITS = [rng.integers(0, 2**32, 64, dtype=np.uint64).astype(U32) for _ in range(3)]
EDGES = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, -3.4e38, 65504, 65520, 2**31, 0.5, 1.5, 2.5])
FLOATS = [np.concatenate([EDGES, rng.standard_normal(48) * 100]).astype(F32) for _ in range(1)]
FLOATS += [np.concatenate([rng.permutation(EDGES), rng.standard_normal(48)]).astype(F32) for _ in range(2)]
SMALL = [rng.standard_normal(64).astype(F32) for _ in range(3)]


def of(result, dtype):
    return np.ascontiguousarray(result).view(dtype).reshape(64, -1)[:, 0]


INTEGERS = {
    "v_add_u32_e32": lambda a, b: a + b,
    "v_sub_u32_e32": lambda a, b: a - b,
    "v_subrev_u32_e32": lambda a, b: b - a,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: ((a.astype(U64) * b) >> U64(32)).astype(U32),
    "v_mul_hi_i32": lambda a, b: ((a.view(I32).astype(np.int64) * b.view(I32)) >> 32).astype(U32),
    "v_mul_u32_u24_e32": lambda a, b: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF)),
    "v_lshlrev_b32_e32": lambda a, b: b << (a & U32(31)),
    "v_lshrrev_b32_e32": lambda a, b: b >> (a & U32(31)),
    "v_ashrrev_i32_e32": lambda a, b: (b.view(I32) >> (a & U32(31)).view(I32)).view(U32),
    "v_and_b32_e32": lambda a, b: a & b,
    "v_or_b32_e32": lambda a, b: a | b,
    "v_xor_b32_e32": lambda a, b: a ^ b,
    "v_min_i32_e32": lambda a, b: np.minimum(a.view(I32), b.view(I32)).view(U32),
    "v_max_u32_e32": np.maximum,
    "v_bcnt_u32_b32": lambda a, b: np.array([bin(x).count("1") for x in a.tolist()], U32) + b,
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_two_operands(name):
    a, b, _ = BITS
    assert (of(compute(f"\t{name} v100, v10, v11", a, b), U32) == INTEGERS[name](a, b)).all()


THREE = {
    "v_lshl_add_u32": lambda a, b, c: (a << (b & U32(31))) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b) << (c & U32(31)),
    "v_lshl_or_b32": lambda a, b, c: (a << (b & U32(31))) | c,
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_bfe_u32": lambda a, b, c: (a >> (b & U32(31))) & ((U32(1) << (c & U32(31))) - U32(1)),
    "v_alignbit_b32": lambda a, b, c: (((a.astype(U64) << U64(32)) | b) >> (c & U32(31)).astype(U64)).astype(U32),
    "v_med3_i32": lambda a, b, c: np.sort(np.stack([a, b, c]).view(I32), axis=0)[1].view(U32),
    "v_mad_u32_u24": lambda a, b, c: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF)) + c,
}


@pytest.mark.parametrize("name", THREE)
def test_integers_of_three_operands(name):
    assert (of(compute(f"\t{name} v100, v10, v11, v12", *BITS), U32) == THREE[name](*BITS)).all()


def test_bits_are_counted_reversed_and_permuted():
    a, b, _ = BITS
    zero_first = a.copy()
    zero_first[:3] = 0, 1, 2**32 - 1
    found = compute(
        "\tv_bfrev_b32_e32 v100, v10\n\tv_ffbh_u32_e32 v101, v10\n\tv_ffbl_b32_e32 v102, v10", zero_first, results=3
    )
    texts = [f"{x:032b}" for x in zero_first.tolist()]
    assert found[:, 0].tolist() == [int(t[::-1], 2) for t in texts]
    assert found[:, 1].tolist() == [t.find("1") % 2**32 for t in texts]
    assert found[:, 2].tolist() == [t[::-1].find("1") % 2**32 for t in texts]
    taken = of(compute("\ts_mov_b32 s10, 0x0c050106\n\tv_perm_b32 v100, v10, v11, s10", a, b), U32)
    both = (a.astype(U64) << U64(32) | b).view(np.uint8).reshape(64, 8)
    assert (taken == both[:, 6].astype(U32) | both[:, 1].astype(U32) << 8 | both[:, 5].astype(U32) << 16).all()


@pytest.mark.parametrize("constant", [0.5, 1.0, -2.0, 4.0])
def test_a_constant_of_64_bits_is_an_f64_also_where_it_is_moved(constant):
    found = compute(f"\tv_mov_b64_e32 v[100:101], {constant}", results=2).view(F64)
    assert (found[:, 0] == constant).all()


def test_64_bit_sums_carry():
    a, b, c = BITS
    body = (
        "\tv_mad_u64_u32 v[100:101], s[10:11], v10, v11, v[12:13]\n\tv_lshl_add_u64 v[102:103], v[10:11], 3, v[12:13]"
    )
    found = compute(body, a, b, c, a, results=4).view(U64)
    wide = c.astype(U64) | a.astype(U64) << U64(32)
    assert (found[:, 0] == a.astype(U64) * b + wide).all()
    assert (found[:, 1] == ((a.astype(U64) | b.astype(U64) << U64(32)) << U64(3)) + wide).all()
    body = "\tv_add_co_u32_e32 v100, vcc, v10, v11\n\ts_nop 1\n\tv_addc_co_u32_e32 v101, vcc, v12, v13, vcc"
    found = compute(body, a, b, c, a, results=2).view(U64)
    assert (
        found[:, 0] == (a.astype(U64) | c.astype(U64) << U64(32)) + (b.astype(U64) | a.astype(U64) << U64(32))
    ).all()


FLOAT = {
    "v_add_f32_e32": lambda a, b: a + b,
    "v_sub_f32_e32": lambda a, b: a - b,
    "v_mul_f32_e32": lambda a, b: a * b,
    "v_min_f32_e32": np.fmin,
    "v_max_f32_e32": np.fmax,
}


@pytest.mark.parametrize("name", FLOAT)
def test_floats_round_once_and_keep_their_edges(name):
    a, b, _ = FLOATS
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(of(compute(f"\t{name} v100, v10, v11", a, b), F32), FLOAT[name](a, b))


def test_a_fused_multiply_add_rounds_once():
    a, b, c = SMALL
    c = (-(a * b)).astype(F32)  # what is left is the error of the product
    found = of(compute("\tv_fma_f32 v100, v10, v11, v12", a, b, c), F32)
    exact = a.astype(F64) * b.astype(F64) + c.astype(F64)
    np.testing.assert_array_equal(found, exact.astype(F32))
    assert (found != 0).any()


def test_a_fused_multiply_add_is_not_rounded_to_float64_before():
    """0.5 · (1 + 2^-24 + 2^-70), of which float64 keeps a tie."""
    near, rest = F32(0.5 * (1 + 2.0**-23)), F32(-(2.0**-24 - 2.0**-47))
    found = compute("\tv_fma_f32 v100, v10, v11, v12", *(np.full(64, x, F32) for x in (rest, near, near)))
    assert (of(found, F32) == near).all()


def test_zeros_have_an_order():
    a, b = np.resize(np.array([0.0, -0.0, 0.0, -0.0], F32), 64), np.resize(np.array([0.0, 0.0, -0.0, -0.0], F32), 64)
    for name, negative in (("min", [False, True, True, True]), ("max", [False, False, False, True])):
        found = of(compute(f"\tv_{name}_f32_e32 v100, v10, v11", a, b), F32)
        assert np.signbit(found[:4]).tolist() == negative


def test_signs_and_clamping_are_applied_as_written():
    a, b, _ = SMALL
    found = compute("\tv_add_f32_e64 v100, -|v10|, v11\n\tv_mul_f32_e64 v101, v10, v11 clamp", a, b, results=2).view(
        F32
    )
    np.testing.assert_array_equal(found[:, 0], b - np.abs(a))
    np.testing.assert_array_equal(found[:, 1], np.clip(a * b, 0, 1))


@pytest.mark.parametrize(
    "name, exact", [("exp", np.exp2), ("log", np.log2), ("rcp", lambda x: 1 / x), ("sqrt", np.sqrt)]
)
def test_transcendental_instructions_are_rounded_from_float64(name, exact):
    a = np.abs(SMALL[0]) + F32(0.1)
    np.testing.assert_array_equal(
        of(compute(f"\tv_{name}_f32_e32 v100, v10", a), F32), exact(a.astype(F64)).astype(F32)
    )


def test_a_division_by_the_usual_sequence_is_right():
    a, b, _ = SMALL
    a = np.concatenate([a[:60], np.array([1e-38, 3e38, 0, np.inf], F32)])
    body = """
	v_div_scale_f32 v3, s[10:11], v11, v11, v10
	v_rcp_f32_e32 v4, v3
	v_div_scale_f32 v5, vcc, v10, v11, v10
	v_fma_f32 v6, -v3, v4, 1.0
	v_fmac_f32_e32 v4, v6, v4
	v_mul_f32_e32 v6, v5, v4
	v_fma_f32 v7, -v3, v6, v5
	v_fmac_f32_e32 v6, v7, v4
	v_fma_f32 v3, -v3, v6, v5
	v_div_fmas_f32 v3, v3, v4, v6
	v_div_fixup_f32 v100, v3, v11, v10"""
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(of(compute(body, a, b), F32), a / b)


def test_halves_are_converted_and_computed_on():
    a, b, _ = FLOATS
    body = """
	v_cvt_f16_f32_e32 v100, v10
	v_cvt_pkrtz_f16_f32 v101, v10, v11
	v_cvt_f32_f16_e32 v102, v100
	v_pk_mul_f16 v103, v12, v13
	v_pk_fma_f16 v104, v12, v13, v12 op_sel:[1,0,0] op_sel_hi:[0,1,1]"""
    h, g = (rng.standard_normal((64, 2)).astype(F16) for _ in range(2))
    with np.errstate(all="ignore"):
        found = compute(body, a, b, h.view(U32), g.view(U32), results=5)
        np.testing.assert_array_equal(found[:, 0].astype(np.uint16).view(F16), a.astype(F16))
        np.testing.assert_array_equal(found[:, 2].copy().view(F32), a.astype(F16).astype(F32))
    finite = np.isfinite(a) & (np.abs(a) < 65504)
    exact, near = a[finite].astype(F64), found[finite, 1].copy().view(F16).reshape(-1, 2)[:, 0].astype(F64)
    spacing = np.spacing(np.abs(a[finite]).astype(F16)).astype(F64)
    assert (np.abs(near) <= np.abs(exact)).all() and (np.abs(near - exact) <= spacing).all()
    np.testing.assert_array_equal(found[:, 3].copy().view(F16).reshape(64, 2), h * g)
    turned = (h[:, ::-1].astype(F64) * g.astype(F64) + h.astype(F64)).astype(F16)
    np.testing.assert_array_equal(found[:, 4].copy().view(F16).reshape(64, 2), turned)


def test_bfloat16_rounds_to_nearest_even():
    a, b, _ = FLOATS
    found = compute("\tv_cvt_pk_bf16_f32 v100, v10, v11", a, b, chip="gfx950").view(ml_dtypes.bfloat16)
    for column, values in enumerate((a, b)):
        wanted = values.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(found[:, column].astype(F32), wanted.astype(F32))


FLOAT8 = {
    ("gfx942", "fp8"): ml_dtypes.float8_e4m3fnuz,
    ("gfx942", "bf8"): ml_dtypes.float8_e5m2fnuz,
    ("gfx950", "fp8"): ml_dtypes.float8_e4m3fn,
    ("gfx950", "bf8"): ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize("chip, name", FLOAT8)
def test_8_bit_floats_are_the_chips_own(chip, name):
    dtype = FLOAT8[chip, name]
    a, b, _ = FLOATS
    body = f"""
	v_mov_b32_e32 v100, 0
	v_cvt_pk_{name}_f32 v100, v10, v11
	v_cvt_pk_{name}_f32 v100, v11, v10 op_sel:[0,0,1]
	s_nop 0
	v_cvt_pk_f32_{name}_e32 v[102:103], v12
	v_cvt_f32_{name}_sdwa v101, v12 src0_sel:BYTE_3"""
    every = np.arange(256, dtype=np.uint8).reshape(64, 4)
    found = compute(body, a, b, every.view(U32), results=4, chip=chip)
    narrowed = found[:, 0].copy().view(dtype).reshape(64, 4).astype(F32)
    with np.errstate(all="ignore"):
        wanted = np.stack([a, b, b, a], axis=1).astype(dtype).astype(F32)
    np.testing.assert_array_equal(narrowed, wanted)
    values = every.view(dtype).astype(F32)
    np.testing.assert_array_equal(found[:, 1].copy().view(F32), values[:, 3])
    np.testing.assert_array_equal(found[:, 2:4].copy().view(F32), values[:, :2])


def test_8_bit_floats_saturate_where_the_mode_says_so():
    a = np.full(64, 1e6, F32)
    body = "\tv_mov_b32_e32 v100, 0\n\tv_cvt_pk_fp8_f32 v100, v10, v10"
    plain = compute(body, a).view(ml_dtypes.float8_e4m3fnuz)[0, 0]
    saturated = compute(body, a, mode=".amdhsa_fp16_overflow 1").view(ml_dtypes.float8_e4m3fnuz)[0, 0]
    assert np.isnan(plain.astype(F32)) and saturated.astype(F32) == 240


@pytest.mark.parametrize("condition, test", [("lt", np.less), ("eq", np.equal), ("nge", lambda a, b: ~(a >= b))])
def test_comparisons_select(condition, test):
    a, b, _ = FLOATS
    body = f"\tv_cmp_{condition}_f32_e32 vcc, v10, v11\n\ts_nop 1\n\tv_cndmask_b32_e32 v100, v10, v11, vcc"
    np.testing.assert_array_equal(of(compute(body, a, b), F32), np.where(test(a, b), b, a))


def test_classes_of_floats():
    a = FLOATS[0]
    with np.errstate(all="ignore"):
        body = "\tv_mov_b32_e32 v3, 0x207\n\tv_cmp_class_f32_e32 vcc, v10, v3\n\ts_nop 1"
        infinite_or_nan = compute(f"{body}\n\tv_cndmask_b32_e64 v100, 0, 1, vcc", a)
    assert (infinite_or_nan[:, 0] == ~np.isfinite(a)).all()


def test_only_lanes_that_are_on_are_written():
    a, b, _ = BITS
    body = "\tv_mov_b32_e32 v100, 7\n\ts_mov_b64 exec, 0xff00\n\tv_add_u32_e32 v100, v10, v11\n\ts_mov_b64 exec, -1"
    found = compute(body, a, b)[:, 0]
    on = (np.arange(64) >= 8) & (np.arange(64) < 16)
    assert (found == np.where(on, a + b, 7)).all()


def test_lanes_read_each_other():
    a = BITS[0]
    lane = np.arange(64)
    body = """
	v_mov_b32_e32 v100, 7
	s_nop 1
	v_mov_b32_dpp v100, v10 row_shr:1 row_mask:0x7 bank_mask:0xf
	v_mov_b32_dpp v101, v10 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf
	v_readlane_b32 s10, v10, 17
	v_readfirstlane_b32 s11, v10
	s_nop 1
	v_mov_b32_e32 v102, s10
	v_mov_b32_e32 v103, s11
	v_mbcnt_lo_u32_b32 v104, -1, 0
	v_mbcnt_hi_u32_b32 v104, -1, v104"""
    found = compute(body, a, results=5)
    assert (found[:, 0] == np.where((lane % 16 == 0) | (lane >= 48), 7, a[lane - 1])).all()
    assert (found[:, 1] == a[lane ^ 3]).all()
    assert (found[:, 2] == a[17]).all() and (found[:, 3] == a[0]).all()
    assert (found[:, 4] == lane).all()


def test_gfx950_swaps_halves_of_waves():
    a, b, _ = BITS
    body = "\tv_mov_b32_e32 v100, v10\n\tv_mov_b32_e32 v101, v11\n\ts_nop 1\n\tv_permlane32_swap_b32_e32 v100, v101"
    found = compute(body, a, b, results=2, chip="gfx950")
    assert (found[:, 0] == np.concatenate([a[:32], b[:32]])).all()
    assert (found[:, 1] == np.concatenate([a[32:], b[32:]])).all()


def test_dot_products_and_packed_floats():
    a, b, c = BITS
    x, y = (rng.standard_normal((64, 2)).astype(F32) for _ in range(2))
    body = """
	v_dot4_i32_i8 v100, v10, v11, v12
	v_pk_fma_f32 v[102:103], v[14:15], v[16:17], v[14:15]
	v_mov_b32_e32 v101, 0"""
    found = compute(body, a, b, c, a, x.view(U32), y.view(U32), results=4)
    products = a.view(np.int8).reshape(64, 4).astype(int) * b.view(np.int8).reshape(64, 4)
    assert (found[:, 0] == (products.sum(1) + c.view(I32)).astype(I32).view(U32)).all()
    exact = (x.astype(F64) * y.astype(F64) + x).astype(F32)
    np.testing.assert_array_equal(found[:, 2:].copy().view(F32), exact)
