"""Narrow results go through shared memory and leave in 16 bytes a lane; whatever is not ordered there is found."""

import math
from dataclasses import replace

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
from machine_code import deletions
from sampled import some_of

from tilewave import *
from tilewave.analysis.barriers import Handovers
from tilewave.analysis.wave_transposes import WaveChunks, chunk_memory, conflicts
from tilewave.backend.amd.program import launch_arguments
from tilewave.emulator import EmulationError, Emulator
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.memory import Race
from tilewave.ir import types
from tilewave.ir.core import Value
from tilewave.ir.launch import bind
from tilewave.ir.ops import Barrier, Const, Load, Overlay, Store, StoreUnaligned, WriteThrough
from tilewave.ir.placements import is_in, size_bytes
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import DTYPES, INDEX_SCALAR
from tilewave.lang.kernel import WaveKernel
from tilewave.machine.banks import ports
from tilewave.machine.chips import CHIPS
from tilewave.machine.matrix import NAMED
from tilewave.passes.memory.stage_epilogue import ROW_BYTES, StageEpilogue

pytestmark = pytest.mark.share(4)
AMD = ("gfx942", "gfx950")
FOUR, EIGHT = (2, 2), (2, 4)
SCHEDULES = (SchedulingType.NONE, SchedulingType.PREFETCH)


def narrow(out, dtype=f16, acc=f32, waves=FOUR, constraints=(), mma_type=None):
    """A GEMM whose sums are stored in a smaller dtype."""
    wished = [HardwareConstraint(mma_type=mma_type)] if mma_type else []
    kernel = gemm(dtype, acc, epilogue=lambda total: cast(total, out), out=out, constraints=(*constraints, *wished))
    return with_waves(kernel, waves)


def compiled(kernel, subs, chip="gfx942", schedule=SchedulingType.PREFETCH):
    return wave_compile(WaveCompileOptions(subs=subs, target=chip, schedule=schedule), kernel)


def step_of(c):
    (step,) = (s for s in c.steps if s.name == "stage_epilogue")
    return step


def problem(shape, dtypes, out):
    """Small integers, whose sums are exact in any order, and the result as `out` holds it."""
    m, n, k = shape
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-2, 3, s).astype(d.numpy) for s, d in zip(((m, k), (n, k)), dtypes, strict=True))
    return a, b, (a.astype(np.float64) @ b.astype(np.float64).T).astype(out.numpy)


def same(x, y):
    return np.array_equal(x.view(np.uint8), y.view(np.uint8))


def check(c, shape, out, dtypes=(f16, f16), emulated=("barrier", "random")):
    a, b, expected = problem(shape, dtypes, out)
    for order in some_of(("in turn", "backwards", "random")):
        result = poisoned(shape[:2], out)
        c.interpret(a, b, result, level="lane", order=order)
        assert same(result, expected)
    for order in some_of(emulated):
        result = poisoned(shape[:2], out)
        report = c.emulate(a, b, result, order=order, seed=1)
        assert not report.findings
        assert same(result, expected)


# -- what leaves, and how


@pytest.mark.parametrize(
    ("chip", "dtype", "tile", "waves"),
    [
        ("gfx942", f16, (128, 256, 64), EIGHT),
        ("gfx942", bf16, (128, 256, 64), FOUR),
        ("gfx950", bf16, (256, 256, 64), (4, 2)),
    ],
    ids=str,
)
def test_lanes_store_16_bytes_and_the_kernel_takes_no_more_shared_memory(chip, dtype, tile, waves):
    c = compiled(narrow(dtype, dtype, waves=waves), sizes(1024, 1024, 1024, *tile), chip)
    assert c.loop_statistics.store_bytes == (16,)
    wide = compiled(narrow(f32, waves=waves), sizes(1024, 1024, 1024, *tile), chip)
    assert "overlay" not in str(wide.build.lanes)
    assert c.resources.shared_bytes == wide.resources.shared_bytes
    assert c.resources.spills == 0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("waves", [FOUR, EIGHT, (4, 1)], ids=str)
def test_ragged_edges_are_neither_stored_nor_missed(waves, schedule):
    shape = (70, 136, 40)
    c = compiled(narrow(f16, waves=waves), sizes(*shape, 64, 128, 32), schedule=schedule)
    assert step_of(c).changed
    check(c, shape, f16)


