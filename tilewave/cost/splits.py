"""What workgroups have of the sums that a split-K config splits."""

from __future__ import annotations

from tilewave.analysis.register_pressure import splits_in_turns
from tilewave.cost.work import CutWork
from tilewave.ir.host_program import Number, chosen, rounded_up, smaller
from tilewave.machine.chips import Chip
from tilewave.records import dataclass


@dataclass(frozen=True)
class SplitWork:
    """The workgroups of a launch, and the steps of each."""

    launched: Number
    steps: Number
    is_shared: Number
    """Whether workgroups share tiles. Of too many tiles, each workgroup computes all parts itself."""


def split_work(chip: Chip, work: CutWork, by_lanes: Number) -> SplitWork:
    """Return what each workgroup has; more workgroups run at once where lanes load."""
    together = splits_in_turns(chip, work.sums, work.step_bytes), chip.processors
    at_once = chosen(by_lanes, *together)
    is_shared = work.tasks <= chosen(by_lanes, *(chip.tuning.splits.most_shared(n, work.split) for n in together))
    launched = chosen(is_shared, work.tasks * work.split, smaller(work.tasks, at_once))
    alone = work.steps * rounded_up(work.tasks, at_once)
    return SplitWork(launched, chosen(is_shared, work.split_steps, alone), is_shared)
