"""The text of a kernel loses nothing, and what is no kernel is refused with a caret."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import SEEDS
from strategies import kernels

from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.ops import Const
from tilewave.ir.parse import ParseError, parse
from tilewave.ir.types import F32, I32, INDEX, Scalar


@given(kernels())
def test_a_random_kernel_reads_back_equal(kernel):
    assert parse(str(kernel)) == kernel


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_every_step_of_every_example_reads_back_equal(seed):
    for step in seed.compile(300, 300, 300).steps:
        assert parse(str(step.before)) == step.before
        assert parse(str(step.after)) == step.after


@given(st.one_of(st.floats(), st.integers(-(2**62), 2**62), st.booleans()))
def test_a_number_reads_back_as_it_was(number):
    number = math.nan if number != number else number
    kind = F32 if isinstance(number, float) else INDEX
    kernel = Kernel("k", Block((), (Const(number, results=(Value("x", Scalar(kind)),)),)), workgroups=1)
    again = parse(str(kernel))
    assert again == kernel
    assert type(again.body.ops[0].value) is type(number)


def test_locations_do_not_make_kernels_differ():
    text = "kernel @k {workgroups = 1} () {\n  %x = const() {value = 1} : i32\n}\n"
    assert parse(text) == parse("\n\n" + text)
    assert parse("\n\n" + text).body.ops[0].loc.line == 4
    assert parse(text).body.ops[0].results[0].type == Scalar(I32)


BAD = {
    "an unknown op": (
        "%x = konst() {value = 1} : i32",
        "no op is called 'konst'; the ops are",
        "  %x = konst() {value = 1} : i32\n             ^",
    ),
    "a value nobody defined": ("%x = add(%y, %y) : i32", "%y is used before it is defined", "%x = add(%y"),
    "an unknown dtype": ("%x = const() {value = 1} : f12", "no dtype is called 'f12'", "^"),
    "a missing attribute": ("%x = const() : i32", "const needs value", "^"),
    "an attribute too many": ("%x = const() {value = 1, shade = 2} : i32", "const does not take shade", "^"),
    "a missing type": ("%x, %y = const() {value = 1} : i32", "const has 2 results and 1 types", "^"),
    "a memory nowhere": ("%x = allocate() : memory<4xf32, attic>", "a memory is in one of global, shared", "^"),
    "a stray character": ("%x = const() {value = 1} : i32 ?", "'?' begins nothing that a kernel may hold", "^"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_kernel_is_refused_with_a_caret(case):
    line, why, caret = BAD[case]
    with pytest.raises(ParseError) as raised:
        parse(f"kernel @k {{workgroups = 1}} () {{\n  {line}\n}}\n")
    assert why in str(raised.value)
    assert caret in str(raised.value)
    assert "<text>:2" in str(raised.value)


def test_half_a_kernel_is_refused():
    whole = str(SEEDS[0].compile(1, 1, 1).kernel)
    for cut in range(0, len(whole) - 3, 7):
        with pytest.raises(ParseError):
            parse(whole[:cut])
