"""CPU kernels with dynamic shapes: one binary for every shape, against float64, for every layout of arrays."""

import numpy as np
import pytest
from kernels import *
from open_products import PRODUCTS, between_guards

from tilewave import kernels as shipped
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.errors import CallError

pytestmark = pytest.mark.share(8)

L = sym.L
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)


HERE = [name for name, s in INSTRUCTION_SETS.items() if runs_here(s)]
TESTED = [(128, 128, 64), (1, 300, 40), (300, 1, 7), (70, 90, 1), (129, 257, 65), (300, 500, 70), (200, 300, 70)]
TESTED += [(20, 17, 11), (40, 30, 50), (24, 24, 16), (29, 23, 17), (5, 30, 3), (64, 32, 32), (35, 31, 21), (40, 36, 20)]
SMALL = [(1, 1, 1), (2, 3, 5), (31, 37, 41), (127, 131, 67), (7, 211, 2), (33, 1, 1), (1, 49, 97), (64, 96, 32)]
NOTHING = [(0, 5, 7), (5, 0, 3), (6, 7, 0), (0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_one_binary_multiplies_every_shape(name):
    for shape in (*TESTED, *SMALL):
        PRODUCTS[name].check(*shape)


@pytest.mark.parametrize("name", [name for name, p in PRODUCTS.items() if p.symbols(0, 0).get("N_TILES") != 0])
def test_sizes_of_nothing(name):
    """Without K all sums are 0; without M or N nothing runs."""
    for shape in NOTHING:
        PRODUCTS[name].check(*shape)
    a, b, c = PRODUCTS[name].operands(6, 7, 0)
    PRODUCTS[name].check_arrays(a, b, c)
    assert not np.asarray(c, np.float64).any()


@pytest.mark.share(30)
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", PRODUCTS)
def test_three_hundred_random_shapes(name, seed):
    rng = np.random.default_rng(seed)
    for shape in np.exp(rng.uniform(0, np.log(400), (10, 3))).astype(int).tolist():
        PRODUCTS[name].check(*shape, seed=seed)


@pytest.mark.parametrize("instruction_set", HERE)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "f64", "columns of both", "reordered"])
def test_every_instruction_set_of_this_machine(name, instruction_set):
    made, only = PRODUCTS[name], INSTRUCTION_SETS[instruction_set].only
    if only and (made.dtype.name not in only or name == "columns of both"):
        pytest.skip(f"{instruction_set} multiplies {' and '.join(only)}, in tiles of whole registers")
    for shape in ((129, 257, 65), (1, 1, 1), (64, 64, 64), (31, 300, 7), (6, 7, 0), (0, 3, 5)):
        made.check(*shape, instruction_set)


@pytest.mark.parametrize("name", [name for name in INSTRUCTION_SETS if name not in HERE])
def test_other_machines_get_code_for_every_size(name):
    build = PRODUCTS["f32"].compiled(name).build
    assert build.code.startswith(b"\x7fELF")
    assert "workgroup:" in build.asm


# -- layouts of arrays -------------------------------------------------------------------------------------------------


def strided(x):
    """Return a view of x's numbers: every second column and every third row of a larger array."""
    around = np.full((3 * x.shape[0] + 1, 2 * x.shape[1] + 1), 99, x.dtype)
    around[1::3, 1::2] = x
    return around[1::3, 1::2]


WAYS = {"turned": np.asfortranarray, "strided": strided, "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "columns of a", "persistent"])
def test_arrays_that_lie_in_any_way(name, way):
    for shape in ((70, 90, 33), (129, 31, 65), (3, 5, 2), (128, 96, 64)):
        a, b, c = (WAYS[way](x) for x in PRODUCTS[name].operands(*shape))
        PRODUCTS[name].check_arrays(a, b, c)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "columns of both"])
def test_nothing_outside_an_array_is_touched(name, at_end):
    for shape in ((70, 90, 33), (13, 97, 65), (1, 1, 1), (128, 96, 64), (64, 32, 0)):
        arrays = PRODUCTS[name].operands(*shape)
        if name == "columns of both":  # they are taken transposed
            arrays = arrays[0].T.copy(), arrays[1].T.copy(), arrays[2]
        a, b, c = (between_guards(x, at_end) for x in arrays)
        a, b = (a.T, b.T) if name == "columns of both" else (a, b)
        PRODUCTS[name].check_arrays(a, b, c)


@pytest.mark.parametrize("threads", ["1", "2", "7"])
@pytest.mark.parametrize("name", ["f32", "i8", "persistent", "a grid of three"])
def test_any_number_of_threads(name, threads, monkeypatch):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", threads)
    for shape in ((300, 500, 70), (1, 1, 1), (65, 97, 300), (5, 6, 0)):
        PRODUCTS[name].check(*shape)


def test_results_are_those_of_fixed_sizes_to_the_bit():
    """A sum's order is that of K, with fixed and with dynamic sizes."""
    for shape in ((129, 257, 65), (64, 96, 32), (1, 1, 1), (31, 37, 100)):
        a, b, c = PRODUCTS["f32"].operands(*shape)
        made = shipped.gemm(shape, f32, tile=(64, 96, 32))
        fixed = poisoned(c.shape, f32)
        compiled(made.kernel, subs=made.subs, target="cpu")(a, b, fixed)
        PRODUCTS["f32"].compiled()(a, b, c)
        np.testing.assert_array_equal(c, fixed)


# -- kernels without products ---------------------------------------------------------------------------------------

TWO = [WorkgroupConstraint(M, 24, 0), WorkgroupConstraint(N, 40, 1)]


@wave(TWO)
def scaled(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a) * 2.0 + 1.0, c)


