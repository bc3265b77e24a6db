"""What verify refuses: whatever no lowering can take, with the op and its line."""

import kernels
import pytest

from tilewave import *
from tilewave.errors import Loc, TilewaveError
from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.parse import parse
from tilewave.ir.verify import VerifyError, verify, verify_part

HEAD = "kernel @k {workgroups = 1} (%a: memory<8x8xf32, global>, %n: index) {\n"
ABOVE = """\
  %o = const() {value = 0} : index
  %x = const() {value = 1.0} : tile<8x8xf32>
  %t = const() {value = true} : tile<8x8xbool>
  %y = cast(%x) : tile<8x8xi32>
  %s = allocate() : memory<8x8xf32, shared>
"""


def refused(text):
    with pytest.raises(VerifyError) as raised:
        verify(parse(text))
    return raised.value


ARGUMENTS = {
    "tile<4x4xf32>": "a call gives arrays and numbers, no tile<4x4xf32>",
    "accumulator<16x16xf32>": "no accumulator<16x16xf32>",
    "vector<4xf32>": "no vector<4xf32>",
    "mbarriers<2>": "no mbarriers<2>",
    "exchange<2x8x8xf32>": "no exchange<2x8x8xf32>",
    "memory<4x4xf32, shared>": "no memory<4x4xf32, shared>",
    "memory<4x4xindex, global>": "no memory<4x4xindex, global>",
    "memory<4294967296x4294967296xf32, global>": "has more than 281,474,976,710,656 elements",
    "memory<1x1x1x1x1x1x1x1x1x1x1x1x1xf32, global>": "or more than 12 axes",
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_a_call_gives_arrays_and_numbers_alone(kind):
    assert ARGUMENTS[kind] in str(refused(f"kernel @k {{workgroups = 1}} (%a: {kind}) {{\n}}\n"))


def test_a_piece_of_a_kernel_may_begin_with_a_tile():
    text = "kernel @k {workgroups = 1} (%x: tile<4x4xf32>) {\n  %y = neg(%x) : tile<4x4xf32>\n}\n"
    assert verify_part(parse(text)) == parse(text)
    refused(text)


CONSTANTS = {
    "{value = 9223372036854775808} : index": "index holds whole numbers from -9223372036854775808 to",
    "{value = 1000000000000000000000000000000} : index": "index holds whole numbers",
    "{value = -9223372036854775809} : i64": "i64 holds whole numbers",
    "{value = 128} : i8": "i8 holds whole numbers from -128 to 127, not 128",
    "{value = 128} : tile<4xi8>": "i8 holds whole numbers from -128 to 127, not 128",
    "{value = 1.5} : i32": "i32 holds whole numbers",
    "{value = true} : i32": "i32 holds whole numbers",
    "{value = 1} : bool": "a truth value is true or false, not 1",
    "{value = true} : f32": "f32 holds no True",
    "{value = 1e39} : f32": "f32 holds no 1e+39; where infinity is meant, write inf",
    "{value = -65520.0} : f16": "f16 holds no -65520.0",
    "{value = 500} : tile<4xf8e4m3fn>": "f8e4m3fn holds no 500",
    "{value = shared} : f32": "value is a number, not 'shared'",
    "{value = [1]} : f32": "value is a number, not (1,)",
    "{value = 1.0} : memory<4x4xf32, shared>": "makes a number or a tile, not memory",
    "{value = 1.0} : accumulator<16x16xf32>": "makes a number or a tile, not accumulator",
    "{value = 1.0} : tile<0x4xf32>": "tile<0x4xf32> has an axis without elements",
    "{value = 1.0} : tile<100000x100000xf32>": "has more than 67,108,864 elements",
}


@pytest.mark.parametrize("rest", CONSTANTS)
def test_a_constant_is_one_of_its_dtype(rest):
    error = refused(f"{HEAD}  %c = const() {rest}\n}}\n")
    assert CONSTANTS[rest] in error.what
    assert error.loc.line == 2


@pytest.mark.parametrize(
    "rest",
    [
        "{value = 127} : i8",
        "{value = -128} : i8",
        "{value = inf} : f16",
        "{value = -65519.0} : f16",
        "{value = 3.4e38} : f32",
        "{value = 3} : f32",
    ],
)
def test_a_constant_at_the_end_of_its_dtype_passes(rest):
    assert verify(parse(f"{HEAD}  %c = const() {rest}\n}}\n"))


OPS = {
    "%b = add(%t, %t) : tile<8x8xbool>": "computes with numbers, not tile<8x8xbool>",
    "%b = neg(%t) : tile<8x8xbool>": "takes numbers, not tile<8x8xbool>",
    "%b = neg(%a) : memory<8x8xf32, global>": "takes a number or a tile",
    "%b = cast(%x) : vector<8x8xf16>": "cannot become vector<8x8xf16>",
    "%b = cast(%a) : tile<8x8xf32>": "cannot become",
    "%b = broadcast(%x) {axes = [0, -1]} : tile<8x8xf32>": "is not tile<8x8xf32>",
    "%b = broadcast(%x) {axes = [0, 0]} : tile<8x8xf32>": "is not tile<8x8xf32>",
    "%b = permute(%x) {axes = 0} : tile<8x8xf32>": "axes is a list of whole numbers, not 0",
    "%b = read(%a, [%o, %o]) {axes = [0, -1]} : tile<8x8xf32>": "do not lay",
    "%b = read(%a, [%o, %o]) {axes = [0, 1], guard = [2]} : tile<8x8xf32>": "has no axes [2] to guard",
    "%b = read(%a, [%o, %o]) {axes = [0, 1], ahead = [1]} : tile<8x8xf32>": "[1] are not distances along the axes",
    "%b = read(%a, [%o, %o]) {axes = [0, 1], per_lane = -4} : tile<8x8xf32>": "per_lane is from 0 to 1024, not -4",
    "%b = read(%a, [%o, %o]) {axes = [0, 1], spread = butter} : tile<8x8xf32>": "spread is one of '', 'rows', ",
    "%b = read(%a, [%o, %o]) {axes = [0, 1], through = walls} : tile<8x8xf32>": "through is one of '', 'shared', not",
    "%b, %c = read(%a, [%o, %o]) {axes = [0, 1]} : tile<8x8xf32>, f32": "has 1 results, not 2",
    "read(%a, [%o, %o]) {axes = [0, 1]}": "has 1 results, not 0",
    "%b = allocate() : memory<8x8xf32, global>": "makes a shared memory, not memory<8x8xf32, global>",
    "%b = allocate() : memory<8x8xf32, shared, xor(3, 2, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, xor(0, 2, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, bits(2, 0, 4)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, bits(0, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, panels(3, 1, 1, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, panels(4, 1, 8, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8xf32, shared, panels(4, 1, 2, 1)>": "rows cannot have this placement",
    "%b = allocate() : memory<8x8xf32, shared, pad(99999999)>": "rows cannot have this placement",
    "%b = mma(%x, %x, %x) {instruction = 3} : tile<8x8xf32>": "instruction is a word, not 3",
    "%b = mma(%x, %x, %x) {depth = -1} : tile<8x8xf32>": "depth is from 0 to 65536, not -1",
    "%b = mma(%t, %t, %x) : tile<8x8xf32>": "does not fit the accumulator",
    "%b = prepack(%a) {row_axis = 0, depth_axis = 7} : memory<1x8x8x1xf32, packed>": "has no such panels",
    "%b = prepack(%s) {row_axis = 0, depth_axis = 1} : memory<1x8x8x1xf32, packed>": "copies a global memory",
    "%p, %q, %r = tile_of(%o) {rows = -1, cols = 1, batches = 1, workgroups = 1} : index, index, index": "rows is",
    "%p, %q, %r = tile_of(%o) {rows = 0, cols = 1, batches = 1, workgroups = 1} : index, index, index": "1 of",
    "barrier() {waves = -1}": "waves is from 0 to 1024, not -1",
    "wait_async() {pending = true}": "pending is a whole number, not True",
    "%b = loop(%o, [%s]) : memory<8x8xf32, shared> do (%i: index, %c: memory<8x8xf32, shared>) {}": "carries",
    "%b = zero_accumulator() : accumulator<16x16x16xf32>": "makes an accumulator of one block",
    "yield([%o])": "nothing takes what a kernel's own block yields",
}


@pytest.mark.parametrize("line", OPS)
def test_an_op_that_no_lowering_takes_is_refused_on_its_line(line):
    error = refused(f"{HEAD}{ABOVE}  {line}\n}}\n")
    assert OPS[line] in error.what
    assert error.loc.line == 7


KERNELS = {
    "workgroups = 0": "0 workgroups compute nothing",
    "workgroups = -1": "-1 workgroups compute nothing",
    "workgroups = 2147483648": "more than a launch numbers",
    "workgroups = 1.5": "workgroups is a whole number, not 1.5",
    "workgroups = [1]": "workgroups is a whole number, not (1,)",
    "workgroups = 1, level = roof": "no level is called 'roof'",
    "workgroups = 1, level = [lane]": "no level is called ('lane',)",
    "workgroups = 1, waves = [0]": "waves are counted from 1 on",
    "workgroups = 1, waves = 4": "waves is a list of whole numbers, not 4",
    "workgroups = 1, lanes = 65": "a wave has at most 64 lanes",
    "workgroups = 1, level = lane": "a kernel says its waves and lanes",
    "workgroups = 3, cluster = 2": "no whole clusters of 2",
    'workgroups = 1, matrix = "\\ud800"': "matrix is a word",
}


@pytest.mark.parametrize("said", KERNELS)
def test_a_kernel_that_cannot_be_launched_is_refused(said):
    assert KERNELS[said] in str(refused(f"kernel @k {{{said}}} () {{\n}}\n"))


def test_positions_of_elements_are_arithmetic_alone():
    text = "  %g = gather(%a) : tile<8x8xf32> do (%i: index, %j: index) {\n    barrier()\n    yield([%i, %j])\n  }\n"
    assert "has no place among the positions of a tile" in refused(f"{HEAD}{text}}}\n").what


@pytest.mark.parametrize("used", ["%i", "%inner"])
def test_what_a_loop_defines_is_not_seen_behind_it(used):
    loop = "  loop(%n, []) do (%i: index) {\n    %inner = add(%i, %i) : index\n    yield([])\n  }\n"
    error = refused(f"{HEAD}{loop}  %b = add({used}, {used}) : index\n}}\n")
    assert error.what == f"add: {used}: index is not defined here"
    assert error.loc.line == 6


def test_every_op_is_checked_by_something():
    """An op that says nothing of itself is refused by its name, and not passed by."""

    class Novelty(Op):
        levels = ("tile",)

    kernel = Kernel("k", Block((), (Novelty(loc=Loc("<text>", 7)),)), 1)
    with pytest.raises(VerifyError) as raised:
        verify(kernel)
    assert raised.value.what == "novelty: does not say what it takes and gives, by a method check(want)"
    assert raised.value.loc.line == 7


def test_a_stage_that_fails_names_the_op_and_its_line():
    from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
    from tilewave.lower.cpu.kernel import lower

    with pytest.raises(TilewaveError) as raised:
        lower(verify(parse(f"{HEAD}{ABOVE}  wait_async() {{pending = 0}}\n}}\n")), INSTRUCTION_SETS["avx2"])
    line = f"{HEAD}{ABOVE}".count("\n") + 1
    assert raised.value.what == f"k: the CPU's lowering cannot take wait_async: <text>:{line}: cannot lower wait_async"
    assert raised.value.loc.line == line


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_what_large_problems_need_is_within_all_limits(target):
    """Packed operands of a CPU are as large as the arrays; none of this is run."""
    compiled = wave_compile(
        WaveCompileOptions(subs=kernels.sizes(32768, 16384, 8192, 128, 256, 64), target=target), kernels.gemm(f16, f32)
    )
    assert compiled.llvm_ir
