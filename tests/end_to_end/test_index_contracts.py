"""Indices from memory: what is refused, which contracts are relied on and where they are checked, and saved kernels."""

import numpy as np
import pytest
from test_indices import (
    ROWS,
    SLOT,
    TARGETS,
    D,
    E,
    G,
    M,
    T,
    V,
    X,
    distinct,
    embedding,
    histogram,
    open_or_known,
    promised,
    refused,
    run,
    scatter,
    scatter_one,
    table_of,
    write_cache,
)

from tilewave import *
from tilewave.errors import AccessError, ConstraintError, CoverageError

pytestmark = pytest.mark.share(4)


@pytest.fixture(params=["open", "known"])
def sizes(request):
    return open_or_known(request.param)


@pytest.mark.parametrize("how", ["scatter", "atomic_add", "atomic_max of windows"])
def test_an_array_that_is_written_at_indices_is_not_read(how):
    @wave(ROWS)
    def read_too(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f32], out: Memory[T, D, G, f32]):
        y = read(x) + read(out)
        if how == "scatter":
            write(y, out, at={T: read(slots)})
        elif how == "atomic_add":
            atomic_add(y, out, at={T: read(slots)})
        else:
            atomic_max(y, out)

    with pytest.raises(AccessError, match="reads out, and writes it at indices, or by atomics"):
        read_too.compile(target="cpu", subs={T: 40, D: 136})


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_at_the_places_of_tiles(target, sizes):
    """No index, and eight workgroups add to each element."""

    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(T, 16, 1)])
    def added(x: Memory[T, M, G, i32], out: Memory[M, G, i32]):
        atomic_add(read(x).sum(dim=T), out)

    x, out = np.random.default_rng(9).integers(-99, 99, (120, 70)).astype(np.int32), np.arange(70, dtype=np.int32)
    run(added, target, sizes(M=70, T=120), x, out)
    np.testing.assert_array_equal(out, np.arange(70) + x.sum(axis=0))


@pytest.mark.parametrize("target", TARGETS)
def test_an_element_of_each_row_is_stored_without_a_contract(target, sizes):
    """Each row has its place, whatever the labels are."""

    @wave([WorkgroupConstraint(T, 16, 0)])
    def stored(labels: Memory[T, G, i32], x: Memory[T, G, f32], out: Memory[T, V, G, f32]):
        write(read(x), out, at={V: read(labels)})

    rng = np.random.default_rng(10)
    labels, x, out = table_of(rng, 37, 9), rng.standard_normal(37).astype(np.float32), np.zeros((37, 9), np.float32)
    labels[20:] = 4
    wanted, inside = out.copy(), (labels >= 0) & (labels < 9)
    wanted[np.flatnonzero(inside), labels[inside]] = x[inside]
    run(stored, target, sizes(T=37, V=9), labels, x, out)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_the_element_of_each_row_that_its_label_names(target, sizes):
    @wave([WorkgroupConstraint(T, 16, 0)])
    def picked_of_rows(labels: Memory[T, G, i32], x: Memory[V, T, G, f32], out: Memory[T, G, f32]):
        write(read(x, at={V: read(labels)}), out)

    rng = np.random.default_rng(11)
    labels, x = table_of(rng, 37, 9), rng.standard_normal((9, 37)).astype(np.float32)
    out = np.full(37, np.nan, np.float32)
    run(picked_of_rows, target, sizes(T=37, V=9), labels, x, out)
    inside = (labels >= 0) & (labels < 9)
    np.testing.assert_array_equal(out, np.where(inside, x[np.clip(labels, 0, 8), np.arange(37)], 0))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_one_expert_are_stored(target, sizes):
    """The number of the expert is no reason why two rows should have one place."""

    @wave(ROWS)
    def stored(
        slots: Memory[T, G, i32, Indices(unique=True)],
        expert: Memory[E, G, i32],
        x: Memory[T, D, G, f16],
        out: Memory[X, V, D, G, f16],
    ):
        write(read(x), out, at={X: read(expert, at={E: 0}), V: read(slots)})

    rng = np.random.default_rng(12)
    slots, x, out = (
        distinct(rng, 37, 50),
        rng.standard_normal((37, 72)).astype(np.float16),
        np.zeros((3, 50, 72), np.float16),
    )
    wanted, inside = out.copy(), (slots >= 0) & (slots < 50)
    wanted[2, slots[inside]] = x[inside]
    run(stored, target, {E: 1, **sizes(T=37, V=50, D=72, X=3)}, slots, np.array([2], np.int32), x, out)
    np.testing.assert_array_equal(out, wanted)


