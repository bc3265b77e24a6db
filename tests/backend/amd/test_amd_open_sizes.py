"""One compiled kernel for all sizes: lane by lane, and as machine code emulated with every check on."""

import json

import numpy as np
import pytest
from kernels import BLOCK_B, B, G, K, M, N, gemm, poisoned, random_array, tiling, with_waves
from lane_runs import CHIPS, SCHEDULES
from open_kernels import EDGES, NOTHING, blocks, check_call, counts, opened, random_shapes
from seeds import SEEDS

import tilewave.backend.amd.compiler as compiler
from tilewave import *
from tilewave.backend.amd.code import AmdCode
from tilewave.ir.ops import Read, WriteThrough
from tilewave.ir.rewrite import walk
from tilewave.runtime.records import Record

pytestmark = pytest.mark.share(12)

PLAIN, REORDERED = SEEDS[:2]


def on_lanes(compiled, **options):
    return lambda *arrays, **symbols: compiled.interpret(*arrays, level="lane", **options, **symbols)


def emulated(compiled, **options):
    def call(*arrays, **symbols):
        report = compiled.emulate(*arrays, **options, **symbols)
        assert report.findings == ()
        return report

    return call


def open_gemm(chip, schedule=SchedulingType.PREFETCH, tile=(64, 64, 32), waves=(2, 2), subs=None, **kernel):
    options = WaveCompileOptions(subs=subs or blocks(*tile), target=chip, schedule=schedule)
    return wave_compile(options, with_waves(gemm(**kernel), waves))


# -- the kernels of the documents


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_one_kernel_is_right_for_every_size_lane_by_lane(seed, chip, schedule):
    compiled = opened(seed, chip, schedule)
    for shape in EDGES:
        check_call(on_lanes(compiled, order="random"), shape, **counts(compiled, *shape[:2]))


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
def test_one_kernel_is_right_for_every_size_as_machine_code(seed, chip):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    for shape in ((1, 1, 1), (129, 70, 65), (64, 128, 96)):
        check_call(emulated(compiled), shape, **counts(compiled, *shape[:2]))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", [PLAIN, REORDERED], ids=repr)
@pytest.mark.parametrize("shape", NOTHING, ids=str)
def test_sizes_of_nothing_launch_nothing_or_write_zeros(seed, chip, shape):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    check_call(on_lanes(compiled), shape)
    report = check_call(emulated(compiled), shape)
    assert (report.workgroups > 0) == (shape[0] * shape[1] > 0)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("chip", CHIPS)
def test_few_steps_and_many_buffers(chip, num_stages):
    """None, one, fewer than are loaded ahead, and more, each with a whole last step and without."""
    compiled = opened(PLAIN, chip, SchedulingType.PREFETCH, num_stages=num_stages)
    for k in (0, 8, 32, 40, 64, 72, 96, 128, 136, 160, 224):
        check_call(on_lanes(compiled), (40, 30, k))
    for k in (0, 40, 128, 168):
        check_call(emulated(compiled, order="random"), (40, 30, k))


def sweep(call, shapes, compiled):
    for i, shape in enumerate(shapes):
        check_call(call, shape, seed=i, **counts(compiled, *shape[:2]))


