"""Patched models under autocast: compared with float64, the dtypes of torch, and casts that a region makes once."""

import copy
import weakref

import pytest

import tilewave
from tilewave import ops

torch = pytest.importorskip("torch", reason="autocast is torch's; it is not installed")
layers = pytest.importorskip("tilewave.torch.layers")
autocast = pytest.importorskip("tilewave.torch.autocast")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
nn = torch.nn
BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # by torch's RMSNorm

REPORT = """\
ours   0: LayerNorm
ours   1: Linear, with the gelu after it, {0}
ours   3: Linear, {0}
ours   4: RMSNorm"""
ONLY = "under autocast; otherwise torch's, since sm_90a has no products of f32 that keep all its digits"


def region(**given):
    return torch.autocast("cpu", BF16, **given)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(41), nn.Linear(41, 73), nn.GELU(), nn.Linear(73, 23), nn.RMSNorm(23))


@pytest.fixture
def without_f32(monkeypatch):
    """Layers decide as on a chip that has no matrix instructions for f32; the kernels that they call are the CPU's."""
    monkeypatch.setattr(layers, "target_of", lambda caller, device: "sm_90a")
    layers.why_no_products.cache_clear()
    yield
    layers.why_no_products.cache_clear()


@pytest.fixture
def products(monkeypatch):
    """The dtypes of the products that patched layers compute with tilewave's kernels."""
    found, ours = [], layers.linear

    def linear(*args):
        result = ours(*args)
        found.append(result.dtype)
        return result

    monkeypatch.setattr(layers, "linear", linear)
    return found


def step(model, run, dtype=None):
    """Return a model's output and the gradients of its input and its parameters."""
    generator, weight = torch.Generator().manual_seed(1), next(model.parameters())
    x = torch.randn(7, 5, 41, generator=generator).to(weight.dtype).requires_grad_()
    grad = torch.randn(7, 5, 23, generator=generator).bfloat16()
    model.zero_grad()
    with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
        y = run(x)
    y.backward(grad.to(y.dtype))
    return [y.detach(), x.grad, *[p.grad for p in model.parameters()]]


RUNS = {
    "eager": lambda model: model,
    "compiled": lambda model: torch.compile(model, fullgraph=True, backend="aot_eager"),
    "recomputed": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "recomputed by a reentrant pass": lambda model: lambda x: checkpoint(model, x, use_reentrant=True),
}


@pytest.mark.parametrize("way", RUNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_patched_model_is_as_near_to_float64_as_torch_s_and_has_its_dtypes(model, way, dtype, products):
    ours, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    tilewave.torch.patch(ours)
    found, theirs, exact = step(ours, RUNS[way](ours), dtype), step(model, model, dtype), step(wide, wide)
    for one, other, want in zip(found, theirs, exact, strict=True):
        assert one.dtype == other.dtype and one.isfinite().all()
        off, theirs_off = ((t.double() - want).abs().max() for t in (one, other))
        assert off <= 2 * theirs_off
    assert products and {*products} == {dtype}


def test_a_region_inside_of_a_compiled_function_and_calls_with_and_without_one(model):
    ours = copy.deepcopy(model)
    tilewave.torch.patch(ours)
    compiled, x = torch.compile(lambda x: ours[1](x), fullgraph=True, backend="aot_eager"), torch.randn(6, 41)
    for _ in range(2):
        assert torch.equal(compiled(x), ours[1](x)) and compiled(x).dtype == torch.float32
        with region():
            assert torch.equal(compiled(x), ours[1](x)) and compiled(x).dtype == BF16


# which calls have a kernel --------------------------------------------------------------------------------------------


def test_without_products_of_f32_layers_are_ours_under_autocast_alone(model, products, without_f32):
    ours = copy.deepcopy(model)
    assert str(tilewave.torch.patch(ours)) == REPORT.format(ONLY)
    x = torch.randn(5, 41)
    torch.testing.assert_close(ours(x), model(x))  # the fused activation too
    assert not products
    with region(), torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=2**-5, atol=2**-5)
    assert products == [BF16] * 2
    ours[1].double()(x.double())
    assert len(products) == 3  # there are products of f64


