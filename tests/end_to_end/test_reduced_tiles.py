"""Reductions along every axis, of every dtype, in every layout: bit-equal on lanes and in machine code."""

from itertools import cycle, product

import numpy as np
import pytest
from reduced_tiles import FLOATS, INTEGERS, ORDERS, Case, check, check_bound, given, run, wanted

from tilewave import *

pytestmark = pytest.mark.share(6)

LANES = ("lanes of gfx942", "lanes of sm_90a")
EMULATED = ("gfx942", "gfx950")
ROWS = [
    Case((1, 1), (1,)),
    Case((5, 37), (1,)),
    Case((5, 37), (1,), tile=(4, 0)),
    Case((6, 1), (1,), tile=(4, 0), use="beside"),
    Case((3, 100), (1,), use="beside"),
    Case((3, 1024), (1,)),
    Case((7, 64), (1,), memory=(1, 0), tile=(4, 0), use="beside"),
    Case((8, 64), (1,), tile=(8, 0), waves=(4, 1)),
    Case((8, 37), (1,), tile=(4, 64), waves=(1, 4), use="beside"),
    Case((8, 100), (1,), tile=(8, 128), waves=(2, 2), use="again"),
    Case((4, 513), (1,), tile=(1, 1024), waves=(1, 8)),
]
COLUMNS = [
    Case((37, 5), (0,), tile=(0, 4)),
    Case((16, 16), (0,), tile=(0, 8), use="beside"),
    Case((64, 7), (0,), memory=(1, 0), tile=(0, 8), waves=(1, 2)),
    Case((60, 8), (0,), tile=(64, 8), waves=(4, 1), use="beside"),
]
SEVERAL = [
    Case((5, 37), (0, 1)),
    Case((3, 100), (0, 1), tile=(4, 128), waves=(2, 2), use="beside"),
    Case((16, 16), (0, 1), tile=(16, 0), waves=(2, 1), use="again"),
    Case((3, 100), (0, 1), memory=(1, 0), use="again"),
    Case((4, 6, 8), (1,), use="beside"),
    Case((4, 6, 8), (1,), tile=(1, 0, 0), use="again"),
    Case((4, 6, 8), (0, 2), tile=(0, 2, 0)),
    Case((4, 6, 8), (0, 1, 2)),
    Case((4, 6, 8), (0, 1, 2), tile=(0, 0, 0), memory=(1, 0, 2), use="beside"),
    Case((2, 3, 5), (1, 2), tile=(4, 0, 0), memory=(1, 2, 0), waves=(4,), use="beside"),
    Case((2, 3, 5), (0,), tile=(0, 0, 0), memory=(1, 2, 0), use="again"),
    Case((8, 4, 32), (0, 1), tile=(0, 0, 2), memory=(2, 1, 0)),
]
OPEN = [Case((5, 37), (1,), tile=(4, 0), open=(0,)), Case((5, 37), (1,), use="beside", open=(0, 1))]


def in_some_order(cases, ways):
    """Return each case on each of these ways, with the orders of waves in turn."""
    orders = {way: cycle(ORDERS if way.startswith("lanes") else ("barrier", "random")) for way in ways}
    return [(case, way, next(orders[way])) for case in cases for way in ways]


@pytest.mark.parametrize(("case", "way", "order"), in_some_order([*ROWS, *COLUMNS, *SEVERAL, *OPEN], LANES), ids=str)
def test_sums_have_the_same_bits_on_lanes(case, way, order):
    check(case, way, order)


@pytest.mark.parametrize("case", [*ROWS, *COLUMNS, *SEVERAL], ids=str)
def test_sums_of_tiles_are_those_of_float64_within_their_roundings(case):
    x = given(case)
    if case.use == "written":
        check_bound(case, run(case, "tiles").reshape(wanted(case, x).shape), x)
    check(case, "tiles")


@pytest.mark.parametrize(
    ("case", "way", "order"), in_some_order([*ROWS[1::4], *COLUMNS[1::3], *SEVERAL[1::3]], EMULATED)
)
def test_sums_have_the_same_bits_in_machine_code(case, way, order):
    check(case, way, order)


def kinds():
    for dtype in (*FLOATS, *INTEGERS):
        yield from ((how, dtype) for how in ("sum", "prod", "max", "min"))
    yield from (("argmax", n) for n in ("f32", "f16", "i8", "i64"))
    yield from (("argmin", n) for n in ("f64", "bf16", "i32"))
    yield from product(("any", "all"), ("bool", "f32", "i8"))
    yield from (("sum", "bool"), ("prod", "bool"))


@pytest.mark.share(9)
@pytest.mark.parametrize(("how", "dtype"), list(kinds()))
def test_every_way_to_combine_every_dtype_on_lanes(how, dtype):
    for i, way in enumerate(LANES):
        check(Case((5, 20), (1,), how, dtype, tile=(2, 0)), way, ORDERS[i])
        check(Case((20, 6), (0,), how, dtype, tile=(32, 2), waves=(2, 1)), way, "random")


@pytest.mark.parametrize(("how", "dtype"), list(kinds())[::3])
def test_some_ways_to_combine_some_dtypes_in_machine_code(how, dtype):
    check(Case((4, 40), (1,), how, dtype, tile=(2, 64), waves=(1, 2)), "gfx950", "random")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "dtype"), list(kinds()))
