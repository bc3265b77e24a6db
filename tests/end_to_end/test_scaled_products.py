"""Wave's narrow numbers: two to a byte, halves of words, and products whose operands have scales by blocks."""

import ml_dtypes
import numpy as np
import pytest
from kernels import check_product, error_bound
from test_vocabulary import everywhere, poisoned, run

import tilewave as tkw
from tilewave import *
from tilewave.errors import ConstraintError, DTypeError, ShapeError

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILED = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1)]
rng = np.random.default_rng(4)
FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def halves_of(packed):
    """The numbers of bytes with two numbers of four bits each, the lower half first."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return np.where(nibbles & 8, -1.0, 1.0) * FOUR_BITS[nibbles & 7]


def bytes_of(*shape, low=0, high=256):
    return rng.integers(low, high, shape).astype(np.uint8)


@everywhere
def test_every_byte_is_two_numbers(way):
    @wave([WorkgroupConstraint(M, 8, 0)])
    def decoded(a: Memory[M, K / 2, G, i8], c: Memory[M, K, G, f32]):
        write(cast(bitcast(read(a), f4e2m1fn), f32), c)

    a, c = np.arange(256, dtype=np.uint8).reshape(16, 16), poisoned(16, 32)
    run(way, decoded, {M: 16, K: 32}, a.view(np.int8), c)
    np.testing.assert_array_equal(c, halves_of(a))
    np.testing.assert_array_equal(np.signbit(c), np.signbit(halves_of(a)))


@everywhere
def test_every_scale_is_a_power_of_two(way):
    @wave([WorkgroupConstraint(M, 64, 0)])
    def decoded(a: Memory[M, G, i8], c: Memory[M, G, f32]):
        write(bitcast(read(a), f8e8m0fnu), c)

    a, c = np.arange(256, dtype=np.uint8), poisoned(256)
    run(way, decoded, {M: 256}, a.view(np.int8), c)
    np.testing.assert_array_equal(c, a.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))


@everywhere
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_words_are_two_numbers(way, dtype):
    @wave([*TILED, TilingConstraint(K, 32)])
    def product(a: Memory[M, K / 2, G, i32], b: Memory[N, K / 2, G, i32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(bitcast(read(a), dtype), bitcast(read(b), dtype), acc)

        write(total, c)

    a, b = (rng.standard_normal((rows, 70)).astype(dtype.numpy) for rows in (40, 20))
    c = poisoned(40, 20)
    run(way, product, {M: 40, N: 20, K: 70}, a.view(np.int32), b.view(np.int32), c)
    check_product(c, a, b)


@everywhere
@pytest.mark.parametrize("depth", [64, 160])
def test_products_with_scales(way, depth):
    hardware = HardwareConstraint(threads_per_wave=64, mma_type=ScaledMMAType.F32_16x16x128_F8F6F4)

    @wave([*TILED, TilingConstraint(K, 64), hardware])
    def product(
        a: Memory[M, K / 2, G, i8],
        a_scale: Memory[M, K / 32, G, i8],
        b: Memory[N, K / 2, G, i8],
        b_scale: Memory[N, K / 32, G, i8],
        c: Memory[M, N, G, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            first, its = bitcast(read(a), f4e2m1fn), bitcast(read(a_scale), f8e8m0fnu)
            second, others = bitcast(read(b), f4e2m1fn), bitcast(read(b_scale), f8e8m0fnu)
            return tkw.scaled_mma(first, its, second, others, acc)

        write(total, c)

    operands = [bytes_of(rows, depth // 2) for rows in (40, 20)]
    scales = [bytes_of(rows, depth // 32, low=120, high=135) for rows in (40, 20)]
    c = poisoned(40, 20)
    given = [x.view(np.int8) for pair in zip(operands, scales, strict=True) for x in pair]
    run(way, product, {M: 40, N: 20, K: depth}, *given, c)
    x, y = (
        halves_of(a) * 2.0 ** (s.astype(float).repeat(32, axis=1) - 127) for a, s in zip(operands, scales, strict=True)
    )
    off = np.abs(c - x @ y.T) - error_bound(np.abs(x) @ np.abs(y).T, depth, f32)
    assert off.max() <= 0, off.max()


@everywhere
def test_operands_and_scales_in_another_order(way):
    """Mappings name K / 2 and K / 32 as K, as Wave's do: rows upside down, neighbouring blocks exchanged."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    rows = IndexMapping(2, {M: M - 1 - i, K: j}, {M: i, K: j})
    blocks = IndexMapping(2, {N: j, K: i + 1 - i % 2 * 2}, {K: i, N: j})

    @wave([*TILED, TilingConstraint(K, 64)])
    def product(
        a: Memory[M, K / 2, G, i8],
        a_scale: Memory[M, K / 32, G, i8],
        b: Memory[N, K, G, bf16],
        b_scale: Memory[N, K / 32, G, i8],
        c: Memory[M, N, G, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            first, its = bitcast(read(a, mapping=rows), f4e2m1fn), bitcast(read(a_scale, mapping=rows), f8e8m0fnu)
            return tkw.scaled_mma(first, its, read(b), bitcast(read(b_scale, mapping=blocks), f8e8m0fnu), acc)

        write(total, c)

    a, b = bytes_of(40, 64), rng.standard_normal((20, 128)).astype(ml_dtypes.bfloat16)
    scales, c = [bytes_of(n, 4, low=120, high=135) for n in (40, 20)], poisoned(40, 20)
    run(way, product, {M: 40, N: 20, K: 128}, a.view(np.int8), scales[0].view(np.int8), b, scales[1].view(np.int8), c)
    powers = [2.0 ** (s.astype(float).repeat(32, axis=1) - 127) for s in (scales[0][::-1], scales[1][:, [1, 0, 3, 2]])]
    x, y = halves_of(a)[::-1] * powers[0], b.astype(float) * powers[1]
    assert (np.abs(c - x @ y.T) <= error_bound(np.abs(x) @ np.abs(y).T, 128, f32)).all()


def test_scales_are_read_along_the_blocks_of_the_depth():
    @wave([*TILED, TilingConstraint(K, 64)])
    def product(
        a: Memory[M, K, G, bf16], scale: Memory[M, K / 64, G, i8], b: Memory[N, K, G, bf16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            scales = bitcast(read(scale), f8e8m0fnu)
            return tkw.scaled_mma(read(a), scales, read(b), scales, acc)

        write(total, c)

    with pytest.raises(ShapeError, match="are not read along K / 32"):
        product.compile(target="numpy", subs={M: 40, N: 20, K: 64})


def test_parts_of_a_computed_tile_are_refused():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def decoded(a: Memory[M, K / 2, G, i8], c: Memory[M, K, G, f32]):
        write(cast(bitcast(read(a) + 1, f4e2m1fn), f32), c)

    with pytest.raises(DTypeError, match="bitcast: f4e2m1fn has 4 bits"):
        decoded.compile(target="numpy", subs={M: 16, K: 32})
    with pytest.raises(DTypeError, match="dtype of tilewave"):
        Memory[M, G, f4e2m1fn]
    with pytest.raises(ConstraintError, match="no MMAType"):
        HardwareConstraint(mma_type="f4")
