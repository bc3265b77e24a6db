"""Kernels on a real GPU, against float64: every class, ragged and tiny shapes, dtypes, layouts, epilogues."""

import kernels
import numpy as np
import pytest
import seeds

from tilewave import *
from tilewave import kernels as shipped
from tilewave.bench.epilogue import BIAS_GELU, EPILOGUES
from tilewave.bench.gpu import Arena, error_bound

pytestmark = pytest.mark.gpu
WAYS = ("copies", "loads")
LARGE = {"block_m": 128, "block_n": 256, "block_k": 64}
F8_UNIT = 2.0**-13 / 32
"""Hopper adds products of 8-bit floats with fewer digits than f32 has, 32 of them at a time."""
TF32_SHARE = 2 * 2.0**-10
"""Products of f32 use 10 bits after the leading one."""
FUNCTION_UNITS = 4 * 2.0**-23
"""What a function may be off by, in units in the last place of f32."""
TORCH_KNOWS = (np.float32, np.float64, np.int8, np.int32, np.int64)


def run(compiled, way, *tensors):
    made = compiled.build if way == "copies" else compiled.build.plain
    made.program.run(tensors, [], compiled.parameters)


def on_gpu(torch, array):
    """A tensor of the same numbers; torch knows no array of ml_dtypes."""
    if array.dtype in TORCH_KNOWS:
        return torch.from_numpy(array).cuda()
    return torch.from_numpy(array.view(f"int{8 * array.itemsize}")).cuda().view(getattr(torch, array.dtype.name))


def to_float64(tensor):
    return tensor.float().double().cpu().numpy() if tensor.is_floating_point() else tensor.double().cpu().numpy()


def check(torch, compiled, way, shape, dtype=f16, out=f32, function=None, across=(False, False), share=0.0):
    """`function` is what the epilogue computes; it is nowhere steeper than 1. Products are off by `share` of theirs."""
    rng = np.random.default_rng(3)
    m, n, k = shape
    given = [kernels.random_array(rng, size, dtype) for size in ((m, k), (n, k))]
    a, b = (on_gpu(torch, np.ascontiguousarray(x.T) if turned else x) for x, turned in zip(given, across, strict=True))
    c = on_gpu(torch, kernels.poisoned((m, n), out))
    run(compiled, way, a, b, c)
    wanted, magnitude = kernels.product(*(x.astype(np.float32) for x in given))
    unit = F8_UNIT if dtype.bits == 8 and dtype.is_float else kernels.UNIT
    bound = kernels.error_bound(magnitude, k, out, unit) if out.is_float else np.zeros_like(magnitude)
    bound = bound + share * magnitude
    if function:
        wanted = function(wanted)
        bound = bound + FUNCTION_UNITS * np.abs(wanted)
    found = to_float64(c)
    assert not np.isnan(found).any(), "some elements were written by nobody"
    assert (np.abs(found - wanted) <= bound).all()


def compile_for(kernel, subs):
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)


def narrow_gemm(dtype=f16, acc=f32, out=f16, **more):
    return kernels.gemm(dtype, acc, out=out, epilogue=(lambda x: cast(x, out)) if out is not acc else None, **more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", seeds.SEEDS, ids=repr)
def test_the_kernels_of_the_documents_run_as_typed(torch, seed, way):
    compiled = compile_for(seed.kernel, seed.subs(512, 512, 256))
    check(torch, compiled, way, (512, 512, 256))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (100, 77, 35), (129, 8, 72), (300, 264, 136), (1000, 1000, 1000)])
def test_ragged_and_tiny_shapes(torch, shape, way):
    check(torch, compile_for(narrow_gemm(), kernels.sizes(*shape, **LARGE)), way, shape, out=f16)


@pytest.mark.parametrize("shape", [(256, 256, 8), (384, 256, 520), (128 * 27, 256 * 5, 72), (1025, 1001, 264)])
def test_two_workgroups_share_copies(torch, shape):
    """One pair; a tile without a partner; the same in the last of several turns; results that lanes store."""
    compiled = compile_for(narrow_gemm(), kernels.sizes(*shape, **LARGE))
    assert compiled.build.lanes.cluster == 2
    check(torch, compiled, "copies", shape, out=f16)


