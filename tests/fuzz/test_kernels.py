"""A share of the random kernels in every test run: fixed seeds, every target, against the reference."""

import pytest

from .judge import TARGETS
from .kernels import KERNELS

SEEDS = {
    "kernels": {"numpy": range(40), "cpu": range(8), "gfx942": range(10, 15), "gfx950": range(4), "sm_90a": range(5)},
    "open_kernels": {
        "numpy": range(20),
        "cpu": range(5),
        "gfx942": range(2),
        "gfx950": range(2, 4),
        "sm_90a": range(4),
    },
    "reduced_kernels": {
        "numpy": range(20),
        "cpu": range(8),
        "gfx942": range(4),
        "gfx950": range(4, 8),
        "sm_90a": range(8),
    },
}
"""A sixth of them belongs to every run."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("net", KERNELS)
@pytest.mark.parametrize("every", [pytest.param(6, id="a sixth"), pytest.param(1, marks=pytest.mark.slow, id="all")])
def test_random_kernels_agree_with_the_reference(net, target, every):
    found = []
    for seed in SEEDS[net][target][::every]:
        outcome = KERNELS[net].case_on(seed, target)
        if outcome.wrong:
            found.append(f"python -m tests.fuzz --net {net} --target {target} --seed {seed} --count 1\n{outcome}")
    assert not found, "\n\n".join(found)


CONVERTED = {
    "gfx942": (880737, 881290, 881416),
    "gfx950": (880964, 880468),
    "sm_90a": (7710061, 7710582, 7710195, 7711915, 7712342, 7711236, 7711156, 880115),
}
"""Kernels that need a tile in another layout than lanes hold it in: they were refused once."""


@pytest.mark.parametrize("target", CONVERTED)
def test_kernels_whose_tiles_change_their_layout_are_right(target):
    assert {seed: KERNELS["kernels"].case_on(seed, target).kind for seed in CONVERTED[target]} == dict.fromkeys(
        CONVERTED[target], "agrees"
    )
