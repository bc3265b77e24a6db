"""Dims: expressions of others, numbers of the hardware's, and those of one element."""

import numpy as np
import pytest
from kernels import G, K, M, N, compiled, poisoned

from tilewave import *
from tilewave.errors import CallError, ShapeError, SymbolError
from tilewave.lang.cutting import Cutting
from tilewave.lang.symbols import quotient
from tilewave.trace import DimensionWindow, TileWork

U, P = sym.U, sym.P


@wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, 32)])
def halves(a: Memory[M, K, G, f32], x: Memory[M, K / 2, G, f32], y: Memory[M, G, f32]):
    @iterate(K, init_args=[Register[M, f32](0.0)])
    def total(acc):
        return read(x).sum(dim=K / 2, acc=acc)

    write(total, y)


def arrays(m, k):
    x = np.arange(float(m * (k // 2)), dtype=np.float32).reshape(m, k // 2)
    return np.zeros((m, k), np.float32), x, poisoned(m, f32)


# -- expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "extent", "block", "wanted"),
    [
        (3, 64, 64, (3, 1)),
        (3, 64, 16, (12, 4)),
        (3, 64, 128, (1, 1)),
        (4, 64, 256, (1, 1)),
        (5, 1, 7, (0, 1)),
        (3, 64, 48, None),
        (3, 64, 96, None),
    ],
)
def test_a_tile_has_the_blocks_that_belong_to_it(number, extent, block, wanted):
    found = DimensionWindow.tile(number, extent).per(block)
    assert (found and (found.start, found.extent)) == wanted


def test_a_tile_that_begins_anywhere_has_whole_multiples_alone():
    assert DimensionWindow(7, 64).per(64) is None
    assert DimensionWindow(7, 64).times(2) == DimensionWindow(14, 128)
    assert DimensionWindow(7, 1).per(4) == DimensionWindow(1, 1, 1)


@pytest.mark.parametrize(
    ("dim", "wanted"),
    [
        (K, "(K, 1)"),
        (K / 64, "(K, 64)"),
        (2 * (K / 64), "(2 * K, 64)"),
        (K / 2 + M, "(K + (M * 2), 2)"),
        (K // 64, "(K // 64, 1)"),
        (K / (M / 2), "(K * 2, M)"),
    ],
)
def test_a_quotient_has_a_numerator_and_a_denominator(dim, wanted):
    assert str(quotient(dim)) == wanted


def test_an_open_quotient_must_be_whole_at_the_call_and_after_loading(tmp_path):
    kernel = compiled(halves, target="cpu")
    kernel.save(tmp_path / "halves.tilewave")
    for one in (kernel, load(tmp_path / "halves.tilewave"), halves):
        for k in (64, 2, 34):
            given = arrays(5, k)
            one(*given)
            np.testing.assert_array_equal(given[2], given[1].sum(1))
        with pytest.raises(CallError, match=r"^halves: K / 2 is no whole number, as K is 33"):
            one(*arrays(5, 33))


def test_a_quotient_that_is_known_must_be_whole():
    with pytest.raises(SymbolError, match="K / 2 is 33/2, no whole number"):
        compiled(halves, subs={M: 5, K: 33})


def test_another_length_than_the_quotient_is_refused():
    a, x, y = arrays(5, 64)
    with pytest.raises(CallError, match="x is 5x31, but its axis 1 is 32 where M is 5, K is 64"):
        halves(a, x[:, :-1].copy(), y)


def test_a_tile_that_nobody_gives_is_chosen_for_dims_that_go_with_it():
    BLOCK_K = sym.BLOCK_K
    chosen = wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK_K)])(halves.function)
    given = arrays(40, 200)
    chosen(*given)
    np.testing.assert_array_equal(given[2], given[1].astype(np.float64).sum(1).astype(np.float32))