@pytest.mark.parametrize("order", ["grouped(4)", "grouped(2)"])
@pytest.mark.parametrize("shape", [(2560, 1024, 3080), (2552, 1000, 4200)], ids=str)
def test_four_workgroups_share_copies(torch, shape, order):
    """One operand in quarters, or both in halves; 80 tiles."""
    compiled = compile_for(narrow_gemm().ordered(order), kernels.sizes(*shape, **LARGE))
    assert compiled.build.lanes.cluster == 4
    check(torch, compiled, "copies", shape, out=f16)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "acc", "out"), [(bf16, f32, bf16), (f8e4m3fn, f32, f16), (f8e5m2, f32, f32), (i8, i32, i32)], ids=str
)
def test_every_dtype(torch, dtype, acc, out, way):
    compiled = compile_for(narrow_gemm(dtype, acc, out), kernels.sizes(256, 256, 512, 128, 128, 128))
    check(torch, compiled, way, (256, 256, 512), dtype, out)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((512, 512, 256), (128, 256, 32)),
        ((256, 384, 512), (128, 128, 64)),
        ((300, 264, 136), (128, 256, 32)),
        ((100, 77, 35), (64, 96, 24)),
        ((1, 1, 1), (64, 8, 8)),
    ],
    ids=str,
)
def test_products_of_f32_that_are_asked_for(torch, shape, tile, way):
    compiled = compile_for(kernels.gemm(f32, f32, constraints=(kernels.TF32,)), kernels.sizes(*shape, *tile))
    check(torch, compiled, way, shape, f32, f32, share=TF32_SHARE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", [0, 1])
def test_the_bits_of_f32_that_the_interpreter_ignores_are_those_that_the_card_ignores(torch, side, way):
    """Each sum is one product by 1, so that what is left of the other operand is the result."""
    compiled = compile_for(kernels.gemm(f32, f32, constraints=(kernels.TF32,)), kernels.sizes(128, 128, 128))
    x, one = kernels.random_array(np.random.default_rng(0), (128, 128), f32), np.eye(128, dtype=np.float32)
    given = [x, one] if side == 0 else [one, x]
    lanes = kernels.poisoned((128, 128), f32)
    compiled.interpret(*given, lanes, level="lane")
    c = on_gpu(torch, kernels.poisoned((128, 128), f32))
    run(compiled, way, *(on_gpu(torch, array) for array in given), c)
    np.testing.assert_array_equal(c.cpu().numpy(), lanes)


@pytest.mark.parametrize("across", [(True, False), (False, True)])
def test_operands_that_lie_across(torch, across):
    dims = {"a_dims": (kernels.K, kernels.M)} if across[0] else {"b_dims": (kernels.K, kernels.N)}
    compiled = compile_for(narrow_gemm(**dims), kernels.sizes(256, 512, 256, **LARGE))
    check(torch, compiled, "copies", (256, 512, 256), out=f16, across=across)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((40, 304, 136), (40, 64, 64)),
        ((80, 256, 128), (80, 128, 64)),
        ((300, 304, 136), (152, 128, 64)),
        ((88, 192, 128), (88, 192, 64)),
        ((70, 256, 128), (72, 256, 64)),
    ],
    ids=str,
)
def test_results_that_are_computed_transposed(torch, shape, tile):
    """The blocks of a chunk are transposed by the instruction that stores them, two or four at a time."""
    check(torch, compile_for(narrow_gemm(), kernels.sizes(*shape, *tile)), "copies", shape, out=f16)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("shape", "parts"), [((3, 1, 943), 8), ((70, 67, 119), 3), ((1, 300, 71), 2)])
def test_parts_that_lanes_load(torch, shape, parts, way):
    kernel = narrow_gemm(constraints=(SplitConstraint(kernels.K, parts),))
    check(torch, compile_for(kernel, kernels.sizes(*shape, 64, 64, 16)), way, shape, out=f16)