@pytest.mark.parametrize("way", EMULATED)
def test_every_way_to_combine_every_dtype_in_machine_code(how, dtype, way):
    for order in ("barrier", "random"):
        check(Case((5, 100), (1,), how, dtype, tile=(4, 0)), way, order)
        check(Case((100, 6), (0,), how, dtype, tile=(128, 4), waves=(4, 1)), way, order)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_sum_does_not_depend_on_the_number_of_waves(axes):
    found = set()
    for waves in [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 4), (8, 1), (1, 8)]:
        case = Case((16, 64), axes, tile=(16, 64), waves=waves)
        found.add(run(case, "lanes of gfx942").tobytes())
        check(case, "lanes of gfx950")
    assert len(found) == 1


@pytest.mark.parametrize("way", ["tiles", *LANES, "gfx942"])
def test_nan_infinity_and_zeros_of_either_sign_are_reduced_as_numpy_does(way):
    x = np.ones((6, 36), np.float32)
    x[0, 11] = np.nan
    x[1, 35] = np.inf
    x[2] = -0.0
    x[3], x[3, 17] = -0.0, 0.0
    x[4, 5], x[4, 30] = np.inf, -np.inf
    x[5] = -np.inf
    for how in ("max", "min", "sum"):
        case = Case((6, 36), (1,), how)
        found, want = run(case, way, x=x), wanted(case, x)
        np.testing.assert_array_equal(found, want)
        there = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(found)[there], np.signbit(want)[there])


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("way", ["tiles", *LANES, "gfx942", "cpu"])
def test_of_zeros_of_either_sign_the_place_is_that_of_the_first(way, dtype):
    """As in numpy: 0 and -0 are equal. `max` and `min` order them, at any position."""
    x = np.full((6, 37), -1.0).astype(dtype.replace("f", "float"))
    x[0, 5], x[0, 9] = -0.0, 0.0
    x[1, 5], x[1, 9] = 0.0, -0.0
    x[2], x[2, 17] = -0.0, 0.0
    x[3], x[3, 17] = 0.0, -0.0
    x[4], x[4, ::2] = 3.0, -0.0
    x[5], x[5, 1:3], x[5, 30:] = 3.0, 0.0, -0.0
    for how in ("argmax", "argmin", "max", "min"):
        found = run(Case((6, 37), (1,), how, dtype), way, x=x)
        np.testing.assert_array_equal(found, getattr(np, how)(x, axis=1))
        negative = ((x == 0) & np.signbit(x)).any(1)
        positive = ((x == 0) & ~np.signbit(x)).any(1)
        sign = {"max": ~positive, "min": negative}.get(how)
        if sign is not None:
            np.testing.assert_array_equal(np.signbit(found)[found == 0], sign[found == 0])


@pytest.mark.parametrize("way", LANES)
def test_indices_are_reduced(way):
    rows, columns = sym.A, sym.B

    @wave([WorkgroupConstraint(rows, 4, 0)])
    def indices(x: Memory[rows, columns, GLOBAL_ADDRESS_SPACE, i64], y: Memory[rows, GLOBAL_ADDRESS_SPACE, i64]):
        places = cast(read(x), index)
        write(cast(places.max(dim=columns) + places.sum(dim=columns), i64), y)

    x = np.arange(5 * 37).reshape(5, 37) - 20
    y = np.zeros(5, np.int64)
    compiled = wave_compile(WaveCompileOptions(subs={rows: 5, columns: 37}, target=way.split()[-1]), indices)
    compiled.interpret(x, y, level="lane")
    np.testing.assert_array_equal(y, x.max(1) + x.sum(1))


# -- all of it ---------------------------------------------------------------------------------------------------------


def every_two_axes():
    shapes = [(1, 1), (1, 5), (5, 37), (8, 64), (3, 100), (16, 16), (7, 128), (6, 1)]
    for shape, axes, use, memory in product(shapes, [(0,), (1,), (0, 1)], ("written", "beside", "again"), [(), (1, 0)]):
        for rows, waves in product((1, 4, 8), [(1, 1), (2, 1), (1, 2), (4, 1), (1, 8), (2, 2)]):
            cut = [(0 if axis in axes else rows) for axis in (0, 1)]
            power = [1 << (n - 1).bit_length() for n in shape]
            tile = tuple(
                max(cut[a], waves[a], power[a] if a in axes else 0) if waves[a] > 1 else cut[a] for a in (0, 1)
            )
            if use != "again" or not tile[1] or tile[1] >= shape[1]:
                yield Case(shape, axes, tile=tile, memory=memory, use=use, waves=waves)


def every_three_axes():
    every_axes = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    orders = [(), (2, 1, 0), (1, 0, 2), (1, 2, 0)]
    shapes = [(4, 6, 8), (2, 3, 5), (1, 16, 7), (8, 4, 32)]
    for shape, axes, use, memory in product(shapes, every_axes, ("written", "beside", "again"), orders):
        for rows in (1, 2):
            others = 0 if use == "again" else rows
            tile = (0 if 0 in axes else rows, *(0 if axis in axes else others for axis in (1, 2)))
            yield Case(shape, axes, tile=tile, memory=memory, use=use)
            if tile[0]:
                yield Case(shape, axes, tile=(4, *tile[1:]), memory=memory, use=use, waves=(4,))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize("way", [*LANES, *EMULATED])
def test_every_axis_in_every_layout_among_any_waves(way, part):
    cases = list(dict.fromkeys([*every_two_axes(), *every_three_axes()]))[part :: 16 * (1 if way in LANES else 8)]
    for i, case in enumerate(cases):
        check(case, way, ORDERS[i % 3] if way in LANES else ("barrier", "random")[i % 2])
