# ruff: noqa: E501  (a text of the IR)
"""DCE before staging: the code for lanes has no store that is never loaded."""

import numpy as np
import pytest
from kernels import *

from tilewave.interp.tiles import interpret
from tilewave.ir.ops import Allocate, Mma, Read
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.lang.symbols import expression
from tilewave.passes.tile.simplify import simplify

turn = sym.T


def zero():
    return Register[M, N, f32](0.0)


def unused_sums(a, b, d, rounds):
    """An unused sum is carried along with the used value."""

    @iterate(K, init_args=[zero(), zero()])
    def both(x, y):
        return mma(read(a), read(b), x), y + 1.0

    return both[1]


def unused_sums_that_are_swapped(a, b, d, rounds):
    """Each is needed for the other alone."""

    @iterate(K, init_args=[zero(), zero(), zero()])
    def three(x, y, count):
        return y, mma(read(a), read(b), x), count + 1.0

    return three[2]


def unused_product(a, b, d, rounds):
    @iterate(K, init_args=[zero()])
    def total(x):
        mma(read(a), read(b), x)
        return x + 1.0

    return total


def unused_reads(a, b, d, rounds):
    @iterate(K, init_args=[zero()])
    def total(x):
        read(a) + read(a)
        return x + 1.0

    return total


def unused_loop(a, b, d, rounds):
    @iterate(K, init_args=[zero()])
    def total(x):
        return mma(read(a), read(b), x)

    @iterate(K, init_args=[zero()])
    def count(x):
        return x + 1.0

    return count


def unused_in_a_while_loop(a, b, d, rounds):
    @iterate(turn, init_args=[zero(), zero()], condition=turn < rounds)
    def both(x, y):
        @iterate(K, init_args=[x])
        def total(z):
            return mma(read(a), read(b), z)

        set_symbol(turn, self_index(turn) + 1)
        return total, y + 1.0

    return both[1]


BODIES = (
    unused_sums,
    unused_sums_that_are_swapped,
    unused_product,
    unused_reads,
    unused_loop,
    unused_in_a_while_loop,
)


def made(body, rounds, space=G):
    waves = [WaveConstraint(M, 32), WaveConstraint(N, 32), TilingConstraint(turn)]

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32), *waves])
    def kernel(
        a: Memory[M, K, space, f16], b: Memory[N, K, space, f16], d: Memory[M, N, G, f32], c: Memory[M, N, G, f32]
    ):
        write(body(a, b, d, expression(rounds)), c)

    return kernel


@pytest.mark.share(12)
@pytest.mark.parametrize("space", [G, SHARED_ADDRESS_SPACE], ids=["global", "shared"])
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
def test_the_compilers_own_code_is_accepted_lane_by_lane(target, body, space):
    for steps in (1, 2, 3):
        for schedule in SchedulingType:
            a, b, d = (
                np.ones((70, 32 * steps), np.float16),
                np.ones((64, 32 * steps), np.float16),
                np.ones((70, 64), "f"),
            )
            c = poisoned((70, 64), f32)
            subs = {M: 70, N: 64, K: 32 * steps}
            kernel = compiled(made(body, steps, space), subs=subs, target=target, schedule=schedule)
            kernel.interpret(a, b, d, c, level="lane")
            assert (c == steps).all()
            assert not any(isinstance(op, (Mma, Read, Allocate)) for op in walk(kernel.kernel.body))


@pytest.mark.share(6)
@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
def test_used_products_in_loops_of_few_rounds(target, rounds):
    def used(a, b, d, rounds):
        @iterate(turn, init_args=[zero()], condition=turn < rounds)
        def outer(x):
            @iterate(K, init_args=[x])
            def total(z):
                return mma(read(a), read(b), z)

            set_symbol(turn, self_index(turn) + 1)
            return total

        return outer

    for schedule in SchedulingType:
        a, b, d = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16), np.ones((64, 64), np.float32)
        c = poisoned((64, 64), f32)
        kernel = compiled(made(used, rounds), subs={M: 64, N: 64, K: 64}, target=target, schedule=schedule)
        kernel.interpret(a, b, d, c, level="lane")
        assert (c == 64 * rounds).all()


def test_what_a_loop_carries_for_itself_alone_is_dropped():
    """%x and %y serve each other; %z is written, and %n decides how often."""
    text = """kernel @k {workgroups = 1} (%c: memory<4xf32, global>) {
      %zero = const() {value = 0} : index
      %one = const() {value = 1} : index
      %three = const() {value = 3} : index
      %t = const() {value = 1.0} : tile<4xf32>
      %n_end, %x_end, %y_end, %z_end = while([%zero, %t, %t, %t]) : index, tile<4xf32>, tile<4xf32>, tile<4xf32> do (%n: index, %x: tile<4xf32>, %y: tile<4xf32>, %z: tile<4xf32>) {
        %more = less(%n, %three) : bool
        yield([%more])
      } do (%m: index, %u: tile<4xf32>, %v: tile<4xf32>, %w: tile<4xf32>) {
        %next = add(%m, %one) : index
        %sum = add(%u, %v) : tile<4xf32>
        %twice = add(%w, %w) : tile<4xf32>
        yield([%next, %sum, %u, %twice])
      }
      write(%z_end, %c, [%zero]) {axes = [0]}
    }
    """
    before = verify(parse(text))
    after = verify(simplify(before))
    (loop,) = (op for op in after.body.ops if op.blocks)
    assert [v.name for v in loop.results] == ["n_end", "z_end"]
    assert [v.name for v in loop.body.args] == ["m", "w"]
    for kernel in (before, after):
        c = np.zeros(4, np.float32)
        interpret(kernel, [c], {})
        assert (c == 8).all()
