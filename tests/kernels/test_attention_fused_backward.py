"""The backward pass of attention in one kernel of five products, in turns and by atomics, against float64."""

from functools import cache

import numpy as np
import pytest
from attention_gradient_cases import CASES, LONG, TILES, Case, Exact, run
from hopper_kernels import changed, ops
from kernels import poisoned

from tilewave import *
from tilewave.analysis.turns import want_ordered
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.launch import bind
from tilewave.ir.ops import (
    Arrive,
    Barrier,
    Loop,
    MakeMbarriers,
    PassTurn,
    WaitMbarrier,
    WaitMma,
    WaitTurn,
    Wgmma,
)
from tilewave.ir.rewrite import walk
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.kernels.attention_fused_backward import (
    Adding,
    SumBlocks,
    TurnOrder,
    attention_fused_backward_kernel,
    attention_query_gradients_kernel,
)
from tilewave.kernels.attention_gradients import attention_deltas_kernel
from tilewave.kernels.attentions import H_KV, K2, B


class Gradients:
    """The arrays of a call, with outputs that are poisoned, and sums and turns that begin with 0."""

    def __init__(self, case, dtype, adding, blocks=None, whole=False, turn_order=None):
        self.case, self.dtype, self.adding, self.blocks, self.whole = case, dtype, adding, blocks, whole
        self.turn_order = turn_order if adding is Adding.IN_TURNS else None
        self.exact, self.heads = Exact(case, dtype), Heads(case.size, case.size_v, case.sharing)
        self.row = (1, 2 * case.sharing, case.queries)
        rows = (1, 2, case.sharing, case.queries)
        self.delta, self.base2 = (poisoned(rows, f32) for _ in range(2))
        step = blocks.queries if blocks else 1
        tiles, of = -(-case.queries // step), (step * case.size,) if blocks else (case.size,)
        self.sums = np.zeros((*rows[:-1], tiles, *of), np.float32)
        self.turns = np.zeros(self.sums.shape[:4], np.int32)
        exact = self.exact
        self.found = {name: poisoned(x.shape, dtype) for name, x in (("grad_q", exact.q), ("grad_k", exact.k))}
        self.found["grad_v"] = poisoned(exact.v.shape, dtype)

    def by_head(self, x):
        return None if x is None else x.reshape(self.row + x.shape[4:])

    def by_group(self, x):
        return x if self.case.sharing > 1 else self.by_head(x)

    def of_groups(self, x):
        """Return the sums or their counters, without the axis of query heads where no heads share keys."""
        return x if self.case.sharing > 1 else x[:, :, 0]

    def kernel(self, tile):
        bias = self.dtype if self.case.biased else None
        facts = tile, self.heads, self.case.scores, f32, self.dtype, self.adding
        return attention_fused_backward_kernel(*facts, bias, self.blocks, self.whole, self.turn_order)

    def arrays(self):
        """Return the arguments of the kernel, after the statistics of rows are computed."""
        exact = self.exact
        y, lse = exact.y.astype(self.dtype.numpy), exact.lse.astype(np.float32)
        deltas = attention_deltas_kernel(self.case.size_v, f32, self.dtype, self.dtype)
        run(deltas, "numpy", *map(self.by_head, (y, exact.grad, lse, self.delta, self.base2)))
        rows = map(self.by_group, (exact.grad, exact.bias, self.base2, self.delta))
        turns = self.of_groups(self.turns) if self.adding is Adding.IN_TURNS else None
        outputs = self.found["grad_k"], self.found["grad_v"], self.of_groups(self.sums), turns
        return [x for x in (self.by_group(exact.q), exact.k, exact.v, *rows, *outputs) if x is not None]

    def check(self, way):
        facts = self.case.size, self.case.scores.scale, f32, self.dtype
        sums = self.sums.reshape(self.row[:-1] + self.sums.shape[3:])
        run(attention_query_gradients_kernel(*facts, self.blocks), way, sums, self.by_head(self.found["grad_q"]))
        for name, x in self.found.items():
            self.exact.check(name, x)


EMULATED = ("both sides", "capped")
"""The cases that are emulated on AMD chips, which takes long: one with windows, and one with shared heads."""


def cases():
    for way in TILES:
        for name in EMULATED if way in ("gfx942", "gfx950") else CASES:
            yield from ((way, name, adding) for adding in Adding if adding is Adding.IN_TURNS or name == "plain")


@pytest.mark.share(4)
@pytest.mark.parametrize(("way", "name", "adding"), list(cases()))
def test_gradients(way, name, adding):
    cases, dtype = (LONG, bf16 if name == "causal" else f16) if "sm_90a" in way else (CASES, f16)
    made = Gradients(cases[name], dtype, adding)
    run(made.kernel(TILES[way]), way, *made.arrays())
    made.check("numpy" if "sm_90a" in way else way)


def test_a_window_leaves_out_blocks_of_keys_and_turns_begin_with_the_first_that_is_left():
    case = Case(64, 96, Scores(0.2, causal=True, window=9))
    made = Gradients(case, f16, Adding.IN_TURNS)
    run(made.kernel(AttentionTile(16, 16)), "numpy", *made.arrays())
    made.check("numpy")
    assert made.turns[0, 0, 0, ::16].tolist() == [2, 2, 2, 2]


# orders of workgroups ----------------------------------------------------------------------------------------------

SEEN = [Scores(0.1), Scores(0.1, causal=True), Scores(0.1, causal=True, window=9), Scores(0.1, window=40)]
ORDERS = [TurnOrder((H_KV, K2, B), 2), TurnOrder((B, K2, H_KV), None)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scores", SEEN)
@pytest.mark.parametrize("sharing", [1, 2])
def test_turns_ascend_with_workgroups_for_all_sizes(scores, order, sharing):
    facts = AttentionTile(16, 32), Heads(32, 16, sharing), scores, f32, f16, Adding.IN_TURNS
    made = attention_fused_backward_kernel(*facts, None, SumBlocks(16), False, order).compile(target="numpy")
    for m, k2 in ((64, 64), (100, 260), (260, 100), (1, 70), (33, 1), (96, 320)):
        sizes = {"B": 3, "H_KV": 5, "M": m, "K2": k2, "T": -(-m // 16), **({"G": sharing} if sharing > 1 else {})}
        want_ordered(bind(made.kernel, sizes), sizes)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scores", SEEN)
def test_gradients_in_an_order_of_heads(scores, order):
    made = Gradients(Case(64, 96, scores), f16, Adding.IN_TURNS, turn_order=order)
    run(made.kernel(AttentionTile(16, 16)), "numpy", *made.arrays())
    made.check("numpy")


def test_as_many_heads_at_a_time_as_half_of_l2_holds():
    """On an H200, of 60 MiB: a head of 4096 queries of 128 elements takes 4 MiB, and sixteen are two equal groups."""
    heads = Heads(128, 128)
    assert TurnOrder.of("sm_90a", heads, 4, 16, 4096, f16) == TurnOrder((H_KV, K2, B), 8)
    assert TurnOrder.of("sm_90a", heads, 1, 16, 16384, f16) == TurnOrder((H_KV, K2, B), 2)
    assert TurnOrder.of("sm_90a", heads, 8, 2, 4096, f16) == TurnOrder((B, K2, H_KV), None)
    assert TurnOrder.of("sm_90a", Heads(128, 128, 4), 1, 4, 4096, f16) == TurnOrder((H_KV, K2, B), 2)
    assert TurnOrder.of("gfx942", heads, 4, 16, 4096, f16) is None


# on Hopper ---------------------------------------------------------------------------------------------------------

HEADS = Case(100, 260, Scores(0.1, causal=True), size=128, size_v=128)


@cache
def hopper(adding=Adding.IN_TURNS):
    made = Gradients(HEADS, f16, adding)
    sizes = {sym.B: 1, sym.H_KV: 2, sym.M: HEADS.queries, sym.K2: HEADS.keys}
    return made, made.kernel(AttentionTile(64, 128, 4)).compile(target="sm_90a", subs=sizes)


WHOLE = Case(320, 256, Scores(0.1, causal=True), size=128, size_v=128)
BLOCKS = SumBlocks(64)


SHORT = Case(320, 256, Scores(0.1), size=64, size_v=64)


@pytest.mark.parametrize("adding", Adding)
@pytest.mark.parametrize(
    ("case", "whole"), [(HEADS, False), (WHOLE, True), (SHORT, True)], ids=["ragged", "whole", "heads of 64"]
)
def test_sums_in_blocks(case, whole, adding):
    """Sizes are dynamic: tiles that are whole are assumed to be."""
    made = Gradients(case, bf16, adding, BLOCKS, whole, TurnOrder((H_KV, K2, B), 1))
    run(made.kernel(AttentionTile(64, 128, 4)), "lanes of sm_90a", *made.arrays())
    made.check("numpy")


SHARED_HEADS = Case(192, 256, Scores(0.1, causal=True, window=70), sharing=2, size=64, size_v=64)


def test_heads_that_share_keys_are_added_with_windows_in_descending_turns():
    made = Gradients(SHARED_HEADS, f16, Adding.IN_TURNS, BLOCKS, True, TurnOrder((H_KV, K2, B), None))
    run(made.kernel(AttentionTile(64, 128, 4)), "lanes of sm_90a", *made.arrays())
    made.check("numpy")
    assert made.turns[0, 0].tolist() == [[1, 2, 2]] * 2


def outputs(lanes, seed=0):
    made = Gradients(HEADS, f16, Adding.IN_TURNS)
    interpret_lanes(lanes, made.arrays(), {}, "random", seed)
    return made


def test_two_warpgroups_share_each_product_and_keys_are_loaded_once():
    _, compiled = hopper()
    assert {op.shape[:2] for op in ops(compiled.build.lanes, Wgmma)} == {(64, 64), (64, 128)}
    assert compiled.resources.loads == ()
    assert compiled.resources.waves == (12, 1)


def test_heads_of_128_are_right_with_the_same_bits_in_every_order():
    _, compiled = hopper()
    found = [outputs(compiled.build.lanes, seed) for seed in range(2)]
    assert found[0].sums.tobytes() == found[1].sums.tobytes()
    found[0].check("numpy")


@pytest.mark.parametrize(
    ("cls", "said"),
    [(WaitTurn, "without a turn|passes the turn before it knows of that"), (PassTurn, "has not passed")],
)
def test_a_deleted_turn_is_found(cls, said):
    lanes = hopper()[1].build.lanes
    for which in range(len(ops(lanes, cls))):
        with pytest.raises(InterpreterError, match=said):
            outputs(changed(lanes, cls, which, lambda op: []))


def test_sums_of_queries_are_added_while_those_of_keys_are_multiplied():
    """The gradients of the queries of one step are multiplied in the one after the next."""
    kernel = Gradients(WHOLE, f16, Adding.ATOMICALLY, BLOCKS, whole=True).kernel(AttentionTile(64, 128, 4))
    lanes = kernel.compile(target="sm_90a").build.lanes
    (loop,) = [op for op in ops(lanes, Loop) if any(isinstance(x, WaitMma) for x in op.body.ops)]
    order = [op for op in walk(loop.body) if isinstance(op, (Wgmma, WaitMma)) or getattr(op, "combine", "")]
    names = [type(op).__name__ for op in order]
    assert names[:3] == ["WgmmaShared", "WgmmaRegisters", "WgmmaRegisters"]
    assert names[3:5] == ["WaitMma", "Store"]
    assert order[3].sums == order[0].result and order[3].pending == 2
    assert names[5:] == ["WaitMma", "WaitMma", "WgmmaShared", "WgmmaShared", "WaitMma", "WaitMma"]
    assert not [op for op in ops(lanes, Barrier) if op.waves == 8]


def exchanges(lanes, cls):
    """Return which of the waits or arrivals are those of the exchange of operands."""
    (full,) = {op.mbarriers for op in ops(lanes, Arrive) if op.stored}
    made = [op.result for op in ops(lanes, MakeMbarriers)]
    both = full, made[made.index(full) + 1]
    return [i for i, op in enumerate(ops(lanes, cls)) if op.mbarriers in both]


FOUR_STEPS = Case(256, 128, Scores(0.1), size=128, size_v=128)


@cache
def four_steps():
    made = Gradients(FOUR_STEPS, f16, Adding.ATOMICALLY, BLOCKS, whole=True)
    sizes = {sym.B: 1, sym.H_KV: 2, sym.M: FOUR_STEPS.queries, sym.K2: FOUR_STEPS.keys, sym.T: 4}
    return made.kernel(AttentionTile(64, 128, 4)).compile(target="sm_90a", subs=sizes).build.lanes


@pytest.mark.share(2)
@pytest.mark.parametrize("cls", [WaitMbarrier, Arrive])
def test_a_deleted_wait_or_arrival_of_the_exchange_is_found(cls):
    """But for the waits for a free stage before the first two exchanges of a workgroup, for the wait for the last part
    but one, which what the others do before the stage is free again implies, and for the arrivals after the last two
    products, which only another tile of the workgroup would wait for."""
    lanes = four_steps()
    those = exchanges(lanes, cls)
    missed = [which for which in those if not is_found(changed(lanes, cls, which, lambda op: []))]
    assert missed == ([those[0], those[1], those[-2]] if cls is WaitMbarrier else those[-2:])


def is_found(loose):
    for seed in range(4):
        made = Gradients(FOUR_STEPS, f16, Adding.ATOMICALLY, BLOCKS, whole=True)
        try:
            interpret_lanes(loose, made.arrays(), {}, "random", seed)
        except InterpreterError:
            return True
    return False
