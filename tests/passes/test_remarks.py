"""Every reason for which a pass leaves something as it was: a kernel that shows it, its words, and its line."""

import ast
import importlib
import linecache
import pkgutil
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from checked import PASSES, SEPARATOR
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, compiled, gemm, sizes, tiling
from tunings import FREE, SPLITS

import tilewave.analysis
import tilewave.passes
from tilewave import *
from tilewave.analysis.reduction_order import sum_orders
from tilewave.backend.amd import program as amd_program
from tilewave.backend.nvidia import build, plans
from tilewave.ir.core import BATCH_INVARIANT
from tilewave.ir.parse import parse
from tilewave.ir.remarks import RemarkKind
from tilewave.machine.chips import GFX942, SM_90A
from tilewave.passes.grid.serialize_split_k import serialize_split_k
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.memory.stage_epilogue import StageEpilogue
from tilewave.passes.schedule.specialize_waves import SpecializeWaves
from tilewave.passes.schedule.unroll_stages import UnrollStages
from tilewave.runtime.arrays import ArrayView

BUILDS = (build, plans, amd_program)
PACKAGE = Path(tilewave.__file__).parent
CHECKED = Path(__file__).parent.parent / "check"
TURNS = WaveConstraint(M, BLOCK_M / 2), WaveConstraint(N, BLOCK_N / 2)


# -- kernels as text: those of the check tests, some with a few words changed


@cache
def text_of(pass_name, kernel):
    parts = (CHECKED / f"{pass_name}.ir").read_text().split(SEPARATOR)
    (found,) = [part[part.index("kernel @") :] for part in parts if f"kernel @{kernel} " in part]
    return found


def checked(pass_name, kernel, *changes, p=None):
    """What a pass declines in a kernel of its check test, in which each pair of `changes` is replaced."""

    def remarks():
        text = text_of(pass_name, kernel)
        for old, new in changes:
            assert old in text, f"{kernel} has no {old!r}"
            text = text.replace(old, new)
        first, _, parameter = (
            (CHECKED / f"{pass_name}.ir").read_text().partition("\n")[0].removeprefix("// PASSES: ").partition("(")
        )
        made = p or PASSES[pass_name](parameter.partition(")")[0] if first == pass_name else "")
        return of_text(text, made)

    return remarks


def of_text(text, p):
    lines = text.splitlines()
    return [(d, lines[d.loc.line - 1].strip()) for d in p(parse(text)).remarks]


def given(p, text):
    return lambda: of_text(text, p)


# -- kernels as an author writes them


def on(target, kernel, schedule=SchedulingType.NONE, num_stages=None, **subs):
    def remarks():
        found = compiled(kernel(), target=target, subs=subs_of(subs), schedule=schedule, num_stages=num_stages)
        return [(row.remarks, source(row.loc)) for row in found.why()]

    return remarks


def by(p, kernel, **subs):
    """By one pass alone, on whole tiles."""

    def remarks():
        tiles = compiled(kernel(), target="numpy", subs=subs_of(subs)).kernel
        return [(d, source(d.loc)) for d in p(tiles).remarks]

    return remarks


def in_fixed_order(p, kernel, **subs):
    """Return the remarks of one pass alone, for batch-invariant sums."""

    def remarks():
        tiles = replace(compiled(kernel(), target="numpy", subs=subs_of(subs)).kernel, sums=BATCH_INVARIANT)
        return [(d, source(d.loc)) for d in p(tiles).remarks]

    return remarks


def of_sums(text):
    """Return the remarks on what keeps a kernel's sums from being batch-invariant."""
    lines = text.splitlines()
    return lambda: [(d, lines[d.loc.line - 1].strip()) for d in sum_orders(parse(text))[1]]


