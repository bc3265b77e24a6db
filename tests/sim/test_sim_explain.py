"""Every number and every limit in the sentences about a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewave.sim import Gemm, explain, simulate
from tilewave.sim.explain import WORDS, compare, duration, size
from tilewave.sim.report import ArrayTraffic, LaunchWave, TimeShare

PLAIN = replace(
    simulate(Gemm(256, 256, 256), "MI300X"),
    mapping="row",
    launch_waves=2,
    l2_hit=0.5,
    hbm_read_bytes=1e6,
    hbm_read_low_bytes=1e6,
    hbm_read_high_bytes=1e6,
    asked_bytes=6e6,
    distinct_bytes=2e6,
    seconds=2e-3,
    seconds_error=0.127,
    breakdown=(TimeShare("matrix", 0.5e-3, 0.25), TimeShare("HBM", 1.5e-3, 0.75)),
    arrays=(ArrayTraffic("a", 1e6, 3e6, 0, 1.5e6, 0), ArrayTraffic("b", 1e6, 3e6, 0, 2e6, 0)),
    over_time=(LaunchWave(8, 0, 0, 0), LaunchWave(3, 0, 0, 0)),
    fitted_on="a card",
)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (1e3, "1 kB"),
        (1001, "1 kB"),
        (999.4e3, "999 kB"),
        (999.5e3, "1000 kB"),
        (999_999, "1000 kB"),
        (1e6, "1 MB"),
        (1.005e6, "1 MB"),
        (999.4e6, "999 MB"),
        (999.5e6, "1000 MB"),
        (1e9, "1 GB"),
        (1e12, "1 TB"),
        (1234e12, "1234 TB"),
        (12345e12, "12345 TB"),
    ],
)
def test_a_size_changes_its_unit_at_a_thousand(count, said):
    assert size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (2.5, "2.5 s"),
        (1.0, "1 s"),
        (0.9999, "1e+03 ms"),
        (0.5, "500 ms"),
        (1e-3, "1 ms"),
        (9.99e-4, "999 µs"),
        (0, "0 µs"),
    ],
)
def test_a_duration_changes_its_unit_at_a_thousand(seconds, said):
    assert duration(seconds) == said


def test_an_explanation_word_for_word():
    assert explain(PLAIN) == [
        "Bottleneck: HBM, 75 % of 2 ms.",
        "HBM delivers a 1.5 times and b 2.0 times; workgroups request their inputs 3 times.",
        "2 waves of up to 8 tiles, the last 38 % full.",
        "The clock is 2.10 GHz, as power limits it with random operands.",
        "Time is good to ± 13 %; fitted on a card.",
    ]


@pytest.mark.parametrize("name", WORDS)
def test_every_limit_has_its_words(name):
    assert (
        explain(replace(PLAIN, breakdown=(TimeShare(name, 1, 0.5),)))[0] == f"Bottleneck: {WORDS[name]}, 50 % of 2 ms."
    )


def test_a_cliff_is_said_with_its_interval():
    high = replace(PLAIN, hbm_read_high_bytes=3e6)
    assert explain(high)[3] == "On a capacity cliff: a little more or less cache makes HBM read 1 MB to 3 MB."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launch_waves": 1, "over_time": (LaunchWave(8, 0, 0, 0),)}, "1 wave of up to 8 tiles."),
        ({"over_time": (LaunchWave(8, 0, 0, 0), LaunchWave(8, 0, 0, 0))}, "2 waves of up to 8 tiles."),
        (
            {"launch_waves": 3, "over_time": (LaunchWave(7, 0, 0, 0), LaunchWave(8, 0, 0, 0), LaunchWave(1, 0, 0, 0))},
            "3 waves of up to 8 tiles, the last 12 % full.",
        ),
    ],
)
def test_beats_and_their_tail(changes, said):
    assert explain(replace(PLAIN, **changes))[2] == said


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ((ArrayTraffic("a", 1e6, 0, 0, 0, 0),), "Nothing is read"),
        ((ArrayTraffic("a", 0, 0, 0, 5, 0),), "Nothing is read"),
        ((ArrayTraffic("a", 0, 0, 0, 5, 0), ArrayTraffic("b", 2, 0, 0, 5, 0)), "HBM delivers b 2.5 times"),
    ],
)
def test_arrays_without_bytes_are_left_out(arrays, said):
    assert explain(replace(PLAIN, arrays=arrays))[1] == f"{said}; workgroups request their inputs 3 times."


def test_nothing_asked_for_is_asked_for_once():
    assert explain(replace(PLAIN, distinct_bytes=0))[1].endswith("request their inputs 1 times.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "+0.0 % compared with other, the same traffic"),
        ({"seconds": 1e-3}, "+100.0 % compared with other, the same traffic"),
        ({"seconds": 4e-3}, "-50.0 % compared with other, the same traffic"),
        ({"hbm_read_bytes": 1.0101e6}, "+0.0 % compared with other, HBM reads 1.01 MB instead of 1 MB"),
        ({"hbm_read_bytes": 1.0099e6}, "+0.0 % compared with other, the same traffic"),
        ({"hbm_read_bytes": 0.98e6}, "+0.0 % compared with other, HBM reads 980 kB instead of 1 MB"),
        ({"l2_hit": 0.506}, "+0.0 % compared with other, L2 hits 51 % instead of 50 %"),
        ({"l2_hit": 0.504}, "+0.0 % compared with other, the same traffic"),
        ({"l2_hit": 0.25}, "+0.0 % compared with other, L2 hits 25 % instead of 50 %"),
        ({"launch_waves": 3}, "+0.0 % compared with other, 3 waves instead of 2"),
    ],
)
def test_a_comparison_names_what_differs_and_nothing_else(changes, said):
    assert compare(replace(PLAIN, **changes), replace(PLAIN, mapping="other")) == said
