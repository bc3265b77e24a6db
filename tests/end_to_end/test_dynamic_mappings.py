"""Wave's index mappings with dynamic values, as its kernels write them, on every target."""

import numpy as np
import pytest
from test_indices import TARGETS, distinct, run, table_of

import tilewave as tkl
import tilewave as tkw
from tilewave import *
from tilewave.errors import CoverageError, DimensionError, TraceError

pytestmark = pytest.mark.share(6)
M, N, N1, K, S, T, U = sym.M, sym.N, sym.N1, sym.K, sym.S, sym.T, sym.U
B, BH, K1, K2, N_KV, NUM = sym.B, sym.BH, sym.K1, sym.K2, sym.N_KV, sym.NUM
G, SHARED = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
TILED = [WorkgroupConstraint(M, 4, 1), WorkgroupConstraint(N, 32, 0)]
everywhere = pytest.mark.parametrize("target", TARGETS)
i, j, k, l = (tkw.IndexMapping.iterator(n) for n in range(4))  # noqa: E741
d0, d1 = (tkw.IndexMapping.dynamic_val(n) for n in range(2))


def taken(a, rows, columns):
    """Return a[rows, columns], 0 where that is out of bounds."""
    inside = (rows >= 0) & (rows < a.shape[0]) & (columns >= 0) & (columns < a.shape[1])
    return np.where(inside, a[np.clip(rows, 0, a.shape[0] - 1), np.clip(columns, 0, a.shape[1] - 1)], 0)


def hostile(rng, shape, end):
    return table_of(rng, int(np.prod(shape)), end).reshape(shape)


