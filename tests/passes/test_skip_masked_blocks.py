"""Steps that a mask empties are not taken, wherever the mask is a condition on positions; all others are."""

from itertools import product

import numpy as np
import pytest
from kernels import G, poisoned

from tilewave import *
from tilewave.ir.ops import Loop
from tilewave.ir.rewrite import walk

pytestmark = pytest.mark.share(4)

M, N, K = sym.M, sym.N, sym.K
WAYS = ["numpy", "cpu", "lanes of gfx942", "lanes of sm_90a", "gfx950"]
BLOCK = 16
CONDITIONS = {
    "causal": lambda m, k: k <= m,
    "strictly": lambda m, k: k < m,
    "above": lambda m, k: k > m,
    "at least": lambda m, k: m <= k,
    "band": lambda m, k: (k <= m) & (m - k < 20),
    "a band that ends with a block": lambda m, k: (k <= m) & (m - k < 18),
    "both sides": lambda m, k: (k - m < 9) & (m - k < 9),
    "the diagonal": lambda m, k: k == m,
    "not above": lambda m, k: ~(k > m),
    "steep": lambda m, k: 3 * k <= m + 7,
    "falling": lambda m, k: m + 2 * k < 60,
    "few keys": lambda m, k: k < 40,
    "late keys": lambda m, k: k >= 40,
    "the last of a block": lambda m, k: k >= 47,
    "some rows": lambda m, k: m < 20,
    "either": lambda m, k: (k < 5) | (k > m),
}
ALL_STEPS = {"some rows", "either"}
"""What says nothing of steps: all are taken."""


