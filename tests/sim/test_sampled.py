"""Caches that evict the oldest of a few lines: by hand, against chance itself, and against LRU."""

from __future__ import annotations

from importlib.util import find_spec
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewave.machine import find
from tilewave.sim import Gemm, Residency
from tilewave.sim.accesses import gemm_accesses
from tilewave.sim.calibration import LONG_STEPS, MANY_LOOKS, Softness
from tilewave.sim.closed_form import closed_form
from tilewave.sim.dispatch import place
from tilewave.sim.sampled import SampledCaches
from tilewave.sim.trace import trace

LINE = 1000.0


def missed_in_turn(streams, capacity, looks, rounds, taken=0.0):
    """Return the share missed in each round of a cache that reads streams of one size in turn."""
    state = SampledCaches(streams, np.array([capacity * LINE]), streams * rounds, looks)
    found = np.zeros((rounds, streams))
    for step in range(streams * rounds):
        at = np.array([step % streams])
        none = np.zeros(1, np.int64)
        found[step // streams, step % streams] = state.walk(step, none, at, np.array([LINE]), np.array([taken * LINE]))[
            0
        ]
    return found


@given(st.floats(1.0, 50.0), st.integers(1, 12))
def test_nothing_is_evicted_before_the_cache_is_full(looks, streams):
    found = missed_in_turn(streams, streams, looks, 4)
    assert (found[0] == 1).all() and (found[1:] == 0).all()


def test_one_look_is_chance_alone():
    """Read in turn, a line survives that many evictions by chance: exp(-missed · streams / capacity) = 1 - missed."""
    streams, capacity = 64, 48
    missed = missed_in_turn(streams, capacity, 1.0, 40)[-1].mean()
    assert exp(-missed * streams / capacity) == pytest.approx(1 - missed, abs=0.01)


def test_many_looks_are_lru():
    """Read in turn, LRU misses everything as soon as there is one stream too many."""
    assert missed_in_turn(8, 7, MANY_LOOKS, 5)[1:].min() > 0.85
    assert missed_in_turn(8, 8, MANY_LOOKS, 5)[1:].max() == 0


@given(st.sampled_from((1.0, 3.0, 6.0, 12.0)), st.integers(3, 20), st.floats(0.1, 1.2), st.floats(0.0, 0.5))
def test_a_larger_cache_misses_no_more(looks, streams, part, taken):
    small, large = (missed_in_turn(streams, part * more * streams, looks, 6, taken).sum() for more in (1.0, 1.25))
    assert large <= small * (1 + 1e-9)


@given(st.sampled_from((1.0, 6.0, 1000.0)), st.integers(2, 12), st.floats(0.2, 1.5))
def test_a_cache_never_holds_more_than_it_can(looks, streams, part):
    state = SampledCaches(streams, np.array([part * streams * LINE]), 4 * streams, looks)
    for step in range(4 * streams):
        state.walk(step, np.zeros(1, np.int64), np.array([step * 5 % streams]), np.array([LINE]), np.zeros(1))
        assert state.held[:, state.oldest :].sum() <= part * streams * LINE + 2
        assert state.kept.min() >= 0 and state.kept.max() <= 1


@pytest.mark.skipif(find_spec("numba") is None, reason="without numba these traces take minutes")
@pytest.mark.parametrize("looks", [2.0, 6.0, 12.0])
@pytest.mark.parametrize(("shape", "group"), [((8192, 8192, 1024), 1000), ((8192, 4096, 2048), 8)])
def test_the_closed_form_is_what_chance_gives_in_the_mean(looks, shape, group):
    chip = find("H200")
    accesses = gemm_accesses(Gemm(*shape, workgroups=132), f"grouped({group})")
    placed, softness = place(accesses, chip, Residency()), Softness(looks=looks, share=0.93)
    closed, drawn = (engine(accesses, placed, chip, Residency(), softness).hbm.sum() for engine in (closed_form, trace))
    assert drawn == pytest.approx(closed, rel=0.05)


def test_chance_decides_where_short_tiles_sit_after_the_first_round():
    chip = find("H200")
    short, long = (gemm_accesses(Gemm(8192, 8192, 64 * steps)) for steps in (LONG_STEPS - 1, LONG_STEPS))
    by_chance, in_order = (place(accesses, chip, Residency()) for accesses in (short, long))
    first = by_chance.launch_wave == 0
    assert (by_chance.domain[first] == in_order.domain[first]).all()
    assert 0.4 < (by_chance.domain[~first] == in_order.domain[~first]).mean() < 0.6
    assert (by_chance.domain == place(short, chip, Residency()).domain).all()
    full = by_chance.launch_wave < by_chance.launch_waves - 1
    assert set(np.bincount(by_chance.launch_wave[full] * 2 + by_chance.domain[full])) == set(
        np.bincount(in_order.domain[first])
    )
    held = gemm_accesses(Gemm(8192, 8192, 1024, workgroups=132))
    assert (place(held, chip, Residency()).domain == np.tile(in_order.domain[first], 1)[held.workgroup]).all()
