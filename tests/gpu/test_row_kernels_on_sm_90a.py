"""The built-in row kernels on CUDA tensors: every length, dtype and layout, against float64."""

import numpy as np
import pytest
import row_kernels as of
from row_kernels import choose, precision

from tilewave import *
from tilewave import kernels as shipped

pytestmark = [
    pytest.mark.gpu,
    # Arrays of any kind are moved by lanes, element by element: that takes more registers than long rows leave.
    pytest.mark.filterwarnings("ignore::tilewave.errors.SpillWarning"),
    pytest.mark.filterwarnings("ignore::tilewave.errors.SlowCodeWarning"),
]
PROBLEMS = {
    "softmax": of.softmax,
    "log_softmax": of.log_softmax,
    "cross_entropy": of.cross_entropy,
    "layer_norm": lambda m, n, dtype, **more: of.layer_norm(m, n, dtype, weight=dtype, bias=dtype, **more),
    "rms_norm": lambda m, n, dtype, **more: of.rms_norm(m, n, dtype, weight=dtype, residual=dtype, **more),
    "sum": of.sum_,
    "argmax": of.argmax,
    "cumsum": of.cumsum,
}
LENGTHS = {f16: [1, 13, 257, 1000, 1024, 5120, 16384, 65536, 65537, 200_000], f32: [37, 1000, 32768, 32769]}
names = pytest.mark.parametrize("name", PROBLEMS)
TORCH_NAMES = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}


def as_they_are(a):
    return a


def with_gaps(a):
    """Between columns: lanes go from element to element."""
    return a if a.ndim < 2 else a.new_zeros((a.shape[0], 2 * a.shape[1] + 1))[:, 1::2].copy_(a)


def in_wider_rows(a):
    """Return rows that are not aligned to cache lines."""
    return a if a.ndim < 2 else a.new_zeros((a.shape[0], a.shape[1] + 3))[:, 1:-2].copy_(a)


def on_the_card(torch, a):
    """A numpy array of any dtype; torch takes the bits of those that numpy does not know."""
    name = of.NUMPY_DTYPES[a.dtype].name
    if name not in TORCH_NAMES:
        return torch.from_numpy(a).cuda()
    return torch.from_numpy(a.view(f"i{a.dtype.itemsize}")).cuda().view(getattr(torch, TORCH_NAMES[name]))


def off_the_card(torch, tensor, dtype):
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return tensor.contiguous().view(bits).cpu().numpy().view(dtype)


def check(torch, problem, lie=as_they_are):
    """Twice into poisoned outputs: right, and the same to the last bit."""
    given = {name: lie(on_the_card(torch, a)) for name, a in problem.given.items()}
    results = []
    for _ in range(2):
        written = {name: lie(on_the_card(torch, a)) for name, a in problem.written.items()}
        getattr(shipped, problem.name)(**given, **written, **problem.numbers)
        torch.cuda.synchronize()
        results.append({n: off_the_card(torch, t, problem.written[n].dtype) for n, t in written.items()})
    for name in problem.written:
        assert results[0][name].tobytes() == results[1][name].tobytes(), f"{name}: two launches differ"
    rows, (m, n) = choose(problem, "sm_90a"), problem.given["x"].shape
    if m and n:
        problem.check(**results[0], p=precision(problem, "sm_90a", rows, n))


@names
@pytest.mark.parametrize("dtype, n", [(dtype, n) for dtype, lengths in LENGTHS.items() for n in lengths], ids=str)
def test_rows_of_every_length(torch, name, dtype, n):
    check(torch, PROBLEMS[name](7 if n > 1024 else 261, n, dtype))


@names
@pytest.mark.parametrize("n", [37, 1024, 5120])
def test_bf16(torch, name, n):
    check(torch, PROBLEMS[name](33, n, bf16))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "sum", "argmax", "cumsum"])
@pytest.mark.parametrize("n", [37, 1024, 16384, 20_000])
def test_f64_where_gpus_have_its_functions(torch, name, n):
    check(torch, PROBLEMS[name](9, n, f64))


@pytest.mark.parametrize("name", ["sum", "argmax", "cumsum"])
@pytest.mark.parametrize("dtype", [f8e4m3fn, f8e5m2, i8, i32, i64], ids=str)
def test_bytes_and_integers(torch, name, dtype):
    for n in (37, 1024, 140_000):
        check(torch, PROBLEMS[name](5, n, dtype))


@names
@pytest.mark.parametrize("m", [0, 1])
def test_no_rows_and_one(torch, name, m):
    check(torch, PROBLEMS[name](m, 1000, f16))


@names
@pytest.mark.parametrize("lie", [with_gaps, in_wider_rows], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [37, 1024, 70_000])
def test_rows_however_they_lie(torch, name, lie, n):
    check(torch, PROBLEMS[name](5, n, f16), lie)


@pytest.mark.parametrize("kind", of.KINDS)
@pytest.mark.parametrize("n", [70, 1024, 65536, 70_000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])
def test_masked_and_offset_rows(torch, name, n, kind):
    check(torch, PROBLEMS[name](5, n, f16, kind=kind))


@pytest.mark.parametrize("kind", ["offset", "one value"])
@pytest.mark.parametrize("n", [70, 1024, 32768, 70_000])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_of_rows_far_from_0(torch, name, n, kind):
    check(torch, PROBLEMS[name](5, n, f32, kind=kind))


def test_calls_follow_the_stream_and_stand_in_graphs(torch):
    x = torch.randn(512, 4096, device="cuda", dtype=torch.float16)
    y, plain = torch.empty_like(x), torch.empty_like(x)
    shipped.softmax(x, plain)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shipped.softmax(x, y)
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, plain)
    assert np.isfinite(y.float().cpu().numpy()).all()
