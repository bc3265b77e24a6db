"""Indices from memory: what is read and written at them, on every target, with hostile tables."""

import numpy as np
import pytest
from kernels import K, M, N

from tilewave import *
from tilewave.errors import AccessError, CoverageError

pytestmark = pytest.mark.share(4)
G, S = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
T, V, D, E, X, SLOT, PAGE = sym.T, sym.V, sym.D, sym.E, sym.X, sym.SLOT, sym.PAGE
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
TILES = {sym.BLOCK_M: 64, sym.BLOCK_N: 64, sym.BLOCK_K: 64}
HOSTILE = (-1, -(2**31), 2**31 - 1)
ROWS = [WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 64, 1)]
PRODUCT = [
    WorkgroupConstraint(M, sym.BLOCK_M, 0),
    WorkgroupConstraint(N, sym.BLOCK_N, 1),
    TilingConstraint(K, sym.BLOCK_K),
]


@wave(ROWS)
def embedding(ids: Memory[T, G, i32], table: Memory[V, D, G, f16], out: Memory[T, D, G, f16]):
    write(read(table, at={V: read(ids)}), out)


@wave(ROWS)
def scatter(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], out: Memory[V, D, G, f16]):
    write(read(x), out, at={V: read(slots)})


@wave(ROWS)
def write_cache(
    slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], out: Memory[V, SLOT, D, G, f16]
):
    slot = read(slots)
    write(read(x), out, at={V: slot // 7, SLOT: slot % 7})


@wave([WorkgroupConstraint(T, 1, 0), WorkgroupConstraint(D, 64, 1)])
def scatter_one(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], out: Memory[V, D, G, f16]):
    write(read(x), out, at={V: read(slots, at={T: first_index(T)})})


@wave(ROWS)
def index_add(slots: Memory[T, G, i32], x: Memory[T, D, G, f32], out: Memory[V, D, G, f32]):
    atomic_add(read(x), out, at={V: read(slots)})


@wave([WorkgroupConstraint(T, 64, 0)])
def histogram(x: Memory[T, G, i32], out: Memory[V, G, i32]):
    v = read(x)
    atomic_add(v * 0 + 1, out, at={V: v})


@wave(PRODUCT)
def gathered_product(
    rows: Memory[M, G, i32],
    expert: Memory[E, G, i32],
    a: Memory[T, K, S, f16],
    b: Memory[X, N, K, S, f16],
    c: Memory[M, N, G, f32],
):
    row, which = read(rows), read(expert, at={E: 0})

    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a, at={T: row}), read(b, at={X: which}), acc)

    write(total, c)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(D, 64, 1), TilingConstraint(K, 8)])
def embedding_bag(ids: Memory[M, K, G, i32], table: Memory[V, D, G, f32], out: Memory[M, D, G, f32]):
    @iterate(K, init_args=[Register[M, D, f32](0.0)])
    def total(acc):
        return acc + read(table, at={V: read(ids)}).sum(dim=K)

    write(total, out)


@wave([WorkgroupConstraint(M, 64, 0)])
def written_on_condition(x: Memory[M, G, f32], flag: Memory[E, G, i32], y: Memory[M, G, f32]):
    @conditional(read(flag, at={E: 0}) > 2)
    def written():
        write(read(x) * 2.0, y)


def run(kernel, target, subs, *arrays):
    """Run a kernel with sizes that are known (`subs`) or not, and return what was compiled."""
    made = kernel.compile(target="cpu" if target == "numpy" else target, subs=subs)
    if target == "cpu":
        made(*arrays)
    elif target == "numpy":
        made.interpret(*arrays)
    elif target == "sm_90a":
        made.interpret(*arrays, level="lane")
    else:
        made.emulate(*arrays)
    return made


def table_of(rng, count, end, hostile=HOSTILE):
    """Return indices below `end`, some of them out of bounds."""
    found = rng.integers(-3, end + 3, count).astype(np.int32)
    found[: len(hostile)] = hostile
    return found


def distinct(rng, count, end):
    found = rng.permutation(end)[:count].astype(np.int32)
    found[3 : 3 + len(HOSTILE)] = HOSTILE
    return found


