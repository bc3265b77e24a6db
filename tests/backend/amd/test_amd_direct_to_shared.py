"""Direct-to-shared loads, which bypass registers: on whole tiles, on lanes, and as machine code."""

import re
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from kernels import K, M, N, check_product, gemm, poisoned, random_array, sizes, with_waves
from lane_runs import meetings, without
from machine_code import MachineCode, finding
from sampled import some_of

from tilewave import *
from tilewave.emulator.assembly import read_assembly
from tilewave.emulator.statistics import classify, find_loop
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Barrier, CopyAsyncChunks, Load, Loop, Matrix, WaitAsync
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import VerifyError, verify
from tilewave.machine.chips import GFX942, GFX950
from tilewave.passes.memory.direct_to_shared import DirectToShared
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

ORDERS = [("in turn", 0), ("backwards", 0), ("random", 0), ("random", 1)]
NONE, PREFETCH = SchedulingType.NONE, SchedulingType.PREFETCH


@cache
def compiled(
    shape, tile, waves, schedule=PREFETCH, dtype=f16, acc=f32, chip="gfx950", num_stages=1, grid=0, a_dims=(M, K)
):
    kernel = gemm(dtype, acc, a_dims, (N, K), constraints=(GridConstraint(grid),) if grid else ())
    options = WaveCompileOptions(subs=sizes(*shape, *tile), target=chip, schedule=schedule, num_stages=num_stages)
    return wave_compile(options, with_waves(kernel, waves))


def operands(shape, dtype=f16):
    m, n, k = shape
    rng = np.random.default_rng(11)
    return random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)


def check_emulated(found, shape, dtype=f16, acc=f32):
    a, b = operands(shape, dtype)
    for order in some_of(("barrier", "random")):
        c = poisoned(shape[:2], acc)
        assert not found.emulate(a, b, c, order=order, seed=2).findings
        check_product(c, a, b, acc)


def direct_loads(found):
    return len(re.findall(r"buffer_load_dwordx4 .* lds$", found.asm, re.MULTILINE))


# -- machine code ---------------------------------------------------------------------------------------------------

FAST = [
    ((100, 72, 200), (64, 64, 64), (2, 2), f16, f32),
    ((256, 256, 320), (128, 128, 64), (4, 2), bf16, f32),
    ((100, 200, 192), (64, 64, 64), (2, 2), f8e4m3fn, f32),
    ((128, 100, 256), (128, 128, 64), (4, 2), i8, i32),
    ((64, 100, 100), (64, 64, 32), (2, 2), f32, f32),
    ((64, 100, 264), (64, 64, 128), (2, 2), f16, f32),
    ((64, 60, 840), (64, 64, 64), (2, 2), f16, f32),
    ((128, 120, 904), (128, 128, 64), (4, 2), f16, f32),
]


