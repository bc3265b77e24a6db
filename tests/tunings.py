"""Measured thresholds for tests: those of Hopper, and such as let a pass change the small kernels of tests, too."""

from dataclasses import replace

from tilewave.machine.chips import SM_90A

SPLITS = SM_90A.tuning.splits
FREE = replace(SPLITS, hand_over_bytes=0)
"""Handing over takes no time, so that stream-K splits whatever it can."""


def tuned(chip, part, **fields):
    """Return a chip with other thresholds in one part of its tuning."""
    own = replace(getattr(chip.tuning, part), **fields)
    return replace(chip, tuning=replace(chip.tuning, **{part: own}))
