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

import tilewave.analysis
import tilewave.passes
from tilewave import *
from tilewave.analysis.sum_orders import sum_orders
from tilewave.backend.amd import program as amd_program
from tilewave.backend.nvidia import build, program
from tilewave.ir.core import ONE_ORDER
from tilewave.ir.parse import parse
from tilewave.ir.reasons import Reason
from tilewave.machine.chips import SM_90A
from tilewave.passes.add_up_parts import add_up_parts
from tilewave.passes.specialize_waves import SpecializeWaves
from tilewave.passes.split_last_round import SplitLastRound
from tilewave.passes.unroll_slots import UnrollSlots
from tilewave.runtime.arrays import ArrayView

BUILDS = (build, program, amd_program)
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

    def declined():
        text = text_of(pass_name, kernel)
        for old, new in changes:
            assert old in text, f"{kernel} has no {old!r}"
            text = text.replace(old, new)
        first, _, parameter = (
            (CHECKED / f"{pass_name}.ir").read_text().partition("\n")[0].removeprefix("// PASSES: ").partition("(")
        )
        made = p or PASSES[pass_name](parameter.partition(")")[0] if first == pass_name else "")
        return of_text(text, made)

    return declined


def of_text(text, p):
    lines = text.splitlines()
    return [(d, lines[d.loc.line - 1].strip()) for d in p(parse(text)).declined]


def given(p, text):
    return lambda: of_text(text, p)


# -- kernels as an author writes them


def on(target, kernel, schedule=SchedulingType.NONE, buffers=None, **subs):
    def declined():
        found = compiled(kernel(), target=target, subs=subs_of(subs), schedule=schedule, buffers=buffers)
        return [(row.declined, source(row.loc)) for row in found.why()]

    return declined


def by(p, kernel, **subs):
    """By one pass alone, on whole tiles."""

    def declined():
        tiles = compiled(kernel(), target="numpy", subs=subs_of(subs)).kernel
        return [(d, source(d.loc)) for d in p(tiles).declined]

    return declined


def in_one_order(p, kernel, **subs):
    """By one pass alone, where sums are to be added in one order."""

    def declined():
        tiles = replace(compiled(kernel(), target="numpy", subs=subs_of(subs)).kernel, sums=ONE_ORDER)
        return [(d, source(d.loc)) for d in p(tiles).declined]

    return declined


def of_sums(text):
    """What keeps sums of a kernel from one order."""
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
    """By the code of a target, when `a` lies so."""

    def declined():
        made = compiled(gemm(), target=target, subs=sizes(256, 256, 64, 128, 128, 64))
        views = [in_rows(p) for p in made.parameters]
        views[0] = replace(views[0], pointer=pointer, strides=strides)
        return [(d, "") for d in made.build.program.declined(views)]

    return declined


def repacked():
    """By the code of a kernel for all sizes, when no rows lie on a grain."""
    made = compiled(gemm(), target="sm_90a", subs={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64})
    shapes = zip(((1001, 1003), (1005, 1003), (1001, 1005)), made.sizes._arrays, strict=True)
    views = [in_rows(replace(p, shape=shape)) for shape, p in shapes]
    return [(d, "") for d in made.build.program.declined(views)]


def beside_copies():
    """By the code of a kernel for all sizes, when what lanes add to the sums lies on no grain."""
    made = compiled(biased, target="sm_90a", subs={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64})
    shapes = ((256, 64), (256, 64), (256,), (256, 256))
    views = [in_rows(replace(p, shape=s)) for s, p in zip(shapes, made.sizes._arrays, strict=True)]
    views[2] = replace(views[2], pointer=4100)
    return [(d, "") for d in made.build.program.declined(views)]


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
    return of_text(text.replace("(%a:", "(%steps: index, %a:"), SplitLastRound(2))


def open_off_lines():
    tile = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 16}
    tiles = compiled(gemm(), target="numpy", subs=tile).kernel
    few = SplitLastRound(132, line_bytes=128, open_on_lines=False, only_few=True)
    return [(d, source(d.loc)) for d in few(tiles).declined]


