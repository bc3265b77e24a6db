"""Text to mapping and back, and what is said about text that is no mapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mapping_strategies import MAPPINGS

from tilewave.mapping import (
    Grid,
    Mapping,
    MappingError,
    as_mapping,
    grouped,
    linear,
    parse,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)

KNOWN = (
    "  renumberings: xcd_contiguous, xcd_chunked, last_first, folded\n"
    "  orders: linear, paired, grouped, supertiles, snake, morton, hilbert"
)


@given(mapping=MAPPINGS)
def test_text_and_mapping_round_trip(mapping):
    assert parse(str(mapping)) == mapping
    assert str(parse(str(mapping))) == str(mapping)


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("grouped(4)", Mapping((), grouped(4))),
        ("  grouped ( 4 ,along = 'n' ) ", Mapping((), grouped(4, "n"))),
        ('linear("n")', Mapping((), linear("n"))),
        ("xcd_contiguous(8)>>grouped(size=4)", xcd_contiguous(8) >> grouped(4)),
        ("xcd_contiguous(xcds=8)", xcd_contiguous(8) >> linear()),
        ("xcd_chunked(chunk=2, xcds=8)\n  >> supertiles(2, 4)", xcd_chunked(8, 2) >> supertiles(2, 4)),
        ("snake(+3)", Mapping((), snake(3))),
    ],
)
def test_text_may_be_spelled_freely(text, mapping):
    assert parse(text) == mapping


ERRORS = {
    "": f"expected the name of a mapping, not the end\n      \n      ^\n{KNOWN}",
    "grupped(4)": f"""there is no mapping `grupped`
      grupped(4)
      ^^^^^^^
  did you mean grouped?
{KNOWN}""",
    "xcd_contiguous(8) >> zzz()": f"""there is no mapping `zzz`
      xcd_contiguous(8) >> zzz()
                           ^^^
{KNOWN}""",
    "grouped(0)": """grouped: size is 0, but must be at least 1
      grouped(0)
              ^""",
    "xcd_chunked(8, -3)": """xcd_chunked: chunk is -3, but must be at least 1
      xcd_chunked(8, -3)
                     ^^""",
    "grouped(2147483649)": """grouped: size is 2147483649, but may be at most 2147483648
      grouped(2147483649)
              ^^^^^^^^^^""",
    "grouped(99999999999999999999)": """grouped: size is out of range; it may be at most 2147483648
      grouped(99999999999999999999)
              ^^^^^^^^^^^^^^^^^^^^""",
    "grouped(4.5)": """grouped: size is a whole number, not 4.5
      grouped(4.5)
              ^^^""",
    "grouped(1e9)": """grouped: size is a whole number, not 1e9
      grouped(1e9)
              ^^^""",
    "grouped('4')": """grouped: size is a whole number, not '4'
      grouped('4')
              ^^^""",
    "linear(4)": """linear: along is "m" or "n", not 4
      linear(4)
             ^""",
    "linear(along='k')": """linear: along is "m" or "n", not 'k'
      linear(along='k')
                   ^^^""",
    "grouped(WGM)": """expected a number and not `WGM`
      grouped(WGM)
              ^^^
  text has numbers alone: for a symbol, write mapping.grouped(sym.WGM); to try several numbers, \
