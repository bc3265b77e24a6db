"""`tilewave.ops` on torch's tensors: against torch itself, gradients in float64, compiled, exported, under autocast."""

import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
testing = pytest.importorskip("torch._dynamo.testing")
rows_to_float32 = pytest.importorskip("tilewave.torch.autocast").rows_to_float32
F, gradcheck, opcheck = torch.nn.functional, torch.autograd.gradcheck, torch.library.opcheck
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck

PRODUCTS = [
    ((5, 7), (7, 3)),
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 5, 7), (7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((2, 1, 5, 7), (3, 7, 2)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((0, 7), (7, 3)),
    ((5, 0), (0, 3)),
    ((1, 1), (1, 1)),
]
ACTIVATIONS = {
    None: lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def floats(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time():
    torch.manual_seed(0)


def same(found, want, roundings=64):
    """Assert equal shape and dtype, and a difference of some roundings of the dtype, relative to the largest."""
    assert found.shape == want.shape and found.dtype == want.dtype
    if want.numel():
        bound = roundings * torch.finfo(want.dtype).eps * want.abs().max().double()
        assert (found.double() - want.double()).abs().max() <= bound


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a, b", PRODUCTS, ids=str)
def test_gradients_of_products(a, b):
    assert gradcheck(ops.matmul, (doubles(*a), doubles(*b)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_layers(activation):
    def layer(x, weight, bias, residual):
        return ops.linear(x, weight, bias, activation=activation, residual=residual)

    assert gradcheck(layer, (doubles(2, 3, 5), doubles(4, 5), doubles(4), doubles(3, 4)))


def test_gradients_of_a_layer_of_one_row_and_of_none():
    assert gradcheck(lambda x, w: ops.linear(x, w, activation="silu"), (doubles(5), doubles(4, 5)))
    assert gradcheck(lambda x, w, b: ops.linear(x, w, b, activation="silu"), (doubles(0, 5), doubles(4, 5), doubles(4)))


def test_only_what_asks_for_a_gradient_gets_one():
    x, weight, bias = floats(3, 5), floats(4, 5).requires_grad_(), floats(4)
    ops.linear(x, weight, bias, activation="gelu").sum().backward()
    assert weight.grad.shape == weight.shape and x.grad is None and bias.grad is None


@pytest.mark.parametrize("dim", range(-3, 3))
def test_softmax_along_any_axis(dim):
    x = floats(4, 5, 4)
    torch.testing.assert_close(ops.softmax(x, dim), F.softmax(x, dim))


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_gradients_of_softmax(dim):
    assert gradcheck(lambda x: ops.softmax(x, dim), (doubles(3, 5, 2),))


def test_gradients_of_norms():
    assert gradcheck(ops.rms_norm, (doubles(2, 3, 5), doubles(5)))
    assert gradcheck(ops.rms_norm, (doubles(3, 5),))
    assert gradcheck(lambda x, r, w: ops.rms_norm(x, w, residual=r), (doubles(3, 5), doubles(3, 5), doubles(5)))
    assert gradcheck(ops.layer_norm, (doubles(2, 3, 5), doubles(5), doubles(5)))
    assert gradcheck(ops.layer_norm, (doubles(3, 5), doubles(5)))
    assert gradcheck(ops.layer_norm, (doubles(3, 5),))


def test_gradients_of_attention():
    def causal(q, k, v):
        return ops.attention(q, k, v, causal=True)

    def capped(q, k, v, bias):
        return ops.attention(q, k, v, bias=bias, soft_cap=2.0, window=2, scale=0.7)

    assert gradcheck(causal, (doubles(1, 2, 3, 4), doubles(1, 2, 3, 4), doubles(1, 2, 3, 2)))
    assert gradcheck(causal, (doubles(1, 4, 3, 4), doubles(1, 2, 5, 4), doubles(1, 2, 5, 3)))
    assert gradcheck(capped, (doubles(2, 3, 4), doubles(1, 5, 4), doubles(1, 5, 2), doubles(3, 5)))


def test_a_query_that_sees_nothing_has_no_gradient():
    q, k, v = (torch.randn(1, 1, 4, 8, requires_grad=True) for _ in range(3))
    hidden = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool)[1].expand(4, 4).T, -torch.inf)
    y = ops.attention(q, k, v, bias=hidden)
    assert not y[..., 1, :].any()
    y.square().sum().backward()
    assert not q.grad[..., 1, :].any() and all(t.grad.isfinite().all() for t in (q, k, v))


def test_gradients_of_rows_longer_than_a_step():
    """Rows that a CPU takes whole, and that are cut when they are computed."""
    x, weight = doubles(2, 300), doubles(300)
    for ours, theirs in [
        (ops.softmax(x), F.softmax(x, -1)),
        (ops.rms_norm(x, weight), F.rms_norm(x, (300,), weight, 1e-5)),
        (ops.layer_norm(x, weight), F.layer_norm(x, (300,), weight, None, 1e-5)),
    ]:
        grad = torch.randn_like(ours)
        found, wanted = (torch.autograd.grad(y, (x, weight), grad, allow_unused=True) for y in (ours, theirs))
        for one, other in zip(found, wanted, strict=True):
            if other is not None:
                same(one, other)


def test_the_product_of_a_product_is_differentiable_twice():
    assert torch.autograd.gradgradcheck(ops.matmul, (doubles(3, 5), doubles(5, 2)))


# -- against torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_against_torch(dtype):
    x, weight, bias = floats(3, 5, 37, dtype=dtype), floats(11, 37, dtype=dtype), floats(11, dtype=dtype)
    scale = floats(37, dtype=dtype)
    same(ops.matmul(x, weight.T), x @ weight.T)
    same(ops.linear(x, weight, bias, activation="silu"), F.silu(F.linear(x, weight, bias)))
    same(ops.softmax(x), F.softmax(x, -1))
    same(ops.rms_norm(x, scale, 1e-6), F.rms_norm(x, (37,), scale, 1e-6))
    same(ops.layer_norm(x, scale, scale), F.layer_norm(x, (37,), scale, scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_against_torch(dtype):
    q, k, v = floats(2, 4, 20, 16, dtype=dtype), floats(2, 2, 20, 16, dtype=dtype), floats(2, 2, 20, 8, dtype=dtype)
    theirs = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True)
    same(ops.attention(q, k, v, causal=True), theirs.to(dtype))
    same(ops.attention(q[0, 0], k[0, 0], v[0, 0], causal=True), theirs[0, 0].to(dtype))
    apart = ops.attention(
        q.flatten(0, 1), k.repeat_interleave(2, 1).flatten(0, 1), v.repeat_interleave(2, 1).flatten(0, 1)
    )
    same(ops.attention(q, k, v), apart.view(2, 4, 20, 8))


def test_layouts_of_torch():
    x, y = floats(4, 6, 8), floats(8, 6, 4)
    same(ops.matmul(x.permute(2, 1, 0), y.permute(0, 2, 1)), x.permute(2, 1, 0) @ y.permute(0, 2, 1))
    one, many = x[0].expand(3, 6, 8), y[:3].mT.mT.transpose(1, 2)[:, :1].expand(3, 8, 6)
    same(ops.matmul(one, many), one @ many)
    same(ops.softmax(x[:, ::2, 1:]), F.softmax(x[:, ::2, 1:], -1))


def test_torch_and_numpy_get_the_same_bits():
    a, b = floats(19, 33), floats(33, 21)
    assert np.array_equal(ops.matmul(a, b).numpy(), ops.matmul(a.numpy(), b.numpy()))


def test_out_is_written_and_torch_knows():
    a, b, out = floats(3, 5), floats(5, 2), torch.empty(3, 2)
    version = out._version
    assert ops.matmul(a, b, out=out) is out and out._version > version
    same(out, a @ b)
    with pytest.raises(CallError, match="out= has no gradient"):
        ops.matmul(a.requires_grad_(), b, out=out)
    with torch.no_grad():
        assert ops.softmax(a, 0, out=torch.empty(3, 5)).sum(0).sub(1).abs().max() < 1e-6


# -- as operators ----------------------------------------------------------------------------------------------------


def asking(*shape):
    return torch.randn(*shape, requires_grad=True)


def attended():
    """Return what attention with a bias gave, and gradients of that."""
    q, k, v, bias = floats(1, 2, 3, 4), floats(1, 1, 3, 4), floats(1, 1, 3, 5), floats(1, 2, 3, 3)
    y, lse = torch.ops.tilewave.attention(q, k, v, bias, True, None, None, None)
    return q, k, v, bias, y, lse, floats(1, 2, 3, 5), floats(1, 2, 3)


OPERATORS = {
    "matmul": lambda: (asking(2, 5, 7), asking(7, 3)),
    "linear": lambda: (asking(5, 7), asking(3, 7), asking(3), "gelu", asking(5, 3), True),
    "attention": lambda: (asking(1, 2, 3, 4), asking(1, 1, 3, 4), asking(1, 1, 3, 4), None, True, None, None, None),
    "attention_backward": lambda: (*attended(), True, None, None, None, [True, True, True, True]),
    "linear_gradients": lambda: (floats(2, 5, 7), floats(3, 7), floats(2, 5, 3), True, True, torch.float32),
    "softmax": lambda: (asking(5, 7),),
    "rms_norm": lambda: (asking(5, 7), asking(7), 1e-5),
    "add_rms_norm": lambda: (asking(5, 7), asking(5, 7), asking(7), 1e-5),
    "layer_norm": lambda: (asking(5, 7), asking(7), asking(7), 1e-5),
    "activation_backward": lambda: (floats(5, 7), floats(5, 7), "silu"),
    "activation_gradients": lambda: (floats(2, 5, 7), floats(2, 5, 7), "gelu", torch.float32),
    "gated": lambda: (asking(2, 5, 7), asking(2, 5, 7), "silu"),
    "gated_gradients": lambda: (floats(2, 5, 7), floats(2, 5, 7), floats(2, 5, 7), "gelu_tanh"),
    "column_sums": lambda: (floats(2, 5, 7), torch.float32),
    "softmax_backward": lambda: (floats(5, 7), floats(5, 7)),
    "rms_norm_backward": lambda: (floats(5, 7), floats(5, 7), floats(7), floats(5)),
    "rms_norm_gradients": lambda: (floats(5, 7), floats(5, 7), floats(7), floats(5)),
    "layer_norm_backward": lambda: (floats(5, 7), floats(5, 7), None, floats(5), floats(5)),
    "layer_norm_gradients": lambda: (floats(5, 7), floats(5, 7), floats(7), floats(5), floats(5)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_what_torch_wants(name):
    opcheck(getattr(torch.ops.tilewave, name).default, OPERATORS[name]())


def test_operators_whose_results_are_not_all_wanted_and_those_of_other_layouts():
    *given, _, y, lse, grad, _ = attended()
    wanted = False, None, None, None, [False, True, False, False]
    opcheck(torch.ops.tilewave.attention_backward.default, (*given, None, y, lse, grad, None, *wanted))
    x, weight, grad = floats(5, 7), floats(3, 7), floats(5, 3)
    opcheck(torch.ops.tilewave.linear_gradients.default, (x, weight, grad, False, True, None))
    q, k, v = (asking(2, 3, heads, 4).transpose(1, 2) for heads in (2, 1, 1))
    opcheck(torch.ops.tilewave.attention.default, (q, k, v, None, True, None, None, None))


def test_a_layer_whose_sums_were_not_kept_computes_them_again():
    opcheck(torch.ops.tilewave.linear.default, (asking(5, 7), asking(3, 7), asking(3), "gelu", None, False))


def network(x, weight, bias, scale):
    return ops.softmax(ops.linear(ops.rms_norm(x, scale), weight, bias, activation="silu"))


def parts(rows):
    return floats(rows, 16), floats(8, 16), floats(8), floats(16)


def test_one_graph_and_one_compilation_serve_every_batch():
    counter = testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counter)
    _, weight, bias, scale = parts(1)
    for rows in range(3, 23):
        x = floats(rows, 16).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        y = compiled(x, weight, bias, scale)
        same(y, network(x, weight, bias, scale))
        (found,) = torch.autograd.grad(y.square().sum(), x)
        (want,) = torch.autograd.grad(network(x, weight, bias, scale).square().sum(), x)
        same(found, want)
    assert counter.frame_count == 1


def test_a_model_is_exported_with_its_operators():
    class Network(torch.nn.Module):
        def forward(self, x, weight, bias, scale):
            return network(x, weight, bias, scale)

    rows = torch.export.Dim("rows", min=2)
    shapes = {"x": {0: rows}, "weight": None, "bias": None, "scale": None}
    exported = torch.export.export(Network(), parts(4), dynamic_shapes=shapes)
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert [name for name in called if "tilewave" in name] == [
        "tilewave.rms_norm.default",
        "tilewave.linear.default",
        "tilewave.softmax.default",
    ]
    again = parts(9)
    same(exported.module()(*again), network(*again))


def test_meta_and_fake_tensors_have_shapes_alone():
    x, weight = torch.empty(4, 5, device="meta"), torch.empty(6, 5, device="meta")
    assert ops.linear(x, weight, activation="gelu").shape == (4, 6)
    assert ops.matmul(x.half(), weight.half().T).dtype == torch.float16
    with torch._subclasses.FakeTensorMode():
        assert ops.softmax(torch.empty(4, 5)).shape == (4, 5)


def test_autocast_takes_products_in_its_dtype_and_rows_in_theirs_as_torch_does_on_cpus():
    x, weight = floats(4, 5), floats(6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.matmul(x, weight.T).dtype == ops.linear(x, weight).dtype == torch.bfloat16
        for dtype in (torch.float32, torch.bfloat16):
            assert F.softmax(x.to(dtype), -1).dtype == F.layer_norm(x.to(dtype), (5,)).dtype == dtype
            assert ops.softmax(x.to(dtype)).dtype == ops.layer_norm(x.to(dtype)).dtype == dtype
    assert rows_to_float32("cuda", (x.bfloat16(), None, 1e-5))[0].dtype == torch.float32
    same(ops.matmul(x, weight.T), x @ weight.T)


def test_a_profiler_sees_the_operators():
    a, b = floats(4, 5), floats(5, 6)
    ops.matmul(a, b)  # compiled by now
    with torch.profiler.profile() as profile:
        ops.matmul(a, b)
    assert "tilewave::matmul" in {event.key for event in profile.key_averages()}


def test_arrays_of_two_libraries_are_refused_with_the_author_s_line():
    with pytest.raises(CallError, match="b is no tensor of torch's") as raised:
        ops.matmul(floats(3, 3), np.ones((3, 3), np.float32))
    assert raised.value.loc.file == __file__


def test_what_does_not_fit_is_told_past_torch_s_frames():
    with pytest.raises(CallError, match="a has 5 columns, but b 4 rows") as raised:
        ops.matmul(asking(3, 5), asking(4, 3))
    assert raised.value.loc.file == __file__
