"""Tiles that are combined with a product have the layout of its accumulator, for either order of operands and any
loop-carried values. All values are small integers, so that every order of sums gives the same."""

import numpy as np
import pytest
from kernels import *

from tilewave.lang.symbols import expression

TARGETS = ("gfx942", "gfx950", "sm_90a")
turn = sym.T


def zero():
    return Register[M, N, f32](0.0)


STEPS = {
    "the product last": (lambda x, p, d: x + p, lambda x, p, d: x + p),
    "the product first": (lambda x, p, d: p + x, lambda x, p, d: p + x),
    "chosen by what is carried": (
        lambda x, p, d: select(x < 9.0, x + p, x),
        lambda x, p, d: np.where(x < 9, x + p, x),
    ),
    "chosen by the product": (
        lambda x, p, d: select(p < 9.0, x, p) + p,
        lambda x, p, d: np.where(p < 9, x, p) + p,
    ),
    "cast both ways": (lambda x, p, d: cast(cast(x, f64) + cast(p, f64), f32), lambda x, p, d: x + p),
    "behind what was read": (lambda x, p, d: (d + x) + p, lambda x, p, d: d + x + p),
    "scaled": (lambda x, p, d: x * 2.0 + p * 0.5, lambda x, p, d: x * 2 + p * 0.5),
    "a bias first": (lambda x, p, d: maximum(self_bias(), x) + p, lambda x, p, d: np.maximum(bias_of(d), x) + p),
}


def self_bias():
    return cast(self_index(N, i32), f32)


def bias_of(d):
    return np.arange(d.shape[1])[None, :]


def one(a, b, d, c, e, step):
    @iterate(K, init_args=[zero()])
    def total(x):
        return step(x, mma(read(a), read(b), zero()), read(d))

    write(total, c)
    write(zero(), e)


def two(a, b, d, c, e, step):
    @iterate(K, init_args=[zero(), zero()])
    def both(x, y):
        return step(x, mma(read(a), read(b), zero()), read(d)), y + x

    write(both[0], c)
    write(both[1], e)


def swapped(a, b, d, c, e, step):
    @iterate(K, init_args=[zero(), zero()])
    def both(x, y):
        return y, step(x, mma(read(a), read(b), zero()), read(d))

    write(both[0], c)
    write(both[1], e)


def from_memory(a, b, d, c, e, step):
    """The accumulator is read too."""

    @iterate(K, init_args=[read(d)])
    def total(x):
        return step(x, mma(read(a), read(b), read(d)), read(d))

    write(total, c)
    write(zero(), e)


def bound_behind_the_loop(a, b, d, c, e, step):
    """Nothing in the loop binds y; what uses it does."""

    @iterate(K, init_args=[zero(), zero()])
    def both(x, y):
        return mma(read(a), read(b), x), y + 1.0

    write(step(both[1], both[0], read(d)), c)
    write(both[1], e)


LOOPS = {
    one: lambda f, ps, d: (fold(lambda x, p: f(x, p, d), ps, 0 * d), 0 * d),
    two: lambda f, ps, d: fold(lambda xy, p: (f(xy[0], p, d), xy[1] + xy[0]), ps, (0 * d, 0 * d)),
    swapped: lambda f, ps, d: fold(lambda xy, p: (xy[1], f(xy[0], p, d)), ps, (0 * d, 0 * d)),
    from_memory: lambda f, ps, d: (fold(lambda x, p: f(x, p + d, d), ps, d), 0 * d),
    bound_behind_the_loop: lambda f, ps, d: (f(0 * d + len(ps), sum(ps), d), 0 * d + len(ps)),
}


def fold(f, values, x):
    for v in values:
        x = f(x, v)
    return x


def made(loop, step, *more, waves=(32, 32)):
    constraints = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32), *more]

    @wave([*constraints, WaveConstraint(M, waves[0]), WaveConstraint(N, waves[1])])
    def kernel(
        a: Memory[M, K, G, f16],
        b: Memory[N, K, G, f16],
        d: Memory[M, N, G, f32],
        c: Memory[M, N, G, f32],
        e: Memory[M, N, G, f32],
    ):
        loop(a, b, d, c, e, step)

    return kernel


def operands(m, n, k):
    rng = np.random.default_rng(m + k)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    return a, b, rng.integers(-5, 6, (m, n)).astype(np.float32)


