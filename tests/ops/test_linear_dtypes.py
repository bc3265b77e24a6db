"""The epilogue of `ops.linear`: what is added to sums, or applied to them, is of their kind, or refused."""

import numpy as np
import pytest

from tilewave import *
from tilewave import ops
from tilewave.errors import DTypeError
from tilewave.ir.types import BOOL
from tilewave.kernels import accumulator

REFUSED = [
    *((operands, added) for operands in (f64, f32, f16, f8e4m3fn) for added in (i8, i32, i64, BOOL)),
    *((i8, added) for added in (f64, f16, i64, BOOL)),
]


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(dtype.numpy)


def test_integers_are_added_to_integer_sums():
    x, weight = numbers((5, 7), i8), numbers((3, 7), i8, 1)
    for bias, residual in ((numbers((3,), i8), numbers((5, 3), i32)), (numbers((3,), i32), numbers((3,), i8))):
        found = ops.linear(x, weight, bias, activation="relu", residual=residual)
        want = np.maximum(x.astype(np.int64) @ weight.astype(np.int64).T + bias, 0) + residual
        assert found.dtype == np.int32 and np.array_equal(found, want)


@pytest.mark.parametrize("name", ["bias", "residual"])
@pytest.mark.parametrize("operands, added", REFUSED, ids=str)
def test_what_sums_cannot_hold_is_refused_before_anything_runs(operands, added, name):
    x, weight, out = numbers((4, 7), operands), numbers((3, 7), operands, 1), np.full((4, 3), np.nan)
    shape = (3,) if name == "bias" else (4, 3)
    with pytest.raises(DTypeError, match=f"linear: {name} is {added}, but the sums of products") as raised:
        ops.linear(x, weight, **{name: np.ones(shape, added.numpy)}, out=out)
    assert raised.value.loc.file == __file__ and np.isnan(out).all()
    cast, to = ("x and weight", added) if added.is_float else (name, accumulator(operands))
    assert raised.value.remedy == f"cast {cast} to {to} first"
    x, weight = (t.astype(added.numpy) if added.is_float else t for t in (x, weight))
    ops.linear(x, weight, **{name: np.ones(shape, to.numpy)}, out=out)
    assert not np.isnan(out).any(), "the advice works"


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_of_integer_sums_are_refused(activation):
    x, weight = numbers((5, 7), i8), numbers((3, 7), i8, 1)
    with pytest.raises(DTypeError, match=f"are i32, but {activation} takes floats") as raised:
        ops.linear(x, weight, activation=activation)
    assert raised.value.loc.file == __file__


def test_tensors_are_refused_like_arrays():
    torch = pytest.importorskip("torch")
    x, weight = torch.ones(4, 7, dtype=torch.float64), torch.ones(3, 7, dtype=torch.float64)
    residual = torch.ones(4, 3, dtype=torch.int32)
    with pytest.raises(DTypeError, match=r"linear: residual is i32, but the sums of products .* are f64"):
        ops.linear(x, weight, residual=residual)
    with pytest.raises(DTypeError, match="linear: residual is i32"):
        ops.linear(x.requires_grad_(), weight, residual=residual)
