"""`tilewave.torch.patch`: layers of a model that are ours, the same numbers, and why others are torch's still."""

import copy
import pickle

import pytest

import tilewave
from tilewave.errors import CallError, SlowCodeWarning

torch = pytest.importorskip("torch", reason="the models are torch's; it is not installed")
nn = torch.nn
patch, unpatch = tilewave.torch.patch, tilewave.torch.unpatch


class Special(nn.Linear):
    pass


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((3, 8))
        self.up = nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 8, bias=False), nn.SiLU())
        self.scaled = nn.RMSNorm(8)
        self.special = Special(8, 4)
        self.shares = nn.Softmax(dim=1)

    def forward(self, x):
        return self.shares(self.special(self.scaled(x + self.up(self.norm(x)))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def test_layers_become_ours_and_it_is_said_which(model):
    report = patch(model)
    assert report.ours == ["norm", "up.0", "up.2", "scaled", "shares"]
    assert report.torchs == {"special": "of another class, Special"}
    assert str(report).splitlines()[1] == "ours   up.0: Linear, with the gelu_tanh after it"


def test_the_same_numbers_and_gradients(model):
    ours, x = copy.deepcopy(model), torch.randn(5, 3, 8)
    patch(ours)
    found, want = ours(x), model(x)
    torch.testing.assert_close(found, want)
    grad = torch.randn_like(want)
    found.backward(grad)
    want.backward(grad)
    for one, other in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_parameters_and_their_names_stay(model):
    before = model.state_dict()
    patch(model)
    assert [*model.state_dict()] == [*before] and model.up[0].weight is dict(model.named_parameters())["up.0.weight"]
    again = pickle.loads(pickle.dumps(model))
    x = torch.randn(5, 3, 8)
    assert torch.equal(again(x), model(x))


def test_patching_twice_changes_nothing_and_unpatching_gives_torch_s_back(model):
    kinds = [type(module) for module in model.modules()]
    patch(model)
    assert patch(model).ours == []
    unpatch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert not hasattr(model.up[0], "activation")


def test_an_activation_that_somebody_looks_at_stays_where_it_is(model):
    seen = []
    model.up[1].register_forward_hook(lambda module, args, output: seen.append(output))
    patch(model)
    model(torch.randn(5, 3, 8))
    assert len(seen) == 1 and isinstance(model.up[1], nn.GELU)


def test_with_inputs_each_layer_is_measured_and_only_the_faster_are_ours(model, monkeypatch):
    times = iter([(1.0, 2.0), (9.0, 2.0), (9.0, 2.0), (3.0, 3.0), (5.0, 4.0)])
    monkeypatch.setattr("tilewave.torch.patching._in_turns", lambda *given: next(times))
    report = patch(model, torch.randn(5, 3, 8))
    assert report.ours == ["norm", "up.0", "up.2", "scaled"]  # with their activations the slower ones are one pass less
    assert report.torchs["shares"] == "torch is faster: ours takes 5 µs compared with torch's 4"
    assert type(model.shares) is nn.Softmax and type(model.scaled) is not nn.RMSNorm


def test_measuring_takes_times_and_leaves_no_hooks(model):
    patch(model, torch.randn(5, 3, 8))
    assert not any(module._forward_pre_hooks for module in model.modules())


class Attention(nn.Module):
    def forward(self, x, causal=True, mask=None, dropped=0.0):
        q, k, v = x
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropped, is_causal=causal and mask is None
        )


def test_a_module_that_calls_attention_gets_ours(monkeypatch):
    from tilewave.torch import attention_calls

    torch.manual_seed(0)
    model, x = nn.Sequential(Attention()), torch.randn(3, 2, 4, 9, 16)
    want, seen = model(x), []
    report = patch(model)
    assert str(report) == "ours   0: scaled_dot_product_attention, where nothing is dropped"
    ours = attention_calls.attention
    monkeypatch.setattr(attention_calls, "attention", lambda *given, **more: seen.append(1) or ours(*given, **more))
    torch.testing.assert_close(model(x), want)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), want)
    mask = torch.rand(2, 1, 9, 9) < 0.7
    mask[..., 0] = True
    theirs = Attention()(x, mask=mask)
    torch.testing.assert_close(model[0](x, mask=mask), theirs)
    assert len(seen) >= 2
    seen.clear()
    model[0](x, dropped=0.5)  # torch's
    model[0]((x[0], x[1, :, :, :5], x[2, :, :, :5]))  # whose causal mask begins at the first key
    assert not seen
    unpatch(model)
    model(x)
    assert not seen and "forward" not in model[0].__dict__


def test_a_patched_model_is_one_graph(model):
    patch(model)
    x = torch.randn(5, 3, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


def test_where_there_is_no_code_of_ours_torch_s_is_taken_and_it_is_said_once(model, monkeypatch):
    from tilewave.errors import TargetError
    from tilewave.torch import layers

    def none(caller, device):
        raise TargetError(f"{caller}: no target is for arrays on {device}")

    patch(model)
    monkeypatch.setattr(layers, "target_of", none)
    layers.has_target.cache_clear()
    x = torch.randn(5, 3, 8)
    with pytest.warns(SlowCodeWarning, match="torch's own layers run there") as warned:
        found = model(x)
    assert len(warned) == 1
    layers.has_target.cache_clear()
    unpatch(model)
    torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize("function", [patch, unpatch])
def test_what_is_no_model_is_refused(function):
    with pytest.raises(CallError, match="this is of int, and no model of torch's"):
        function(3)
