"""Ping-pong: consumer warpgroups that end their tiles one after the other; results, and what a missing arrival
causes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import changed
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, poisoned
from lane_runs import ORDERS
from tunings import SPLITS

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.build import Builder, Number
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Arrive, HandOver, Load, Loop, Role, Store, WaitMbarrier, Wgmma
from tilewave.ir.rewrite import names, walk
from tilewave.kernels import error_bound, grouped
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid.expand_ragged_tiles import expand_ragged_tiles
from tilewave.passes.schedule import ping_pong
from tilewave.passes.schedule.ping_pong import PingPong
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name, run

BIASED = ProductForm(f16, f32, bias=f32)
TILE, WIDE, WIDER = ({BLOCK_M: 128, BLOCK_N: columns, BLOCK_K: 16} for columns in (32, 64, 128))
SHAPES = {
    "one tile": ((128, 32, 96), 1),
    "tiles of several steps": ((256, 96, 80), 1),
    "tiles of one step": ((256, 160, 16), 1),
    "tiles of two steps": ((256, 160, 32), 1),
    "hanging over": ((200, 50, 72), 2),
    "in clusters, an odd number of tiles": ((384, 64, 48), 2),
    "a last round in parts": ((384, 32, 192), 2),
}
CLUSTERED, _ = SHAPES["in clusters, an odd number of tiles"]


@cache
def tiles(form, shape):
    tile = WIDE if shape == CLUSTERED else TILE  # halves of a narrower one are too small to be loaded by one CTA each
    return tiles_of(form, shape, tile)


def tiles_of(form, shape, tile):
    subs = {**dict(zip((M, N, K), shape, strict=True)), **tile}
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), product_kernel(form)).kernel


def in_turns(shape, workgroups, stages=4, lead=3, form=BIASED):
    passes = lists.hopper(SM_90A, Places(), stages, workgroups)
    chosen = {
        "ping_pong": {"lead": lead},
        "stream_k": {"costs": replace(SPLITS, hand_over_bytes=1)},
    }  # small tiles are cut too
    made = [replace(p, **chosen[pass_name(p)]) if pass_name(p) in chosen else p for p in passes]
    return run(tiles(form, shape), made)[0]


def is_ping_pong(kernel):
    return any(v.name == "passed" for op in walk(kernel.body) for v in op.results)


def arrays(shape):
    rng = np.random.default_rng(1)
    m, n, k = shape
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    return a, b, rng.standard_normal(n).astype(np.float32), poisoned((m, n), f32)


def hold(c, a, b, bias):
    """Against float64; the bias is one more product and sum."""
    want, magnitude = (x.astype(float) @ y.astype(float).T for x, y in ((a, b), (abs(a), abs(b))))
    allowed = error_bound(want + bias, magnitude + abs(bias), a.shape[1] + 1, f16, f32)
    assert (abs(c - (want + bias)) <= allowed).all()


def check(kernel, shape, order="random", seed=0):
    a, b, bias, c = arrays(shape)
    interpret_lanes(kernel, [a, b, bias, c], {}, order, seed)
    hold(c, a, b, bias)


@pytest.mark.share(8)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
def test_results_are_right_in_any_order(name, order):
    shape, workgroups = SHAPES[name]
    kernel = in_turns(shape, workgroups)
    assert is_ping_pong(kernel) == (shape[2] > TILE[BLOCK_K])  # a single step is no loop
    check(kernel, shape, order, seed=len(name))


def test_the_shapes_are_what_their_names_say():
    made = {name: in_turns(*SHAPES[name]) for name in SHAPES}
    assert made["in clusters, an odd number of tiles"].cluster == 2
    assert any(isinstance(op, HandOver) for op in walk(made["a last round in parts"].body))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("lead", [1, 2, 5])
def test_a_lead_is_shorter_than_the_ring(stages, lead):
    shape = (256, 64, 112)
    kernel = in_turns(shape, 1, stages, lead)
    assert is_ping_pong(kernel)
    check(kernel, shape)


def test_a_ring_of_one_stage_leaves_no_room():
    assert not is_ping_pong(in_turns((256, 64, 112), 1, stages=1))


def test_open_sizes():
    made = wave_compile(WaveCompileOptions(subs=TILE, target="sm_90a"), product_kernel(BIASED))
    assert is_ping_pong(made.ir())
    for shape in ((256, 64, 48), (200, 40, 16)):
        a, b, bias, c = arrays(shape)
        made.interpret(a, b, bias, c, level="lane", order="random")
        hold(c, a, b, bias)


def group_of(role):
    return role.first // 4


def test_the_first_group_is_done_before_the_second_ends():
    """In every tile the second group's last steps wait for an arrival in the last steps of the first group."""
    kernel = in_turns((256, 96, 80), 1)
    (turns,) = (op for op in walk(kernel.body) if isinstance(op, Loop) and any(is_product_loop(x) for x in op.body.ops))
    first, last = (op for op in turns.body.ops if is_product_loop(op))
    between = turns.body.ops[turns.body.ops.index(first) : turns.body.ops.index(last)]
    (waits,) = (op for op in between if isinstance(op, Role))
    assert group_of(waits) == 1 and isinstance(waits.body.ops[0], WaitMbarrier)
    (told,) = (op for op in walk(last.body) if isinstance(op, Role))
    assert group_of(told) == 0 and isinstance(told.body.ops[0], Arrive)


