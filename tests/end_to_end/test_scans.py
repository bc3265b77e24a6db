"""Scans by name and by function, of one tile and of several, along rows and columns, in both directions."""

import re

import numpy as np
import pytest
from hostile_indices import TARGETS, run

import tilewave as tw
from tilewave import *
from tilewave.errors import DTypeError, TilewaveError

pytestmark = pytest.mark.share(8)
M, N, G = sym.M, sym.N, GLOBAL_ADDRESS_SPACE
targets = pytest.mark.parametrize("target", TARGETS)


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def accumulated(x, function, axis=1, reverse=False):
    """Scan in plain Python, one element after the other, of a list of arrays."""
    flipped = [np.moveaxis(a[...], axis, 0)[:: -1 if reverse else 1] for a in x]
    found = [np.array(a) for a in flipped]
    for i in range(1, len(found[0])):
        for a, value in zip(found, function([a[i - 1] for a in found], [a[i] for a in found]), strict=True):
            a[i] = value
    return [np.moveaxis(a[:: -1 if reverse else 1], 0, axis) for a in found]


BY_NAME = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def by_name(how, dtype, made, dims=(M, N), reverse=False):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def scanned(x: Memory[(*dims, G, dtype)], y: Memory[(*dims, G, made)]):
        write(scan(read(x), dim=N, combine=how, reverse=reverse), y)

    return scanned


@targets
@pytest.mark.parametrize("how", BY_NAME)
@pytest.mark.parametrize("length", [1, 2, 37, 64, 300])
def test_every_name(target, how, length):
    x = numbers(3, length, dtype=np.int32)
    y = np.zeros_like(x)
    run(by_name(how, i32, i32), target, x, y, M=3, N=length)
    np.testing.assert_array_equal(y, BY_NAME[how].accumulate(x, axis=1))


@targets
@pytest.mark.parametrize("how", ["max", "min"])
def test_nan_and_infinity(target, how):
    x = numbers(3, 40)
    x[0, 7], x[1, :3], x[2, 20:] = np.nan, (-np.inf, np.inf, 0), -np.inf
    for reverse in (False, True):
        y = np.zeros_like(x)
        run(by_name(how, f32, f32, reverse=reverse), target, x, y, M=3, N=40)
        want = BY_NAME[how].accumulate(x[:, ::-1] if reverse else x, axis=1)
        np.testing.assert_array_equal(y, want[:, ::-1] if reverse else want)


@targets
@pytest.mark.parametrize(
    ("dtype", "made", "how"),
    [
        (f16, f32, "sum"),
        (i8, i32, "sum"),
        (u8, u32, "prod"),
        (f64, f64, "prod"),
        (bf16, bf16, "max"),
        (i64, i64, "min"),
    ],
    ids=str,
)
def test_dtypes_are_those_of_reductions(target, dtype, made, how):
    x = np.random.default_rng(1).integers(1, 3, (3, 20)).astype(dtype.numpy)
    y = np.zeros((3, 20), made.numpy)
    run(by_name(how, dtype, made), target, x, y, M=3, N=20)
    np.testing.assert_array_equal(y, BY_NAME[how].accumulate(x.astype(made.numpy), axis=1))


@targets
def test_truths(target):
    x = np.random.default_rng(2).random((4, 30)) < 0.1
    for how, function in (("any", np.logical_or), ("all", np.logical_and)):
        y, given = np.zeros_like(x), x ^ (how == "all")
        run(by_name(how, tw.bool, tw.bool), target, given, y, M=4, N=30)
        np.testing.assert_array_equal(y, function.accumulate(given, axis=1))


# -- functions: exact in integers, and of no order but the given one ------------------------------------------------


def affine(before, each):
    """The composition of two maps x → a · x + b."""
    return before[0] * each[0], each[0] * before[1] + each[1]


def recurrence(reverse, columns=0):
    constraints = [WorkgroupConstraint(M, 2, 0), *([WorkgroupConstraint(N, columns, 1)] if columns else [])]

    @wave(constraints)
    def scanned(a: Memory[M, N, G, u32], b: Memory[M, N, G, u32], y: Memory[M, N, G, u32]):
        write(scan((read(a), read(b)), dim=N, combine=affine, reverse=reverse)[1], y)

    return scanned


@targets
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", [1, 5, 33, 150])
def test_a_recurrence(target, reverse, length):
    a, b = (np.random.default_rng(s).integers(0, 2**32, (3, length)).astype(np.uint32) for s in (3, 4))
    y = np.zeros_like(a)
    run(recurrence(reverse), target, a, b, y, M=3, N=length)
    np.testing.assert_array_equal(y, accumulated([a, b], affine, reverse=reverse)[1])