@wave(TWO)
def in_place(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a) * 2.0, c)
    write(read(c) + 1.0, c)


@wave(TWO)
def read_again(a: Memory[M, N, G, f32], c: Memory[N, M, G, f32]):
    write(read(a), c)
    write(read(c) * 2.0 + 1.0, c)


@wave(TWO)
def upside_down(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a, mapping=IndexMapping(2, inputs={M: M - 1 - i, N: j}, outputs={M: i, N: j})), c)


@wave(TWO)
def scattered(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a), c, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: N - 1 - j}))


@wave(TWO)
def halves(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a, mapping=IndexMapping(2, inputs={M: i // 2, N: j}, outputs={M: i, N: j})), c)


MOVED = {
    scaled: lambda a: a * 2 + 1,
    in_place: lambda a: a * 2 + 1,
    read_again: lambda a: (a * 2 + 1).T,
    upside_down: lambda a: a[::-1],
    scattered: lambda a: a[:, ::-1],
    halves: lambda a: np.repeat(a, 2, 0)[: len(a)],
}


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("kernel", MOVED, ids=lambda k: k.name)
def test_kernels_that_move_numbers_of_any_shape(kernel, at_end):
    made, rng = compiled(kernel, target="cpu"), np.random.default_rng(0)
    for shape in ((24, 40), (48, 80), (1, 1), (25, 41), (23, 39), (100, 7), (3, 211), (0, 5), (5, 0)):
        a = between_guards(rng.integers(-9, 10, shape).astype(np.float32), at_end)
        want = MOVED[kernel](a)
        c = between_guards(poisoned(want.shape, f32), at_end)
        made(a, c)
        np.testing.assert_array_equal(c, want)


@wave(TWO)
def last_rows(a: Memory[L, N, G, i8], c: Memory[M, N, G, i8]):
    write(read(a, mapping=IndexMapping(2, inputs={L: L - 1 - i, N: j}, outputs={M: i, N: j})), c)


def test_arrays_of_more_elements_than_32_bits_count():
    """Nearly all of it is never touched, and takes no memory."""
    made = compiled(last_rows, target="cpu")
    a = np.zeros((70_000, 65_537), np.int8)
    a[-3:] = np.arange(65_537) % 100 + np.arange(3)[:, None]
    c = poisoned((3, 65_537), i8)
    made(a, c)
    np.testing.assert_array_equal(c, a[:-4:-1])


@wave([*TWO, TilingConstraint(K, 16)])
def two_sums(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
    """One product is packed, the other's operand is computed."""

    @iterate(K, init_args=[Register[M, N, f32](0.0), Register[M, N, f32](0.0)])
    def sums(plain, shifted):
        return mma(read(a), read(b), plain), mma(read(a) + 1.0, read(b), shifted)

    write(sums[0], c)
    write(sums[1], d)


def test_a_packed_product_beside_one_that_is_not():
    """The loop keeps the author's steps, and the last of them reads beyond K."""
    made, rng = compiled(two_sums, target="cpu"), np.random.default_rng(0)
    for m, n, k in ((24, 40, 16), (25, 41, 17), (1, 1, 1), (50, 7, 3), (9, 8, 0), (7, 5, 50)):
        a, b = (rng.integers(-8, 9, s).astype(np.float32) for s in ((m, k), (n, k)))
        c, d = poisoned((m, n), f32), poisoned((m, n), f32)
        made(a, b, c, d)
        np.testing.assert_array_equal(c, a @ b.T)
        np.testing.assert_array_equal(d, (a + 1) @ b.T)


@wave([*TWO, WorkgroupConstraint(B, 1, 2), TilingConstraint(K, 16)])
def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave([*TWO, TilingConstraint(K, 16)])
def biased(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], bias: Memory[N, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[read(c)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total + read(bias), c)


def test_batches_are_open_too():
    made, rng = compiled(batched, target="cpu"), np.random.default_rng(0)
    assert str(made.ir()).count("prepack(") == 2
    for count, m, n, k in ((1, 24, 40, 16), (3, 25, 41, 17), (2, 1, 1, 1), (5, 50, 7, 3), (0, 3, 4, 5), (2, 3, 4, 0)):
        a, b = random_array(rng, (count, m, k), f16), random_array(rng, (count, n, k), f16)
        c = poisoned((count, m, n), f32)
        made(a, b, c)
        if c.size:
            check_product(c, a, b)


def test_a_product_that_is_added_to_what_was_there():
    made, rng = compiled(biased, target="cpu"), np.random.default_rng(0)
    for m, n, k in ((24, 40, 16), (25, 41, 17), (1, 1, 1), (50, 7, 3), (9, 8, 0)):
        a, b, bias, c = (rng.integers(-8, 9, s).astype(np.float32) for s in ((m, k), (n, k), (n,), (m, n)))
        want = c + a @ b.T + bias
        made(a, b, bias, c)
        np.testing.assert_array_equal(c, want)


def test_some_sizes_may_be_fixed():
    """What subs say is folded, and an array that does not agree is refused."""
    for fixed in ({M: 70}, {N: 90}, {K: 33}, {N: 90, K: 33}):
        subs = {BLOCK_M: 32, BLOCK_N: 48, BLOCK_K: 16, **fixed}
        made = compiled(gemm(f32), subs=subs, target="cpu")
        assert not set(made.open_sizes) & {str(s) for s in fixed}
        for m, n, k in ((70, 90, 33), (fixed.get(M, 1), fixed.get(N, 7), fixed.get(K, 50))):
            a, b, c = PRODUCTS["f32"].operands(m, n, k)
            made(a, b, c)
            check_product(c, a, b)
        with pytest.raises(CallError):
            made(*PRODUCTS["f32"].operands(71, 91, 34))
