"""Tiles that take differently many steps, dealt to and fro to workgroups that stay: as drawn, simulated and run."""

from functools import cache
from pathlib import Path
from runpy import run_path

import pytest
from attention_problems import Problem
from hopper_kernels import changed, ops, roles
from kernels import poisoned
from lane_runs import ORDERS

from tilewave import *
from tilewave import kernels as shipped
from tilewave.analysis.coverage import checked_schedule
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.bench.ablation import changed as built_by
from tilewave.bench.ablation import having
from tilewave.compile import compile_with
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.launch import bind
from tilewave.ir.ops import Arrive, Const, FloorDiv, Loop, Mod, Role, TmaStore, WaitMbarrier, WaitTmaStores, Wgmma
from tilewave.ir.rewrite import walk
from tilewave.kernels import AttentionTile, Heads
from tilewave.mapping import Grid, even_rounds, parse
from tilewave.passes.grid.make_persistent import MakePersistent
from tilewave.sim import simulate

EXAMPLE = run_path(str(Path(__file__).parents[2] / "examples" / "attention.py"))
ASKED = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 30},
    "both sides": {"window": 20},
    "capped": {"causal": True, "soft_cap": 1.5},
}


@cache
def attention_of(workgroups, stages, **asked):
    """All sizes open, two heads of queries to one of keys, blocks of 64 queries and 32 keys."""
    problem = Problem(1, (2, 1), 1, 1, 64, 64, asked=asked)
    dtypes = *[f16] * 4, None, f32
    kernel = shipped.attention_kernel(AttentionTile(64, 32, 4), Heads(64, 64, 2), problem.scores, *dtypes)
    rounds = having("make_persistent", workgroups=workgroups)
    ring = having("specialize_waves", stages=stages)
    return compile_with(WaveCompileOptions(target="sm_90a"), kernel, built_by(lambda passes: ring(rounds(passes))))


