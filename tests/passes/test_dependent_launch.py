"""Kernels that start while the one launched before them still ends: nothing touches memory before that has ended."""

import numpy as np
import pytest
from hopper_kernels import MUTATED as SHAPE
from hopper_kernels import biased, changed, check, check_biased, found_by, specialized, tiles
from kernels import G, K, M, gemm, sizes
from lane_texts import ORDERS, line_of, run_text, text_of
from seeds import SEEDS

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import LaunchDependents, Load, Role, Store, TmaLoad, TmaStore, WaitPriorLaunch
from tilewave.ir.parse import parse
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk
from tilewave.machine.chips import SM_90A
from tilewave.passes.schedule.dependent_launch import DependentLaunch
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

ACCESSES = {
    "load": ("%x = load(%a, [%t, %zero], []) ROW : vector<8xf32>", "a"),
    "store": ("store(%x, %c, [%t, %zero], []) ROW", "c"),
    "load_each": ("%x = load_each(%a, [%rows, %rows], []) : vector<8xf32>", "a"),
    "tma_load": ("tma_load(%a, [%zero, %zero], %s, [], %f, %zero) {axes = [0, 1]}", "a"),
    "tma_store": ("tma_store(%s, [], %c, [%zero, %zero]) {axes = [0, 1]}", "c"),
    "copy": ("copy(%a, [%zero, %zero], %s, []) {axes = [0, 1]}", "a"),
}
PREPARED = """  %s = allocate() : memory<8x8xf32, shared>
  %f = make_mbarriers() {arrivals = 1} : mbarriers<1>
  %x = const() {value = 1.0} : vector<8xf32>
  %rows = ramp() {steps = [1]} : vector<8xindex>
  barrier()
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("access", ACCESSES)
def test_whatever_touches_memory_too_early_is_found(access, order, seed):
    line, memory = ACCESSES[access]
    body = PREPARED.replace("%x =", "%y =" if line.startswith("%x") else "%x =")
    text = text_of(f"{body}  {line} // here\n  wait_prior_launch()\n", waves=1)
    with pytest.raises(InterpreterError) as found:
        run_text(text, order, seed)
    assert str(found.value) == (
        f"wave 0 touches {memory} while earlier kernels may still run\n"
        f"  k.ir:{line_of(text, 'here')}\n"
        "  wait_prior_launch() must be before it"
    )


MOVES = """  %s = allocate() : memory<8x8xf32, shared>
  store(%ones, %s, [%t, %zero], []) ROW
  %before = load(%s, [%t, %zero], []) ROW : vector<8xf32>
  AWAITS
  launch_dependents()
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  %y = add(%x, %before) : vector<8xf32>
  store(%y, %c, [%t, %zero], []) ROW
