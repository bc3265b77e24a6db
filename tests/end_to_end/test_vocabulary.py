"""Ops other than products and epilogues, as authors type them, at every level and on every target."""

import numpy as np
import pytest

import tilewave as tkl
import tilewave as tkw
from tilewave import *
from tilewave.errors import CoverageError, InterpreterError

pytestmark = pytest.mark.share(12)

B, M, N, K = sym.B, sym.M, sym.N, sym.K
BLOCK_M, BLOCK_N, BLOCK_K = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
G = GLOBAL_ADDRESS_SPACE
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
WAYS = ["tiles", "cpu", "lanes of gfx942", "lanes of sm_90a", "gfx942", "gfx950"]
everywhere = pytest.mark.parametrize("way", WAYS)
rng = np.random.default_rng(16)


def run(way, kernel, subs, *arguments, **options):
    """Compile a kernel for `way` and run it there; lanes and waves in a random order."""
    target = {"tiles": "numpy"}.get(way, way.removeprefix("lanes of "))
    compiled = wave_compile(WaveCompileOptions(subs=subs, target=target, **options), kernel)
    if way == "tiles":
        compiled.interpret(*arguments)
    elif way.startswith("lanes"):
        compiled.interpret(*arguments, level="lane", order="random", seed=3)
    elif way == "cpu":
        compiled(*arguments)
    else:
        compiled.emulate(*arguments, order="random", seed=5)
    if target == "sm_90a":
        assert compiled.asm
    return compiled


def floats(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def poisoned(*shape, dtype=np.float32):
    return np.full(shape, 77, dtype)


# -- dims -----------------------------------------------------------------------------------------------------------

TILED = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1)]


@everywhere
@pytest.mark.parametrize("shape", [(64, 32), (50, 41), (1, 1)], ids=str)
def test_tiles_without_a_dim_in_common_make_one_with_both(way, shape):
    @wave(TILED)
    def outer(x: Memory[M, G, f32], y: Memory[N, G, f32], c: Memory[M, N, G, f32], d: Memory[N, M, G, f32]):
        product = read(x) * read(y)
        assert product.dims == (M, N)
        assert (read(y) * read(x)).dims == (N, M)
        write(product, c)
        write(read(y) - read(x), d)

    m, n = shape
    x, y, c, d = floats(m), floats(n), poisoned(m, n), poisoned(n, m)
    run(way, outer, {M: m, N: n}, x, y, c, d)
    np.testing.assert_array_equal(c, np.outer(x, y))
    np.testing.assert_array_equal(d, y[:, None] - x)


@everywhere
def test_tiles_with_a_dim_in_common_are_repeated_on_both_sides(way):
    @wave([*TILED, WorkgroupConstraint(B, 2, 2)])
    def added(x: Memory[M, N, G, f16], y: Memory[B, M, G, f16], c: Memory[B, M, N, G, f16]):
        total = read(x) + read(y)
        assert total.dims == (B, M, N)  # B comes before M, as in y
        write(total, c)

    x, y, c = floats(40, 20, dtype=np.float16), floats(3, 40, dtype=np.float16), poisoned(3, 40, 20, dtype=np.float16)
    run(way, added, {B: 3, M: 40, N: 20}, x, y, c)
    np.testing.assert_array_equal(c, x + y[:, :, None])


def test_the_order_of_dims_of_two_tiles():
    found = {}

    @wave([*TILED, WorkgroupConstraint(B, 2, 2)])
    def orders(c: Memory[M, N, G, f32]):
        def tile(*dims):
            return Register[(*dims, f32)](1.0)

        pairs = [((M,), (N,)), ((N,), (M,)), ((M, N), (B, N)), ((M, N), (B, M)), ((M, N), (N, B)), ((M,), (N, M))]
        for a, b in pairs:
            found[a, b] = (tile(*a) + tile(*b)).dims
        found["select"] = select(tile(M) > 0.0, tile(N), 0.0).dims
        write(tile(M, N), c)

    wave_compile(WaveCompileOptions(subs={B: 2, M: 40, N: 20}, target="numpy"), orders)
    assert found == {
        ((M,), (N,)): (M, N),
        ((N,), (M,)): (N, M),
        ((M, N), (B, N)): (M, B, N),
        ((M, N), (B, M)): (B, M, N),
        ((M, N), (N, B)): (M, N, B),
        ((M,), (N, M)): (N, M),
        "select": (N, M),
    }


