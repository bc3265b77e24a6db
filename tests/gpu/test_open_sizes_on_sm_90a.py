"""One compiled kernel for all sizes on a real GPU, against float64: every class of arrays, ragged, tiny and empty."""

from functools import cache

import kernels
import numpy as np
import pytest
import seeds

from tilewave import *
from tilewave import kernels as shipped
from tilewave.bench.gpu import Arena, error_bound

pytestmark = [
    pytest.mark.gpu,
    # Arrays of any kind are moved by lanes, element by element: that takes more registers than a large tile leaves.
    pytest.mark.filterwarnings("ignore::tilewave.errors.SpillWarning"),
]
OPEN = (kernels.M, kernels.N, kernels.K)
TILE = (128, 256, 64)
ON_LINES, UNALIGNED_LINES = "rows on cache lines", "rows on 16 bytes"
CONTIGUOUS, ANY = "contiguous rows", "any arrays"


def left_open(subs):
    return {name: value for name, value in subs.items() if name not in OPEN}


@cache
def gemm(dtype=f16, out=f16, tile=TILE, mapping="grouped(12)"):
    made = shipped.gemm((512, 512, 512), dtype, out, tile=tile, mapping=mapping)
    return wave_compile(WaveCompileOptions(subs=left_open(made.subs), target="sm_90a"), made.kernel)


@cache
def of_a_document(seed):
    return wave_compile(WaveCompileOptions(subs=left_open(seed.subs(512, 512, 512)), target="sm_90a"), seed.kernel)


def poison(torch, c):
    return c.fill_(float("nan") if c.is_floating_point() else torch.iinfo(c.dtype).min)


def check(torch, compiled, shape, dtype=f16, out=f16):
    """Three launches into poisoned outputs, with something around them: right, and the same to the last bit."""
    m, n, k = shape
    arena = Arena.of(torch, shape, dtype, 1)
    whole = torch.empty((m + 2, n), device="cuda", dtype=arena.output(out).dtype)
    results = []
    for _ in range(3):
        c = poison(torch, whole)[1:-1]
        compiled(arena.a, arena.b, c)
        torch.cuda.synchronize()
        results.append(whole.cpu())
    for edge in (0, -1):
        assert torch.equal(results[0][edge].view(torch.uint8), poison(torch, whole)[edge].cpu().view(torch.uint8))
    c = results[0][1:-1].cuda()
    assert all(torch.equal(results[0].view(torch.uint8), other.view(torch.uint8)) for other in results[1:])
    if not k:
        assert not c.any()
    elif m and n:
        assert arena.relative_error(c) <= error_bound(k, dtype, out)