def picked(table, ids):
    """Return the rows of a table, 0 for those that it has not."""
    inside = (ids >= 0) & (ids < len(table))
    return np.where(inside[..., None], table[np.clip(ids, 0, len(table) - 1)], 0)


def open_or_known(how):
    """Return a function from sizes to what `subs` gives of them."""
    return (lambda **sizes: {}) if how == "open" else (lambda **s: {getattr(sym, n): v for n, v in s.items()})


@pytest.fixture(params=["open", "known"])
def sizes(request):
    return open_or_known(request.param)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_table(target, sizes):
    rng = np.random.default_rng(1)
    ids, table = table_of(rng, 37, 50), rng.standard_normal((50, 136)).astype(np.float16)
    out = np.full((37, 136), np.nan, np.float16)
    run(embedding, target, sizes(T=37, V=50, D=136), ids, table, out)
    np.testing.assert_array_equal(out, picked(table, ids))


@pytest.mark.parametrize("kernel", [scatter, scatter_one], ids=lambda k: k.name)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_stored_where_a_table_says(kernel, target, sizes):
    rng = np.random.default_rng(2)
    slots, x = distinct(rng, 37, 50), rng.standard_normal((37, 136)).astype(np.float16)
    out = np.full((50, 136), -7, np.float16)
    wanted, inside = out.copy(), (slots >= 0) & (slots < 50)
    wanted[slots[inside]] = x[inside]
    made = run(kernel, target, sizes(T=37, V=50, D=136), slots, x, out)
    np.testing.assert_array_equal(out, wanted)
    assert made.proof.verdict in ("right for every size", "checked when it was compiled")


@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_stored_by_quotient_and_remainder(target, sizes):
    rng = np.random.default_rng(3)
    slots, x = distinct(rng, 37, 63), rng.standard_normal((37, 136)).astype(np.float16)
    out = np.full((9, 7, 136), -7, np.float16)
    wanted, inside = out.copy(), (slots >= 0) & (slots < 63)
    wanted.reshape(63, 136)[slots[inside]] = x[inside]
    run(write_cache, target, sizes(T=37, V=9, D=136, SLOT=7), slots, x, out)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_added_where_others_add(target, sizes):
    rng = np.random.default_rng(4)
    slots, x = table_of(rng, 137, 20), rng.standard_normal((137, 136)).astype(np.float32)
    out = rng.standard_normal((20, 136)).astype(np.float32)
    wanted, most, inside = out.astype(np.float64), np.abs(out), (slots >= 0) & (slots < 20)
    np.add.at(wanted, slots[inside], x[inside])
    np.add.at(most, slots[inside], np.abs(x[inside]))
    run(index_add, target, sizes(T=137, V=20, D=136), slots, x, out)
    assert (np.abs(out - wanted) <= 138 * 2**-24 * most).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_histogram(target, sizes):
    x = table_of(np.random.default_rng(5), 1000, 50)
    out = np.zeros(50, np.int32)
    run(histogram, target, sizes(T=1000, V=50), x, out)
    np.testing.assert_array_equal(out, np.bincount(x[(x >= 0) & (x < 50)], minlength=50))


