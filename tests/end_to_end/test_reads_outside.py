"""Out-of-bounds reads are 0 on every target, for a part of a tile and for a whole one."""

import numpy as np
import pytest
from kernels import G, K, M, N, compiled, poisoned, random_array
from test_expression_dims import TARGETS, known_and_open, ways

from tilewave import *

i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
BY_SIXTEEN = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)]


def shifted(down, right):
    return IndexMapping(2, inputs={M: i + down, N: j + right}, outputs={M: i, N: j})


def moved(x, down, right):
    """x with zeros where nothing was."""
    found = np.zeros_like(x)
    rows, columns = np.indices(x.shape)
    inside = (rows + down >= 0) & (rows + down < x.shape[0]) & (columns + right >= 0) & (columns + right < x.shape[1])
    found[inside] = x[(rows + down)[inside], (columns + right)[inside]]
    return found


@pytest.mark.share(6)
@pytest.mark.parametrize("target", TARGETS)
@known_and_open
def test_a_stencil_is_padded_with_zeros(target, is_open):
    """Sizes whose last tile is one element wide, so that its right neighbours are all out of bounds."""

    @wave(BY_SIXTEEN)
    def laplace(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        total = read(x) * -4.0
        for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            total = total + read(x, mapping=shifted(down, right))
        write(total, y)

    open_kernel = compiled(laplace, target=target) if is_open else None
    rng = np.random.default_rng(0)
    for shape in [(20, 35), (17, 33), (1, 1), (16, 32), (33, 1)]:
        kernel = open_kernel or compiled(laplace, target=target, subs=dict(zip((M, N), shape, strict=True)))
        x = rng.integers(-8, 9, shape).astype(np.float32)
        for run in ways(kernel):
            y = poisoned(shape, f32)
            run(x, y)
            np.testing.assert_array_equal(y, sum(moved(x, *d) for d in ((0, 1), (0, -1), (1, 0), (-1, 0))) - 4 * x)


@pytest.mark.share(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["window", "formula"])
def test_a_tile_far_outside_is_zeros(way, target):
    """As far as a number of the call says, before the array and after it."""
    rows, columns = sym.ROWS, sym.COLUMNS
    there = {"window": {M: i + rows - 99, N: j + columns}, "formula": {M: i + rows - 99, N: columns + 2 * j - j}}[way]

    @wave(BY_SIXTEEN)
    def copied(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a, mapping=IndexMapping(2, inputs=there, outputs={M: i, N: j})), c)

    kernel = compiled(copied, target=target, dynamic_symbols=[rows, columns])
    a = random_array(np.random.default_rng(1), (17, 40), f32)
    for down, right in [
        (0, 0),
        (-3, 5),
        (16, 0),
        (17, 0),
        (-17, 39),
        (0, 40),
        (100, 1_000_000),
        (-99, 0),
        (1 << 31, 0),
    ]:
        for run in ways(kernel):
            c = poisoned(a.shape, f32)
            run(a, c, ROWS=down + 99, COLUMNS=right)
            np.testing.assert_array_equal(c, moved(a, down, right))


@pytest.mark.share(10)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("further", [-70, -5, 5, 33, 70])
@known_and_open
def test_steps_of_a_loop_may_lie_outside(further, is_open, target):
    """Sums and products that read K further on than the loop is: no step is lost, whatever the last one reads."""
    ahead = IndexMapping(2, inputs={M: i, K: j + further}, outputs={M: i, K: j})
    of_columns = IndexMapping(2, inputs={N: i, K: j + further}, outputs={N: i, K: j})

    @wave([*BY_SIXTEEN, TilingConstraint(K, 16)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0), Register[M, f32](0.0)])
        def both(acc, count):
            x = read(a, mapping=ahead)
            return mma(x, read(b, mapping=of_columns), acc), count + (cast(x, f32) + 1.0).sum(dim=K)

        write(both[0], c)
        write(broadcast(both[1], target_shape=[M, N]), d)

    open_kernel = compiled(product, target=target) if is_open else None
    rng = np.random.default_rng(2)
    for m, n, k in [(16, 16, 64), (17, 5, 40), (3, 20, 16), (1, 1, 1)]:
        kernel = open_kernel or compiled(product, target=target, subs={M: m, N: n, K: k})
        a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
        x, y = (moved(z, 0, further).astype(np.float64) for z in (a, b))
        for run in ways(kernel):
            c, d = poisoned((m, n), f32), poisoned((m, n), f32)
            run(a, b, c, d)
            np.testing.assert_array_equal(c, x @ y.T)
            np.testing.assert_array_equal(d, np.repeat((x + 1).sum(1)[:, None], n, axis=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("further", [0, 1])
@pytest.mark.parametrize("way", ["window", "formula"])
def test_an_empty_array_is_read_as_zeros(way, further, target):
    """Every read is out of bounds: of whole dims without elements, and of one element of such a dim."""
    there = {"window": {N: further, M: i}, "formula": {N: further, M: M - 1 - i}}[way]

    @wave([WorkgroupConstraint(M, 16, 0)])
    def one(a: Memory[M, N, G, f32], c: Memory[M, G, f32]):
        write(read(a, mapping=IndexMapping(1, inputs=there, outputs={M: i})) + 1.0, c)

    for kernel in (compiled(one, target=target), compiled(one, target=target, subs={M: 20, N: 0})):
        for run in ways(kernel):
            c = poisoned(20, f32)
            run(np.zeros((20, 0), np.float32), c)
            assert (c == 1).all()


def test_what_is_written_outside_is_still_refused():
    @wave(BY_SIXTEEN)
    def past(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a), c, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={M: i + 32, N: j}))

    with pytest.raises(TilewaveError, match="workgroup 0 computes tile"):
        compiled(past, subs={M: 32, N: 16})
