"""The text of a kernel loses nothing, and what is no kernel is refused with a caret."""

import math
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import SEEDS
from strategies import kernels

from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.ops import Const
from tilewave.ir.parse import ParseError, parse
from tilewave.ir.tokens import LONGEST_TEXT
from tilewave.ir.types import F32, I32, INDEX, Scalar
from tilewave.ir.verify import verify


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


BEGUN = "kernel @k {workgroups = 1} () {\n"
ROOM = LONGEST_TEXT - 1000
HOSTILE = {
    "slashes": (BEGUN + "/ " * (ROOM // 2), "'/' begins nothing"),
    "a comment without end": (BEGUN + "/" * ROOM, "found the end"),
    "comments": (BEGUN + "//\n" * (ROOM // 3), "found the end"),
    "a word in quotes that never ends": (BEGUN + '%x = const() {value = "' + "a" * ROOM, "does not end on its line"),
    "quotes": (BEGUN + '"' * ROOM, "no op is called ''"),
    "backslashes in quotes": (BEGUN + '%x = const() {value = "' + "\\\\" * (ROOM // 2), "does not end on its line"),
    "blocks in blocks": (BEGUN + "role() {first = 0, last = 1} do () {\n" * (ROOM // 40), "more than 48 nested blocks"),
    "lists in lists": (BEGUN + "%x = const() {value = " + "[" * ROOM, "more than 48 nested lists"),
    "brackets": (BEGUN + "(" * ROOM, "no op is called '('"),
    "a number without end": (BEGUN + "%x = const() {value = " + "9" * ROOM, "a number of 8,387,608 characters"),
    "a fraction without end": (BEGUN + "%x = const() {value = 1." + "9" * ROOM, "a number of 8,387,610 characters"),
    "a name without end": (BEGUN + "%" + "x" * ROOM, "a value of 8,387,609 characters"),
    "a type without end": (
        BEGUN + "%x = const() {value = 1} : tile<" + "4x" * (ROOM // 2),
        "'<' begins nothing",
    ),
    "a shape without end": (BEGUN + "%x = const() {value = 1} : tile<" + "4x" * 4_000_000 + "f32>", "a word of"),
    "one long line": (
        BEGUN.strip() + " %x = const() {value = 1} : index" * 3 + " ?" + " " * ROOM,
        "'?' begins nothing",
    ),
    "results": (BEGUN + "%x, " * (ROOM // 4), "a list has more than 4096 items"),
    "words": (BEGUN + "add " * (ROOM // 4), "expected '(', found 'add'"),
    "zeros": ("\0" * ROOM, "'\\x00' begins nothing"),
    "digits of another script": (BEGUN + "%x = const() {value = ٣} : index", "'٣' begins nothing"),
    "text that runs backwards": (BEGUN + "%x = const() {value = \u202e1} : index", "'\\u202e' begins nothing"),
    "half a character": (BEGUN + "\ud800", "begins nothing"),
    "too much": (" " * (LONGEST_TEXT + 1), "8,388,609 characters; a kernel's text has at most 8,388,608"),
    "10 MB": ("%x = const() {value = 1} : index\n" * 300_000, "a kernel's text has at most 8,388,608"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_text_is_refused_at_once_and_in_few_words(case):
    text, said = HOSTILE[case]
    with pytest.raises(ParseError) as raised:
        parse(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 2000


def test_the_caret_stands_under_its_place_on_a_long_line():
    with pytest.raises(ParseError) as raised:
        parse(BEGUN.strip() + " " * 1000 + "?" + " " * 1000)
    *_, line, caret = str(raised.value).splitlines()
    assert line[caret.index("^")] == "?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%x = const() {value = 1, value = 2} : index", "value is given twice"),
        ("%x = neg() {x = 3} : index", "neg needs x"),
        ("%x = const() {value = 1 shade = 2} : index", "expected ',', found 'shade'"),
        ("%x = const() {value = (} : index", "expected a number, a word or a list, found '('"),
        ("%x = const() {7 = 1} : index", "expected the name of an attribute, found '7'"),
        ("%x = const() {value = 1} : tile<4xf32, global>", "a tile is nowhere: global belongs to a memory"),
        ("%x = const() {value = 1} : cake<4xf32>", "no type is called 'cake'; the types are tile, "),
        (
            "%x = make_mbarriers() {arrivals = 1} : mbarriers<4xf16>",
            "mbarriers count arrivals and bytes, and hold no f16",
        ),
        ("%x = allocate() : memory<4xf32, shared, pad(1, 2)>", "a placement is pad(elements)"),
        ("%x = allocate() : memory<4xf32, shared, xor(1, 2)>", "a placement is pad(elements)"),
        ("%x = allocate() : memory<4xf32, shared, bits(1)>", "a placement is pad(elements)"),
    ],
)
def test_what_looks_almost_like_an_op_is_refused(line, said):
    with pytest.raises(ParseError) as raised:
        parse(f"{BEGUN}  {line}\n}}\n")
    assert said in str(raised.value)
    assert "<text>:2" in str(raised.value)


@given(st.text(max_size=200))
def test_no_text_brings_anything_but_an_error_of_ours(text):
    for whole in (text, BEGUN + text, BEGUN + text + "\n}"):
        with suppress(ParseError):
            parse(whole)


def loops(count):
    """Return `count` loops one after the other, each of three ops."""
    one = "  %l{i} = loop(%c, [%c]) : index do (%i{i}: index, %a{i}: index) {{\n    %s{i} = add(%a{i}, %i{i}) : index\n"
    one += "    yield([%s{i}])\n  }}\n"
    return BEGUN + "  %c = const() {value = 1} : index\n" + "".join(one.format(i=i) for i in range(count)) + "}\n"


@pytest.mark.parametrize("stage", ["parse", "verify", "print"])
def test_the_work_grows_with_the_ops_and_no_faster(stage):
    """Counted in calls of Python and C functions, which no clock disturbs."""
    kernel = {count: parse(loops(count)) for count in (200, 800)}
    run = {"parse": lambda n: parse(loops(n)), "verify": lambda n: verify(kernel[n]), "print": lambda n: str(kernel[n])}
    few, many = (calls(lambda n=n: run[stage](n)) for n in (200, 800))
    assert many < 4.1 * few


def calls(work):
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_ten_thousand_ops_read_back_equal():
    kernel = verify(parse(loops(2500)))
    assert parse(str(kernel)) == kernel
