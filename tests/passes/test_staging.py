# ruff: noqa: E501  (the messages are as a terminal shows them)
"""From tiles to what lanes load: instructions, staging, linear loads, banks, and the errors that an author gets."""

import math
import runpy
import textwrap
import time
from dataclasses import replace
from itertools import product as combinations

import numpy as np
import pytest
from kernels import *
from messages import same
from sampled import examples
from seeds import SEEDS

from tilewave.analysis.loads import LaneLoads, loads_per_lane, memory_order
from tilewave.errors import ConstraintError
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Allocate, Mma, Read
from tilewave.ir.parse import parse
from tilewave.ir.placements import elements, offset
from tilewave.ir.rewrite import walk
from tilewave.ir.types import DTYPES, F16, Padded, Swizzled
from tilewave.ir.types import Memory as IrMemory
from tilewave.lang.kernel import trace_kernel
from tilewave.layouts.formulas import linear
from tilewave.layouts.fragments import mfma
from tilewave.machine.banks import NO_LANE, cycles
from tilewave.machine.chips import GFX942, GFX950
from tilewave.machine.matrix import NAMED, WISHES, spelled
from tilewave.passes.grid.set_occupancy import SetOccupancy
from tilewave.passes.memory.coalesce_loads import CoalesceLoads
from tilewave.passes.memory.stage_shared import StageShared, bank_table
from tilewave.passes.tile.select_mma import SelectMma
from tilewave.pipeline.runner import run
from tilewave.pipeline.tile_level import tile_level

CHIPS = [GFX942, GFX950]
on_both_chips = pytest.mark.parametrize("machine", CHIPS, ids=lambda m: m.name)


def staged(kernel, subs, machine=GFX942):
    """Return the steps of the four passes, after those on whole tiles."""
    traced = trace_kernel(kernel, subs, [])
    tiles, _ = run(traced.ir, tile_level(traced.order))
    places = traced.places
    passes = [SelectMma(machine, places), StageShared(machine), CoalesceLoads(machine.widest_load_bytes)]
    return run(tiles, [*passes, SetOccupancy(machine, places)])[1]


def waves(rows, cols):
    return (WaveConstraint(M, BLOCK_M / rows), WaveConstraint(N, BLOCK_N / cols))


def wishing(mma_type):
    return HardwareConstraint(mma_type=mma_type)


# -- what the passes leave as it was


def check_steps(steps, arrays, c):
    """Every step computes the same, to the bit."""
    results = []
    for kernel in [steps[0].before, *(s.after for s in steps)]:
        into = c.copy()
        interpret(kernel, [*arrays, into], {})
        results.append(into)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    return results[-1]


FOR_CHIP = {
    "gfx942": [(f16, f32), (bf16, f32), (f32, f32), (f8e4m3fnuz, f32), (f8e5m2fnuz, f32), (i8, i32)],
    "gfx950": [(f16, f32), (bf16, f32), (f32, f32), (f8e4m3fn, f32), (f8e5m2, f32), (i8, i32)],
}


@on_both_chips
@pytest.mark.parametrize("number", range(6))
def test_the_meaning_stays(machine, number):
    dtype, acc = FOR_CHIP[machine.name][number]
    rng = np.random.default_rng([number, machine.shared.bytes])
    for _ in range(4):
        m, n, k = (int(x) for x in rng.integers(1, 150, 3))
        block = [int(32 * x) for x in rng.integers(1, 4, 2)] + [int(rng.choice([32, 64, 96]))]
        dims = [(M, K), (K, M)][rng.integers(2)], [(N, K), (K, N)][rng.integers(2)]
        cut = [(), waves(1, 1), waves(2, 1), waves(1, 2)][rng.integers(4)]
        kernel = gemm(dtype, acc, *dims, constraints=cut)
        a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
        arrays = [x if d[1] == K else x.T.copy() for x, d in zip((a, b), dims, strict=True)]
        steps = staged(kernel, sizes(m, n, k, *block), machine)
        check_product(check_steps(steps, arrays, poisoned((m, n), acc)), a, b, acc)


