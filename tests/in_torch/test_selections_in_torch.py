"""topk and argmax on torch's tensors: against torch, with gradients."""

import pytest

from tilewave import ops

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck


@pytest.mark.parametrize("dim", [0, -1])
def test_as_torch_has_it(dim):
    x = torch.randperm(7 * 40).reshape(7, 40).float()
    for found, want in zip(ops.topk(x, 3, dim), torch.topk(x, 3, dim), strict=True):
        assert torch.equal(found, want)
    assert torch.equal(ops.argmax(x, dim), torch.argmax(x, dim))


def test_gradients():
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.topk(x, 3)[0], (x,))
    torch.library.opcheck(torch.ops.tilewave.topk, (torch.randn(5, 7, requires_grad=True), 2))
