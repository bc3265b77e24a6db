"""Tiles that lanes hold in one layout and need in another, on every target, in every order of waves, against float64.

All values are whole and small, so that every order of sums gives the same.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from kernels import *

from tilewave.errors import InterpreterError
from tilewave.interp.lanes import ORDERS, interpret_lanes
from tilewave.ir.ops import Barrier, Rearrange, Shuffle
from tilewave.ir.rewrite import rewrite, walk
from tilewave.layouts.bits import identity

pytestmark = pytest.mark.share(6)

L = sym.L
SIZES = {M: 128, N: 64, K: 64, L: 128}
SHAPES = {"mk": (128, 64), "nk": (64, 64), "lk": (128, 64), "nl": (64, 128), "ml": (128, 128)}
RESULT = (128, 64)


def zero(*dims):
    return Register[(*dims, f32)](0.0)


def sum_last(mk, nk, lk, nl, ml, out):
    @iterate(K, init_args=[zero(M, N)])
    def total(x):
        return x + mma(read(mk), read(nk), zero(M, N))

    write(total, out)


def sum_first(mk, nk, lk, nl, ml, out):
    @iterate(K, init_args=[zero(M, N)])
    def total(x):
        return mma(read(mk), read(nk), zero(M, N)) + x

    write(total, out)


def chain(mk, nk, lk, nl, ml, out):
    """What one product gives is the left operand of another."""

    @iterate(L, init_args=[zero(M, N)])
    def total(acc):
        @iterate(K, init_args=[zero(M, L)])
        def inner(x):
            return mma(read(mk), read(lk), x)

        return mma(cast(inner, f16), read(nl), acc)

    write(total, out)


def chain_on_the_right(mk, nk, lk, nl, ml, out):
    @iterate(L, init_args=[zero(M, N)])
    def total(acc):
        @iterate(K, init_args=[zero(N, L)])
        def inner(x):
            return mma(read(nk), read(lk), x)

        return mma(read(ml), cast(inner, f16), acc)

    write(total, out)


def scaled_chain(mk, nk, lk, nl, ml, out):
    """The operand is computed from sums and from what is read."""

    @iterate(L, init_args=[zero(M, N)])
    def total(acc):
        @iterate(K, init_args=[zero(M, L)])
        def inner(x):
            return mma(read(mk), read(lk), x)

        return mma(cast(inner * 0.5, f16) + read(ml), read(nl), acc)

    write(total, out)


def turned_sum(mk, nk, lk, nl, ml, out):
    """The sums of a second product have their axes the other way round."""

    @iterate(K, init_args=[zero(M, N), zero(N, M)])
    def both(x, y):
        return mma(read(mk), read(nk), x), mma(read(nk), read(mk), y)

    write(both[0] + both[1] * 2.0, out)


def pulled_both_ways(mk, nk, lk, nl, ml, out):
    """What a loop carries is computed with sums of either kind."""

    @iterate(K, init_args=[zero(M, N)])
    def total(x):
        return x + mma(read(mk), read(nk), zero(M, N)) - mma(read(nk), read(mk), zero(N, M)) * 3.0

    write(total, out)


def of_product(a):
    return a["mk"] @ a["nk"].T


CASES = {
    sum_last: of_product,
    sum_first: of_product,
    chain: lambda a: a["mk"] @ a["lk"].T @ a["nl"].T,
    chain_on_the_right: lambda a: a["ml"] @ (a["nk"] @ a["lk"].T).T,
    scaled_chain: lambda a: (a["mk"] @ a["lk"].T * 0.5 + a["ml"]) @ a["nl"].T,
    turned_sum: lambda a: of_product(a) * 3,
    pulled_both_ways: lambda a: of_product(a) * -2,
}


def made(body, waves, l_tile):
    tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
    tiles += [TilingConstraint(L, l_tile), *([WaveConstraint(M, 64 // waves[0]), WaveConstraint(N, 64 // waves[1])])]

    @wave(tiles)
    def kernel(
        mk: Memory[M, K, G, f16],
        nk: Memory[N, K, G, f16],
        lk: Memory[L, K, G, f16],
        nl: Memory[N, L, G, f16],
        ml: Memory[M, L, G, f16],
        out: Memory[M, N, G, f32],
    ):
        body(mk, nk, lk, nl, ml, out)

    return kernel


def arrays():
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(-1, 2, shape).astype(np.float16) * (2 if name == "mk" else 1)
        for name, shape in SHAPES.items()
    }


def check(run, body):
    given = arrays()
    out = poisoned(RESULT, f32)
    run(*given.values(), out)
    wanted = CASES[body]({name: x.astype(np.float64) for name, x in given.items()})
    np.testing.assert_array_equal(out, wanted)


def built(body, target, waves=(2, 2), l_tile=64, **options):
    return compiled(made(body, waves, l_tile), subs=SIZES, target=target, **options)


cases = pytest.mark.parametrize("body", CASES, ids=lambda body: body.__name__)


@pytest.mark.share(10)
@cases
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("target", "waves"),
    [
        ("gfx942", (1, 1)),
        ("gfx942", (2, 2)),
        ("gfx942", (4, 1)),
        ("gfx950", (2, 2)),
        ("gfx950", (1, 2)),
        ("sm_90a", (2, 2)),
    ],
)
def test_lanes_compute_it_in_every_order(body, target, waves, order):
    kernel = built(body, target, waves)
    check(lambda *a: kernel.interpret(*a, level="lane", order=order, seed=3), body)


@pytest.mark.share(12)
@cases
@pytest.mark.parametrize("order", ["barrier", "random"])
@pytest.mark.parametrize(("target", "waves"), [("gfx942", (1, 1)), ("gfx942", (2, 2)), ("gfx950", (4, 1))])
def test_machine_code_computes_it_in_every_order(body, target, waves, order):
    kernel = built(body, target, waves)
    check(lambda *a: kernel.emulate(*a, order=order), body)


@cases
def test_a_cpu_computes_it(body):
    check(built(body, "cpu"), body)


@cases
def test_the_assembler_takes_it(body):
    assembled = built(body, "sm_90a").resources.assembled
    if assembled is None:
        pytest.skip("this machine has no assembler of NVIDIA's")
    assert assembled.spilled_bytes == 0


# -- the way that is taken


def found(body, waves, l_tile=64):
    kernel = built(body, "gfx942", waves, l_tile, schedule=SchedulingType.NONE)  # others repeat what a loop does
    counted = Counter(type(op) for op in walk(kernel.build.lanes.body))
    moved = sum("_moved" in v.name for op in walk(kernel.build.lanes.body) for v in op.results)
    return counted[Shuffle], counted[Rearrange], moved


@pytest.mark.parametrize("l_tile", [16, 64])
@pytest.mark.parametrize("waves", [(4, 1), (1, 1)])
def test_sums_are_an_operand_as_they_are(waves, l_tile):
    """One rearrangement gives the registers other axes and costs no instruction."""
    assert found(chain, waves, l_tile) == (0, 1, 0)
    kernel = built(chain, "gfx942", waves, l_tile)
    check(kernel.emulate, chain)
    assert "ds_bpermute" not in kernel.asm


def test_what_other_waves_hold_goes_through_shared_memory():
    assert found(turned_sum, (2, 2)) == (0, 0, 1)


def test_nothing_is_converted_where_layouts_agree():
    for body in (sum_last, sum_first):
        assert found(body, (2, 2)) == (0, 0, 0)


def test_one_wave_needs_no_shared_memory():
    assert found(turned_sum, (1, 1))[2] == 0


# -- what is left out is missed


def runs(kernel, order="in turn"):
    def run(*a):
        interpret_lanes(kernel, a, {}, order)

    return run


@pytest.mark.parametrize("body", [turned_sum, pulled_both_ways], ids=lambda body: body.__name__)
def test_every_barrier_around_a_conversion_is_needed(body):
    kernel = built(body, "gfx942").build.lanes
    barriers = [op for op in walk(kernel.body) if isinstance(op, Barrier)]
    assert barriers
    for i in range(len(barriers)):
        with pytest.raises(InterpreterError):
            check(runs(_without(kernel, i)), body)


def _without(kernel, number):
    """Return the kernel without one of its barriers; equal ones are distinguished by their position."""
    seen = Counter()

    def leave_out(op):
        if not isinstance(op, Barrier):
            return None
        seen[Barrier] += 1
        return [] if seen[Barrier] == number + 1 else None

    return rewrite(kernel, leave_out)


def doing_nothing(op):
    here, everywhere = identity(len(op.of_register)), identity(len(op.of_lane))
    if isinstance(op, Shuffle):
        return replace(op, of_register=tuple(0 for _ in here), of_lane=everywhere)
    return replace(op, of_register=here, of_lane=tuple(0 for _ in everywhere))


def test_every_step_of_a_conversion_is_needed():
    body = turned_sum
    kernel = built(body, "gfx942", (1, 1)).build.lanes
    steps = [op for op in walk(kernel.body) if isinstance(op, (Shuffle, Rearrange))]
    assert len(steps) > 1
    for step in steps:
        without = rewrite(kernel, lambda op, step=step: [doing_nothing(op)] if op == step else None)
        with pytest.raises(AssertionError):
            check(runs(without), body)