@everywhere
def test_permute_and_broadcast(way):
    @wave(TILED)
    def turned(x: Memory[M, N, G, f32], y: Memory[N, G, f32], c: Memory[M, N, G, f32], d: Memory[N, M, G, f32]):
        tile = tkw.permute(tkw.read(x), target_shape=[N, M])
        assert tile.dims == (N, M) and tile.permute([M, N]).dims == (M, N)
        wide = tkw.broadcast(tkw.read(y), target_shape=[M, N])
        assert wide.dims == (M, N) and tkw.broadcast(tile, target_shape=[M, N]).dims == (M, N)
        write(tile + wide, c)
        write(broadcast(scalar(2.0, f32), target_shape=[N, M]) * tile, d)

    x, y, c, d = floats(50, 41), floats(41), poisoned(50, 41), poisoned(41, 50)
    run(way, turned, {M: 50, N: 41}, x, y, c, d)
    np.testing.assert_array_equal(c, x + y)
    np.testing.assert_array_equal(d, 2 * x.T)


@everywhere
@pytest.mark.parametrize("k", [64, 50])
def test_an_operand_that_was_permuted_still_counts_as_0_over_the_edge(way, k):
    """exp(0) is 1, and must not be added up for what is not there."""

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def product(a: Memory[K, M, G, f16], b: Memory[K, N, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(permute(exp(read(a)), target_shape=[M, K]), permute(read(b) + 1.0, [N, K]), acc)

        write(total, c)

    a, b, c = np.zeros((k, 70), np.float16), np.zeros((k, 90), np.float16), poisoned(70, 90)
    run(way, product, {M: 70, N: 90, K: k}, a, b, c)
    assert (c == k).all()


# -- formulas -------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("dtype", [i32, i64], ids=str)
def test_apply_expr_takes_what_symbols_take(way, dtype):
    @wave([WorkgroupConstraint(M, 64, 0)])
    def formulas(x: Memory[M, G, dtype], y: Memory[M, G, dtype], c: Memory[M, G, dtype], d: Memory[M, G, tkw.i1]):
        a, b = read(x), read(y)
        sixths = tkw.apply_expr(a, lambda v: ceiling(v / 6) + M)
        least = tkw.apply_expr([a, b], lambda v, w: Min(v, Max(v - w, 0)))
        write(sixths * least + apply_expr(a, lambda v: Min(v, 0)), c)
        below = tkw.apply_expr(self_index(M, dtype), lambda v: v < M - 7)
        write(tkw.cast(below & tkw.apply_expr(a, lambda v: v > b), tkw.i1), d)

    x, y = (rng.integers(-50, 50, 100).astype(dtype.numpy) for _ in range(2))
    c, d = np.zeros(100, dtype.numpy), np.zeros(100, bool)
    run(way, formulas, {M: 100}, x, y, c, d)
    least = np.minimum(x, np.maximum(x - y, 0))
    np.testing.assert_array_equal(c, (-(-x // 6) + 100) * least + np.minimum(x, 0))
    np.testing.assert_array_equal(d, (np.arange(100) < 93) & (x > y))


def test_apply_expr_of_floats_is_the_function_itself():
    @wave([WorkgroupConstraint(M, 64, 0)])
    def half(x: Memory[M, G, f32], c: Memory[M, G, f32]):
        write(apply_expr(read(x), lambda v: maximum(v, 0.0) / 2.0), c)

    x, c = floats(100), poisoned(100)
    run("tiles", half, {M: 100}, x, c)
    np.testing.assert_array_equal(c, np.maximum(x, 0) / 2)


def test_sympy_in_apply_expr():
    sympy = pytest.importorskip("sympy")

    @wave([WorkgroupConstraint(M, 64, 0)])
    def formulas(x: Memory[M, G, i32], c: Memory[M, G, i32]):
        write(apply_expr(read(x), lambda v: sympy.Min(sympy.ceiling(v / K), M)), c)

    x, c = rng.integers(0, 999, 100).astype(np.int32), np.zeros(100, np.int32)
    run("tiles", formulas, {M: 100, K: 7}, x, c)
    np.testing.assert_array_equal(c, np.minimum(-(-x // 7), 100))


# -- conditions -----------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("threshold", [5, 50])
def test_a_condition_for_the_whole_workgroup(way, threshold):
    @wave(TILED)
    def chosen(a: Memory[M, N, G, f16], b: Memory[M, N, G, f16], limit: i32):
        tile = tkw.read(a)

        @tkw.conditional(limit > tkw.scalar(10, tkl.i32), else_return=[tile])
        def process(x: tkl.Register[M, N, tkl.f16]) -> tkl.Register[M, N, tkl.f16]:
            return x * tkw.scalar(2.5, tkl.f16)

        tkw.write(process, b)

    a, b = floats(50, 41, dtype=np.float16), poisoned(50, 41, dtype=np.float16)
    run(way, chosen, {M: 50, N: 41}, a, b, threshold)
    np.testing.assert_array_equal(b, a * np.float16(2.5) if threshold > 10 else a)


@everywhere
def test_what_no_condition_lets_be_written_stays_as_it_was(way):
    @wave(TILED)
    def some(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        @conditional(WORKGROUP_0 < 1)
        def first():
            write(read(a) + 1.0, b)

        @conditional(WORKGROUP_0 >= 1)
        def others():
            write(read(a) + 2.0, b)

        @conditional(Eq(WORKGROUP_1, 1))
        def second():
            write(read(a), c)

    a, b, c = floats(50, 41), poisoned(50, 41), poisoned(50, 41)
    run(way, some, {M: 50, N: 41}, a, b, c)
    np.testing.assert_array_equal(b[:32], a[:32] + np.float32(1))
    np.testing.assert_array_equal(b[32:], a[32:] + np.float32(2))
    np.testing.assert_array_equal(c[:, 16:32], a[:, 16:32])
    assert (c[:, :16] == 77).all() and (c[:, 32:] == 77).all()


@everywhere
@pytest.mark.parametrize("is_first", [0, 1])
def test_products_under_a_condition(way, is_first):
    """One loop over K comes before the condition, and another is inside it."""

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def split(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], first: i32):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        @conditional(first == scalar(1, i32), else_return=[total])
        def twice():
            @iterate(K, init_args=[total])
            def more(acc):
                return mma(read(a), read(b), acc)

            return more

        write(twice, c)

    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((70, 90), (100, 90)))
    c = poisoned(70, 100)
    run(way, split, {M: 70, N: 100, K: 90}, a, b, c, is_first)
    np.testing.assert_array_equal(c, (1 + is_first) * (a.astype(np.float32) @ b.astype(np.float32).T))


@everywhere
@pytest.mark.parametrize("through", ["windows", "elements"])
def test_a_condition_for_each_element(way, through):
    backwards = IndexMapping(2, inputs={M: i, N: j}, outputs={M: M - 1 - i, N: j})
    mapping = None if through == "windows" else backwards

    @wave(TILED)
    def masked(a: Memory[M, N, G, f16], mask: Memory[M, N, G, i32], rows: Memory[M, G, i32], b: Memory[M, N, G, f16]):
        tile = tkw.read(a)
        holds = tkw.apply_expr(tkw.read(mask), lambda v: v > 0)

        @tkw.conditional(holds)
        def then():
            @conditional(read(rows) != 0)
            def kept():
                tkw.write(tile, b, mapping=mapping)

    a, mask, rows = (
        floats(50, 41, dtype=np.float16),
        rng.integers(0, 2, (50, 41), np.int32),
        rng.integers(0, 2, 50, np.int32),
    )
    b = poisoned(50, 41, dtype=np.float16)
    run(way, masked, {M: 50, N: 41}, a, mask, rows, b)
    wanted = np.where((mask > 0) & (rows[:, None] != 0), a, np.float16(77))
    there = b if through == "windows" else b[::-1]
    np.testing.assert_array_equal(there[wanted != 77], wanted[wanted != 77])
    np.testing.assert_array_equal(there[wanted == 77], wanted[wanted == 77])


@everywhere
def test_a_condition_for_each_element_chooses_what_is_returned(way):
    @wave(TILED)
    def chosen(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32]):
        tile = read(a)

        @conditional(tile > 0.0, else_return=[tile, tile * 3.0])
        def both():
            return tile + 1.0, tile

        one, other = both
        write(one * other, b)

    a, b = floats(50, 41), poisoned(50, 41)
    run(way, chosen, {M: 50, N: 41}, a, b)
    np.testing.assert_array_equal(b, np.where(a > 0, (a + np.float32(1)) * a, a * (a * np.float32(3))))


@pytest.mark.parametrize("holds", [True, False])
def test_a_condition_that_is_known_is_decided_while_the_kernel_is_traced(holds):
    @wave(TILED)
    def known(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32]):
        @conditional(M > 40 if holds else M < 40, else_return=[read(a)])
        def more(tile):
            return tile + 1.0

        write(more, b)

    a, b = floats(50, 41), poisoned(50, 41)
    compiled = run("tiles", known, {M: 50, N: 41}, a, b)
    np.testing.assert_array_equal(b, a + np.float32(holds))
    assert "loop" not in str(compiled.traced)


def test_a_symbol_set_under_a_condition_keeps_its_value_behind_it():
    @wave([WorkgroupConstraint(M, 32, 0)])
    def moved(a: Memory[N, G, f32], b: Memory[M, G, f32]):
        there = IndexMapping(1, inputs={N: i + K}, outputs={M: i})
        set_symbol(K, scalar(0))

        @conditional(WORKGROUP_0 > 0)
        def further():
            set_symbol(K, scalar(8))

        write(read(a, mapping=there), b)

    a, b = floats(80), poisoned(64)
    run("tiles", moved, {M: 64, N: 80}, a, b)
    np.testing.assert_array_equal(b, np.concatenate([a[:32], a[40:72]]))


def test_what_is_written_under_a_condition_is_written_by_one_workgroup():
    @wave(TILED)
    def twice(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32]):
        same = IndexMapping(2, inputs={M: i, N: j}, outputs={M: i - WORKGROUP_0 * 32, N: j})

        @conditional(WORKGROUP_0 < 5)
        def then():
            write(read(a), b, mapping=same)

    with pytest.raises(CoverageError, match="workgroups 0 and 1 both compute"):
        run("tiles", twice, {M: 64, N: 16}, floats(64, 16), poisoned(64, 16))


# -- shared memory of the author's own --------------------------------------------------------------------------------

WAVES = [WaveConstraint(M, BLOCK_M / 2), WaveConstraint(N, BLOCK_N / 2)]
PRODUCT = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)]


@everywhere
@pytest.mark.parametrize("schedule", [SchedulingType.NONE, SchedulingType.PREFETCH], ids=str)
@pytest.mark.parametrize("k", [32, 64, 90])
@pytest.mark.parametrize("waves", [[], WAVES], ids=["", "waves"])
def test_a_product_of_what_the_author_staged(way, schedule, k, waves):
    @tkw.wave([*PRODUCT, *waves])
    def gemm(a: tkl.Memory[M, K, G, tkl.f16], b: tkl.Memory[N, K, G, tkl.f16], c: tkl.Memory[M, N, G, tkl.f32]):
        a_shared = tkw.allocate((M, K), (BLOCK_M, BLOCK_K), tkl.f16, SHARED_ADDRESS_SPACE)
        b_shared = tkw.allocate(shape=(N, K), distributed_shape=(BLOCK_N, BLOCK_K), dtype=tkl.f16)

        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def repeat(acc: tkl.Register[M, N, tkl.f32]) -> tkl.Register[M, N, tkl.f32]:
            tkw.write(tkw.read(a), a_shared)
            tkw.write(tkw.read(b), b_shared)
            tkw.shared_memory_barrier()
            return tkw.mma(tkw.read(a_shared), tkw.read(b_shared), acc)

        tkw.write(repeat, c)

    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((100, k), (70, k)))
    c = poisoned(100, 70)
    run(way, gemm, {M: 100, N: 70, K: k, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32}, a, b, c, schedule=schedule)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@everywhere
@pytest.mark.parametrize("barrier", [workgroup_barrier, lambda: None], ids=["barrier", "none"])
@pytest.mark.parametrize("dtype", [f32, f16, i8, tkw.i1], ids=str)
def test_shared_memory_keeps_the_order_of_the_program_with_or_without_a_barrier(way, barrier, dtype):
    backwards = IndexMapping(2, inputs={M: i, N: 31 - j}, outputs={M: i, N: j})
    out = IndexMapping(2, inputs={M: i, N: j}, outputs={M: 31 - i, N: j})

    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), WaveConstraint(M, 16), WaveConstraint(N, 16)])
    def moved(
        a: Memory[M, N, G, dtype], b: Memory[N, M, G, dtype], c: Memory[M, N, G, dtype], d: Memory[M, N, G, dtype]
    ):
        own = allocate((M, N), (32, 40), dtype)
        write(read(a), own)
        barrier()
        write(read(own), b)
        turned = read(own, mapping=backwards)
        write(turned, own)
        barrier()
        write(read(own), c)
        write(turned, own, mapping=out)
        write(read(own), d)

    a = rng.integers(0, 2, (64, 96)).astype(dtype.numpy)
    b, c, d = (np.zeros(shape, dtype.numpy) for shape in ((96, 64), (64, 96), (64, 96)))
    run(way, moved, {M: 64, N: 96}, a, b, c, d)
    blocks = a.reshape(2, 32, 3, 32)
    np.testing.assert_array_equal(b, a.T)
    np.testing.assert_array_equal(c, blocks[:, :, :, ::-1].reshape(64, 96))
    np.testing.assert_array_equal(d, blocks[:, ::-1, :, ::-1].reshape(64, 96))


