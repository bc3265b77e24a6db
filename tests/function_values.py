"""The numbers that functions are tried on, what the functions are of them, and how far a result is off."""

import math
from functools import cache
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np

import tilewave as tw
from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WaveCompileOptions,
    WorkgroupConstraint,
    read,
    wave,
    wave_compile,
    write,
)

NAMES = (
    *("exp", "exp2", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sin", "cos"),
    *("floor", "ceil", "round", "roundeven"),
)
IN_F64 = ("sqrt", "rsqrt", "reciprocal", "floor", "ceil", "round", "roundeven")
"""The functions that GPUs have for f64, and processors as instructions."""
F8 = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
NARROW = ("f16", "bf16", *F8)
NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}

END = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])

# -- numbers -------------------------------------------------------------------------------------------------------


@cache
def every_value(dtype):
    """All numbers of a dtype of 8 or 16 bits."""
    bits = 8 * np.dtype(NUMPY[dtype]).itemsize
    return np.arange(2**bits, dtype=f"u{bits // 8}").view(NUMPY[dtype])


@cache
def hard_values(dtype):
    """Every exponent with several mantissas, and whatever is delicate for one of the functions; f32 or f64."""
    kind = NUMPY[dtype]
    info = np.finfo(kind)
    words = f"u{info.bits // 8}"
    rng = np.random.default_rng(11)
    exponents = np.arange(2 ** (info.bits - 1 - info.nmant), dtype=words)[:: 1 if dtype == "f32" else 8]
    digits = [0, 1, 2, 3, 2**info.nmant // 3, 2 ** (info.nmant - 1) - 1, 2 ** (info.nmant - 1), 2**info.nmant - 1]
    digits = np.array([*digits, *rng.integers(0, 2**info.nmant, 8)], words)
    patterns = ((exponents << np.dtype(words).type(info.nmant))[:, None] | digits).ravel().view(kind)
    places = np.concatenate([near(np.array(delicate(dtype), np.float64).astype(kind), 4), turns(dtype)])
    spread = [rng.uniform(-low, high, 1500) for low, high in ((110, 90), (160, 130), (5, 5), (2, 2), (1e5, 1e5))]
    positive = np.concatenate([patterns, places, np.concatenate(spread).astype(kind)])
    return np.unique(np.concatenate([positive, -positive]).view(words)).view(kind)


def numbers_of(dtype, step=1):
    """All numbers of a narrow dtype, the hard ones of another; only every so-many-th, but the ends always."""
    everything = every_value(dtype) if dtype in NARROW else hard_values(dtype)
    return np.concatenate([everything[::step], END.astype(everything.dtype)])


def near(x, count):
    """Each number with as many neighbours on both sides."""
    found, below, above = [x], x, x
    with np.errstate(over="ignore"):
        for _ in range(count):
            below, above = np.nextafter(below, -np.inf, dtype=x.dtype), np.nextafter(above, np.inf, dtype=x.dtype)
            found += [below, above]
    return np.concatenate(found)


def delicate(dtype):
    """Where powers overflow and underflow, logarithms pass 0, and formulas change."""
    highest, lowest, least = (128, -126, -149) if dtype == "f32" else (1024, -1022, -1074)
    powers = [highest, lowest, least, least - 1, least - 2, -highest / 2]
    borders = [0.0, 0.25, 0.5, 0.625, 0.64, math.sqrt(0.5), 0.84375, 1.0, 1.25, math.sqrt(2.0), 3.9, 4.1, 5.9, 9.0, 9.1]
    borders += [19.1, 22.0, 0.3465736, 1.0397208, 300.0, 2.0**14, 2.0**16, 2.0**20, 6.7e7, 1e10, 1e12, 1e22]
    whole = [float(k) for k in range(1, 130)]
    return [*powers, *(p * math.log(2) for p in powers), *borders, *whole, *(2.0**-k for k in range(1, 60))]


@cache
def turns(dtype):
    """The numbers nearest to multiples of π/2: of the first ones, and in every power of two the very nearest."""
    kind, digits = NUMPY[dtype], np.finfo(NUMPY[dtype]).nmant + 1
    first = np.array([k * math.pi / 2 for k in [*range(1, 300), *(2**k + 1 for k in range(9, digits))]])
    highest = 127 if dtype == "f32" else 1023
    step = 1 if dtype == "f32" else 7
    exponents = range(1 - digits, highest - digits + 2, step)
    nearest = [x for e in exponents for x in nearest_to_turns(e, digits)]
    return np.concatenate([near(first.astype(kind), 1), np.array(nearest).astype(kind)])


def nearest_to_turns(exponent, digits):
    """The m · 2^exponent, m of so many digits, nearest to multiples of π/2: of a continued fraction."""
    with mpmath.workdps(700 if exponent > 200 else 120):
        rest = mpmath.mpf(2) ** exponent / (mpmath.pi / 2)
        before, last = 1, 0
        found = []
        while last < 2**digits:
            if last >= 2 ** (digits - 3):
                found += [math.ldexp(m, exponent) for m in range(last, 2**digits, last)]
            whole = int(mpmath.floor(rest))
            before, last = last, whole * last + before
            rest = 1 / (rest - whole)
        return found


# -- what the functions are ------------------------------------------------------------------------------------------


def one_by_one(function):
    """A function of Python floats, on arrays."""

    def of(x):
        return np.array([function(float(v)) if math.isfinite(v) else math.nan for v in x.ravel()]).reshape(x.shape)

    return of


def away(x):
    """The nearest whole number, of halves the one further from 0: of two candidates, the one that is nearer."""
    low, high = np.floor(x), np.ceil(x)
    is_low = (x - low < high - x) | ((x - low == high - x) & (x < 0))
    return np.where(is_low, low, high)


IN_DOUBLE = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "round": away,
    "roundeven": np.rint,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": one_by_one(math.sin),
    "cos": one_by_one(math.cos),
}


