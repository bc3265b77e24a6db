"""cumsum on torch's tensors: against torch, with gradients, compiled."""

import pytest

from tilewave import ops

torch = pytest.importorskip("torch", reason="this operator is torch's; it is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_as_torch_has_it(dim):
    x = torch.randint(-9, 10, (4, 5, 70))
    for dtype in (torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool):
        given = x.to(dtype)
        found, want = ops.cumsum(given, dim), torch.cumsum(given, dim)
        assert torch.equal(found, want) and found.dtype == want.dtype


def test_gradients():
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1):
        assert torch.autograd.gradcheck(lambda x, d=dim: ops.cumsum(x, d), (x,))


def test_it_is_what_torch_expects():
    torch.library.opcheck(torch.ops.tilewave.cumsum, (torch.randn(5, 7, requires_grad=True),))
