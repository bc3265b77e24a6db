"""Kernels over ragged dims: groups of rows with counts that only the device knows, on every target."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import K, N

from tilewave import *
from tilewave.errors import AccessError, ConstraintError, TilewaveError

pytestmark = pytest.mark.share(10)
A, S = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
G, T, M = sym.G, sym.T, sym.M
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
GROUPS = Ragged(G, "ends")
COUNTS = {
    "uneven": [3, 0, 37, 17, 0, 33],
    "one has all": [0, 90, 0, 0],
    "none": [0, 0, 0],
    "multiples of a tile": [16, 32, 16],
    "more groups than rows": [0, 1, 0, 0, 1, 0, 0, 0, 1] * 3,
    "one group": [50],
}


def grouped(rows=16, cols=64, depth=32):
    @wave(
        [
            WorkgroupConstraint(T, rows, 0, ragged=GROUPS),
            WorkgroupConstraint(N, cols, 1),
            TilingConstraint(K, depth),
        ]
    )
    def grouped_product(
        x: Memory[T, K, S, f16], w: Memory[G, N, K, S, f16], ends: Memory[G, A, i32], y: Memory[T, N, A, f32]
    ):
        @iterate(K, init_args=[Register[T, N, f32](0)])
        def total(acc):
            return mma(read(x), read(w), acc)

        write(total, y)

    return grouped_product


@wave([WorkgroupConstraint(T, 16, 0, ragged=GROUPS), WorkgroupConstraint(N, 64, 1)])
def sums_by_group(x: Memory[T, N, A, f32], ends: Memory[G, A, i32], sums: Memory[G, N, A, f32]):
    """Rows after the group's end are in the tile as well, and must not be added."""
    atomic_add((read(x) + 1).sum(dim=T), sums)


@wave([WorkgroupConstraint(T, 16, 0, ragged=GROUPS), WorkgroupConstraint(N, 64, 1)])
def scaled_by_group(
    x: Memory[T, N, A, f32], scale: Memory[G, A, f32], ends: Memory[G, A, i32], y: Memory[T, N, A, f32]
):
    write(read(x) * read(scale), y)


def run(kernel, target, arrays, sizes=None):
    compiled = kernel.compile(target="cpu" if target == "numpy" else target, subs=sizes or {})
    match target:
        case "numpy":
            compiled.interpret(*arrays)
        case "cpu":
            compiled(*arrays)
        case "sm_90a":
            compiled.interpret(*arrays, level="lane")
        case _:
            assert not compiled.emulate(*arrays).findings
    return compiled


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def products(counts, rows, cols=70, depth=50, seed=0):
    """Return the arrays of a grouped product, of which more rows than the groups have, and the float64 result."""
    rng, ends = np.random.default_rng(seed), np.cumsum(counts).astype(np.int32)
    x, w = floats(rng, rows, depth, dtype=np.float16), floats(rng, len(counts), cols, depth, dtype=np.float16)
    y = np.full((rows, cols), np.nan, np.float32)
    wanted, start = y.astype(np.float64), 0
    for group, end in enumerate(ends):
        wanted[start:end] = x[start:end].astype(np.float64) @ w[group].T.astype(np.float64)
        start = end
    return (x, w, ends, y), wanted


def want_near(found, wanted, depth):
    bound = 2 * depth * np.finfo(np.float32).eps * np.nanmax(np.abs(wanted), initial=1) * np.sqrt(depth)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))  # each row of a group, and no other row, is stored
    assert np.nanmax(np.abs(found - wanted), initial=0) <= bound


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("are_open", [True, False], ids=["open", "known"])
def test_a_grouped_product_of_any_counts(target, counts, are_open):
    arrays, wanted = products(counts, sum(counts) + 7)
    sizes = {} if are_open else {T: arrays[0].shape[0], G: len(counts), N: 70, K: 50}
    run(grouped(), target, arrays, sizes)
    want_near(arrays[3], wanted, 50)