def test_distinct_indices_at_indices_may_collide():
    """Of a permutation, an element may be taken twice."""

    @wave([WorkgroupConstraint(T, 1, 0), WorkgroupConstraint(D, 64, 1)])
    def chained(
        order: Memory[T, G, i32],
        slots: Memory[T, G, i32, Indices(unique=True)],
        x: Memory[T, D, G, f16],
        out: Memory[V, D, G, f16],
    ):
        which = read(order, at={T: first_index(T)})
        write(read(x), out, at={V: read(slots, at={T: which})})

    with pytest.raises(CoverageError, match="both compute tile"):
        chained.compile(target="cpu", subs={T: 40, V: 50, D: 136})


@pytest.mark.parametrize("how", ["a number", "a parameter"])
def test_a_divisor_that_may_be_negative_makes_no_distinct_places(how):
    """-7 // -7 and -7 % -7 are the place (1, 0), and -7 may be there twice."""

    @wave(ROWS)
    def stored(
        slots: Memory[T, G, i32, Indices(unique=True)],
        by: i32,
        x: Memory[T, D, G, f16],
        out: Memory[V, SLOT, D, G, f16],
    ):
        slot, n = read(slots), by if how == "a parameter" else -7
        write(read(x), out, at={V: slot // n, SLOT: slot % n})

    assert "of which two may be equal" in refused(stored)


def replayed(kernel, arrays, monkeypatch):
    """Return whether a replayed call of a kernel asks for a full one, without and with checks."""
    kernel(*arrays)
    call = kernel.replay(arrays, range(len(arrays)))
    without = bool(call(tuple(arrays)))
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    return without, bool(call(tuple(arrays)))


def test_replayed_calls_are_full_calls_where_contracts_are_checked(monkeypatch):
    x, out, slots = np.ones((8, 64), np.float16), np.zeros((50, 64), np.float16), np.arange(8, dtype=np.int32)
    assert replayed(promised, (slots, x, out), monkeypatch) == (False, True)
    table, found = np.ones((50, 64), np.float16), np.zeros((8, 64), np.float16)
    monkeypatch.delenv("TILEWAVE_CHECK")
    assert replayed(embedding, (slots, table, found), monkeypatch) == (False, False)


@pytest.mark.parametrize("how", ["the kernel", "compiled", "by name", "saved"])
def test_every_way_to_call_a_kernel_checks_its_contracts(how, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    x, out = np.ones((8, 64), np.float16), np.zeros((50, 64), np.float16)
    made = promised.compile(target="cpu")
    if how == "saved":
        made.save(tmp_path / "promised.tw")
        made = load(tmp_path / "promised.tw")
    calls = {"the kernel": lambda s: promised(s, x, out), "by name": lambda s: made(slots=s, x=x, out=out)}
    call = calls.get(how, lambda s: made(s, x, out))
    call(np.arange(8, dtype=np.int32))
    with pytest.raises(AccessError, match=r"slots\[7\] is 50"):
        call(np.array([*range(7), 50], np.int32))
    assert not out[8:].any()


@pytest.mark.parametrize("dtype", [f32, i32])
def test_floats_added_by_atomics_are_not_batch_invariant(dtype):
    @wave(ROWS)
    def added(slots: Memory[T, G, i32], x: Memory[T, D, G, dtype], out: Memory[V, D, G, dtype]):
        atomic_add(read(x), out, at={V: read(slots)})

    if dtype == i32:
        added.compile(target="cpu", batch_invariant=True)
        return
    with pytest.raises(ConstraintError, match="atomic_add adds floats to out in any order") as raised:
        added.compile(target="cpu", batch_invariant=True)
    assert "add integers" in raised.value.remedy


SAVED = {
    "embedding": (embedding, lambda r: (distinct(r, 37, 50), _halves(r, 50, 72), np.zeros((37, 72), np.float16))),
    "scatter": (scatter, lambda r: (distinct(r, 37, 50), _halves(r, 37, 72), np.zeros((50, 72), np.float16))),
    "scatter_one": (scatter_one, lambda r: (distinct(r, 37, 50), _halves(r, 37, 72), np.zeros((50, 72), np.float16))),
    "write_cache": (write_cache, lambda r: (distinct(r, 37, 63), _halves(r, 37, 72), np.zeros((9, 7, 72), np.float16))),
    "histogram": (histogram, lambda r: (distinct(r, 37, 50), np.zeros(50, np.int32))),
}


def _halves(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_kernel_is_the_kernel(name, sizes, tmp_path):
    kernel, given = SAVED[name]
    arrays = given(np.random.default_rng(13))
    known = {"T": 37, "V": 50, "D": 72} if name != "write_cache" else {"T": 37, "V": 9, "SLOT": 7, "D": 72}
    made = kernel.compile(target="cpu", subs=sizes(**known))
    made.save(tmp_path / "kernel.tw")
    loaded, wanted = load(tmp_path / "kernel.tw"), [a.copy() for a in arrays]
    made(*wanted)
    loaded(*arrays)
    assert arrays[-1].any() and loaded.proof.verdict == made.proof.verdict
    np.testing.assert_array_equal(arrays[-1], wanted[-1])


@pytest.mark.parametrize("name", SAVED)
def test_a_proof_names_the_contracts_that_it_rests_on(name, sizes):
    known = {"T": 37, "V": 50, "D": 72} if name != "write_cache" else {"T": 37, "V": 9, "SLOT": 7, "D": 72}
    said = str(SAVED[name][0].compile(target="cpu", subs=sizes(**known)).proof)
    rests = name not in ("embedding", "histogram")
    assert ("by the contract of slots, because" in said) == rests and ("contract" in said) == rests


@pytest.mark.parametrize(
    "how, dtype, said",
    [
        (atomic_or, f32, "atomic_or combines the bits of integers, not f32"),
        (atomic_max, f8e4m3fn, "atomic_max: no target combines f8e4m3fn atomically"),
    ],
)
def test_dtypes_that_are_not_combined_atomically(how, dtype, said):
    @wave([WorkgroupConstraint(T, 64, 0)])
    def combined(x: Memory[T, G, dtype], out: Memory[T, G, dtype]):
        how(read(x), out)

    with pytest.raises(TilewaveError, match=said):
        combined.compile(target="cpu")


@pytest.mark.parametrize("target", ["cpu", "gfx942"])
def test_a_number_tells_workgroups_apart_and_need_not_reach_every_row(target):
    """Each workgroup along D has a row of `out` of its own; row 0 and the last ones have none."""

    @wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 1, 1)])
    def put(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f32], out: Memory[E, V, G, f32]):
        write(read(x).sum(dim=D), out, at={E: first_index(D) + 1, V: read(slots)})

    slots, x = np.array([3, 0, -1, 7, 5], np.int32), np.arange(15, dtype=np.float32).reshape(5, 3)
    out = np.full((6, 8), -7, np.float32)
    wanted = out.copy()
    wanted[1:4, slots[slots >= 0]] = x[slots >= 0].T
    made = put.compile(target=target)
    (made if target == "cpu" else made.emulate)(slots, x, out)
    np.testing.assert_array_equal(out, wanted)