def is_product_loop(op):
    return isinstance(op, Loop) and any(isinstance(x, Wgmma) for x in op.body.ops)


def test_a_bias_is_loaded_in_front_of_the_last_steps():
    kernel = in_turns((256, 96, 80), 1)
    (turns,) = (op for op in walk(kernel.body) if isinstance(op, Loop) and any(is_product_loop(x) for x in op.body.ops))
    kinds = ["loop" if is_product_loop(op) else "load" for op in turns.body.ops if isinstance(op, (Loop, Load))]
    assert kinds == ["loop", "load", "loop"]


def test_what_lanes_have_no_room_for_is_loaded_behind_the_steps():
    kernel, _ = run(
        tiles(BIASED, (256, 96, 80)),
        [
            replace(p, most_loaded_bytes=8) if isinstance(p, PingPong) else p
            for p in lists.hopper(SM_90A, Places(), 4, 1)
        ],
    )
    (turns,) = (op for op in walk(kernel.body) if isinstance(op, Loop) and any(is_product_loop(x) for x in op.body.ops))
    kinds = ["loop" if is_product_loop(op) else "load" for op in turns.body.ops if isinstance(op, (Loop, Load))]
    assert kinds == ["loop", "loop", "load"]
    check(kernel, (256, 96, 80))


@pytest.mark.parametrize("order", ORDERS)
def test_a_residual_comes_part_by_part(order):
    """Two of four slices are loaded before the last steps, and two when the first ones are stored."""
    shape = (256, 128, 32)
    form = ProductForm(f16, f32, residual=f32)
    passes = lists.hopper(SM_90A, Places(), 4, 1)
    few = [replace(p, most_loaded_bytes=128) if isinstance(p, PingPong) else p for p in passes]
    kernel, _ = run(tiles_of(form, shape, WIDER), few)
    (turns,) = (op for op in walk(kernel.body) if isinstance(op, Loop) and any(is_product_loop(x) for x in op.body.ops))
    kinds = [KINDS[type(op)] for op in turns.body.ops if type(op) in KINDS]
    assert "".join(kinds) == "lLLlSSLLSS"
    a, b, _, c = arrays(shape)
    residual = np.random.default_rng(2).standard_normal(shape[:2]).astype(np.float32)
    interpret_lanes(kernel, [a, b, residual, c], {}, order, 1)
    want, magnitude = (x.astype(float) @ y.astype(float).T for x, y in ((a, b), (abs(a), abs(b))))
    assert (abs(c - (want + residual)) <= error_bound(want + residual, magnitude + abs(residual), 33, f16, f32)).all()


