"""Trip counts of loops and ranges of counting numbers: the bounds are reached, and are tight."""

from itertools import product

import pytest

from tilewave.analysis.ranges import Ranges
from tilewave.analysis.residues import Residues
from tilewave.ir.ops import Add, While
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk


def counting(first, end, step):
    return parse(f"""
kernel @k {{workgroups = 1}} () {{
  %first = const() {{value = {first}}} : i32
  %end = const() {{value = {end}}} : i32
  %step = const() {{value = {step}}} : i32
  %n = while([%first]) : i32 do (%t: i32) {{
    %more = less(%t, %end) : bool
    yield([%more])
  }} do (%u: i32) {{
    %next = add(%u, %step) : i32
    yield([%next])
  }}
}}
""")


@pytest.mark.parametrize(("first", "end", "step"), [*product((-5, 0, 3), (-5, 0, 1, 7, 8), (1, 2, 3, 7))])
def test_a_loop_that_counts_goes_round_as_often_as_python_counts(first, end, step):
    kernel = counting(first, end, step)
    (loop,) = (op for op in walk(kernel.body) if isinstance(op, While))
    assert Residues(kernel).most_rounds(loop) == len(range(first, end, step))


def counted_on(low, high, end):
    """i + first, where first is a number from `low` to `high`, and i counts to end - first."""
    return parse(f"""
kernel @k {{workgroups = {high - low + 1}}} () {{
  %w = workgroup() : index
  %low = const() {{value = {low}}} : index
  %first = add(%w, %low) : index
  %end = const() {{value = {end}}} : index
  %zero = const() {{value = 0}} : index
  %left = sub(%end, %first) : index
  %trips = max(%left, %zero) : index
  loop(%trips, []) do (%i: index) {{
    %at = add(%i, %first) : index
    yield([])
  }}
}}
""")


@pytest.mark.parametrize(("low", "high", "end"), [(0, 0, 1), (0, 3, 9), (2, 5, 6), (2, 7, 5), (4, 4, 64)])
def test_a_number_that_counts_on_to_an_end_stays_below_it_and_reaches_the_last(low, high, end):
    kernel = counted_on(low, high, end)
    at = [op for op in walk(kernel.body) if isinstance(op, Add)][-1].result
    reached = [first + i for first in range(low, high + 1) for i in range(max(0, end - first))]
    assert Ranges(kernel).of(at) == (min(reached), max(reached))