def problem_of(queries, keys, heads=4, **asked):
    return Problem(1, (heads, heads // 2), queries, keys, 64, 64, asked=asked)


# -- it is right -------------------------------------------------------------------------------------------------------


@pytest.mark.share(4)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_every_workgroup_computes_its_tiles(order, stages):
    """Eight tiles for three workgroups, with boundary tiles: stages and parities continue from tile to tile."""
    made, problem = attention_of(3, stages, causal=True), problem_of(100, 100, causal=True)
    assert roles(made.build.lanes) == 2
    made.interpret(*problem.arrays().values(), level="lane", order=order, seed=4)
    problem.check(problem.y, problem.lse, 4)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("queries, keys", [(150, 150), (70, 200), (200, 70), (1, 3)])
@pytest.mark.share(16)
def test_masks_lengths_and_shared_heads(asked, queries, keys):
    made, problem = attention_of(3, 2, **asked), problem_of(queries, keys, **asked)
    made.interpret(*problem.arrays().values(), level="lane", order="random", seed=2)
    problem.check(problem.y, problem.lse, -(-keys // 32))
    assert "make_persistent" in [step.name for step in made.steps if step.changed]


@pytest.mark.parametrize("lost", [WaitMbarrier, Arrive])
def test_every_wait_and_arrival_is_needed(lost):
    """One workgroup has eight tiles of two and four steps: the next tile waits for what a tile releases."""
    problem = problem_of(100, 100, causal=True)
    sizes = {"B": 1, "H": 4, "H_KV": 2, "M": 100, "K2": 100}
    lanes = bind(attention_of(1, 5, causal=True).build.lanes, sizes)
    *given, _, _ = problem.arrays().values()
    for number in range(len(ops(lanes, lost))):
        without = changed(lanes, lost, number, lambda op: [])
        with pytest.raises(InterpreterError):
            for seed in range(8):
                results = poisoned(problem.y.shape, f16), poisoned(problem.lse.shape, f32)
                interpret_lanes(without, [*given, *results], sizes, "random", seed)


def test_a_result_leaves_while_the_next_tile_is_computed():
    """Consumers wait for their stores when the next results are ready, and at the end; the producer never does."""
    lanes = attention_of(3, 2, causal=True).build.lanes
    consumers, producer = [op for op in lanes.body.ops if isinstance(op, Role)]
    (tiles,) = [op for op in consumers.body.ops if isinstance(op, Loop)]
    order = [op for op in walk(tiles.body) if isinstance(op, (Wgmma, WaitTmaStores, TmaStore))]
    kinds = [type(op) for op in order if not isinstance(op, Wgmma)]
    assert isinstance(order[0], Wgmma) and kinds == [WaitTmaStores, TmaStore]
    assert not any(isinstance(op, WaitTmaStores) for op in walk(producer.body))


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize("head, queries", [(64, 192), pytest.param(128, 128, marks=pytest.mark.slow)])
def test_lanes_have_registers_for_what_stays_from_tile_to_tile(head, queries):
    blocks = {EXAMPLE["BLOCK_M"]: queries, EXAMPLE["BLOCK_K2"]: 128, EXAMPLE["K1"]: head, EXAMPLE["N"]: head}
    causal = EXAMPLE["attention"](head, is_causal=True)
    assembled = assemble_ptx(wave_compile(WaveCompileOptions(subs=blocks, target="sm_90a"), causal).asm, "sm_90a")
    assert assembled.spilled_bytes == 0 and assembled.serialized == (), assembled.log


def test_open_sizes_are_divided_by_reciprocals():
    """Tile numbers are known to be below the last one, and to fit in 32 bits."""
    lanes = attention_of(3, 2, causal=True).build.lanes
    constants = {op.result for op in ops(lanes, Const)}
    inside = [inner for op in lanes.body.ops if isinstance(op, Role) for inner in walk(op.body)]
    assert not [op for op in inside if isinstance(op, (FloorDiv, Mod)) and op.b not in constants]


# -- one order for all analyses ----------------------------------------------------------------------------------------

BLOCKS = {EXAMPLE["BLOCK_M"]: 32, EXAMPLE["BLOCK_K2"]: 16, EXAMPLE["K1"]: 64, EXAMPLE["N"]: 64}


@cache
def tiles_of_any_size(workgroups):
    """Causal attention: as the pass deals its tiles, and as its author may."""
    causal = EXAMPLE["causal"]
    written = wave([*causal.ordered("folded() >> last_first()").constraints, GridConstraint(workgroups)])
    kernels = causal, written(causal.function)
    plain, own = (wave_compile(WaveCompileOptions(subs=BLOCKS, target="numpy"), kernel).kernel for kernel in kernels)
    return MakePersistent(workgroups)(plain), own


def of_grid(kernel, rows, heads):
    """The last row is ragged."""
    return bind(kernel, {"B": heads, "M": 32 * rows - 5, "K2": 32 * rows - 5})


@pytest.mark.parametrize("workgroups", [4, 12])
def test_what_runs_is_what_the_mapping_says_and_what_an_author_may_write(workgroups):
    """Where all have as much to do; else each computes one tile, and the machine deals them."""
    by_pass, by_author = tiles_of_any_size(workgroups)
    for rows, heads in ((1, 40), (2, 9), (4, 5), (8, 3), (3, 7), (5, 7)):
        staying = even_rounds(rows, workgroups) or rows * heads
        wanted = parse("folded() >> last_first()").tiles(Grid(rows, 1, heads), staying).tolist()
        for kernel in (by_pass, by_author) if staying == workgroups else (by_pass,):
            found = checked_schedule(of_grid(kernel, rows, heads), {})
            mine = [[list(tile) for tile in found.tiles_of(w)] for w in range(found.workgroups)]
            assert mine == [wanted[w::staying] for w in range(staying)]


def test_a_simulation_sees_the_rounds():
    by_pass, by_author = (simulate(of_grid(kernel, 8, 4), "H200") for kernel in tiles_of_any_size(4))
    assert (by_pass.seconds, by_pass.hbm_read_bytes) == (by_author.seconds, by_author.hbm_read_bytes)


@pytest.mark.parametrize(
    "workgroups", [pytest.param(n, marks=[] if n == 7 else pytest.mark.slow) for n in (7, 31, 132)]
)
def test_every_tile_of_ragged_causal_grids_to_48x48_is_computed_once(workgroups):
    by_pass, _ = tiles_of_any_size(workgroups)
    sides = (1, 2, 7, 13, 48) if workgroups == 7 else range(1, 49)
    for rows in sides:
        for heads in sides:
            checked_schedule(of_grid(by_pass, rows, heads), {})
