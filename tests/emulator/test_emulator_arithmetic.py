"""Fused multiply-adds, divisions and functions against exact rational arithmetic, on hard and on random numbers."""

import re
from fractions import Fraction

import numpy as np
import pytest
from emulated_code import compute, kernel_text

from tilewave.emulator import Emulator
from tilewave.emulator.division import scaled_operand
from tilewave.emulator.findings import UnsupportedCode

F16, F32, F64, U32 = np.float16, np.float32, np.float64, np.uint32
FORMATS = {F16: (11, -24, 16), F32: (24, -149, 128), F64: (53, -1074, 1024)}
"""Digits, the exponent of the smallest number, and of what is too large."""
NAMES = {F16: "f16", F32: "f32", F64: "f64"}
NAN = {F32: (0x7FC00000, 0x7F800001), F64: (0x7FF8 << 48, (0x7FF0 << 48) + 1), F16: (0x7E00, 0x7C01)}
"""One quiet, one signaling."""


def rounded(exact, dtype):
    """A rational number that is not zero, to the nearest of a format, ties to even."""
    digits, least, highest = FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** max(exponent - digits + 1, least)
    nearest = round(size / step) * step  # Python rounds ties to even
    value = float(nearest) if nearest < Fraction(2) ** highest else np.inf
    return dtype(value if exact > 0 else -value)


def random_numbers(dtype, count, seed):
    """Every exponent, as often as any other."""
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    values = np.random.default_rng(seed).integers(0, np.iinfo(word).max, count, word, endpoint=True).view(dtype)
    return np.where(np.isfinite(values), values, dtype(1.5))


def edges(dtype):
    smallest, normal, largest = (getattr(np.finfo(dtype), n) for n in ("smallest_subnormal", "smallest_normal", "max"))
    just_below = [np.nextafter(x, dtype(0)) for x in (normal, dtype(2))]
    just_above = [np.nextafter(x, dtype(4)) for x in (normal, dtype(1))]
    roots = [np.sqrt(normal), np.sqrt(largest)]
    rest = [smallest, 3 * smallest, normal, 1, 3, largest, largest / 2, largest / 4]
    return np.array([*rest, *just_below, *just_above, *roots], dtype)


def words(x):
    """Lanes as `compute` takes them: one or two words each."""
    return x.view(np.uint16).astype(U32) if x.dtype == F16 else x.view(U32)