@pytest.mark.parametrize("are_open", [True, False], ids=["open", "known"])
def test_tiles_of_warpgroups_are_loaded_by_tma(are_open):
    counts = [3, 0, 130, 70]
    arrays, wanted = products(counts, 210, cols=136, depth=136)
    sizes = {} if are_open else {T: 210, G: 4, N: 136, K: 136}
    compiled = run(grouped(64, 128, 64), "sm_90a", arrays, sizes)
    assert "use_tma" in [step.name for step in compiled.build.steps if step.changed]
    assert "specialize_waves" in [step.name for step in compiled.build.steps if step.changed]
    want_near(arrays[3], wanted, 136)


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=300), more=st.integers(0, 20), seed=st.integers(0, 9))
def test_any_counts_on_the_cpu(counts, more, seed):
    """More than 32 groups take several steps to search."""
    arrays, wanted = products(counts, sum(counts) + more, 20, 10, seed)
    if arrays[0].shape[0]:
        grouped()(*arrays)
        want_near(arrays[3], wanted, 10)


@pytest.mark.parametrize("target", TARGETS)
def test_a_reduction_over_a_ragged_dim_is_of_one_group(target):
    rng, counts = np.random.default_rng(0), COUNTS["uneven"]
    x, ends = floats(rng, sum(counts) + 7, 70), np.cumsum(counts).astype(np.int32)
    sums = np.zeros((len(counts), 70), np.float32)
    run(sums_by_group, target, (x, ends, sums))
    wanted = np.array([(rows.astype(np.float64) + 1).sum(0) for rows in np.split(x, ends)[:-1]])
    assert np.allclose(sums, wanted, rtol=0, atol=64 * np.finfo(np.float32).eps * np.abs(wanted).max())


@pytest.mark.parametrize("target", TARGETS)
def test_an_array_of_the_groups_is_read_at_the_tiles_group(target):
    rng, counts = np.random.default_rng(0), COUNTS["uneven"]
    x, scale, ends = floats(rng, 97, 70), floats(rng, len(counts)), np.cumsum(counts).astype(np.int32)
    y = np.full_like(x, np.nan)
    run(scaled_by_group, target, (x, scale, ends, y))
    each = np.repeat(scale, counts)
    assert np.array_equal(y[: len(each)], x[: len(each)] * each[:, None]) and np.isnan(y[len(each) :]).all()


@pytest.mark.parametrize("order", ["grouped(3)", "xcd_contiguous(4) >> grouped(2)", "hilbert()"])
def test_orders_of_tiles_compose_with_groups(order):
    kernel = grouped()
    mapped = wave([*kernel.constraints, WorkgroupMapping(order)])(kernel.function)
    for target in ("cpu", "gfx942") if order != "hilbert()" else ("cpu",):
        arrays, wanted = products(COUNTS["uneven"], 100)
        run(mapped, target, arrays)
        want_near(arrays[3], wanted, 50)


def test_it_is_proved_for_every_vector_of_counts():
    proof = str(grouped().compile(target="cpu").proof)
    assert proof.startswith("right for every size, by the contract of ends")