@pytest.mark.parametrize("expert", [3, -1, 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_rows_and_of_an_expert(target, expert, sizes):
    rng = np.random.default_rng(6)
    m, n, k, x, t = 100, 200, 136, 5, 77
    a, b = rng.standard_normal((t, k)).astype(np.float16), rng.standard_normal((x, n, k)).astype(np.float16)
    rows, c = table_of(rng, m, t), np.full((m, n), np.nan, np.float32)
    known = sizes(M=m, N=n, K=k, T=t, X=x)
    run(gathered_product, target, {E: 1, **known, **TILES}, rows, np.array([expert], np.int32), a, b, c)
    left, right = picked(a, rows).astype(float), b[expert].astype(float) if 0 <= expert < x else np.zeros((n, k))
    bound = (k + 1) * 2**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(c - left @ right.T) <= bound).all()


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_rows_of_a_table(target, sizes):
    rng = np.random.default_rng(7)
    ids, table = rng.integers(-2, 52, (70, 13)).astype(np.int32), rng.standard_normal((50, 136)).astype(np.float32)
    out = np.full((70, 136), np.nan, np.float32)
    run(embedding_bag, target, sizes(M=70, K=13, V=50, D=136), ids, table, out)
    rows = picked(table, ids).astype(float)
    assert (np.abs(out - rows.sum(axis=1)) <= 13 * 2**-24 * np.abs(rows).sum(axis=1)).all()


@pytest.mark.parametrize("flag", [2, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_data_decides_whether_a_tile_is_written(target, flag, sizes):
    x, y = np.random.default_rng(8).standard_normal(100).astype(np.float32), np.full(100, -7, np.float32)
    run(written_on_condition, target, {E: 1, **sizes(M=100)}, x, np.array([flag], np.int32), y)
    np.testing.assert_array_equal(y, 2 * x if flag > 2 else np.full(100, -7))


def refused(kernel):
    with pytest.raises(CoverageError) as error:
        kernel.compile(target="cpu")
    return str(error.value)


def test_a_scatter_without_a_contract_is_refused():
    @wave(ROWS)
    def unpromised(slots: Memory[T, G, i32], x: Memory[T, D, G, f16], out: Memory[V, D, G, f16]):
        write(read(x), out, at={V: read(slots)})

    said = refused(unpromised)
    assert "unpromised writes out at indices from slots, of which two may be equal" in said
    assert "Indices(unique=True)" in said and "atomic_add(tile, out" in said


@pytest.mark.parametrize(
    "made_of",
    [
        lambda s: s // 2,
        lambda s: s * 2,
        lambda s: s % 5,
        lambda s: s + s,
        lambda s: s + 1,  # of -1, which may be there twice, it makes place 0
        lambda s: s - 1,
        lambda s: -s,
        lambda s: select(s > 3, s, 0),
    ],
    ids=["//", "*", "%", "+ s", "+ 1", "- 1", "-", "select"],
)
def test_what_is_computed_of_distinct_indices_may_collide(made_of):
    @wave(ROWS)
    def computed(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], out: Memory[V, D, G, f16]):
        write(read(x), out, at={V: made_of(read(slots))})

    assert "of which two may be equal" in refused(computed)


def test_rows_that_several_workgroups_store_are_refused():
    @wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 64, 1)])
    def twice(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, G, f16], out: Memory[V, G, f16]):
        write(read(x), out, at={V: read(slots)})

    with pytest.raises(CoverageError, match="both compute tile"):
        twice.compile(target="cpu", subs={T: 40, V: 50, D: 136})


@wave(ROWS)
def promised(
    slots: Memory[T, G, i32, Indices(into=V, unique=True, sorted=True)],
    x: Memory[T, D, G, f16],
    out: Memory[V, D, G, f16],
):
    write(read(x), out, at={V: read(slots)})


BROKEN = {
    "unique": ([-1, -1, 0, 2, 2, 7, 9, 11], r"slots\[3\] and \[4\] are both 2, and they are said to be unique"),
    "sorted": ([-1, 0, 1, 3, 2, 7, 9, 11], r"slots\[4\] is less than the one before"),
    "too large": ([-1, 0, 1, 3, 4, 7, 9, 50], r"slots\[7\] is 50, which is neither -1 nor below 50"),
    "too small": ([-2, 0, 1, 3, 4, 7, 9, 11], r"slots\[0\] is -2, which is neither -1 nor below 50"),
}


