"""Products of tiles in memory: operands are read in place, and sums reuse the memory of earlier ones."""

import numpy as np
import pytest
from kernels import G, poisoned

from tilewave import *
from tilewave.ir.ops import Mma, Read
from tilewave.ir.rewrite import walk
from tilewave.lower.cpu.kernel import fits_registers
from tilewave.lower.cpu.tile_uses import tile_uses

M, N, K, L = sym.M, sym.N, sym.K, sym.L
TILES = [WorkgroupConstraint(M, 64, 0), TilingConstraint(K, 32)]
SIZES = {M: 100, N: 64, K: 70, L: 64}


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def run(kernel, *arrays):
    compiled = kernel.compile(target="cpu", subs={L: 64, N: 64})
    assert not fits_registers(compiled.ir()), "its tiles are in registers"
    compiled(*arrays)


def chained(step, carried=1):
    """acc of M x N, by a step that gets the scores of M x K and the values of K x N; scores keep tiles in memory."""

    @wave(TILES)
    def chained(a: Memory[M, L, G, f32], b: Memory[K, L, G, f32], v: Memory[K, N, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)] * carried)
        def total(*acc):
            scores = mma(read(a), read(b), Register[M, K, f32](0.0))
            return step(scores, lambda: read(v), *acc)

        write(total if carried == 1 else total[-1], c)

    return chained


def rows(x):
    """A step's largest score of each row, so that the kernel cannot be cut into blocks of registers."""
    return x.max(dim=K)


STEPS = {
    "a product scaled on its way": lambda s, v, acc: mma(s * 0.5 + 1.0, v(), acc),
    "used twice": lambda s, v, acc: mma(s + rows(s), v(), acc),
    "scaled, and used twice": lambda s, v, acc: mma((s * 2.0) + rows(s * 2.0), v(), acc),
    "two products added": lambda s, v, acc: acc + mma(s, v(), Register[M, N, f32](0.0)) * rows(s),
    "sums rescaled": lambda s, v, acc: mma(s, v(), acc * (rows(s) * 0.0 + 0.5)),
    "sums doubled by themselves": lambda s, v, acc: mma(s, v(), acc + acc * (rows(s) * 0.0)),
    "sums used behind the product": lambda s, v, acc: mma(s, v(), acc) + acc * (rows(s) * 0.0 + 1.0),
    "sums that are finished": lambda s, v, acc: mma(s, v(), acc + rows(s)) * 0.5,
}


def wanted(name, a, b, v):
    acc, block = np.zeros((len(a), v.shape[1]), np.float64), 32
    for first in range(0, len(b), block):
        s, part = a.astype(float) @ b[first : first + block].T.astype(float), v[first : first + block].astype(float)
        most = s.max(axis=1, keepdims=True)
        product = s @ part
        match name:
            case "a product scaled on its way":
                acc = acc + (s * 0.5 + 1) @ part
            case "used twice":
                acc = acc + (s + most) @ part
            case "scaled, and used twice":
                acc = acc + (2 * s + (2 * s).max(axis=1, keepdims=True)) @ part
            case "two products added":
                acc = acc + product * most
            case "sums rescaled":
                acc = acc * 0.5 + product
            case "sums doubled by themselves":
                acc = acc + product
            case "sums used behind the product":
                acc = (acc + product) + acc
            case "sums that are finished":
                acc = (acc + most + product) * 0.5
    return acc


@pytest.mark.share(6)
@pytest.mark.parametrize("name", STEPS)
def test_steps_of_chained_products(name):
    """Whole numbers and halves of them: every sum is exact."""
    a, b, v, c = integers(100, 64), integers(70, 64, seed=1), integers(70, 64, seed=2), poisoned((100, 64), f32)
    run(chained(STEPS[name]), a, b, v, c)
    np.testing.assert_array_equal(c, wanted(name, a, b, v))


def test_sums_that_are_used_once_more_stay():
    """The second value gets what the first was before the product."""
    step = chained(lambda s, v, acc, before: (mma(s + rows(s), v(), acc), before + acc), carried=2)
    a, b, v, c = integers(100, 64), integers(70, 64, seed=1), integers(70, 64, seed=2), poisoned((100, 64), f32)
    run(step, a, b, v, c)
    steps = [wanted("used twice", a, b[:end], v[:end]) for end in (32, 64)]
    np.testing.assert_array_equal(c, sum(steps))


def lying(x, how):
    if how == "columns":
        there = np.zeros((x.shape[0], 3 * x.shape[1]), x.dtype)[:, ::3]
    elif how == "backwards":
        there = np.zeros_like(x)[::-1]
    else:
        there = np.zeros(x.shape[::-1], x.dtype).T
    there[...] = x
    return there


@pytest.mark.parametrize("how", ["columns", "backwards", "transposed"])
def test_operands_however_they_lie(how):
    a, b, v, c = integers(100, 64), integers(70, 64, seed=1), integers(70, 64, seed=2), poisoned((100, 64), f32)
    run(chained(STEPS["used twice"]), *(lying(x, how) for x in (a, b, v)), c)
    np.testing.assert_array_equal(c, wanted("used twice", a, b, v))


@pytest.mark.parametrize("m, k", [(1, 1), (64, 32), (65, 31), (3, 65)])
def test_operands_that_hang_over_the_edge(m, k):
    a, b, v, c = integers(m, 64), integers(k, 64, seed=1), integers(k, 64, seed=2), poisoned((m, 64), f32)
    run(chained(STEPS["sums rescaled"]), a, b, v, c)
    np.testing.assert_array_equal(c, wanted("sums rescaled", a, b, v))


def test_what_is_written_between_is_not_seen_by_an_operand():
    """The tile has its value from before the write, though its product is computed after it."""

    @wave(TILES)
    def between(a: Memory[M, L, G, f32], b: Memory[K, L, G, f32], c: Memory[M, N, G, f32]):
        own = read(a)
        write(Register[M, L, f32](0.0), a)

        @iterate(K, init_args=[Register[M, f32](0.0)])
        def most(so_far):
            return mma(own, read(b), Register[M, K, f32](0.0)).max(dim=K, acc=so_far)

        write(Register[M, N, f32](0.0) + most, c)

    a, b, c = integers(100, 64), integers(70, 64, seed=1), poisoned((100, 64), f32)
    before = a.copy()
    run(between, a, b, c)
    assert not a.any()
    np.testing.assert_array_equal(c[:, 0], np.maximum((before @ b.T).max(axis=1), 0))


def test_which_tiles_need_no_memory_of_their_own():
    def uses(name):
        body = chained(STEPS[name]).compile(target="numpy", subs=SIZES).kernel.body
        return tile_uses(body), [op.result for op in walk(body) if isinstance(op, Mma)]

    found, (scores, sums) = uses("a product scaled on its way")
    assert scores in found.finished and sums in found.accumulated and len(found.operands) == 3
    found, (scores, sums) = uses("sums rescaled")
    assert scores not in found.finished and sums in found.accumulated
    for name in ("sums doubled by themselves", "sums used behind the product"):
        assert not uses(name)[0].accumulated
    body = chained(STEPS["sums that are finished"]).compile(target="numpy", subs=SIZES).kernel.body
    assert {op.result for op in walk(body) if isinstance(op, Read)} == tile_uses(body).operands
