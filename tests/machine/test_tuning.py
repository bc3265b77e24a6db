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