def check(kernel, target, shape, want, **options):
    m, n, k = shape
    a, b, d = operands(*shape)
    wide = [x.astype(float) for x in (a, b)]
    products = [wide[0][:, i : i + 32] @ wide[1][:, i : i + 32].T for i in range(0, k, 32)]
    c, e = poisoned((m, n), f32), poisoned((m, n), f32)
    built = compiled(kernel, subs={M: m, N: n, K: k}, target=target, **options)
    built.interpret(a, b, d, c, e, level="lane")
    for found, wanted in zip((c, e), want(products, d.astype(float)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return built, (a, b, d, c, e)


@pytest.mark.share(9)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_order_of_operands(target, step, loop):
    ours, numpys = STEPS[step]
    for shape in ((70, 64, 32), (64, 64, 96)):
        check(made(loop, ours), target, shape, lambda ps, d: LOOPS[loop](numpys, ps, d))


@pytest.mark.share(10)
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("waves", [(32, 32), (32, 16), (64, 64)])
@pytest.mark.parametrize("target", TARGETS)
def test_loads_that_run_ahead(target, waves, steps):
    """What follows a product in a step stays after it, however the software pipeline arranges the step."""
    ours, numpys = STEPS["chosen by what is carried"]
    for loop in (one, two, from_memory):
        kernel = made(loop, ours, waves=waves)
        shape, prefetch = (64, 64, 32 * steps), SchedulingType.PREFETCH
        check(kernel, target, shape, lambda ps, d, loop=loop: LOOPS[loop](numpys, ps, d), schedule=prefetch)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_machine_code_of_what_follows_a_product(target):
    ours, numpys = STEPS["the product last"]
    for steps in (1, 2, 3):
        want = lambda ps, d: LOOPS[two](numpys, ps, d)  # noqa: E731
        built, arrays = check(made(two, ours), target, (64, 64, 32 * steps), want, schedule=SchedulingType.PREFETCH)
        lanes = [x.copy() for x in arrays[3:]]
        for x in arrays[3:]:
            x.fill(np.nan)
        built.emulate(*arrays, order="random", seed=steps)
        for x, wanted in zip(arrays[3:], lanes, strict=True):
            np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_nested_loops_of_any_number_of_rounds(target, rounds):
    """A loop around the one with the product, and a loop after it without one."""

    times = expression(rounds)

    def nested(a, b, d, c, e, step):
        @iterate(turn, init_args=[zero(), zero()], condition=turn < times)
        def both(x, y):
            @iterate(K, init_args=[x])
            def inner(z):
                return step(z, mma(read(a), read(b), zero()), read(d))

            set_symbol(turn, self_index(turn) + 1)
            return inner, x + y

        write(both[0], c)
        write(both[1], e)

    def want(products, d):
        x, y = 0 * d, 0 * d
        for _ in range(rounds):
            x, y = fold(lambda z, p: z + p, products, x), x + y
        return x, y

    kernel = made(nested, STEPS["the product last"][0], TilingConstraint(turn))
    check(kernel, target, (64, 64, 64), want)


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_outside_the_loop_binds_what_it_carries(target):
    def outside(a, b, d, c, e, step):
        @iterate(K, init_args=[zero()])
        def total(acc):
            return mma(read(a), read(b), acc)

        @iterate(turn, init_args=[read(d)], condition=turn < 3)
        def again(x):
            set_symbol(turn, self_index(turn) + 1)
            return step(x, total, read(d))

        write(again, c)
        write(again - total, e)

    def want(products, d):
        total = sum(products)
        again = fold(lambda x, _: x + total, range(3), d)
        return again, again - total

    check(made(outside, STEPS["the product last"][0], TilingConstraint(turn)), target, (64, 64, 64), want)


@pytest.mark.parametrize("target", TARGETS)
def test_a_carried_row_follows_what_it_is_repeated_in(target):
    """A loop-carried value for each column, added to every row of the accumulator."""

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def kernel(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[read(bias), zero()])
        def both(row, acc):
            return row + 1.0, mma(read(a), read(b), acc)

        row, total = both
        write(row + total, c)

    a, b, d = operands(64, 64, 64)
    bias, c = d[0].copy(), poisoned((64, 64), f32)
    compiled(kernel, subs={M: 64, N: 64, K: 64}, target=target).interpret(a, b, bias, c, level="lane")
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T + bias + 2)


CONSTANT = {
    "largest": (lambda x, total: x.max(dim=N) + total, 3.0),
    "where the least is": (lambda x, total: cast(x.argmin(dim=N), f32) + total, 0.0),
    "places": (lambda x, total: cast(self_index(N, i32).max(), f32) + total, 31.0),
    "of what is repeated": (lambda x, total: broadcast(x.sum(dim=M), target_shape=[M, N]).max(dim=N) + total, 48.0),
}


@pytest.mark.parametrize("target", ("gfx942", "sm_90a"))
@pytest.mark.parametrize("kind", CONSTANT)
def test_what_is_left_of_a_constant_goes_with_sums(kind, target):
    """A constant can be had in any layout, what is left of it when it is reduced cannot."""
    make, more = CONSTANT[kind]

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 32)])
    def kernel(
        a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16],
        b: Memory[N, K, GLOBAL_ADDRESS_SPACE, f16],
        c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[zero()])
        def total(x):
            return mma(read(a), read(b), x)

        write(make(Register[M, N, f32](3.0), total), c)

    made = wave_compile(WaveCompileOptions(subs={M: 16, N: 32, K: 64}, target=target), kernel)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (n, 64)).astype(np.float16) for n in (16, 32))
    c = np.full((16, 32), np.nan, np.float32)
    made.interpret(a, b, c, level="lane", order="random", seed=2)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T + more)