def in_double(name, x):
    """A function in float64, which has digits to spare for f32 and all that is narrower."""
    with np.errstate(all="ignore"):
        return IN_DOUBLE.get(name, getattr(np, name, None))(x.astype(np.float64))


EXACT = {
    "reciprocal": lambda x: 1 / x,
    "round": lambda x: mpmath.sign(x) * mpmath.floor(abs(x) + mpmath.mpf(1) / 2),
    "roundeven": mpmath.nint,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x, 2),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


def exactly(name, x):
    """A function of one float, to many digits."""
    return EXACT.get(name, getattr(mpmath, name, None))(mpmath.mpf(float(x)))


POWER = [(-math.inf, 0.0), (math.inf, math.inf), (0.0, 1.0), (-0.0, 1.0)]
LOGARITHM = [(0.0, -math.inf), (-0.0, -math.inf), (1.0, 0.0), (math.inf, math.inf)]
NEGATIVE = [(-1.0, math.nan), (-math.inf, math.nan)]
ODD = [(0.0, 0.0), (-0.0, -0.0), (math.inf, 1.0), (-math.inf, -1.0)]
NO_ANGLE = [(math.inf, math.nan), (-math.inf, math.nan)]
WHOLE = [(0.0, 0.0), (-0.0, -0.0), (1.0, 1.0), (-1.0, -1.0), (math.inf, math.inf), (-math.inf, -math.inf)]
ENDS = {
    **dict.fromkeys(("floor", "ceil", "round", "roundeven"), WHOLE),
    "exp": POWER,
    "exp2": POWER,
    "log": [*LOGARITHM, *NEGATIVE],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -math.inf), (math.inf, math.inf), (-math.inf, math.nan)],
    "log2": [*LOGARITHM, *NEGATIVE],
    "log10": [*LOGARITHM, *NEGATIVE],
    "reciprocal": [(0.0, math.inf), (-0.0, -math.inf), (math.inf, 0.0), (-math.inf, -0.0), (-1.0, -1.0)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (math.inf, math.inf), *NEGATIVE],
    "rsqrt": [(0.0, math.inf), (-0.0, -math.inf), (math.inf, 0.0), *NEGATIVE],
    "tanh": ODD,
    "erf": ODD,
    "sin": [(0.0, 0.0), (-0.0, -0.0), *NO_ANGLE],
    "cos": [(0.0, 1.0), (-0.0, 1.0), *NO_ANGLE],
}
"""What the language says of the ends, which `numbers_of` always holds."""


# -- how far a result is off -------------------------------------------------------------------------------------------

LANGUAGE = Path(__file__).parents[1] / "docs" / "ref" / "language.md"
FLOAT64 = 2.0**-28
"""What float64 itself may add to an error in units of f32, here and in the interpreter."""
ANGLES_OF_F64 = 2.0**-92
"""Sines of f64 may be off by this much, however small they are: what the C library loses of large angles."""


@cache
def bounds():
    """The table of docs/ref/language.md: column → function → units in the last place."""
    lines = [line for line in LANGUAGE.read_text().splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line.startswith("| maximum error (ULP) |"))
    columns, _, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[start:])
    named = {row[0]: row[1:] for row in rows[: len(NAMES)]}
    assert tuple(named) == NAMES
    cells = {c: {name: named[name][i] for name in NAMES} for i, c in enumerate(columns[1:])}
    return {c: {name: float(cell) for name, cell in rows.items() if cell != "–"} for c, rows in cells.items()}


