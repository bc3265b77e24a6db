"""Measured thresholds: each names where it was measured, in its record."""

from dataclasses import fields

import pytest

from tilewave.machine.chips import CHIPS
from tilewave.machine.tuning import Tuning

TUNINGS = list(dict.fromkeys(chip.tuning for chip in CHIPS.values()))
PARTS = [f.name for f in fields(Tuning) if f.name != "sources"]


@pytest.mark.parametrize("tuning", TUNINGS, ids=lambda t: t.sources[0].text)
def test_sources_name_numbers_of_the_record(tuning):
    numbers = {f"{part}.{f.name}" for part in PARTS for f in fields(getattr(tuning, part))}
    named = [s.field for s in tuning.sources]
    assert {*named} <= {*numbers, *PARTS} and len({*named}) == len(named)


def test_every_part_of_hopper_was_measured():
    tuning = CHIPS["sm_90a"].tuning
    assert {s.field.partition(".")[0] for s in tuning.sources} == {*PARTS}
    assert tuning.source("splits.hand_over_bytes").startswith("H200") and tuning.source("clock") == ""


def test_hopper_reduces_tiles_of_16_kib_in_slices_where_a_workgroup_would_load_more_than_256():
    splits, tile = CHIPS["sm_90a"].tuning.splits, 16 << 10
    assert splits.is_scattered(18, tile) and not splits.is_scattered(17, tile)
    assert not splits.is_scattered(100, tile - 1)


def test_hopper_s_pipeline_holds_96_kib_of_which_48_come_from_dram():
    pipeline = CHIPS["sm_90a"].tuning.pipeline
    assert [pipeline.stages(kib << 10, 0) for kib in (48, 24, 20, 16, 12)] == [4, 4, 4, 6, 8]
    assert [pipeline.stages(24 << 10, kib << 10) for kib in (12, 8, 6)] == [4, 6, 8]
