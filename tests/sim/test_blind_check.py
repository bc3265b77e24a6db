"""The blind check on a card: its launches are new, and the profiler's table is read as it is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tilewave.sim.measured import SECTOR_BYTES, WRITES_SEEN, counters, short_counters, unseen_counters


@pytest.fixture
def blind(request):
    spec = importlib.util.spec_from_file_location("blind_h200", request.config.rootpath / "benchmarks/blind_h200.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(blind, counts):
    """As ncu writes it: its own words first, then a line for each launch and metric, thousands with commas."""
    lines = ["==PROF== Connected", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for at, row in enumerate(counts):
        for name, metric in blind.COUNTED.items():
            lines.append(f'"{at}","tiled_product","{metric}","byte","{row[name]:,}"')
    return "\n".join(lines)


def test_its_launches_are_drawn_by_the_seed_and_in_no_file(blind):
    known = {row.shape for row in (*counters(), *unseen_counters(), *short_counters())}
    found = [tuple(int(row[name]) for name in blind.LAUNCH) for row in blind.launches(5)]
    assert known.isdisjoint(row[:3] for row in found)
    assert len(set(found)) == len(found) == 60 and len({row[:3] for row in found}) == 12
    assert sum(row[-1] for row in found) == 48
    assert blind.launches(5) == blind.launches(5) != blind.launches(6)
    for m, n, k in {row[:3] for row in found}:
        assert m % 128 == n % 128 == k % 64 == 0 and m * n * k <= blind.LARGEST_PRODUCT


def test_of_three_counts_the_middle_one_is_taken(blind):
    counts = [{name: str(value) for name in blind.COUNTED} for value in (9, 100, 20, 3, 1, 2)]
    assert blind.middle(counts) == [dict.fromkeys(blind.COUNTED, "20"), dict.fromkeys(blind.COUNTED, "2")]


def test_what_a_wrong_choice_of_the_group_costs(blind):
    rows = [
        dict(zip(blind.LAUNCH, ["1", "2", "3", "4", "5", "6", "7", "1"], strict=True)) | {"group_m": g} for g in "148"
    ]
    guesses = [row | {"hbm_read_bytes": b} for row, b in zip(rows, ("30", "10", "20"), strict=True)]
    counts = [row | {"dram_read_bytes": b} for row, b in zip(rows, ("30", "15", "10"), strict=True)]
    assert blind.lost_by_groups(guesses, counts) == 0.5


def test_what_was_counted_is_read_back_in_order(blind):
    counts = [{name: 1_000_000 * at + len(name) for name in blind.COUNTED} for at in range(12)]
    assert blind.counted(table(blind, counts)) == [{n: str(v) for n, v in row.items()} for row in counts]


def test_predictions_that_come_true_have_no_error(blind, tmp_path):
    blind.predict(5, Path(tmp_path, "guess.csv"))
    guesses = blind.read(Path(tmp_path, "guess.csv"))
    rows = [dict(guess) | true_counts(guess) for guess in guesses]
    said = blind.compared(guesses, rows).splitlines()
    assert len(said) == 60 + 5
    assert said[60] == "HBM bytes: median error 0.00 %, mean 0.00 %, worst 0.0 %"
    assert said[61] == "HBM bytes off a cliff: worst 0.00 %; on one: 0 outside their interval"
    assert said[62] == "HBM bytes lost by the group predicted best: 0.00 % at the worst"
    on_cliff = next(at for at, guess in enumerate(guesses) if float(guess["on_cliff"]))
    rows[on_cliff] |= {"dram_read_bytes": str(2 * float(guesses[on_cliff]["hbm_read_high_bytes"]))}
    assert "1 outside" in blind.compared(guesses, rows)


def true_counts(guess):
    reads = 10_000_000
    written = WRITES_SEEN * 2 * int(guess["m"]) * int(guess["n"]) / SECTOR_BYTES
    return {
        "dram_read_bytes": guess["hbm_read_bytes"],
        "l2_requests_from_sms_sectors": repr(float(guess["l2_request_bytes"]) / SECTOR_BYTES),
        "l2_read_sectors": repr(reads),
        "l2_read_hit_sectors": repr(float(guess["l2_hit"]) * (reads + written) - written),
    }
