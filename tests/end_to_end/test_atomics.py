"""Atomic operations of every dtype on every target, on elements that share words with others."""

import numpy as np
import pytest

from tilewave import *
from tilewave.ir.types import DTYPES

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, V = sym.T, sym.V
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
NARROW = ("f16", "bf16", "i8", "u8", "i16", "u16")
HOW = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
WORDS = {"add": atomic_add, "min": atomic_min, "max": atomic_max, "and": atomic_and, "or": atomic_or}


def kernel_of(dtype, how):
    @wave([WorkgroupConstraint(T, 64, 0)])
    def combined(slots: Memory[T, G, i32], x: Memory[T, G, dtype], out: Memory[V, G, dtype]):
        WORDS[how](read(x), out, at={V: read(slots)})

    return combined


def run(kernel, target, *arrays):
    made = kernel.compile(target="cpu" if target == "numpy" else target)
    if target == "cpu":
        made(*arrays)
    elif target in ("numpy", "sm_90a"):
        made.interpret(*arrays, **({"level": "lane"} if target == "sm_90a" else {}))
    else:
        made.emulate(*arrays)


def cases():
    yield from ((name, how) for name in NARROW for how in ("add", "max"))
    yield from (("f16", "min"), ("bf16", "min"), ("i8", "and"), ("u16", "or"), ("f32", "max"), ("f64", "min"))


@pytest.mark.parametrize(("name", "how"), list(cases()))
@pytest.mark.parametrize("target", TARGETS)
def test_elements_are_combined_in_any_order(target, name, how):
    """Small integers, so that sums are exact in every order; an array of odd length, which ends within a word."""
    rng = np.random.default_rng(1)
    dtype = DTYPES[name].numpy
    x = rng.integers(0, 3, 150).astype(dtype)
    slots = rng.integers(-2, 9, 150).astype(np.int32)
    slots[:3] = -(2**31), 2**31 - 1, 7
    out = rng.integers(0, 5, 7).astype(dtype)
    wanted = out.astype(np.float64 if DTYPES[name].is_float else np.int64)
    inside = (slots >= 0) & (slots < 7)
    HOW[how].at(wanted, slots[inside], x[inside].astype(wanted.dtype))
    run(kernel_of(DTYPES[name], how), target, slots, x, out)
    np.testing.assert_array_equal(out.astype(wanted.dtype), wanted)


@pytest.mark.parametrize("target", ["cpu", "gfx942"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_each_sum_is_rounded_to_nearest(target, name):
    """One element a place: a sum has one order, and equals that of float64 rounded once."""
    rng = np.random.default_rng(2)
    dtype = DTYPES[name].numpy
    x, out = (rng.standard_normal(200).astype(dtype) for _ in range(2))
    x[:4], out[:4] = [np.inf, np.nan, -0.0, 1], [1, 1, -0.0, np.nan]
    wanted = (x.astype(np.float64) + out.astype(np.float64)).astype(dtype)
    run(kernel_of(DTYPES[name], "add"), target, np.arange(200, dtype=np.int32), x, out)
    np.testing.assert_array_equal(out.astype(np.float64), wanted.astype(np.float64))
    assert np.signbit(out[2])


def test_hopper_adds_narrow_floats_in_one_instruction():
    for dtype in (f16, bf16):
        ptx = kernel_of(dtype, "add").compile(target="sm_90a").build.asm
        assert f".add.noftz.{dtype}" in ptx and ".cas" not in ptx