def test_f32_products_are_ours_where_their_digits_may_be_dropped(model, products, without_f32):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert "torch" not in str(tilewave.torch.patch(model))
        model(torch.randn(5, 41))
        assert products == [torch.float32] * 2
        torch.set_float32_matmul_precision("highest")
        model(torch.randn(5, 41))
        assert len(products) == 2
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_layer_that_torch_runs_for_the_given_inputs_is_not_timed(model, monkeypatch, without_f32):
    timed = []
    monkeypatch.setattr("tilewave.torch.patching._in_turns", lambda layer, *given: timed.append(layer) or (1.0, 2.0))
    report = tilewave.torch.patch(copy.deepcopy(model), torch.randn(5, 41))
    assert str(report.layers[2]).endswith(f"{ONLY}, and not timed, since these inputs are not under autocast")
    assert len(timed) == 2 and not report.torchs
    with region():
        report = tilewave.torch.patch(model, torch.randn(5, 41))
    assert str(report.layers[2]).endswith(f"{ONLY}, 1 µs compared with torch's 2") and len(timed) == 6


def test_attention_is_asked_for_the_dtype_of_autocast(monkeypatch):
    from tilewave.torch import attention_calls

    asked, q = [], torch.randn(1, 2, 9, 16)
    monkeypatch.setattr(attention_calls, "takes", lambda device, dtype: asked.append(dtype) or dtype == BF16)
    call = attention_calls.scaled_dot_product_attention
    torch.testing.assert_close(call(q, q, q), nn.functional.scaled_dot_product_attention(q, q, q))
    with region():
        assert call(q, q.bfloat16(), q).dtype == BF16
    assert asked == [torch.float32, BF16]
    model = nn.Linear(2, 2)
    assert attention_calls.where_ours(model) == "in 16-bit floats, where nothing is dropped"


# casts ----------------------------------------------------------------------------------------------------------------


def cast(x):
    return autocast.to_autocast_dtype("cpu", (x,))[0]


def test_a_parameter_is_cast_once_in_a_region_and_the_cast_is_freed_after_it():
    weight = nn.Parameter(torch.randn(3, 5))
    with region():
        first = cast(weight)
        with region():
            assert cast(weight) is first and first.dtype == BF16
        assert cast(weight) is first and cast(nn.Parameter(weight.detach())) is not first
        kept = weakref.ref(first)
        del first
        assert kept() is not None
    assert kept() is None
    with region():
        weight.data.mul_(2)  # which no version counts
        assert torch.equal(cast(weight), weight.bfloat16())


def test_a_cast_is_made_again_where_its_parameter_has_changed():
    weight = nn.Parameter(torch.randn(3, 5))
    with region(), torch.no_grad():
        first = cast(weight)
        weight.mul_(2)
        assert torch.equal(cast(weight), 2 * first)
        weight.data = torch.ones(3, 5)
        assert torch.equal(cast(weight), torch.ones(3, 5, dtype=BF16))


def test_a_cast_made_without_gradients_serves_no_call_with_them():
    weight, x = nn.Parameter(torch.randn(3, 5)), torch.randn(4, 5)
    with region():
        for without in (torch.no_grad, torch.inference_mode):
            with without():
                ops.linear(x, weight)
        y = ops.linear(x, weight) + ops.linear(x, weight)
    y.sum().backward()
    torch.testing.assert_close(weight.grad, 2 * x.bfloat16().float().sum(0).expand(3, 5), rtol=2**-7, atol=2**-7)


def test_regions_without_a_cache_and_what_is_no_parameter_keep_nothing():
    weight = nn.Parameter(torch.randn(3, 5))
    with region(cache_enabled=False):
        assert cast(weight) is not cast(weight)
    with region():
        for other in (weight * 1, weight.detach(), weight[:2], nn.Parameter(weight.detach().half())):
            assert cast(other) is not cast(other)
        cast(weight)
        with region(cache_enabled=False):
            assert cast(weight) is not cast(weight)


def test_the_gradient_of_a_bias_is_summed_and_stored_in_f32():
    layer, grad = nn.Linear(8, 4), torch.randn(1000, 4).bfloat16()
    with region():
        ops.linear(torch.randn(1000, 8), layer.weight, layer.bias).backward(grad)
    want = grad.double().sum(0)
    assert (layer.bias.grad - want).abs().max() <= 1000 * torch.finfo(torch.float32).eps * grad.abs().sum(0).max()
    assert (want.bfloat16() - layer.bias.grad).abs().max() > 0  # a sum in bf16 would have fewer digits
