"""Chained products on Hopper: values computed from sums stay in registers, and each product has a separate pipeline."""

import re

import numpy as np
import pytest
from attention_kernels import (
    ADDRESS_SPACE,
    BLOCK_B,
    BLOCK_K2,
    BLOCK_M,
    BLOCK_N,
    K1,
    K2,
    Attention,
    B,
    M,
    N,
    attention,
    check,
)
from hopper_kernels import changed, ops, roles
from kernels import poisoned, random_array
from lane_runs import ORDERS

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Arrive, Loop, MakeMbarriers, TmaLoad, WaitMbarrier, WgmmaRegisters, WgmmaShared
from tilewave.ir.rewrite import walk

HEAD, QUERIES, KEYS = 64, 72, 136


def compiled(a, block_m=64, block_k2=64, sizes=(2, QUERIES, KEYS), **more):
    heads, queries, keys = sizes
    blocks = {BLOCK_B: 1, BLOCK_M: block_m, BLOCK_N: HEAD, BLOCK_K2: block_k2}
    subs = {**blocks, B: heads, M: queries, K2: keys, K1: HEAD, N: HEAD, ADDRESS_SPACE: GLOBAL_ADDRESS_SPACE}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", **more), attention(HEAD, a))


def arrays(a, seed=3, sizes=(2, QUERIES, KEYS)):
    rng, (heads, queries, keys) = np.random.default_rng(seed), sizes
    q, k, v = (random_array(rng, (heads, n, HEAD), a.dtype) for n in (queries, keys, keys))
    return q, k, np.ascontiguousarray(v.swapaxes(1, 2)) if a.v_transposed else v


@pytest.mark.share(16)
@pytest.mark.parametrize("v_transposed", [False, True], ids=["V [K2, N]", "V [N, K2]"])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("order", ORDERS)
def test_attention_through_the_copy_engine(v_transposed, causal, dtype, order):
    a = Attention(dtype=dtype, causal=causal, v_transposed=v_transposed)
    made, given = compiled(a), arrays(a)
    assert roles(made.build.lanes) == 2
    c = poisoned((2, QUERIES, HEAD), a.out)
    made.interpret(*given, c, level="lane", order=order, seed=1)
    check(a, given, c, 64)


def test_weights_never_leave_the_registers():
    made = compiled(Attention(), block_m=128)
    lanes = made.build.lanes
    assert {op.acc.type.dtype for op in ops(lanes, WgmmaRegisters)} == {f32}
    assert len(ops(lanes, WgmmaRegisters)) == 2  # the last one comes after the loop
    assert len(ops(lanes, WgmmaShared)) == 3  # the first step comes before the loop, and one is repeated where needed
    held = re.findall(r"wgmma\.mma_async\S+ \{[^}]*\}, (\{[^}]*\}|da), db", made.asm)
    assert sorted({len(a.split(",")) for a in held}) == [1, 4]  # a descriptor, or four registers


def test_queries_are_brought_once_a_tile():
    lanes = compiled(Attention()).build.lanes
    loops = [op for op in walk(lanes.body) if isinstance(op, Loop) and ops_in(op, TmaLoad)]
    innermost = [op for op in loops if not any(other in list(walk(op.body)) for other in loops)]
    assert {op.memory.name for loop in innermost for op in ops_in(loop, TmaLoad)} == {"k", "v"}
    assert {op.memory.name for op in ops(lanes, TmaLoad)} == {"q", "k", "v"}


def ops_in(loop, kind):
    return [op for op in walk(loop.body) if isinstance(op, kind)]


def test_keys_and_values_have_rings_of_their_own():
    """Keys make room when scores are there; values arrive while weights are computed."""
    lanes = compiled(Attention()).build.lanes
    assert len(ops(lanes, MakeMbarriers)) == 2 * len(("queries", "keys", "values"))


def last_values_left(lanes):
    """Return the mbarrier arrival after the loop over keys."""
    in_loops = [op for loop in ops(lanes, Loop) for op in ops_in(loop, Arrive)]
    (last,) = [op for i, op in enumerate(ops(lanes, Arrive)) if op not in in_loops and is_told_before(lanes, i)]
    return last


def is_told_before(lanes, number):
    arrivals = ops(lanes, Arrive)
    return arrivals[number].mbarriers in [op.mbarriers for op in arrivals[:number]]


@pytest.mark.parametrize("lost", [WaitMbarrier, Arrive])
def test_every_wait_and_arrival_is_needed(lost):
    a, sizes = Attention(), (2, 72, 360)
    lanes = compiled(a, sizes=sizes, num_stages=2).build.lanes
    given = arrays(a, sizes=sizes)
    room_for_queries = ops(lanes, MakeMbarriers)[1].result  # one tile: no role waits for more
    room_at_the_end = last_values_left(lanes)  # nor for the stage of its last step
    for number, op in enumerate(ops(lanes, lost)):
        if op.mbarriers == room_for_queries or op is room_at_the_end:
            continue
        without = changed(lanes, lost, number, lambda op: [])
        with pytest.raises(InterpreterError):
            for seed in range(8):
                interpret_lanes(without, [*given, poisoned((2, 72, HEAD), a.out)], {}, "random", seed)