def weighted(condition, dtype=i32, block_m=32, **more):
    """y[m] = the sum of those v[k] that m sees."""

    @wave([WorkgroupConstraint(M, block_m, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, BLOCK)], **more)
    def weighted(v: Memory[K, N, G, f16], y: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            seen = condition(self_index(M, dtype), self_index(K, dtype))
            weight = select(seen, Register[M, K, f16](1.0), 0.0)
            return mma(weight, read(v), acc)

        write(total, y)

    return weighted


def seen_by(condition, m, k):
    return np.broadcast_to(condition(np.arange(m)[:, None], np.arange(k)), (m, k))


def run(way, kernel, *arrays, **subs):
    compiled = kernel.compile(
        target=way.removeprefix("lanes of "), subs={sym.__getattr__(s): n for s, n in subs.items()}
    )
    if way.startswith("lanes of"):
        compiled.interpret(*arrays, level="lane", order="random", seed=1)
    elif way.startswith("gfx"):
        compiled.emulate(*arrays)
    else:
        compiled(*arrays)
    return compiled


def check(way, name, m, k, dtype=index, block_m=32, fixed=False):
    """Blocks that no row of a tile sees hold NaN, and 0 times NaN is NaN: taking such a step shows in the result.

    Boundary tiles count as whole tiles; one that sees nothing takes some step.
    """
    condition = CONDITIONS[name]
    v = np.random.default_rng(7).integers(-9, 9, (k, 16)).astype(np.float16)
    seen, whole = seen_by(condition, m, k), seen_by(condition, -(-m // block_m) * block_m, -(-k // BLOCK) * BLOCK)
    sizes = {"M": m, "K": k, "N": 16} if fixed else {}
    all_steps = name in ALL_STEPS or (fixed and k <= BLOCK)  # a loop of one step has none to skip
    for first in range(0, m, block_m):
        rows = slice(first, first + block_m)
        blocks = [whole[rows, b : b + BLOCK].any() for b in range(0, k, BLOCK)]
        taken = np.flatnonzero(blocks)
        holding = v.copy()
        for b in range(len(blocks)):
            if not all_steps and taken.size and not taken[0] <= b <= taken[-1]:
                holding[b * BLOCK : (b + 1) * BLOCK] = np.nan
        y = poisoned((m, 16), f32)
        run(way, weighted(condition, dtype, block_m), holding, y, **sizes)
        np.testing.assert_array_equal(y[rows], seen[rows] @ v.astype(np.float32))


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.share(16)
def test_only_blocks_that_some_row_sees_are_taken(way, name):
    check(way, name, 70, 90, i32, fixed=True)


@pytest.mark.share(10)
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("m, k, block_m", [(1, 1, 32), (1, 100, 32), (100, 1, 32), (64, 64, 16), (33, 65, 64)])
def test_sizes_and_tiles(name, m, k, block_m):
    check("numpy", name, m, k, block_m=block_m)
    check("numpy", name, m, k, block_m=block_m, fixed=True)


@pytest.mark.parametrize("name", ["causal", "band", "both sides"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.share(8)
def test_positions_of_32_bits_where_sizes_stay_open(way, name):
    """Sizes are at most 2³⁰, so a difference of two positions fits."""
    check(way, name, 70, 90, i32)


@pytest.mark.parametrize("name", ["causal", "band", "falling"])
def test_positions_of_64_bits(name):
    check("numpy", name, 70, 90, i64)


def test_places_that_may_wrap_say_nothing():
    """In i8, 2 · 70 is -116, and in i32 8 · 2²⁸ is -2³¹: a pass that took them for 140 and 2³¹ would skip steps."""
    for dtype, factor in ((i8, 2), (i32, 1 << 28)):
        v, y = np.ones((90, 16), np.float16), poisoned((70, 16), f32)
        run("numpy", weighted(lambda m, k, factor=factor: factor * k <= m, dtype), v, y, M=70, K=90, N=16)
        row, key = np.arange(70, dtype=dtype.numpy)[:, None], np.arange(90, dtype=dtype.numpy)
        np.testing.assert_array_equal(y[:, 0], (dtype.numpy.type(factor) * key <= row).sum(axis=1))


def test_numbers_of_a_call_and_open_sizes_bound_steps():
    """The last row is at the last key, and sees as many keys as the call's scalar argument."""

    @wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, BLOCK)])
    def seen(v: Memory[K, N, G, f16], y: Memory[M, N, G, f32], width: index):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            row, key = self_index(M) + scalar(K - M), self_index(K)
            return mma(select((key <= row) & (row - key < width), Register[M, K, f16](1.0), 0.0), read(v), acc)

        write(total, y)

    for m, k, width in ((20, 90, 7), (20, 90, 40), (3, 3, 1), (50, 20, 4)):
        row, key = np.arange(m)[:, None] + k - m, np.arange(k)
        hits = (key <= row) & (row - key < width)
        tile = np.arange(-(-m // 32) * 32)[:, None] + k - m
        whole = (np.arange(k) <= tile) & (tile - np.arange(k) < width)
        v, y = np.full((k, 16), np.nan, np.float16), poisoned((m, 16), f32)
        for b in range(0, k, BLOCK):
            if whole[:32, b : b + BLOCK].any():
                v[b : b + BLOCK] = 2
        run("numpy", seen, v, y, width)
        np.testing.assert_array_equal(y[:32, 0], 2 * hits[:32].sum(axis=1))


# -- which steps change nothing ----------------------------------------------------------------------------------------


def recurrence(begin, step):
    """A loop that begins so; its step gets what a causal mask leaves of x, once it says what is to hide."""

    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK)])
    def recurrence(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](b) for b in begin])
        def found(*carried):
            seen = self_index(K) <= self_index(M)
            return step(lambda hidden: select(seen, read(x), hidden), *carried)

        write(found if len(begin) == 1 else found[-1], y)

    return recurrence


def online(x, largest, total, zero=lambda x: x, hidden=-np.inf):
    here = x(hidden)
    larger = here.max(dim=K, acc=largest)
    return larger, total * exp(largest - zero(larger)) + exp(here - zero(larger)).sum(dim=K)


def fused(x, largest, total, scale=0.25):
    """The scale is applied with the difference, in one rounding."""
    here = x(-np.inf)
    larger = here.max(dim=K, acc=largest)
    p = exp2(fma(here, scale, -larger * scale))
    return larger, total * exp2((largest - larger) * scale) + p.sum(dim=K)


def guarded(larger):
    return select(larger == -np.inf, 0.0, larger)


def relative_to_a_sum(x, total, s):
    """Where the sum becomes infinite, each step makes NaN of s."""
    more = total + x(0.0).sum(dim=K)
    return more, s * exp(total - more)


