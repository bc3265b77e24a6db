"""A warp finds the tiles of persistent workgroups ahead: right in every order of waves, and a missing wait shows."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from lane_runs import ORDERS
from sampled import some_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Arrive, Load, Role, WaitMbarrier
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import I64, Mbarriers
from tilewave.kernels.grouped import G, GroupedForm, GroupedTile, K, N, T, grouped_product_kernel
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid.expand_ragged_tiles import expand_ragged_tiles
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

COUNTS, COLS, DEPTH, WORKGROUPS = [3, 0, 34, 17, 0, 1], 128, 64, 2


@cache
def lanes():
    sizes = {T: sum(COUNTS), G: len(COUNTS), N: COLS, K: DEPTH}
    tiles = grouped_product_kernel(GroupedTile(16, 128, 64), GroupedForm(bf16, bf16, i32)).compile("numpy", sizes)
    kernel, steps = run(tiles.kernel, [expand_ragged_tiles, *lists.hopper(SM_90A, Places(), 2, WORKGROUPS)])
    assert next(s for s in steps if s.name == "find_tiles_ahead").changed
    return kernel


def outcome(kernel, order, seed=0):
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape) for shape in ((sum(COUNTS), DEPTH), (len(COUNTS), COLS, DEPTH)))
    x, w = (a.astype(ml_dtypes.bfloat16) for a in (x, w))
    y = np.full((sum(COUNTS), COLS), np.nan, ml_dtypes.bfloat16)
    interpret_lanes(kernel, [x, w, np.cumsum(COUNTS).astype(np.int32), y], {}, order, seed)
    wanted, start = np.empty(y.shape), 0
    for g, end in enumerate(np.cumsum(COUNTS)):
        wanted[start:end] = x[start:end].astype(np.float64) @ w[g].astype(np.float64).T
        start = end
    return y.astype(np.float64), wanted


def test_tiles_found_ahead_are_the_ones_to_compute():
    for order in some_of(ORDERS):
        found, wanted = outcome(lanes(), order)
        assert (np.abs(found - wanted) <= 2**-8 * np.abs(wanted) + 1e-4).all()


def test_only_the_searching_warp_reads_the_ends():
    kernel = lanes()
    roles = [op for op in kernel.body.ops if isinstance(op, Role)]
    read = [any(op.memory.name == "ends" for op in walk(role.body) if isinstance(op, Load)) for role in roles]
    assert read == [False, False, True] and (roles[2].first, roles[2].last) == (9, 10)


def test_a_place_is_not_overwritten_before_it_is_read():
    """Without the consumers' arrivals, nothing holds the search back."""
    kernel = lanes()
    found = next(op.result for op in walk(kernel.body) if getattr(op, "results", ()) and op.results[0].name == "found")
    search = next(role for role in kernel.body.ops if isinstance(role, Role) and role.first == 9)
    waits = [op for op in walk(search.body) if isinstance(op, WaitMbarrier)]
    assert isinstance(found.type, Mbarriers) and found.type.dtype == I64 and len(waits) == 2
    hasty = rewrite(kernel, lambda op: [] if op in waits else None)
    with pytest.raises(InterpreterError):
        outcome(hasty, "backwards")


def test_what_is_found_is_waited_for():
    kernel = lanes()
    found = next(op.mbarriers for op in walk(kernel.body.ops[-1].body) if isinstance(op, Arrive))
    hasty = rewrite(kernel, lambda op: [] if isinstance(op, WaitMbarrier) and op.mbarriers == found else None)
    with pytest.raises(InterpreterError):
        outcome(hasty, "in turn")