"""
ONES = "  %ones = const() {value = 1.0} : vector<8xf32>\n"


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_shared_memory_is_the_kernel_s_own_from_the_start(order, seed):
    a, c = run_text(text_of(ONES + MOVES.replace("AWAITS", "wait_prior_launch()")), order, seed)
    np.testing.assert_array_equal(c, a + 1)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_wave_waits_for_itself_alone(order, seed):
    """What wave 0 waited for does not hold for wave 1, which has not waited."""
    alone = "role() {first = 0, last = 1} do () {\n    wait_prior_launch()\n  }"
    with pytest.raises(InterpreterError, match="wave 1 touches a while earlier kernels may still run"):
        run_text(text_of(ONES + MOVES.replace("AWAITS", alone)), order, seed)


def test_a_kernel_without_the_wait_starts_when_others_have_ended():
    a, c = run_text(text_of(ONES + MOVES.replace("AWAITS", "barrier()")))
    np.testing.assert_array_equal(c, a + 1)


def test_both_read_back_as_text():
    kernel = parse(text_of(ONES + MOVES.replace("AWAITS", "wait_prior_launch()")))
    assert parse(str(kernel)) == kernel
    assert [op.name for op in walk(kernel.body) if isinstance(op, (WaitPriorLaunch, LaunchDependents))] == [
        "wait_prior_launch",
        "launch_dependents",
    ]


# -- kernels of Hopper's


def one_round():
    return tiles(SEEDS[0], SHAPE, (64, 64, 16))


def whole():
    return specialized(one_round(), 2)


def touching(role):
    moves = (op for op in walk(role.body) if isinstance(op, (Load, Store, TmaLoad, TmaStore)))
    return [op for op in moves if is_in(op.memory, "global")]


def test_every_role_waits_before_all_else():
    roles = [op for op in whole().body.ops if isinstance(op, Role)]
    assert len(roles) == 2 and all(touching(role) for role in roles)
    assert all(isinstance(role.body.ops[0], WaitPriorLaunch) for role in roles)
    assert [op for op in walk(roles[0].body) if isinstance(op, LaunchDependents)] == []
    assert isinstance(roles[1].body.ops[1], LaunchDependents)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("role", [0, 1])
def test_every_wait_is_needed(role, order, seed):
    told = found_by(changed(whole(), WaitPriorLaunch, role, lambda op: []), order, seed)
    assert "while earlier kernels may still run" in told


def test_without_the_pass_nothing_waits_and_the_result_is_the_same():
    kernel = one_round()
    passes = [p for p in lists.hopper(SM_90A, Places(), 2, kernel.workgroups) if not isinstance(p, DependentLaunch)]
    lanes, _ = run(kernel, passes)
    assert not any(isinstance(op, (WaitPriorLaunch, LaunchDependents)) for op in walk(lanes.body))
    assert lanes == rewrite(whole(), lambda op: [] if isinstance(op, (WaitPriorLaunch, LaunchDependents)) else None)
    check(lanes, SHAPE)


def test_kernels_of_several_rounds_start_when_others_have_ended():
    lanes = specialized(tiles(SEEDS[2], SHAPE, (64, 64, 16), num_ctas=1), 2)
    assert not any(isinstance(op, (WaitPriorLaunch, LaunchDependents)) for op in walk(lanes.body))


def test_what_an_epilogue_loads_is_waited_for_too():
    made = wave_compile(WaveCompileOptions(subs=sizes(100, 64, 40), target="sm_90a"), biased)
    consumer, _ = (op for op in made.build.lanes.body.ops if isinstance(op, Role))
    assert any(isinstance(op, Load) for op in touching(consumer))
    check_biased(made, (100, 64, 40))
    assert "ld.global" in made.asm
    assert "ld.global.nc" not in made.asm  # which is for memory that is not written while the kernel runs


def test_products_whose_lanes_load_start_early():
    made = wave_compile(WaveCompileOptions(subs=sizes(100, 64, 40), target="sm_90a"), biased).build.plain
    kinds = [type(op) for op in walk(made.lanes.body) if isinstance(op, (WaitPriorLaunch, LaunchDependents))]
    assert kinds == [WaitPriorLaunch, LaunchDependents]
    assert "ld.global.nc" not in made.asm


def test_kernels_without_products_start_when_others_have_ended():
    @wave([WorkgroupConstraint(M, 64, 0)])
    def double(x: Memory[M, G, f32], y: Memory[M, G, f32]):
        write(read(x) * 2.0, y)

    made = wave_compile(WaveCompileOptions(subs={M: 100}, target="sm_90a"), double)
    assert not any(isinstance(op, WaitPriorLaunch) for op in walk(made.build.lanes.body))
    assert "griddepcontrol" not in made.asm
    assert "ld.global.nc" in made.asm


STREAMED = {
    "weights of which two rows of tiles want the same": ((128, 8192, 8192), (64, 128, 64), {}, False),
    "activations that rows of tiles share": ((8192, 128, 8192), (128, 64, 64), {"order": "grouped(1)"}, False),
    "the same in an order in which neighbours do not": ((8192, 128, 8192), (128, 64, 64), {}, True),
    "parts of tiles": ((512, 512, 65536), (128, 128, 64), {"parts": 8}, False),
    "one row of tiles": ((128, 8192, 8192), (128, 64, 64), {}, True),
    "L2 keeps them": ((2048, 2048, 2048), (128, 256, 64), {}, True),
    "clusters bring them together": ((512, 4104, 8200), (128, 128, 64), {}, True),
}


@pytest.mark.parametrize("case", STREAMED)
def test_neighbours_that_stream_the_same_tiles_are_not_strewn_over_the_card(case):
    shape, tile, said, is_early = STREAMED[case]
    made = gemm(constraints=(SplitConstraint(K, said["parts"]),) if "parts" in said else ())
    made = made.ordered(said["order"]) if "order" in said else made
    lanes = wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="sm_90a"), made).build.lanes
    found = [any(isinstance(op, kind) for op in walk(lanes.body)) for kind in (WaitPriorLaunch, LaunchDependents)]
    assert found == [is_early, is_early]


def test_the_chip_is_told():
    made = wave_compile(WaveCompileOptions(subs=sizes(256, 256, 128, 64, 64, 64), target="sm_90a"), biased)
    told = [line.strip() for line in made.asm.splitlines() if "griddepcontrol" in line]
    assert sorted(told) == ["griddepcontrol.launch_dependents;", *["griddepcontrol.wait;"] * 2]