def check(column, name, dtype, x, found):
    """Each result is as near as the documents say, and what is no number, infinite or zero is so with its sign."""
    wanted = in_double(name, x)
    if dtype == "f64":
        wrong = error_in_f64(name, x, found) > bounds()[column][name]
        wrong |= (np.isnan(found) != np.isnan(wanted)) | (np.isinf(found) != np.isinf(wanted))
    elif dtype == "f32":
        wrong = ~(error_in_f32(found, wanted) <= bounds()[column][name] + FLOAT64)
    else:
        wrong = ~is_rounded(dtype, found, wanted, bounds()[column][name])
    wrong |= (wanted == 0) & (found != 0)
    wrong |= (found == 0) & (np.signbit(found) != np.signbit(rounded(wanted, dtype)))
    lines = [f"{name}({x[i]!r}) is {wanted[i]!r}, not {found[i]!r}" for i in np.flatnonzero(wrong)[:5]]
    assert not wrong.any(), f"{column}, {dtype}: {wrong.sum()} of {wrong.size} are wrong\n" + "\n".join(lines)


def rounded(x, dtype):
    """float64 as a function of this dtype gives it: narrow floats by way of f32."""
    with np.errstate(all="ignore"):
        return (x if dtype == "f64" else x.astype(np.float32)).astype(NUMPY[dtype])


def error_in_f64(name, x, found):
    """By how many units in the last place of f64 the results are off, where they are finite."""
    units = np.zeros(x.shape)
    lost = ANGLES_OF_F64 if name in ("sin", "cos") else 0.0
    with np.errstate(all="ignore"), mpmath.workdps(30):
        wanted = in_double(name, x)
        for i in np.flatnonzero(np.isfinite(found) & np.isfinite(wanted) & (wanted != 0)):
            exact = exactly(name, x[i])
            error = max(abs(mpmath.mpf(float(found[i])) - exact) - lost, 0)
            units[i] = float(error / np.spacing(abs(float(exact))))
    return units


def error_in_f32(found, wanted):
    """By how many units in the last place of f32; what is beyond the largest number counts as the next power of 2."""
    with np.errstate(invalid="ignore"):
        found = np.clip(found.astype(np.float64), -(2.0**128), 2.0**128)
    wanted = np.clip(wanted, -(2.0**128), 2.0**128)
    return np.where(np.isnan(found) & np.isnan(wanted), 0.0, np.abs(found - wanted) / unit_of_f32(wanted))


def unit_of_f32(x):
    return 2.0 ** (np.clip(np.frexp(x)[1] - 1, -126, 127) - 23.0)


def is_rounded(dtype, found, wanted, units):
    """Whether each narrow number is what an f32 is rounded to that is off by so many units at most."""
    error = np.where(np.isfinite(wanted), units * unit_of_f32(wanted), 0.0)
    near = [rounded(wanted + e, dtype) for e in (-error, 0.0, error)]
    return np.logical_or.reduce([(n == found) | (np.isnan(n) & np.isnan(found)) for n in near])


# -- kernels -----------------------------------------------------------------------------------------------------------

M, N = tw.sym.M, tw.sym.N
COLUMNS = 64


def every_function(dtype, rows=16):
    """A kernel that writes each of the functions, in the order of NAMES."""
    grid = Memory[M, N, GLOBAL_ADDRESS_SPACE, getattr(tw, dtype)]

    @wave([WorkgroupConstraint(M, rows, 0), WorkgroupConstraint(N, COLUMNS, 1)])
    def functions(
        x: grid, a: grid, b: grid, c: grid, d: grid, e: grid, f: grid, g: grid, h: grid, i: grid, j: grid, k: grid,
        m: grid, n: grid, o: grid, p: grid, q: grid, r: grid,
    ):  # fmt: skip
        for name, output in zip(NAMES, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r), strict=True):
            write(getattr(tw, name)(read(x)), output)

    return functions


def of_f64(rows=16):
    """A kernel that writes those that GPUs have for f64, in the order of IN_F64."""
    grid = Memory[M, N, GLOBAL_ADDRESS_SPACE, tw.f64]

    @wave([WorkgroupConstraint(M, rows, 0), WorkgroupConstraint(N, COLUMNS, 1)])
    def functions(x: grid, a: grid, b: grid, c: grid, d: grid, e: grid, f: grid, g: grid):
        for name, output in zip(IN_F64, (a, b, c, d, e, f, g), strict=True):
            write(getattr(tw, name)(read(x)), output)

    return functions


def check_kernel(column, dtype, x, kernel, run, names=NAMES, **options):
    """Compile a kernel for these numbers, `run(compiled, x, *outputs)`, and check what it wrote."""
    rows = -(-len(x) // COLUMNS)
    given = np.resize(x, (rows, COLUMNS))
    compiled = wave_compile(WaveCompileOptions(subs={M: rows, N: COLUMNS}, **options), kernel)
    outputs = [np.full(given.shape, 77, given.dtype) for _ in names]
    run(compiled, given, *outputs)
    for name, found in zip(names, outputs, strict=True):
        check(column, name, dtype, given.ravel(), found.ravel())
