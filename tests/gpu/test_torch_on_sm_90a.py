"""`tilewave.ops` and `tilewave.torch` on CUDA tensors: against torch, compiled, recorded into graphs, on streams."""

import pytest

import tilewave
from tilewave import *
from tilewave import ops
from tilewave.errors import CallError, TargetError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::tilewave.errors.SlowCodeWarning"),  # layouts that lanes load
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # by opcheck
]
HALVES = ["float16", "bfloat16"]
M, N = sym.M, sym.N
GLOBAL = GLOBAL_ADDRESS_SPACE


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time(torch):
    torch.manual_seed(0)


@pytest.fixture
def numbers(torch):
    return lambda *shape, dtype="float16": torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def same(torch, found, want, roundings=8):
    """Apart by some roundings of the result's dtype, relative to the largest; `want` has more digits."""
    assert found.shape == want.shape
    if want.numel():
        bound = roundings * torch.finfo(found.dtype).eps * want.abs().max().double()
        assert (found.double() - want.double()).abs().max() <= bound


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
def test_products_in_every_layout(torch, numbers, dtype, a_turned, b_turned):
    for m, n, k in ((256, 384, 192), (37, 41, 131), (1, 1, 1), (5, 3, 0)):
        a = numbers(k, m, dtype=dtype).T if a_turned else numbers(m, k, dtype=dtype)
        b = numbers(n, k, dtype=dtype).T if b_turned else numbers(k, n, dtype=dtype)
        same(torch, ops.matmul(a, b), a.double() @ b.double())


def test_batches_are_broadcast(torch, numbers):
    for a, b in (
        ((2, 70, 64), (64, 40)),
        ((2, 70, 64), (2, 64, 40)),
        ((3, 1, 70, 64), (2, 64, 40)),
        ((64,), (2, 64, 40)),
    ):
        x, y = numbers(*a), numbers(*b)
        same(torch, ops.matmul(x, y), x.double() @ y.double())


def test_layers_and_their_gradients(torch, numbers):
    F = torch.nn.functional
    for activation, theirs in (("gelu", F.gelu), ("silu", F.silu), ("relu", F.relu)):
        given = [numbers(*shape).requires_grad_() for shape in ((3, 70, 128), (96, 128), (96,), (3, 70, 96))]
        wide = [t.detach().double().requires_grad_() for t in given]
        x, weight, bias, residual = given
        found = ops.linear(x, weight, bias, activation=activation, residual=residual)
        want = theirs(F.linear(*wide[:3])) + wide[3]
        same(torch, found, want)
        grad = torch.randn_like(found)
        found.backward(grad)
        want.backward(grad.double())
        for one, other in zip(given, wide, strict=True):
            same(torch, one.grad, other.grad, 32)


def test_rows_and_their_gradients(torch, numbers):
    F = torch.nn.functional
    for columns in (64, 1000, 4096, 20000):
        given = [numbers(*shape).requires_grad_() for shape in ((33, columns), (columns,), (columns,))]
        wide = [t.detach().double().requires_grad_() for t in given]
        found = ops.softmax(given[0]), ops.rms_norm(*given[:2]), ops.layer_norm(*given)
        want = (
            F.softmax(wide[0], -1),
            F.rms_norm(wide[0], (columns,), wide[1], 1e-5),
            F.layer_norm(wide[0], (columns,), wide[1], wide[2]),
        )
        for one, other in zip(found, want, strict=True):
            same(torch, one, other)
            grad = torch.randn_like(one)
            of_one = torch.autograd.grad(one, given, grad, allow_unused=True)
            of_other = torch.autograd.grad(other, wide, grad.double(), allow_unused=True)
            for ours, theirs in zip(of_one, of_other, strict=True):
                if theirs is not None:
                    same(torch, ours, theirs, 64)


def test_products_of_f32_keep_their_digits_or_are_refused(torch):
    a = torch.randn(64, 64, device="cuda")
    with pytest.raises(TargetError, match="keep all its digits"):
        ops.matmul(a, a)
    torch.set_float32_matmul_precision("high")
    try:
        assert (ops.matmul(a, a).double() - a.double() @ a.double()).abs().max() < 64 * 2**-9 * a.abs().max() ** 2
    finally:
        torch.set_float32_matmul_precision("highest")


def test_operators_are_what_torch_wants(torch, numbers):
    asking = lambda *shape: numbers(*shape).requires_grad_()  # noqa: E731
    every = torch.ops.tilewave
    ops.matmul(numbers(2, 2), numbers(2, 2))
    torch.library.opcheck(every.matmul.default, (asking(2, 64, 64), asking(64, 32)))
    torch.library.opcheck(every.linear.default, (asking(64, 64), asking(32, 64), asking(32), "gelu", None, True))
    torch.library.opcheck(every.rms_norm.default, (asking(64, 64), asking(64), 1e-5))
    torch.library.opcheck(every.softmax.default, (asking(64, 64),))


def network(x, weight, bias, scale):
    return ops.softmax(ops.linear(ops.rms_norm(x, scale), weight, bias, activation="silu"))


