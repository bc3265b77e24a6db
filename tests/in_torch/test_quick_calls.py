"""Replayed calls, with tensors of a known layout, go from a memo to their launch; those that torch must see do not."""

from importlib import import_module

import pytest

import tilewave
from tilewave import ops
from tilewave.errors import CallError
from tilewave.ops.plans import Operated

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
registry = pytest.importorskip("tilewave.torch.registry")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _plans_are_kept_at_once(monkeypatch):
    """However many new layouts came one after the other in the tests before."""
    monkeypatch.setattr("tilewave.ops.plans.MOST_NEW", 10**9)


@pytest.fixture
def seen(monkeypatch):
    """What calls took: `looked` for each that was looked at closely, `torch` for each that torch's dispatcher got."""
    found, closely = [], Operated._closely

    def looked(self, *args):
        found.append("looked")
        return closely(self, *args)

    monkeypatch.setattr(Operated, "_closely", looked)
    for name in ("attention", "product", "row"):
        for operator in vars(import_module(f"tilewave.torch.{name}_operators")).values():
            if isinstance(operator, registry.Operator):

                def registered(*args, by_torch=operator.registered):
                    found.append("torch")
                    return by_torch(*args)

                monkeypatch.setattr(operator, "registered", registered)
    return found


OPERATIONS = {
    "matmul": (ops.matmul, torch.matmul, [(6, 8), (8, 4)]),
    "linear": (
        lambda x, w, b: ops.linear(x, w, b, activation="gelu", residual=x),
        lambda x, w, b: F.gelu(F.linear(x, w, b)) + x,
        [(6, 8), (8, 8), (8,)],
    ),
    "softmax": (ops.softmax, lambda x: F.softmax(x, -1), [(6, 8)]),
    "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, (8,), w, 1e-5), [(6, 8), (8,)]),
    "added": (
        lambda x, r, w: sum(ops.rms_norm(x, w, residual=r)),
        lambda x, r, w: F.rms_norm(x + r, (8,), w, 1e-5) + x + r,
        [(6, 8), (6, 8), (8,)],
    ),
    "layer_norm": (ops.layer_norm, lambda x, w, b: F.layer_norm(x, (8,), w, b), [(6, 8), (8,), (8,)]),
    "attention": (ops.attention, F.scaled_dot_product_attention, [(1, 2, 6, 8)] * 3),
}


def tensors(shapes, **like):
    return [torch.randn(*shape, **like) for shape in shapes]


def near(found, want):
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_second_call_is_not_looked_at(name, seen):
    ours, theirs, shapes = OPERATIONS[name]
    ours(*tensors(shapes))
    seen.clear()
    for _ in range(2):
        given = tensors(shapes)
        near(ours(*given), theirs(*given))
    parameters = [torch.nn.Parameter(t) for t in tensors(shapes)]
    with torch.no_grad():
        near(ours(*parameters), theirs(*parameters))
    assert seen == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_second_step_of_training_is_not_looked_at(name, seen):
    """Forward and backward, and torch's dispatcher gets neither."""
    ours, theirs, shapes = OPERATIONS[name]

    def step(function, given):
        asking = [t.clone().requires_grad_() for t in given]
        found = function(*asking)
        found.backward(torch.ones_like(found) * 0.5)
        return [found.detach(), *(t.grad for t in asking)]

    step(ours, tensors(shapes))
    seen.clear()
    given = tensors(shapes)
    for found, want in zip(step(ours, given), step(theirs, given), strict=True):
        near(found, want)
    assert seen == []


M, N = tilewave.sym.M, tilewave.sym.N


@tilewave.wave([tilewave.WorkgroupConstraint(M, 16, 0), tilewave.WorkgroupConstraint(N, 16, 1)])
def shifted_rows(
    by: tilewave.f32,
    x: tilewave.Memory[M, N, tilewave.GLOBAL_ADDRESS_SPACE, tilewave.f32],
    y: tilewave.Memory[M, N, tilewave.GLOBAL_ADDRESS_SPACE, tilewave.f32],
):
    tilewave.write(tilewave.read(x) + by, y)