@pytest.mark.share(12)
@pytest.mark.parametrize("schedule", [NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize(("shape", "tile", "waves", "dtype", "acc"), FAST, ids=str)
def test_brought_tiles_give_the_product(shape, tile, waves, dtype, acc, schedule):
    found = compiled(shape, tile, waves, schedule, dtype, acc)
    assert direct_loads(found) and "ds_write" not in found.asm
    check_emulated(found, shape, dtype, acc)


@pytest.mark.parametrize(
    "shape", [(300, 300, 304), (300, 300, 300), (129, 257, 65), (129, 257, 72), (1, 1, 1)], ids=str
)
@pytest.mark.parametrize("tile", [(128, 128, 64), (128, 128, 128), (64, 128, 32)], ids=str)
@pytest.mark.parametrize("waves", [(2, 2), (4, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("schedule", [NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [f16, f8e4m3fn, f32], ids=str)
@pytest.mark.slow
def test_ragged_shapes_give_the_product(shape, tile, waves, schedule, dtype):
    check_emulated(compiled(shape, tile, waves, schedule, dtype), shape, dtype)


def test_the_k_loop_writes_nothing_to_shared_memory_by_lanes():
    compiled_loop = compiled((256, 256, 1024), (128, 128, 64), (4, 2))
    found = compiled_loop.loop_statistics
    assert (found.shared_write_bytes, found.global_load_bytes) == ((), (16,))
    assert (found.vector_instructions, found.accumulator_moves, found.spills) == (0, 0, 0)
    assert found.bank_conflict_cycles == 0
    assert_nops_hide(compiled_loop)


def loop_body(found):
    module = read_assembly(found.asm, "gfx950")
    return [module.instructions[at] for at in find_loop(module, module.kernels["gemm"]).body]


def assert_nops_hide(found):
    """Nops follow matrix instructions, and take less time; they keep a read from what the unit still reads."""
    body = loop_body(found)
    for before, nop in pairwise(body):
        if classify(nop) == "nop":
            assert classify(before) == "matrix" and nop.operands[0].number < 3


@cache
def loading_often(rows, shape=None):
    """Each of two waves loads `rows` / 16 times for A. Without a shape, sizes stay open."""
    blocks = sizes(*(shape or (1, 1, 1)), rows, 32, 64)
    subs = {symbol: n for symbol, n in blocks.items() if shape or symbol not in (M, N, K)}
    options = WaveCompileOptions(subs=subs, target="gfx950", schedule=PREFETCH)
    return wave_compile(options, with_waves(gemm(), (1, 2)))


@pytest.mark.parametrize("shape", [None, (128, 32, 1024)], ids=["open", "fixed"])
def test_where_lanes_load_often_several_loads_share_their_offsets(shape):
    loads = [i for i in loop_body(loading_often(128, shape)) if classify(i) == "direct load"]
    assert loads and len(loads) % 8 == 0
    for eight in (loads[i : i + 8] for i in range(0, len(loads), 8)):
        assert len({i.operands[0] for i in eight}) == 2  # through four windows


RAGGED = [(128, None, [(140, 40, 200), (1, 33, 72)]), (192, (140, 40, 328), [(140, 40, 328)])]


@pytest.mark.parametrize(("rows", "shape", "given"), RAGGED, ids=str)
def test_windows_that_begin_behind_the_last_row_give_nothing(rows, shape, given):
    for each in given:
        check_emulated(loading_often(rows, shape), each)


def test_where_a_loop_has_two_steps_no_lane_computes_where_a_slot_begins():
    """A wave has 256 sums a lane, with which LLVM would move operands in a loop of one step."""
    found = compiled((256, 256, 512), (256, 256, 64), (2, 2))
    assert found.loop_statistics.matrix_instructions == 2 * 128
    assert Counter(i.mnemonic for i in loop_body(found) if classify(i) == "vector") == {"v_mov_b64_e32": 6}


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_more_buffers_leave_later_tiles_on_their_way(num_stages):
    shape = (64, 64, 448)
    found = compiled(shape, (64, 64, 64), (2, 2), num_stages=num_stages)
    check_emulated(found, shape)
    waits = [op.pending for op in walk(found.build.lanes.body) if isinstance(op, WaitAsync)]
    assert max(waits) == (num_stages - 2) * 2 * 64 * 64 * 2 // 4
    assert f"s_waitcnt vmcnt({4 * (num_stages - 2)})" in found.asm


def test_a_persistent_kernel_brings_its_tiles():
    shape = (256, 192, 192)
    found = compiled(shape, (64, 64, 64), (2, 2), grid=3)
    assert direct_loads(found) and found.kernel.workgroups == 3
    check_emulated(found, shape)


OTHERWISE = [
    (
        "the chip has no such loads of 16 bytes",
        {"shape": (64, 64, 128), "tile": (64, 64, 64), "waves": (2, 2), "chip": "gfx942"},
    ),
    ("rows are no multiple of 16 bytes", {"shape": (64, 64, 300), "tile": (64, 64, 64), "waves": (2, 2)}),
    ("a wave would have less than a stretch", {"shape": (64, 64, 128), "tile": (32, 64, 32), "waves": (2, 2)}),
    (
        "words are not read transposed",
        {"shape": (64, 64, 128), "tile": (64, 64, 32), "waves": (2, 2), "a_dims": (K, M), "dtype": f32},
    ),
    ("two steps do not fit", {"shape": (128, 128, 256), "tile": (128, 128, 128), "waves": (2, 2), "dtype": f32}),
]


@pytest.mark.parametrize(("why", "case"), OTHERWISE, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_brought_goes_through_registers(why, case):
    found = compiled(**case)
    assert not direct_loads(found) and "ds_write" in found.asm
    shape, dtype = case["shape"], case.get("dtype", f16)
    a, b = operands(shape, dtype)
    c = poisoned(shape[:2], f32)
    given = np.ascontiguousarray(a.T) if "a_dims" in case else a
    assert not found.emulate(given, b, c).findings
    check_product(c, a, b)


def test_without_the_pass_tiles_go_through_registers():
    found = compiled((64, 64, 256), (64, 64, 64), (2, 2))
    passes = lists.lanes(GFX950, Places(), lists.prefetch(1, GFX950))
    lanes, _ = run(found.build.tiles, [p for p in passes if not isinstance(p, DirectToShared)])
    assert not any(isinstance(op, (CopyAsyncChunks, WaitAsync)) for op in walk(lanes.body))
    a, b = operands((64, 64, 256))
    c = poisoned((64, 64), f32)
    MachineCode(lanes, "gfx950").run(a, b, c)
    check_product(c, a, b)


@pytest.mark.parametrize("view", [np.s_[:, 1:129], np.s_[:, 2:258:2], np.s_[::-1, :128]], ids=str)
def test_arrays_that_lie_off_the_grain_are_brought_by_hand(view):
    shape = (64, 64, 128)
    wide, b = operands((64, 64, 264))[0], operands(shape)[1]
    a, c = wide[view], poisoned((64, 64), f32)
    found = compiled(shape, (64, 64, 64), (2, 2))
    assert not found.emulate(a, b, c).findings
    check_product(c, a, b)


def test_chunks_must_begin_at_multiples_of_their_size():
    """The hardware's behaviour otherwise is undocumented, and the emulator does not check it."""
    reaches = compiled((64, 64, 128), (64, 64, 64), (2, 2)).build.program.code.reaches
    assert {reach.name: reach.grain for reach in reaches} == {"a": 16, "b": 16, "c": 1}
    reach = reaches[0]
    assert reach.allows((128, 1), 4096) and reach.allows((136, 1), 16) and reach.allows((0, 1))
    assert not reach.allows((128, 1), 4098) and not reach.allows((132, 1), 4096)


def test_taking_the_wait_out_of_the_code_is_found_at_the_authors_line():
    shape = (64, 64, 576)
    found = compiled(shape, (64, 64, 64), (2, 2))
    lines = found.asm.splitlines()
    waits = [i for i, line in enumerate(lines) if "s_waitcnt vmcnt(" in line]
    assert len(waits) == 5  # before the first step, in the loop of three steps, before the last steps
    for i in waits:
        kept = re.sub(r"vmcnt\(\d+\)", "", lines[i])
        text = "\n".join([*lines[:i], *([kept] if "lgkmcnt" in kept else []), *lines[i + 1 :]]) + "\n"
        error = finding(found, text, shape)
        assert error is not None, f"line {i} can be deleted unnoticed"
        assert error.loc.file.endswith("kernels.py")


# -- lanes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("waves", [(2, 2), (4, 2)], ids=str)
def test_every_await_is_needed(schedule, waves):
    shape = (128, 128, 320)
    lanes = compiled(shape, (128, 128, 64), waves, schedule).build.lanes
    assert parse(str(lanes)) == lanes
    a, b = operands(shape)
    for order, seed in some_of(ORDERS):
        c = poisoned(shape[:2], f32)
        interpret_lanes(lanes, [a, b, c], {}, order, seed)
        check_product(c, a, b)
    waits = [op for op in walk(lanes.body) if isinstance(op, WaitAsync)]
    assert waits
    for number in range(len(waits)):
        less = without(lanes, number, lambda op: isinstance(op, WaitAsync))
        with pytest.raises(InterpreterError, match=r"before the copy of wave . has arrived") as raised:
            interpret_lanes(less, [a, b, poisoned(shape[:2], f32)], {}, "random", 1)
        assert raised.value.loc.file.endswith("kernels.py")


def unneeded_meetings(shape, tile):
    """Return the number of the meetings of eight waves, and which of them no order of waves shows to be needed."""
    lanes = compiled(shape, tile, (4, 2)).build.lanes
    count = len(meetings(lanes))
    return count, {number for number in range(count) if not is_needed(without(lanes, number), shape)}


def is_needed(less, shape):
    a, b = operands(shape)
    try:
        for order, seed in ORDERS:
            interpret_lanes(less, [a, b, poisoned(shape[:2], f32)], {}, order, seed)
    except InterpreterError:
        return True
    return False


def test_both_meetings_of_half_a_step_are_needed_but_those_of_the_last():
    """Waves multiply while their neighbours read, in turns, and a tile is replaced only after all have read it.

    Steps of 256x256x64 are halved. Of 18 meetings one is before the first half, one is of half of the waves, two are of
    each of seven halves, one is of the other half of the waves, and the last is before the halves whose tiles are there
    already; it does what the two before it would do.
    """
    assert unneeded_meetings((256, 256, 320), (256, 256, 64)) == (18, {14, 15})


def test_where_reads_go_between_products_a_step_meets_once():
    assert unneeded_meetings((128, 128, 768), (128, 128, 64)) == (6, set())


HEAD = "kernel @k {workgroups = 1, level = lane, waves = [2, 1], lanes = 4}"
BROUGHT = (
    f"{HEAD} (%a: memory<8x16xf16, global>, %c: memory<8x16xf16, global>)"
    + """ {
  %lane = lane() : index
  %wave = wave() : index
  %c0 = const() {value = 0} : index
  %c1 = const() {value = 1} : index
  %c2 = const() {value = 2} : index
  %c4 = const() {value = 4} : index
  %c8 = const() {value = 8} : index
  %first = mul(%wave, %c4) : index
  %of_two = floor_div(%lane, %c2) : index
  %row = add(%first, %of_two) : index
  %place = mod(%lane, %c2) : index
  %turn = mod(%row, %c2) : index
  %chunk = xor(%place, %turn) : index
  %column = mul(%chunk, %c8) : index
  %s = allocate() : memory<8x16xf16, shared, xor(8, 2, 1)>
  copy_async_chunks(%a, [%row, %column], %s, [%first]) {shape = [2, 8], steps = [[2, 0], [0, 1]]}
  wait_async() {pending = 0}
  barrier()
  %last = sub(%c8, %c1) : index
  %other = sub(%last, %row) : index
  %x = load(%s, [%other, %column], []) {steps = [[-2, 0], [0, 1]]} : vector<2x8xf16>
  store(%x, %c, [%row, %column], []) {steps = [[2, 0], [0, 1]]}
}
"""
)


def run_brought(text, order="in turn", seed=0):
    a, c = np.arange(128, dtype=np.float16).reshape(8, 16), np.full((8, 16), np.nan, np.float16)
    interpret_lanes(verify(parse(text)), [a, c], {}, order, seed)
    return a, c


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_chunks_arrive_where_their_rows_stand(order, seed):
    a, c = run_brought(BROUGHT, order, seed)
    np.testing.assert_array_equal(c, a[::-1])
    assert str(parse(BROUGHT)) == str(parse(str(parse(BROUGHT))))


def test_lanes_that_take_the_wrong_chunk_are_seen():
    """Without the exclusive or, odd rows are loaded with their halves exchanged."""
    a, c = run_brought(BROUGHT.replace("xor(%place, %turn)", "add(%place, %c0)"))
    np.testing.assert_array_equal(c[::2], np.roll(a[::-1][::2], 8, axis=1))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("  wait_async() {pending = 0}\n", "", r"reads s\[\d, \d\] before the copy of wave \d has arrived"),
        ("wait_async() {pending = 0}\n  barrier()", "barrier()\n  wait_async() {pending = 0}", "before the copy"),
        ("pending = 0", "pending = 128", "before the copy of wave"),
        ("  barrier()\n", "", "before the copy of wave"),
        ("[%first]) {shape", "[%c8]) {shape", r"copies 64 elements to s\[8\], outside memory<8x16xf16, shared, xor"),
    ],
    ids=["no wait", "wait too late", "too few bytes waited for", "no barrier", "outside"],
)  # fmt: skip
def test_what_is_missing_is_found_in_every_order(old, new, what):
    text = BROUGHT.replace(old, new)
    assert text != BROUGHT
    for order, seed in ORDERS:
        with pytest.raises(InterpreterError, match=what):
            run_brought(text, order, seed)


def test_too_little_memory_between_two_steps_is_a_race():
    """A tile is loaded while other waves still read the one before."""
    twice = BROUGHT.replace(
        "  store(%x",
        "  copy_async_chunks(%a, [%row, %column], %s, [%first]) {shape = [2, 8], steps = [[2, 0], [0, 1]]}\n  store(%x",
    )
    found = r"the copy of wave . writes s|before the copy|ends while its copy may still write shared memory"
    for order, seed in ORDERS:
        with pytest.raises(InterpreterError, match=found):
            run_brought(twice, order, seed)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("shape = [2, 8]", "shape = [2]", "is not chunks per lane x elements per chunk"),
        (
            "steps = [[2, 0], [0, 1]]}\n  wait_async",
            "steps = [[2, 0], [1, 0]]}\n  wait_async",
            "chunks run along the last axis",
        ),
        ("%s, [%first])", "%s, [%first, %c0])", "needs the index of a row"),
        ("xor(8, 2, 1)", "pad(8)", "copies memory<8x16xf16, global> to memory<8x16xf16, shared, pad"),
        ("shape = [2, 8]", "shape = [2, 12]", "chunks of 12 do not fit rows"),
        ("pending = 0", "pending = -1", "pending is from 0 to"),
    ],
)
def test_chunks_that_make_no_sense_are_refused(old, new, why):
    with pytest.raises(VerifyError, match=re.escape(why)):
        verify(parse(BROUGHT.replace(old, new, 1)))


# -- whole tiles ----------------------------------------------------------------------------------------------------

TILES = """
kernel @k {workgroups = 1} (%a: memory<8x8xf32, global>, %c: memory<8x8xf32, global>) {
  %c0 = const() {value = 0} : index
  %c4 = const() {value = 4} : index
  %s = allocate() : memory<2x4x8xf32, shared>
  %c1 = const() {value = 1} : index
  copy_async(%a, [%c0, %c4], %s, [%c0]) {axes = [0, 1]}
  copy_async(%a, [%c4, %c0], %s, [%c1]) {axes = [0, 1]}
  wait_async() {pending = 128}
  %x = read(%s, [%c0, %c0, %c0]) {axes = [1, 2]} : tile<4x8xf32>
  write(%x, %c, [%c0, %c0]) {axes = [0, 1]}
  wait_async() {pending = 0}
  %y = read(%s, [%c1, %c0, %c0]) {axes = [1, 2]} : tile<4x8xf32>
  write(%y, %c, [%c4, %c0]) {axes = [0, 1]}
}
"""


def run_tiles(text):
    a, c = np.arange(64, dtype=np.float32).reshape(8, 8), poisoned((8, 8), f32)
    interpret(verify(parse(text)), [a, c], {})
    return a, c


def test_a_box_comes_when_it_was_awaited_and_is_zero_outside():
    a, c = run_tiles(TILES)
    np.testing.assert_array_equal(c, np.block([[a[:4, 4:], np.zeros((4, 4))], [a[4:]]]))
    assert str(parse(TILES)) == str(parse(str(parse(TILES))))


def test_a_box_that_was_not_awaited_is_not_there():
    for gone in ("pending = 128", "pending = 0"):
        with pytest.raises(InterpreterError, match=r"reads s\[., 0, 0\] before its copy has arrived"):
            run_tiles(TILES.replace(gone, "pending = 256"))


# -- the pass -------------------------------------------------------------------------------------------------------


def test_chips_say_what_they_can_load_into_shared_memory():
    assert max(GFX942.direct_load_bytes) == 4 and max(GFX950.direct_load_bytes) == 16


def test_a_step_meets_once_and_takes_turns_in_slots():
    """The first half of a step is read in the step before."""
    lanes = compiled((64, 64, 576), (64, 64, 64), (2, 2)).build.lanes
    loops = (op for op in walk(lanes.body) if isinstance(op, Loop))
    loop = next(loop for loop in loops if any(isinstance(op, Matrix) for op in loop.body.ops))
    kinds = [type(op) for op in loop.body.ops]
    assert [kinds.count(kind) for kind in (WaitAsync, Barrier, Matrix)] == [3, 3, 6]
    copied = Counter(op.to_at[0] for op in loop.body.ops if isinstance(op, CopyAsyncChunks))
    constants = {op.result: op.value for op in walk(lanes.body) if hasattr(op, "value")}
    slots = [constants[op.at[0]] for op in loop.body.ops if isinstance(op, Load)]
    assert slots == [0] * 2 + [1] * 4 + [2] * 4 + [0] * 2
    assert sorted((constants[slot], count) for slot, count in copied.items()) == [(0, 4), (1, 4), (2, 4)]
