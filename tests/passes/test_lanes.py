"""Kernels as their lanes run them: against float64, in three orders of waves, with every barrier needed."""

import numpy as np
import pytest
from kernels import (
    BLOCK_B,
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    B,
    G,
    K,
    M,
    N,
    check_product,
    gemm,
    poisoned,
    random_array,
    sizes,
    with_waves,
)
from lane_runs import (
    CHIPS,
    EIGHT,
    FOUR,
    RAGGED,
    SCHEDULES,
    check_every_barrier_is_needed,
    check_lanes,
    compiled_seed,
    configurations,
    operands,
)
from seeds import SEEDS

from tilewave import *
from tilewave.ir.ops import Mma
from tilewave.ir.rewrite import walk
from tilewave.machine.matrix import NAMED

pytestmark = pytest.mark.share(4)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
@pytest.mark.parametrize("shape", [(256, 512, 256), *RAGGED], ids=str)
@pytest.mark.slow
def test_every_kernel_of_the_documents_runs_lane_by_lane(seed, configuration, shape):
    check_lanes(compiled_seed(seed, *configuration, shape), shape)


@pytest.mark.share(6)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_small_tiles_of_the_documents_run_lane_by_lane(seed, chip, schedule):
    shape = (129, 130, 65)
    check_lanes(compiled_seed(seed, chip, (64, 64, 32), FOUR, schedule, shape), shape, ["random"])


def test_the_large_tile_of_the_documents_runs_lane_by_lane():
    shape = (256, 256, 128)
    check_lanes(
        compiled_seed(SEEDS[1], "gfx942", (128, 256, 64), EIGHT, SchedulingType.PREFETCH, shape), shape, ["backwards"]
    )


