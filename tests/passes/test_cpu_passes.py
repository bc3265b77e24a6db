"""Tiles cut into register blocks and operands packed into panels: the same numbers, every element written once."""

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernels import *
from sampled import examples
from seeds import SEEDS
from strategies import kernels, outcome

import tilewave as tw
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.positions import BlockScalars
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.errors import InterpreterError, Loc
from tilewave.interp.arithmetic import elementwise
from tilewave.interp.tiles import interpret
from tilewave.ir import ops
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.launch import bind
from tilewave.ir.rewrite import walk
from tilewave.ir.types import BOOL, F32, FLOAT8, I8, INDEX_SCALAR, Scalar, Tile
from tilewave.ir.types import Memory as IrMemory
from tilewave.ir.verify import verify
from tilewave.mapping import grouped
from tilewave.passes.memory.prepack_operands import PanelFormat, PrepackOperands
from tilewave.passes.tile.fold_trivial_loops import fold_trivial_loops
from tilewave.passes.tile.simplify import simplify
from tilewave.passes.tile.split_tiles import SplitTiles

ROWS, COLS, UNIT = 6, 8, 4
CUT = SplitTiles(ROWS, COLS)
PACK = PrepackOperands(ROWS, COLS, UNIT, FORMATS)


def whole_numbers(rng, shape, dtype):
    """Small enough that every sum of theirs in these tests is exact, in any order."""
    return rng.integers(-4, 5, shape).astype(dtype.numpy)


def run_all(kernel, symbols, fill=whole_numbers):
    """Every memory after the kernel."""
    rng = np.random.default_rng(7)
    memories = [v for v in kernel.body.args if isinstance(v.type, IrMemory)]
    arrays = [fill(rng, v.type.shape, v.type.dtype) for v in memories]
    interpret(kernel, arrays, symbols)
    return arrays


def check_passes(kernel, symbols, passes):
    """Each pass keeps every memory's contents, verifies, and leaves no op without a place."""
    want = run_all(kernel, symbols)
    checked_schedule(kernel, symbols)
    for p in passes:
        kernel = verify(p(kernel))
        for found, expected in zip(run_all(kernel, symbols), want, strict=True):
            np.testing.assert_array_equal(found, expected)
        checked_schedule(kernel, symbols)
        for op in walk(kernel.body):
            assert op.loc.line, f"{op} comes from nowhere"
    return kernel


def written_shapes(kernel):
    return [op.tile.type.shape for op in walk(kernel.body) if isinstance(op, (ops.Write, ops.Scatter))]


# -- kernels of the language ----------------------------------------------------------------------------------------