Tune(mapping=["grouped(4)", "grouped(8)"])""",
    "grouped(4, along=n)": """expected a number and not `n`
      grouped(4, along=n)
                       ^
  write along="n\"""",
    "grouped()": """grouped needs size
      grouped()
      ^^^^^^^
  write grouped(size, along="m")""",
    "morton(3)": """morton takes nothing
      morton(3)
             ^
  write morton()""",
    "xcd_contiguous(8, 2)": """xcd_contiguous takes only xcds
      xcd_contiguous(8, 2)
                        ^
  write xcd_contiguous(xcds)""",
    "grouped(4, size=4)": """grouped: size is given twice
      grouped(4, size=4)
                 ^^^^""",
    "grouped(sise=4)": """grouped has no `sise`
      grouped(sise=4)
              ^^^^
  write grouped(size, along="m")""",
    "grouped": """expected ( after grouped, not the end
      grouped
             ^
  write grouped(size, along="m")""",
    "grouped(4": """this ( is never closed
      grouped(4
             ^""",
    "xcd_contiguous(8 >> grouped(4)": """this ( is never closed
      xcd_contiguous(8 >> grouped(4)
                    ^""",
    "grouped(": """this ( is never closed
      grouped(
             ^""",
    "grouped(4))": """this ) closes nothing
      grouped(4))
                ^""",
    "grouped(4) linear()": """expected >> or the end, not `linear`
      grouped(4) linear()
                 ^^^^^^""",
    "grouped(4 5)": """expected , or ) and not `5`
      grouped(4 5)
                ^""",
    "grouped(4,)": """expected a number and not `)`
      grouped(4,)
                ^""",
    "xcd_contiguous(8) >>": f"""expected the name of a mapping, not the end
      xcd_contiguous(8) >>
                          ^
{KNOWN}""",
    "grouped(4) >> xcd_contiguous(8)": """grouped(4) is an order and ends a mapping
      grouped(4) >> xcd_contiguous(8)
                 ^^
  put the renumberings before it""",
    "grouped(4); import os": """expected >> or the end, not `;`
      grouped(4); import os
                ^""",
    "__import__('os').system('ls')": f"""there is no mapping `__import__`
      __import__('os').system('ls')
      ^^^^^^^^^^
{KNOWN}""",
}


@pytest.mark.parametrize("text", ERRORS)
def test_bad_text_is_told_in_one_line_with_a_caret(text):
    with pytest.raises(MappingError) as caught:
        parse(text)
    assert str(caught.value) == ERRORS[text]


def test_text_beyond_any_use_is_refused():
    with pytest.raises(MappingError, match="at most 1000 characters, not 100000"):
        parse("(" * 100_000)


@given(text=st.text(alphabet="grouped(4,)>= n\"'-.0m²٣", max_size=30))
def test_no_text_does_anything_but_parse_or_raise_mapping_error(text):
    try:
        parse(text)
    except MappingError:
        return
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize("wrong", [True, 4.0, "4", None, 2 + 0j, 0, -1, 2**31 + 1])
def test_parameters_of_the_wrong_kind_or_range_are_refused(wrong):
    for make in (grouped, snake, xcd_contiguous, lambda n: supertiles(n, 2), lambda n: xcd_chunked(8, n)):
        with pytest.raises(MappingError):
            make(wrong)


def test_the_messages_about_parameters():
    for make, message in {
        lambda: grouped(True): "grouped: size is a whole number, not True",
        lambda: grouped(4.0): "grouped: size is a whole number, not 4.0",
        lambda: xcd_chunked(8, 0): "xcd_chunked: chunk is 0, but must be at least 1",
        lambda: grouped(4, along="x"): 'grouped: along is "m" or "n", not \'x\'',
    }.items():
        with pytest.raises(MappingError) as caught:
            make()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ((0, 4), "a grid needs rows >= 1, not 0"),
        ((4, -1), "a grid needs cols >= 1, not -1"),
        ((4, 4, 0), "a grid needs batches >= 1, not 0"),
        ((True, 4), "rows is a whole number, not True"),
        ((4, 2.5), "cols is a whole number, not 2.5"),
        ((10**12, 1), "rows = 1000000000000 is too large; a launch numbers at most 2147483647 tiles"),
        ((65536, 32768), "a grid of 65536×32768 has 2147483648 tiles; a launch numbers at most 2147483647"),
    ],
)
def test_grids_that_nobody_can_launch_are_refused(sides, message):
    with pytest.raises(MappingError) as caught:
        Grid(*sides)
    assert str(caught.value) == message


def test_anything_that_stands_for_a_mapping_becomes_one():
    mapping = xcd_contiguous(8) >> grouped(4)
    assert as_mapping("xcd_contiguous(8) >> grouped(4)") == as_mapping(mapping) == mapping
    assert as_mapping(grouped(4)) == Mapping((), grouped(4))
    assert as_mapping(xcd_contiguous(8)) == xcd_contiguous(8) >> linear()
    with pytest.raises(MappingError, match=r"^42 is not a mapping"):
        as_mapping(42)