KINDS = {Loop: "l", Load: "L", Store: "S"}


def test_a_product_that_is_only_stored_keeps_its_code():
    passes = lists.hopper(SM_90A, Places(), 4, 1)
    without = [p for p in passes if not isinstance(p, PingPong)]
    bare = tiles(ProductForm(f16, f16), (256, 96, 80))
    assert run(bare, passes)[0] == run(bare, without)[0]


def test_one_group_has_nobody_to_wait_for():
    small = tiles_of(BIASED, (128, 64, 64), {**TILE, BLOCK_M: 64})
    assert not is_ping_pong(run(small, lists.hopper(SM_90A, Places(), 4, 1))[0])


# -- what is left out or wrong is found


def passing(kernel, kind):
    """Which op of that kind it is that has to do with the order of groups."""
    found = [op for op in walk(kernel.body) if isinstance(op, kind)]
    return next(i for i, op in enumerate(found) if op.mbarriers.name == "passed")


@pytest.mark.parametrize("order", ORDERS)
def test_a_group_that_does_not_tell_is_found(order):
    kernel = in_turns((256, 96, 80), 1)
    silent = changed(kernel, Arrive, passing(kernel, Arrive), lambda op: [])
    with pytest.raises(InterpreterError, match="no wave of workgroup 0 can go on"):
        check(silent, (256, 96, 80), order)


@pytest.mark.parametrize("order", ["in turn", "random"])
def test_a_wrong_phase_is_found(order):
    """The second group waits for a parity that no tile completes; only if it is slow, it finds it completed."""
    shape = (256, 320, 32)
    kernel = in_turns(shape, 1)

    def other(op):
        builder = Builder(names(kernel), locate=lambda: op.loc)
        turned = (1 - Number(builder, op.parity)).value
        return [*builder.ops, replace(op, parity=turned)]

    with pytest.raises(InterpreterError, match="no wave of workgroup 0 can go on"):
        check(changed(kernel, WaitMbarrier, passing(kernel, WaitMbarrier), other), shape, order)


def test_with_one_signal_for_all_tiles_a_group_could_be_two_phases_ahead(monkeypatch):
    """Tiles of two steps: the first group is at the last of the next one before the second has looked."""
    monkeypatch.setattr(ping_pong, "mbarriers_for", lambda stages: 1)
    shape = (256, 160, 32)
    with pytest.raises(InterpreterError, match="no wave of workgroup 0 can go on"):
        for seed in range(20):
            check(in_turns(shape, 1), shape, seed=seed)


@cache
def of_groups():
    """Tiles of groups of rows, some of them without any, for two workgroups."""
    counts = [3, 0, 34, 0, 0, 17, 1, *[0] * 30, 5]
    sizes = {grouped.T: sum(counts), grouped.G: len(counts), grouped.N: 256, grouped.K: 192}
    form = grouped.GroupedForm(f16, f32, i32, activation="relu")
    tiles = grouped.grouped_product_kernel(grouped.GroupedTile(16, 128, 64), form).compile("numpy", sizes).kernel
    return counts, run(tiles, [expand_ragged_tiles, *lists.hopper(SM_90A, Places(), 4, 2)])[0]


@pytest.mark.share(3)
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_that_are_skipped_take_no_turn(order):
    counts, kernel = of_groups()
    assert is_ping_pong(kernel)
    rng, ends = np.random.default_rng(1), np.cumsum(counts).astype(np.int32)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((sum(counts), 192), (len(counts), 256, 192)))
    y = poisoned((sum(counts), 256), f32)
    interpret_lanes(kernel, [x, w, ends, y], {}, order, 0)
    group = np.repeat(np.arange(len(counts)), counts)
    wide = x.astype(float), w.astype(float)
    want, magnitude = (np.einsum("tk,tnk->tn", a, b[group]) for a, b in (wide, map(abs, wide)))
    assert (abs(y - want.clip(0)) <= error_bound(want, magnitude, 192, f16, f32)).all()