def halves(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


ROW_OF_EACH = tkw.IndexMapping(
    num_iterators=2, inputs={M: d0, N: j}, outputs={M: i, N: j}, dynamic_val_mappings={M: i, N: j}
)
COLUMN_OF_EACH = tkw.IndexMapping(
    num_iterators=2, inputs={M: i, N: d0}, outputs={M: i, N: j}, dynamic_val_mappings={M: i, N: j}
)


@everywhere
@pytest.mark.parametrize("along", ["M", "N"])
def test_an_index_for_each_element(target, along):
    mapping = ROW_OF_EACH if along == "M" else COLUMN_OF_EACH

    @tkw.wave(TILED)
    def gathered(a: tkl.Memory[M, N, G, tkl.f16], off: tkl.Memory[M, N, G, tkl.i32], b: tkl.Memory[M, N, G, tkl.f16]):
        offset = tkw.read(off)
        tkw.write(tkw.read(a, mapping=mapping, mapping_dynamic_vals=(offset,)), b)

    rng = np.random.default_rng(1)
    a, b = halves(rng, 11, 45), np.full((11, 45), 7, np.float16)
    off = hostile(rng, (11, 45), 11 if along == "M" else 45)
    run(gathered, target, {M: 11, N: 45}, a, off, b)
    rows, columns = np.indices(a.shape)
    np.testing.assert_array_equal(b, taken(a, off, columns) if along == "M" else taken(a, rows, off))


@everywhere
def test_an_index_for_several_elements(target):
    """`dynamic_val_mappings={N1: j // 4}`: four elements of a row take one index."""
    mapping = tkw.IndexMapping(
        num_iterators=2, inputs={M: d0, N: j}, outputs={M: i, N: j}, dynamic_val_mappings={M: i, N1: j // 4}
    )

    @tkw.wave(TILED)
    def gathered(a: tkl.Memory[M, N, G, tkl.f16], off: tkl.Memory[M, N1, G, tkl.i32], b: tkl.Memory[M, N, G, tkl.f16]):
        tkw.write(tkw.read(a, mapping=mapping, mapping_dynamic_vals=(tkw.read(off),)), b)

    rng = np.random.default_rng(2)
    a, b = halves(rng, 11, 45), np.full((11, 45), 7, np.float16)
    off = hostile(rng, (11, 12), 11)
    run(gathered, target, {M: 11, N: 45, N1: 12}, a, off, b)
    np.testing.assert_array_equal(b, taken(a, off.repeat(4, axis=1)[:, :45], np.indices(a.shape)[1]))


@everywhere
def test_one_index_and_an_offset_for_each_row(target):
    """`N: k + j % 16` where the index has one element along its second dim."""
    ONE = sym.ONE
    mapping = tkw.IndexMapping(
        num_iterators=2,
        inputs={M: i, N: d0 + j % 16},
        outputs={M: i, N: j},
        dynamic_val_mappings={M: i, ONE: j // 16},
    )

    @tkw.wave(TILED)
    def shifted(a: tkl.Memory[M, N, G, tkl.f16], off: tkl.Memory[M, ONE, G, tkl.i32], b: tkl.Memory[M, N, G, tkl.f16]):
        tkw.write(tkw.read(a, mapping=mapping, mapping_dynamic_vals=(tkw.read(off),)), b)

    rng = np.random.default_rng(3)
    a, b, off = halves(rng, 11, 16), np.full((11, 16), 7, np.float16), hostile(rng, (11, 1), 16)
    run(shifted, target, {M: 11, N: 16, ONE: 1}, a, off, b)
    rows, columns = np.indices(a.shape)
    np.testing.assert_array_equal(b, taken(a, rows, off.astype(np.int64) + columns % 16))


@everywhere
def test_indices_of_indices(target):
    first = tkw.IndexMapping(
        num_iterators=2, inputs={M: i, K: d0}, outputs={M: i, N: j}, dynamic_val_mappings={M: i, N: j}
    )

    @tkw.wave(TILED)
    def chained(
        a: tkl.Memory[M, N, G, tkl.f16],
        one: tkl.Memory[M, N, G, tkl.i32],
        two: tkl.Memory[M, K, G, tkl.i32],
        b: tkl.Memory[M, N, G, tkl.f16],
    ):
        second = tkw.read(two, mapping=first, mapping_dynamic_vals=(tkw.read(one),))
        tkw.write(tkw.read(a, mapping=COLUMN_OF_EACH, mapping_dynamic_vals=(second,)), b)

    rng = np.random.default_rng(4)
    a, b = halves(rng, 11, 45), np.full((11, 45), 7, np.float16)
    one, two = hostile(rng, (11, 45), 9), hostile(rng, (11, 9), 45)
    run(chained, target, {M: 11, N: 45, K: 9}, a, one, two, b)
    rows, _ = np.indices(a.shape)
    np.testing.assert_array_equal(b, taken(a, rows, taken(two, rows, one)))


@everywhere
@pytest.mark.parametrize("shift", [-3, 0, 5, 2**31 - 1, -(2**31)])
def test_an_index_that_is_an_argument(target, shift):
    """A number for the whole kernel, in a formula with an iterator."""
    mapping = tkw.IndexMapping(num_iterators=1, inputs={N: d0 + i}, outputs={N: i}, dynamic_val_mappings={N: i})

    @tkw.wave([WorkgroupConstraint(N, 32, 0)])
    def shifted(a: tkl.Memory[N, G, tkl.i32], off: tkl.i32, b: tkl.Memory[N, G, tkl.i32]):
        tkw.write(tkw.read(a, mapping=mapping, mapping_dynamic_vals=(off,)), b)

    a, b = np.arange(1, 46, dtype=np.int32), np.full(45, 7, np.int32)
    run(shifted, target, {N: 45}, a, shift, b)
    np.testing.assert_array_equal(b, taken(a[None], np.zeros(45, int), np.arange(45) + shift))


@everywhere
def test_the_pages_of_a_decoding_kernel(target):
    """Keys and values of Wave's paged decoding: rows of a cache by a table, for one head, inside a loop."""
    k_mapping = tkw.IndexMapping(
        num_iterators=4,
        inputs={N_KV: d0, BH: j, K1: l},
        outputs={S: i, BH: j, K2: k, K1: l},
        dynamic_val_mappings={K2: k},
    )
    v_mapping = tkw.IndexMapping(
        num_iterators=4,
        inputs={N_KV: d0, BH: j, N: k},
        outputs={S: i, BH: j, N: k, K2: l},
        dynamic_val_mappings={K2: l},
    )

    @tkw.wave(
        [
            tkw.WorkgroupConstraint(S, 1, 0),
            tkw.WorkgroupConstraint(BH, 1, 1),
            tkw.WorkgroupConstraint(B, 16, 2),
            tkw.TilingConstraint(K2, 16),
        ]
    )
    def phase_0(
        q: tkl.Memory[S, BH, B, K1, G, tkl.f16],
        keys: tkl.Memory[N_KV, BH, K1, SHARED, tkl.f16],
        values: tkl.Memory[N_KV, BH, N, SHARED, tkl.f16],
        kv_indices: tkl.Memory[K2, G, tkl.i32],
        out: tkl.Memory[S, BH, N, B, G, tkl.f32],
    ):
        @tkw.iterate(K2, init_args=[tkl.Register[S, BH, N, B, tkl.f32](0.0)])
        def total(acc):
            pages_k, pages_v = tkw.read(kv_indices), tkw.read(kv_indices)
            k_reg = tkw.read(keys, mapping=k_mapping, mapping_dynamic_vals=(pages_k,))
            scores = tkw.mma(k_reg, tkw.read(q), tkl.Register[S, BH, K2, B, tkl.f32](0.0))
            scores = tkw.permute(scores, target_shape=[S, BH, B, K2])
            v_reg = tkw.read(values, mapping=v_mapping, mapping_dynamic_vals=(pages_v,))
            return tkw.mma(v_reg, tkw.cast(scores, tkl.f16), acc)

        tkw.write(total, out)

    rng = np.random.default_rng(5)
    q = rng.integers(-2, 3, (3, 2, 5, 32)).astype(np.float16)
    keys, values = (rng.integers(-2, 3, (70, 2, n)).astype(np.float16) for n in (32, 48))
    table, out = table_of(rng, 37, 70), np.full((3, 2, 48, 5), np.nan, np.float32)
    run(phase_0, target, {S: 3, BH: 2, B: 5, K1: 32, N_KV: 70, N: 48, K2: 37}, q, keys, values, table, out)
    inside = (table >= 0) & (table < 70)
    rows_k, rows_v = (x[np.clip(table, 0, 69)].astype(float) * inside[:, None, None] for x in (keys, values))
    scores = np.einsum("khc,shbc->shbk", rows_k, q.astype(float))
    assert np.abs(scores).max() < 2048  # exact in f16
    np.testing.assert_array_equal(out, np.einsum("khn,shbk->shnb", rows_v, scores))


@everywhere
def test_rows_are_written_where_an_index_says(target):
    mapping = tkw.IndexMapping(num_iterators=2, inputs={T: i, N: j}, outputs={M: d0, N: j}, dynamic_val_mappings={T: i})

    @tkw.wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def scattered(
        slots: tkl.Memory[T, G, tkl.i32, Indices(unique=True)],
        x: tkl.Memory[T, N, G, tkl.f16],
        out: tkl.Memory[M, N, G, tkl.f16],
    ):
        tkw.write(tkw.read(x), out, mapping=mapping, mapping_dynamic_vals=(tkw.read(slots),))

    rng = np.random.default_rng(6)
    slots, x, out = distinct(rng, 37, 50), halves(rng, 37, 45), np.full((50, 45), 7, np.float16)
    wanted, inside = out.copy(), (slots >= 0) & (slots < 50)
    wanted[slots[inside]] = x[inside]
    run(scattered, target, {T: 37, M: 50, N: 45}, slots, x, out)
    np.testing.assert_array_equal(out, wanted)


def test_a_scatter_by_a_mapping_needs_a_contract_too():
    @tkw.wave(TILED)
    def scattered(a: tkl.Memory[M, N, G, tkl.f16], off: tkl.Memory[M, N, G, tkl.i32], b: tkl.Memory[M, N, G, tkl.f16]):
        mapping = tkw.IndexMapping(2, {M: i, N: j}, {M: i, N: d0}, {M: i, N: j})
        tkw.write(tkw.read(a), b, mapping=mapping, mapping_dynamic_vals=(tkw.read(off),))

    with pytest.raises(CoverageError, match="at indices from off, of which two may be equal"):
        scattered.compile(target="cpu", subs={M: 11, N: 45})


@everywhere
def test_atomics_by_a_mapping(target):
    """The inputs of the mapping are positions in the memory, as for a read."""
    mapping = tkw.IndexMapping(num_iterators=1, inputs={M: d0}, outputs={NUM: i}, dynamic_val_mappings={NUM: i})

    @tkw.wave([WorkgroupConstraint(NUM, 64, 0)])
    def counted(x: tkl.Memory[NUM, G, tkl.i32], counts: tkl.Memory[M, G, tkl.i32]):
        ones = tkl.Register[NUM, tkl.i32](1)
        tkw.atomic_add(ones, counts, mapping=mapping, mapping_dynamic_vals=(tkw.read(x),), elements_per_thread=1)

    x, counts = table_of(np.random.default_rng(7), 1000, 50), np.zeros(50, np.int32)
    run(counted, target, {NUM: 1000, M: 50}, x, counts)
    np.testing.assert_array_equal(counts, np.bincount(x[(x >= 0) & (x < 50)], minlength=50))


@everywhere
def test_atomics_by_a_mapping_without_dynamic_values(target):
    same = tkw.IndexMapping(num_iterators=1, inputs={M: i}, outputs={M: i})

    @tkw.wave([WorkgroupConstraint(M, 64, 0)])
    def counted(a: tkl.Memory[M, G, tkl.i32]):
        tkw.atomic_add(tkl.Register[M, tkl.i32](1), a, mapping=same)

    a = np.arange(100, dtype=np.int32)
    run(counted, target, {M: 100}, a)
    np.testing.assert_array_equal(a, np.arange(100) + 1)


@everywhere
@pytest.mark.parametrize("rows", [1, 2], ids=["a number", "a tile"])
def test_atomics_at_an_index_of_each_row_and_one_of_each_element(target, rows):
    """The row's index does not add an axis beside that of the elements' indices, where it is a number, too."""
    mapping = tkw.IndexMapping(2, {S: d1, T: d0}, {M: i, N: j}, ({M: i, N: j}, {M: i}))

    @tkw.wave([WorkgroupConstraint(M, rows, 1), WorkgroupConstraint(N, 8, 0)])
    def added(
        x: tkl.Memory[M, N, G, tkl.f32],
        columns: tkl.Memory[M, N, G, tkl.i32],
        places: tkl.Memory[M, G, tkl.i32],
        table: tkl.Memory[S, T, G, tkl.f32],
    ):
        given = tkw.read(columns), tkw.read(places)
        tkw.atomic_add(tkw.read(x), table, mapping=mapping, mapping_dynamic_vals=given)

    rng = np.random.default_rng(15)
    x, places = rng.integers(-9, 9, (5, 17)).astype(np.float32), np.array([2, 5, -1, 6, 2], np.int32)
    columns, table, want = hostile(rng, (5, 17), 9), np.zeros((6, 9), np.float32), np.zeros((6, 9), np.float32)
    run(added, target, {}, x, columns, places, table)
    inside = (columns >= 0) & (columns < 9) & ((places >= 0) & (places < 6))[:, None]
    np.add.at(want, (np.broadcast_to(places[:, None], columns.shape)[inside], columns[inside]), x[inside])
    np.testing.assert_array_equal(table, want)


@everywhere
def test_a_source_that_is_a_tile_of_indices(target):
    m, n = sym.m, sym.n

    @tkw.wave([*TILED, tkw.IteratorBindings({m: M, n: N})])
    def gathered(a: tkl.Memory[M, N, G, tkl.f16], off: tkl.Memory[M, N, G, tkl.i32], b: tkl.Memory[M, N, G, tkl.f16]):
        tkw.write(tkw.read(a, source=(tkw.read(off), n), target=(m, n)), b)

    rng = np.random.default_rng(8)
    a, b, off = halves(rng, 11, 45), np.full((11, 45), 7, np.float16), hostile(rng, (11, 45), 11)
    run(gathered, target, {M: 11, N: 45}, a, off, b)
    np.testing.assert_array_equal(b, taken(a, off, np.indices(a.shape)[1]))


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(error, mapping, values, **more):
    @tkw.wave(TILED)
    def gathered(
        a: tkl.Memory[M, N, G, tkl.f16],
        off: tkl.Memory[M, N, G, tkl.i32],
        other: tkl.Memory[U, G, tkl.i32],
        b: tkl.Memory[M, N, G, tkl.f16],
    ):
        given = {"off": lambda: tkw.read(off), "doubled": lambda: tkw.read(other) * 2}
        tkw.write(tkw.read(a, mapping=mapping, mapping_dynamic_vals=[given[v]() for v in values], **more), b)

    with pytest.raises(error) as raised:
        gathered.compile(target="cpu", subs={M: 11, N: 45, U: 7})
    return str(raised.value)


def test_a_dynamic_value_that_is_not_given():
    said = refused(TraceError, tkw.IndexMapping(2, {M: d1, N: j}, {M: i, N: j}), ["off"])
    assert "the mapping has dynamic_val(1), but 1 dynamic values are given" in said
    assert "mapping_dynamic_vals=(indices, …)" in said


def test_dynamic_values_without_a_mapping():
    said = refused(TraceError, None, ["off"])
    assert "mapping_dynamic_vals are indices of a mapping, and there is none" in said


def test_a_dynamic_value_with_a_dim_that_no_mapping_names():
    said = refused(DimensionError, tkw.IndexMapping(2, {M: d0, N: j}, {M: i, N: j}), ["doubled"])
    assert "has no element along U for each of the tile's" in said and "dynamic_val_mappings=({U: …},)" in said


def test_a_mapping_beside_at():
    said = refused(TraceError, ROW_OF_EACH, ["off"], at={M: 0})
    assert "at and a mapping both say where the elements are" in said