@pytest.mark.parametrize("how", ["tile", "lane", "emulated", "called", "asked"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_contract_is_found(how, broken, sizes, monkeypatch):
    x, out = np.ones((8, 64), np.float16), np.zeros((50, 64), np.float16)
    slots, said = np.array(BROKEN[broken][0], np.int32), BROKEN[broken][1]
    made = promised.compile(target="cpu" if how in ("called", "asked") else "gfx942", subs=sizes(T=8, V=50, D=64))
    with pytest.raises(AccessError, match=said):
        if how == "called":
            made(slots, x, out)  # is not checked
            monkeypatch.setenv("TILEWAVE_CHECK", "1")
            made(slots, x, out)
        elif how == "asked":
            made(slots, x, out, check=True)
        elif how == "emulated":
            made.emulate(slots, x, out)
        else:
            made.interpret(slots, x, out, level=how)


@pytest.mark.parametrize("how", ["tile", "lane"])
def test_a_contract_that_is_kept_is_no_obstacle(how):
    x, out = np.ones((8, 64), np.float16), np.zeros((50, 64), np.float16)
    slots = np.array([-1, -1, 0, 2, 3, 7, 9, 49], np.int32)
    promised.compile(target="gfx942", subs={T: 8, V: 50, D: 64}).interpret(slots, x, out, level=how)
    np.testing.assert_array_equal(out.any(axis=1).nonzero()[0], slots[2:])


def test_an_array_that_is_written_is_not_read_at_indices():
    @wave(ROWS)
    def in_place(ids: Memory[T, G, i32, Indices(unique=True)], table: Memory[T, D, G, f16]):
        write(read(table, at={T: read(ids)}) * 2.0, table)

    with pytest.raises(TilewaveError, match="reads table at indices from memory, and writes it too"):
        in_place.compile(target="cpu", subs={T: 40, D: 136})


def laid_out(array, how):
    """Return a copy of an array, with the strides that `how` names."""
    rows, columns = array.shape
    wide = np.zeros((rows, 2 * columns), array.dtype)
    places = {
        "reversed": np.zeros_like(array)[::-1],
        "every other": wide[:, ::2],
        "begins anywhere": wide[:, 1 : columns + 1],
    }
    places[how][:] = array
    return places[how]


@pytest.mark.parametrize("columns", [136, 13])
@pytest.mark.parametrize("how", ["reversed", "every other", "begins anywhere"])
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
def test_rows_of_arrays_that_no_window_covers(target, how, columns):
    rng = np.random.default_rng(9)
    ids, slots = table_of(rng, 37, 50), distinct(rng, 37, 50)
    x, out = rng.standard_normal((50, columns)).astype(np.float16), np.zeros((37, columns), np.float16)
    run(embedding, target, {}, ids, laid_out(x, how), out)
    np.testing.assert_array_equal(out, picked(x, ids))
    to, inside = laid_out(np.full((50, columns), -7, np.float16), how), (slots >= 0) & (slots < 50)
    wanted = to.copy()
    wanted[slots[inside]] = x[:37][inside]
    run(scatter, target, {}, slots, x[:37], to)
    np.testing.assert_array_equal(to, wanted)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_rows_at_indices_are_moved_whole_on_amd(target):
    loads, stores = (k.compile(target=target).asm for k in (embedding, scatter))
    assert "buffer_load_dwordx4" in loads and "load_ushort" not in loads and "load_short" not in loads
    assert "buffer_store_dwordx4" in stores and "store_short" not in stores


def test_rows_at_indices_are_stored_under_predicates_on_hopper():
    ptx = scatter.compile(target="sm_90a", subs={T: 64, V: 50, D: 64}).build.asm
    assert "@p st.global.v4.b32" in ptx and "bra" not in ptx


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_rows_that_are_padded_store_nothing_more(target):
    """Row 0 of the counts, which an index of 0 in the padding would change, and rows after a tile of 24."""

    @wave([WorkgroupConstraint(M, 1, 0)])
    def counted(ids: Memory[M, N, G, i32], largest: Memory[M, G, i32], counts: Memory[V, G, i32]):
        v = read(ids)
        write(v.max(dim=N), largest)
        atomic_add(v * 0 + 1, counts, at={V: v})

    ids = np.random.default_rng(10).integers(0, 9, (3, 100)).astype(np.int32)
    largest, counts = np.zeros(3, np.int32), np.zeros(9, np.int32)
    run(counted, target, {N: 100}, ids, largest, counts)
    np.testing.assert_array_equal(counts, np.bincount(ids.reshape(-1)))
    np.testing.assert_array_equal(largest, ids.max(1))

    @wave([WorkgroupConstraint(M, 24, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def placed(
        slots: Memory[M, G, i32, Indices(unique=True)],
        a: Memory[M, K, S, f16],
        b: Memory[N, K, S, f16],
        c: Memory[T, N, G, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c, at={T: read(slots)})

    rng = np.random.default_rng(11)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((70, 64), (64, 64)))
    slots, c = rng.permutation(80)[:70].astype(np.int32), np.full((80, 64), -7, np.float32)
    wanted = c.copy()
    wanted[slots] = a.astype(np.float32) @ b.astype(np.float32).T
    run(placed, target, {M: 70, N: 64, K: 64, T: 80}, slots, a, b, c)
    np.testing.assert_array_equal(c, wanted)