SUM_OF_TILES = """kernel @sums {workgroups = 4} (%a: memory<4x8xf32, global>, %c: memory<4x1xf32, global>) {
  %w = workgroup() : index
  %zero = const() {value = 0.0} : tile<1x1xf32>
  %first = const() {value = 0} : index
  %steps = const() {value = 8} : index
  %sum = loop(STEPS, [%zero]) : tile<1x1xf32> do (%i: index, %acc: tile<1x1xf32>) {
    %k = COLUMN
    %x = read(%a, [%w, %k]) {axes = [0, 1]} : tile<1x1xf32>
    %next = add(%acc, %x) : tile<1x1xf32>
    yield([%next])
  }
  write(%sum, %c, [%w, %first]) {axes = [0, 1]}
}
"""
SUM_WHILE = """kernel @sums {workgroups = 1} (%c: memory<1x1xf32, global>) {
  %first = const() {value = 0} : index
  %one = const() {value = 1.0} : tile<1x1xf32>
  %sum, %end = while([%one, %first]) : tile<1x1xf32>, index do (%acc: tile<1x1xf32>, %i: index) {
    %more = less(%i, %first) : bool
    yield([%more])
  } do (%acc_1: tile<1x1xf32>, %i_1: index) {
    %next = add(%acc_1, %one) : tile<1x1xf32>
    yield([%next, %i_1])
  }
  write(%sum, %c, [%first, %first]) {axes = [0, 1]}
}
"""


def sum_of(steps, column):
    return of_sums(SUM_OF_TILES.replace("STEPS", steps).replace("COLUMN", column))


def in_rows(p):
    size = p.dtype.bytes
    strides = (*(p.shape[1] * size for _ in p.shape[1:]), size)
    return ArrayView(1 << 20, p.shape, strides, p.dtype, "cuda", False, None)


def called(target, pointer, strides):
    """Return the remarks of a target's code for a call with this pointer and these strides of `a`."""

    def remarks():
        made = compiled(gemm(), target=target, subs=sizes(256, 256, 64, 128, 128, 64))
        views = [in_rows(p) for p in made.parameters]
        views[0] = views[0]._replace(pointer=pointer, strides=strides)
        program = made.build.program
        return [(d, "") for d in getattr(program, "plans", program).remarks(views)]

    return remarks


def packed_copies():
    """Return the remarks of a kernel with dynamic shapes for a call with unaligned rows."""
    made = compiled(gemm(), target="sm_90a", subs={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64})
    shapes = zip(((1001, 1003), (1005, 1003), (1001, 1005)), made.sizes._arrays, strict=True)
    views = [in_rows(replace(p, shape=shape)) for shape, p in shapes]
    return [(d, "") for d in made.build.program.plans.remarks(views)]


def beside_copies():
    """Return the remarks of a kernel with dynamic shapes where an array that lanes add to the sums is unaligned."""
    made = compiled(biased, target="sm_90a", subs={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64})
    shapes = ((256, 64), (256, 64), (256,), (256, 256))
    views = [in_rows(replace(p, shape=s)) for s, p in zip(shapes, made.sizes._arrays, strict=True)]
    views[2] = views[2]._replace(pointer=4100)
    return [(d, "") for d in made.build.program.plans.remarks(views)]


@wave(tiling())
def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], row: Memory[N, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total + broadcast(read(row), [M, N]), c)


def subs_of(given):
    shape, tile = given.get("shape", (192, 64, 80)), given.get("tile", (64, 64, 16))
    return {**sizes(*shape, *tile), BLOCK_M: tile[0], BLOCK_N: tile[1], BLOCK_K: tile[2]}


def source(loc):
    return linecache.getline(loc.file, loc.line).strip()


