"""Sums across workgroups in turns: one order on every target; and orders that are none, or do not end, are found."""

from functools import cache

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import ConstraintError, CoverageError, InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.ops import Arrive, PassTurn, Role, WaitMbarrier, WaitTurn
from tilewave.ir.rewrite import rewrite, walk

G = GLOBAL_ADDRESS_SPACE
M, N, K = sym.M, sym.N, sym.K
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
SHAPES = ((64, 16, 32), (150, 16, 100), (1, 16, 1), (130, 16, 257))


def kernel_of(turn=lambda: first_index(K) // 32, add=None, order=()):
    """Return the kernel that adds the products of each block of K to `total`, a workgroup for each block."""

    def contribute(tile, total, turns):
        if add is None:
            ordered_add(tile, total, turns=turns, turn=turn())
        else:
            add(tile, total, turns)

    @wave([WorkgroupConstraint(K, 32, 0), TilingConstraint(M, 64), *order], subs={N: 16})
    def outer(x: Memory[M, K, G, f16], y: Memory[N, K, G, f16], total: Memory[M, N, G, f32], turns: Memory[M, G, i32]):
        @iterate(M)
        def step():
            contribute(mma(read(x), read(y), Register[M, N, f32](0.0)), total, turns)

    return outer


@cache
def compiled(target, m=None, k=None):
    sizes = {} if m is None else {M: m, K: k}
    return kernel_of().compile(target="cpu" if target == "numpy" else target, subs=sizes)


def arrays(m, n, k):
    return np.zeros((m, n), np.float32), np.zeros(m, np.int32)


def run(made, target, *args, **how):
    if target == "cpu":
        made(*args)
    elif target in ("numpy", "sm_90a"):
        made.interpret(*args, **({"level": "lane", **how} if target == "sm_90a" else {}))
    else:
        made.emulate(*args)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_in_turns_are_exact(target, shape):
    """Small integers: right in any order, for sizes that are open."""
    m, n, k = shape
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    total, turns = arrays(*shape)
    total[...] = 5
    run(compiled(target), target, x, y, total, turns)
    np.testing.assert_array_equal(total, 5 + x.astype(np.float64) @ y.astype(np.float64).T)


def lossy(m, blocks):
    """Return operands whose blocks add 2**30, 1, -2**30, 1, … in turn, and the sum in that order, which rounds."""
    x, y = np.zeros((m, 32 * blocks), np.float16), np.zeros((16, 32 * blocks), np.float16)
    addends = [(32768, 32768), (1, 1), (-32768, 32768), (1, 1)] * blocks
    total = np.float32(0)
    for block, (a, b) in enumerate(addends[:blocks]):
        x[:, 32 * block], y[:, 32 * block] = a, b
        total = np.float32(total + np.float32(a) * np.float32(b))
    return x, y, total


@pytest.mark.parametrize("target", TARGETS)
def test_sums_have_the_order_of_the_turns(target):
    x, y, wanted = lossy(130, 7)
    assert wanted != x[0].astype(np.float64) @ y[0].astype(np.float64), "another order would give another sum"
    total, turns = arrays(130, 16, 224)
    run(compiled(target, 130, 224), target, x, y, total, turns)
    np.testing.assert_array_equal(total, np.full_like(total, wanted))


@pytest.mark.parametrize("order", ["backwards", "random"])
def test_waves_in_any_order_give_the_same_sums(order):
    x, y, wanted = lossy(130, 4)
    total, turns = arrays(130, 16, 128)
    compiled("sm_90a", 130, 128).interpret(x, y, total, turns, level="lane", order=order, seed=2)
    np.testing.assert_array_equal(total, np.full_like(total, wanted))


def test_threads_of_a_cpu_give_the_same_sums_every_time():
    x, y, wanted = lossy(64, 64)
    for _ in range(20):
        total, turns = arrays(64, 16, 2048)
        compiled("cpu")(x, y, total, turns)
        np.testing.assert_array_equal(total, np.full_like(total, wanted))


# what is broken is found ---------------------------------------------------------------------------------------------


def without(kernel, cls):
    assert any(isinstance(op, cls) for op in walk(kernel.body))
    return rewrite(kernel, lambda op: [] if isinstance(op, cls) else None)


def broken_run(target, change, **counters):
    """Run the lowest level of a changed kernel, and return what is said."""
    x, y, _ = lossy(64, 3)
    total, turns = arrays(64, 16, 96)
    turns += counters.get("first", 0)
    made = compiled(target, 64, 96)
    kernel = change(made.ir() if target == "numpy" else made.build.steps[-1].after)
    with pytest.raises(InterpreterError) as caught:
        if target == "numpy":
            interpret(kernel, [x, y, total, turns], {})
        else:
            interpret_lanes(kernel, [x, y, total, turns], {})
    return f"{caught.value.what} {caught.value.remedy}"


LEVELS = ("numpy", "sm_90a", "gfx942")


@pytest.mark.parametrize("target", LEVELS)
def test_a_deleted_wait_is_found(target):
    assert "without a turn" in broken_run(target, lambda kernel: without(kernel, WaitTurn))


@pytest.mark.parametrize("target", LEVELS)
def test_a_deleted_pass_is_found(target):
    said = broken_run(target, lambda kernel: without(kernel, PassTurn))
    assert "has not passed turn 0 at total" in said


@pytest.mark.parametrize("target", LEVELS)
def test_a_turn_that_never_comes_is_a_deadlock(target):
    said = broken_run(target, lambda kernel: kernel, first=-1)
    assert "for turn 0 of turns[0], which no earlier workgroup passes on" in said


@pytest.mark.parametrize("target", LEVELS)
def test_counters_that_are_not_zero_are_found(target):
    waves = 1 if target == "numpy" else 2 if target == "gfx942" else 4
    said = broken_run(target, lambda kernel: kernel, first=waves)
    assert "waits for turn 0 of turns[0], which is over" in said
    assert "its counter is 0 before the launch" in said


def refused(kernel, error=CoverageError):
    with pytest.raises(error) as caught:
        kernel.compile(target="cpu", subs={M: 64, K: 96})
    return f"{caught.value.what}: {caught.value.remedy}"


def test_a_turn_of_a_later_workgroup_is_refused():
    """Workgroups in descending order: each waits for the one after it."""
    assert refused(kernel_of(turn=lambda: 2 - first_index(K) // 32)) == (
        "workgroup 1 takes turn 1 at turns[0], and workgroup 2, which may not have started, takes turn 0: "
        "workgroups start in the order of their numbers: let turns ascend with them, or correct the order of tiles; "
        "atomic_add adds in any order"
    )


def test_turns_follow_the_order_of_tiles():
    last_first = [WorkgroupMapping("last_first()")]
    assert "which may not have started" in refused(kernel_of(order=last_first))
    made = kernel_of(turn=lambda: 2 - first_index(K) // 32, order=last_first).compile(target="cpu", subs={M: 64, K: 96})
    x, y, _ = lossy(64, 3)
    total, turns = arrays(64, 16, 96)
    made(x, y, total, turns)
    np.testing.assert_array_equal(total, np.full_like(total, np.float32(-(2**30) + 1) + np.float32(2**30)))


def test_two_workgroups_with_one_turn_are_refused():
    said = refused(kernel_of(turn=lambda: first_index(K) // 64))
    assert said.startswith("workgroups 0 and 1 both take turn 0 at turns[0]: turns at a tile are 0, 1, 2, …")


def test_a_missing_turn_is_refused():
    said = refused(kernel_of(turn=lambda: first_index(K) // 16))
    assert said.startswith("turn 1 at turns[0] is taken by none, and workgroup 1 takes turn 2: turns at a tile")


def test_a_size_without_an_order_is_refused_at_the_call():
    made = kernel_of(turn=lambda: first_index(K) // 64).compile(target="cpu")
    x, y, _ = lossy(64, 3)
    with pytest.raises(CoverageError, match=r"with M = 64, K = 96, workgroups 0 and 1 both take turn 0"):
        made(x, y, *arrays(64, 16, 96))
    made(x[:, :32].copy(), y[:, :32].copy(), *arrays(64, 16, 32))


def test_adding_without_a_turn_too_is_refused():
    def twice(tile, total, turns):
        ordered_add(tile, total, turns=turns, turn=first_index(K) // 32)
        atomic_add(tile, total)

    assert refused(kernel_of(add=twice)) == (
        "total is added to in turns, and without a turn here: add to it by ordered_add everywhere, or by atomic_add"
    )


def test_two_turns_of_one_workgroup_at_a_tile_come_in_program_order():
    def twice(tile, total, turns):
        ordered_add(tile, total, turns=turns, turn=2 * (first_index(K) // 32) + first)
        ordered_add(tile, total, turns=turns, turn=2 * (first_index(K) // 32) + 1 - first)

    first = 1
    assert "workgroup 0 takes turn 1 at turns[0], and takes turn 0 after it" in refused(kernel_of(add=twice))
    first = 0
    x, y, _ = lossy(64, 3)
    total, turns = arrays(64, 16, 96)
    kernel_of(add=twice).compile(target="cpu", subs={M: 64, K: 96})(x, y, total, turns)
    assert turns[0] == 6


# determinism is visible ----------------------------------------------------------------------------------------------


def test_sums_in_turns_are_batch_invariant_and_atomics_are_not():
    def at_once(tile, total, turns):
        atomic_add(tile, total)

    sizes = {M: 64, K: 96}
    options = {"subs": sizes, "target": "sm_90a", "batch_invariant": True}
    wave_compile(WaveCompileOptions(**options), kernel_of())
    with pytest.raises(ConstraintError, match="atomic_add adds floats to total in any order"):
        wave_compile(WaveCompileOptions(**options), kernel_of(add=at_once))


def test_hopper_waits_by_an_acquire_and_passes_by_a_release():
    asm = compiled("sm_90a").build.asm
    assert asm.count("ld.acquire.gpu") == asm.count("red.release.gpu") == 1
    adds = [asm.index(begin) for begin in ("red.relaxed.gpu.global.add.v2.f32", "ld.acquire.gpu", "red.release.gpu")]
    assert adds == sorted(adds), "consumers add; the watcher's and the releaser's programs follow theirs"


# turns on Hopper, which warps of their own wait for and pass ---------------------------------------------------------


def delegated(m=64 * 7, k=64):
    """Return the lanes of a kernel of seven turns for each workgroup, more than its watcher may be ahead."""
    return compiled("sm_90a", m, k).build.lanes


def rings(lanes):
    """Return the mbarriers of turns: come, added, passed."""
    (watcher,) = [op.body for op in walk(lanes.body) if isinstance(op, Role) and has(op.body, WaitTurn)]
    (releaser,) = [op.body for op in walk(lanes.body) if isinstance(op, Role) and has(op.body, PassTurn)]
    (come,) = {op.mbarriers for op in walk(watcher) if isinstance(op, Arrive)}
    (added,) = {op.mbarriers for op in walk(releaser) if isinstance(op, WaitMbarrier)}
    (passed,) = {op.mbarriers for op in walk(releaser) if isinstance(op, Arrive)}
    assert {op.mbarriers for op in walk(watcher) if isinstance(op, WaitMbarrier)} == {passed}
    return come, added, passed


def has(block, cls):
    return any(isinstance(op, cls) for op in walk(block))


def is_found(lanes, m=64 * 7, k=64):
    x, y, _ = lossy(m, k // 32)
    for seed in range(6):
        try:
            interpret_lanes(lanes, [x, y, *arrays(m, 16, k)], {}, "random", seed)
        except InterpreterError:
            return True
    return False


def test_consumers_neither_wait_for_counters_nor_pass_turns():
    lanes = delegated()
    consumers, *others = [op.body for op in lanes.body.ops if isinstance(op, Role)]
    assert not has(consumers, WaitTurn) and not has(consumers, PassTurn)
    assert [has(role, WaitTurn) + 2 * has(role, PassTurn) for role in others] == [0, 1, 2]
    assert not is_found(lanes)


@pytest.mark.parametrize("ring", range(3), ids=["come", "added", "passed"])
@pytest.mark.parametrize("cls", [WaitMbarrier, Arrive])
def test_a_deleted_wait_or_arrival_of_a_turn_is_found(cls, ring):
    lanes = delegated()
    mbarriers = rings(lanes)[ring]
    those = [op for op in walk(lanes.body) if isinstance(op, cls) and op.mbarriers == mbarriers]
    assert those
    for one in those:
        assert is_found(rewrite(lanes, lambda op, one=one: [] if op is one else None)), one


@pytest.mark.parametrize("order", ["in turn", "backwards", "random"])
@pytest.mark.parametrize(("m", "k"), [(64, 32), (64 * 4, 96), (64 * 9, 64), (100, 256)])
def test_delegated_turns_have_the_order_of_turns(m, k, order):
    """One turn for each workgroup, as many as mbarriers, and more; sizes are open."""
    x, y, wanted = lossy(m, -(-k // 32))
    x, y = x[:, :k].copy(), y[:, :k].copy()
    total, turns = arrays(m, 16, k)
    compiled("sm_90a").interpret(x, y, total, turns, level="lane", order=order, seed=5)
    np.testing.assert_array_equal(total, np.full_like(total, wanted))
    assert set(turns[::64].tolist()) == {-(-k // 32)}, "one warp passes a turn"
