"""The second of two chained products is made one step later, while the wave computes with the first one's sums."""

from dataclasses import replace

import pytest
from attention_kernels import Attention, check
from hopper_kernels import changed, ops, specialized, tiles
from kernels import poisoned
from lane_runs import ORDERS
from seeds import SEEDS
from test_hopper_attention import HEAD, arrays, compiled

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Arrive, Loop, WaitMma, Wgmma, Yield
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import VerifyError, verify
from tilewave.passes.schedule.delay_dependent_mma import delay_dependent_mma


def before(made):
    """The kernel as the pass got it."""
    steps = made.build.steps
    at = next(i for i, step in enumerate(steps) if step.name == "delay_dependent_mma")
    return steps[at].before


def outputs(lanes, given, queries, seed=0):
    out = poisoned((2, queries, HEAD), Attention().out)
    interpret_lanes(lanes, [*given, out], {}, "random", seed)
    return out


@pytest.mark.share(4)
@pytest.mark.parametrize("keys", [8, 64, 72, 136, 200], ids="{} keys".format)
def test_no_bit_changes(keys):
    a, sizes = Attention(causal=keys == 136), (2, 72, keys)
    made, given = compiled(a, sizes=sizes), arrays(a, sizes=sizes)
    old = before(made)
    found, was = outputs(delay_dependent_mma(old), given, 72), outputs(old, given, 72)
    assert found.tobytes() == was.tobytes()
    check(a, given, found, HEAD)


@pytest.mark.parametrize("order", ORDERS)
def test_three_groups_of_waves_share_192_rows(order):
    a, sizes = Attention(causal=True), (2, 200, 136)
    made, given = compiled(a, block_m=192, sizes=sizes), arrays(a, sizes=sizes)
    assert made.build.lanes.waves == (3 * 4 + 4, 1)
    c = poisoned((2, 200, HEAD), a.out)
    made.interpret(*given, c, level="lane", order=order, seed=2)
    check(a, given, c, HEAD)


def test_both_products_are_begun_before_either_is_awaited():
    lanes = compiled(Attention()).build.lanes
    (loop,) = [op for op in ops(lanes, Loop) if any(isinstance(inner, WaitMma) for inner in op.body.ops)]
    order = [op for op in loop.body.ops if isinstance(op, (Wgmma, WaitMma))]
    assert [type(op).__name__ for op in order] == ["WgmmaShared", "WgmmaRegisters", "WaitMma", "WaitMma"]
    assert [op.later for op in order[:2]] == [True, True] and [op.pending for op in order[2:]] == [1, 0]


def test_sums_under_way_are_taken_by_nobody_else():
    lanes = compiled(Attention()).build.lanes
    begun = next(op.result for op in ops(lanes, Wgmma) if op.later)
    waited = next(op.result for op in ops(lanes, WaitMma) if op.sums == begun)
    with pytest.raises(VerifyError, match="is in flight, and must be waited for first"):
        verify(rewrite(lanes, lambda op: _instead(op, waited, begun)))


def _instead(op, old, new):
    if not isinstance(op, Wgmma | Yield | WaitMma) and old in op.operands and not op.blocks:
        return [replace(op, **{n: new for n, part in op.parts() if part == old})]
    return None


def test_a_product_that_is_not_awaited_is_found():
    lanes = compiled(Attention(), sizes=(2, 72, 360), num_stages=2).build.lanes
    second = len(ops(lanes, WaitMma)) - 1
    given = arrays(Attention(), sizes=(2, 72, 360))
    loose = changed(lanes, WaitMma, second, lambda op: [replace(op, pending=1)])
    with pytest.raises(InterpreterError, match="may still be in flight"):
        outputs(loose, given, 72)


def test_a_stage_that_is_left_while_a_product_reads_it_is_found():
    """The arrival for values is moved before the wait: the producer of keys has also waited for the stage of values, so
    that the other arrival would only come early."""
    a, sizes = Attention(), (2, 72, 360)
    lanes, given = compiled(a, sizes=sizes, num_stages=2).build.lanes, arrays(a, sizes=sizes)
    early = _with_arrival_before(lanes, ops(lanes, WaitMma)[-1])
    with pytest.raises(InterpreterError, match=r"the MMA of wave . read with no wait between"):
        for seed in range(8):
            outputs(early, given, 72, seed)


def _with_arrival_before(lanes, wait):
    def swap(op):
        if not isinstance(op, Loop) or wait not in op.body.ops:
            return None
        inside = list(op.body.ops)
        at = inside.index(wait)
        leave = next(i for i in range(at, len(inside)) if isinstance(inside[i], Arrive))
        inside.insert(at, inside.pop(leave))
        return [replace(op, body=replace(op.body, ops=tuple(inside)))]

    return rewrite(lanes, swap)


def test_kernels_of_one_product_are_left_alone():
    kernel = specialized(tiles(SEEDS[0], (64, 64, 64), (64, 64, 16)), 2)
    assert delay_dependent_mma(kernel) == kernel


def test_nothing_is_under_way_where_a_step_ends():
    for block in (op.body for op in walk(compiled(Attention()).build.lanes.body) if isinstance(op, Loop)):
        begun = [op.result for op in block.ops if isinstance(op, Wgmma) and op.later]
        assert begun == [op.sums for op in block.ops if isinstance(op, WaitMma)]


def test_assembly_waits_where_the_kernel_does():
    text = compiled(Attention()).asm
    assert text.count("wgmma.wait_group.sync.aligned 1;") == 1
    assert text.count("wgmma.commit_group") == 5  # two before the loop, two in it, and the repeated one


def test_what_is_summed_meanwhile_is_computed_before_the_wait():
    """Where the maximum is taken in every step, since somebody else wants it."""
    M, N, K1, K2 = sym.M, sym.N, sym.K1, sym.K2
    G = GLOBAL_ADDRESS_SPACE

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K2, 64)])
    def kernel(q: Memory[M, K1, G, f16], k: Memory[K2, K1, G, f16], v: Memory[K2, N, G, f16], c: Memory[M, N, G, f32]):
        begin = Register[M, f32](-1e30), Register[M, f32](0.0), Register[M, N, f32](0.0)

        @iterate(K2, init_args=begin)
        def blocks(old, total, weighted):
            x = mma(read(q), read(k), Register[M, K2, f32](0.0))
            new = maximum(x.max(dim=K2), old)
            shrink, p = exp2(old - new), exp2(x - new)
            return new, p.sum(dim=K2) + total * shrink, mma(cast(p, f16), read(v), weighted * shrink)

        largest, total, weighted = blocks
        write(weighted / total + largest, c)

    sizes = {M: 64, N: 64, K1: 64, K2: 192}
    made = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), kernel)
    (_, of_values) = ops(made.build.lanes, WaitMma)
    assert of_values.meanwhile and "nanosleep" in made.asm