@everywhere
def test_shared_memory_in_a_persistent_kernel(way):
    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), GridConstraint(2)])
    def moved(a: Memory[M, N, G, f32], b: Memory[N, M, G, f32]):
        own = allocate((N, M), (32, 32), f32)
        write(read(a), own)
        workgroup_barrier()
        write(read(own) + read(a), b)

    a, b = floats(70, 96), poisoned(96, 70)
    run(way, moved, {M: 70, N: 96}, a, b)
    np.testing.assert_array_equal(b, 2 * a.T)


@everywhere
def test_what_the_author_staged_counts_as_0_beyond_the_end_of_the_depth(way):
    """exp(0) is 1 in shared memory too."""

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        own, other = allocate((M, K), (64, 32), f16), allocate((K, N), (32, 64), f16)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            write(exp(read(a)), own)
            write(read(b) + 1.0, other)
            return mma(read(own), read(other), acc)

        write(total, c)

    a, b, c = np.zeros((70, 50), np.float16), np.zeros((90, 50), np.float16), poisoned(70, 90)
    run(way, product, {M: 70, N: 90, K: 50}, a, b, c)
    assert (c == 50).all()


def test_what_the_author_staged_is_not_staged_again():
    @wave([*PRODUCT, *WAVES])
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        own, other = allocate((M, K), (64, 32), f16), allocate((N, K), (64, 32), f16)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            write(read(a), own)
            write(read(b), other)
            return mma(read(own), read(other), acc)

        write(total, c)

    subs = {M: 128, N: 128, K: 64, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="gfx942"), gemm)
    assert compiled.resources.shared_bytes == 2 * 64 * 32 * 2


