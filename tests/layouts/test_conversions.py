"""Conversions between layouts give what numpy gathers, and exchange no more than they must."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_linear import layouts, table

from tilewave.layouts.bits import applied, identity
from tilewave.layouts.conversions import Conversion, LaneExchange, Rearrangement, conversion, together
from tilewave.layouts.formulas import as_linear
from tilewave.layouts.fragments import mfma
from tilewave.layouts.linear import LinearLayout


def run(found, x):
    """What the lanes of a wave hold, lanes x registers, after each step."""
    lane = np.arange(len(x))[:, None]
    for step in found.steps:
        register = np.arange(1 << len(step.of_register))[None]
        other = applied(step.of_register, register) ^ applied(step.of_lane, lane)
        x = x[lane, other] if isinstance(step, Rearrangement) else x[other, register]
    return x


@st.composite
def pairs(draw, wave_bits=0):
    first = draw(layouts(wave_bits=wave_bits))
    return first, draw(layouts(first.shape, len(first.lanes), wave_bits))


@given(pairs())
def test_a_wave_converts_what_it_holds_whole(pair):
    held, needed = pair
    found = conversion(held, needed)
    assert found is not None
    np.testing.assert_array_equal(run(found, table(held)[0]), table(needed)[0])


@given(pairs())
def test_no_register_is_exchanged_twice(pair):
    held, needed = pair
    exchanges = [step for step in conversion(held, needed).steps if isinstance(step, LaneExchange)]
    assert len(exchanges) <= 1
    assert all(len(step.of_register) <= len(needed.registers) for step in exchanges)


@given(pairs())
def test_lanes_exchange_only_what_they_do_not_hold(pair):
    """Where each lane holds all that it needs, none asks another."""
    held, needed = pair
    inside = all(set(n) <= set(h) for h, n in zip(table(held)[0], table(needed)[0], strict=True))
    assert inside == (not any(isinstance(step, LaneExchange) for step in conversion(held, needed).steps))


@given(layouts(), st.data())
def test_registers_in_another_order_cost_nothing(layout, data):
    order = data.draw(st.permutations(layout.registers))
    found = conversion(layout, LinearLayout(layout.shape, tuple(order), layout.lanes))
    assert found.exchanged(4) == 0 and all(isinstance(step, Rearrangement) for step in found.steps)


@given(layouts())
def test_the_same_layout_needs_no_steps(layout):
    assert conversion(layout, layout) == Conversion(())


@given(pairs(wave_bits=1))
def test_what_another_wave_holds_is_not_converted_here(pair):
    held, needed = pair
    found = conversion(held, needed)
    if held.waves != needed.waves:
        assert found is None
    elif found:
        for wave in (0, 1):
            np.testing.assert_array_equal(run(found, table(held)[wave]), table(needed)[wave])


def test_sums_are_an_operand_as_they_are_where_depths_agree():
    sums = as_linear(mfma(16, 16).sums((16, 32), (1, 1), True), (16, 32), 1, 64)
    operand = as_linear(mfma(16, 16).operand((16, 32), (1, 1), 0), (16, 32), 1, 64)
    assert conversion(sums, operand) == Conversion(())


def test_sums_become_a_deeper_operand_with_one_exchange_a_word():
    sums = as_linear(mfma(16, 32).sums((16, 32), (1, 1), True), (16, 32), 1, 64)
    operand = as_linear(mfma(16, 32).operand((16, 32), (1, 1), 0), (16, 32), 1, 64)
    found = conversion(sums, operand)
    assert [type(step) for step in found.steps] == [Rearrangement, LaneExchange, Rearrangement]
    assert (found.exchanged(4), found.exchanged(2), found.exchanged(1), found.exchanged(8)) == (8, 4, 2, 16)


def test_registers_that_lanes_keep_are_not_exchanged():
    rows = LinearLayout((4, 4), registers=(1, 4), lanes=(2, 8))
    turned = LinearLayout((4, 4), registers=(8, 4), lanes=(2, 1))
    assert conversion(rows, turned).exchanged(4) == 2


def test_neighbours_that_part_do_not_move_as_one_word():
    apart = LaneExchange((1, 0), identity(3))
    assert [together(apart, size) for size in (1, 2, 4)] == [1, 1, 1]
    assert [together(LaneExchange((0, 1), identity(3)), size) for size in (1, 2, 4)] == [2, 2, 1]
    assert together(Rearrangement((2, 1), (0, 0)), 2) == 1
    assert together(Rearrangement((1, 2), (1, 0)), 2) == 1
    assert together(Rearrangement((1, 2), (2, 0)), 2) == 2