@pytest.mark.filterwarnings("ignore")  # of inductor's own
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_compilation_serves_every_batch(torch, numbers, mode):
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    counter = testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(network, fullgraph=True, backend=counter) if mode == "default" else None
    compiled = compiled or torch.compile(network, fullgraph=True, mode=mode)
    weight, bias, scale = numbers(96, 128), numbers(96), numbers(128)
    for rows in (64, 100, 7) if mode == "default" else (64, 64, 64, 100, 100, 100):
        x = numbers(rows, 128)
        if mode == "default":
            torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            same(torch, compiled(x, weight, bias, scale), network(x.clone(), weight, bias, scale))
    assert mode != "default" or counter.frame_count == 1


def test_a_kernel_as_an_operator(torch):
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 64, 1)])
    def square(x: Memory[M, N, GLOBAL, f32], y: Memory[M, N, GLOBAL, f32]):
        write(read(x) * read(x), y)

    squared = tilewave.torch.op(square, backward=lambda x, grad_y: {"x": 2 * x * grad_y}, name="squared_on_cuda")
    x = torch.randn(70, 90, device="cuda", requires_grad=True)
    y = squared(x)
    y.sum().backward()
    assert torch.equal(y, x * x) and torch.equal(x.grad, 2 * x)
    torch.library.opcheck(squared.operator.default, (x.detach().requires_grad_(),))
    with pytest.raises((CallError, RuntimeError)):
        tilewave.torch.op(square, results=())(x.detach(), torch.empty(70, 90))


def test_work_is_put_on_the_current_stream(torch, numbers):
    a, b = numbers(512, 512), numbers(512, 512)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a2 = a * 2
        found = ops.matmul(a2, b)
    stream.synchronize()
    same(torch, found, 2 * a.double() @ b.double())


def test_graphs_of_one_kernel_run_side_by_side(torch):
    """For a product with stream-K: partial sums are exchanged in memory that belongs to the launch."""
    m, n, k = 4864, 4096, 4160
    integers = lambda *shape: torch.randint(-2, 3, shape, device="cuda").half()  # noqa: E731  their sums are exact
    pairs = [(integers(m, k), integers(n, k).T) for _ in range(2)]
    outs = [torch.zeros(m, n, device="cuda", dtype=torch.half) for _ in pairs]
    want = [(a.float() @ b.float()).half() for a, b in pairs]
    ops.matmul(*pairs[0], out=outs[0])  # compiled and loaded
    graphs, streams = [], [torch.cuda.Stream() for _ in pairs]
    for (a, b), out in zip(pairs, outs, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                ops.matmul(a, b, out=out)
        graphs.append(graph)
    for _ in range(10):
        for out in outs:
            out.zero_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, right) for out, right in zip(outs, want, strict=True))
    for _ in range(6):  # graphs come and go, and their memory is used again
        graphs.pop(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.matmul(*pairs[0], out=outs[0])
        graphs.append(graph)
        outs[0].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(outs[0], want[0])


def test_a_profiler_sees_the_kernels_by_their_names(torch, numbers):
    x, weight, bias = numbers(256, 256), numbers(256, 256), numbers(256)
    ops.linear(x, weight, bias, activation="gelu")
    with torch.profiler.profile(acc_events=True) as profile:
        ops.linear(x, weight, bias, activation="gelu")
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert "linear_bias_gelu" in names and "tilewave::linear" in names


def layers_and_their_report(torch):
    model = torch.nn.Sequential(torch.nn.Linear(72, 136), torch.nn.GELU(), torch.nn.Linear(136, 72)).cuda()
    return model, str(tilewave.torch.patch(model))


def trained(torch, model, x, grad, *, is_cast=True):
    """Return a model's output and the gradients of its parameters."""
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=is_cast):
        y = model(x)
    y.backward(grad.to(y.dtype))
    return [y.detach(), *[p.grad for p in model.parameters()]]


def test_patched_layers_in_f32_are_ours_under_autocast(torch, numbers):
    model, report = layers_and_their_report(torch)
    assert report.count("under autocast; otherwise torch's") == 2
    x, grad = numbers(3, 33, 72, dtype="float32"), numbers(3, 33, 72, dtype="bfloat16")
    found, plain = trained(torch, model, x, grad), trained(torch, model, x, grad, is_cast=False)
    with torch.autocast("cuda", torch.bfloat16), torch.profiler.profile(acc_events=True) as profile:
        model(x)
    assert "tilewave::linear" in {event.key for event in profile.key_averages()}
    tilewave.torch.unpatch(model)
    wide = trained(torch, model.double(), x.double(), grad.double(), is_cast=False)
    for one, in_f32, want in zip(found, plain, wide, strict=True):
        bound = want.abs().max()
        assert (one.double() - want).abs().max() <= 2**-5 * bound
        assert (in_f32.double() - want).abs().max() <= 2**-12 * bound
    assert found[0].dtype == torch.bfloat16 and all(grad.dtype == torch.float32 for grad in found[1:])


def test_a_graph_casts_the_parameters_that_it_finds_when_it_is_replayed(torch, numbers):
    model, _ = layers_and_their_report(torch)
    x, grad = numbers(64, 72, dtype="float32"), numbers(64, 72, dtype="bfloat16")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        trained(torch, model, x, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = trained(torch, model, x, grad)
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1.5)
        graph.replay()
        torch.cuda.synchronize()
        found = [t.clone() for t in recorded]
        for one, want in zip(found, trained(torch, model, x, grad), strict=True):
            assert torch.equal(one, want)
