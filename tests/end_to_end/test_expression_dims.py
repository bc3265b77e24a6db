"""A dim that is an expression of a cut dim goes with its tiles, on every target, with known and with open sizes."""

import numpy as np
import pytest
from kernels import G, K, M, N, compiled, error_bound, poisoned, random_array

from tilewave import *

TARGETS = ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"]
BY_ROWS = [WorkgroupConstraint(M, 16, 0), TilingConstraint(K, 32)]
DIMS = [K // 2, ceiling(K / 2), K // 32, ceiling(K / 64), floor(K / 64), 2 * K, K * 3 // 4, 2 * (K // 64)]
"""Blocks that are shorter than a step of 32, as long, and longer; several elements for each of K, and both."""
known_and_open = pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])


def ways(kernel):
    """All in which a compiled kernel can be run here."""
    yield kernel.interpret
    if kernel.target in ("numpy", "cpu"):
        yield kernel
    if kernel.build.lanes:
        yield lambda *arrays, **named: kernel.interpret(*arrays, level="lane", **named)
    if kernel.build.emulated:
        yield kernel.emulate


def elements(dim, k, step=32, block=64):
    """The elements of a dim that belong to each step along K; a block that is longer than a step belongs to each of
    its steps."""
    length, of_step, of_block = (int(dim.evaluate({K: n})) for n in (k, step, block))
    size, of_size = (step, of_step) if of_step * block == of_block * step else (block, of_block)
    for first in range(0, k, step):
        yield slice(min(first // size * of_size, length), min((first // size + 1) * of_size, length))


@pytest.mark.share(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dim", DIMS, ids=str)
@known_and_open
def test_a_step_has_the_elements_that_belong_to_it(dim, is_open, target):
    """Sums and largest elements: what is read past the end counts in neither."""

    @wave(BY_ROWS)
    def reduced(x: Memory[M, dim, G, f32], of: Memory[M, K, G, i8], y: Memory[M, G, f32], z: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](0.0)])
        def total(acc):
            return read(x).sum(dim=dim, acc=acc)

        @iterate(K, init_args=[Register[M, f32](-100.0)])
        def most(acc):
            return (read(x) - 50.0).max(dim=dim, acc=acc)

        write(total, y)
        write(most, z)

    open_kernel = compiled(reduced, target=target) if is_open else None
    rng = np.random.default_rng(0)
    for m, k in [(16, 128), (17, 64), (5, 33), (20, 65), (3, 32), (1, 1), (4, 0)]:
        kernel = open_kernel or compiled(reduced, target=target, subs={M: m, K: k})
        x = rng.integers(-8, 9, (m, int(dim.evaluate({K: k})))).astype(np.float32)
        parts = [x[:, part] for part in elements(dim, k)]
        for run in ways(kernel):
            y, z = poisoned(m, f32), poisoned(m, f32)
            run(x, np.zeros((m, k), np.int8), y, z)
            np.testing.assert_array_equal(y, sum((p.sum(1) for p in parts), np.zeros(m)))
            most = [p.max(1) - 50 for p in parts if p.size] or [np.full(m, -100.0)]
            np.testing.assert_array_equal(z, np.max(most, axis=0))


@pytest.mark.share(6)
@pytest.mark.parametrize("target", TARGETS)
@known_and_open
def test_tiles_of_the_grid_are_cut_in_proportion(target, is_open):
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def copied(
        x: Memory[M, N / 2, G, f32],
        y: Memory[2 * M, N, G, f32],
        a: Memory[M, N / 2, G, f32],
        b: Memory[2 * M, N, G, f32],
    ):
        write(read(x) + 1.0, a)
        write(read(y) * 2.0, b)

    open_kernel = compiled(copied, target=target) if is_open else None
    rng = np.random.default_rng(1)
    for m, n in [(16, 32), (17, 66), (5, 64), (40, 98), (1, 2)]:
        kernel = open_kernel or compiled(copied, target=target, subs={M: m, N: n})
        x, y = random_array(rng, (m, n // 2), f32), random_array(rng, (2 * m, n), f32)
        for run in ways(kernel):
            a, b = poisoned(x.shape, f32), poisoned(y.shape, f32)
            run(x, y, a, b)
            np.testing.assert_array_equal(a, x + np.float32(1))
            np.testing.assert_array_equal(b, y * np.float32(2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dim", [K // 2, 2 * K], ids=str)
@known_and_open
def test_products_along_a_dim_in_proportion(dim, is_open, target):
    """Packed panels, staged tiles and matrix instructions see a depth that is not the loop's own."""

    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 32)])
    def product(a: Memory[M, dim, G, f16], b: Memory[N, dim, G, f16], of: Memory[M, K, G, i8], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    open_kernel = compiled(product, target=target) if is_open else None
    rng = np.random.default_rng(2)
    for m, n, k in [(32, 32, 64), (35, 50, 97), (33, 20, 33), (1, 3, 32)]:
        kernel = open_kernel or compiled(product, target=target, subs={M: m, N: n, K: k})
        depth = int(dim.evaluate({K: k}))
        a, b = random_array(rng, (m, depth), f16), random_array(rng, (n, depth), f16)
        want = a.astype(np.float64) @ b.astype(np.float64).T
        bound = error_bound(np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T, depth, f32)
        for run in ways(kernel):
            c = poisoned((m, n), f32)
            run(a, b, np.zeros((m, k), np.int8), c)
            assert (np.abs(c - want) <= bound).all()


SCALED = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 64)]


@pytest.mark.share(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [64, 128])
@known_and_open
def test_block_scales_multiply_the_products_of_their_block(block, is_open, target):
    """A tile of scales has one element along K / block, which the carried sums do without."""

    @wave(SCALED)
    def scaled(
        a: Memory[M, K, G, f16],
        b: Memory[N, K, G, f16],
        scale: Memory[M, ceiling(K / block), G, f32],
        c: Memory[M, N, G, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return acc + mma(read(a), read(b), Register[M, N, f32](0.0)) * read(scale)

        write(total, c)

    open_kernel = compiled(scaled, target=target) if is_open else None
    rng = np.random.default_rng(3)
    for m, n, k in [(32, 32, 192), (35, 17, 130), (3, 40, 64)]:
        kernel = open_kernel or compiled(scaled, target=target, subs={M: m, N: n, K: k})
        a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
        scale = 2.0 ** rng.integers(-3, 4, (m, -(-k // block))).astype(np.float32)
        want = (a.astype(np.float64) * np.repeat(scale, block, axis=1)[:, :k]) @ b.astype(np.float64).T
        for run in ways(kernel):
            c = poisoned((m, n), f32)
            run(a, b, scale.astype(np.float32), c)
            np.testing.assert_array_equal(c, want)


@pytest.mark.share(6)
@pytest.mark.parametrize("target", TARGETS)
@known_and_open
def test_block_scales_are_repeated_along_their_block_by_a_mapping(target, is_open):
    """Blocks of 16 in steps of 64: an operand of a product is scaled, element by element."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    repeated = IndexMapping(2, inputs={M: i, K / 16: j // 16}, outputs={M: i, K: j})

    @wave(SCALED)
    def scaled(
        a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], scale: Memory[M, K / 16, G, f16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a) * read(scale, mapping=repeated), read(b), acc)

        write(total, c)

    open_kernel = compiled(scaled, target=target) if is_open else None
    rng = np.random.default_rng(4)
    for m, n, k in [(32, 32, 128), (35, 17, 80)]:
        kernel = open_kernel or compiled(scaled, target=target, subs={M: m, N: n, K: k})
        a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
        scale = (2.0 ** rng.integers(-2, 3, (m, k // 16))).astype(np.float16)
        want = (a.astype(np.float64) * np.repeat(scale, 16, axis=1)) @ b.astype(np.float64).T
        for run in ways(kernel):
            c = poisoned((m, n), f32)
            run(a, b, scale, c)
            np.testing.assert_array_equal(c, want)


@pytest.mark.share(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [64, 128])
@known_and_open
def test_an_operand_of_bytes_times_its_block_scales(block, is_open, target):
    """One scale a step, or for two steps: the operand has no axis for it."""

    @wave(SCALED)
    def scaled(
        a: Memory[M, K, G, f16], w: Memory[N, K, G, i8], scale: Memory[N, K / block, G, f16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), cast(read(w), f16) * read(scale), acc)

        write(total, c)

    open_kernel = compiled(scaled, target=target) if is_open else None
    rng = np.random.default_rng(5)
    for m, n, k in [(32, 32, 256), (35, 17, 128)]:
        kernel = open_kernel or compiled(scaled, target=target, subs={M: m, N: n, K: k})
        a, w = rng.integers(-3, 4, (m, k)).astype(np.float16), rng.integers(-3, 4, (n, k)).astype(np.int8)
        scale = (2.0 ** rng.integers(-2, 3, (n, k // block))).astype(np.float16)
        want = a.astype(np.float64) @ (w * np.repeat(scale.astype(np.float64), block, axis=1)).T
        for run in ways(kernel):
            c = poisoned((m, n), f32)
            run(a, w, scale, c)
            np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where", ["loop", "grid"])
@known_and_open
def test_a_number_of_each_block_is_written(where, is_open, target):
    """As quantization stores scales: in the steps of a loop, and in tiles of the grid."""

    def quantize(x: Memory[M, K, G, f32], q: Memory[M, K, G, f32], scale: Memory[M, K / 64, G, f32]):
        def block():
            most = read(x).max(dim=K)
            write(read(x) * 0.5 + most, q)
            write(most, scale)

        iterate(K)(block) if where == "loop" else block()

    along = TilingConstraint(K, 64) if where == "loop" else WorkgroupConstraint(K, 64, 1)
    quantize = wave([WorkgroupConstraint(M, 16, 0), along])(quantize)
    open_kernel = compiled(quantize, target=target) if is_open else None
    rng = np.random.default_rng(6)
    for m, k in [(16, 256), (21, 64)]:
        kernel = open_kernel or compiled(quantize, target=target, subs={M: m, K: k})
        x = rng.integers(-9, 10, (m, k)).astype(np.float32)
        most = x.reshape(m, -1, 64).max(axis=2)
        for run in ways(kernel):
            q, scale = poisoned((m, k), f32), poisoned((m, k // 64), f32)
            run(x, q, scale)
            np.testing.assert_array_equal(scale, most)
            np.testing.assert_array_equal(q, x * 0.5 + np.repeat(most, 64, axis=1))


def test_several_scales_a_step_are_to_be_repeated():
    """The remedy is what `test_block_scales_are_repeated_along_their_block_by_a_mapping` does."""

    @wave(SCALED)
    def scaled(
        a: Memory[M, K, G, f16], w: Memory[N, K, G, i8], scale: Memory[N, K / 16, G, f16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), cast(read(w), f16) * read(scale), acc)

        write(total, c)

    with pytest.raises(TilewaveError, match=r"b is 32x64x4 \[N, K, K / 16\]") as raised:
        scaled.compile(target="cpu")
    assert raised.value.remedy == (
        "b has 4 blocks of 16 along K: repeat each element of K / 16 along its block, "
        "read(…, mapping=IndexMapping(…, inputs={…, K / 16: j // 16}, outputs={…, K: j})), or tile K by 16"
    )
