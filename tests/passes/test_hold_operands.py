"""Operands that a loop takes alike in every step stay in registers: no bit changes, and their memory is free sooner."""

from functools import cache

import pytest
from attention_kernels import Attention, check
from attention_problems import Problem
from hopper_kernels import changed, ops, specialized, tiles
from kernels import poisoned
from lane_runs import ORDERS
from seeds import SEEDS
from test_hopper_attention import HEAD, arrays, compiled

from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.bench.ablation import changed as built_by
from tilewave.bench.ablation import having
from tilewave.compile import compile_with
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.launch import bind
from tilewave.ir.ops import Arrive, Await, Load, Loop, MatrixHeld, MatrixShared
from tilewave.ir.places import Places
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.machine.chips import SM_90A
from tilewave.passes.specialize_waves import SpecializeWaves
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

SIZES = (2, 136, 136)


def passes(beside, workgroups=3, stages=2):
    return having("hold_operands", beside=beside)(lists.hopper(SM_90A, Places(), stages, workgroups))


@cache
def lanes(a, block_m=64, beside=40):
    return run(compiled(a, block_m=block_m, sizes=SIZES).kernel, passes(beside))[0]


def result(kernel, a, given, order="random"):
    out = poisoned((SIZES[0], SIZES[1], HEAD), a.out)
    interpret_lanes(kernel, [*given, out], {}, order, 0)
    return out


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("block_m", [64, 128, 192])
@pytest.mark.share(4)
def test_no_bit_changes(block_m, dtype, causal):
    a = Attention(dtype=dtype, causal=causal)
    given = arrays(a, sizes=SIZES)
    held, shared = (lanes(a, block_m, beside) for beside in (40, None))
    assert not ops(held, MatrixShared) and not ops(shared, Load)
    found = result(held, a, given)
    assert found.tobytes() == result(shared, a, given).tobytes()
    check(a, given, found, HEAD)


@pytest.mark.parametrize("order", ORDERS)
def test_whatever_order_waves_take(order):
    a = Attention(causal=True)
    given = arrays(a, sizes=SIZES)
    check(a, given, result(lanes(a), a, given, order), HEAD)


def test_queries_are_left_as_soon_as_lanes_hold_them():
    kernel = lanes(Attention())
    (load,) = ops(kernel, Load)
    (block,) = [op.body for op in ops(kernel, Loop) if load in op.body.ops]
    at = block.ops.index(load)
    assert isinstance(block.ops[at - 1], Await) and isinstance(block.ops[at + 1], Arrive)
    assert any(isinstance(op, Loop) for op in block.ops[at:]), "the keys are walked behind"


@pytest.mark.parametrize("lost", [Await, Arrive])
def test_every_wait_and_arrival_is_needed(lost):
    """One workgroup has eight tiles of two steps, and rings that hold more than one of them."""
    problem = Problem(1, (4, 4), 100, 50, 64, 64)
    kernel = shipped.attention_kernel(AttentionTile(64, 32, 4), Heads(64, 64), problem.scores, *[f16] * 4)
    build = built_by(lambda _: passes(40, workgroups=1, stages=5))
    sizes = {"B": 1, "H": 4, "H_KV": 4, "M": 100, "K2": 50}
    held = bind(compile_with(WaveCompileOptions(target="sm_90a"), kernel, build).build.lanes, sizes)
    assert ops(held, Load) and not ops(held, MatrixShared)
    for number in range(len(ops(held, lost))):
        without = changed(held, lost, number, lambda op: [])
        with pytest.raises(InterpreterError):
            for seed in range(8):
                out = poisoned(problem.y.shape, f16)
                interpret_lanes(without, [problem.q, problem.k, problem.v, out], sizes, "random", seed)


def test_lanes_that_have_no_registers_for_it_leave_it_where_it_is():
    _, steps = run(compiled(Attention(), block_m=192, sizes=SIZES).kernel, passes(80))
    (step,) = [s for s in steps if s.name == "hold_operands"]
    (declined,) = step.declined
    assert not step.changed
    assert declined.what == (
        "every step takes the same 8,192 bytes of q, and lanes have 0 registers left for the 16 that would hold "
        "them, so each step reads them from shared memory"
    )


def test_without_roles_lanes_meet_around_their_load():
    a, given = Attention(), arrays(Attention(), sizes=SIZES)
    alone = [p for p in passes(40) if not isinstance(p, SpecializeWaves)]
    kernel = run(compiled(a, sizes=SIZES).kernel, alone)[0]
    assert ops(kernel, MatrixHeld) and not ops(kernel, MatrixShared)
    check(a, given, result(kernel, a, given), HEAD)


@pytest.mark.parametrize("seed", SEEDS[:2], ids=repr)
def test_products_whose_operands_every_step_brings_are_left_alone(seed):
    kernel = tiles(seed, (128, 64, 48))
    assert run(kernel, passes(40, kernel.workgroups, 3))[0] == specialized(kernel, 3)


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "causal"])
def test_the_assembler_finds_registers_and_lets_no_product_wait(causal):
    kernel = shipped.attention_kernel(AttentionTile(128, 128, 4), Heads(128, 128), Scores(0.09, causal), *[f16] * 4)
    made = compile_with(WaveCompileOptions(target="sm_90a"), kernel, built_by(having("hold_operands", beside=40)))
    assembled = assemble_ptx(made.asm, "sm_90a")
    assert not ops(made.build.lanes, MatrixShared)
    assert assembled.spilled_bytes == 0 and assembled.serialized == (), assembled.log
