"""Numbers that come from data may decide what is computed, and whether it is written."""

import numpy as np
import pytest
from kernels import G, M, N

from tilewave import *

T, LIMIT = sym.T, sym.LIMIT
ROWS = [WorkgroupConstraint(M, 1, 0), TilingConstraint(N, 16)]
TARGETS = ("numpy", "cpu", "sm_90a", "gfx942")


@wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 16, 1)])
def written_where_it_is_large(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    v = read(x)
    write(v, y)

    @conditional((v > 2.5).any())
    def large():
        write(v * 2.0, y)


@wave(ROWS)
def stopped(lengths: Memory[M, G, i32], x: Memory[M, N, G, f32], y: Memory[M, G, f32]):
    @iterate(N, init_args=[Register[M, f32](0.0)], stop=cast(read(lengths).max(), index))
    def total(acc):
        return acc + read(x).sum(dim=N)

    write(total, y)


@wave([WorkgroupConstraint(M, 1, 0), TilingConstraint(T)])
def driven(lengths: Memory[M, G, i32], x: Memory[M, N, G, f32], y: Memory[M, G, f32]):
    set_symbol(LIMIT, cast(read(lengths).max(), index))

    @iterate(T, start=scalar(0), condition=T < LIMIT, init_args=[Register[M, f32](0.0)])
    def total(acc):
        i = IndexMapping.iterator(0)
        more = acc + read(x, mapping=IndexMapping(1, inputs={M: i, N: T}, outputs={M: i}))
        set_symbol(T, self_index(T) + 1)
        return more

    write(total, y)


def run(made, target, *arrays):
    if target == "cpu":
        made(*arrays)
    elif target == "gfx942":
        made.emulate(*arrays)
    elif target == "numpy":
        made.interpret(*arrays)
    else:
        made.interpret(*arrays, level="lane")


@pytest.mark.share(8)
@pytest.mark.parametrize("subs", [{}, {M: 20, N: 90}], ids=["open", "known"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [stopped, driven], ids=lambda k: k.name)
def test_data_decides_how_often_a_loop_without_a_write_runs(kernel, target, subs):
    rng = np.random.default_rng(4)
    x, lengths = rng.standard_normal((20, 90)).astype(np.float32), rng.integers(0, 91, 20).astype(np.int32)
    y = np.full(20, np.nan, np.float32)
    run(kernel.compile(target=target, subs=subs), target, lengths, x, y)
    steps = [-(-n // 16) * 16 if kernel is stopped else n for n in lengths]
    wanted = [row[:n].astype(float).sum() for row, n in zip(x, steps, strict=True)]
    assert (np.abs(y - wanted) <= 90 * 2**-24 * np.abs(x.astype(float)).sum(axis=1)).all()


@pytest.mark.parametrize("subs", [{}, {M: 20, N: 90}], ids=["open", "known"])
@pytest.mark.parametrize("target", TARGETS)
def test_data_decides_whether_a_tile_is_written_again(target, subs):
    x = np.random.default_rng(5).standard_normal((20, 90)).astype(np.float32)
    y, wanted = np.full((20, 90), np.nan, np.float32), x.copy()
    run(written_where_it_is_large.compile(target=target, subs=subs), target, x, y)
    for row in range(0, 20, 8):
        for column in range(0, 90, 16):
            tile = slice(row, row + 8), slice(column, column + 16)
            wanted[tile] *= 2 if (x[tile] > 2.5).any() else 1
    np.testing.assert_array_equal(y, wanted)


@wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 16, 1)])
def chosen(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    v = read(x)
    write(select(v > 2.5, v * 2.0, v), y)


@wave(ROWS)
def skipped(lengths: Memory[M, G, i32], x: Memory[M, N, G, f32], y: Memory[M, G, f32]):
    length = read(lengths)

    @iterate(N, init_args=[Register[M, f32](0.0)])
    def total(acc):
        @conditional((self_index(N, i32) < length).any(), else_return=[acc])
        def some(acc):
            return acc + select(self_index(N, i32) < length, read(x), 0.0).sum(dim=N)

        return some

    write(total, y)


def test_the_advice_works():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((20, 90)).astype(np.float32) * 2, np.full((20, 90), np.nan, np.float32)
    chosen(x, y)
    np.testing.assert_array_equal(y, np.where(x > 2.5, x * 2, x))
    lengths, sums = rng.integers(0, 90, 20).astype(np.int32), np.full(20, np.nan, np.float32)
    skipped(lengths, x, sums)
    wanted = [row[:n].astype(float).sum() for row, n in zip(x, lengths, strict=True)]
    bound = 90 * 2**-24 * np.abs(x.astype(float)).sum(axis=1)
    assert (np.abs(sums - wanted) <= bound).all()


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def past_an_edge(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    out = (self_index(M, i32) >= 20) | (self_index(N, i32) >= 25)
    v = read(x)

    @conditional(out.any(), else_return=[v])
    def moved(z):
        return z + 1000.0

    write(moved, y)


@pytest.mark.parametrize("subs", [{}, {M: 20, N: 25}], ids=["open", "known"])
@pytest.mark.parametrize("target", ["cpu", "sm_90a", "gfx942"])
def test_a_condition_on_positions_decides_what_is_computed(target, subs):
    """A boundary tile reaches past the edge, and its elements there belong to no array."""
    made, x, y = past_an_edge.compile(target=target, subs=subs), np.ones((20, 25), np.float32), np.zeros((20, 25))
    y = y.astype(np.float32)
    run(made, target, x, y)
    np.testing.assert_array_equal(y, x)
