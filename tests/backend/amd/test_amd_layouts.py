"""Products of transposed operands: A as [K, M], B as [K, N], or both."""

import importlib.util
import re
from functools import cache
from itertools import product as combinations
from pathlib import Path

import numpy as np
import pytest
from kernels import K, M, N, check_product, gemm, poisoned, random_array, sizes, with_waves
from sampled import some_of

from tilewave import *
from tilewave.interp.lanes import interpret_lanes

pytestmark = pytest.mark.share(12)

DIMS = {"NN": ((M, K), (K, N)), "TT": ((K, M), (N, K)), "TN": ((K, M), (K, N))}
CHIPS = ("gfx942", "gfx950")
PREFETCH = SchedulingType.PREFETCH


@cache
def compiled(
    layout, shape, tile, waves, dtype=f16, acc=f32, chip="gfx950", wish=None, schedule=PREFETCH, is_open=False
):
    constraints = (HardwareConstraint(mma_type=wish),) if wish else ()
    kernel = with_waves(gemm(dtype, acc, *DIMS[layout], constraints=constraints), waves)
    subs = sizes(*shape, *tile)
    if is_open:
        subs = {symbol: n for symbol, n in subs.items() if symbol not in (M, N, K)}
    return wave_compile(WaveCompileOptions(subs=subs, target=chip, schedule=schedule), kernel)


def check_emulated(found, layout, shape, dtype=f16, acc=f32):
    m, n, k = shape
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    given = [np.ascontiguousarray(x if dims[1] == K else x.T) for x, dims in zip((a, b), DIMS[layout], strict=True)]
    for order in some_of(("barrier", "random")):
        c = poisoned((m, n), acc)
        assert not found.emulate(*given, c, order=order, seed=2).findings
        check_product(c, a, b, acc)
    return given, (a, b)


# -- right, on every chip


@pytest.mark.share(12)
@pytest.mark.parametrize("shape", [(136, 264, 200), (131, 259, 67)], ids=str)
@pytest.mark.parametrize(("layout", "dtype", "chip"), list(combinations(DIMS, (f16, bf16), CHIPS)), ids=str)
def test_products_of_every_layout(layout, dtype, chip, shape):
    found = compiled(layout, shape, (128, 256, 64), (2, 4), dtype, chip=chip)
    given, (a, b) = check_emulated(found, layout, shape, dtype)
    c = poisoned(shape[:2], f32)
    interpret_lanes(found.build.lanes, [*given, c], {}, "random", 1)
    check_product(c, a, b)


SMALL = [
    ((64, 64, 32), (2, 2), (100, 72, 40), f16, f32, None),
    ((64, 64, 32), (2, 2), (65, 63, 0), f16, f32, None),
    ((64, 64, 32), (2, 2), (8, 8, 32), f16, f32, None),
    ((32, 32, 16), (2, 1), (70, 50, 40), bf16, f32, None),
    ((96, 48, 64), (2, 1), (100, 100, 130), f16, f32, None),
    ((128, 64, 64), (2, 2), (128, 72, 136), f16, f32, MMAType.F32_32x32x8_F16),
    ((64, 64, 64), (2, 2), (70, 90, 130), f32, f32, None),
    ((64, 64, 64), (2, 2), (70, 90, 130), i8, i32, None),
]


@pytest.mark.share(12)
@pytest.mark.parametrize("layout", DIMS)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("tile", "waves", "shape", "dtype", "acc", "wish"), SMALL, ids=str)
def test_other_tiles_of_every_layout(tile, waves, shape, dtype, acc, wish, chip, layout):
    found = compiled(layout, shape, tile, waves, dtype, acc, chip, wish)
    check_emulated(found, layout, shape, dtype, acc)