@pytest.mark.share(6)
@pytest.mark.parametrize("kind", [t for t in MMAType if t.value in NAMED], ids=lambda t: t.name)
@pytest.mark.parametrize("chip", CHIPS)
def test_every_matrix_instruction(kind, chip):
    dtype_names = {"f16": f16, "bf16": bf16, "f32": f32, "i8": i8}
    _, _, *inputs = kind.value.split("_")
    floats = {"fp8": f8e4m3fnuz, "bf8": f8e5m2fnuz} if chip == "gfx942" else {"fp8": f8e4m3fn, "bf8": f8e5m2}
    left, right = (dtype_names | floats)[inputs[0]], (dtype_names | floats)[inputs[-1]]
    acc = i32 if left is i8 else f32

    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            TilingConstraint(K, BLOCK_K),
            WaveConstraint(M, BLOCK_M // 2),
            WaveConstraint(N, BLOCK_N // 2),
            HardwareConstraint(threads_per_wave=64, mma_type=kind),
        ]
    )
    def product(a: Memory[M, K, G, left], b: Memory[N, K, G, right], c: Memory[M, N, G, acc]):
        @iterate(K, init_args=[Register[M, N, acc](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    shape = (70, 65, 129)
    compiled = wave_compile(WaveCompileOptions(subs=sizes(*shape, 64, 64, 64), target=chip), product)
    rng = np.random.default_rng(1)
    a, b = random_array(rng, (70, 129), left), random_array(rng, (65, 129), right)
    c = poisoned((70, 65), acc)
    compiled.interpret(a, b, c, level="lane", order="random")
    check_product(c, a, b, acc)
    (taken,) = {op.instruction for op in walk(compiled.ir("select_mma").body) if isinstance(op, Mma)}
    assert taken == kind.value or chip == "gfx942"


# -- barriers


@pytest.mark.share(8)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize(
    ("schedule", "num_stages"), [(SchedulingType.NONE, 1), *((SchedulingType.PREFETCH, b) for b in (1, 2, 3))], ids=str
)
@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])  # one loads through registers, the other past them
def test_every_barrier_is_needed(chip, seed, schedule, num_stages):
    shape = (128, 128, 160)
    subs = seed.subs(*shape, block_m=64, block_n=64, block_k=32)
    if sym.NUM_CTAS in subs:
        subs[sym.NUM_CTAS] = 2
    options = WaveCompileOptions(subs=subs, target=chip, schedule=schedule, num_stages=num_stages)
    compiled = wave_compile(options, with_waves(seed.kernel, FOUR))
    check_lanes(compiled, shape, ["random"])
    check_every_barrier_is_needed(compiled, shape)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
@pytest.mark.slow
def test_every_barrier_is_needed_in_every_configuration(seed, configuration):
    chip, tile, waves, schedule = configuration
    shape = (2 * tile[0], 2 * tile[1], 3 * tile[2])
    subs = seed.subs(*shape, block_m=tile[0], block_n=tile[1], block_k=tile[2])
    if sym.NUM_CTAS in subs:
        subs[sym.NUM_CTAS] = 2
    options = WaveCompileOptions(subs=subs, target=chip, schedule=schedule)
    check_every_barrier_is_needed(wave_compile(options, with_waves(seed.kernel, waves)), shape)


# -- what else kernels do


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_any_number_of_steps_is_pipelined(steps, num_stages):
    shape = (64, 64, 32 * steps)
    options = WaveCompileOptions(
        subs=sizes(*shape), target="gfx950", schedule=SchedulingType.PREFETCH, num_stages=num_stages
    )
    check_lanes(wave_compile(options, gemm()), shape, ["random"])


@pytest.mark.parametrize("a_dims", [(M, K), (K, M)], ids=str)
@pytest.mark.parametrize("b_dims", [(N, K), (K, N)], ids=str)
def test_operands_of_any_orientation(a_dims, b_dims):
    m, n, k = 70, 90, 50
    compiled = wave_compile(
        WaveCompileOptions(subs=sizes(m, n, k), target="gfx942"), gemm(a_dims=a_dims, b_dims=b_dims)
    )
    a, b = operands((m, n, k))
    c = poisoned((m, n), f32)
    given = [np.ascontiguousarray(x if dims[1] is K else x.T) for x, dims in ((a, a_dims), (b, b_dims))]
    compiled.interpret(*given, c, level="lane")
    check_product(c, a, b)


def test_an_epilogue_with_a_bias_and_a_narrow_output():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            TilingConstraint(K, BLOCK_K),
            WaveConstraint(M, BLOCK_M // 2),
            WaveConstraint(N, BLOCK_N // 2),
        ]
    )
    def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(cast(maximum(total + read(bias), 0.0), f16), c)

    m, n, k = 100, 70, 40
    compiled = wave_compile(WaveCompileOptions(subs=sizes(m, n, k), target="gfx942"), biased)
    a, b = operands((m, n, k))
    bias = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    lanes, tiles = poisoned((m, n), f16), poisoned((m, n), f16)
    compiled.interpret(a, b, bias, lanes, level="lane", order="random")
    compiled.interpret(a, b, bias, tiles)
    np.testing.assert_allclose(lanes.astype(float), tiles.astype(float), rtol=2e-3, atol=1e-5)
    assert (lanes >= 0).all() and (lanes > 0).any()


def test_a_kernel_without_products():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)])
    def scale(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0 + 1.0, c)

    subs = {M: 37, N: 53, BLOCK_M: 10, BLOCK_N: 24}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="gfx942"), scale)
    a = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)
    c = poisoned(a.shape, f32)
    compiled.interpret(a, c, level="lane")
    np.testing.assert_array_equal(c, a * 2 + 1)


def test_batches():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, BLOCK_B, 2),
            TilingConstraint(K, BLOCK_K),
            WaveConstraint(M, BLOCK_M // 2),
        ]
    )
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(4)
    a, b = random_array(rng, (3, 40, 50), f16), random_array(rng, (3, 33, 50), f16)
    c = poisoned((3, 40, 33), f32)
    subs = sizes(40, 33, 50, 32, 32, 32) | {B: 3, BLOCK_B: 1}
    wave_compile(WaveCompileOptions(subs=subs, target="gfx942"), batched).interpret(a, b, c, level="lane")
    check_product(c, a, b)


def test_load_minimization_is_counted():
    compiled = compiled_seed(SEEDS[1], "gfx942", (128, 256, 64), EIGHT, SchedulingType.NONE, (256, 256, 128))
    counts = compiled.resources
    assert [(x.loads, x.elements) for x in counts.loads_before] == [(8, 4), (32, 4)]
    assert [(x.loads, x.elements) for x in counts.loads] == [(2, 8), (4, 8)]
