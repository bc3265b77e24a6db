"""One formula, three kinds of numbers: ints, arrays and traced values agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_strategies import MAPPINGS, NUMBER
from sampled import examples
from traced_index import Tape

from tilewave.mapping import (
    Grid,
    Mapping,
    choose,
    grouped,
    hilbert,
    larger,
    linear,
    morton,
    paired,
    smaller,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)

GRIDS = st.builds(Grid, NUMBER, NUMBER, st.integers(1, 3))
WORKGROUPS = st.one_of(st.none(), st.integers(1, 400))


@given(mapping=MAPPINGS, grid=GRIDS, workgroups=WORKGROUPS, data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_ints_arrays_and_traced_values_agree(mapping, grid, workgroups, data):
    some = data.draw(st.lists(st.integers(0, grid.size - 1), min_size=1, max_size=8))
    tape = Tape()
    traced = mapping.tile(tape.argument("t"), grid, workgroups)
    arrays = mapping.tile(np.array(some, np.int32), grid, workgroups)
    for at, t in enumerate(some):
        answer = mapping.tile(t, grid, workgroups)
        assert all(type(part) is int for part in answer)
        assert tape.run(traced, t=t) == answer
        assert tuple(int(np.broadcast_to(part, len(some))[at]) for part in arrays) == answer


@given(mapping=MAPPINGS, grid=GRIDS, workgroups=WORKGROUPS, data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_parameters_that_only_the_launch_tells_agree_with_those_known_before(mapping, grid, workgroups, data):
    """Every number of the mapping becomes an argument of the traced code, as WGM does."""
    tape = Tape()
    values: dict[str, int] = {}

    def opened(step):
        names = [name for name, value in vars(step).items() if isinstance(value, int)]
        for name in names:
            values[f"{name}{len(values)}"] = getattr(step, name)
        symbols = {name: tape.argument(key) for name, key in zip(names, list(values)[-len(names) :], strict=False)}
        return type(step)(**{**vars(step), **symbols})

    dynamic = Mapping(tuple(opened(step) for step in mapping.renumberings), opened(mapping.order))
    traced = dynamic.tile(tape.argument("t"), grid, workgroups)
    for t in data.draw(st.lists(st.integers(0, grid.size - 1), min_size=1, max_size=8)):
        assert tape.run(traced, t=t, **values) == mapping.tile(t, grid, workgroups)


@pytest.mark.parametrize("workgroups", [None, 7, 24])
@pytest.mark.parametrize("value", [1, 8, 2**31 - 1])
@pytest.mark.parametrize("make", [grouped, snake, lambda n: supertiles(n, n)], ids=["grouped", "snake", "supertiles"])
def test_parameters_told_at_the_launch_may_be_as_large_as_an_int(make, value, workgroups):
    grid = Grid(9, 13)
    for step in (xcd_contiguous, lambda n: xcd_chunked(n, n), lambda n: xcd_chunked(8, n)):
        tape = Tape()
        parameter = tape.argument("parameter")
        traced = (step(parameter) >> make(parameter)).tile(tape.argument("t"), grid, workgroups)
        known = step(value) >> make(value)
        for t in range(grid.size):
            assert tape.run(traced, t=t, parameter=value) == known.tile(t, grid, workgroups)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("order", [grouped(3), snake(3, "n"), supertiles(3, 5), morton(), hilbert()], ids=str)
def test_arrays_keep_their_dtype(order, dtype):
    mapping = xcd_chunked(8, 3) >> order
    row, col = mapping(np.arange(1001, dtype=dtype), Grid(77, 13), 10)
    assert row.dtype == col.dtype == dtype


def test_arrays_in_are_arrays_out_even_on_a_single_row():
    for order in (linear(), grouped(4), snake(2), supertiles(2, 2), morton(), hilbert()):
        for grid in (Grid(1, 6), Grid(6, 1)):
            row, col = order(np.arange(6), grid)
            assert row.shape == col.shape == (6,), order


@pytest.mark.parametrize(
    ("mapping", "workgroups", "on_64x64", "on_61x47"),
    [
        (linear(), None, 3, 3),
        (paired(), None, 9, 9),
        (grouped(8), None, 8, 10),
        (snake(8), None, 16, 19),
        (supertiles(2, 4), None, 13, 29),
        (morton(), None, 58, 97),
        (hilbert(), None, 87, 205),
        (xcd_contiguous(8) >> grouped(8), None, 13, 18),
        (xcd_contiguous(8) >> grouped(8), 304, 18, 22),
    ],
    ids=str,
)
def test_the_operations_that_a_mapping_costs_are_those_in_the_document(mapping, workgroups, on_64x64, on_61x47):
    for grid, expected in ((Grid(64, 64), on_64x64), (Grid(61, 47), on_61x47)):
        tape = Tape()
        mapping.tile(tape.argument("t"), grid, workgroups)
        assert len(tape.ops) - 1 == expected


@given(grid=st.builds(Grid, st.integers(1, 64), st.integers(1, 64)))
@settings(max_examples=examples(60), deadline=None)
def test_the_curves_never_need_more_than_four_hundred_operations_to_64x64(grid):
    for curve in (morton(), hilbert()):
        tape = Tape()
        curve(tape.argument("t"), grid)
        assert len(tape.ops) < 400


def test_smaller_larger_and_choose_take_numpy_scalars():
    assert smaller(np.int64(3), 5) == larger(3, np.int64(2)) == choose(np.bool_(True), 3, 4) == 3
    assert choose(False, 1, 2) == 2


class Symbol:
    """A symbol whose value is known at launch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __floordiv__(self, other: object) -> object:
        raise AssertionError("a symbol is bound before it is computed with")

    def __str__(self) -> str:
        return self.name


def test_open_parameters_are_listed_once_and_bound():
    wgm, chunk = Symbol("WGM"), Symbol("CHUNK")
    mapping = xcd_chunked(8, chunk) >> xcd_chunked(4, chunk) >> grouped(wgm)
    assert mapping.parameters() == (chunk, wgm)
    assert str(mapping) == "xcd_chunked(8, CHUNK) >> xcd_chunked(4, CHUNK) >> grouped(WGM)"
    bound = mapping.bind({wgm: 4, chunk: 2}.__getitem__)
    assert bound == xcd_chunked(8, 2) >> xcd_chunked(4, 2) >> grouped(4)
    assert bound.parameters() == ()
    assert mapping.warnings(Grid(4, 4)) == ()
