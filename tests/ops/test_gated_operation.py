"""`ops.gated`: activation(gate) · up of arrays of any shape and layout."""

import numpy as np
import pytest

from tilewave import *
from tilewave import ops
from tilewave.errors import CallError, DTypeError
from tilewave.kernels.gated import gated_gradients_kernel, gated_kernel
from tilewave.kernels.indexed import RowTile

M, N = sym.M, sym.N
UNIT = 2.0**-23


def silu(x):
    return x / (1 + np.exp(-x))


def slope_of_silu(x):
    share = 1 / (1 + np.exp(-x))
    return share * (1 + x * (1 - share))


def numbers(*shape, seed=0):
    return (3 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("shape", [(7,), (3, 5, 37), (130, 300), (0, 4)], ids=str)
def test_it_multiplies_what_is_activated(shape):
    gate, up = numbers(*shape), numbers(*shape, seed=1)
    want = silu(gate.astype(np.float64)) * up
    assert (np.abs(ops.gated(gate, up) - want) <= 8 * UNIT * np.abs(want)).all()
    out = np.full((*shape[:-1], 2 * shape[-1]), np.nan, np.float32)
    assert ops.gated(gate, up, "relu", out=out[..., ::2]) is not None
    np.testing.assert_array_equal(out[..., ::2], np.maximum(gate, 0) * up)
    assert np.isnan(out[..., 1::2]).all()


def test_halves_of_one_array():
    both = numbers(9, 80)
    np.testing.assert_array_equal(
        ops.gated(both[:, :40], both[:, 40:]), ops.gated(both[:, :40].copy(), both[:, 40:].copy())
    )
    assert ops.gated.kernel(both[:, :40], both[:, 40:]).name == "gated"


@pytest.mark.parametrize("way", ["lanes of sm_90a", "gfx942"])
def test_lanes_of_gpus(way):
    tile, sizes = RowTile(2, 32), {M: 5, N: 37}
    gate, up, grad = (numbers(5, 37, seed=seed) for seed in range(3))
    found = [np.full((5, 37), np.nan, np.float32) for _ in range(3)]
    for kernel, arrays in (
        (gated_kernel(tile, "silu", f32, f32, f32), (gate, up, found[0])),
        (gated_gradients_kernel(tile, "silu", f32, f32, f32), (gate, up, grad, *found[1:])),
    ):
        compiled = kernel.compile(target=way.removeprefix("lanes of "), subs=sizes)
        compiled.interpret(*arrays, level="lane") if way.startswith("lanes") else compiled.emulate(*arrays)
    gate, up, grad = (x.astype(np.float64) for x in (gate, up, grad))
    for one, want in zip(found, (silu(gate) * up, slope_of_silu(gate) * up * grad, silu(gate) * grad), strict=True):
        assert (np.abs(one - want) <= 16 * UNIT * (np.abs(want) + np.abs(want).mean())).all()


def test_what_it_refuses():
    x = numbers(3, 4)
    with pytest.raises(CallError, match=r"gated: gate is 3.4, but up is 3.5"):
        ops.gated(x, numbers(3, 5))
    with pytest.raises(CallError, match="gated: no activation is called 'swish'"):
        ops.gated(x, x, "swish")
    with pytest.raises(DTypeError, match="gated: gate is i32, but it takes floats"):
        ops.gated(x.astype(np.int32), x)