def test_the_cost_model_sees_the_part_of_a_dim_that_belongs_to_a_tile():
    cutting = Cutting(TileWork(), halves.constraints, {M: 64, K: 130})
    assert [cutting.extent(d) for d in (K, K / 2, 2 * K, K // 64, N // 2)[:4]] == [32, 16, 64, 1]
    assert [cutting.size(d) for d in (K / 2, K / 64, ceiling(K / 64))] == [65, 2, 3]


# -- numbers of the hardware's -----------------------------------------------------------------------------------------

HARDWARE = [WORKGROUP_0, WORKGROUP_1, WORKGROUP_2, THREAD_0, THREAD_1, THREAD_2]


@pytest.mark.parametrize("number", HARDWARE, ids=str)
def test_nobody_gives_a_number_of_the_hardwares(number):
    def numbered(y: Memory[M, G, f32]):
        write(Register[M, f32](0.0), y)

    def setting(y: Memory[M, G, f32]):
        set_symbol(number, 3)
        write(Register[M, f32](0.0), y)

    rows = [WorkgroupConstraint(M, 16, 0)]
    ways = [
        lambda: wave(rows, subs={number: 5}),
        lambda: wave(rows)(numbered).compile(target="numpy", subs={M: 16, number: 5}),
        lambda: wave(rows)(numbered).compile(target="numpy", subs={M: 16}, dynamic_symbols=[number]),
        lambda: wave(rows)(numbered)(np.zeros(4, np.float32), subs={number: 5}),
        lambda: wave(rows)(setting).compile(target="numpy", subs={M: 16}),
        lambda: Memory[number, G, f32],
        lambda: WorkgroupConstraint(number, 16, 0),
        lambda: TilingConstraint(K, number),
        lambda: GridConstraint(number * 2),
    ]
    for way in ways:
        with pytest.raises(SymbolError, match=f"{number} is the number of a (workgroup|lane), which cannot be given"):
            way()


# -- dims of one element -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
@pytest.mark.parametrize("dtype", [f32, f16, i32], ids=str)
def test_a_loop_and_a_write_do_without_dims_of_one_element(dtype, target):
    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(U, 1)])
    def added(x: Memory[U, M, G, dtype], s: Memory[P, G, dtype], y: Memory[M, G, dtype]):
        @iterate(U, init_args=[Register[M, dtype](0)])
        def total(acc):
            return acc + read(x)

        write(total * read(s), y)

    kernel = compiled(added, target=target, subs={M: 21, U: 4, P: 1})
    x = np.random.default_rng(0).integers(-9, 9, (4, 21)).astype(dtype.numpy)
    y = poisoned(21, dtype)
    kernel.interpret(x, np.array([3], dtype.numpy), y)
    np.testing.assert_array_equal(y, x.sum(0) * 3)
    if kernel.build.lanes:
        y = poisoned(21, dtype)
        kernel.interpret(x, np.array([3], dtype.numpy), y, level="lane")
        np.testing.assert_array_equal(y, x.sum(0) * 3)
    if target == "cpu":
        y = poisoned(21, dtype)
        kernel(x, np.array([3], dtype.numpy), y)
        np.testing.assert_array_equal(y, x.sum(0) * 3)


def test_a_loop_carries_a_dim_of_one_element_that_its_body_lacks():
    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, 8)])
    def counted(x: Memory[K, M, G, f32], y: Memory[P, M, G, f32]):
        @iterate(K, init_args=[Register[P, M, f32](0.0)])
        def total(acc):
            return acc.max(dim=P) + read(x).sum(dim=K)

        write(total, y)

    x, y = np.random.default_rng(0).integers(-9, 9, (20, 21)).astype(np.float32), poisoned((1, 21), f32)
    compiled(counted, subs={M: 21, K: 20, P: 1}).interpret(x, y)
    np.testing.assert_array_equal(y, x.sum(0, keepdims=True))


@pytest.mark.parametrize("length", [0, 2])
def test_a_dim_of_none_or_two_elements_is_not_left_out(length):
    @wave([WorkgroupConstraint(M, 16, 0)])
    def scaled(s: Memory[P, G, f32], x: Memory[M, G, f32], y: Memory[M, G, f32]):
        write(read(x) * read(s), y)

    with pytest.raises(ShapeError, match=r"does not fit y, which takes \[M\]"):
        compiled(scaled, subs={M: 16, P: length})