def test_what_is_read_before_it_is_written_is_told():
    @wave(TILED)
    def early(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        own = allocate((M, N), (32, 16), f32)
        write(read(own) + read(a), c)

    for way in ("tiles", "lanes of gfx942", "lanes of sm_90a"):
        with pytest.raises(InterpreterError, match=r"own\[0, 0\].* was never written"):
            run(way, early, {M: 32, N: 16}, floats(32, 16), poisoned(32, 16))


@pytest.mark.parametrize("way", ["tiles", "cpu", "lanes of gfx942", "gfx950", "lanes of sm_90a"])
def test_conditions_and_own_memory_where_sizes_stay_open(way):
    @wave(TILED)
    def kernel(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        own = allocate((N, M), (16, 32), f32)
        write(read(a), own)

        @conditional(ceiling(M / 32) > WORKGROUP_0 + 1)
        def not_last():
            write(read(own) + 1.0, b)

        @conditional(self_index(N) < N - 3)
        def most():
            write(read(own), c)

    for shape in ((70, 41), (32, 16), (1, 2)):
        a, b, c = floats(*shape), poisoned(*shape), poisoned(*shape)
        compiled = run(way, kernel, {}, a, b, c)
        assert compiled.open_sizes == ("M", "N")
        rows, cols = -(-shape[0] // 32) * 32 - 32, max(shape[1] - 3, 0)
        np.testing.assert_array_equal(b[:rows], a[:rows] + np.float32(1))
        np.testing.assert_array_equal(c[:, :cols], a[:, :cols])
        assert (b[rows:] == 77).all() and (c[:, cols:] == 77).all()


# -- batches of batches -----------------------------------------------------------------------------------------------

H, T = sym.H, sym.T


@pytest.mark.parametrize("way", ["tiles", "cpu", "lanes of sm_90a", "gfx942"])
@pytest.mark.parametrize(
    "constraints", [[], [WorkgroupMapping("grouped(2)"), GridConstraint(5)]], ids=["", "persistent"]
)
def test_a_grid_of_five_dimensions(way, constraints):
    cut = [(M, 8), (N, 16), (B, 2), (H, 1), (T, 1)]

    @wave([*(WorkgroupConstraint(d, tile, axis) for axis, (d, tile) in enumerate(cut)), *constraints])
    def moved(a: Memory[B, M, H, T, N, G, f32], y: Memory[H, G, f32], c: Memory[T, H, B, M, N, G, f32]):
        write(read(a) + read(y), c)

    a, y, c = floats(3, 10, 2, 3, 20), floats(2), poisoned(3, 2, 3, 10, 20)
    run(way, moved, {B: 3, M: 10, H: 2, T: 3, N: 20}, a, y, c)
    np.testing.assert_array_equal(c, (a + y[:, None, None]).transpose(3, 2, 0, 1, 4))


@pytest.mark.parametrize("way", ["tiles", "cpu", "lanes of gfx942", "lanes of sm_90a"])
def test_batches_of_batches_where_sizes_stay_open(way):
    @wave([*TILED, WorkgroupConstraint(B, 1, 2), WorkgroupConstraint(H, 2, 3)])
    def moved(a: Memory[B, M, H, N, G, f32], c: Memory[H, B, N, M, G, f32]):
        write(read(a), c)

    for shape in ((2, 33, 3, 17), (1, 1, 1, 1)):
        a = floats(*shape)
        c = poisoned(*(shape[i] for i in (2, 0, 3, 1)))
        run(way, moved, {}, a, c)
        np.testing.assert_array_equal(c, a.transpose(2, 0, 3, 1))


def test_a_third_dimension_alone_is_a_kernel_as_it_ever_was():
    def kernel(axis):
        @wave([*TILED, WorkgroupConstraint(B, 1, axis)])
        def moved(a: Memory[B, M, N, G, f32], c: Memory[B, M, N, G, f32]):
            write(read(a), c)

        return moved

    made = [
        wave_compile(WaveCompileOptions(subs=subs, target="numpy"), kernel(axis)).kernel
        for subs in ({B: 300, M: 40, N: 20}, {})
        for axis in (2, 3, 4)
    ]
    assert made[0] == made[1] == made[2] and made[3] == made[4] == made[5]
    assert "mod" not in str(made[0].body)


# -- wishes ---------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("mma_type", [None, MMAType.F32_32x32x8_F16, MMAType.RDNA4_WAVE32_F32_16x16x16_F16], ids=str)
def test_a_product_names_its_instruction(way, mma_type):
    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc, mma_type)

        write(total, c)

    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((70, 90), (100, 90)))
    c = poisoned(70, 100)
    compiled = run(way, gemm, {M: 70, N: 100, K: 90}, a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    if mma_type and way not in ("tiles", "cpu"):
        taken = compiled.resources.instructions
        said = [line for line in compiled.resources.not_as_asked if line.startswith("mma_type")]
        assert bool(said) != (mma_type.value in taken)
        assert mma_type.value in taken or "sm_90a" in way or mma_type.value.startswith("rdna4")


def test_two_products_name_two_instructions():
    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def both(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
        zero = Register[M, N, f32](0.0)

        @iterate(K, init_args=[zero, zero])
        def sums(one, other):
            x, y = read(a), read(b)
            return mma(x, y, one, MMAType.F32_16x16x16_F16), mma(x, y, other, mma_type=MMAType.F32_32x32x8_F16)

        write(sums[0], c)
        write(sums[1], d)

    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 64), (64, 64)))
    c, d = poisoned(64, 64), poisoned(64, 64)
    compiled = run("gfx942", both, {M: 64, N: 64, K: 64}, a, b, c, d)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(c, wanted)
    np.testing.assert_array_equal(d, wanted)
    assert set(compiled.resources.instructions) == {"f32_16x16x16_f16", "f32_32x32x8_f16"}


@everywhere
def test_a_constant_along_a_walked_dim_may_be_made_outside_its_loop(way):
    """As Wave's attention makes its masks."""

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def scaled(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        two = Register[M, K, f16](2.0)
        wide = broadcast(scalar(1.0, f16), target_shape=[M, K])

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a) * two + wide, read(b), acc)

        write(total, c)

    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((70, 90), (100, 90)))
    c = poisoned(70, 100)
    run(way, scaled, {M: 70, N: 100, K: 90}, a, b, c)
    np.testing.assert_array_equal(c, (2 * a + 1).astype(np.float32) @ b.astype(np.float32).T)
