"""Tiles without rows are skipped on every target, and only where nothing is stored for them."""

import numpy as np
import pytest

from tilewave import *
from tilewave.ir.ops import Loop, Matrix, Mma, TmaLoad, Wgmma
from tilewave.ir.rewrite import walk
from tilewave.kernels.grouped import GroupedForm, GroupedTile, grouped_product_kernel
from tilewave.passes.grid.skip_empty_tiles import STORED_ANYWAY

A = GLOBAL_ADDRESS_SPACE
T, N, G = sym.T, sym.N, sym.G
WORK = (Mma, Matrix, Wgmma, TmaLoad)
TARGETS = ["cpu", "gfx942", "gfx950", "sm_90a"]


def step_of(compiled):
    return next(s for s in compiled.steps if s.name == "skip_empty_tiles")


def is_once(op):
    return isinstance(op, Loop) and op.trips.name.startswith("once")


@pytest.mark.parametrize("target", TARGETS)
def test_all_products_and_loads_are_skipped_with_their_tile(target):
    kernel = grouped_product_kernel(GroupedTile(64, 128, 64), GroupedForm(f16, f16, i32))
    compiled = kernel.compile(target=target)
    assert step_of(compiled).changed
    last = compiled.steps[-1].after
    inside = [x for op in walk(last.body) if is_once(op) for x in walk(op.body) if isinstance(x, WORK)]
    assert inside == [op for op in walk(last.body) if isinstance(op, WORK)] != []


@wave([WorkgroupConstraint(T, 16, 0, ragged=Ragged(G, "ends")), WorkgroupConstraint(N, 64, 1)])
def sums_and_marks(
    x: Memory[T, N, A, f32], ends: Memory[G, A, i32], sums: Memory[G, N, A, f32], runs: Memory[N, A, i32]
):
    atomic_add(read(x).sum(dim=T), sums)
    atomic_add(Register[N, i32](1), runs)


@wave([WorkgroupConstraint(T, 16, 0, ragged=Ragged(G, "ends")), WorkgroupConstraint(N, 64, 1)])
def sums_by_group(x: Memory[T, N, A, f32], ends: Memory[G, A, i32], sums: Memory[G, N, A, f32]):
    atomic_add(read(x).sum(dim=T), sums)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_groups_are_skipped(target):
    compiled = sums_by_group.compile(target=target)
    assert step_of(compiled).changed
    rng, ends = np.random.default_rng(0), np.array([5, 5, 37, 37], np.int32)
    x, sums = rng.integers(-9, 9, (40, 70)).astype(np.float32), np.zeros((4, 70), np.float32)
    if target == "cpu":
        compiled(x, ends, sums)
    elif target == "sm_90a":
        compiled.interpret(x, ends, sums, level="lane")
    else:
        assert not compiled.emulate(x, ends, sums).findings
    assert np.array_equal(sums, [x[:5].sum(0), 0 * x[0], x[5:37].sum(0), 0 * x[0]])


def test_a_kernel_that_stores_for_all_tiles_computes_all():
    compiled = sums_and_marks.compile(target="cpu")
    assert not step_of(compiled).changed
    (remark,) = step_of(compiled).remarks
    assert remark.what == STORED_ANYWAY.what and remark.remedy == STORED_ANYWAY.remedy
    x, ends = np.ones((40, 64), np.float32), np.array([5, 5, 37, 37], np.int32)
    sums, runs = np.zeros((4, 64), np.float32), np.zeros(64, np.int32)
    compiled(x, ends, sums, runs)
    assert runs[0] == 40 // 16 + 4
    assert np.array_equal(sums[:, 0], [5, 0, 32, 0])
