"""embedding, index_select, index_add and cross_entropy on torch's tensors: against torch, with gradients, compiled."""

import pytest

from tilewave import ops
from tilewave.errors import CallError

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
F, gradcheck, opcheck = torch.nn.functional, torch.autograd.gradcheck, torch.library.opcheck
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck

IDS = torch.tensor([[3, 0, 3], [9, 3, 1]])
INDEX = torch.tensor([3, 0, 3, 1])
LABELS = torch.tensor([2, -100, 0, 6, 1])
orders = pytest.mark.parametrize("order", ["any order", "sorted"])


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture
def order(request):
    torch.use_deterministic_algorithms(request.param == "sorted")
    yield request.param
    torch.use_deterministic_algorithms(False)


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("order", ["any order", "sorted"], indirect=True)
def test_gradients(order):
    assert gradcheck(lambda w: ops.embedding(w, IDS), (doubles(10, 5),))
    for dim in (0, 1, -1):
        x = doubles(4, 5, 4)
        index = INDEX if dim != 1 else torch.tensor([4, 4, 2, 0])
        assert gradcheck(lambda x, d=dim, i=index: ops.index_select(x, d, i), (x,))
        source = doubles(4, 4, 4) if dim == 1 else doubles(4, 5, 4)
        assert gradcheck(lambda x, s, d=dim, i=index: ops.index_add(x, d, i, s, alpha=3), (x, source))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_gradients_of_losses(reduction, ignored):
    def loss(x):
        return ops.cross_entropy(x, LABELS, reduction=reduction, ignore_index=ignored)

    x = doubles(5, 7)
    assert gradcheck(loss, (x,))
    want = F.cross_entropy(
        x, LABELS.where(LABELS != -100, torch.tensor(ignored)), reduction=reduction, ignore_index=ignored
    )
    torch.testing.assert_close(loss(x), want)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (loss(x), want)]
    torch.testing.assert_close(*grads)


def test_labels_and_ids_out_of_bounds_have_no_gradient():
    x, weight = doubles(3, 7), doubles(4, 5)
    ops.cross_entropy(x, torch.tensor([7, -1, 2**40]), reduction="sum").backward()
    ops.embedding(weight, torch.tensor([4, -1, 2**40])).sum().backward()
    assert not x.grad.any() and not weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", ["any order", "sorted"], indirect=True)
def test_as_torch_has_it(dtype, order):
    weight, ids = torch.randn(50, 24).to(dtype).requires_grad_(), torch.randint(0, 50, (7, 9))
    want, found = F.embedding(ids, weight), ops.embedding(weight, ids)
    assert torch.equal(found, want) and found.dtype == dtype
    grad = torch.randn(7, 9, 24).to(dtype)
    exact = torch.zeros(50, 24, dtype=torch.float64).index_add(0, ids.reshape(-1), grad.reshape(-1, 24).double())
    (got,) = torch.autograd.grad(found, weight, grad)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    x, index, source = torch.randn(5, 50).to(dtype), torch.randint(0, 50, (90,)), torch.randn(5, 90).to(dtype)
    assert torch.equal(ops.index_select(x, 1, index), x.index_select(1, index))
    want = x.double().index_add(1, index, source.double(), alpha=2)
    found = ops.index_add(x, 1, index, source, alpha=2)
    torch.testing.assert_close(found.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("order", ["sorted"], indirect=True)
def test_sums_in_order_have_the_same_bits_whatever_is_beside_them(order):
    x, index = torch.randn(400, 24), torch.randint(0, 9, (400,))
    every = ops.index_add(torch.zeros(9, 24), 0, index, x)
    alone = ops.index_add(torch.zeros(9, 24), 0, index[index == 4], x[index == 4])
    assert torch.equal(every[4], alone[4]) and torch.equal(every, ops.index_add(torch.zeros(9, 24), 0, index, x))


def test_operators_are_what_torch_expects():
    op = torch.ops.tilewave
    logits, weight = torch.randn(5, 7, requires_grad=True), torch.randn(10, 5, requires_grad=True)
    opcheck(op.embedding, (weight, IDS))
    opcheck(op.index_select, (weight, 0, INDEX))
    opcheck(op.index_add, (weight, 0, INDEX, torch.randn(4, 5, requires_grad=True), 2.0))
    for reduction in ("none", "mean"):
        opcheck(op.cross_entropy, (logits, LABELS, -100, reduction))


def test_counts_are_torchs():
    x, weights = torch.randint(0, 50, (300,)), torch.rand(300)
    assert torch.equal(ops.bincount(x, 60), torch.bincount(x, minlength=60))
    torch.testing.assert_close(ops.bincount(x, 60, weights), torch.bincount(x, weights, 60))
    opcheck(torch.ops.tilewave.bincount, (x, None, 60))


def test_compiled_calls():
    weight, logits = torch.randn(10, 5), torch.randn(5, 7)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def model(w, x):
        return ops.embedding(w, IDS).sum() + ops.cross_entropy(x, LABELS) + ops.index_select(w, 1, INDEX).sum()

    want = F.embedding(IDS, weight).sum() + F.cross_entropy(logits, LABELS) + weight.index_select(1, INDEX).sum()
    torch.testing.assert_close(model(weight, logits), want)


def test_out():
    weight, out = torch.randn(10, 5), torch.zeros(2, 3, 5)
    assert ops.embedding(weight, IDS, out=out) is out and torch.equal(out, weight[IDS])
    found = torch.zeros(10, 5, dtype=torch.float64)
    assert ops.index_add(weight, 0, INDEX, weight[:4], out=found) is found
    torch.testing.assert_close(found.float(), weight.index_add(0, INDEX, weight[:4]))
    with pytest.raises(CallError, match="out= has no gradient"):
        ops.embedding(weight.requires_grad_(), IDS, out=out)


def test_losses_under_autocast_are_f32():
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.cross_entropy(torch.randn(5, 7).bfloat16(), LABELS).dtype == torch.float32