@pytest.mark.parametrize("schedule", [SchedulingType.NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("layout", DIMS)
def test_one_kernel_serves_open_sizes_of_every_layout(chip, schedule, layout):
    found = compiled(layout, (8, 8, 8), (64, 64, 64), (2, 2), chip=chip, schedule=schedule, is_open=True)
    for shape in ((136, 72, 200), (33, 35, 37)):
        check_emulated(found, layout, shape)


@pytest.mark.parametrize("view", [np.s_[:, 1:65], np.s_[:, 0:128:2], np.s_[::-1, :64]], ids=str)
@pytest.mark.parametrize("chip", CHIPS)
def test_arrays_of_any_strides_lie_across_their_depth(chip, view):
    rng = np.random.default_rng(3)
    wide, b = random_array(rng, (128, 136), f16), random_array(rng, (64, 128), f16)
    a, c = wide[view], poisoned((64, 64), f32)
    found = compiled("TT", (64, 64, 128), (64, 64, 64), (2, 2), chip=chip)
    assert not found.emulate(a, b, c).findings
    check_product(c, np.ascontiguousarray(a.T), b)


# -- as few instructions as can be


def _benchmark():
    path = Path(__file__).parents[3] / "benchmarks" / "amd_kloop.py"
    spec = importlib.util.spec_from_file_location("amd_kloop", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KLOOP = _benchmark()
MOST = {
    ("gfx942", (128, 256, 64), (2, 4)): {"NN": 128, "TT": 122, "TN": 139},
    ("gfx942", (128, 256, 64), (2, 2)): {"NN": 219, "TT": 207, "TN": 236},
    ("gfx942", (256, 256, 64), (4, 2)): {"NN": 204, "TT": 204, "TN": 221},
    ("gfx950", (128, 256, 64), (2, 4)): {"NN": 221, "TT": 219, "TN": 245},
    ("gfx950", (128, 256, 64), (2, 2)): {"NN": 411, "TT": 369, "TN": 431},
    ("gfx950", (256, 256, 64), (4, 2)): {"NN": 252, "TT": 236, "TN": 269},
    ("gfx950", (256, 256, 64), (2, 4)): {"NN": 236},
}
"""Instructions of a K loop, for as many matrix instructions as the one of NT has."""


def crossing(counted):
    """The instructions of which operands across their depth may need more than others, with waits and nops."""
    return sum((counted.shared_reads, counted.shared_writes, counted.vector_instructions, counted.waits, counted.nops))


@pytest.mark.share(16)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize(("chip", "tile", "waves"), MOST, ids=str)
def test_the_k_loop_of_every_layout_is_short(chip, tile, waves, dtype):
    def statistics(layout):
        return KLOOP.compiled(chip, tile, waves, dtype, f32, KLOOP.SIZES["fixed"], layout).loop_statistics

    plain = statistics("NT")
    for layout, most in MOST[chip, tile, waves].items():
        found = statistics(layout)
        assert found.matrix_instructions == plain.matrix_instructions
        assert found.instructions <= most
        assert found.instructions - plain.instructions <= crossing(found) - crossing(plain) + 2  # two additions
        assert (found.spills, found.bank_conflict_cycles, found.accumulator_moves) == (0, 0, 0)
        assert found.nops <= 4 and found.waits <= plain.waits + 3
        assert found.global_load_bytes == (16,) and found.shared_cycles == plain.shared_cycles


@pytest.mark.parametrize("layout", DIMS)
def test_gfx950_brings_what_it_reads_transposed_past_the_registers(layout):
    found = compiled(layout, (256, 512, 1024), (128, 256, 64), (2, 4))
    assert re.search(r"buffer_load_dwordx4 .* lds$", found.asm, re.MULTILINE) and "ds_write" not in found.asm
    assert "ds_read_b64_tr_b16" in found.asm and found.loop_statistics.vector_instructions == 0


@pytest.mark.parametrize("layout", DIMS)
def test_gfx942_stores_neighbours_in_depth_together(layout):
    found = compiled(layout, (256, 512, 256), (128, 256, 64), (2, 4), chip="gfx942").loop_statistics
    crossed = {"NN": 256, "TT": 128, "TN": 384}[layout] * 64 // 512
    assert found.vector_instructions == crossed // 2  # each makes a word of two elements that lay in two rows
    assert min(found.shared_write_bytes) >= 4 and found.shared_read_bytes == (16,)