LOWEST = float(np.finfo(np.float32).min)
RECURRENCES = {
    "a sum": (True, [0.0], lambda x, s: s + x(0.0).sum(dim=K)),
    "a sum that begins with something": (True, [3.0], lambda x, s: x(0.0).sum(dim=K, acc=s)),
    "a product": (True, [1.0], lambda x, s: x(1.0).prod(dim=K) * s),
    "a largest": (True, [-np.inf], lambda x, m: x(-np.inf).max(dim=K, acc=m)),
    "a smallest": (True, [np.inf], lambda x, m: x(np.inf).min(dim=K, acc=m)),
    "online softmax": (True, [LOWEST, 0.0], online),
    "online softmax, its scale fused": (True, [LOWEST, 0.0], fused),
    "a scale by which the lowest overflows": (False, [LOWEST, 0.0], lambda *a: fused(*a, scale=2.0)),
    "begun with -inf, and guarded": (True, [-np.inf, 0.0], lambda *a: online(*a, zero=guarded)),
    "begun with -inf": (False, [-np.inf, 0.0], online),
    "begun with -inf and 1": (False, [-np.inf, 1.0], lambda *a: online(*a, zero=guarded)),
    "hidden by a number": (False, [-1e6, 0.0], lambda *a: online(*a, hidden=-1e6)),
    "a sum hidden by 1": (False, [0.0], lambda x, s: s + x(1.0).sum(dim=K)),
    "a largest hidden by 0": (False, [0.0], lambda x, m: x(0.0).max(dim=K, acc=m)),
    "counted steps": (False, [0.0, 0.0], lambda x, n, s: (n + 1.0, s + n * x(0.0).sum(dim=K))),
    "halved every step": (False, [0.0], lambda x, s: s * 0.5 + x(0.0).sum(dim=K)),
    "exchanged": (False, [0.0, 0.0], lambda x, a, b: (b, a + x(0.0).sum(dim=K))),
    "the mean so far": (False, [0.0], lambda x, m: m - (m - x(0.0).sum(dim=K)) * 0.5),
    "relative to a sum": (False, [0.0, 1.0], relative_to_a_sum),
    "a largest that may shrink": (False, [0.0, 0.0], lambda x, m, s: (x(-np.inf).max(dim=K), s + exp(m - m))),
}


def is_skipped(compiled):
    (step,) = (s for s in compiled.steps if s.name == "skip_masked_blocks")
    return step.changed, step.remarks


@pytest.mark.parametrize("name", RECURRENCES)
def test_steps_are_skipped_only_where_they_change_nothing(name):
    skipped, begin, step = RECURRENCES[name]
    kernel = recurrence(begin, step)
    changed, remarks = is_skipped(kernel.compile(target="numpy"))
    assert changed == skipped and (not remarks) == skipped
    if remarks:
        assert "masks entirely" in remarks[0].what and remarks[0].loc.file == __file__


@pytest.mark.parametrize("name", [name for name, (skipped, *_) in RECURRENCES.items() if skipped])
@pytest.mark.parametrize("way", ["numpy", "lanes of gfx942"])
def test_skipped_steps_change_no_bit(name, way):
    """Against the kernel in which the compiler cannot know where rows are: a call says by how much they are moved."""
    _, begin, step = RECURRENCES[name]
    x = np.random.default_rng(1).standard_normal((40, 70)).astype(np.float32) / 8
    y, whole = poisoned((40,), f32), poisoned((40,), f32)

    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK)])
    def moved(x: Memory[M, K, G, f32], y: Memory[M, G, f32], shift: Memory[M, G, i64]):
        @iterate(K, init_args=[Register[M, f32](b) for b in begin])
        def found(*carried):
            seen = self_index(K, i64) <= self_index(M, i64) + read(shift)
            return step(lambda hidden: select(seen, read(x), hidden), *carried)

        write(found if len(begin) == 1 else found[-1], y)

    assert is_skipped(run(way, recurrence(begin, step), x, y))[0]
    assert is_skipped(run(way, moved, x, whole, np.zeros(40, np.int64))) == (False, ())
    np.testing.assert_array_equal(y, whole)


def test_a_loop_that_writes_takes_all_its_steps():
    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK)])
    def masked(x: Memory[M, K, G, f32], y: Memory[M, K, G, f32]):
        @iterate(K)
        def step():
            write(select(self_index(K) <= self_index(M), read(x), 0.0), y)

    x, y = np.ones((40, 70), np.float32), poisoned((40, 70), f32)
    assert not is_skipped(run("numpy", masked, x, y))[0]
    np.testing.assert_array_equal(y, np.tril(x))


