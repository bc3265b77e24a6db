"""A loop in several parts runs the same steps in the same order as the whole loop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewave.interp.tiles import interpret
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block
from tilewave.ir.ops import Loop
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import names, replace_values, rewrite
from tilewave.ir.verify import verify
from tilewave.transform.loop_schedule import LoopSchedule, Steps

KERNEL = """
kernel @sums {{workgroups = 1}} (%a: memory<16x4xf32, global>, %c: memory<4xf32, global>) {{
  %o = const() {{value = 0}} : index
  %steps = const() {{value = {steps}}} : index
  %one = const() {{value = 1.0}} : tile<4xf32>
  %sum = loop(%steps, [%one]) : tile<4xf32> do (%i: index, %acc: tile<4xf32>) {{
    %x = read(%a, [%i, %o]) {{axes = [1]}} : tile<4xf32>
    %twice = add(%acc, %acc) : tile<4xf32>
    %z = add(%twice, %x) : tile<4xf32>
    yield([%z])
  }}
  write(%sum, %c, [%o]) {{axes = [0]}}
}}
"""


def expanded(kernel, parts_of):
    """The kernel with its loop in the parts that `parts_of(loop, builder)` returns."""
    builder, results = Builder(names(kernel)), {}

    def expand(op):
        if not isinstance(op, Loop):
            return None
        with builder.region():
            values = LoopSchedule(op, parts_of(op, builder)).expand(builder)
            results.update(zip(op.results, values, strict=True))
            return builder.ops

    return verify(replace_values(rewrite(kernel, expand), results))


def computed(kernel):
    a, c = np.arange(64, dtype=np.float32).reshape(16, 4), np.zeros(4, np.float32)
    interpret(kernel, [a, c], {})
    return c.tolist()


@given(st.lists(st.tuples(st.sampled_from(("loop", "copy", "in place")), st.integers(0, 3)), min_size=1, max_size=4))
def test_parts_run_the_steps_of_the_whole_loop(kinds):
    """Doubling before each addition makes every order of steps a different sum."""
    lengths = [1 if kind == "in place" else n for kind, n in kinds]

    def parts(loop, builder):
        first, found = 0, []
        for at, ((kind, _), n) in enumerate(zip(kinds, lengths, strict=True)):
            trips = None if kind == "in place" else builder.const(n)
            suffix = None if kind == "loop" and not at else f"part{at}"
            found.append(Steps(loop.body, trips, Number(builder, builder.const(first)), suffix))
            first += n
        return tuple(found)

    kernel = verify(parse(KERNEL.format(steps=sum(lengths))))
    assert computed(expanded(kernel, parts)) == computed(kernel)


def test_a_part_that_carries_nothing_leaves_the_values():
    def parts(loop, builder):
        nothing = Block(loop.body.args[:1], (replace(loop.body.ops[-1], values=()),))
        return Steps(nothing, builder.const(2), suffix="first"), Steps(loop.body, loop.trips)

    kernel = verify(parse(KERNEL.format(steps=3)))
    assert computed(expanded(kernel, parts)) == computed(kernel)


@pytest.mark.parametrize("first", [0, 5])
def test_steps_are_counted_from_their_first_one(first):
    kernel = parse(KERNEL.format(steps=3))

    def parts(loop, builder):
        return (Steps(loop.body, loop.trips, Number(builder, builder.const(first))),)

    want = np.ones(4)
    for row in np.arange(64.0).reshape(16, 4)[first : first + 3]:
        want = 2 * want + row
    assert computed(expanded(kernel, parts)) == want.tolist()


def test_values_are_named_by_the_part_that_they_come_from():
    def parts(loop, builder):
        one = builder.const(1)
        return Steps(loop.body, one, yields="inside"), Steps(loop.body, one, Number(builder, one), suffix="edge")

    text = str(expanded(parse(KERNEL.format(steps=2)), parts))
    assert "%sum_inside = loop(%c1, [%one])" in text
    assert "%sum = loop(%c1, [%sum_inside]) : tile<4xf32> do (%i_edge: index, %acc_edge: tile<4xf32>)" in text