@pytest.mark.share(8)
@pytest.mark.parametrize("chip", AMD)
@pytest.mark.parametrize(("dtype", "acc", "out"), [(bf16, f32, bf16), (i8, i32, i8), (f16, f32, "f8"), (f32, f32, f16)])
def test_every_narrow_result(chip, dtype, acc, out):
    out = {"gfx942": f8e4m3fnuz, "gfx950": f8e4m3fn}[chip] if out == "f8" else out
    shape = (64, 256, 64)
    c = compiled(narrow(out, dtype, acc), sizes(*shape, 64, 256, 64 if dtype.bytes < 4 else 32), chip)
    assert step_of(c).changed
    check(c, shape, out, (dtype, dtype))


def test_batches_and_what_an_epilogue_reads_follow_the_sums():
    tiles = [WorkgroupConstraint(B, BLOCK_B, 2), *gemm().constraints]

    @wave(tiles)
    def batched(
        a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], bias: Memory[N, G, f16], c: Memory[B, M, N, G, f16]
    ):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(cast(total + cast(read(bias), f32), f16), c)

    cut = [WaveConstraint(M, BLOCK_M / 2), WaveConstraint(N, BLOCK_N / 2)]
    kernel = WaveKernel(batched.function, (*batched.constraints, *cut), batched.loc)
    c = compiled(kernel, {**sizes(70, 136, 40), B: 3, BLOCK_B: 2})
    assert step_of(c).changed
    rng = np.random.default_rng(1)
    a, b, bias = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((3, 70, 40), (3, 136, 40), (136,)))
    expected = (a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2) + bias).astype(np.float16)
    result = poisoned((3, 70, 136), f16)
    c.interpret(a, b, bias, result, level="lane", order="random")
    assert same(result, expected)
    result = poisoned((3, 70, 136), f16)
    assert not c.emulate(a, b, bias, result, order="random", seed=2).findings
    assert same(result, expected)


