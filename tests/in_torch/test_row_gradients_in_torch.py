"""Gradients of norms, softmax, linear layers and cross entropy in several blocks of rows, against float64 autograd."""

import pytest

from tilewave import ops
from tilewave.kernels.column_sums import HOST_ELEMENTS

torch = pytest.importorskip("torch", reason="the gradients are torch's; it is not installed")
F = torch.nn.functional

UNITS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
ROUNDINGS = 24
CALLS = {
    "rms_norm": (lambda x, w, b: ops.rms_norm(x, w), lambda x, w, b: F.rms_norm(x, w.shape, w, 1e-5)),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, w, b), lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
    "softmax": (lambda x, w, b: ops.softmax(x), lambda x, w, b: x.softmax(-1)),
    "gelu": (
        lambda x, w, b: ops.linear(x, torch.diag(w), b, activation="gelu"),
        lambda x, w, b: F.gelu(F.linear(x, torch.diag(w), b)),
    ),
    "swiglu": (lambda x, w, b: ops.gated(x, x.flip(0)), lambda x, w, b: F.silu(x) * x.flip(0)),
    "geglu": (lambda x, w, b: ops.gated(x, x * w, "gelu"), lambda x, w, b: F.gelu(x) * (x * w)),
    "bias": (lambda x, w, b: ops.linear(x, torch.diag(w), b), lambda x, w, b: F.linear(x, torch.diag(w), b)),
}


def gradients(call, inputs, grad, dtype=None):
    asked = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    result = call(*asked)
    return torch.autograd.grad(result, asked, grad.to(result.dtype), allow_unused=True)


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("shape", [(2 * HOST_ELEMENTS // 63 + 3, 63), (3, 1, 5)], ids=["blocks", "few rows"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.share(8)
def test_gradients_are_those_of_float64_and_the_same_every_time(name, shape, dtype):
    torch.manual_seed(3)
    ours, theirs = CALLS[name]
    inputs = [torch.randn(size, dtype=torch.float64).to(dtype) for size in (shape, shape[-1:], shape[-1:])]
    grad = torch.randn(shape, dtype=torch.float64).to(dtype)
    found, again = (gradients(ours, inputs, grad) for _ in range(2))
    for one, other, want in zip(found, again, gradients(theirs, inputs, grad, torch.float64), strict=True):
        assert (one is None) == (want is None)
        if one is not None:
            assert torch.equal(one, other)
            far = (one.double() - want).abs() / (want.abs() + want.abs().mean())
            assert far.max() <= ROUNDINGS * UNITS[dtype], f"{far.max() / UNITS[dtype]:.1f} units"


@pytest.mark.parametrize("name", CALLS)
def test_gradcheck(name):
    torch.manual_seed(4)
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((6, 5), (5,), (5,))]
    assert torch.autograd.gradcheck(CALLS[name][0], inputs)
