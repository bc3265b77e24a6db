"""The assembly text that LLVM emits: instructions, lines, kernels, and what is not understood."""

import pytest
from emulated_code import SMALL, kernel_text

from tilewave.emulator import Emulator
from tilewave.emulator.assembly import read_assembly
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import parse_operand, split_text


def test_instructions_keep_their_text_line_and_source():
    module = read_assembly(SMALL[0].text)
    lines = SMALL[0].text.splitlines()
    for instruction in module.instructions:
        assert " ".join(lines[instruction.line - 1].split()) == instruction.text
    matrix = [i for i in module.instructions if i.mnemonic.startswith("v_mfma")]
    assert len(matrix) == 8 and {str(i.loc) for i in matrix} == {"gemm.py:12"}
    branch = next(i for i in module.instructions if i.mnemonic == "s_cbranch_scc1")
    assert module.instructions[branch.target].mnemonic == "ds_read_b128"


def test_what_the_compiler_added_belongs_to_the_line_before():
    lines = '\t.file 1 "src" "gemm.py"\n\t.loc 1 7 3 is_stmt 0\n\ts_nop 0\n\t.loc 1 0 0\n\ts_nop 1 ; added\n'
    first, second, _ = read_assembly(kernel_text(lines)).instructions
    assert str(first.loc) == str(second.loc) == "src/gemm.py:7" and second.text == "s_nop 1"


def test_kernels_are_described_by_directives_and_metadata():
    kernel = read_assembly(SMALL[0].text).kernels["gemm"]
    assert [(a.name, a.offset, a.size, a.is_pointer) for a in kernel.arguments] == [
        ("A", 0, 8, True), ("B", 8, 8, True), ("C", 16, 8, True), ("M", 24, 4, False), ("N", 28, 4, False),
        ("K", 32, 4, False),
    ]  # fmt: skip
    assert kernel.descriptor.shared_bytes == 10240 and kernel.descriptor.user_scalars == ("kernarg_segment_ptr",)
    assert kernel.descriptor.workgroup_ids == (True, True, False) and kernel.descriptor.mode == 0b1111110000 & 0x3FF
    assert (kernel.resources.vector_registers, kernel.resources.largest_workgroup) == (44, 256)


@pytest.mark.parametrize(
    "text, kind, row, count",
    [
        ("v3", "vector", 3, 1),
        ("a[4:7]", "vector", 260, 4),
        ("s[0:1]", "scalar", 0, 2),
        ("vcc", "scalar", 106, 2),
        ("exec_hi", "scalar", 127, 1),
        ("off", "word", 0, 1),
        ("0x1f", "integer", 0, 1),
        ("-1.0", "float", 0, 1),
    ],
)
def test_operands(text, kind, row, count):
    operand = parse_operand(text)
    assert (operand.kind, operand.row, operand.count) == (kind, row, count)


def test_signs_and_modifiers():
    name, operands, modifiers = split_text("v_fma_f32 v1, -|v2|, abs(v3), neg(s4) clamp op_sel:[0,1,0]")
    assert name == "v_fma_f32" and modifiers == {"clamp": "", "op_sel": "[0,1,0]"}
    assert [(o.negated, o.absolute) for o in operands] == [(False, False), (True, True), (False, True), (True, False)]


def test_an_unknown_instruction_is_named_when_it_is_reached():
    text = kernel_text("\ts_branch .L1\n\tv_frobnicate_b32 v0, v1\n.L1:")
    Emulator.from_assembly(text).launch("k", (1,), (64,), [0, 0])
    with pytest.raises(UnsupportedCode) as error:
        Emulator.from_assembly(text.replace("\ts_branch .L1\n", "")).launch("k", (1,), (64,), [0, 0])
    assert str(error.value) == ("the emulator does not support: v_frobnicate_b32 v0, v1\n  line 4; please report it")


def test_the_chip_is_the_one_that_the_text_names():
    assert Emulator.from_assembly(kernel_text("", chip="gfx950")).chip == "gfx950"
    with pytest.raises(UnsupportedCode, match="the assembly is for gfx942, not for gfx950"):
        Emulator.from_assembly(kernel_text(""), chip="gfx950")
    with pytest.raises(UnsupportedCode, match="the emulator does not know gfx1100"):
        Emulator.from_assembly(kernel_text("", chip="gfx1100"))
    with pytest.raises(UnsupportedCode, match="does not say which chip"):
        Emulator.from_assembly("\ts_endpgm\n")


def test_too_much_shared_memory_is_refused():
    big = kernel_text("", shared=65537)
    with pytest.raises(UnsupportedCode, match="65537 bytes of shared memory do not fit gfx942, which has 65536"):
        Emulator.from_assembly(big).launch("k", (1,), (64,), [0, 0])
    Emulator.from_assembly(kernel_text("", shared=65537, chip="gfx950")).launch("k", (1,), (64,), [0, 0])


def test_a_line_of_blanks_is_read_at_once():
    """Looking for a comment from every blank on took 13 s for 40,000 of them, and the square of that for more."""
    text = '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n' + " " * 1_000_000 + "s_endpgm ; the end\n"
    (end,) = read_assembly(text).instructions
    assert end.text == "s_endpgm"