@pytest.mark.parametrize("seed", SEEDS[:3], ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
def test_random_sizes_lane_by_lane(seed, chip):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    sweep(on_lanes(compiled), random_shapes(10, 1), compiled)


@pytest.mark.parametrize("seed", SEEDS[:3], ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.slow
def test_three_hundred_random_sizes_lane_by_lane(seed, chip):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    sweep(on_lanes(compiled), random_shapes(300, 2), compiled)


@pytest.mark.parametrize("seed", SEEDS[:3], ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
def test_random_sizes_as_machine_code(seed, chip):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    sweep(emulated(compiled), random_shapes(3, 3, most=150), compiled)


@pytest.mark.parametrize("seed", SEEDS[:3], ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.slow
def test_forty_random_sizes_as_machine_code(seed, chip):
    compiled = opened(seed, chip, SchedulingType.PREFETCH)
    sweep(emulated(compiled), random_shapes(40, 4, most=150), compiled)


# -- other dtypes, layouts and kernels

LAYOUTS = {"rows": ((M, K), (N, K)), "columns": ((K, M), (K, N)), "mixed": ((M, K), (K, N))}
AXES = {M: 0, N: 1, K: 2}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chip", CHIPS)
def test_arrays_of_other_orientations(chip, layout):
    a_dims, b_dims = LAYOUTS[layout]
    compiled = open_gemm(chip, a_dims=a_dims, b_dims=b_dims, out=f16, epilogue=lambda x: cast(x, f16))
    dims = tuple(tuple(AXES[d] for d in dims) for dims in (a_dims, b_dims))
    for shape in ((65, 63, 33), (128, 64, 64), (72, 136, 40)):
        check_call(on_lanes(compiled), shape, out=f16, dims=dims)
        check_call(emulated(compiled), shape, out=f16, dims=dims)


DTYPES = [
    ("gfx942", bf16, f32), ("gfx942", f8e4m3fnuz, f32), ("gfx942", i8, i32), ("gfx942", f32, f32),
    ("gfx950", bf16, f32), ("gfx950", f8e4m3fn, f32), ("gfx950", i8, i32), ("gfx950", f32, f32),
]  # fmt: skip


@pytest.mark.parametrize(("chip", "dtype", "acc"), DTYPES, ids=str)
def test_other_dtypes(chip, dtype, acc):
    compiled = open_gemm(chip, dtype=dtype, acc=acc, tile=(64, 64, 64))
    for shape in ((65, 63, 65), (64, 64, 128), (1, 70, 96)):
        check_call(on_lanes(compiled), shape, dtype, acc)
        check_call(emulated(compiled), shape, dtype, acc)


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 64, 1)])
def scaled_sum(x: Memory[M, N, G, f32], bias: Memory[N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x) * 2.0 + read(bias), y)


@wave(tiling(WorkgroupConstraint(B, BLOCK_B, 2)))
def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 64, 1)])
def read_back(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x) + 1.0, y)
    write(read(y) * 2.0, y)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("shape", [(1, 1), (32, 64), (33, 63), (70, 130), (0, 5)], ids=str)
def test_kernels_without_products(chip, shape):
    rng = np.random.default_rng(1)
    x, bias = random_array(rng, shape, f32), random_array(rng, shape[1:], f32)
    added = wave_compile(WaveCompileOptions(target=chip), scaled_sum)
    again = wave_compile(WaveCompileOptions(target=chip), read_back)
    for run in (on_lanes, emulated):
        y, z = poisoned(shape, f32), poisoned(shape, f32)
        run(added)(x, bias, y)
        run(again)(x, z)
        np.testing.assert_array_equal(y, x * np.float32(2) + bias)
        np.testing.assert_array_equal(z, (x + np.float32(1)) * np.float32(2))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 33, 40, 50), (2, 64, 32, 64), (0, 5, 5, 5)], ids=str)
def test_batches(chip, shape):
    compiled = wave_compile(WaveCompileOptions(subs=blocks(32, 32, 32) | {BLOCK_B: 1}, target=chip), batched)
    n, rows, cols, depth = shape
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (n, side, depth)).astype(np.float16) for side in (rows, cols))
    for run in (on_lanes, emulated):
        c = poisoned((n, rows, cols), f32)
        run(compiled)(a, b, c)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).swapaxes(1, 2))


ROW, COLUMN = IndexMapping.iterator(0), IndexMapping.iterator(1)
TRANSPOSED = IndexMapping(num_iterators=2, inputs={M: ROW, N: (COLUMN * 3 + 1) % N}, outputs={M: ROW, N: COLUMN})


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 64, 1)])
def turned(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x, mapping=TRANSPOSED), y)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (64, 128), (0, 3)], ids=str)
def test_elements_taken_one_by_one(chip, shape):
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    compiled = wave_compile(WaveCompileOptions(target=chip), turned)
    for run in (on_lanes, emulated):
        y = poisoned(shape, f32)
        run(compiled)(x, y)
        np.testing.assert_array_equal(y, x[:, (np.arange(shape[1]) * 3 + 1) % max(shape[1], 1)])