@on_both_chips
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_the_kernels_of_the_documents_keep_their_meaning(seed, machine):
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (130, 70), f16), random_array(rng, (90, 70), f16)
    steps = staged(seed.kernel, seed.subs(130, 90, 70, block_m=64, block_n=64, block_k=32), machine)
    check_product(check_steps(steps, [a, b], poisoned((130, 90), f32)), a, b)
    assert sum(isinstance(op, Allocate) for op in walk(steps[-1].after.body)) == 2


def test_batches_are_staged_too():
    @wave([WorkgroupConstraint(B, 2, 2), *tiling(*waves(2, 2))])
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    rng = np.random.default_rng(0)
    a, b = random_array(rng, (3, 40, 50), f16), random_array(rng, (3, 70, 50), f16)
    steps = staged(batched, {**sizes(40, 70, 50), B: 3})
    check_product(check_steps(steps, [a, b], poisoned((3, 40, 70), f32)), a, b)
    assert "memory<2x64x32xf16, shared" in str(steps[-1].after)


def test_what_is_cast_before_the_product_is_staged_behind_the_cast():
    @wave(tiling(*waves(2, 2)))
    def scaled(a: Memory[M, K, G, f32], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(cast(read(a) * 0.5, f16), read(b), acc)

        write(total, c)

    rng = np.random.default_rng(0)
    a, b = random_array(rng, (70, 50), f32), random_array(rng, (90, 50), f16)
    steps = staged(scaled, sizes(70, 90, 50))
    check_product(check_steps(steps, [a, b], poisoned((70, 90), f32)), (a * np.float32(0.5)).astype(np.float16), b)
    assert loads_per_lane(steps[-1].after) == (LaneLoads("a", 2, 4), LaneLoads("b", 1, 8))


def test_what_is_repeated_along_the_rows_is_not_held_as_they_are():
    @wave(tiling(*waves(2, 2)))
    def scaled(s: Memory[M, G, f16], a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(s) * read(a), read(b), acc)

        write(total, c)

    rng = np.random.default_rng(0)
    s, a, b = (random_array(rng, shape, f16) for shape in ((70,), (70, 50), (90, 50)))
    steps = staged(scaled, sizes(70, 90, 50))
    check_product(check_steps(steps, [s, a, b], poisoned((70, 90), f32)), s[:, None] * a, b)
    assert loads_per_lane(steps[-1].after) == (LaneLoads("a", 1, 8), LaneLoads("b", 1, 8))


def test_every_op_keeps_the_authors_line():
    steps = staged(gemm(constraints=waves(2, 2)), sizes(100, 100, 100))
    for step in steps:
        for op in walk(step.after.body):
            assert op.loc.line and op.loc.file.endswith(".py"), f"{step.name}: {op} comes from nowhere"


def test_nothing_is_left_to_do_the_second_time():
    kernel = staged(gemm(constraints=waves(2, 2)), sizes(100, 100, 100))[-1].after
    for p in (SelectMma(GFX942, Places()), CoalesceLoads(16), SetOccupancy(GFX942, Places())):
        assert p(kernel) == kernel


# -- who loads what


@pytest.mark.parametrize(
    ("block", "cut", "before", "after"),
    [
        ((64, 64, 32), (2, 2), ["a: 4×4", "b: 4×4"], ["a: 1×8", "b: 1×8"]),
        ((128, 256, 64), (4, 2), ["a: 8×4", "b: 32×4"], ["a: 2×8", "b: 4×8"]),
    ],
    ids=str,
)
def test_loads_per_lane(block, cut, before, after):
    _, stage, minimize, _ = staged(
        gemm(constraints=(*waves(*cut), wishing(MMAType.F32_16x16x16_F16))), sizes(512, 512, 512, *block)
    )
    assert [str(x) for x in loads_per_lane(stage.after)] == before
    assert [str(x) for x in loads_per_lane(minimize.after)] == after


def test_each_element_is_loaded_exactly_once_whatever_the_tile():
    """Up to a thousand tiles, dtypes, orders of axes and wave counts, those that the lanes do not divide included."""
    rng = np.random.default_rng(5)
    for _ in range(examples(1000)):
        dtype = DTYPES[str(rng.choice(["f16", "bf16", "f32", "f64", "i8", "f8e4m3fn"]))]
        rank = int(rng.integers(1, 4))
        shape = tuple(int(x) for x in rng.integers(1, [5, 70, 90][-rank:]))
        axes = tuple(int(x) for x in rng.permutation(rank))
        lanes = int(rng.choice([1, 2, 3, 4, 6, 8, 16])) * 64
        op = minimized(shape, axes, dtype)
        assert op.per_lane * dtype.bytes <= 16
        order = memory_order(op)
        in_memory = tuple(shape[i] for i in order)
        counts = np.zeros(in_memory, np.int64)
        layouts = linear(in_memory, op.per_lane, lanes)
        for layout in layouts:
            np.add.at(counts, tuple(np.moveaxis(layout.positions(1, lanes), -1, 0)), 1)
        assert (counts == 1).all(), f"{shape} {axes} {dtype}, {lanes} lanes"
        kernel = replace(parse(text(shape, axes, dtype)), waves=(lanes // 64, 1))
        (found,) = loads_per_lane(CoalesceLoads(16)(kernel))
        assert found.loads == sum(layout.registers[0] for layout in layouts)


def text(shape, axes, dtype):
    memory = [0] * len(shape)
    for axis, extent in zip(axes, shape, strict=True):
        memory[axis] = extent
    of, into = "x".join(map(str, memory)), "x".join(map(str, shape))
    at = ", ".join(["%o"] * len(shape))
    return f"""
    kernel @copy {{workgroups = 1, waves = [1, 1], lanes = 64}} (%a: memory<{of}x{dtype}, global>) {{
      %o = const() {{value = 0}} : index
      %s = allocate() : memory<{into}x{dtype}, shared>
      %x = read(%a, [{at}]) {{axes = {list(axes)}}} : tile<{into}x{dtype}>
      write(%x, %s, [{at}]) {{axes = {list(range(len(shape)))}}}
    }}
    """


def minimized(shape, axes, dtype):
    kernel = CoalesceLoads(16)(parse(text(shape, axes, dtype)))
    (op,) = (op for op in walk(kernel.body) if isinstance(op, Read))
    assert op.spread == "linear"
    return op


# -- rows in shared memory

MEMORIES = [
    IrMemory((3, 40, 64), F16, "shared", placement)
    for placement in (
        None,
        Padded(8),
        Padded(16),
        Swizzled(8, 8, 1),
        Swizzled(8, 4, 2),
        Swizzled(4, 16, 4),
        Swizzled(16, 2, 8),
    )
]


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda m: str(m.placement))
def test_every_element_has_a_place_of_its_own(memory):
    places = offset(memory, *np.indices(memory.shape))
    assert len(np.unique(places)) == math.prod(memory.shape)
    assert places.min() >= 0 and places.max() < elements(memory)
    assert offset(memory, 2, 11, 37) == places[2, 11, 37]


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda m: str(m.placement))
def test_a_chunk_stays_whole(memory):
    chunk = memory.placement.chunk if isinstance(memory.placement, Swizzled) else 8
    places = offset(memory, *np.indices(memory.shape)).reshape(-1, chunk)
    assert (np.diff(places) == 1).all() and (places[:, 0] % chunk == 0).all()


def test_lanes_of_one_phase_take_turns_for_a_bank():
    lane = np.arange(64)
    assert cycles(GFX942.shared, lane * 4, 4, "read") == (2, 2)
    assert cycles(GFX942.shared, lane * 0, 4, "read") == (2, 2), "one word is given to all"
    assert cycles(GFX942.shared, lane * 8, 4, "read") == (2, 4)
    assert cycles(GFX942.shared, lane * 128, 4, "write") == (2, 64)
    assert cycles(GFX950.shared, lane * 4, 4, "read") == (1, 1)
    assert cycles(GFX950.shared, lane * 4, 4, "write") == (2, 2)
    assert cycles(GFX942.shared, np.where(lane < 8, lane * 128, NO_LANE), 4, "write") == (1, 8)
    assert cycles(GFX942.shared, np.stack([lane * 4, lane * 8 + 256]), 4, "read") == (4, 6)
    assert cycles(GFX942.shared, np.array([4, 6, 136] + [NO_LANE] * 61), 2, "read") == (1, 1), "words stay whole"


def test_rows_of_a_kernel_with_paddings_of_16_and_32_bytes():
    """Padding of 16 bytes after each row leaves two lanes per bank; 32 bytes, or an XOR, leave one."""
    for machine in CHIPS:
        plain, by_16, by_32, xor = bank_table(machine, (128, 64), F16, "f32_16x16x16_f16")
        assert (by_16.read[1], by_32.conflicts, xor.conflicts) == (2 * by_16.read[0], 0, 0)
        assert plain.read[1] == 4 * plain.read[0]
        assert [c.bytes - plain.bytes for c in (by_16, by_32, xor)] == [128 * 16, 128 * 32, 0]


def conflicts(kernel, machine):
    """Cycles that lanes wait for each other: the linear writes and the fragment reads, from the layouts themselves."""
    found = {}
    products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
    reads = {op.result: op for op in walk(kernel.body) if isinstance(op, Read)}
    for op in products:
        for side, part in enumerate((op.a, op.b)):
            memory = reads[part].memory.type
            (source,) = (
                r
                for r in reads.values()
                if r.spread == "linear" and f"{r.result.name}_shared" == reads[part].memory.name
            )
            all_lanes = kernel.lanes * math.prod(kernel.waves)
            waiting = 0
            for layout in linear(memory.shape, source.per_lane, all_lanes):
                waiting += waits(machine, memory, layout.positions(math.prod(kernel.waves), kernel.lanes), "write")
            fragment = mfma(NAMED[op.instruction].rows, op.depth)
            layout = fragment.operand(memory.shape, kernel.waves, side)
            waiting += waits(machine, memory, layout.positions(math.prod(kernel.waves), kernel.lanes), "read")
            found[memory] = waiting
    return found


def waits(machine, memory, positions, kind):
    """The last register axis is a run of neighbours, which are moved in pieces as wide as stay together."""
    run = positions.shape[-2]
    piece = min(run, 16 // memory.dtype.bytes)
    if isinstance(memory.placement, Swizzled):
        piece = min(piece, memory.placement.chunk)
    starts = positions[..., ::piece, :]
    at = offset(memory, *np.moveaxis(starts, -1, 0)) * memory.dtype.bytes
    by_wave = np.moveaxis(at.reshape(-1, 64, at[0].size), 1, 2)
    ideal, actual = cycles(machine.shared, by_wave.reshape(-1, 64), piece * memory.dtype.bytes, kind)
    return actual - ideal


@pytest.mark.share(10)
@on_both_chips
@pytest.mark.parametrize("mma_type", [t for t in MMAType if t.value in NAMED], ids=lambda t: t.name)
def test_no_lane_waits_for_another(machine, mma_type):
    instruction = NAMED[mma_type.value]
    chip = machine.name if machine.name in instruction.chips else instruction.chips[0]
    a, b, acc = (DTYPES[name] for name in instruction.dtypes(chip))
    for (block_m, block_n), depth, cut in combinations(((128, 256), (64, 64)), (32, 64, 128), ((2, 2), (2, 1))):
        if depth % instruction.depth:
            continue
        kernel = two_dtypes(a, b, acc, (*waves(*cut), wishing(mma_type)))
        roomy = replace(machine, shared=replace(machine.shared, bytes=1 << 20))
        steps = staged(kernel, sizes(512, 512, 512, block_m, block_n, depth), roomy)
        found = conflicts(steps[-1].after, machine)
        assert found and not any(found.values()), found


def two_dtypes(a_dtype, b_dtype, acc_dtype, constraints):
    S = SHARED_ADDRESS_SPACE

    @wave(tiling(*constraints))
    def gemm(a: Memory[M, K, S, a_dtype], b: Memory[N, K, S, b_dtype], c: Memory[M, N, G, acc_dtype]):
        @iterate(K, init_args=[Register[M, N, acc_dtype](0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    return gemm


@on_both_chips
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_no_lane_waits_in_the_kernels_of_the_documents(seed, machine):
    for block in ((128, 256, 64), (64, 64, 32)):
        blocks = dict(zip(("block_m", "block_n", "block_k"), block, strict=True))
        found = conflicts(staged(seed.kernel, seed.subs(512, 512, 512, **blocks), machine)[-1].after, machine)
        assert found and not any(found.values()), found


# -- instructions


@pytest.mark.parametrize("mma_type", MMAType, ids=lambda t: t.name)
def test_instructions_are_spelled_as_an_author_writes_them(mma_type):
    assert spelled(WISHES[mma_type.value]) == str(mma_type)


@on_both_chips
@pytest.mark.parametrize("mma_type", [t for t in MMAType if t.value in NAMED], ids=lambda t: t.name)
def test_every_wish_is_taken_where_the_chip_has_it(machine, mma_type):
    instruction = NAMED[mma_type.value]
    chip = machine.name if machine.name in instruction.chips else instruction.chips[0]
    dtypes = [DTYPES[name] for name in instruction.dtypes(chip)]
    steps = staged(two_dtypes(*dtypes, [wishing(mma_type)]), sizes(64, 64, 64, block_k=64), machine)
    (op,) = (op for op in walk(steps[0].after.body) if isinstance(op, Mma))
    taken = NAMED[op.instruction]
    assert taken.dtypes(machine.name) == instruction.dtypes(chip)
    assert taken.rows == instruction.rows
    assert (taken is instruction) == (machine.name in instruction.chips)
    assert mfma(taken.rows, op.depth).per_lane * dtypes[0].bytes == 16


# -- the errors that an author gets

HEAD = """
from tilewave import *
M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
constraints = [
    WorkgroupConstraint(M, 64, 0),
    WorkgroupConstraint(N, 64, 1),
    TilingConstraint(K, 32),
    WaveConstraint(M, 32),
    WaveConstraint(N, 32),
    HardwareConstraint(mma_type=MMAType.F32_16x16x16_F16),
]
subs = {M: 128, N: 128, K: 96}


@wave(constraints)
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)
"""
NO_WISH = ("    HardwareConstraint(mma_type=MMAType.F32_16x16x16_F16),\n", "")

ERRORS = {
    "waves that do not divide the tile": (
        [("WaveConstraint(M, 32)", "WaveConstraint(M, 24)")],
        """
        waves of 24 do not divide the tile of M, which is 64
          gemm.py:9
              WaveConstraint(M, 24),
              ^^^^^^^^^^^^^^^^^^^^^
          write WaveConstraint(M, 32), or another divisor of 64
        """,
    ),
    "more waves than a workgroup has": (
        [
            ("(M, 64, 0)", "(M, 512, 0)"),
            ("(N, 64, 1)", "(N, 64, 1)"),
            ("WaveConstraint(M, 32)", "WaveConstraint(M, 16)"),
        ],
        """
        a workgroup of 32x2 waves has 64, but gfx942 runs 16 at most
          gemm.py:9
              WaveConstraint(M, 16),
              ^^^^^^^^^^^^^^^^^^^^^
          give each wave a larger part of the tile
        """,
    ),
    "a wish for other dtypes": (
        [("F32_16x16x16_F16", "I32_16x16x32_I8")],
        """
        MMAType.I32_16x16x32_I8 computes i8 times i8 into i32, but the mma at gemm.py:20 computes f16 times f16 into f32
          gemm.py:11
              HardwareConstraint(mma_type=MMAType.I32_16x16x32_I8),
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write mma_type=MMAType.F32_16x16x16_F16, or leave mma_type out
        """,
    ),
    "an 8-bit float of another chip": (
        [("F32_16x16x16_F16", "F32_16x16x32_F8"), ("K, G, f16", "K, G, f8e4m3fn")],
        """
        no matrix instruction of gfx942 is used for f8e4m3fn times f8e4m3fn into f32, which the mma at gemm.py:20 needs
          gemm.py:11
              HardwareConstraint(mma_type=MMAType.F32_16x16x32_F8),
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          it multiplies f8e4m3fnuz into f32; declare the memories so, or cast what is read
        """,
    ),
    "dtypes that no chip multiplies": (
        [NO_WISH, ("K, G, f16", "K, G, f64"), ("N, G, f32", "N, G, f64"), ("N, f32", "N, f64")],
        """
        no matrix instruction of gfx942 is used for f64 times f64 into f64, which the mma at gemm.py:19 needs
          gemm.py:15
              @wave(constraints)
          it multiplies f32, f16, bf16, f8e4m3fnuz, f8e5m2fnuz into f32; i8 into i32; declare the memories so, or cast what is read
        """,
    ),
    "too much shared memory": (
        [
            ("(M, 64, 0)", "(M, 256, 0)"),
            ("(N, 64, 1)", "(N, 256, 1)"),
            ("(K, 32)", "(K, 96)"),
            ("(M, 32)", "(M, 128)"),
            ("(N, 32)", "(N, 128)"),
        ],
        """
        a workgroup needs 98,304 bytes of shared memory, but gfx942 has 65,536
          gemm.py:6
              WorkgroupConstraint(M, 256, 0),
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          49,152 bytes: 256x96xf16, from gemm.py:20
          49,152 bytes: 256x96xf16, from gemm.py:20
          use smaller tiles, smaller steps, or fewer stages
        """,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_hold_is_told_at_the_constraint(name, tmp_path, monkeypatch):
    changes, wanted = ERRORS[name]
    source = HEAD
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemm.py").write_text(textwrap.dedent(source))
    module = runpy.run_path(str(tmp_path / "gemm.py"))
    with pytest.raises(ConstraintError) as raised:
        staged(module["gemm"], module["subs"])
    same(str(raised.value), wanted)


def test_a_name_that_is_no_instruction():
    kernel = parse("""
    kernel @k {workgroups = 1, matrix = f32_1x1x1} (%x: tile<64x32xf16>, %y: tile<64x32xf16>, %acc: tile<64x64xf32>) {
      %z = mma(%x, %y, %acc) : tile<64x64xf32>
    }
    """)
    with pytest.raises(ConstraintError, match="no matrix instruction is called 'f32_1x1x1'"):
        SelectMma(GFX942, Places())(kernel)


def test_the_cpu_takes_any_waves():
    compiled(gemm(constraints=(WaveConstraint(M, 24),)), subs=sizes(64, 64, 32), target="numpy")


def test_the_passes_are_quick():
    (seed,) = (s for s in SEEDS if repr(s) == "persistent_gemm")
    seconds = []
    for _ in range(3):
        start = time.process_time()
        staged(seed.kernel, seed.subs(4096, 4096, 4096))
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05