@pytest.mark.parametrize("way", WAYS)
def test_an_epilogue(torch, way):
    compiled = compile_for(kernels.gemm(f16, f32, epilogue=lambda x: tanh(x)), kernels.sizes(256, 512, 64, **LARGE))
    check(torch, compiled, way, (256, 512, 64), function=np.tanh)


@pytest.mark.parametrize("way", WAYS)
def test_bias_and_gelu(torch, way):
    shape = m, n, k = 300, 264, 136
    made = shipped.gemm_bias_gelu(shape, f16, f16)
    arena = Arena.of(torch, shape, f16, 0, EPILOGUES[BIAS_GELU])
    c = torch.full((m, n), float("nan"), device="cuda").half()
    run(compile_for(made.kernel, made.subs), way, arena.a, arena.b, arena.bias, c)
    assert arena.relative_error(c) <= error_bound(k, f16, f16, arena.epilogue.steepest)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_as_many_stages_as_are_asked_for(torch, num_stages):
    subs = kernels.sizes(300, 264, 1000, **LARGE)
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", num_stages=num_stages), narrow_gemm())
    check(torch, compiled, "copies", (300, 264, 1000), out=f16)


def test_code_from_the_cache_gives_the_same_bits(torch):
    a, b = (torch.randn((512, 512), device="cuda").half() for _ in range(2))
    results = []
    for _ in range(2):
        compiled = compile_for(narrow_gemm(), kernels.sizes(512, 512, 512, **LARGE))
        c = torch.full((512, 512), float("nan"), device="cuda").half()
        compiled(a, b, c)
        results.append(c.cpu())
    assert compiled.build.codes, "the second comes from the cache"
    assert torch.equal(*results)


@pytest.mark.parametrize(("first", "row"), [(0, 258), (1, 256), (0, 257), (2, 260)])
def test_rows_that_the_copy_engine_cannot_take(torch, first, row):
    """One call works for any address and row stride."""
    compiled = compile_for(narrow_gemm(), kernels.sizes(128, 256, 256, **LARGE))
    a, b = (torch.randn(n * row + 8, device="cuda").half()[first:][: n * row].view(n, row)[:, :256] for n in (128, 256))
    c = torch.full((128, 256), float("nan"), device="cuda").half()
    compiled(a, b, c)
    wanted, magnitude = kernels.product(to_float64(a), to_float64(b))
    assert (np.abs(to_float64(c) - wanted) <= kernels.error_bound(magnitude, 256, f16)).all()


def test_the_same_bits_every_time(torch):
    compiled = compile_for(narrow_gemm(), kernels.sizes(1024, 1024, 1024, **LARGE))
    a, b = (torch.randn((1024, 1024), device="cuda").half() for _ in range(2))
    results = []
    for _ in range(3):
        c = torch.full((1024, 1024), float("nan"), device="cuda").half()
        compiled(a, b, c)
        results.append(c.cpu())
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_stream_of_the_caller_s(torch):
    compiled = compile_for(narrow_gemm(), kernels.sizes(256, 256, 256, **LARGE))
    a, b = (torch.randn((256, 256), device="cuda").half() for _ in range(2))
    c = torch.full((256, 256), float("nan"), device="cuda").half()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        compiled(a, b, c)
    stream.synchronize()
    wanted, magnitude = kernels.product(to_float64(a), to_float64(b))
    assert (np.abs(to_float64(c) - wanted) <= kernels.error_bound(magnitude, 256, f16)).all()


SHARED = [(4864, 1024, 4160), (1000, 1000, 4096), (4872, 1000, 4160)]
"""Tiles of the last, partial wave, shared by several workgroups (stream-K); no wave is full, and there are boundary
tiles."""


@pytest.mark.parametrize("shape", SHARED)
def test_tiles_that_workgroups_share(torch, shape):
    compiled = compile_for(narrow_gemm(), kernels.sizes(*shape, **LARGE))
    assert "take_over" in str(compiled.build.lanes)
    check(torch, compiled, "copies", shape, out=f16)


def test_tiles_that_workgroups_share_have_the_same_bits_on_two_streams_and_in_a_graph(torch):
    m, n, k = SHARED[0]
    compiled = compile_for(narrow_gemm(), kernels.sizes(m, n, k, **LARGE))
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