def test_arrays_that_lie_otherwise():
    """Across, apart, backwards, rows on each other: what windows do not reach goes element by element."""
    compiled = opened(PLAIN, "gfx942", SchedulingType.PREFETCH)
    rng = np.random.default_rng(5)
    wide = rng.integers(-4, 5, (140, 300)).astype(np.float16)
    across, same = np.asfortranarray(wide[:70, :48]), np.broadcast_to(wide[:1, :48], (70, 48))
    for a in (wide[:70, :48], wide[:70, 1:49], wide[70:0:-1, :48], wide[:140:2, :96:2], across, same):
        b, c = wide[:33, 100:148], poisoned((70, 33), f32)
        assert emulated(compiled)(a, b, c).workgroups == 2
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


# -- what is made of them


@pytest.mark.parametrize(("chip", "tile", "waves"), [
    ("gfx942", (128, 256, 64), (2, 4)), ("gfx942", (256, 256, 64), (4, 2)), ("gfx950", (256, 256, 64), (4, 2)),
])  # fmt: skip
@pytest.mark.parametrize("out", [f32, f16], ids=str)
def test_the_loop_over_k_is_that_of_fixed_sizes(chip, tile, waves, out):
    made = {"out": out, "epilogue": (lambda x: x) if out == f32 else (lambda x: cast(x, f16))}
    fixed = open_gemm(chip, tile=tile, waves=waves, subs=blocks(*tile) | {M: 1024, N: 1024, K: 1024}, **made)
    found, wanted = open_gemm(chip, tile=tile, waves=waves, **made).loop_statistics, fixed.loop_statistics
    # counted for the whole kernel, which has boundary code in addition to the loop
    differ = ("registers", "accumulation_registers")
    told = {name: value for name, value in vars(wanted).items() if name not in differ}
    assert {name: vars(found)[name] for name in told} == told


def test_no_size_of_a_class_compiles_anew(monkeypatch):
    made = []
    code_of = compiler.code_of
    monkeypatch.setattr(compiler, "code_of", lambda *given: made.append(given[2]) or code_of(*given))
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    compiled = wave_compile(WaveCompileOptions(subs=blocks(32, 32, 16), target="gfx942"), gemm())
    for m in (1, 2, 3, 16, 31, 32, 33, 64):
        check_call(emulated(compiled), (m, 32, 16))
    for n, k in ((4, 8), (32, 64), (36, 24)):
        check_call(emulated(compiled), (5, n, k))
    assert made == [frozenset()]
    check_call(emulated(compiled), (5, 7, 9))
    check_call(emulated(compiled), (6, 5, 11))
    assert made == [frozenset(), frozenset("abc")]


def test_code_from_the_cache_knows_its_launch(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))
    options, kernel = WaveCompileOptions(subs=blocks(32, 32, 16), target="gfx942"), gemm()
    check_call(emulated(wave_compile(options, kernel)), (8, 8, 8))
    again = wave_compile(options, kernel)
    assert again.build.codes, "the cache had it"
    for shape in ((40, 36, 24), (0, 5, 5), (5, 7, 9)):
        check_call(emulated(again), shape)


def test_a_record_of_code_knows_its_launch():
    code = opened(PLAIN, "gfx942", SchedulingType.PREFETCH).build.program.code
    record = Record("a file", json.loads(json.dumps(code.facts)))
    assert AmdCode.of(record, code.asm, code.code_object) == code
    assert isinstance(code.workgroups, str) and code.launch


def test_large_arrays_are_not_reached_through_windows():
    a, b, _ = open_gemm("gfx942", b_dims=(K, N)).build.program.code.reaches
    assert a.allows((1 << 20, 1), 0, (10_000, 1 << 20))
    assert not a.allows((1 << 26, 1), 0, (10_000, 1 << 26))
    assert b.allows((1 << 14, 1), 0, (60_000, 1 << 14)) and not b.allows((1 << 14, 1), 0, (70_000, 1 << 14))
    assert not b.allows((8, 1), 0, (100, 16)), "rows that overlap"


def test_steps_inside_have_no_guard_along_the_depth():
    kernel = open_gemm("gfx942", out=f16, epilogue=lambda x: cast(x, f16)).ir("peel_edges")
    reads = [op.guard for op in walk(kernel.body) if isinstance(op, Read) and op.memory.type.space == "global"]
    assert sorted(reads) == [(), (), (0,), (0,)] + [(0, 1)] * 4, "in front of the loop, in it, and at edges"
    assert [op.guard for op in walk(kernel.body) if isinstance(op, WriteThrough)] == [(), (0, 1)]