def test_an_operator_of_any_kernel_is_not_looked_at_twice_whatever_its_numbers_are(seen):
    shift = tilewave.torch.op(shifted_rows)
    shift(0.5, torch.randn(6, 8))
    seen.clear()
    for by in (0.5, 1.5, -2.0):
        x = torch.randn(6, 8)
        near(shift(by, x), x + by)
    assert seen == []
    with pytest.raises(CallError, match=r"by is .*, but the kernel takes a float"):
        shift("1", torch.randn(6, 8))


def test_autocast_casts_and_is_not_looked_at_twice(seen):
    x, w, b = tensors([(6, 8), (4, 8), (4,)])
    for _ in range(2):
        seen.clear()
        with torch.autocast("cpu", torch.bfloat16):
            found, norm = ops.linear(x, w, b), ops.rms_norm(x.bfloat16())
            want = F.linear(x, w, b)
        assert found.dtype == want.dtype == norm.dtype == torch.bfloat16
        torch.testing.assert_close(found, want, rtol=2**-7, atol=2**-7)
    assert seen == []


class _Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **kwargs or {})


class _Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **kwargs or {})


def test_what_watches_operators_sees_them(seen):
    x = torch.randn(6, 8)
    want = F.softmax(x, -1)
    ops.softmax(x)
    seen.clear()
    with _Counting() as counting:
        near(ops.softmax(x), want)
    assert "tilewave.softmax.default" in counting.names
    with _Functions():
        near(ops.softmax(x), want)
    with torch.autograd.profiler.profile() as profile:
        near(ops.softmax(x), want)
    assert "tilewave::softmax" in [event.name for event in profile.function_events]
    assert seen == ["torch"] * 3
    with pytest.raises(RuntimeError, match="functorch transforms"):  # torch's own operators of Python have none
        torch.func.grad(lambda t: ops.softmax(t)[0, 0])(x)
    seen.clear()
    ops.softmax(x)
    assert seen == []


def test_modes_that_are_about_functions_of_torchs_alone_do_not_watch(seen):
    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.into = torch.nn.Linear(8, 8)

        def forward(self, x):
            return F.scaled_dot_product_attention(*[self.into(x)[None]] * 3)[0]

    model, x = Attends(), torch.randn(6, 8)
    want = model(x)
    tilewave.torch.patch(model)
    for _ in range(2):
        seen.clear()
        with torch.no_grad():
            near(model(x), want)
        with torch.device("cpu"):
            near(ops.softmax(x), F.softmax(x, -1))
    assert seen == []


def test_tensors_that_are_not_what_they_seem_are_left_to_torch(seen):
    class Own(torch.Tensor):
        pass

    x = torch.randn(6, 8)
    ops.softmax(x)
    negated = torch.complex(torch.zeros(6, 8), x).conj().imag
    assert negated.is_neg()
    seen.clear()
    near(ops.softmax(negated), F.softmax(-x, -1))
    near(ops.softmax(x.as_subclass(Own)), F.softmax(x, -1).as_subclass(Own))
    assert ops.softmax(x.to("meta")).is_meta
    assert seen.count("torch") == 3
    assert ops.softmax(x[:0]).shape == (0, 8)


def test_an_out_is_looked_at_once_and_its_version_counts(seen):
    x, out = torch.randn(6, 8), torch.empty(6, 8)
    for what in (["looked"], [], []):
        seen.clear()
        version = out._version
        assert ops.softmax(x, out=out) is out
        near(out, F.softmax(x, -1))
        assert out._version > version and seen == what


def test_digits_that_products_may_drop_are_part_of_a_call(seen):
    """A call with another precision gets another plan, and not that of a call before."""
    a, b = tensors([(6, 8), (8, 4)])
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            near(ops.matmul(a, b), a @ b)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen.count("looked") <= 2


def test_a_compiled_call_is_one_operator_and_is_not_looked_at_twice(seen):
    compiled = torch.compile(lambda x, w: ops.rms_norm(ops.softmax(x), w), fullgraph=True, backend="aot_eager")
    for count in range(3):
        x, w = tensors([(6, 8), (8,)])
        if count:
            seen.clear()
        near(compiled(x, w), F.rms_norm(F.softmax(x, -1), (8,), w, 1e-5))
    assert "looked" not in seen


def test_the_first_call_of_all_may_be_compiled(monkeypatch):
    """A compiler that traces the first call finds the operators that it registers."""
    monkeypatch.setattr("tilewave.ops.arrays._Door.operators", None)
    x = torch.randn(4, 8)
    compiled = torch.compile(lambda x: ops.softmax(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
