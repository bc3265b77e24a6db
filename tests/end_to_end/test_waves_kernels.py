"""What Wave's own kernels do beside products: values by workgroup, lengths from memory, arrays of other lengths."""

import numpy as np
import pytest
import sympy
from kernels import check_product
from test_vocabulary import everywhere, floats, poisoned, run

import tilewave as tkl
import tilewave as tkw
from tilewave import *
from tilewave.errors import ConstraintError, CoverageError, DimensionError, DTypeError, SymbolError, TraceError

B, BH, M, N, K, K2, S, T, U = sym.B, sym.BH, sym.M, sym.N, sym.K, sym.K2, sym.S, sym.T, sym.U
BLOCK_K2, BEGIN, COUNT = sym.BLOCK_K2, sym.BEGIN, sym.COUNT
G = GLOBAL_ADDRESS_SPACE
i, j, k = (IndexMapping.iterator(n) for n in range(3))
d0, d1 = (IndexMapping.dynamic_val(n) for n in range(2))
rng = np.random.default_rng(46)


def halves(*shape):
    return rng.standard_normal(shape).astype(np.float16)


# -- formulas ---------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("piecewise", [Piecewise, "sympy"], ids=["own", "sympy"])
def test_an_index_by_cases(way, piecewise):
    """A bias by the distance of row and column, the last one for all that are far."""
    far = d0 - d1
    near = (far < 5) & (far >= 0)
    clip = (
        Piecewise((far, near), (5, True))
        if piecewise is Piecewise
        else sympy.Piecewise((far, sympy.Lt(far, 5) & sympy.Ge(far, 0)), (5, True))
    )
    by_distance = IndexMapping(2, {N: clip}, {M: i, N: j}, ({M: i, N: j}, {N: j}))

    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1)])
    def biased(a: Memory[M, N, G, f32], bias: Memory[N, G, f32, MemoryLayout((6,))], c: Memory[M, N, G, f32]):
        rows, columns = self_index(M, i64), self_index(N, i64)
        write(read(a) + read(bias, mapping=by_distance, mapping_dynamic_vals=(rows, columns)), c)

    a, bias, c = floats(50, 41), floats(6), poisoned(50, 41)
    run(way, biased, {M: 50, N: 41}, a, bias, c)
    apart = np.arange(50)[:, None] - np.arange(41)
    np.testing.assert_array_equal(c, a + bias[np.where((apart >= 0) & (apart < 5), apart, 5)])


def test_conditions_join_conditions_alone():
    with pytest.raises(SymbolError, match="& joins conditions, not M"):
        M & (N < 3)
    with pytest.raises(SymbolError, match="Piecewise has no value where no condition holds"):
        Piecewise((M, M < N))
    both = ((M < N) & (N < 9)) | Eq(M, 3)
    assert both.evaluate({M: 1, N: 5}) is True and ((M < N) & (N < 4)).evaluate({M: 1, N: 5}) is False
    assert Piecewise((M, M < 3), (N, True)).evaluate({M: 5, N: 7}) == 7


