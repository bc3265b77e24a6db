"""Attention as authors of Wave kernels type it, on every target, against float64 within a computed bound.

Rows that see no key at all are what the kernel says: every score is as far below the others, so their weights are
equal or nearly so, and the result is a number; nothing more is promised of them.
"""

from collections import Counter
from itertools import product

import decode_attention as decode
import grouped_attention as grouped
import numpy as np
import pytest
from attention_kernels import *
from sampled import some_of

from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import (
    Barrier,
    Copy,
    CopyAsync,
    Gather,
    Loop,
    Mma,
    Read,
    Reduce,
    Role,
    Shuffle,
    Wgmma,
    Write,
)
from tilewave.ir.rewrite import rewrite, walk

pytestmark = pytest.mark.share(12)

CHIPS = ("gfx942", "gfx950", "sm_90a")
TARGETS = ("numpy", "cpu", *CHIPS)
ORDERS = ("in turn", "backwards", "random")
SCHEDULES = (SchedulingType.NONE, SchedulingType.PREFETCH)
KINDS = {
    "plain": Attention(),
    "causal": Attention(causal=True),
    "window": Attention(causal=True, window=9),
    "transposed": Attention(v_transposed=True, dtype=bf16),
    "grouped": Attention(ratio=2, causal=True, out=f16),
    "grouped, transposed": Attention(ratio=2, v_transposed=True, dtype=bf16, out=bf16),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def made_for(target, a, shape, tile=(64, 64, 32), sizes_open=False, **options):
    sizes = {K1: shape.head} if sizes_open else shape.sizes(a)
    options = WaveCompileOptions(subs={**blocks(*tile), **sizes}, target=target, **options)
    return wave_compile(options, attention(shape.head, a))


def results(made, a, shape, arrays):
    """From every way in which a kernel for this target can be run here."""

    def run(how, **options):
        c = shape.output(a)
        how(*arrays, c, **options)
        return c

    if made.target in CHIPS:
        yield from (run(made.interpret, level="lane", order=order) for order in some_of(ORDERS))
    if made.target.startswith("gfx"):
        yield run(made.emulate)
    elif made.target == "sm_90a":
        assert made.asm
    else:
        yield run(made if made.target == "cpu" else made.interpret)


def verify(made, a, shape, block_k2=32):
    arrays = shape.arrays(a)
    for c in results(made, a, shape, arrays):
        check(a, arrays, c, block_k2)


@pytest.mark.parametrize("target", TARGETS)
def test_no_keys_at_all_give_no_numbers_and_no_findings(target):
    """0 / 0: queries are loaded before the loop over keys, and never read."""
    a, shape = Attention(causal=True), Shape(1, 70, 0, 16)
    made = made_for(target, a, Shape(1, 70, 1, 16), (64, 16, 32), sizes_open=True)
    for c in results(made, a, shape, shape.arrays(a)):
        assert np.isnan(c).all()


@pytest.mark.share(12)
@every_kind
@pytest.mark.parametrize("target", TARGETS)
def test_attention_of_ragged_sequences(target, kind):
    shape = Shape(2, 17, 40, 24)
    schedule = SCHEDULES[list(KINDS).index(kind) % 2]
    verify(made_for(target, KINDS[kind], shape, (64, 32, 32), schedule=schedule), KINDS[kind], shape)


@every_kind
@pytest.mark.parametrize("shape", [(1, 1, 40), (17, 129, 64), (100, 17, 80), (129, 100, 128), (40, 64, 40)], ids=str)
def test_sizes_in_the_interpreter(shape, kind):
    queries, keys, head = shape
    shape = Shape(2, queries, keys, head)
    verify(made_for("numpy", KINDS[kind], shape), KINDS[kind], shape)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_stay_open(target):
    a = Attention(causal=True)
    made = made_for(target, a, Shape(1, 1, 1, 24), (64, 32, 32), sizes_open=True, schedule=SCHEDULES[1])
    for queries, keys in ((1, 1), (20, 33), (33, 20)):
        verify(made, a, Shape(1, queries, keys, 24))


def test_the_bound_tells_right_from_wrong():
    """What one lost key, one key too many, or a maximum that is not carried would change is more than the bound."""
    a, shape = Attention(causal=True), Shape(1, 40, 40, 24)
    q, k, v = shape.arrays(a)
    c = shape.output(a)
    made_for("numpy", a, shape, (64, 32, 32)).interpret(q, k, v, c)
    check(a, (q, k, v), c, 32)
    for wrong in ((q, k, v * np.float16(1.01)), (q, np.roll(k, 1, axis=1), v), (q * np.float16(1.01), k, v)):
        with pytest.raises(AssertionError, match="too much"):
            check(a, wrong, c, 32)
    with pytest.raises(AssertionError, match="too much"):
        check(Attention(), (q, k, v), c, 32)


@pytest.mark.parametrize("target", ["numpy", "gfx942", "sm_90a"])
def test_rows_that_see_nothing_are_numbers(target):
    """The window of the last rows is after the last key."""
    a, shape = Attention(causal=True, window=5), Shape(1, 60, 20, 24)
    assert masked(a, 60, 20).all(axis=1).sum() == 60 - 20 - 5
    verify(made_for(target, a, shape, (64, 32, 32)), a, shape)


@pytest.mark.parametrize("target", TARGETS)
def test_large_scores(target):
    """Scores that grow from block to block: every step shrinks what was summed before to nothing."""
    a, shape = Attention(out=f32), Shape(1, 17, 70, 24)
    q, k, v = shape.arrays(a)
    k = (k * np.linspace(1, 60, 70)[:, None]).astype(np.float16)
    made = made_for(target, a, shape, (64, 32, 32))
    for c in results(made, a, shape, (q, k, v)):
        check(a, (q, k, v), c, 32)


# -- what passes make of it -------------------------------------------------------------------------------------------


def inside_the_loop(made, pass_name):
    (loop,) = (op for op in walk(made.ir(pass_name).body) if isinstance(op, Loop))
    return list(walk(loop.body))


@pytest.mark.parametrize("head, kinds", [*product((64, 128), ("16x16x16", "32x32x8"))])
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_scores_become_an_operand_in_registers(target, head, kinds):
    """Rows, maxima and sums have the same layout in both products: lanes exchange only what they reduce."""
    asked = (MMAType[f"F32_{kinds}_F16"],) * 2
    a, shape = Attention(kinds=asked, v_transposed=True), Shape(1, 128, 512, head)  # loops of few steps are unrolled
    made = made_for(target, a, shape, (128, head, 64))
    ops = inside_the_loop(made, "distribute_lanes")
    assert not [op for op in ops if isinstance(op, Shuffle)]
    kinds_inside = Counter(type(op) for op in inside_the_loop(made, "convert_layouts"))
    assert kinds_inside[Write] + kinds_inside[CopyAsync] == 2  # k and v
    counted = made.loop_statistics
    assert counted.spills == counted.bank_conflict_cycles == 0
    assert counted.instructions <= MOST[target, kinds, head] * counted.matrix_instructions


MOST = {
    ("gfx942", "16x16x16", 64): 10.5,
    ("gfx942", "16x16x16", 128): 6.5,
    ("gfx942", "32x32x8", 64): 18,
    ("gfx942", "32x32x8", 128): 10.5,
    ("gfx950", "16x16x16", 64): 9,
    ("gfx950", "16x16x16", 128): 5.5,
    ("gfx950", "32x32x8", 64): 14.5,
    ("gfx950", "32x32x8", 128): 9,
}
"""Instructions of the loop for each matrix instruction; one exchange more would show."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waves_of_sm_90a_reduce_by_themselves(schedule):
    """No wave waits for another in a step: waves wait for copies by mbarriers, and weights stay in registers."""
    a, shape = Attention(), Shape(1, 128, 256, 64)
    made = made_for("sm_90a", a, shape, (128, 64, 64), schedule=schedule)
    ops = inside_the_loop(made, "place_barriers")
    assert sum(isinstance(op, Reduce) for op in ops) == 2
    assert {op.memory.name for op in ops if isinstance(op, Copy)} == {"k", "v"}
    assert not any(isinstance(op, Read) and op.memory.type.space == "global" for op in ops)
    consumers, _ = (op for op in made.ir().body.ops if isinstance(op, Role))
    steps = [
        op for op in walk(consumers.body) if isinstance(op, Loop) and any(isinstance(p, Wgmma) for p in walk(op.body))
    ]
    assert steps and not any(isinstance(op, Barrier) for step in steps for op in walk(step.body))
    assert made.resources.waves == (12, 1)


@pytest.mark.skipif(not ptxas(), reason="needs NVIDIA's assembler")
@pytest.mark.parametrize("head, schedule", [*product((64, 128), SCHEDULES)])
def test_no_register_is_spilled_on_sm_90a(head, schedule):
    a, shape = Attention(causal=True, out=f16), Shape(1, 256, 256, head)
    made = made_for("sm_90a", a, shape, (128, head, 64), schedule=schedule)
    assembled = assemble_ptx(made.asm, "sm_90a")
    assert assembled.spilled_bytes == 0 and not assembled.serialized


@pytest.mark.parametrize("kind", ["grouped", "grouped, transposed"])
def test_heads_that_share_keys_are_windows(kind):
    """i // 2 is one number where a tile has one head: nothing is gathered."""
    made = made_for("numpy", KINDS[kind], Shape(4, 40, 40, 24))
    assert not [op for op in walk(made.kernel.body) if isinstance(op, Gather)]
    assert sum(isinstance(op, Mma) for op in walk(made.kernel.body)) == 2


# -- more of everything -----------------------------------------------------------------------------------------------

SHAPES = [(1, 1), (17, 100), (100, 17), (129, 129), (64, 128)]
TILES = [(64, 64, 32), (128, 128, 64), (64, 32, 128), (64, 80, 48)]


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sizes_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("head", [40, 64, 80, 128])
@pytest.mark.parametrize("target", TARGETS)
def test_every_size(target, head, kind, sizes_open):
    a = KINDS[kind]
    for n, (queries, keys) in enumerate(SHAPES):
        tile = TILES[(n + head) % len(TILES)]
        shape = Shape(2, queries, keys, head)
        made = made_for(target, a, shape, tile, sizes_open, schedule=SCHEDULES[(n + head // 8) % 2])
        verify(made, a, shape, tile[2])


@pytest.mark.slow
@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("names", [*product(("16x16x16", "32x32x8"), repeat=2)], ids="-".join)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_instruction(target, names, waves):
    a = Attention(kinds=tuple(MMAType[f"F32_{name}_F16"] for name in names), waves=waves, causal=True)
    for tile in TILES:
        shape = Shape(1, 130, 150, 40)
        verify(made_for(target, a, shape, tile), a, shape, tile[2])


# -- heads in groups, by Wave's own words ------------------------------------------------------------------------------


def by_heads(x):
    """[batch, sequence, head, element] as one list of heads."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(-1, x.shape[1], x.shape[3])


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("target", TARGETS)
def test_four_dims_of_a_grid_and_one_that_goes_with_another(target, causal):
    a, batch, heads, queries, keys, head = Attention(causal=causal, ratio=2), 2, 4, 70, 70, 24
    rng = np.random.default_rng(3)
    q, k, v = (random_array(rng, (batch, n, h, head), f16) for n, h in ((queries, 4), (keys, 2), (keys, 2)))
    subs = {**grouped.blocks(64, 32, 32), **grouped.sizes(batch, heads, 2, queries, keys, head)}
    made = wave_compile(WaveCompileOptions(subs=subs, target=target), grouped.grouped_attention(head, 2, causal))
    whole = Shape(batch * heads, queries, keys, head)
    ways = {"numpy": [made.interpret], "cpu": [made], "sm_90a": []}.get(target, [made.emulate])
    lanes = [lambda *arrays: made.interpret(*arrays, level="lane", order="random")] if target in CHIPS else []
    for run in (*ways, *lanes):
        c = poisoned((batch, queries, heads, head), f32)
        run(q, k, v, c)
        check(a, (by_heads(q), by_heads(k), by_heads(v)), by_heads(c), 32)
    assert whole.heads == made.kernel.workgroups // 2


@pytest.mark.parametrize("order", ["linear()", "snake(2)", "xcd_contiguous(2)"])
@pytest.mark.parametrize("target", ["numpy", "cpu", "sm_90a"])
def test_a_loop_is_as_short_as_its_author_says(target, order):
    """64 queries see 2 blocks of 32 keys: later keys are not read, for any order of tiles."""
    head, subs = 24, {**grouped.blocks(64, 32, 16), **grouped.sizes(1, 1, 1, 130, 130, 24)}
    q, k, v = (random_array(np.random.default_rng(n), (1, 130, 1, head), f16) for n in range(3))
    k[:, 64:], v[:, 64:] = np.nan, np.nan
    for causal in (False, True):
        c = poisoned((1, 130, 1, head), f32)
        kernel = grouped.grouped_attention(head, 1, causal, WorkgroupMapping(order))
        made = wave_compile(WaveCompileOptions(subs=subs, target=target), kernel)
        (made if target == "cpu" else made.interpret)(q, k, v, c, **({"level": "lane"} if target == "sm_90a" else {}))
        assert np.isnan(c[:, 64:]).all() and np.isnan(c[:, :64]).all() != causal
    firsts = Attention(causal=True), tuple(by_heads(x[:, :64]) for x in (q, k, v))
    check(*firsts, by_heads(c[:, :64]), 32)


# -- barriers ----------------------------------------------------------------------------------------------------------


def without_barrier(kernel, number):
    """The kernel without one of its barriers."""
    count = iter(range(1000))
    return rewrite(kernel, lambda op: [] if isinstance(op, Barrier) and next(count) == number else None)


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_every_barrier_is_needed(target):
    """Whichever is missing, lanes in some order read what is not there yet, or what is there no more."""
    a, shape = Attention(causal=True), Shape(1, 64, 64, 32)
    made = made_for(target, a, shape, (64, 32, 32))
    kernel = made.ir()
    count = sum(isinstance(op, Barrier) for op in walk(kernel.body))
    assert count >= 1
    for number in range(count):
        arrays = [*shape.arrays(a), shape.output(a)]
        with pytest.raises(InterpreterError):
            interpret_lanes(without_barrier(kernel, number), arrays, {})


# -- decode ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 16])
@pytest.mark.parametrize("target", TARGETS)
def test_keys_split_among_workgroups(target, queries):
    heads, parts, keys, head = 2, 3, 40, 24
    a, shape = Attention(), Shape(heads, queries, parts * keys, head)
    q, k, v = shape.arrays(a)
    split = [x.reshape(heads, parts, keys, head) for x in (k, v)]
    subs = {decode.BLOCK_M: 16, decode.BLOCK_N: 32, decode.BLOCK_K2: 32, decode.U: parts, K2: keys, B: heads}
    subs |= {M: queries, N: head, K1: head}
    first, second = (
        wave_compile(WaveCompileOptions(subs=subs, target=target), kernel)
        for kernel in (decode.parts(head), decode.joined())
    )

    def run(made, *arrays):
        if target in CHIPS:
            made.interpret(*arrays, level="lane", order="random")
        else:
            (made if target == "cpu" else made.interpret)(*arrays)

    found, weight = poisoned((parts, heads, queries, head), f32), poisoned((parts, heads, queries), f32)
    c = shape.output(a)
    run(first, q, *split, found, weight)
    run(second, found, weight, c)
    check(a, (q, k, v), c, 8)  # as if it took so many steps: each part's, and those that join them
