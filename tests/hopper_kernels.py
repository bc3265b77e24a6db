"""Kernels for Hopper that several tests run, change and look through."""

from functools import cache

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, check_product, poisoned, tiling
from lane_runs import ORDERS, operands
from sampled import some_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Role
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import verify
from tilewave.kernels import gemm as mapped_gemm
from tilewave.machine.chips import SM_90A
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run


@wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0)])
    def total(sum):
        return mma(read(a), read(b), sum)

    write(cast(maximum(total + read(bias), 0.0), f16), c)


def check_biased(made, shape, order="random"):
    a, b = operands(shape)
    bias = np.random.default_rng(2).standard_normal(shape[1]).astype(np.float32)
    lanes, tiles = poisoned(shape[:2], f16), poisoned(shape[:2], f16)
    made.interpret(a, b, bias, lanes, level="lane", order=order)
    made.interpret(a, b, bias, tiles)
    np.testing.assert_allclose(lanes.astype(float), tiles.astype(float), rtol=2e-3, atol=1e-4)
    assert (lanes >= 0).all() and (lanes > 0).any()


@wave(tiling())
def both(
    a: Memory[M, K, G, f16],
    b: Memory[N, K, G, f16],
    d: Memory[N, K, G, f16],
    c: Memory[M, N, G, f32],
    e: Memory[M, N, G, f32],
):
    @iterate(K, init_args=[Register[M, N, f32](0), Register[M, N, f32](0)])
    def total(of_b, of_d):
        x = read(a)
        return mma(x, read(b), of_b), mma(x, read(d), of_d)

    write(total[0], c)
    write(total[1], e)


def check_both(made):
    (a, b), (d, _) = operands((70, 72, 104)), operands((72, 1, 104), seed=8)
    for order in some_of(ORDERS):
        c, e = poisoned((70, 72), f32), poisoned((70, 72), f32)
        made.interpret(a, b, d, c, e, level="lane", order=order)
        check_product(c, a, b)
        check_product(e, a, d)


SMALL = (64, 64, 32)


@cache
def tiles(seed, shape, tile=SMALL, **more):
    subs = seed.subs(*shape, block_m=tile[0], block_n=tile[1], block_k=tile[2], **more)
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), seed.kernel).kernel


def specialized(kernel, stages):
    lanes, _ = run(kernel, lists.hopper(SM_90A, Places(), stages, kernel.workgroups))
    assert roles(lanes) == 2
    return lanes


def roles(kernel):
    """How many programs the waves are shared by."""
    return sum(isinstance(op, Role) for op in kernel.body.ops)


def check(kernel, shape, orders=ORDERS, seed=0, dtype=f16, out=f32):
    a, b = operands(shape, dtype)
    for order in some_of(orders):
        c = poisoned(shape[:2], out)
        interpret_lanes(kernel, [a, b, c], {}, order, seed)
        check_product(c, a, b, out)


MUTATED = (128, 64, 48)


def changed(kernel, kind, number, change):
    """The kernel with its number-th op of a kind replaced by others."""
    (gone,) = [op for op in walk(kernel.body) if isinstance(op, kind)][number : number + 1]
    return verify(rewrite(kernel, lambda op: change(op) if op is gone else None))


def found_by(kernel, order, seed):
    a, b = operands(MUTATED)
    c = poisoned(MUTATED[:2], f32)
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(kernel, [a, b, c], {}, order, seed)
    assert np.isnan(c).all()
    told = str(found.value)
    assert "gemm.py:" in told
    return told


@cache
def mapped_tiles(shape, tile, mapping, out=f16):
    made = mapped_gemm(shape, f16, out, tile=tile, mapping=mapping)
    return wave_compile(WaveCompileOptions(subs=made.subs, target="numpy"), made.kernel).kernel


def ops(kernel, *kinds):
    return [op for op in walk(kernel.body) if isinstance(op, kinds)]