def test_what_is_hidden_twice_is_skipped_once_for_each():
    """Two masks, each of which empties other steps."""

    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK)])
    def masked(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](0.0)])
        def found(total):
            kept = select(self_index(K) <= self_index(M), read(x), 0.0)
            return total + select(self_index(M) - self_index(K) < 3, kept, 0.0).sum(dim=K)

        write(found, y)

    x, y = np.random.default_rng(1).integers(-9, 9, (80, 80)).astype(np.float32), poisoned((80,), f32)
    compiled = run("numpy", masked, x, y, M=80, K=80)
    np.testing.assert_array_equal(y, np.tril(np.triu(x, -2)).sum(axis=1))
    assert is_skipped(compiled) == (True, ())


def test_an_author_s_own_ends_stay():
    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(K, BLOCK)])
    def masked(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](0.0)], start=first_index(M) - 20, stop=first_index(M) + 16)
        def found(total):
            row, key = self_index(M), self_index(K)
            return total + select((key <= row) & (row - key < 40), read(x), 0.0).sum(dim=K)

        write(found, y)

    x, y = np.ones((100, 100), np.float32), poisoned((100,), f32)
    run("numpy", masked, x, y)
    rows = np.arange(100)
    first = np.maximum(rows // 16 * 16 - 20, 0) // 16 * 16
    np.testing.assert_array_equal(y, rows - np.maximum(first, np.maximum(rows - 39, 0)) + 1)


def test_persistent_kernels_skip_steps_of_each_tile():
    v, y = np.random.default_rng(7).integers(-9, 9, (200, 16)).astype(np.float16), poisoned((200, 16), f32)
    condition = CONDITIONS["band"]
    kernel = weighted(condition)
    persistent = wave([*kernel.constraints, GridConstraint(2)])(kernel.function)
    compiled = run("numpy", persistent, v, y)
    np.testing.assert_array_equal(y, seen_by(condition, 200, 200) @ v.astype(np.float32))
    assert is_skipped(compiled)[0]


@pytest.mark.parametrize("dtype", [i32, index], ids=str)
def test_tiles_from_the_last_to_the_first_skip_steps_too(dtype):
    """For the last workgroup's number minus another, a position is known to fit in 32 bits."""
    v, y = np.random.default_rng(7).integers(-9, 9, (90, 16)).astype(np.float16), poisoned((70, 16), f32)
    kernel = weighted(CONDITIONS["causal"], dtype)
    backwards = wave([*kernel.constraints, WorkgroupMapping("last_first()")])(kernel.function)
    compiled = run("numpy", backwards, v, y)
    np.testing.assert_array_equal(y, seen_by(CONDITIONS["causal"], 70, 90) @ v.astype(np.float32))
    assert is_skipped(compiled) == (True, ())


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a", "numpy"])
def test_loops_without_a_mask_stay_as_they_are(target):
    """The end of a dim is a condition too, and the loop knows it."""
    for sizes in ({}, {M: 40, K: 70}):
        kernel = recurrence([0.0], lambda x, s: s)
        plain = wave(kernel.constraints)(row_sums.function)
        compiled = plain.compile(target=target, subs=sizes)
        assert is_skipped(compiled) == (False, ())
        assert any(isinstance(op, Loop) for op in walk(compiled.kernel.body))


@wave([])
def row_sums(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
    @iterate(K, init_args=[Register[M, f32](0.0)])
    def total(so_far):
        return so_far + exp(read(x)).sum(dim=K)

    write(total, y)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_conditions(seed):
    """a · row + b · key + c compared with d, and joined; in tiles of several sizes."""
    rng = np.random.default_rng(seed)
    compare = [lambda x, d: x < d, lambda x, d: x <= d, lambda x, d: x > d, lambda x, d: x >= d, lambda x, d: x == d]
    terms = [(*rng.integers(-3, 4, 2).tolist(), int(rng.integers(-60, 60)), compare[rng.integers(5)]) for _ in range(2)]

    def condition(m, k):
        found = [how(a * m + b * k, d) for a, b, d, how in terms]
        return found[0] & found[1]

    for m, k in product((1, 40), (33, 80)):
        v, y = rng.integers(-9, 9, (k, 16)).astype(np.float16), poisoned((m, 16), f32)
        run("numpy", weighted(condition, index, int(rng.choice([16, 32]))), v, y)
        np.testing.assert_array_equal(y, seen_by(condition, m, k) @ v.astype(np.float32))
