"""A share of the random kernels in every test run: every pass keeps them, bit for bit."""

import pytest

from .passes import COMPILED, MAKERS, case_on

SEEDS = {"cpu": range(4), "gfx942": range(3), "gfx950": range(3, 6), "sm_90a": range(3)}
"""Seeds for each kind of kernel; the first of each belongs to every run."""


@pytest.mark.parametrize("target", COMPILED)
@pytest.mark.parametrize("maker", range(len(MAKERS)))
@pytest.mark.parametrize("count", [pytest.param(1, id="first"), pytest.param(None, marks=pytest.mark.slow, id="all")])
def test_passes_keep_random_kernels(maker, target, count):
    seeds = SEEDS[target][:count]
    assert {seed: case_on(maker, seed, target) for seed in seeds} == dict.fromkeys(seeds)
