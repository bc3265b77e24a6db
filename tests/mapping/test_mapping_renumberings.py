"""Renumberings: permutations for every deal, that know where the hardware puts a workgroup."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import examples

from tilewave.mapping import Chain, Deal, Grid, grouped, hilbert, linear, prove, xcd_chunked, xcd_contiguous

XCDS = range(1, 10)
COUNTS = sorted({rows * cols for rows in range(1, 49) for cols in range(1, 49)})
DEALS = st.builds(Deal, st.integers(1, 3000), st.integers(1, 400))


def numbers(renumbering: object, deal: Deal) -> np.ndarray:
    return np.asarray(renumbering(np.arange(deal.count), deal))


def lists(renumbering: object, deal: Deal, xcds: int) -> list[list[int]]:
    """What each XCD computes, in its order: it is the workgroup, t % workgroups, that sits on an XCD."""
    got = numbers(renumbering, deal)
    xcd = np.arange(deal.count) % deal.workgroups % xcds
    return [got[xcd == x].tolist() for x in range(xcds)]


def chunks_are_permutations(deal: Deal, xcds: int, chunks: np.ndarray) -> bool:
    """All chunks at once: the parameter is an array too, one row each."""
    t = np.arange(deal.count)
    got = np.broadcast_to(xcd_chunked(xcds, chunks[:, None])(t[None, :], deal), (len(chunks), deal.count))
    if got.min() < 0 or got.max() >= deal.count:
        return False
    seen = np.zeros(got.shape, bool)
    seen[np.arange(len(chunks))[:, None], got] = True
    return bool(seen.all())


@pytest.mark.parametrize("side", [20, pytest.param(48, marks=pytest.mark.slow)])
def test_contiguous_is_a_permutation_of_every_number_of_tiles(side):
    prove(xcd_contiguous, side, side, xcds=XCDS)


def test_chunked_is_a_permutation_of_every_number_of_tiles_to_20x20():
    prove(xcd_chunked, 20, 20, xcds=XCDS, chunk=[2, 7])


@pytest.mark.slow
def test_chunked_is_a_permutation_of_every_number_of_tiles_to_48x48_for_all_chunks_to_64():
    prove(xcd_chunked, 48, 48, xcds=XCDS, chunk=range(1, 65))


@pytest.mark.parametrize("side", [10, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workgroups", [1, 5, 7, 31, 132, 256, 304, 320])
def test_persistent_renumberings_are_permutations(workgroups, side):
    prove(xcd_contiguous, side, side, workgroups=workgroups, xcds=XCDS)
    prove(xcd_chunked, side, side, workgroups=workgroups, xcds=XCDS, chunk=[1, 3])


@pytest.mark.share(6)
@pytest.mark.parametrize("xcds", XCDS)
def test_persistent_chunks_from_1_to_64_are_permutations(xcds):
    chunks = np.arange(1, 65)
    for count in (1, 2, 17, 48, 97, 360):
        for workgroups in range(1, min(count, 320) + 1, 3):
            assert chunks_are_permutations(Deal(count, workgroups), xcds, chunks), (count, workgroups)


@pytest.mark.slow
@pytest.mark.parametrize("xcds", XCDS)
def test_persistent_chunks_from_1_to_64_are_permutations_for_all_workgroups_to_320(xcds):
    chunks = np.arange(1, 65)
    for count in (*range(1, 49), 97, 144, 320, 611, 1024):
        for workgroups in range(1, min(count, 320) + 1):
            assert chunks_are_permutations(Deal(count, workgroups), xcds, chunks), (count, workgroups)


@pytest.mark.slow
@pytest.mark.parametrize("xcds", XCDS)
def test_persistent_contiguous_is_a_permutation_for_all_workgroups_to_320(xcds):
    for count in COUNTS:
        for workgroups in range(1, min(count, 320) + 1):
            got = numbers(xcd_contiguous(xcds), Deal(count, workgroups))
            assert (np.bincount(got, minlength=count) == 1).all(), (count, workgroups)


@given(deal=DEALS, xcds=st.integers(1, 40), chunk=st.integers(1, 200))
@settings(max_examples=examples(200), deadline=None)
def test_renumberings_are_permutations_of_any_deal(deal, xcds, chunk):
    for renumbering in (xcd_contiguous(xcds), xcd_chunked(xcds, chunk)):
        assert sorted(numbers(renumbering, deal).tolist()) == list(range(deal.count))


@given(deal=DEALS, xcds=st.integers(1, 16))
@settings(max_examples=examples(200), deadline=None)
def test_contiguous_gives_each_xcd_the_next_range_in_the_order_in_which_it_computes(deal, xcds):
    joined = [number for of_one in lists(xcd_contiguous(xcds), deal, xcds) for number in of_one]
    assert joined == list(range(deal.count))


@given(deal=DEALS, xcds=st.integers(1, 16), chunk=st.integers(1, 40))
@settings(max_examples=examples(200), deadline=None)
def test_chunked_gives_each_xcd_chunks_while_they_last_and_then_tiles_in_turn(deal, xcds, chunk):
    """Dealt by hand: first the chunks, then each XCD in turn takes one, while its list is not full."""
    got = [of_one for of_one in lists(xcd_chunked(xcds, chunk), deal, xcds) if of_one]
    rounds = min(map(len, got)) // chunk
    expected: list[list[int]] = [[] for _ in got]
    next_number = 0
    for _ in range(rounds):
        for of_one in expected:
            of_one += range(next_number, next_number + chunk)
            next_number += chunk
    while next_number < deal.count:
        for of_one, full in zip(expected, got, strict=True):
            if len(of_one) < len(full):
                of_one.append(next_number)
                next_number += 1
    assert got == expected


def test_the_lists_at_the_head_of_the_module():
    assert lists(xcd_contiguous(4), Deal(12, 12), 4) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert lists(xcd_chunked(4, 2), Deal(12, 12), 4) == [[0, 1, 8], [2, 3, 9], [4, 5, 10], [6, 7, 11]]
    assert lists(xcd_contiguous(4), Deal(14, 6), 4) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11], [12, 13]]


@pytest.mark.parametrize("workgroups", [7, 132, 256, 304])
def test_persistent_workgroups_keep_to_few_rows_and_columns_of_their_xcd(workgroups):
    grid = Grid(64, 64)
    kept = (xcd_contiguous(8) >> grouped(8)).tiles(grid, workgroups)
    t = np.arange(grid.size)
    for xcd in range(min(8, workgroups)):
        own = kept[t % workgroups % 8 == xcd]
        assert len(np.unique(own[:, 0])) <= 24  # 8 of 64 rows, and what a ragged share touches


def test_fewer_workgroups_than_xcds_are_still_chunked():
    assert lists(xcd_chunked(8, 4), Deal(32, 3), 8)[:3] == [
        [0, 1, 2, 3, 12, 13, 14, 15, 24, 27, 30],
        [4, 5, 6, 7, 16, 17, 18, 19, 25, 28, 31],
        [8, 9, 10, 11, 20, 21, 22, 23, 26, 29],
    ]


def test_more_workgroups_than_tiles_is_the_plain_launch():
    mapping = xcd_contiguous(8) >> grouped(4)
    assert mapping.tiles(Grid(5, 7), 10**6).tolist() == mapping.tiles(Grid(5, 7)).tolist()
    assert numbers(xcd_chunked(3, 2), Deal(20, 99)).tolist() == numbers(xcd_chunked(3, 2), Deal(20, 20)).tolist()


@pytest.mark.parametrize("renumbering", [xcd_contiguous(2**31), xcd_chunked(2**31, 2**31), xcd_chunked(8, 2**31)])
def test_huge_parameters_do_not_overflow(renumbering):
    assert (renumbering >> hilbert()).fault(Grid(30, 31)) is None
    assert (renumbering >> hilbert()).fault(Grid(30, 31), 7) is None


def test_renumberings_compose_and_only_the_first_sees_the_deal():
    chain = xcd_chunked(4, 2) >> xcd_contiguous(3)
    assert isinstance(chain, Chain)
    deal = Deal(50, 7)
    t = np.arange(50)
    assert np.array_equal(chain(t, deal), xcd_contiguous(3)(xcd_chunked(4, 2)(t, deal), Deal(50, 50)))
    assert (chain >> grouped(4)).renumberings == (xcd_chunked(4, 2), xcd_contiguous(3))
    assert str(chain) == "xcd_chunked(4, 2) >> xcd_contiguous(3)"


def test_composition_does_not_care_for_brackets():
    a, b, c = xcd_chunked(4, 2), xcd_contiguous(3), grouped(4)
    assert (a >> b) >> c == a >> (b >> c)


def test_a_bare_renumbering_is_followed_by_linear():
    grid = Grid(5, 7)
    assert xcd_contiguous(4).table(grid).tolist() == (xcd_contiguous(4) >> linear()).table(grid).tolist()