def results_of(body, dtype, *inputs):
    """A body of 64 lanes over as many numbers as there are; inputs come in v10, v12, …, the result is in v100."""
    count = -(-len(inputs[0]) // 64) * 64
    padded = [np.resize(x, count) for x in inputs]
    found = []
    for at in range(0, count, 64):
        lanes = [words(x[at : at + 64]).reshape(64, -1) for x in padded]
        given = [np.concatenate([x, np.zeros((64, 2 - x.shape[1]), U32)], axis=1) for x in lanes]
        found.append(compute(body, *given, results=2 if dtype is F64 else 1))
    bits = np.concatenate(found)
    values = bits.view(F64)[:, 0] if dtype is F64 else bits[:, 0].copy().view(dtype)[:: 4 // np.dtype(dtype).itemsize]
    return values[: len(inputs[0])]


def differing(found, wanted):
    """Where bits differ, NaNs aside."""
    return np.flatnonzero(~((found == wanted) & (np.signbit(found) == np.signbit(wanted))))


# -- fused multiply-adds -----------------------------------------------------------------------------------------------


def products_and_sums(dtype):
    """Random triples; products that a third number nearly cancels; results that are denormal; ties."""
    digits, least, highest = FORMATS[dtype]
    count, rng = 256, np.random.default_rng(1)
    one = np.ldexp(rng.uniform(1, 2, count), rng.integers(least // 2, highest // 2 - 1, count)).astype(dtype)
    other = np.ldexp(rng.uniform(-2, 2, count), rng.integers(least // 2, highest // 2 - 1, count)).astype(dtype)
    with np.errstate(all="ignore"):
        product = one * other
    near = np.ldexp(rng.uniform(1, 2, count), rng.integers(least // 2 - 6, least // 2 + 6, count)).astype(dtype)
    half = np.ldexp(dtype(1), -digits)  # of a unit of 1: nearly a tie, and a tie where more digits were rounded before
    above, below = 1 + 2 * half, 1 - 2 * half
    halves = np.resize(np.array([half * below, half * above, -half * below, -half * above], dtype), count)
    parts = [
        (random_numbers(dtype, count, 2), random_numbers(dtype, count, 3), random_numbers(dtype, count, 4)),
        (one, other, -product),
        (one, other, np.spacing(product) / 2),
        (near, near[::-1], -near * dtype(0)),
        (np.full(count, above), halves, np.resize(np.repeat(np.array([above, 1, 1 + 4 * half], dtype), 4), count)),
    ]
    return [np.concatenate(values).astype(dtype) for values in zip(*parts, strict=True)]


@pytest.mark.parametrize("dtype", [F64, F32, F16])
def test_a_fused_multiply_add_is_the_nearest_number(dtype):
    a, b, c = products_and_sums(dtype)
    found = results_of(_three("fma", dtype), dtype, a, b, c)
    for x, y, z, result in zip(a, b, c, found, strict=True):
        if np.isfinite([x, y, z]).all():
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            wanted = rounded(exact, dtype) if exact else x * y + z
            assert result == wanted and np.signbit(result) == np.signbit(wanted), (x, y, z)


def _three(name, dtype):
    wide = dtype is F64
    target, *sources = (f"v[{row}:{row + 1}]" if wide else f"v{row}" for row in (100, 10, 12, 14))
    return f"\tv_{name}_{NAMES[dtype]} {target}, {', '.join(sources)}"


@pytest.mark.parametrize("dtype", [F64, F32])
def test_no_product_of_numbers_is_as_large_as_what_has_no_end(dtype):
    largest, infinite = np.finfo(dtype).max, dtype(np.inf)
    a = np.array([largest, largest, 0, infinite, infinite], dtype)
    b = np.array([largest, largest, infinite, 1, 1], dtype)
    c = np.array([-infinite, -largest, 1, 1, -infinite], dtype)
    found = results_of(_three("fma", dtype), dtype, a, b, c)
    np.testing.assert_array_equal(found, np.array([-np.inf, np.inf, np.nan, np.inf, np.nan], dtype))


# -- divisions ---------------------------------------------------------------------------------------------------------

DIVISION = {
    F32: """
	v_div_scale_f32 v3, s[10:11], v12, v12, v10
	v_rcp_f32_e32 v4, v3
	v_div_scale_f32 v5, vcc, v10, v12, v10
	v_fma_f32 v6, -v3, v4, 1.0
	v_fmac_f32_e32 v4, v6, v4
	v_mul_f32_e32 v6, v5, v4
	v_fma_f32 v7, -v3, v6, v5
	v_fmac_f32_e32 v6, v7, v4
	v_fma_f32 v3, -v3, v6, v5
	v_div_fmas_f32 v3, v3, v4, v6
	v_div_fixup_f32 v100, v3, v12, v10""",
    F64: """
	v_div_scale_f64 v[20:21], s[10:11], v[12:13], v[12:13], v[10:11]
	v_rcp_f64_e32 v[22:23], v[20:21]
	v_div_scale_f64 v[24:25], vcc, v[10:11], v[12:13], v[10:11]
	v_fma_f64 v[26:27], -v[20:21], v[22:23], 1.0
	v_fmac_f64_e32 v[22:23], v[22:23], v[26:27]
	v_fma_f64 v[26:27], -v[20:21], v[22:23], 1.0
	v_fmac_f64_e32 v[22:23], v[22:23], v[26:27]
	v_mul_f64 v[26:27], v[24:25], v[22:23]
	v_fma_f64 v[20:21], -v[20:21], v[26:27], v[24:25]
	s_nop 1
	v_div_fmas_f64 v[20:21], v[20:21], v[22:23], v[26:27]
	v_div_fixup_f64 v[100:101], v[20:21], v[12:13], v[10:11]""",
}
"""As LLVM divides."""


def dividends_and_divisors(dtype):
    """All pairs of edges, random numbers, and quotients around the smallest normal number and half the smallest."""
    digits, least, highest = FORMATS[dtype]
    rng, count = np.random.default_rng(7), 512
    first, second = (x.ravel() for x in np.meshgrid(edges(dtype), edges(dtype)))
    divisor = random_numbers(dtype, count, 8)
    exponent = np.resize([least - 1, least, least + 3, least + digits - 1, highest - 1], count)
    with np.errstate(all="ignore"):
        near = (divisor * np.ldexp(rng.choice([1, 1.5, 1.25, 1.75, 1.0625], count), exponent)).astype(dtype)
    a = np.concatenate([first, -first, random_numbers(dtype, count, 9), near])
    b = np.concatenate([second, second, random_numbers(dtype, count, 10), divisor])
    usable = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    return a[usable], b[usable]


@pytest.mark.parametrize("dtype", DIVISION)
def test_a_quotient_is_the_nearest_number(dtype):
    a, b = dividends_and_divisors(dtype)
    found = results_of(DIVISION[dtype], dtype, a, b)
    wanted = np.array(
        [rounded(Fraction(float(x)) / Fraction(float(y)), dtype) for x, y in zip(a, b, strict=True)], dtype
    )
    wrong = differing(found, wanted)
    assert len(wrong) == 0, [(a[i], b[i], found[i], wanted[i]) for i in wrong[:5]]
    smallest = np.finfo(dtype).smallest_normal
    assert (np.abs(wanted) < smallest).sum() > 100 and np.isinf(wanted).any() and (wanted == 0).any()


@pytest.mark.parametrize("dtype", DIVISION)
def test_quotients_of_what_is_no_usual_number(dtype):
    special = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan], dtype)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        wanted = a / b
    found = results_of(DIVISION[dtype], dtype, a, b)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[numbers].all()


@pytest.mark.parametrize(
    ("dividend", "divisor", "dividend_power", "divisor_power", "scales_back"),
    [
        (1.5, 3.0, 0, 0, False),
        (2.0**50, 2.0**-46, 0, 64, True),  # a large quotient
        (2.0**-60, 2.0**-140, 64, 64, False),  # a denormal divisor
        (2.0**-10, 1.5 * 2.0**126, 0, -64, True),  # a denormal quotient and a denormal inverse
        (2.0**10, 1.5 * 2.0**126, -64, -64, False),  # a denormal inverse
        (2.0**-100, 2.0**40, 64, 0, True),  # a denormal quotient
        (2.0**-100, 1.5 * 2.0**26, 64, 0, True),  # the largest denormal quotients
        (1.5 * 2.0**-100, 2.0**26, 0, 0, False),
        (2.0**-104, 2.0**10, 64, 64, False),  # a tiny dividend
        (2.0**-103, 2.0**10, 0, 0, False),
        (2.0**-126, 1.0, 64, 64, False),  # the smallest quotient that is not denormal
        (2.0**-127, 0.5, 64, 64, False),
    ],
)
def test_operands_of_a_division_are_scaled_together_or_alone(
    dividend, divisor, dividend_power, divisor_power, scales_back
):
    a, b = np.array([dividend], F32), np.array([divisor], F32)
    for value, power in ((a, dividend_power), (b, divisor_power)):
        result, changes = scaled_operand(value, b, a)
        assert result == np.ldexp(value, power) and changes == scales_back


@pytest.mark.parametrize("dtype", DIVISION)
def test_the_last_step_of_a_division_rounds_after_it_has_scaled(dtype):
    """Rounded before, 2.5 and a bit more of the smallest number would be a tie, and become 2 of them."""
    digits, least, _ = FORMATS[dtype]
    scaling = 64 if dtype is F32 else 128
    quotient = np.ldexp(np.full(64, 2.5, dtype), least + scaling)
    bit = np.ldexp(np.full(64, 1, dtype), least + scaling - digits - 9)
    body = "\ts_mov_b64 vcc, -1\n\ts_nop 4\n" + _three("div_fmas", dtype)
    found = results_of(body, dtype, bit, np.ones(64, dtype), quotient)
    assert (found == np.ldexp(dtype(3), least)).all()
    up = results_of(body, dtype, np.zeros(64, dtype), np.ones(64, dtype), np.full(64, 2.0, dtype))
    assert (up == np.ldexp(dtype(2), scaling)).all()
    plain = body.replace("vcc, -1", "vcc, 0")
    assert (results_of(plain, dtype, bit, np.ones(64, dtype), quotient) == quotient).all()


@pytest.mark.parametrize("dtype", DIVISION)
def test_a_quotient_below_half_the_smallest_number_is_zero_whatever_the_steps_made_of_it(dtype):
    least = FORMATS[dtype][1]
    divisor = np.array([4, -4, 4, -4], dtype)
    dividend = np.ldexp(dtype(1), np.array([least, least, least + 1, least + 1]))
    found = results_of(_three("div_fixup", dtype), dtype, np.full(4, 7, dtype), divisor, dividend)
    assert len(differing(found, np.array([0.0, -0.0, 7, -7], dtype))) == 0


def test_a_quotient_of_halves_gets_its_sign_and_its_special_cases():
    special = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan, 6e-8, 65504], F16)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        wanted = a / b
    found = results_of(_three("div_fixup", F16), F16, np.where(np.isnan(wanted), F16(7), np.abs(wanted)), b, a)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[numbers].all()


# -- functions ---------------------------------------------------------------------------------------------------------

DENORMAL = 1e-40
NO_NUMBER = np.nan
OF_F32 = {
    "exp": [(-np.inf, 0.0), (-0.0, 1.0), (np.inf, np.inf), (-127.0, 0.0), (-126.0, 2.0**-126), (DENORMAL, 1.0)],
    "log": [(-np.inf, NO_NUMBER), (-1.0, NO_NUMBER), (-0.0, -np.inf), (0.0, -np.inf), (1.0, 0.0), (DENORMAL, -np.inf)],
    "rcp": [(-np.inf, -0.0), (-2.0, -0.5), (-0.0, -np.inf), (0.0, np.inf), (-DENORMAL, -np.inf), (-(2.0**127), -0.0)],
    "rsq": [(-np.inf, NO_NUMBER), (-0.0, -np.inf), (4.0, 0.5), (np.inf, 0.0), (DENORMAL, np.inf)],
    "sqrt": [(-np.inf, NO_NUMBER), (-0.0, -0.0), (0.0, 0.0), (4.0, 2.0), (DENORMAL, 0.0), (-DENORMAL, -0.0)],
    "sin": [(-np.inf, NO_NUMBER), (-3.4028235e38, 0.0), (-0.0, -0.0), (0.25, 1.0), (0.5, 0.0), (-0.25, -1.0)],
    "cos": [(np.inf, NO_NUMBER), (-3.4028235e38, 1.0), (-0.0, 1.0), (0.25, 0.0), (0.5, -1.0), (DENORMAL, 1.0)],
}
"""AMD's own examples, and denormals, which all but sine and cosine flush."""


@pytest.mark.parametrize("name", OF_F32)
def test_functions_of_f32_at_their_ends(name):
    x, wanted = (np.array(values, F32) for values in zip(*OF_F32[name], strict=True))
    found = results_of(f"\tv_{name}_f32_e32 v100, v10", F32, x)
    np.testing.assert_array_equal(found, wanted)
    if name != "sin":
        assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(wanted)].all()


def test_functions_of_other_formats_keep_denormals():
    half = np.array([6e-8, 6e-5], F16)
    found = results_of("\tv_sqrt_f16_e32 v100, v10", F16, half)
    np.testing.assert_array_equal(found, np.sqrt(half.astype(F64)).astype(F16))
    double = np.array([5e-324, 1e-310], F64)
    found = results_of("\tv_rsq_f64_e32 v[100:101], v[10:11]", F64, double)
    np.testing.assert_array_equal(found, 1 / np.sqrt(double))


# -- what the mode decides ---------------------------------------------------------------------------------------------


def pattern(bits, dtype):
    return np.array([bits], f"u{np.dtype(dtype).itemsize}").view(dtype)[0]


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", ["min", "max"])
def test_a_quiet_nan_is_passed_over_and_a_signaling_one_is_not(name, dtype):
    quiet, signaling = (pattern(bits, dtype) for bits in NAN[dtype])
    a, b = np.array([quiet, 1, signaling, 1], dtype), np.array([1, quiet, 1, signaling], dtype)
    wide = dtype is F64
    target, first, second = (f"v[{row}:{row + 1}]" if wide else f"v{row}" for row in (100, 10, 12))
    body = f"\tv_{name}_{NAMES[dtype]}{'' if wide else '_e32'} {target}, {first}, {second}"
    assert np.isnan(results_of(body, dtype, a, b)).tolist() == [False, False, True, True]


def test_pairs_and_mixed_formats_are_clamped_too():
    a = np.resize(np.array([np.nan, -3, 0.25, 7], F32), (64, 1))
    wanted = np.resize(np.array([0, 0, 0.25, 1], F32), 64)
    body = "\tv_mov_b32_e32 v11, v10\n\tv_pk_mul_f32 v[100:101], v[10:11], 1.0 op_sel_hi:[1,0] clamp"
    assert (compute(body, a, results=2).view(F32) == wanted[:, None]).all()
    assert (compute("\tv_fma_mix_f32 v100, v10, 1.0, 0 clamp", a).view(F32)[:, 0] == wanted).all()


@pytest.mark.parametrize("line", ["v_add_i32 v100, v10, v10 clamp", "v_pk_add_u16 v100, v10, v10 clamp"])
def test_a_clamp_without_a_meaning_is_refused(line):
    with pytest.raises(UnsupportedCode, match="this instruction is known without clamp"):
        compute(f"\t{line}", np.zeros(64, U32))


@pytest.mark.parametrize("name", ["min", "max"])
def test_pairs_of_halves_treat_nans_alike(name):
    quiet, signaling = NAN[F16]
    pair = np.full(64, quiet | signaling << 16, U32)
    body = f"\tv_mov_b32_e32 v3, 0x3c003c00\n\tv_pk_{name}_f16 v100, v10, v3"
    assert np.isnan(compute(body, pair).view(F16)).tolist() == [[False, True]] * 64
    assert not np.isnan(compute(body, pair, mode=".amdhsa_ieee_mode 0").view(F16)).any()


def test_without_ieee_mode_every_nan_is_passed_over():
    quiet, signaling = NAN[F32]
    a = np.resize(np.array([quiet, signaling], U32), 64)
    found = compute("\tv_min_f32_e32 v100, 1.0, v10", a, mode=".amdhsa_ieee_mode 0").view(F32)
    assert (found == 1).all()


def test_clamping_makes_zero_of_nan_where_the_mode_says_so():
    a = np.full(64, np.nan, F32)
    body = "\tv_add_f32_e64 v100, v10, 1.0 clamp"
    assert (compute(body, a).view(F32) == 0).all()
    assert np.isnan(compute(body, a, mode=".amdhsa_dx10_clamp 0").view(F32)).all()


def test_the_middle_of_three_is_the_larger_one_of_those_behind_the_largest():
    """Zeros compare equal when the largest is selected, and are ordered afterwards."""
    lanes = [(1, 0.0, -0.0, 0.0), (1, -0.0, 0.0, 0.0), (0.0, -0.0, -1, -0.0), (-0.0, 0.0, -1, 0.0), (2, 7, -5, 2)]
    a, b, c, wanted = (np.array(values, F32) for values in zip(*lanes, strict=True))
    found = results_of("\tv_med3_f32 v100, v10, v12, v14", F32, a, b, c)
    assert len(differing(found, wanted)) == 0


# -- what the mode says that the emulator does not do ------------------------------------------------------------------


@pytest.mark.parametrize("directive", ["float_denorm_mode_32 0", "float_denorm_mode_16_64 1", "float_round_mode_32 3"])
def test_a_kernel_that_flushes_denormals_or_rounds_otherwise_is_refused(directive):
    text = re.sub(rf"\.amdhsa_{directive[:-2]} \d\n", "", kernel_text("\tv_add_f32_e32 v1, v0, v0"))
    text = text.replace("\t.end_amdhsa_kernel", f"\t\t.amdhsa_{directive}\n\t.end_amdhsa_kernel")
    with pytest.raises(UnsupportedCode, match="k flushes denormals, or does not round to nearest"):
        Emulator.from_assembly(text).launch("k", (1,), (64,), [np.zeros(1), np.zeros(1)])
    integers = text.replace("v_add_f32_e32", "v_add_u32_e32")
    assert Emulator.from_assembly(integers).launch("k", (1,), (64,), [np.zeros(1), np.zeros(1)]).findings == ()


@pytest.mark.parametrize(
    ("register", "value", "is_refused"),
    [
        ("HW_REG_MODE, 4, 2", 0, True),
        ("HW_REG_MODE, 4, 2", 3, False),
        ("HW_REG_MODE, 0, 4", 3, True),
        ("HW_REG_MODE, 9, 1", 0, True),
        ("HW_REG_MODE, 9, 1", 1, False),
        ("HW_REG_MODE, 10, 1", 1, False),
        ("HW_REG_TRAPSTS, 0, 8", 255, False),
    ],
)
@pytest.mark.parametrize(
    "form", ["s_setreg_imm32_b32 hwreg({}), {}", "s_movk_i32 s10, {1}\n\ts_setreg_b32 hwreg({0}), s10"]
)
def test_a_wave_keeps_the_mode_that_it_starts_in(form, register, value, is_refused):
    body = f"\t{form.format(register, value)}\n\tv_mov_b32_e32 v100, 7"
    if is_refused:
        with pytest.raises(UnsupportedCode, match="a wave keeps the mode that it starts in"):
            compute(body)
    else:
        assert (compute(body) == 7).all()
