"""Kernels that read back what they wrote, on a real GPU, again and again: a race shows in some runs only.

TILEWAVE_READ_BACK_RUNS says how often each is run, 100 times where nothing is said.
"""

import os

import numpy as np
import pytest
from read_back import CASES, COLUMN_WISE, ROW_WISE, built

from tilewave import *

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewave.errors.SlowCodeWarning")]
RUNS = int(os.environ.get("TILEWAVE_READ_BACK_RUNS", "100"))
WORKGROUPS = 264
"""Two for each processor of an H200."""
SCHEDULES = [SchedulingType.NONE, SchedulingType.PREFETCH]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("waves", [(1, 1), (2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("flip", [COLUMN_WISE, ROW_WISE], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_run_reads_what_was_written(torch, case, flip, waves, schedule):
    m, k = 64 * WORKGROUPS, 96
    if case.has_product and waves == (1, 1):
        waves = (4, 1)  # products are made by four waves at least
    compiled = built(case, "sm_90a", flip, m, k, waves, schedule=schedule)
    arrays = case.arrays(np.random.default_rng(0), m, k)
    want = torch.from_numpy(np.array(case.want(flip.flipped, *(x.copy() for x in arrays)))).cuda()
    given = [torch.from_numpy(x).cuda() for x in arrays]
    wrong = 0
    for _ in range(RUNS):
        tensors = [x.clone() for x in given]
        compiled(*tensors)
        wrong += not torch.equal(tensors[-1], want)
    assert not wrong, f"{wrong} of {RUNS} runs were wrong"
