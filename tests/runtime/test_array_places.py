"""Arrays that certainly do not overlap: an array that is written must not have two elements at one address."""

from itertools import product

import pytest

from tilewave.runtime.array_layouts import PlacedArray, apart

ITEM = 4


def is_apart(*arrays):
    """Return whether arrays of four bytes per element, which are all written, do not overlap."""
    return all(apart([PlacedArray(*one) for one in arrays], tuple((ITEM, True) for _ in arrays)))


def addresses(array):
    pointer, lengths, steps = array
    places = product(*(range(n) for n in lengths))
    return [pointer + ITEM * sum(at * step for at, step in zip(place, steps, strict=True)) for place in places]


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [((4,), (0,)), ((4,), (-1,)), ((2, 4), (0, 1)), ((2, 4), (4, 0)), ((2, 4), (3, 1)), ((3, 1, 2), (0, 7, 1))],
)
def test_elements_that_share_an_address_are_looked_at_closely(lengths, steps):
    assert not is_apart((1024, lengths, steps))


@pytest.mark.parametrize(
    ("lengths", "steps"), [((4,), (1,)), ((1,), (0,)), ((2, 4), (4, 1)), ((2, 1), (1, 0)), ((3, 1, 2), (2, 0, 1))]
)
def test_rows_one_after_the_other_are_apart_also_where_an_axis_of_one_has_no_step(lengths, steps):
    assert is_apart((1024, lengths, steps))


def test_what_is_apart_has_no_address_twice():
    """Every array of two axes with small lengths and steps, alone and with another."""
    for lengths, steps in product(product(range(1, 4), repeat=2), product(range(-1, 5), repeat=2)):
        array = 1024, lengths, steps
        if is_apart(array):
            assert len({*addresses(array)}) == len(addresses(array))
        for other in ((1024 + ITEM * n, (2,), (1,)) for n in range(-3, 12, 3)):
            if is_apart(array, other):
                assert not {*addresses(array)} & {*addresses(other)}