def fewer_stages():
    tile = (128, 256, 64)
    found = compiled(narrow(c_dims=(M, N)), target="sm_90a", subs=subs_of({"shape": (1024, 1024, 512), "tile": tile}))
    lanes = next(s.before for s in found.steps if s.name == "specialize_waves")
    return [(d, source(d.loc)) for d in SpecializeWaves(SM_90A, 5)(lanes).declined]


CASES = {
    "alternate_depth.DOES_MORE": checked("alternate_depth", "order_matters"),
    "alternate_depth.ONE_WAY": checked(
        "alternate_depth", "tile_after_tile", ("{workgroups = 1}", "{workgroups = 1, sums = one_order}")
    ),
    "interleave_products.OTHER_WAVES": on("gfx942", lambda: narrow(WaveConstraint(M, BLOCK_M)), tile=(64, 64, 32)),
    "interleave_products.SEVERAL": on("gfx942", two_products, AHEAD, tile=(64, 64, 32)),
    "interleave_products.SEVERAL_BUFFERS": on("gfx942", narrow, AHEAD, buffers=2, tile=(64, 64, 32)),
    "interleave_products.NOT_AHEAD": on("gfx942", narrow, tile=(64, 64, 32)),
    "interleave_products.DOES_MORE": on("gfx942", biased_in_steps, AHEAD, tile=(64, 64, 32)),
    "interleave_products.NO_HALVES": on("gfx942", narrow, AHEAD, tile=(32, 32, 16)),
    "load_into_shared.COMPUTED": checked(
        "load_into_shared",
        "whole_stretches",
        ("write(%x, %x_shared", "%w = abs(%x) : tile<64x64xf16>\n    write(%w, %x_shared"),
    ),
    "load_into_shared.USED_TWICE": checked(
        "load_into_shared", "whole_stretches", ("    write(%x,", "    %w = abs(%x) : tile<64x64xf16>\n    write(%x,")
    ),
    "load_into_shared.WRITTEN": checked("load_into_shared", "written_here"),
    "load_into_shared.ACROSS_ROWS": checked(
        "load_into_shared",
        "whole_stretches",
        ("%x = read(%a, [%o, %k]) {axes = [0, 1]", "%x = read(%a, [%o, %k]) {axes = [1, 0]"),
    ),
    "load_into_shared.GRAINS": checked("load_into_shared", "off_the_grain"),
    "load_into_shared.STRETCHES": checked("load_into_shared", "whole_stretches", ("waves = [2, 2]", "waves = [4, 4]")),
    "load_into_shared.PADDED": on("gfx950", narrow, tile=(40, 64, 32)),
    "load_into_shared.APART": checked("load_into_shared", "padded"),
    "load_into_shared.NO_ROOM": checked("load_into_shared", "too_much"),
    "make_persistent.OWN_LOOP": checked("make_persistent", "persistent_already"),
    "make_persistent.UNEVEN": checked("make_persistent", "again_and_again"),
    "minimize_global_loads.USED_BESIDE": checked("minimize_global_loads", "used_elsewhere_too"),
    "minimize_global_loads.OTHER_ORDER": checked(
        "minimize_global_loads",
        "two_reads_meet",
        ("%y = read(%b, [%o, %o]) {axes = [0, 1]", "%y = read(%b, [%o, %o]) {axes = [1, 0]"),
    ),
    "minimize_global_loads.NARROW": checked("minimize_global_loads", "rows_decide"),
    "multiply_by_reciprocals.UNKNOWN_DIVISOR": given(
        PASSES["multiply_by_reciprocals"](""), DIVIDED.replace("DIVISOR", "%n")
    ),
    "multiply_by_reciprocals.LARGE_NUMBERS": given(
        PASSES["multiply_by_reciprocals"](""), DIVIDED.replace("DIVISOR", "%few")
    ),
    "pipeline_loop.NOTHING_STAGED": checked(
        "pipeline_loop", "two_buffers", (STAGE, ""), ("mma(%xs, %xs", "mma(%x, %x")
    ),
    "pipeline_loop.WAVES_MEET": checked("pipeline_loop", "a_barrier_in_the_body"),
    "pipeline_loop.ONE_BY_ONE": checked("pipeline_loop", "two_buffers", (STAGE, STAGE + AND_GATHER)),
    "pipeline_loop.USED_ELSEWHERE": checked("pipeline_loop", "a_tile_used_behind_the_loop"),
    "pipeline_loop.EARLIER_STEP": checked("pipeline_loop", "a_tile_read_before_it_is_written"),
    "pipeline_loop.COMPUTED": checked(
        "pipeline_loop",
        "two_buffers",
        (ALLOCATE, ALLOCATE + ALLOCATE.replace("%sa", "%sb")),
        (STAGE, STAGE.replace("    %xs", f"{FROM_SHARED}    %xs")),
    ),
    "pipeline_loop.CARRIED": checked("pipeline_loop", "a_carried_position"),
    "pipeline_loop.WRITTEN": checked("pipeline_loop", "a_memory_that_changes"),
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
    "copying_roles.OPEN_SIZES": checked("share_copies", "four_tiles", ("global>) {", "global>, %free: index) {")),
    "copying_roles.OTHER_FORM": checked(
        "share_copies",
        "four_tiles",
        ("    loop(%two, [])", "    %steps = add(%own, %one) : index\n    loop(%steps, [])"),
    ),
    "copying_roles.ELSEWHERE": checked(
        "share_copies",
        "four_tiles",
        ("  %column = floor_div(%own, %two)", f"{FOUND}  %column = floor_div(%found, %two)"),
    ),
    "share_copies.NO_HALVES": checked(
        "share_copies", "four_tiles", ("%y = allocate() : memory<2x64x64xf16", "%y = allocate() : memory<2x8x64xf16")
    ),
    "share_copies.ODD": checked("share_copies", "turn_after_turn", ("workgroups = 2,", "workgroups = 3,")),
    "share_copies.FEW": checked("share_copies", "computed_before"),
    "share_copies.UNEVEN": checked("share_copies", "computed_before"),
    "skip_masked_steps.NOT_IDLE": checked("skip_masked_steps", "hidden_by_something"),
    "skip_zeros.KEPT": checked("skip_zeros", "two_products", ("lanes = 32}", "lanes = 32, sums = one_order}")),
    "skip_zeros.MAYBE_NEVER": checked("skip_zeros", "perhaps_no_rounds"),
    "skip_zeros.SUMS_USED": checked("skip_zeros", "looked_at"),
    "stagger_groups.MAYBE_NEVER": checked("stagger_groups", "perhaps_no_steps"),
    "specialize_waves.WAVES_MEET": checked("specialize_waves", "read_back"),
    "specialize_waves.FEWER_STAGES": fewer_stages,
    "repack_rows.REPACKED": checked("repack_rows", "odd_rows"),
    "repack_rows.LEFT_IN_PLACE": checked("repack_rows", "odd_rows_of_few_products"),
    "repack_rows.TRANSPOSED": checked("repack_rows", "across_the_depth"),
    "rounds.NOT_ONE_LOOP": by(SplitLastRound(2), in_two_loops),
    "rounds.DOES_MORE": by(SplitLastRound(2), capped),
    "rounds.UNKNOWN_STEPS": steps_at_the_call,
    "rounds.NOT_FROM_ZERO": by(SplitLastRound(2), begun),
    "rounds.WRITES_BEFORE": by(SplitLastRound(2), written_first),
    "rounds.READS_WRITTEN": by(SplitLastRound(2), added_to),
    "split_last_round.AS_QUICK": by(SplitLastRound(2), gemm),
    "split_last_round.ONE_SUM": in_one_order(SplitLastRound(2), gemm),
    "sum_orders.ROUNDS": sum_of("%w", "add(%i, %first) : index"),
    "sum_orders.WALK": sum_of("%steps", "sub(%w, %i) : index"),
    "sum_orders.CONDITION": of_sums(SUM_WHILE),
    "split_last_round.BEYOND": by(SplitLastRound(2, 0, 128), exponents, shape=(192, 64, 40), tile=(64, 64, 8)),
    "split_last_round.OFF_LINES": open_off_lines,
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
    "walk_reductions.NO_PARTS": checked("walk_reductions", "moved"),
    "walk_reductions.FROM_OUTSIDE": checked("walk_reductions", "tile_of_a_loop"),
    "walk_reductions.ALONG_ITSELF": checked("walk_reductions", "pairs"),
    "walk_reductions.TOUCHED_AGAIN": checked("walk_reductions", "read_back_beside_it"),
    "stage_writes.READ_AGAIN": checked("stage_writes", "written_twice"),
    "stage_writes.ACROSS_ROWS": checked(
        "stage_writes", "sums", ("write(%z, %c, [%o, %o]) {axes = [0, 1]}", "write(%z, %c, [%o, %o]) {axes = [1, 0]}")
    ),
    "stage_writes.ROWS_APART": checked("stage_writes", "rows_off_the_grain"),
    "stage_writes.ODD_BEGIN": checked(
        "stage_writes",
        "sums",
        ("  write(%z, %c, [%o, %o])", "  %one = const() {value = 1} : index\n  write(%z, %c, [%o, %one])"),
    ),
    "stage_writes.MANY_AXES": checked(
        "stage_writes",
        "sums",
        ("%c: memory<128x64xf32", "%c: memory<1x1x1x1x128x64xf32"),
        ("write(%z, %c, [%o, %o]) {axes = [0, 1]}", "write(%z, %c, [%o, %o, %o, %o, %o, %o]) {axes = [4, 5]}"),
    ),
    "stage_writes.NARROW_TILE": checked(
        "stage_writes",
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
    "stage_writes.PADDED": checked(
        "stage_writes",
        "sums",
        ("  write(%z, %c, [%o, %o]) {axes = [0, 1]}", "  write(%z, %c, [%o, %o]) {axes = [0, 1], within = [120, 64]}"),
    ),
    "stage_writes.NOT_SUMS": checked("stage_writes", "not_sums"),
    "take_parts_first.WANTED_WHOLE": checked("take_parts_first", "wanted_whole"),
    "unroll_slots.MANY_SLOTS": checked("unroll_slots", "two_slots", ("{value = 2}", "{value = 5}")),
    "unroll_slots.SLOTS_DIFFER": checked("unroll_slots", "two_slots", ("mod(%i, %two)", "mod(%i, %five)")),
    "unroll_slots.MANY_SUMS": checked("unroll_slots", "two_slots", p=UnrollSlots(most_carried_words=3)),
    "use_copy_engine.ACROSS_ROWS": checked("use_copy_engine", "turned"),
    "use_copy_engine.ROWS_APART": checked("use_copy_engine", "rows_off_the_grain"),
    "use_copy_engine.ODD_STEP": checked(
        "use_copy_engine",
        "whole_rows",
        (X_STAGED, X_STAGED.replace("64x64", "64x4")),
        (X_READ, X_READ.replace("64x64", "64x4")),
    ),
    "use_copy_engine.ODD_BEGIN": checked("use_copy_engine", "boxes_off_the_grain"),
    "use_copy_engine.LONG_SIDE": checked(
        "use_copy_engine",
        "whole_rows",
        (X_STAGED, X_STAGED.replace("64x64", "512x64")),
        (X_READ, X_READ.replace("64x64", "512x64")),
    ),
    "use_copy_engine.MANY_AXES": checked(
        "use_copy_engine",
        "whole_rows",
        ("%a: memory<64x128xf16", "%a: memory<1x1x1x1x64x128xf16"),
        (X_READ, X_READ.replace("[%o, %deep]) {axes = [0, 1]}", "[%o, %o, %o, %o, %o, %deep]) {axes = [4, 5]}")),
    ),
    "use_copy_engine.PADDED": on("sm_90a", narrow, tile=(64, 64, 24)),
    "use_copy_engine.COMPUTED": checked("use_copy_engine", "computed_on_the_way"),
    "use_copy_engine.WRITTEN": checked("use_copy_engine", "written_here"),
    "use_copy_engine.USED_TWICE": checked(
        "use_copy_engine", "whole_rows", (X_READ, f"{X_READ}\n    %w = abs(%x) : tile<64x64xf16>")
    ),
    "use_copy_engine.SEVERAL_LOOPS": checked("use_copy_engine", "whole_rows", ("  }\n}", STAGED_AGAIN)),
    "use_matrix_unit.SUMS_USED": checked("use_matrix_unit", "sums_used_in_the_loop"),
    "use_matrix_unit.SEVERAL": checked(
        "use_matrix_unit",
        "sums_stay_in_the_unit",
        ("    yield([", "    %more = mma(%x, %y, %z) : tile<32x32xf32>\n    yield(["),
    ),
    "widen_writes.ACROSS_ROWS": on("gfx942", lambda: narrow(c_dims=(N, M)), tile=(64, 64, 32)),
    "widen_writes.RAGGED_ROWS": on("gfx942", narrow, shape=(192, 77, 80), tile=(64, 64, 32)),
    "widen_writes.PADDED": on("gfx942", narrow, tile=(40, 64, 32)),
    "widen_writes.NOT_SUMS": on("gfx942", beside, tile=(64, 64, 32)),
    "widen_writes.NO_BYTES": on("gfx942", written_in_steps, tile=(64, 64, 32)),
    "widen_writes.SHORT_ROWS": checked("widen_writes", "too_narrow"),
    "amd.program.NOT_IN_ROWS": called("gfx942", 4096, (2, 512)),
    "nvidia.program.NOT_COPIED": called("sm_90a", 4096, (136, 2)),
    "nvidia.program.REPACKED": repacked,
    "nvidia.program.ONE_BY_ONE": called("sm_90a", 4096, (2, 512)),
    "nvidia.program.NARROW": called("sm_90a", 4098, (128, 2)),
    "nvidia.program.ELEMENTS": beside_copies,
    "add_up_parts.BY_ITSELF": by(add_up_parts, in_parts),
    "nvidia.build.TWO_FIT": on("sm_90a", narrow, shape=(2048, 1024, 64), tile=(64, 64, 64)),
}


def reasons():
    """All that passes, what they ask, and builds declare."""
    rooms = tilewave.passes, tilewave.analysis
    modules = [f"{room.__name__}.{m.name}" for room in rooms for m in pkgutil.iter_modules(room.__path__)]
    for module in map(importlib.import_module, modules):
        own = {n: r for n, r in vars(module).items() if isinstance(r, Reason)}
        yield from ((f"{module.__name__.rpartition('.')[2]}.{name}", reason) for name, reason in own.items())
    for module in BUILDS:
        name = module.__name__.removeprefix("tilewave.backend.")
        yield from ((f"{name}.{constant}", r) for constant, r in vars(module).items() if isinstance(r, Reason))


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
    of_a_call = ".program." in name  # arrays are to blame, and no line
    assert all((line or of_a_call) and "{" not in what + remedy for line, what, remedy in shown(name))


def test_what_is_said_of_which_line(golden):
    golden("\n".join(f"{name}\n" + "".join(f"    {x}\n" for x in one if x) for name in CASES for one in shown(name)))


def test_no_kernel_shows_what_is_no_reason_any_more():
    assert CASES.keys() == REASONS.keys()


def test_whatever_is_declined_is_a_reason_at_the_top_of_its_module():
    """`Declined` is made by `Reason.at` alone, and every `Reason` has a name that the test above finds."""
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        made = [n for n in calls if n.func.id == "Declined"]
        assert not made or file.name == "reasons.py", f"{file}:{made[0].lineno}: declare a Reason"
        top = [s.value for s in tree.body if isinstance(s, ast.Assign)]
        inside = [n for n in calls if n.func.id == "Reason" and n not in top]
        assert not inside, f"{file}:{inside[0].lineno}: declare it at the top of the module"


def test_every_declared_reason_is_used():
    for name in REASONS:
        module, _, constant = name.rpartition(".")
        rooms = ["backend"] if "." in module else ["passes", "analysis"]
        paths = [PACKAGE / room / f"{module.replace('.', '/')}.py" for room in rooms]
        text = "".join(path.read_text() for path in paths if path.exists())
        assert text.count(constant) > 1, f"{name} is never said"