SHAPES = [
    (1, 8, 64),
    (128, 256, 64),
    (2048, 2048, 2048),
    (512, 512, 65536),
    (4864, 1024, 4160),
    (1000, 1024, 4096),
    (128 * 133, 256, 128),
    (1, 100000, 64),
    (1, 8, 8),
    (40, 72, 136),
    (300, 264, 136),
    (129, 8, 72),
    (1000, 1000, 1000),
    (384, 256, 520),
    (128 * 27, 256 * 5, 72),
    (1025, 1008, 264),
    (4872, 1000, 4168),
    (3000, 5000, 1000),
    (5000, 3000, 4104),
    (1, 1, 1),
    (100, 77, 35),
    (127, 257, 72),
    (129, 250, 64),
    (300, 264, 1001),
    (2600, 5001, 1032),
    (100000, 3, 64),
    (70, 72, 0),
    (0, 256, 64),
    (128, 0, 64),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_kernel_for_all_shapes(torch, shape):
    check(torch, gemm(), shape)


@pytest.mark.parametrize("shape", [(129, 250, 64), (2600, 5001, 1032), (1, 3, 64)])
def test_columns_behind_the_last_are_left_alone(torch, shape):
    """The row stride is larger than the number of columns; TMA stores would write into the gap."""
    m, n, k = shape
    a, b = (torch.randn((rows, k), device="cuda").half() for rows in (m, n))
    whole = torch.full((m, -(-n // 8) * 8 + 8), 7.0, device="cuda").half()
    gemm()(a, b, whole[:, :n])
    assert (whole[:, n:] == 7).all()
    wanted = a.double() @ b.double().T
    assert ((whole[:, :n].double() - wanted).norm() / wanted.norm()).item() <= error_bound(k, f16, f16)


def test_few_binaries_are_all_it_ever_has(torch):
    compiled = gemm()
    for shape in SHAPES:
        check(torch, compiled, shape)
    assert {*compiled.binaries} <= {ON_LINES, UNALIGNED_LINES, CONTIGUOUS, ANY}
    assert len(compiled.build.program.programs) <= 4


@pytest.mark.parametrize(
    "shape", [(512, 512, 256), (300, 264, 136), (1000, 1000, 1000), (65, 67, 33), (1, 1, 1)], ids=str
)
@pytest.mark.parametrize("seed", seeds.SEEDS[:3], ids=repr)
def test_the_kernels_of_the_documents(torch, seed, shape):
    if seed.module is seeds.persistent_gemm and shape != (512, 512, 256):
        pytest.skip("it deals tiles of the sizes that its subs were made for")
    check(torch, of_a_document(seed), shape, out=f32)


@pytest.mark.parametrize(("dtype", "out"), [(bf16, bf16), (f8e4m3fn, f16), (i8, i32), (f16, f32)], ids=str)
@pytest.mark.parametrize("shape", [(4864, 1024, 4160), (300, 272, 144), (33, 35, 37)], ids=str)
def test_every_dtype(torch, dtype, out, shape):
    check(torch, gemm(dtype, out), shape, dtype, out)


@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 64, 32), (128, 256, 32), (256, 128, 64)], ids=str)
@pytest.mark.parametrize("shape", [(2048, 2048, 512), (1000, 1000, 1000), (33, 35, 37)], ids=str)
def test_other_tiles(torch, tile, shape):
    check(torch, gemm(tile=tile), shape)


@pytest.mark.parametrize("shape", [(4864, 1024, 4160), (4872, 1000, 4168)], ids=str)
def test_parts_have_the_same_bits_on_two_streams_and_in_a_graph(torch, shape):
    m, n, k = shape
    compiled = gemm()
    a, b = (torch.randn((rows, k), device="cuda").half() for rows in (m, n))
    first, *results = (torch.full((m, n), float("nan"), device="cuda").half() for _ in range(4))
    compiled(a, b, first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled(a, b, results[2])
    streams = [torch.cuda.Stream() for _ in results]
    torch.cuda.synchronize()
    for _ in range(10):
        for stream, c in zip(streams[:2], results[:2], strict=True):
            with torch.cuda.stream(stream):
                compiled(a, b, c)
        with torch.cuda.stream(streams[2]):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(first, other) for other in results)


def test_sizes_change_from_call_to_call_without_waiting(torch):
    """PDL, stream-K and multicast launches follow each other on one stream; none takes another one's partial sums."""
    compiled, rng = gemm(), np.random.default_rng(5)
    cases = []
    for _ in range(40):
        m, n, k = (int(x) for x in rng.integers(1, (3000, 1500, 2000)))
        k, n = (k // 8 * 8 or 8, n // 8 * 8 or 8) if rng.integers(4) else (k, n)
        a, b = (torch.randn((rows, k), device="cuda").half() for rows in (m, n))
        cases.append((a, b, torch.full((m, n), float("nan"), device="cuda").half()))
    torch.cuda.synchronize()
    for case in cases:
        compiled(*case)
    torch.cuda.synchronize()
    for a, b, c in cases:
        wanted = a.double() @ b.double().T
        assert ((c.double() - wanted).norm() / wanted.norm()).item() <= error_bound(a.shape[1], f16, f16)
