"""dropout on torch's tensors: the mask of the seed, its gradient, compiled."""

import numpy as np
import philox
import pytest

from tilewave import ops

torch = pytest.importorskip("torch", reason="this operator is torch's; it is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck


def masked(x, p, seed):
    at = np.arange(x.numel()).reshape(x.shape)
    return x * torch.from_numpy(philox.uniform(seed, at) >= np.float32(p)).to(x.dtype) / (1 - p)


def test_values_and_gradients():
    x = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ops.dropout(x, 0.3, seed=4), masked(x, 0.3, 4))
    assert torch.autograd.gradcheck(lambda x: ops.dropout(x, 0.3, seed=4), (x,))
    assert not ops.dropout(x, 1.0, seed=4).any()


def test_gradients_of_layouts_draw_the_mask_of_their_positions():
    x = torch.randn(50, 6).t().requires_grad_()
    found = ops.dropout(x, 0.5, seed=2**63)
    (grad,) = torch.autograd.grad(found, x, torch.ones(50, 6).t())
    torch.testing.assert_close(grad, masked(torch.ones(6, 50), 0.5, 2**63))


def test_it_is_what_torch_expects():
    torch.library.opcheck(torch.ops.tilewave.dropout, (torch.randn(5, 7, requires_grad=True), 0.5, 3))


def test_compiled_calls():
    x = torch.randn(5, 70)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def model(x):
        return ops.dropout(x, 0.5, seed=11) + 1

    torch.testing.assert_close(model(x), masked(x, 0.5, 11) + 1)
