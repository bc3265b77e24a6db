"""Products of unaligned arrays, which TMA cannot load, lane by lane, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tilewave import *
from tilewave.backend.nvidia.code import BY_LANES, Specialization
from tilewave.errors import CallError
from tilewave.ir.types import BF16, F8E4M3FN, F16, F32, I8, I32
from tilewave.kernels.products import K, M, N, error_bound, gemm
from tilewave.machine.tuning import PackingTuning
from tilewave.runtime.arrays import view

pytestmark = pytest.mark.share(4)
TILE = (64, 64, 64)


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(PackingTuning, "pays", lambda *_: True)


def opened(made, **sizes):
    subs = {name: value for name, value in made.subs.items() if name not in (M, N, K)}
    return wave_compile(WaveCompileOptions(subs=subs | sizes, target="sm_90a"), made.kernel)


def operand(rng, shape, dtype, offset=0):
    """Return rows without gaps, `offset` elements after an aligned address."""
    whole = np.zeros(int(np.prod(shape)) + 64, dtype.numpy)
    first = -whole.ctypes.data % 64 // whole.itemsize + offset
    found = whole[first : first + int(np.prod(shape))].reshape(shape)
    found[...] = rng.integers(-3, 4, shape).astype(dtype.numpy)
    return found


def poisoned(shape, dtype):
    return np.full(shape, 99 if dtype.is_int else np.nan, dtype.numpy)


def plan(compiled, arrays):
    return compiled.build.program.plans.plan_for([view(x) for x in arrays])


SHAPES = [(97, 83, 71), (65, 72, 129), (128, 130, 128), (1, 3, 65), (130, 129, 1), (64, 64, 64)]
DTYPES = {"f16": (F16, F16), "bf16": (BF16, BF16), "f8": (F8E4M3FN, F16), "i8": (I8, I32), "f16 to f32": (F16, F32)}


@pytest.mark.parametrize("dtypes", DTYPES)
def test_one_kernel_multiplies_rows_that_begin_anywhere(dtypes):
    dtype, out = DTYPES[dtypes]
    compiled = opened(gemm((0, 0, 0), dtype, out, tile=TILE))
    rng = np.random.default_rng(1)
    for m, n, k in SHAPES:
        a, b, c = operand(rng, (m, k), dtype), operand(rng, (n, k), dtype), poisoned((m, n), out)
        compiled.interpret(a, b, c, level="lane")
        want = a.astype(np.float64) @ b.astype(np.float64).T
        bound = error_bound(want, np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T, k, dtype, out)
        assert (np.abs(c.astype(np.float64) - want) <= bound).all(), (m, n, k)
    assert compiled.binaries in ((), ("rows on cache lines",))


@pytest.mark.parametrize("order", ["backwards", "random"])
@pytest.mark.parametrize("shape", [(97, 83, 71), (65, 72, 129)])
def test_sizes_that_are_known_are_multiplied_alike(shape, order):
    m, n, k = shape
    made = gemm(shape, F16, F16, tile=TILE)
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    rng = np.random.default_rng(2)
    a, b, c = operand(rng, (m, k), F16), operand(rng, (n, k), F16), poisoned((m, n), F16)
    assert [r.name for r in plan(compiled, (a, b, c)).packed_copies] == ["a", "b"]
    compiled.interpret(a, b, c, level="lane", order=order, seed=5)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize("layout", ["nn", "tt", "tn"])
def test_the_other_layouts_are_repacked_alike(layout):
    compiled = opened(gemm((0, 0, 0), F16, F16, tile=TILE, layout=layout))
    rng = np.random.default_rng(9)
    m, n, k = 97, 83, 71
    a = operand(rng, (m, k) if layout[0] == "n" else (k, m), F16)
    b = operand(rng, (n, k) if layout[1] == "t" else (k, n), F16)
    c = poisoned((m, n), F16)
    assert [r.name for r in plan(compiled, (a, b, c)).packed_copies] == ["a", "b", "c"]
    compiled.interpret(a, b, c, level="lane")
    left, right = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    np.testing.assert_array_equal(c, left.astype(np.float64) @ right.astype(np.float64))


@pytest.mark.parametrize("dtypes", ["i8", "f8"])
@pytest.mark.parametrize("layout", ["nn", "tt", "tn"])
def test_operands_that_are_taken_along_the_depth_only_are_transposed(layout, dtypes):
    dtype, out = DTYPES[dtypes]
    compiled = opened(gemm((0, 0, 0), dtype, out, tile=(64, 64, 128), layout=layout))
    rng = np.random.default_rng(11)
    for m, n, k in ((97, 83, 71), (64, 80, 160), (65, 16, 129)):
        a = operand(rng, (m, k) if layout[0] == "n" else (k, m), dtype)
        b = operand(rng, (n, k) if layout[1] == "t" else (k, n), dtype)
        c = poisoned((m, n), out)
        turned = {r.name for r in plan(compiled, (a, b, c)).packed_copies if r.order == (1, 0)}
        assert turned == {x for x, letter in zip("ab", layout, strict=True) if letter != {"a": "n", "b": "t"}[x]}
        compiled.interpret(a, b, c, level="lane")
        left, right = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
        np.testing.assert_array_equal(c.astype(np.float64), left.astype(np.float64) @ right.astype(np.float64))


def test_sizes_that_are_known_are_transposed_alike():
    made = gemm((97, 83, 71), I8, I32, tile=(64, 64, 128), layout="nn")
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    assert "%b: memory<71x83xi8, global, columns(57)>" in str(compiled.ir("pack_unaligned"))
    rng = np.random.default_rng(12)
    a, b, c = operand(rng, (97, 71), I8), operand(rng, (71, 83), I8), poisoned((97, 83), I32)
    compiled.interpret(a, b, c, level="lane", order="random", seed=3)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


LINES = [
    ("nn", (70, 1, 136)),  # b is a column
    ("nn", (70, 1, 135)),
    ("tt", (1, 70, 136)),  # a is
    ("tn", (1, 72, 135)),
    ("nn", (1, 72, 135)),  # a is a row, as odd as can be
    ("tn", (67, 72, 1)),  # both are
]


@pytest.mark.parametrize("dtypes", ["f16", "i8"])
@pytest.mark.parametrize(("layout", "shape"), LINES)
def test_one_row_and_one_column_are_taken_as_they_lie(layout, shape, dtypes):
    (dtype, out), (m, n, k) = DTYPES[dtypes], shape
    made = gemm(shape, dtype, out, tile=(64, 64, 128), layout=layout)
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    rng = np.random.default_rng(18)
    a = operand(rng, (m, k) if layout[0] == "n" else (k, m), dtype)
    b = operand(rng, (n, k) if layout[1] == "t" else (k, n), dtype)
    c = poisoned((m, n), out)
    planned = plan(compiled, (a, b, c))
    assert not planned.key.is_by_lanes
    lines = {name for name, x in (("a", a), ("b", b)) if x.size == max(x.shape)}
    turned = lines if dtype is I8 and k == 1 else set()  # bytes across a depth of 1 are 67 rows of it, and no line
    assert {r.name for r in planned.packed_copies} & lines == turned
    compiled.interpret(a, b, c, level="lane", order="random", seed=4)
    left, right = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    np.testing.assert_array_equal(c.astype(np.float64), left.astype(np.float64) @ right.astype(np.float64))


@pytest.mark.parametrize("apart", [3, 8])
def test_one_column_of_a_wider_array(apart):
    made = gemm((70, 1, 136), F16, F16, tile=(64, 64, 128), layout="nn")
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    rng = np.random.default_rng(19)
    a, b, c = operand(rng, (70, 136), F16), operand(rng, (136, apart), F16)[:, 1:2], poisoned((70, 1), F16)
    compiled.interpret(a, b, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("k", [136, 135])
def test_one_column_of_known_length_beside_rows_whose_number_is_open(k):
    made = gemm((1, 1, k), F16, F16, tile=(64, 64, 64), layout="nn")
    subs = {symbol: value for symbol, value in made.subs.items() if symbol is not M}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), made.kernel)
    if k % 8 == 0:  # for unaligned rows of dynamic length, lanes load everything
        assert f"%b: memory<{k}x1xf16, global, columns(0)>" in str(compiled.ir("pack_unaligned"))
    rng = np.random.default_rng(21)
    for m in (70, 3):
        a, b, c = operand(rng, (m, k), F16), operand(rng, (k, 1), F16), poisoned((m, 1), F16)
        compiled.interpret(a, b, c, level="lane")
        np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_what_lies_along_the_depth_already_is_taken_as_it_is():
    """A transposed view of weights that were kept along the depth."""
    compiled = opened(gemm((0, 0, 0), I8, I32, tile=(64, 64, 128), layout="nn"))
    rng = np.random.default_rng(13)
    a, b, c = operand(rng, (64, 128), I8), operand(rng, (72, 128), I8).T, poisoned((64, 72), I32)
    assert not plan(compiled, (a, b, c)).packed_copies and not plan(compiled, (a, b, c)).key.is_by_lanes
    compiled.interpret(a, b, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


def test_small_operands_across_the_depth_are_loaded_in_whole_chunks(monkeypatch):
    monkeypatch.setattr(PackingTuning, "pays", lambda *_: False)
    compiled = opened(gemm((0, 0, 0), I8, I32, tile=(64, 64, 128), layout="nn"))
    rng = np.random.default_rng(14)
    for n, lanes in ((80, Specialization(BY_LANES)), (83, Specialization(BY_LANES, (("a", 1), ("b", 1), ("c", 4))))):
        a, b, c = operand(rng, (64, 128), I8), operand(rng, (128, n), I8), poisoned((64, n), I32)
        assert plan(compiled, (a, b, c)) == (lanes, ())
        compiled.interpret(a, b, c, level="lane")
        np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


def test_any_array_whose_columns_lie_well_is_transposed():
    compiled = opened(gemm((0, 0, 0), F16, F16, tile=TILE))
    rng = np.random.default_rng(15)
    a, b, c = operand(rng, (67, 65), F16).T, operand(rng, (72, 67), F16), poisoned((65, 72), F16)
    assert [r.name for r in plan(compiled, (a, b, c)).packed_copies] == ["a", "b"]
    compiled.interpret(a, b, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


def test_what_is_prepacked_is_copied_no_more():
    compiled = opened(gemm((0, 0, 0), F16, F16, tile=TILE))
    rng = np.random.default_rng(10)
    a, b, c = operand(rng, (64, 67), F16), operand(rng, (72, 67), F16), poisoned((64, 72), F16)
    packed = compiled.prepack(b)
    np.testing.assert_array_equal(packed, b)
    assert [r.name for r in plan(compiled, (a, packed, c)).packed_copies] == ["a"]
    compiled.interpret(a, packed, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
    assert compiled.prepack(packed) is packed
    on_a_cpu = wave_compile(
        WaveCompileOptions(subs=gemm((64, 72, 67), F16).subs, target="numpy"), gemm((1, 1, 1), F16).kernel
    )
    assert on_a_cpu.prepack(b) is b


SKINNY = [("nt", (200, 4, 133)), ("tt", (137, 4, 130)), ("nn", (3, 203, 130)), ("tn", (5, 131, 99))]


@pytest.mark.parametrize(("layout", "shape"), SKINNY)
def test_what_is_wanted_by_few_products_is_loaded_where_it_lies(monkeypatch, layout, shape):
    monkeypatch.undo()
    monkeypatch.setattr(PackingTuning, "pays", lambda _, loaded, depth, in_place: in_place < 10_000)
    m, n, k = shape
    made = gemm(shape, F16, F16, tile=(64, 16, 64) if n < m else (16, 64, 64), layout=layout)
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    rng = np.random.default_rng(20)
    a = operand(rng, (m, k) if layout[0] == "n" else (k, m), F16)
    b = operand(rng, (n, k) if layout[1] == "t" else (k, n), F16)
    left, right = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    told = [row.what for row in compiled.why() if row.step == "pack_unaligned"]
    assert told and all("read too rarely for a packed copy" in what for what in told)
    large = "a" if m > n else "b"
    kept = {name: compiled.prepack(x) if name == large else x for name, x in (("a", a), ("b", b))}
    for given, is_plain, copied in (((a, b), True, set()), (tuple(kept.values()), False, {"a", "b"} - {large})):
        c = poisoned((m, n), F16)
        planned = plan(compiled, (*given, c))
        assert planned.key.is_by_lanes is is_plain
        assert {r.name for r in planned.packed_copies} <= copied
        compiled.interpret(*given, c, level="lane", order="random", seed=6)
        np.testing.assert_array_equal(c, left.astype(np.float64) @ right.astype(np.float64))


def test_weights_that_are_transposed_are_prepacked_by_their_name():
    compiled = opened(gemm((0, 0, 0), I8, I32, tile=(64, 64, 128), layout="nn"))
    rng = np.random.default_rng(16)
    a, b, c = operand(rng, (64, 80), I8), operand(rng, (80, 72), I8), poisoned((64, 72), I32)
    with pytest.raises(CallError, match="a and b are prepacked in different ways"):
        compiled.prepack(b)
    packed = compiled.prepack(b, "b")
    np.testing.assert_array_equal(packed, b)
    assert packed.strides == (1, 128) and compiled.prepack(packed, "b") is packed
    assert not plan(compiled, (a, packed, c)).packed_copies
    compiled.interpret(a, packed, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


def test_arrays_that_begin_within_a_chunk():
    compiled = opened(gemm((0, 0, 0), F16, F16, tile=TILE))
    rng = np.random.default_rng(3)
    for offsets in ((1, 0, 0), (3, 5, 7), (0, 0, 2)):
        a, b, c = (operand(rng, s, F16, o) for s, o in zip(((64, 64), (72, 64), (64, 72)), offsets, strict=True))
        c[...] = np.nan
        assert len(plan(compiled, (a, b, c)).packed_copies) == sum(o > 0 for o in offsets)
        compiled.interpret(a, b, c, level="lane")
        np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


def test_rows_with_gaps_keep_what_lies_between_them():
    compiled = opened(gemm((0, 0, 0), F16, F16, tile=TILE))
    rng = np.random.default_rng(4)
    a, b = operand(rng, (70, 75), F16)[:, :69], operand(rng, (66, 71), F16)[:, :69]
    whole = np.full((70, 77), 55, np.float16)
    c = whole[:, 3:69]
    compiled.interpret(a, b, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
    assert (whole[:, :3] == 55).all() and (whole[:, 69:] == 55).all()


CONSTRAINTS = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)]
SHARED, GLOBAL = SHARED_ADDRESS_SPACE, GLOBAL_ADDRESS_SPACE


@wave(CONSTRAINTS)
def with_residual(
    a: Memory[M, K, SHARED, f16],
    b: Memory[N, K, SHARED, f16],
    bias: Memory[N, GLOBAL, f16],
    residual: Memory[M, N, GLOBAL, f16],
    c: Memory[M, N, GLOBAL, f16],
):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total + cast(read(bias), f32) + cast(read(residual), f32), f16), c)


def test_what_an_epilogue_reads_is_repacked_too():
    compiled = wave_compile(WaveCompileOptions(target="sm_90a"), with_residual)
    rng = np.random.default_rng(6)
    m, n, k = 65, 67, 69
    a, b = operand(rng, (m, k), F16), operand(rng, (n, k), F16)
    bias, residual, c = operand(rng, (n,), F16, 1), operand(rng, (m, n), F16), poisoned((m, n), F16)
    arrays = a, b, bias, residual, c
    assert {r.name for r in plan(compiled, arrays).packed_copies} == {"a", "b", "bias", "residual", "c"}
    compiled.interpret(*arrays, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T + bias + residual)


B = sym.B


@wave([WorkgroupConstraint(B, 1, 2), *CONSTRAINTS])
def batched(a: Memory[B, M, K, SHARED, f16], b: Memory[B, N, K, SHARED, f16], c: Memory[B, M, N, GLOBAL, f16]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total, f16), c)


def test_batches_are_repacked_with_their_rows():
    compiled = wave_compile(WaveCompileOptions(target="sm_90a"), batched)
    rng = np.random.default_rng(7)
    a, b, c = operand(rng, (3, 65, 67), F16), operand(rng, (3, 66, 67), F16), poisoned((3, 65, 66), F16)
    assert [r.name for r in plan(compiled, (a, b, c)).packed_copies] == ["a", "b", "c"]
    compiled.interpret(a, b, c, level="lane")
    np.testing.assert_array_equal(c, np.einsum("bmk,bnk->bmn", a.astype(np.float64), b.astype(np.float64)))


@wave(CONSTRAINTS)
def where_asked(a: Memory[M, K, SHARED, f16], b: Memory[N, K, SHARED, f16], c: Memory[M, N, GLOBAL, f16], asked: i32):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    @conditional(asked > scalar(0, i32))
    def stored():
        write(cast(total, f16), c)


def test_what_may_stay_as_it_was_does_not_come_back_from_elsewhere():
    compiled = wave_compile(WaveCompileOptions(target="sm_90a"), where_asked)
    rng = np.random.default_rng(8)
    a, b, c = operand(rng, (65, 69), F16), operand(rng, (67, 69), F16), operand(rng, (65, 67), F16)
    before = c.copy()
    assert "c" not in [packed_copies.name for packed_copies in plan(compiled, (a, b, c)).packed_copies]
    compiled.interpret(a, b, c, 0, level="lane")
    np.testing.assert_array_equal(c, before)


def test_of_known_sizes_only_operands_are_repacked():
    compiled = wave_compile(WaveCompileOptions(subs={M: 65, N: 67, K: 69}, target="sm_90a"), with_residual)
    told = [row.what for row in compiled.why() if row.step == "pack_unaligned"]
    assert [what.split(" is ")[0] for what in told] == ["the row stride of a", "the row stride of b"]
    rng = np.random.default_rng(17)
    a, b = operand(rng, (65, 69), F16), operand(rng, (67, 69), F16)
    bias, residual, c = operand(rng, (67,), F16), operand(rng, (65, 67), F16), poisoned((65, 67), F16)
    compiled.interpret(a, b, bias, residual, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T + bias + residual)
