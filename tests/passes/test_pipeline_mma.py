"""The products of the next step are issued before this step's are waited for: the backward pass of attention."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import changed, ops
from kernels import poisoned

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Arrive, Loop, WaitMma, Wgmma
from tilewave.ir.rewrite import rewrite, walk
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.kernels.attention_gradients import attention_keys_backward_kernel, attention_queries_backward_kernel

HEAD, QUERIES, KEYS = 64, 200, 136
TILE = {"keys": AttentionTile(64, 64, 4), "queries": AttentionTile(64, 64, 4)}


@cache
def made(which):
    facts = TILE[which], Heads(HEAD, HEAD), Scores(0.1), f32, f16
    if which == "keys":
        kernel = attention_keys_backward_kernel(*facts, None, f16, f16)
    else:
        kernel = attention_queries_backward_kernel(*facts, f16)
    sizes = {sym.B: 1, sym.H: 1, sym.H_KV: 1, sym.M: QUERIES, sym.K2: KEYS}
    sizes = {s: n for s, n in sizes.items() if which == "queries" or s != sym.H}
    return kernel.compile(target="sm_90a", subs=sizes, num_stages=2)


@cache
def given():
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.standard_normal((1, 1, n, HEAD)).astype(np.float16) for n in (QUERIES, KEYS, KEYS, QUERIES))
    rows = [rng.standard_normal((1, 1, QUERIES)).astype(np.float32) for _ in range(2)]
    return q, k, v, g, rows[0] + 5, rows[1]


def outputs(which, lanes, seed=0):
    shapes = [(1, 1, KEYS, HEAD)] * 2 if which == "keys" else [(1, 1, QUERIES, HEAD)]
    found = [poisoned(shape, f16) for shape in shapes]
    interpret_lanes(lanes, [*given(), *found], {}, "random", seed)
    return found


@pytest.mark.parametrize("which", TILE)
def test_no_bit_changes(which):
    """The pass alone, on the kernel that it got."""
    step = next(step for step in made(which).build.steps if step.name == "pipeline_mma")
    found, was = outputs(which, step.after), outputs(which, step.before)
    assert step.after != step.before
    assert all(one.tobytes() == other.tobytes() for one, other in zip(found, was, strict=True))


def test_a_product_of_the_next_step_is_issued_before_this_steps_are_awaited():
    (loop,) = [op for op in ops(made("keys").build.lanes, Loop) if any(isinstance(x, WaitMma) for x in op.body.ops)]
    order = [op for op in loop.body.ops if isinstance(op, (Wgmma, WaitMma))]
    issued, awaited = (
        [op.result for op in order if isinstance(op, Wgmma)],
        [op for op in order if isinstance(op, WaitMma)],
    )
    assert [type(op).__name__ for op in order[:2]] == ["WgmmaRegisters"] * 2 and order[2].result == issued[2]
    assert sorted(op.sums.name for op in awaited) == sorted(v.name for v in issued)


def test_nothing_is_in_flight_where_a_step_ends():
    for which in TILE:
        for block in (op.body for op in walk(made(which).build.lanes.body) if isinstance(op, Loop)):
            begun = {op.result for op in block.ops if isinstance(op, Wgmma) and op.later}
            assert begun == {op.sums for op in block.ops if isinstance(op, WaitMma)}


def test_a_product_that_is_not_awaited_is_found():
    lanes = made("keys").build.lanes
    for which in range(len(ops(lanes, WaitMma))):
        loose = changed(lanes, WaitMma, which, lambda op: [replace(op, pending=op.pending + 1)])
        with pytest.raises(InterpreterError, match="may still be in flight"):
            outputs("keys", loose)


def test_a_stage_that_is_left_while_a_product_reads_it_is_found():
    lanes = made("keys").build.lanes

    def early(op):
        if not isinstance(op, Loop) or not any(isinstance(x, WaitMma) for x in op.body.ops):
            return None
        inside = list(op.body.ops)
        leave = next(i for i, x in enumerate(inside) if isinstance(x, Arrive))
        inside.insert(next(i for i, x in enumerate(inside) if isinstance(x, WaitMma)), inside.pop(leave))
        return [replace(op, body=replace(op.body, ops=tuple(inside)))]

    loose = rewrite(lanes, early)
    with pytest.raises(InterpreterError, match=r"the MMA of wave . read with no wait between"):
        for seed in range(8):
            outputs("keys", loose, seed)