HOSTILE = {
    "unsorted": [80, 20, 100, 40, 90, 100],
    "negative": [-100, -3, 4, 90, 90, 100],
    "beyond the rows": [5, 600, 10_000, 2**31 - 1, 2**31 - 1, 2**31 - 1],
    "least": [-(2**31)] * 6,
}
BROKEN = {
    "unsorted": r"ends\[1\] is less than the one before",
    "negative": r"ends\[0\] is -100, and groups end between 0 and 100",
    "beyond the rows": r"ends\[1\] is 600, and groups end between 0 and 100",
    "least": r"ends\[0\] is -2147483648, and groups end between 0 and 100",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_ends_store_nothing_outside(kind):
    """No element before or after the result changes."""
    (x, w, _, _), _ = products([100] + [0] * 5, 100)
    around = np.full((140, 70), 7, np.float32)
    grouped()(x, w, np.array(HOSTILE[kind], np.int32), around[20:120])
    assert (around[:20] == 7).all() and (around[120:] == 7).all()


@pytest.mark.parametrize("target", TARGETS)
def test_more_rows_than_ends_can_count_are_refused(target):
    grouped().compile(target="cpu" if target == "numpy" else target, subs={T: 2**31 - 1})
    with pytest.raises(ConstraintError, match=r"T is 2,147,483,648, and the groups .* at most 2,147,483,647 rows"):
        grouped().compile(target="cpu" if target == "numpy" else target, subs={T: 2**31})


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_ends_are_refused_where_contracts_are_checked(kind, monkeypatch):
    (x, w, _, y), _ = products([100] + [0] * 5, 100)
    ends, remedy = np.array(HOSTILE[kind], np.int32), "let ends rise from 0 to at most 100"
    with pytest.raises(AccessError, match=BROKEN[kind]) as error:
        grouped().compile(target="cpu").interpret(x, w, ends, y)
    assert remedy in str(error.value)
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    with pytest.raises(AccessError, match=BROKEN[kind]):
        grouped()(x, w, ends, y)
    assert np.isnan(y).all()


def constrained(**more):
    @wave([WorkgroupConstraint(T, 16, 0, **more), WorkgroupConstraint(N, 64, 1)])
    def copy(x: Memory[T, N, A, f32], ends: Memory[G, A, i32], y: Memory[T, N, A, f32]):
        write(read(x), y)

    return copy


def test_ends_must_be_an_array_of_the_kernel():
    with pytest.raises(ConstraintError, match="the groups of T end where offsets says, and the kernel has no such"):
        constrained(ragged=Ragged(G, "offsets")).compile(target="cpu")
    with pytest.raises(ConstraintError, match=r"x \[T, N\] has f32, not integers along G alone"):
        constrained(ragged=Ragged(G, "x")).compile(target="cpu")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"ragged": "ends"}, "ragged of T is 'ends'"),
        ({"ragged": Ragged(G, "ends"), "iters": 3}, "the tiles of T follow from its groups, and iters says otherwise"),
        ({"ragged": Ragged(G, "ends"), "apply_fn": lambda n: n}, "and apply_fn says otherwise"),
        ({"ragged": Ragged(G, "ends"), "primary": False}, "and primary=False says otherwise"),
    ],
)
def test_what_is_no_ragged_dim_is_refused(more, what):
    with pytest.raises(TilewaveError, match=what):
        constrained(**more)


@pytest.mark.parametrize("target", TARGETS)
def test_a_dim_that_is_a_multiple_of_a_ragged_one_ends_with_its_group_too(target):
    L = 2 * T

    @wave([WorkgroupConstraint(T, 8, 0, ragged=GROUPS), WorkgroupConstraint(N, 64, 1)])
    def sums(x: Memory[L, N, A, f32], ends: Memory[G, A, i32], out: Memory[G, N, A, f32]):
        atomic_add((read(x) + 1).sum(dim=L), out)

    x, ends, out = (
        floats(np.random.default_rng(0), 40, 10),
        np.array([3, 3, 18], np.int32),
        np.zeros((3, 10), np.float32),
    )
    run(sums, target, (x, ends, out), {T: 20})
    wanted = np.array([(rows.astype(np.float64) + 1).sum(0) for rows in np.split(x, 2 * ends)[:-1]])
    assert np.allclose(out, wanted, rtol=0, atol=64 * np.finfo(np.float32).eps * np.abs(wanted).max())


H, STEP = sym.H, sym.STEP


@pytest.mark.parametrize(
    ("constraints", "what"),
    [
        ([WorkgroupConstraint(H, 8, 0, primary=False)], "H is to go with T, which is divided group by group"),
        ([WorkgroupConstraint(H, 16, 0, primary=False)], "H is to go with T, which is divided group by group"),
        ([SymbolicAlias(H, T, lambda t: t // 2)], "H is to be cut as T is, which is divided group by group"),
        ([WorkgroupConstraint(H, 16, 2, ragged=GROUPS)], "T and H are both divided by the groups G"),
        ([GridConstraint(4), TilingConstraint(STEP)], "T is divided group by group, and the kernel's own while loop"),
    ],
    ids=["other tiles", "same tiles", "alias", "two ragged dims", "own loop"],
)
def test_what_groups_do_not_say_is_refused(constraints, what):
    @wave([WorkgroupConstraint(T, 16, 0, ragged=GROUPS), WorkgroupConstraint(N, 64, 1), *constraints])
    def copy(x: Memory[T, N, A, f32], other: Memory[H, A, f32], ends: Memory[G, A, i32], y: Memory[T, N, A, f32]):
        write(read(x), y)

    with pytest.raises(ConstraintError, match=what):
        copy.compile(target="cpu", subs={T: 20, H: 10, N: 10, G: 3})
