"""Casts between all dtypes, of all their values, at every level and on every target, against what is exact."""

import exact
import numpy as np
import pytest
from one_op import CPU, EMULATED, INTERPRETED, NAMES, WAYS, M, kernel_of, run, wrong_casts

from tilewave import *
from tilewave.ir.types import DTYPES

SOURCES = (*NAMES, "index")
MOST = 1024
QUICK = [
    *(("tiles", old) for old in SOURCES),
    *((way, "f64") for way in INTERPRETED[1:]),
    *((CPU[0], old) for old in ("f64", "i8", "i64")),
    ("gfx942", "f64"),
]


def values(old, most=1 << 16):
    """Every value, or so many of them."""
    found = exact.every_value(old, DTYPES[old].numpy)
    if len(found) <= most:
        return found
    return np.ascontiguousarray(found[np.random.default_rng(1).permutation(len(found))[:most]])


@pytest.mark.parametrize(("way", "old"), QUICK)
def test_many_values_are_cast_exactly_to_every_dtype(way, old):
    assert wrong_casts(way, old, values(old, MOST)) == []


@pytest.mark.slow
@pytest.mark.parametrize("old", SOURCES)
@pytest.mark.parametrize("way", WAYS)
def test_every_value_is_cast_exactly_to_every_dtype(way, old):
    assert wrong_casts(way, old, values(old)) == []


@pytest.mark.parametrize("way", ["tiles", "lanes of gfx942", *CPU, *EMULATED])
def test_what_does_not_fit_saturates_no_number_is_zero_and_ties_are_seen_once(way):
    given = np.array([300, -300, np.inf, -np.inf, np.nan, -1.9, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40])
    dtypes = (i8, i64, f16, bf16, f8e4m3fn)
    small, large, half, brain, eighth = got = [np.zeros(8, d.numpy) for d in dtypes]
    run(way, kernel_of([f64], [(d, lambda x, d=d: cast(x, d)) for d in dtypes], tile=16), [given, *got])
    assert small.tolist() == [127, -128, 127, -128, 0, -1, 1, 1]
    assert large.tolist() == [300, -300, (1 << 63) - 1, -(1 << 63), 0, -1, 1, 1]
    assert half[6] == 1 + 2.0**-10 and brain[7] == 1 + 2.0**-7
    assert eighth[0] == 288 and np.isnan(eighth[2]) and half[2] == np.inf


NUMBER, LESS = sym.NUMBER, sym.LESS
ODD = [1, 8, 307, 65526, 65527, (1 << 24) + 8, 1077936136, (1 << 40) + 8, 4629700416936869896, (1 << 63) - 1]
BACK = (i8, i64, f64)


def through(name, back):
    """A number of the call, cast to a dtype and from there to another, everywhere in a tile."""
    return lambda _: Register[M, back](0) + cast(cast(scalar(NUMBER) - scalar(LESS), DTYPES[name]), back)


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942"])
def test_numbers_are_cast_as_tiles_are(target):
    pairs = [(name, back) for name in ("bf16", "f16", "f32", "f8e5m2", "i8", "i32") for back in BACK]
    kernel = kernel_of([f32], [(back, through(name, back)) for name, back in pairs])
    compiled = wave_compile(WaveCompileOptions(subs={M: 3}, target=target, dynamic_symbols=[NUMBER, LESS]), kernel)
    runs = {"numpy": compiled.interpret, "cpu": compiled}.get(target) or compiled.emulate
    for n in ODD:
        got = [np.zeros(3, back.numpy) for _, back in pairs]
        runs(np.zeros(3, np.float32), *got, NUMBER=n, LESS=7)
        for (name, back), found in zip(pairs, got, strict=True):
            middle = exact.cast(np.array([n - 7] * 3), "i64", name, DTYPES[name].numpy)
            want = exact.cast(middle, name, back.name, back.numpy)
            assert len(exact.differing(found, want)) == 0, f"{n - 7} → {name} → {back}: {found[0]}, not {want[0]}"


TIES = [1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 17 + 2.0**-30, -0.0, 3e-41 * (1 + 2.0**-30), 100.0, 200.0]


def ties(dtype):
    """A tile with one constant after the other."""

    def chosen(_):
        tile = Register[M, dtype](TIES[0])
        for i, value in enumerate(TIES[1:], 1):
            tile = select(self_index(M, i32) == i, Register[M, dtype](value), tile)
        return tile

    return chosen


@pytest.mark.parametrize("way", ["tiles", CPU[0], "gfx942"])
def test_constants_are_rounded_once(way):
    dtypes = [DTYPES[name] for name in exact.FORMATS]
    got = [np.zeros(len(TIES), d.numpy) for d in dtypes]
    run(way, kernel_of([f32], [(d, ties(d)) for d in dtypes], tile=8), [np.zeros(len(TIES), np.float32), *got])
    for dtype, found in zip(dtypes, got, strict=True):
        want = exact.cast(np.array(TIES), "f64", dtype.name, dtype.numpy)
        assert len(exact.differing(found, want)) == 0, f"{dtype}: {found}, not {want}"


def test_the_judge_of_casts_agrees_with_what_others_made():
    """Where numpy and ml_dtypes round once, from f32 on, they say what `exact` says."""
    given = exact.hard_floats("f32")
    for name in exact.FORMATS:
        like = DTYPES[name].numpy
        with np.errstate(all="ignore"):
            theirs = given.astype(like)
        assert len(exact.differing(theirs, exact.cast(given, "f32", name, like))) == 0
        every = exact.every_value(name, like)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(every.astype(np.float64), exact.numbers(every, name).astype(np.float64))