@pytest.mark.parametrize("waves", [FOUR, EIGHT], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_persistent_workgroup_does_not_load_the_next_tile_over_what_it_still_reads(waves, schedule):
    shape = (72, 264, 72)
    c = compiled(
        narrow(f16, waves=waves, constraints=[GridConstraint(2)]), sizes(*shape, 64, 128, 32), schedule=schedule
    )
    assert step_of(c).changed and c.kernel.workgroups == 2
    check(c, shape, f16)


def dtypes_of(mma_type, chip):
    a, b, acc = NAMED[mma_type.value].dtypes(chip)
    return tuple(DTYPES[name] for name in (a, b, acc))


TYPES = [(chip, t) for chip in AMD for t in MMAType if t.value in NAMED and chip in NAMED[t.value].chips]


@pytest.mark.slow
@pytest.mark.parametrize("waves", [FOUR, EIGHT], ids=str)
@pytest.mark.parametrize(("chip", "mma_type"), TYPES, ids=str)
def test_every_matrix_instruction(chip, mma_type, waves):
    a, b, acc = dtypes_of(mma_type, chip)
    out = i8 if acc == i32 else f16
    shape = (70, 272, 136)

    @wave([*gemm().constraints, HardwareConstraint(mma_type=mma_type)])
    def mixed(x: Memory[M, K, G, a], y: Memory[N, K, G, b], c: Memory[M, N, G, out]):
        @iterate(K, init_args=[Register[M, N, acc](0)])
        def total(sums):
            return mma(read(x), read(y), sums)

        write(cast(total, out), c)

    c = compiled(with_waves(mixed, waves), sizes(*shape, 64, 256, 64 if a.bytes < 4 else 32), chip)
    assert step_of(c).changed
    check(c, shape, out, (a, b))


@pytest.mark.parametrize(("chip", "mma_type"), TYPES, ids=str)
def test_no_lane_waits_for_a_bank(chip, mma_type):
    """On gfx942. The banks of gfx950 could read 256 bytes at once, but chunks of 8 bytes let them read half of that."""
    machine, instruction = CHIPS[chip], NAMED[mma_type.value]
    for dtype in (f16, i8):
        layout = instruction.fragment().sums((128, 256), EIGHT, transposed=True)
        memory = chunk_memory(
            machine, layout, types.Memory((128, 256), dtype, "global"), math.prod(EIGHT), 32768, ROW_BYTES
        )
        chunks = WaveChunks(layout, *memory.shape[1:], 16 // dtype.bytes, 64)
        waited = {"gfx942": 0, "gfx950": math.prod(memory.shape[1:]) * dtype.bytes // 256}[chip]
        assert conflicts(ports(machine.shared), chunks, memory) == waited
        assert memory.shape[2] * dtype.bytes in (64, 128)


# -- what orders it


def without(kernel, which):
    """The kernel without the barriers for which `which(number)` holds, counted from its end."""
    count = sum(type(op) is Barrier and not op.waves for op in walk(kernel.body))
    seen = iter(range(count - 1, -1, -1))
    deleted = []

    def delete(op):
        if type(op) is Barrier and not op.waves and which(next(seen)):
            deleted.append(op)
            return []
        return None

    after = rewrite(kernel, delete)
    assert deleted
    return after


@pytest.mark.parametrize("order", ["in turn", "backwards", "random"])
@pytest.mark.parametrize("waves", [FOUR, EIGHT], ids=str)
def test_a_wave_that_does_not_wait_for_the_last_product_overwrites_its_operands(waves, order):
    shape = (64, 128, 96)
    c = compiled(narrow(f16, waves=waves), sizes(*shape, 64, 128, 32))
    a, b, _ = problem(shape, (f16, f16), f16)
    with pytest.raises(Race, match=r"writes \w+_shared\[.*, which wave \d read with no barrier between"):
        interpret_lanes(without(c.build.lanes, lambda i: i == 0), [a, b, poisoned(shape[:2], f16)], {}, order)


@pytest.mark.parametrize("order", ["in turn", "backwards", "random"])
def test_every_barrier_of_a_persistent_kernel_is_needed(order):
    shape = (64, 384, 64)
    c = compiled(narrow(f16, constraints=[GridConstraint(1)]), sizes(*shape, 64, 128, 32), schedule=SchedulingType.NONE)
    a, b, _ = problem(shape, (f16, f16), f16)
    lanes = c.build.lanes
    count = sum(type(op) is Barrier and not op.waves for op in walk(lanes.body))
    for i in range(count):
        with pytest.raises(Race):
            interpret_lanes(without(lanes, lambda n, i=i: n == i), [a, b, poisoned(shape[:2], f16)], {}, order)


def test_waves_that_share_a_part_race():
    """The memory is cut by the wave's number; if all take the first part, they meet there."""
    shape = (64, 128, 64)
    c = compiled(narrow(f16), sizes(*shape, 64, 128, 32))
    a, b, _ = problem(shape, (f16, f16), f16)
    lanes = c.build.lanes
    (over,) = (op.result for op in walk(lanes.body) if isinstance(op, Overlay))

    def share(op):
        if isinstance(op, (Load, Store)) and op.memory == over:
            first = Value(f"first_{id(op)}", INDEX_SCALAR)
            return [Const(0, results=(first,), loc=op.loc), replace(op, at=(first, *op.at[1:]))]
        return None

    with pytest.raises(Race):
        interpret_lanes(rewrite(lanes, share), [a, b, poisoned(shape[:2], f16)], {})


def test_every_wait_and_barrier_of_the_machine_code_is_needed():
    """The emulator finds each that is taken out, at a line of the author's."""
    shape = (64, 128, 64)
    c = compiled(narrow(f16), sizes(*shape, 64, 128, 32), schedule=SchedulingType.NONE)
    a, b, _ = problem(shape, (f16, f16), f16)
    code = c.build.program.code
    found = 0
    for deleted, text in deletions(c.asm):
        given = launch_arguments(code.arguments, ["a", "b", "c"], [a, b, poisoned(shape[:2], f16)], {})
        with pytest.raises(EmulationError) as error:
            for order in ("barrier", "random"):
                launched = Emulator.from_assembly(text, c.target)
                launched.launch(c.name, (1, 1, 1), (code.workgroup_size, 1, 1), given, order=order, seed=1)
            pytest.fail(f"{deleted} can be deleted unnoticed")
        assert error.value.loc.file.endswith("kernels.py") or error.value.loc.file.endswith("test_stage_epilogue.py")
        found += 1
    assert found > 5


def test_lanes_of_a_wave_are_ordered_without_waiting():
    """LLVM gets a wave barrier for each exchange; waves wait only for the operands and once more for the bytes."""
    c = compiled(narrow(f16), sizes(64, 128, 64, 64, 128, 32), schedule=SchedulingType.NONE)
    meetings = [op.waves for op in walk(c.build.lanes.body) if type(op) is Barrier]
    chunks = (64 // 2 // 16) * (128 // 2 // 64)
    assert meetings.count(1) == 2 * chunks == c.llvm_ir.count("call void @llvm.amdgcn.wave.barrier()")
    assert meetings.count(0) == 3 == c.asm.count("s_barrier\n")


def test_a_barrier_behind_an_exchange_hands_over_what_was_stored_before_it():
    c = compiled(
        narrow(f16, constraints=[GridConstraint(1)]), sizes(64, 256, 64, 64, 128, 32), schedule=SchedulingType.NONE
    )
    found = Handovers(c.build.lanes)
    barriers = [op for op in walk(c.build.lanes.body) if type(op) is Barrier]
    assert all(op in found for op in barriers if not op.waves) and not any(op in found for op in barriers if op.waves)


# -- what stays as it is


def stays(c):
    return not step_of(c).changed


def test_sums_of_four_bytes_are_wide_already():
    assert stays(compiled(with_waves(gemm(), FOUR), sizes(128, 128, 128)))


def test_rows_of_less_than_64_bytes_stay():
    assert stays(compiled(narrow(f16), sizes(64, 64, 64, 32, 32)))


def test_a_memory_whose_rows_are_no_multiple_of_16_bytes_stays():
    assert stays(compiled(narrow(f16), sizes(128, 124, 64)))


def test_results_that_are_written_turned_stay():
    @wave(gemm().constraints)
    def turned(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[N, M, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(cast(total, f16), c)

    assert stays(compiled(with_waves(turned, FOUR), sizes(128, 128, 64)))


def test_an_operand_that_is_still_needed_keeps_its_memory():
    """The second loop reads x again; y is another one there."""

    @wave(gemm().constraints)
    def twice(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16], d: Memory[M, N, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def first(acc):
            return mma(read(a), read(b), acc)

        write(cast(first, f16), c)

        @iterate(K, init_args=[first])
        def second(acc):
            return mma(read(a), read(b), acc)

        write(cast(second, f16), d)

    shape = (64, 64, 64)
    c = compiled(with_waves(twice, FOUR), sizes(*shape))
    lanes = step_of(c).after
    through = [op for op in walk(lanes.body) if isinstance(op, WriteThrough)]
    assert len(through) == 2
    a, b, once = problem(shape, (f16, f16), f16)
    results = [poisoned(shape[:2], f16) for _ in range(2)]
    c.interpret(a, b, *results, level="lane", order="random")
    assert same(results[0], once) and same(results[1], (2 * once.astype(np.float64)).astype(np.float16))


def test_a_workgroup_of_one_wave_leaves_room_for_as_many_as_a_compute_unit_runs():
    shape = (32, 64, 64)
    c = compiled(narrow(f16, waves=(1, 1)), sizes(*shape, 32, 64, 32), schedule=SchedulingType.NONE)
    assert step_of(c).changed
    assert c.resources.shared_bytes * 32 <= CHIPS["gfx942"].shared.bytes
    check(c, shape, f16)


def test_the_memory_of_a_result_fits_into_the_one_below_it():
    c = compiled(narrow(f16), sizes(64, 128, 64, 64, 128))
    for op in walk(step_of(c).after.body):
        if isinstance(op, Overlay):
            assert is_in(op.memory, "shared") and size_bytes(op.result.type) <= size_bytes(op.memory.type)
    assert repr(StageEpilogue(CHIPS["gfx942"])) == "StageEpilogue(gfx942)"


@pytest.mark.parametrize("shape", [(70, 71, 9), (5, 130, 33), (129, 64, 7)])
def test_lanes_store_dynamic_rows_in_aligned_chunks_and_their_ends_one_by_one(shape):
    subs = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64}
    kernel = gemm(epilogue=lambda total: cast(total, f16), out=f16)
    lanes = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel).build.plain.lanes
    stores = [op for op in walk(lanes.body) if isinstance(op, Store) and is_in(op.memory, "global")]
    chunks = [op for op in stores if isinstance(op, StoreUnaligned)]
    ends = [op for op in stores if not isinstance(op, StoreUnaligned)]
    assert {op.x.type.shape for op in chunks} == {(8,)} and {op.x.type.shape for op in ends} == {(1,)}
    assert all(op.mask and op.steps == ((0, 1),) for op in stores)
    m, n, k = shape
    a, b = random_array(np.random.default_rng(1), (m, k), f16), random_array(np.random.default_rng(2), (n, k), f16)
    c = poisoned((m, n), f16)
    interpret_lanes(bind(lanes, {"M": m, "N": n, "K": k}), [a, b, c], {}, "random", 3)
    check_product(c, a, b, f16)