def capped():
    @wave(tiling())
    def capped(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return minimum(mma(read(a), read(b), sum), 5.0)

        write(total, c)

    return capped


def in_parts():
    return wave([*tiling(), SplitConstraint(K, 2)])(gemm().function)


def begun():
    @wave(tiling())
    def begun(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](1.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    return begun


def added_to():
    @wave(tiling())
    def added_to(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        before = read(c)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total + before, c)

    return added_to


def written_first():
    @wave(tiling())
    def written_first(
        a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]
    ):
        write(Register[M, N, f32](1.0), d)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    return written_first


def in_two_loops():
    @wave(tiling())
    def in_two_loops(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def first(sum):
            return mma(read(a), read(b), sum)

        @iterate(K, init_args=[first])
        def second(sum):
            return mma(read(a), read(b), sum)

        write(second, c)

    return in_two_loops


def exponents():
    @wave(tiling())
    def exponents(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(exp2(read(a)), exp2(read(b)), sum)

        write(total, c)

    return exponents


def two_products():
    @wave(tiling(*TURNS))
    def two_products(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            x, y = read(a), read(b)
            return mma(x, y, mma(x, y, sum))

        write(total, c)

    return two_products


def biased_in_steps():
    @wave(tiling(*TURNS))
    def biased_in_steps(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum + read(c))  # it is written below, so it stays in the loop

        write(total, c)

    return biased_in_steps


def written_in_steps():
    @wave(tiling(*TURNS))
    def written_in_steps(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            write(cast(sum, f16), c)
            return mma(read(a), read(b), sum)

    return written_in_steps


def beside():
    @wave(tiling(*TURNS))
    def beside(
        a: Memory[M, K, G, f16],
        b: Memory[N, K, G, f16],
        e: Memory[M, N, G, f16],
        c: Memory[M, N, G, f32],
        d: Memory[M, N, G, f16],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)
        write(read(e), d)

    return beside


def narrow(*constraints, c_dims=(M, N)):
    @wave(tiling(*(constraints or TURNS)))
    def narrow(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[(*c_dims, G, f16)]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(cast(total, f16), c)

    return narrow


AHEAD = SchedulingType.PREFETCH
STAGE = (
    "    write(%x, %sa, [%c0, %c0]) {axes = [0, 1]}\n"
    "    %xs = read(%sa, [%c0, %c0]) {axes = [0, 1], per_lane = 8} : tile<16x8xf16>\n"
)
ALLOCATE = "  %sa = allocate() : memory<16x8xf16, shared, xor(2, 2, 1)>\n"
AND_GATHER = "    %e = gather(%sa) : tile<16x8xf16> do (%p: index, %q: index) {\n      yield([%p, %q])\n    }\n"
FROM_SHARED = "    %t = read(%sb, [%c0, %c0]) {axes = [0, 1]} : tile<16x8xf16>\n"
FROM_SHARED += "    write(%t, %sa, [%c0, %c0]) {axes = [0, 1]}\n"
X_STAGED = "%x_shared = allocate() : memory<64x64xf16"
X_READ = "%x = read(%a, [%o, %deep]) {axes = [0, 1]} : tile<64x64xf16>"
STAGED_AGAIN = """  }
  %u_shared = allocate() : memory<64x64xf16, shared, xor(8, 8, 1)>
  %more = loop(%two, [%sum]) : tile<64x64xf32> do (%i: index, %so_far: tile<64x64xf32>) {
    %u = read(%a, [%o, %o]) {axes = [0, 1]} : tile<64x64xf16>
    write(%u, %u_shared, [%o, %o]) {axes = [0, 1]}
    %u_part = read(%u_shared, [%o, %o]) {axes = [0, 1]} : tile<64x64xf16>
    %v = mma(%u_part, %u_part, %so_far) {instruction = f32_64xNx16_f16, depth = 64} : tile<64x64xf32>
    yield([%v])
  }
}"""
FOUND = "  %found = loop(%two, [%own]) : index do (%j: index, %it: index) {\n    yield([%it])\n  }\n"
MOVING = """
kernel @moving {workgroups = 1} (%c: memory<16x8xf32, global>) {
  %o = const() {value = 0} : index
  %two = const() {value = 2} : index
  %eight = const() {value = 8} : index
  %x = const() {value = 1.0} : tile<8x8xf32>
  %z = loop(%two, [%x]) : tile<8x8xf32> do (%j: index, %y: tile<8x8xf32>) {
    %k = mul(%j, %eight) : index
    write(%y, %c, [%k, %o]) {axes = [0, 1]}
    yield([%y])
  }
}
"""
NO_LOOP = """
kernel @no_loop {workgroups = 1} (%a: memory<4x8xf16, global>, %c: memory<4x4xf32, global>) {
  %o = const() {value = 0} : index
  %zero = const() {value = 0.0} : tile<4x4xf32>
  %x = read(%a, [%o, %o]) {axes = [0, 1]} : tile<4x8xf16>
  %z = mma(%x, %x, %zero) : tile<4x4xf32>
  write(%z, %c, [%o, %o]) {axes = [0, 1]}
}
"""
DIVIDED = """
kernel @divided {workgroups = 100000000} (%c: memory<4xf32, global>, %n: index) {
  %w = workgroup() : index
  %two = const() {value = 2} : index
  %three = const() {value = 3} : index
  %odd = mod(%w, %two) : index
  %few = add(%odd, %three) : index
  %q = floor_div(%w, DIVISOR) : index
}
"""


def steps_at_the_call():
    text = str(compiled(gemm(), target="numpy", subs=subs_of({})).kernel)
    text = re.sub(r"loop\(%\w+, \[%\w+\]\)", lambda found: found[0].replace(found[0][5:].split(",")[0], "%steps"), text)
    return of_text(text.replace("(%a:", "(%steps: index, %a:"), StreamK(2, SPLITS))


def open_off_lines():
    tile = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 16}
    tiles = compiled(gemm(), target="numpy", subs=tile).kernel
    few = StreamK(132, SPLITS, line_bytes=128, open_on_lines=False, only_few=True)
    return [(d, source(d.loc)) for d in few(tiles).remarks]


def fewer_stages():
    tile = (128, 256, 64)
    found = compiled(narrow(c_dims=(M, N)), target="sm_90a", subs=subs_of({"shape": (1024, 1024, 512), "tile": tile}))
    lanes = next(s.before for s in found.steps if s.name == "specialize_waves")
    return [(d, source(d.loc)) for d in SpecializeWaves(SM_90A, SM_90A.tuning.pipeline, 5)(lanes).remarks]


CASES = {
    "alternate_k_direction.DOES_MORE": checked("alternate_k_direction", "order_matters"),
    "alternate_k_direction.ONE_WAY": checked(
        "alternate_k_direction", "tile_after_tile", ("{workgroups = 1}", "{workgroups = 1, sums = one_order}")
    ),
    "interleave_mma.OTHER_WAVES": on("gfx942", lambda: narrow(WaveConstraint(M, BLOCK_M)), tile=(64, 64, 32)),
    "mma_step.SEVERAL": on("gfx942", two_products, AHEAD, tile=(64, 64, 32)),
    "mma_step.SEVERAL_STAGES": on("gfx942", narrow, AHEAD, num_stages=2, tile=(64, 64, 32)),
    "mma_step.NOT_AHEAD": on("gfx942", narrow, tile=(64, 64, 32)),
    "mma_step.DOES_MORE": on("gfx942", biased_in_steps, AHEAD, tile=(64, 64, 32)),
    "mma_step.NO_HALVES": on("gfx942", narrow, AHEAD, tile=(32, 32, 16)),
    "direct_to_shared.COMPUTED": checked(
        "direct_to_shared",
        "whole_stretches",
        ("write(%x, %x_shared", "%w = abs(%x) : tile<64x64xf16>\n    write(%w, %x_shared"),
    ),
    "direct_to_shared.USED_TWICE": checked(
        "direct_to_shared", "whole_stretches", ("    write(%x,", "    %w = abs(%x) : tile<64x64xf16>\n    write(%x,")
    ),
    "direct_to_shared.WRITTEN": checked("direct_to_shared", "written_here"),
    "direct_to_shared.ACROSS_ROWS": checked(
        "direct_to_shared",
        "whole_stretches",
        ("%x = read(%a, [%o, %k]) {axes = [0, 1]", "%x = read(%a, [%o, %k]) {axes = [1, 0]"),
    ),
    "direct_to_shared.GRAINS": checked("direct_to_shared", "off_the_grain"),
    "direct_to_shared.STRETCHES": checked("direct_to_shared", "whole_stretches", ("waves = [2, 2]", "waves = [4, 4]")),
    "direct_to_shared.PADDED": on("gfx950", narrow, tile=(40, 64, 32)),
    "direct_to_shared.APART": checked("direct_to_shared", "padded"),
    "direct_to_shared.NO_ROOM": checked("direct_to_shared", "too_much"),
    "make_persistent.OWN_LOOP": checked("make_persistent", "persistent_already"),
    "make_persistent.IN_TURNS": checked("make_persistent", "adds_in_turns"),
    "make_persistent.UNEVEN": checked("make_persistent", "again_and_again"),
    "coalesce_loads.USED_BESIDE": checked("coalesce_loads", "used_elsewhere_too"),
    "coalesce_loads.OTHER_ORDER": checked(
        "coalesce_loads",
        "two_reads_meet",
        ("%y = read(%b, [%o, %o]) {axes = [0, 1]", "%y = read(%b, [%o, %o]) {axes = [1, 0]"),
    ),
    "coalesce_loads.NARROW": checked("coalesce_loads", "rows_decide"),
    "strength_reduce_division.UNKNOWN_DIVISOR": given(
        PASSES["strength_reduce_division"](""), DIVIDED.replace("DIVISOR", "%n")
    ),
    "strength_reduce_division.LARGE_NUMBERS": given(
        PASSES["strength_reduce_division"](""), DIVIDED.replace("DIVISOR", "%few")
    ),
    "software_pipeline.NOTHING_STAGED": checked(
        "software_pipeline", "two_buffers", (STAGE, ""), ("mma(%xs, %xs", "mma(%x, %x")
    ),
    "software_pipeline.WAVES_MEET": checked("software_pipeline", "a_barrier_in_the_body"),
    "software_pipeline.ONE_BY_ONE": checked("software_pipeline", "two_buffers", (STAGE, STAGE + AND_GATHER)),
    "software_pipeline.USED_ELSEWHERE": checked("software_pipeline", "a_tile_used_behind_the_loop"),
    "software_pipeline.EARLIER_STEP": checked("software_pipeline", "a_tile_read_before_it_is_written"),
    "software_pipeline.COMPUTED": checked(
        "software_pipeline",
        "two_buffers",
        (ALLOCATE, ALLOCATE + ALLOCATE.replace("%sa", "%sb")),
        (STAGE, STAGE.replace("    %xs", f"{FROM_SHARED}    %xs")),
    ),
    "software_pipeline.CARRIED": checked("software_pipeline", "a_carried_position"),
    "software_pipeline.WRITTEN": checked("software_pipeline", "a_memory_that_changes"),
    "prepack_operands.NO_LOOP": given(PASSES["prepack_operands"]("8"), NO_LOOP),
    "prepack_operands.UNKNOWN_STEPS": checked(
        "prepack_operands",
        "a_loop_that_stops_early_keeps_its_steps",
        ("  %three = const() {value = 3} : index\n", ""),
        ("global>) {", "global>, %three: index) {"),
    ),
    "prepack_operands.NO_FORMAT": checked("prepack_operands", "panels_of_different_groups_stay"),
    "prepack_operands.COMPUTED": checked("prepack_operands", "both_operands_or_none"),
    "prepack_operands.USED_TWICE": checked("prepack_operands", "an_operand_used_twice_stays"),
    "prepack_operands.WRITTEN": checked("prepack_operands", "written_memories_and_rows_outside_stay"),
    "prepack_operands.ROUNDED": checked("prepack_operands", "a_rounding_cast_stays"),
    "prepack_operands.PANELS_BEGIN": checked("prepack_operands", "rows_that_are_no_panel_stay"),
    "prepack_operands.OUTSIDE": checked("prepack_operands", "written_memories_and_rows_outside_stay"),
    "prepack_operands.OTHER_DEPTH": checked("prepack_operands", "another_depth_stays"),
    "prepack_operands.NOT_BY_STEPS": checked(
        "prepack_operands", "a_loop_that_stops_early_keeps_its_steps", ("mul(%i, %four)", "mul(%i, %three)")
    ),
    "producer_roles.OPEN_SIZES": checked("multicast_loads", "four_tiles", ("global>) {", "global>, %free: index) {")),
    "producer_roles.OTHER_FORM": checked(
        "multicast_loads",
        "four_tiles",
        ("    loop(%two, [])", "    %steps = add(%own, %one) : index\n    loop(%steps, [])"),
    ),
    "producer_roles.ELSEWHERE": checked(
        "multicast_loads",
        "four_tiles",
        ("  %column = floor_div(%own, %two)", f"{FOUND}  %column = floor_div(%found, %two)"),
    ),
    "multicast_loads.NO_HALVES": checked(
        "multicast_loads", "four_tiles", ("%y = allocate() : memory<2x64x64xf16", "%y = allocate() : memory<2x8x64xf16")
    ),
    "multicast_loads.ODD": checked("multicast_loads", "turn_after_turn", ("workgroups = 2,", "workgroups = 3,")),
    "multicast_loads.FEW": checked("multicast_loads", "computed_before"),
    "multicast_loads.UNEVEN": checked("multicast_loads", "computed_before"),
    "skip_empty_tiles.STORED_ANYWAY": checked("skip_empty_tiles", "also_elsewhere"),
    "skip_masked_blocks.NOT_IDLE": checked("skip_masked_blocks", "hidden_by_something"),
    "peel_accumulator_init.KEPT": checked(
        "peel_accumulator_init", "two_products", ("lanes = 32}", "lanes = 32, sums = one_order}")
    ),
    "peel_accumulator_init.MAYBE_NEVER": checked("peel_accumulator_init", "perhaps_no_rounds"),
    "peel_accumulator_init.SUMS_USED": checked("peel_accumulator_init", "looked_at"),
    "ping_pong.MAYBE_NEVER": checked("ping_pong", "perhaps_no_steps"),
    "delegate_turns.NO_WARPS": checked("delegate_turns", "few_idle"),
    "delegate_turns.BY_WAVE": checked("delegate_turns", "by_wave"),
    "delegate_turns.APART": checked("delegate_turns", "added", ("      pass_turn(%sums, %turns, [%step])\n", "")),
    "delegate_turns.NO_ROOM": checked(
        "delegate_turns", "added", ("%o = const", "%x = allocate() : memory<232400xi8, shared>\n  %o = const")
    ),
    "pipeline_exchanges.NO_ROOM": checked(
        "pipeline_exchanges", "exchanged", ("<128x128xf16, shared", "<896x128xf16, shared")
    ),
    "pipeline_mma.ONE_STAGE": checked("pipeline_mma", "one_stage"),
    "vectorize_atomics.SCATTERED": checked("vectorize_atomics", "other_distances_in_other_lanes"),
    "specialize_waves.WAVES_MEET": checked("specialize_waves", "read_back"),
    "specialize_waves.FEWER_STAGES": fewer_stages,
    "pack_unaligned.REPACKED": checked("pack_unaligned", "unaligned_rows"),
    "pack_unaligned.LEFT_IN_PLACE": checked("pack_unaligned", "odd_rows_of_few_products"),
    "pack_unaligned.TRANSPOSED": checked("pack_unaligned", "across_the_depth"),
    "shared_tiles.NOT_ONE_LOOP": by(StreamK(2, SPLITS), in_two_loops),
    "shared_tiles.DOES_MORE": by(StreamK(2, SPLITS), capped),
    "shared_tiles.UNKNOWN_STEPS": steps_at_the_call,
    "shared_tiles.NOT_FROM_ZERO": by(StreamK(2, SPLITS), begun),
    "shared_tiles.WRITES_BEFORE": by(StreamK(2, SPLITS), written_first),
    "shared_tiles.READS_WRITTEN": by(StreamK(2, SPLITS), added_to),
    "stream_k.AS_QUICK": by(StreamK(2, SPLITS), gemm),
    "stream_k.ONE_SUM": in_fixed_order(StreamK(2, SPLITS), gemm),
    "reduction_order.ROUNDS": sum_of("%w", "add(%i, %first) : index"),
    "reduction_order.WALK": sum_of("%steps", "sub(%w, %i) : index"),
    "reduction_order.CONDITION": of_sums(SUM_WHILE),
    "stream_k.BEYOND": by(StreamK(2, FREE, 128), exponents, shape=(192, 64, 40), tile=(64, 64, 8)),
    "stream_k.UNALIGNED_LINES": open_off_lines,
    "split_tiles.CANNOT_BE_CUT": checked("split_tiles", "a_product", ("    yield([", "    barrier()\n    yield([")),
    "split_tiles.LOOP_DECIDES": checked("split_tiles", "a_number_carried_with_the_tile_stays_whole"),
    "split_tiles.ALONG_ITSELF": checked("split_tiles", "a_tile_times_itself_stays_whole"),
    "split_tiles.ADDED_UP": checked("split_tiles", "a_sum_that_begins_with_its_operand_stays_whole"),
    "split_tiles.OTHER_AXES": checked("split_tiles", "tiles_of_different_axes_stay_whole"),
    "split_tiles.PRODUCT_OF_PRODUCTS": checked("split_tiles", "a_product_of_a_product_stays_whole"),
    "split_tiles.SCATTERED_AGAIN": checked("split_tiles", "scattering_twice_stays_whole"),
    "split_tiles.TWO_PLACES": checked("split_tiles", "a_transpose_in_place_stays_whole"),
    "split_tiles.MOVING": given(PASSES["split_tiles"]("2x4"), MOVING),
    "split_tiles.RAGGED_SCATTER": checked("split_tiles", "a_ragged_tile_that_is_scattered_stays_whole"),
    "split_tiles.OUTSIDE": checked("split_tiles", "a_window_further_on_stays_whole"),
    "split_tiles.TWO_LENGTHS": checked("split_tiles", "two_lengths_stay_whole"),
    "tile_reductions.NO_PARTS": checked("tile_reductions", "moved"),
    "tile_reductions.FROM_OUTSIDE": checked("tile_reductions", "tile_of_a_loop"),
    "tile_reductions.ALONG_ITSELF": checked("tile_reductions", "pairs"),
    "tile_reductions.TOUCHED_AGAIN": checked("tile_reductions", "read_back_beside_it"),
    "stage_epilogue.READ_AGAIN": checked("stage_epilogue", "written_twice"),
    "stage_epilogue.ACROSS_ROWS": checked(
        "stage_epilogue", "sums", ("write(%z, %c, [%o, %o]) {axes = [0, 1]}", "write(%z, %c, [%o, %o]) {axes = [1, 0]}")
    ),
    "stage_epilogue.ROWS_APART": checked("stage_epilogue", "rows_off_the_grain"),
    "stage_epilogue.UNALIGNED_BASE": checked(
        "stage_epilogue",
        "sums",
        ("  write(%z, %c, [%o, %o])", "  %one = const() {value = 1} : index\n  write(%z, %c, [%o, %one])"),
    ),
    "stage_epilogue.MANY_AXES": checked(
        "stage_epilogue",
        "sums",
        ("%c: memory<128x64xf32", "%c: memory<1x1x1x1x128x64xf32"),
        ("write(%z, %c, [%o, %o]) {axes = [0, 1]}", "write(%z, %c, [%o, %o, %o, %o, %o, %o]) {axes = [4, 5]}"),
    ),
    "stage_epilogue.NARROW_TILE": checked(
        "stage_epilogue",
        "sums",
        ("tile<128x64xf32>", "tile<128x8xf32>"),
        ("%y_shared = allocate() : memory<64x64xf16", "%y_shared = allocate() : memory<8x64xf16"),
        (
            "%y = read(%y_shared, [%o, %o]) {axes = [0, 1]} : tile<64x64xf16>",
            "%y = read(%y_shared, [%o, %o]) {axes = [0, 1]} : tile<8x64xf16>",
        ),
        ("%c: memory<128x64xf32", "%c: memory<128x8xf16"),
        ("  write(%z,", "  %h = cast(%z) : tile<128x8xf16>\n  write(%h,"),
    ),
    "stage_epilogue.PADDED": checked(
        "stage_epilogue",
        "sums",
        ("  write(%z, %c, [%o, %o]) {axes = [0, 1]}", "  write(%z, %c, [%o, %o]) {axes = [0, 1], within = [120, 64]}"),
    ),
    "stage_epilogue.NOT_SUMS": on("gfx942", beside, tile=(64, 64, 32)),
    "slice_epilogue.USED_WHOLE": checked("slice_epilogue", "used_whole"),
    "prefetch_tiles.ENOUGH": checked("prefetch_tiles", "enough"),
    "unroll_stages.MANY_SLOTS": checked("unroll_stages", "two_slots", ("{value = 2}", "{value = 5}")),
    "unroll_stages.SLOTS_DIFFER": checked("unroll_stages", "two_slots", ("mod(%i, %two)", "mod(%i, %five)")),
    "unroll_stages.MANY_SUMS": checked("unroll_stages", "two_slots", p=UnrollStages(most_carried_words=3)),
    "use_tma.ACROSS_ROWS": checked("use_tma", "transposed"),
    "use_tma.ROWS_APART": checked("use_tma", "rows_off_the_grain"),
    "use_tma.UNALIGNED_STRIDE": checked(
        "use_tma",
        "whole_rows",
        (X_STAGED, X_STAGED.replace("64x64", "64x4")),
        (X_READ, X_READ.replace("64x64", "64x4")),
    ),
    "use_tma.UNALIGNED_BASE": checked("use_tma", "boxes_off_the_grain"),
    "use_tma.LONG_SIDE": checked(
        "use_tma",
        "whole_rows",
        (X_STAGED, X_STAGED.replace("64x64", "512x64")),
        (X_READ, X_READ.replace("64x64", "512x64")),
    ),
    "use_tma.MANY_AXES": checked(
        "use_tma",
        "whole_rows",
        ("%a: memory<64x128xf16", "%a: memory<1x1x1x1x64x128xf16"),
        (X_READ, X_READ.replace("[%o, %deep]) {axes = [0, 1]}", "[%o, %o, %o, %o, %o, %deep]) {axes = [4, 5]}")),
    ),
    "use_tma.PADDED": on("sm_90a", narrow, tile=(64, 64, 24)),
    "use_tma.COMPUTED": checked("use_tma", "computed_on_the_way"),
    "use_tma.WRITTEN": checked("use_tma", "written_here"),
    "use_tma.USED_TWICE": checked("use_tma", "whole_rows", (X_READ, f"{X_READ}\n    %w = abs(%x) : tile<64x64xf16>")),
    "use_tma.SEVERAL_LOOPS": checked("use_tma", "whole_rows", ("  }\n}", STAGED_AGAIN)),
    "use_matrix_unit.SUMS_USED": checked("use_matrix_unit", "sums_used_in_the_loop"),
    "use_matrix_unit.SEVERAL": checked(
        "use_matrix_unit",
        "sums_stay_in_the_unit",
        ("    yield([", "    %more = mma(%x, %y, %z) : tile<32x32xf32>\n    yield(["),
    ),
    "stage_epilogue.RAGGED_ROWS": on("gfx942", narrow, shape=(192, 77, 80), tile=(64, 64, 32)),
    "stage_epilogue.NO_BYTES": on("gfx942", written_in_steps, tile=(64, 64, 32)),
    "stage_epilogue.SHORT_ROWS": checked("stage_epilogue_of_waves", "too_narrow", p=StageEpilogue(GFX942)),
    "amd.program.NOT_IN_ROWS": called("gfx942", 4096, (2, 512)),
    "nvidia.plans.NOT_COPIED": called("sm_90a", 4096, (136, 2)),
    "nvidia.plans.REPACKED": packed_copies,
    "nvidia.plans.ONE_BY_ONE": called("sm_90a", 4096, (2, 512)),
    "nvidia.plans.NARROW": called("sm_90a", 4098, (128, 2)),
    "nvidia.plans.ELEMENTS": beside_copies,
    "serialize_split_k.BY_ITSELF": by(serialize_split_k, in_parts),
    "nvidia.build.TWO_FIT": on("sm_90a", narrow, shape=(2048, 1024, 64), tile=(64, 64, 64)),
}


def reasons():
    """All that passes, what they ask, and builds declare."""
    rooms = tilewave.passes, tilewave.analysis
    modules = [m.name for room in rooms for m in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    for module in map(importlib.import_module, modules):
        own = {n: r for n, r in vars(module).items() if isinstance(r, RemarkKind)}
        yield from ((f"{module.__name__.rpartition('.')[2]}.{name}", reason) for name, reason in own.items())
    for module in BUILDS:
        name = module.__name__.removeprefix("tilewave.backend.")
        yield from ((f"{name}.{constant}", r) for constant, r in vars(module).items() if isinstance(r, RemarkKind))


REASONS = dict(reasons())


def says(reason, what):
    return re.fullmatch(re.sub(r"\\\{.*?\\?\}", "(.+)", re.escape(reason.what)), what)


@cache
def shown(name):
    """What its kernel says for this reason: the line, the words, the remedy."""
    return tuple((line, d.what, d.remedy) for d, line in CASES[name]() if says(REASONS[name], d.what))


@pytest.mark.parametrize("name", REASONS)
def test_a_kernel_shows_the_reason(name):
    assert name in CASES, "no kernel shows it: add one"
    assert shown(name), f"its kernel does not show it: {CASES[name]()}"
    of_a_call = ".program." in name or ".plans." in name  # arrays are to blame, and no line
    assert all((line or of_a_call) and "{" not in what + remedy for line, what, remedy in shown(name))


def test_what_is_said_of_which_line(golden):
    golden("\n".join(f"{name}\n" + "".join(f"    {x}\n" for x in one if x) for name in CASES for one in shown(name)))


def test_no_kernel_shows_what_is_no_reason_any_more():
    assert CASES.keys() == REASONS.keys()


def test_whatever_is_declined_is_a_reason_at_the_top_of_its_module():
    """`Remark` is made by `RemarkKind.at` alone, and every `RemarkKind` has a name that the test above finds."""
    for file in PACKAGE.rglob("*.py"):
        if "Remark" not in (text := file.read_text()):
            continue
        tree = ast.parse(text)
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        made = [n for n in calls if n.func.id == "Remark"]
        assert not made or file.name == "remarks.py", f"{file}:{made[0].lineno}: declare a RemarkKind"
        top = [s.value for s in tree.body if isinstance(s, ast.Assign)]
        inside = [n for n in calls if n.func.id == "RemarkKind" and n not in top]
        assert not inside, f"{file}:{inside[0].lineno}: declare it at the top of the module"


def test_every_declared_reason_is_used():
    for name in REASONS:
        module, _, constant = name.rpartition(".")
        rooms = ["backend"] if "." in module else ["passes", "analysis"]
        paths = [path for room in rooms for path in (PACKAGE / room).rglob(f"{module.replace('.', '/')}.py")]
        text = "".join(path.read_text() for path in paths)
        assert text.count(constant) > 1, f"{name} is never said"