def gelu(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def biased(along):
    @wave(tiling())
    def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[along, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(read(bias) + total, c)

    return biased


@wave(tiling(WorkgroupConstraint(B, BLOCK_B, 2)))
def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave(tiling())
def turned(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[N, M, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave(tiling())
def added(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[read(c)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave(tiling())
def widened(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(cast(read(a), f32), cast(read(b), f32), acc)

    write(total, c)


GROUPED = WorkgroupMapping(grouped(sym.WGM))
GEMMS = {
    "plain": gemm(),
    "f32": gemm(f32),
    "i8": gemm(i8, i32),
    "columns of a": gemm(a_dims=(K, M)),
    "columns of both": gemm(a_dims=(K, M), b_dims=(K, N)),
    "gelu": gemm(epilogue=gelu),
    "cast": gemm(epilogue=lambda x: cast(x * 0.5, f16), out=f16),
    "bias along N": biased(N),
    "bias along M": biased(M),
    "batched": batched,
    "persistent": gemm(constraints=[GridConstraint(3)]),
    "reordered": gemm(constraints=[WorkgroupMapping("xcd_contiguous(2) >> grouped(2)")]),
    "turned accumulator": turned,
    "added in place": added,
    "cast before": widened,
}
SHAPES = [(24, 24, 16), (29, 23, 17), (1, 1, 1), (5, 30, 3)]


@pytest.mark.share(8)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GEMMS)
def test_a_product_is_cut_and_packed(name, shape):
    m, n, k = shape
    subs = {**sizes(m, n, k, 12, 24, 8), B: 3, BLOCK_B: 2}
    kernel = compiled(GEMMS[name], subs=subs).kernel
    after = check_passes(kernel, {}, [CUT, PACK, simplify])
    ((*batch, rows, cols),) = written_shapes(after)
    assert rows <= ROWS
    assert cols <= COLS
    assert set(batch) <= {1}
    assert sum(isinstance(op, ops.ReadPanel) for op in walk(after.body)) == 2
    assert not any(isinstance(op, ops.Read) and op.memory.name in "ab" for op in walk(after.body))


@pytest.mark.parametrize("shape", [(64, 32, 32), (35, 31, 21)], ids=str)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_seed_kernels_are_cut_and_packed(seed, shape):
    kernel = seed.compile(*shape, block_m=32, block_n=16, block_k=16).kernel
    after = check_passes(kernel, {}, [CUT, PACK, simplify])
    assert written_shapes(after) == [(4, 8)]
    assert sum(isinstance(op, ops.ReadPanel) for op in walk(after.body)) == 2


OPEN_SHAPES = [(24, 24, 16), (29, 23, 17), (1, 1, 1), (5, 30, 3), (13, 7, 0)]


@pytest.mark.parametrize("name", GEMMS)
def test_a_product_of_open_sizes_is_cut_and_packed(name):
    """Once for all sizes: what the passes make is bound to those of a call, and each pass keeps what is computed."""
    made = compiled(GEMMS[name], subs={BLOCK_M: 12, BLOCK_N: 24, BLOCK_K: 8, BLOCK_B: 2})
    steps = [made.kernel]
    for p in (CUT, PACK, simplify):
        steps.append(verify(p(steps[-1])))
        assert all(op.loc.line for op in walk(steps[-1].body)), "an op comes from nowhere"
    assert sum(isinstance(op, ops.ReadPanel) for op in walk(steps[-1].body)) == 2
    for m, n, k in OPEN_SHAPES:
        numbers = {"M": m, "N": n, "K": k, "B": 3}
        want, *found = [run_all(bind(step, numbers), {}) for step in steps]
        for arrays in found:
            np.testing.assert_array_equal(arrays[-1], want[-1])


def test_a_symbol_known_only_at_the_call():
    kernel = compiled(gemm(constraints=[GROUPED]), subs=sizes(40, 36, 20, 12, 12, 8), dynamic_symbols=[sym.WGM]).kernel
    for size in (1, 2, 3):
        after = check_passes(kernel, {"WGM": size}, [CUT, PACK, simplify])
        assert written_shapes(after) == [(6, 6)]


def test_a_sum_of_floats_stays_within_the_bound_though_its_order_changes():
    rng = np.random.default_rng(0)
    a, b, c = random_array(rng, (29, 75), f16), random_array(rng, (23, 75), f16), poisoned((29, 23), f32)
    kernel = PACK(CUT(compiled(gemm(), subs=sizes(29, 23, 75, 12, 24, 32)).kernel))
    interpret(kernel, [a, b, c], {})
    check_product(c, a, b)
    assert "tile<6x4xf32>" in str(kernel)


def test_panels_of_the_operands_own_dtype_round_what_a_cast_would_round():
    """f32 in memory, f16 in the product, f16 in the panels: packing does the cast."""

    @wave(tiling())
    def narrowed(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(cast(read(a), f16), cast(read(b), f16), acc)

        write(total, c)

    rng = np.random.default_rng(0)
    a, b, c = random_array(rng, (12, 20), f32), random_array(rng, (8, 20), f32), poisoned((12, 8), f32)
    kernel = CUT(compiled(narrowed, subs=sizes(12, 8, 20, 12, 8, 8)).kernel)
    packed = PrepackOperands(ROWS, COLS, UNIT, {"f16": PanelFormat("f16", 1)})(kernel)
    assert PACK(kernel) == kernel
    assert "= cast(" not in str(packed)
    interpret(packed, [a, b, c], {})
    check_product(c, a.astype(np.float16), b.astype(np.float16))


def product_of_a_cast(stored, taken, acc):
    """a · bᵀ, with a cast on its way to the product."""

    @wave(tiling())
    def product_of_a_cast(a: Memory[M, K, G, stored], b: Memory[N, K, G, taken], c: Memory[M, N, G, acc]):
        @iterate(K, init_args=[Register[M, N, acc](0)])
        def total(sum):
            return mma(cast(read(a), taken), read(b), sum)

        write(total, c)

    return product_of_a_cast


@pytest.mark.parametrize("taken", [f32, f16, bf16, *FLOAT8, i8], ids=str)
@pytest.mark.parametrize("stored", [f16, bf16, *FLOAT8, i8, BOOL], ids=str)
def test_a_packed_operand_is_what_its_cast_makes_of_every_number(stored, taken):
    """All the numbers that a dtype has, times 1: float8s hold neither each other nor every i8, though numpy says so."""
    acc, count = i32 if taken == i8 else f32, 1 << stored.bits
    a = np.arange(count).astype(f"u{stored.bytes}").view(stored.numpy)[:, None]
    kernel = compiled(product_of_a_cast(stored, taken, acc), subs=sizes(count, 1, 1, count, 1, 2)).kernel
    packed = PrepackOperands(count, 1, 2, INSTRUCTION_SETS["x86-64"].panel_formats())(kernel)
    want, found = poisoned((count, 1), acc), poisoned((count, 1), acc)
    for each, c in ((kernel, want), (packed, found)):
        interpret(each, [a, np.ones((1, 1), taken.numpy), c], {})
    np.testing.assert_array_equal(found, want)


def test_packed_integers_become_floats_in_exact_numbers_too():
    kernel = compiled(product_of_a_cast(i8, f32, f32), subs=sizes(9, 1, 33, 16, 1, 32), target="cpu")
    rng = np.random.default_rng(2)
    found = kernel.check_passes(
        rng.integers(-5, 6, (9, 33)).astype(np.int8), np.ones((1, 33), "f"), np.zeros((9, 1), "f")
    )
    assert found, found.wrong


def test_a_format_that_loses_digits_is_refused():
    with pytest.raises(AssertionError, match="panels of f16 do not hold every f32"):
        PrepackOperands(8, 8, 8, {"f32": PanelFormat("f16", 1)})


def test_a_step_is_a_multiple_of_the_unit_and_of_the_groups():
    kernel = compiled(gemm(f16, f32), subs=sizes(16, 16, 64, 16, 16, 32)).kernel
    packed = PrepackOperands(16, 16, 6, {"f16": PanelFormat("f32", 4)})(kernel)
    assert {op.result.type.shape for op in walk(packed.body) if isinstance(op, ops.ReadPanel)} == {(16, 12)}


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 33, 48, 49, 64, 80, 97, 144])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_last_columns_are_a_block_of_fewer_vectors(columns, is_open):
    """Each width of blocks has a loop, and known sizes have those that they need."""
    known = sizes(5, columns, 7, 8, 96, 8)
    kernel = compiled(gemm(f32, f32), subs={s: n for s, n in known.items() if not (is_open and s == N)}).kernel
    after = fold_trivial_loops(simplify(PrepackOperands(8, 48, 1, FORMATS)(SplitTiles(8, 48, 16)(kernel))))
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((5, 7), (columns, 7)))
    c = poisoned((5, columns), f32)
    interpret(bind(verify(after), {"N": columns}), [a, b, c], {})
    np.testing.assert_array_equal(c, a @ b.T)
    widths = {shape[1] for shape in written_shapes(after)}
    vectors = -(-columns // 16)
    rest = 16 * (vectors % 3)
    is_known = not is_open and columns <= 96  # of one tile
    assert widths == ({48, 32, 16} if not is_known else {*[48] * (vectors > 2), *[rest] * (rest > 0)})
    rows = {op.result.type.extents[-2] for op in walk(after.body) if isinstance(op, ops.Prepack)}
    assert len(rows) == 2  # both operands are packed once


# -- kernels that stay as they are ----------------------------------------------------------------------------------


def test_a_chain_of_products_stays_whole():
    L = sym.L
    constraints = [
        WorkgroupConstraint(M, 16, 0),
        WorkgroupConstraint(L, 16, 1),
        TilingConstraint(N, 8),
        TilingConstraint(K, 8),
    ]

    @wave(constraints)
    def attention(q: Memory[M, K, G, f32], k: Memory[N, K, G, f32], v: Memory[L, N, G, f32], o: Memory[M, L, G, f32]):
        @iterate(N, init_args=[Register[M, L, f32](0.0)])
        def total(acc):
            @iterate(K, init_args=[Register[M, N, f32](0.0)])
            def weights(sum):
                return mma(read(q), read(k), sum)

            return mma(exp2(weights), read(v), acc)

        write(total, o)

    kernel = compiled(attention, subs={M: 32, N: 24, K: 16, L: 16}).kernel
    assert CUT(kernel).body is kernel.body
    assert PACK(kernel).body is kernel.body


def test_a_window_that_slides_while_the_tile_is_carried_stays_whole():
    T, ROW = sym.T, sym.ROW
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    there = IndexMapping(2, {M: i, N: j}, {M: i + ROW, N: j})

    @wave([GridConstraint(1), WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(T)])
    def slide(c: Memory[M, N, G, f32]):
        set_symbol(ROW, 0)

        @iterate(T, start=0, condition=T < 4, init_args=[Register[M, N, f32](1.0)])
        def rows(value):
            write(value, c, mapping=there)
            set_symbol(ROW, scalar(ROW) + 1)
            set_symbol(T, self_index(T) + 1)
            return value * 2.0

    kernel = compiled(slide, subs={M: 4, N: 16}).kernel
    assert CUT(kernel).body is kernel.body


def test_operands_changed_before_a_product_are_cut_and_not_packed():
    @wave(tiling())
    def shifted(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a) + 1.0, tw.abs(read(b)), acc)

        write(total, c)

    kernel = compiled(shifted, subs=sizes(29, 23, 17, 12, 24, 8)).kernel
    after = check_passes(kernel, {}, [CUT, PACK])
    assert written_shapes(after) == [(6, 8)]
    assert "prepack" not in str(after)


def test_a_second_time_there_is_nothing_left_to_do():
    once = CUT(compiled(gemm(), subs=sizes(40, 36, 24, 12, 24, 8)).kernel)
    assert CUT(once) is once and not CUT(once).remarks
    packed = PACK(once)
    assert PACK(packed) is packed
    assert CUT(packed) is packed


def test_both_passes_are_quick():
    kernel = SEEDS[-1].compile(2048, 2048, 2048).kernel
    pack = PrepackOperands(8, 8, 8, FORMATS)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        after = pack(SplitTiles(8, 8)(kernel))
        seconds.append(time.process_time() - start)
    assert "read_panel" in str(after)
    assert min(seconds) < 0.030


# -- random kernels -------------------------------------------------------------------------------------------------


@given(kernel=kernels())
@settings(max_examples=examples(120))
def test_random_kernels_over_one_memory_keep_their_meaning(kernel):
    after = verify(SplitTiles(1, 1)(verify(kernel)))
    np.testing.assert_array_equal(outcome(after), outcome(kernel))


class _Program:
    """Draws a tile program: what a workgroup computes from its windows of some memories, and writes to its own of c."""

    def __init__(self, draw):
        self.draw, self.lines = draw, 0
        self.builder = Builder(locate=self.locate)
        self.rows, self.cols = draw(st.integers(1, 6)), draw(st.integers(1, 6))
        self.tile = Tile((self.rows, self.cols), F32)
        ragged = draw(st.integers(0, self.rows - 1)), draw(st.integers(0, self.cols - 1))
        self.shape = 2 * self.rows - ragged[0], self.cols - ragged[1]
        self.depth, self.step = draw(st.integers(1, 7)), draw(st.integers(1, 4))
        m, n = self.shape
        shapes = {"x": (m, n), "y": (n, m), "p": (m,), "q": (n,), "a": (m, self.depth), "b": (self.depth, n)}
        self.memories = {name: self.memory(name, shape) for name, shape in {**shapes, "c": (m, n)}.items()}
        w = self.builder.emit(ops.Workgroup, type=INDEX_SCALAR)
        self.m = self.builder.binary(ops.Mul, w, self.builder.const(self.rows))
        self.n = self.builder.const(0)
        self.odd = self.builder.binary(ops.Less, w, self.builder.const(1))

    def memory(self, name, shape):
        return self.builder.fresh(name, IrMemory(shape, F32, "global"))

    def locate(self):
        self.lines += 1
        return Loc("random.py", self.lines)

    def pick(self, values):
        return self.draw(st.sampled_from(values))

    def read(self, name, at, axes, type):
        return self.builder.emit(ops.Read, self.memories[name], at, axes, type=type)

    def block(self, tiles, depth):
        tiles = list(tiles)
        for kind in self.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)):
            tiles.append(getattr(self, kind)(tiles, depth))
        return tiles

    def constant(self, tiles, depth):
        return self.builder.const(float(self.draw(st.integers(0, 3))), self.tile)

    def window(self, tiles, depth):
        if self.pick([True, False]):
            return self.read("x", (self.m, self.n), (0, 1), self.tile)
        return self.read("y", (self.n, self.m), (1, 0), self.tile)

    def own(self, tiles, depth):
        return self.read("c", (self.m, self.n), (0, 1), self.tile)

    def elementwise(self, tiles, depth):
        cls = self.pick((ops.Add, ops.Sub, ops.Min, ops.Max))
        return self.builder.binary(cls, self.pick(tiles), self.pick(tiles))

    def spread(self, tiles, depth):
        axis = self.pick([0, 1])
        kind = Tile((self.tile.shape[axis],), F32)
        x = self.read("pq"[axis], ((self.m, self.n)[axis],), (0,), kind)
        return self.builder.emit(ops.Broadcast, x, (axis,), type=self.tile)

    def count(self, tiles, depth):
        axis = self.pick([0, 1])
        numbers = self.builder.emit(ops.Iota, type=Tile((self.tile.shape[axis],), F32))
        return self.builder.emit(ops.Broadcast, numbers, (axis,), type=self.tile)

    def choice(self, tiles, depth):
        a, b = self.pick(tiles), self.pick(tiles)
        condition = self.odd if self.pick([True, False]) else self.builder.binary(ops.Less, a, b)
        assert condition.type in (Scalar(BOOL), Tile(self.tile.shape, BOOL))
        return self.builder.emit(ops.Select, condition, a, self.pick(tiles), type=self.tile)

    def there_and_back(self, tiles, depth):
        over = Tile((self.cols, self.rows), F32)
        turned = self.builder.emit(ops.Permute, self.pick(tiles), (1, 0), type=over)
        more = self.builder.binary(ops.Add, turned, self.builder.const(1.0, over))
        return self.builder.emit(ops.Permute, more, (1, 0), type=self.tile)

    def gathered(self, tiles, depth):
        i, j = self.builder.fresh("i", INDEX_SCALAR), self.builder.fresh("j", INDEX_SCALAR)
        with self.builder.region():
            back = self.builder.binary(ops.Sub, self.builder.const(self.cols - 1), j)
            where = self.builder.block([i, j], [i, back])
        return self.builder.emit(ops.Gather, self.memories["x"], where, type=self.tile)

    def loop(self, tiles, depth):
        if depth == 2:
            return self.constant(tiles, depth)
        i, carried = self.builder.fresh("i", INDEX_SCALAR), self.builder.fresh("carried", self.tile)
        init = self.pick(tiles)
        with self.builder.region():
            body = self.builder.block([i, carried], [self.pick(self.block([*tiles, carried], depth + 1))])
        result = self.builder.fresh("after", self.tile)
        trips = self.builder.const(self.draw(st.integers(0, 3)))
        self.builder.effect(ops.Loop, trips, (init,), body, results=(result,))
        return result

    def product(self, tiles, depth):
        i, acc = self.builder.fresh("i", INDEX_SCALAR), self.builder.fresh("acc", self.tile)
        init, step = self.pick(tiles), self.step
        trips = self.builder.const(-(-self.depth // step))
        with self.builder.region():
            k = self.builder.binary(ops.Mul, i, self.builder.const(step))
            a = self.read("a", (self.m, k), (0, 1), Tile((self.rows, step), F32))
            b = self.read("b", (k, self.n), (1, 0), Tile((self.cols, step), F32))
            total = self.builder.emit(ops.Mma, a, b, acc, type=self.tile)
            body = self.builder.block([i, acc], [total])
        result = self.builder.fresh("sum", self.tile)
        self.builder.effect(ops.Loop, trips, (init,), body, results=(result,))
        return result

    def kernel(self):
        tiles = self.block([self.constant([], 0)], 0)
        self.builder.effect(ops.Write, tiles[-1], self.memories["c"], (self.m, self.n), (0, 1))
        return Kernel("random", Block(tuple(self.memories.values()), tuple(self.builder.ops)), workgroups=2)


KINDS = ["constant", "window", "own", "elementwise", "spread", "count", "choice", "there_and_back", "gathered"]
KINDS += ["loop", "product", "product"]


@st.composite
def programs(draw):
    return _Program(draw).kernel()


sizes_of_blocks = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(programs(), sizes_of_blocks, st.integers(0, 2), st.integers(1, 2), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(120))
def test_random_tile_programs_keep_their_meaning(kernel, block, lanes, group, groups, is_simple):
    pack = PrepackOperands(*block, group * groups, {"f32": PanelFormat("f32", group)})
    check_passes(verify(kernel), {}, [*[simplify] * is_simple, SplitTiles(*block, lanes), pack, simplify])


@given(programs(), sizes_of_blocks)
@settings(max_examples=examples(100))
def test_random_tile_programs_are_cut(kernel, block):
    """None of them ties rows to columns, so that all can be split, after DCE."""
    after = SplitTiles(*block)(simplify(kernel))
    ((rows, cols),) = written_shapes(after)
    assert rows <= block[0]
    assert cols <= block[1]


# -- what is known about positions ----------------------------------------------------------------------------------


@st.composite
def numbers(draw):
    """A block of arithmetic on an unknown number, and what each value is when that number is known."""
    builder, n = Builder({"n"}), Value("n", INDEX_SCALAR)
    known = {n: draw(st.integers(-300, 300))}
    for cls in draw(st.lists(st.sampled_from(NUMBERS), max_size=12)):
        a, b = draw(st.sampled_from(list(known))), draw(st.sampled_from(list(known)))
        if cls is ops.Const:
            builder.const(draw(st.integers(-48, 48)))
        elif cls is ops.Cast:
            builder.emit(ops.Cast, builder.cast(a, I8), type=INDEX_SCALAR)
        elif cls is ops.Neg:
            builder.emit(ops.Neg, a, type=INDEX_SCALAR)
        elif cls is ops.Select:
            condition = builder.binary(ops.Less, a, b)
            builder.emit(ops.Select, condition, a, b, type=INDEX_SCALAR)
        else:
            builder.binary(cls, a, b)
        for op in builder.ops:
            if op.result not in known:
                known[op.result] = value_of(op, known)
    usable = {v: x for v, x in known.items() if v.type == INDEX_SCALAR}
    return Block((n,), tuple(builder.ops)), usable


def value_of(op, known):
    try:
        return op.value if isinstance(op, ops.Const) else elementwise(op, [known[v] for v in op.operands])
    except InterpreterError:
        assume(False)


NUMBERS = [ops.Const, ops.Const, ops.Add, ops.Sub, ops.Mul, ops.Mul, ops.Mod, ops.Min, ops.Max, ops.FloorDiv]
NUMBERS += [ops.Neg, ops.Cast, ops.Select]


@given(numbers())
@settings(max_examples=examples(150))
def test_what_is_said_about_numbers_before_they_are_known_holds(drawn):
    body, known = drawn
    positions, by_formula = BlockScalars(body), {}
    for v, value in known.items():
        divisor = positions.divisor(v)
        assert value == 0 if divisor == 0 else value % divisor == 0, f"{divisor} does not divide {v} = {value}"
        assert by_formula.setdefault(positions.formula(v), value) == value
        assert positions.constant(v) in (None, value)


def test_a_number_that_may_not_fit_keeps_only_powers_of_two_as_divisors():
    builder, n = Builder({"n"}), Value("n", INDEX_SCALAR)
    big = builder.binary(ops.Mul, n, builder.const(24))
    narrow = builder.cast(big, I8)
    positions = BlockScalars(Block((n,), tuple(builder.ops)))
    assert (positions.divisor(big), positions.divisor(narrow)) == (24, 8)


def test_a_narrow_product_that_may_not_fit_does_so_too():
    builder, n = Builder({"n"}), Value("n", INDEX_SCALAR)
    product = builder.binary(ops.Mul, builder.cast(builder.const(26), I8), builder.cast(n, I8))
    total = builder.binary(ops.Add, product, product)
    positions = BlockScalars(Block((n,), tuple(builder.ops)))
    assert (positions.divisor(product), positions.divisor(total)) == (2, 2)
