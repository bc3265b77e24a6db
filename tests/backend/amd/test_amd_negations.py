"""Vectors put together of choices are negated one number at a time; all others as LLVM likes it."""

import pytest

from tilewave.backend.llvm_child import negated_by_parts

FUNCTION = """define <2 x float> @f(<2 x i32> %x, <2 x float> %y, <2 x i1> %c) {{
  {first}
  %2 = fneg nsz <2 x float> {what}
  %3 = fadd <2 x float> %2, %y
  ret <2 x float> %3
}}
"""
CHOSEN = "%1 = select <2 x i1> %c, <2 x float> zeroinitializer, <2 x float> %y"


def test_choices_are_negated_one_by_one():
    text = negated_by_parts(FUNCTION.format(first=CHOSEN, what="%1"))
    assert text.count("fneg nsz float") == 2
    assert "fneg nsz <2 x float>" not in text
    assert "  %2 = insertelement <2 x float>" in text  # LLVM counts what has no name: each keeps its number


@pytest.mark.parametrize("what", ["%1", "%y"])
def test_what_is_computed_or_given_stays_as_it_is(what):
    text = FUNCTION.format(first="%1 = fmul <2 x float> %y, %y", what=what)
    assert negated_by_parts(text) == text


SIGNS = """define <2 x i32> @f(<2 x i32> %x) {{
  %1 = xor <2 x i32> %x, {bits}, !dbg !3
  ret <2 x i32> %1
}}
"""


def test_sign_bits_are_inverted_one_by_one():
    text = negated_by_parts(SIGNS.format(bits="splat (i32 -2147483648)"))
    assert text.count("xor i32 ") == text.count(", -2147483648, !dbg !3") == 2
    assert "  %1 = insertelement <2 x i32>" in text and "splat" not in text


@pytest.mark.parametrize("bits", ["splat (i32 -1)", "%x"])
def test_other_bits_are_inverted_at_once(bits):
    text = SIGNS.format(bits=bits)
    assert negated_by_parts(text) == text
