"""Whether two footprints share an element, against a comparison of all pairs of accesses."""

import numpy as np
import pytest

from tilewave.analysis.global_hazards import Footprint


def footprint(rng, count, extents, lanes):
    places = np.stack([rng.integers(0, extent, count) for extent in extents], axis=1)
    return Footprint((), rng.integers(0, lanes, count), places)


def meet_in_pairs(one, other, together):
    return any(
        (here == there).all() and a // together != b // together
        for here, a in zip(one.places, one.lanes, strict=True)
        for there, b in zip(other.places, other.lanes, strict=True)
    )


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("extents", [(3, 5), (40,), (1 << 20, 1 << 20)], ids=str)
def test_two_groups_meet_where_a_pair_of_their_lanes_does(extents, together):
    """The last box is far larger than its footprints."""
    rng = np.random.default_rng(5)
    found = set()
    for count in (1, 2, 5, 9):
        for _ in range(20):
            one, other = (footprint(rng, count, extents, 8) for _ in range(2))
            if rng.integers(2):  # the same elements, in another order: few random ones are in both
                order = rng.permutation(count)
                other = Footprint((), one.lanes[order] ^ int(rng.integers(0, 8)), one.places[order])
            wanted = meet_in_pairs(one, other, together)
            assert one.differs(other, together) == wanted
            found.add(wanted)
    assert found == {True, False}
