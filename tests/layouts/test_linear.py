"""The algebra of layouts, held against tables that are filled element by element."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewave.layouts.bits import Span, after, applied, identity
from tilewave.layouts.formulas import as_linear, linear
from tilewave.layouts.fragments import WARPGROUP, mfma
from tilewave.layouts.linear import Holder, LinearLayout

EXAMPLE = LinearLayout((4, 4), registers=(1,), lanes=(2, 4), waves=(8,))
"""The one that the module's head draws."""

extents = st.integers(0, 3).map(lambda bits: 1 << bits)


@st.composite
def layouts(draw, shape=None, lane_bits=None, wave_bits=0):
    """Draw layouts in which every element has at least one holder; columns may be any sums of bits."""
    shape = shape or draw(st.tuples(extents, extents))
    bits = prod(shape).bit_length() - 1
    lane_bits = draw(st.integers(0, 4)) if lane_bits is None else lane_bits
    count = max(0, bits - lane_bits - wave_bits) + draw(st.integers(0, 2)) + lane_bits + wave_bits
    columns = [
        *identity(bits),
        *draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=count - bits, max_size=count - bits)),
    ]
    for _ in range(draw(st.integers(0, 6)) if count else 0):  # adding one column to another reaches as much as before
        i, j = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        columns[i] ^= columns[j] if i != j else 0
    columns = draw(st.permutations(columns))
    first = count - lane_bits - wave_bits
    return LinearLayout(
        shape, *map(tuple, (columns[:first], columns[first : first + lane_bits], columns[first + lane_bits :]))
    )


def table(layout):
    """The element that each register (last), lane and wave (first) holds, one by one."""
    sizes = [1 << len(part) for part in (layout.waves, layout.lanes, layout.registers)]
    found = np.empty(sizes, int)
    for wave, lane, register in np.ndindex(*sizes):
        found[wave, lane, register] = layout.at(register, lane, wave)
    return found


def test_the_example_is_as_drawn():
    held = table(EXAMPLE)
    assert [list(row) for row in held[0]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [list(row) for row in held[1]] == [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert EXAMPLE.covers and EXAMPLE.copies() == ()


@given(layouts(wave_bits=1))
def test_the_inverse_names_a_holder_of_every_element(layout):
    holders = layout.inverse()
    for element in range(prod(layout.shape)):
        found = [h for i, h in enumerate(holders) if element >> i & 1]
        parts = [0, 0, 0]
        for h in found:
            parts = [a ^ b for a, b in zip(parts, (h.register, h.lane, h.wave), strict=True)]
        assert layout.at(*parts) == element


@given(layouts(wave_bits=1))
def test_copies_are_all_holders_of_the_first_element(layout):
    reached = {Holder()}
    for copy in layout.copies():
        reached |= {Holder(h.register ^ copy.register, h.lane ^ copy.lane, h.wave ^ copy.wave) for h in reached}
    held = table(layout)
    assert reached == {Holder(r, lane, w) for w, lane, r in zip(*np.nonzero(held == 0), strict=True)}


@given(layouts(), st.booleans())
def test_a_layout_divided_by_an_axis_holds_copies_of_what_is_left(layout, rows):
    kept = 0 if rows else 1
    wanted = np.unravel_index(table(layout), layout.shape)[kept]
    divided = layout.along([kept])
    np.testing.assert_array_equal(table(divided), wanted)
    assert len(divided.copies()) == len(layout.copies()) + layout.shape[1 - kept].bit_length() - 1


@given(layouts())
def test_turned_twice_a_layout_is_itself(layout):
    assert layout.permuted((1, 0)).permuted((1, 0)) == layout


@given(layouts(), st.data())
def test_what_comes_after_a_layout_is_applied_to_its_elements(layout, data):
    size = prod(layout.shape)
    bits = size.bit_length() - 1
    columns = tuple(data.draw(st.lists(st.integers(0, size - 1), min_size=bits, max_size=bits)))
    np.testing.assert_array_equal(table(layout.then(layout.shape, columns)), applied(columns, table(layout)))


@given(st.lists(st.integers(0, 63), max_size=8), st.integers(0, 63))
def test_a_span_solves_what_its_columns_reach(columns, vector):
    reached = {applied(columns, x) for x in range(1 << len(columns))}
    span, found = Span(columns), Span(columns).solve(vector)
    assert 1 << len(span) == len(reached)
    assert (found is not None) == (vector in reached)
    assert found is None or applied(columns, found) == vector
    assert all(applied(columns, k) == 0 for k in span.kernel) and len(span.kernel) + len(span) == len(columns)


@given(st.lists(st.integers(0, 15), min_size=4, max_size=4), st.lists(st.integers(0, 15), min_size=4, max_size=4))
def test_a_product_of_matrices_is_one_after_the_other(a, b):
    x = np.arange(16)
    np.testing.assert_array_equal(applied(after(a, b), x), applied(a, applied(b, x)))


# -- what kernels have


def test_the_layouts_of_kernels_are_matrices_where_sizes_are_powers_of_two():
    kinds = [
        (mfma(16, 32).operand((64, 64), (2, 2), 0), (64, 64), 4, 64),
        (mfma(32, 16).sums((64, 128), (2, 2), True), (64, 128), 4, 64),
        (WARPGROUP.sums((128, 64), (8, 1)), (128, 64), 8, 32),
        (linear((64, 32), 8, 256)[0], (64, 32), 4, 64),
    ]
    for layout, shape, waves, lanes in kinds:
        found = as_linear(layout, shape, waves, lanes)
        held = np.ravel_multi_index(tuple(np.moveaxis(layout.positions(waves, lanes), -1, 0)), shape)
        np.testing.assert_array_equal(table(found), held.reshape(waves, lanes, -1))


def test_operands_are_held_by_several_waves():
    layout = as_linear(mfma(16, 32).operand((64, 64), (2, 2), 0), (64, 64), 4, 64)
    assert layout.copies() == (Holder(wave=1),)


def test_other_sizes_have_no_matrix():
    assert as_linear(linear((48, 32), 8, 64)[0], (48, 32), 1, 64) is None
    assert as_linear(linear((4, 8), 8, 64)[0], (4, 8), 1, 64) is None