@targets
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_tiles_that_hang_over_the_edge_are_scanned_alone(target, reverse):
    """Open sizes, three tiles to a row: each begins anew, and nothing past the end of a row is combined."""
    a, b = (np.random.default_rng(s).integers(0, 2**32, (3, 75)).astype(np.uint32) for s in (3, 4))
    y = np.zeros_like(a)
    run(recurrence(reverse, 32), target, a, b, y)
    for first in range(0, 75, 32):
        part = [x[:, first : first + 32] for x in (a, b)]
        np.testing.assert_array_equal(y[:, first : first + 32], accumulated(part, affine, reverse=reverse)[1])


@wave([WorkgroupConstraint(M, 2, 0)])
def segmented(x: Memory[M, N, G, f32], starts: Memory[M, N, G, tw.bool], y: Memory[M, N, G, f32]):
    def add_in_segment(before, each):
        return select(each[1], each[0], before[0] + each[0]), before[1] | each[1]

    write(scan((read(x), read(starts)), dim=N, combine=add_in_segment)[0], y)


@targets
def test_segmented_sums(target):
    x, starts = numbers(5, 90), np.random.default_rng(5).random((5, 90)) < 0.1
    want, y = np.cumsum(x, axis=1), np.zeros_like(x)
    for m, n in zip(*np.nonzero(starts), strict=True):
        want[m, n:] = np.cumsum(x[m, n:])
    run(segmented, target, x, starts, y, M=5, N=90)
    np.testing.assert_array_equal(y, want)


@targets
def test_along_columns_and_the_place_of_the_largest_so_far(target):
    @wave([WorkgroupConstraint(M, 8, 0)])
    def running_argmax(x: Memory[N, M, G, f32], places: Memory[N, M, G, i32]):
        def larger(before, each):
            is_new = each[0] > before[0]
            return select(is_new, each[0], before[0]), select(is_new, each[1], before[1])

        tile = read(x)
        at = broadcast(self_index(N, i32), target_shape=[N, M])
        write(scan((tile, at), dim=N, combine=larger)[1], places)

    x = numbers(21, 11)
    places = np.zeros((21, 11), np.int32)
    run(running_argmax, target, x, places, M=11, N=21)
    want = [[int(np.argmax(x[: n + 1, m])) for m in range(11)] for n in range(21)]
    np.testing.assert_array_equal(places, want)


@targets
def test_long_rows_are_carried_over_a_loop(target):
    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 16)])
    def largest_so_far(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        @iterate(N, init_args=[Register[M, f32](-np.inf)])
        def before(so_far):
            here = maximum(scan(read(x), dim=N, combine="max"), so_far)
            write(here, y)
            return here.max(dim=N)

    x = numbers(6, 75)
    y = np.zeros_like(x)
    run(largest_so_far, target, x, y)
    np.testing.assert_array_equal(y, np.maximum.accumulate(x, axis=1))


# -- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "what", "remedy"),
    [
        (lambda x: scan(x, dim=N, combine="mean"), "scan: combine is 'mean'", "write one of sum, prod, max, min, any"),
        (lambda x: scan(x, dim=N, combine=3), "scan: combine is 3", 'write combine="max"'),
        (lambda x: scan(x, combine="sum"), r"scan goes along one dim, not \[M, N\]", r"write scan\(x, dim=N\)"),
        (lambda x: scan((x, x), dim=N, combine="sum"), "combines single elements, not 2 tiles", "two tuples of tiles"),
        (lambda x: scan(x, dim=N, combine=lambda a, b: a.sum(dim=N)), r"combine made a tile \[M\]", "cast"),
        (lambda x: scan(x, dim=N, combine=lambda a, b: a > b), r"combine made a tile \[M, N\] \(2x8 bool\)", "f32"),
        (lambda x: scan((x, x), dim=N, combine=lambda a, b: a[0]), "combine returned", "return a tuple of 2 tiles"),
        (lambda x: scan((x, x.sum(dim=M)), dim=N, combine=affine), "differ in dims", "broadcast"),
        (lambda x: scan(3.0, dim=N), "scan reduces a tile, not 3.0", r"read\(a\)"),
        (lambda x: scan(x > 0, dim=N, combine="max"), "max compares numbers", "any"),
    ],
)
def test_what_cannot_be_scanned_says_what_to_write(of, what, remedy):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        write(of(read(x)), y)

    with pytest.raises(TilewaveError, match=what) as caught:
        kernel.compile(target="numpy", subs={M: 2, N: 8})
    assert "test_scans.py" in str(caught.value)
    assert re.search(remedy, caught.value.remedy)


def test_a_function_of_another_dtype_is_a_dtype_error():
    with pytest.raises(DTypeError):
        by_function = wave([WorkgroupConstraint(M, 2, 0)])(_cast_away)
        by_function.compile(target="numpy", subs={M: 2, N: 8})


def _cast_away(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(scan(read(x), dim=N, combine=lambda a, b: cast(a + b, f16)), y)