# -- values by workgroup --------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("depth", [96, 70, 17])
def test_a_sum_split_by_atomics(way, depth):
    """Each workgroup of the third dimension adds the products of its part of K."""
    part = -(-depth // 3)

    @wave([
        WorkgroupConstraint(M, 32, 0),
        WorkgroupConstraint(N, 16, 1),
        WorkgroupConstraint(S, 1, 2),
        TilingConstraint(K, 16, iters=ceiling(COUNT / 16), start=BEGIN),
    ])  # fmt: skip
    def split(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            place = broadcast(self_index(K, i32) < BEGIN + COUNT, target_shape=[M, K])
            return mma(select(place, read(a), cast(Register[M, K, f32](0.0), f16)), read(b), acc)

        atomic_add(total, c)

    begin = WORKGROUP_2 * part
    sizes = {M: 40, N: 20, K: depth, S: 3, BEGIN: begin, COUNT: Max(Min(K, (WORKGROUP_2 + 1) * part), BEGIN) - BEGIN}
    a, b, c = halves(40, depth), halves(20, depth), np.zeros((40, 20), np.float32)
    run(way, split, sizes, a, b, c)
    check_product(c, a, b)


# -- parts of waves ---------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("length", [64, 70, 33])
def test_each_wave_has_its_own_part(way, length):
    """Wave's formula of an alias counts the parts of waves, each of which reduces its own."""

    @wave([
        WorkgroupConstraint(M, 8, 0),
        WorkgroupConstraint(K2, BLOCK_K2, 1),
        WaveConstraint(K2, BLOCK_K2 / 2),
        SymbolicAlias(U, K2, lambda x: ceiling(x / (BLOCK_K2 / 2))),
    ])  # fmt: skip
    def largest(a: Memory[M, K2, G, f32], c: Memory[M, U, G, f32]):
        write(tkw.max(read(a), dim=K2), c)

    parts = -(-length // 16)
    a, c = floats(20, length), poisoned(20, parts)
    run(way, largest, {M: 20, K2: length, U: parts, BLOCK_K2: 32}, a, c)
    padded = np.pad(a, ((0, 0), (0, -length % 16)), constant_values=-np.inf)
    np.testing.assert_array_equal(c, padded.reshape(20, -1, 16).max(2))


# -- lengths from memory --------------------------------------------------------------------------------------------


@everywhere
def test_a_loop_ends_where_memory_says(way):
    """`set_symbol` of a dim: the sums of the first elements of each row, as many as `lengths` says."""

    @wave([WorkgroupConstraint(M, 1, 0), TilingConstraint(K, 16)])
    def sums(a: Memory[M, K, G, f32], lengths: Memory[M, G, i32], c: Memory[M, G, f32]):
        set_symbol(K, read(lengths))

        @iterate(K, init_args=[Register[M, f32](0.0)])
        def total(acc):
            return tkw.sum(read(a) + 1.0, acc, dim=K)

        write(total, c)

    lengths = np.array([0, 5, 16, 17, 40, 41, 2**31 - 1, -(2**31), -3], np.int32)
    a, c = rng.integers(-9, 10, (9, 41)).astype(np.float32), poisoned(9)
    run(way, sums, {K: 41}, a, lengths, c)
    ends = np.clip(lengths.astype(np.int64), 0, 41)
    np.testing.assert_array_equal(c, [(row[:end] + 1).sum() for row, end in zip(a, ends, strict=True)])


def segments(contract):
    """Rows in segments: each is moved by its number within the segment, from the place where that begins."""
    annotation = Memory[S, G, i32] if contract is None else Memory[S, G, i32, contract]

    @wave([
        WorkgroupConstraint(T, 16, 0, iters=ceiling(sym.LONGEST / 16)),
        WorkgroupConstraint(N, 32, 1),
        WorkgroupConstraint(S, 1, 2, iters=S - 1),
        IteratorBindings({sym.t: T, sym.n: N, sym.s: S}),
    ])  # fmt: skip
    def doubled(x: Memory[T, N, G, f32], ends: annotation, LONGEST: tkl.SymbolBind[i32], c: Memory[T, N, G, f32]):
        begin = read(ends)
        set_symbol(BEGIN, begin)
        set_symbol(T, read(ends, source=(sym.s + 1,), target=(sym.s,)) - begin)
        mine = read(x, source=(sym.t + BEGIN, sym.n), target=(sym.t, sym.n))
        write(mine * 2.0, c, source=(sym.t, sym.n), target=(sym.t + BEGIN, sym.n))

    return doubled


@everywhere
@pytest.mark.parametrize("contract", ["annotated", "given"])
def test_rows_between_offsets_as_wave_types_them(way, contract):
    sorted_ends = Indices(sorted=True)
    kernel = segments(sorted_ends) if contract == "annotated" else segments(None).with_memories(ends=sorted_ends)
    ends = np.array([0, 3, 3, 20, 57], np.int32)
    x, c = floats(57, 40), poisoned(57, 40)
    run(way, kernel, {N: 40}, x, ends, 37, c)
    np.testing.assert_array_equal(c, x * 2)


def test_rows_between_offsets_need_a_contract():
    with pytest.raises(CoverageError, match="doubled writes c at indices from ends, of which two may be equal"):
        segments(None).compile(target="numpy", subs={N: 40})
    with pytest.raises(TraceError, match="with_memories: offsets is "):
        segments(None).with_memories(offsets=Indices(sorted=True))
    with pytest.raises(DTypeError, match="symbols are integers"):
        tkl.SymbolBind[f32]


# -- arrays of other lengths --------------------------------------------------------------------------------------


@everywhere
def test_an_array_longer_than_its_dim(way):
    """`ends: Memory[S, …]` has one element more: the differences of neighbours."""
    after = IndexMapping(1, {S: i + 1}, {S: i})

    @wave([WorkgroupConstraint(S, 16, 0)])
    def lengths(ends: Memory[S, G, i32], c: Memory[S, G, i32]):
        write(read(ends, mapping=after) - read(ends), c)

    for sizes in ({S: 40}, {}):
        ends, c = rng.integers(0, 99, 41).astype(np.int32), poisoned(40, dtype=np.int32)
        run(way, lengths.with_memories(ends=MemoryLayout((S + 1,))), sizes, ends, c)
        np.testing.assert_array_equal(c, np.diff(ends))


@everywhere
@pytest.mark.parametrize("length", [64, 50, 33])
def test_a_sum_of_a_longer_array_ends_with_the_dim(way, length):
    @wave([WorkgroupConstraint(M, 8, 0)])
    def sums(a: Memory[M, N, G, f32, MemoryLayout((None, length))], c: Memory[M, G, f32]):
        write(tkw.sum(read(a), dim=N), c)

    a, c = rng.integers(-9, 10, (20, length)).astype(np.float32), poisoned(20)
    run(way, sums, {N: 33}, a, c)
    np.testing.assert_array_equal(c, a[:, :33].sum(1))


def test_a_write_to_a_longer_array_says_where():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def copied(a: Memory[M, G, f32], c: Memory[M, G, f32, MemoryLayout((64,))]):
        write(read(a), c)

    with pytest.raises(DimensionError, match="c: its layout has 64 elements along M, which is 50"):
        copied.compile(target="numpy", subs={M: 50})


# -- products of tiles with single and missing dims -------------------------------------------------------------------


@everywhere
def test_a_product_with_the_weights_of_all_batches(way):
    @wave([
        WorkgroupConstraint(M, 32, 0),
        WorkgroupConstraint(N, 16, 1),
        WorkgroupConstraint(B, 2, 2),
        TilingConstraint(K, 16),
    ])  # fmt: skip
    def linear(a: Memory[B, M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    a, b, c = halves(3, 40, 50), halves(20, 50), poisoned(3, 40, 20)
    run(way, linear, {B: 3, M: 40, N: 20, K: 50}, a, b, c)
    for x, y in zip(a, c, strict=True):
        check_product(y, x, b)


@everywhere
def test_a_product_of_a_head_that_several_share(way):
    """Keys have a dim of one element, the head that a block of queries shares, which the sums have not."""

    @wave([
        WorkgroupConstraint(BH, 1, 1, apply_fn=lambda n: n // 2, iters=4),
        WorkgroupConstraint(B, 4, 1, primary=False),
        WorkgroupConstraint(N, 16, 0),
    ])  # fmt: skip
    def scores(q: Memory[B, K, G, f16], keys: Memory[N, BH, K, G, f16], c: Memory[N, B, G, f32]):
        write(mma(read(keys), read(q), Register[N, B, f32](0.0)), c)

    q, keys, c = halves(16, 32), halves(40, 2, 32), poisoned(40, 16)
    run(way, scores, {B: 16, BH: 2, N: 40, K: 32}, q, keys, c)
    for head in range(2):
        check_product(c[:, 8 * head : 8 * head + 8], keys[:, head], q[8 * head : 8 * head + 8])


@everywhere
def test_a_while_loop_over_batches(way):
    """A dim that a while loop sets has one element in it: the products of one batch, and the sum of all."""

    @wave([
        WorkgroupConstraint(M, 32, 0),
        WorkgroupConstraint(N, 16, 1),
        TilingConstraint(K, 16),
        TilingConstraint(B),
    ])  # fmt: skip
    def batches(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[N, M, G, f32]):
        @iterate(B, start=scalar(0, i32), condition=B < 3, init_args=[Register[N, M, f32](0.0)])
        def every(sums):
            @iterate(K, init_args=[Register[M, N, f32](0.0)])
            def product(acc):
                return mma(read(a), read(b), acc)

            set_symbol(B, tkw.apply_expr(self_index(B, i32), lambda x: x + 1))
            return sums + permute(product, target_shape=[N, M])

        write(every, c)

    a, b, c = halves(3, 40, 50), halves(3, 20, 50), poisoned(20, 40)
    run(way, batches, {B: 3, M: 40, N: 20, K: 50}, a, b, c)
    side_by_side = [x.transpose(1, 0, 2).reshape(x.shape[1], -1) for x in (a, b)]
    check_product(c.T, *side_by_side)


def test_one_device_has_all_of_a_dim():
    def copied(part):
        @wave([tkw.DeviceConstraint(M, part, 0), WorkgroupConstraint(M, 8, 0)])
        def copied(a: Memory[M, G, f32], c: Memory[M, G, f32]):
            write(read(a), c)

        return copied

    a, c = floats(50), poisoned(50)
    run("tiles", copied(50), {M: 50}, a, c)
    np.testing.assert_array_equal(c, a)
    with pytest.raises(ConstraintError, match="M is divided among devices, 25 elements each"):
        copied(25).compile(target="numpy", subs={M: 50})


# -- what several workgroups compute alike ----------------------------------------------------------------------------


@everywhere
def test_what_several_workgroups_compute_alike_is_stored_once(way):
    """The largest of each row depends on no tile of N, over which the grid is divided too."""

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def scaled(a: Memory[M, K, G, f32], b: Memory[N, G, f32], c: Memory[M, N, G, f32], d: Memory[M, G, f32]):
        most = read(a).max(dim=K)
        write(most * read(b), c)
        write(most, d)

    a, b, c, d = floats(40, 20), floats(50), poisoned(40, 50), poisoned(40)
    run(way, scaled, {M: 40, N: 50, K: 20}, a, b, c, d)
    np.testing.assert_array_equal(d, a.max(1))
    np.testing.assert_array_equal(c, a.max(1)[:, None] * b)


@pytest.mark.parametrize("how", ["tile", "number", "shared"])
def test_what_workgroups_compute_differently_has_no_owner(how):
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def lost(a: Memory[M, N, G, f32], d: Memory[M, G, f32]):
        most = read(a).max(dim=N)
        if how == "number":
            most = Register[M, f32](0.0) + cast(scalar(WORKGROUP_1), f32)
        elif how == "shared":
            own = allocate((M,), (16,), f32)
            write(most, own)
            most = read(own)
        write(most, d)

    with pytest.raises(CoverageError, match="both compute tile"):
        lost.compile(target="numpy", subs={M: 40, N: 50})


# -- spelling ---------------------------------------------------------------------------------------------------------


def test_topk_and_cumsum_as_wave_orders_their_arguments():
    @wave([WorkgroupConstraint(M, 4, 0)])
    def both(a: Memory[M, N, G, f32], c: Memory[M, K, G, f32], d: Memory[M, K, G, i32], e: Memory[M, N, G, f32]):
        values, places = tkw.topk(read(a), K, N)
        write(values, c)
        write(places, d)
        write(tkw.cumsum(read(a), dim=N, block=True), e)

    a = np.array([rng.permutation(20) for _ in range(6)], np.float32)
    c, d, e = poisoned(6, 3), poisoned(6, 3, dtype=np.int32), poisoned(6, 20)
    run("tiles", both, {M: 6, N: 20, K: 3}, a, c, d, e)
    np.testing.assert_array_equal(d, np.argsort(-a, axis=1)[:, :3])
    np.testing.assert_array_equal(c, -np.sort(-a, axis=1)[:, :3])
    np.testing.assert_array_equal(e, np.cumsum(a, axis=1))


@everywhere
def test_a_condition_made_by_sympy(way):
    @wave([WorkgroupConstraint(M, 16, 0)])
    def begun(a: Memory[M, G, f32], many: Memory[S, G, i32], c: Memory[M, G, f32]):
        set_symbol(COUNT, read(many, at={S: 0}))
        write(read(a), c)

        @conditional(sympy.Eq(COUNT, 3))
        def then():
            write(read(a) * 2.0, c)

    for count, factor in ((3, 2), (4, 1)):
        a, c = floats(40), poisoned(40)
        run(way, begun, {M: 40, S: 1}, a, np.array([count], np.int32), c)
        np.testing.assert_array_equal(c, a * factor)
