"""The values that the tuner tries, by machine."""

import pytest

from tilewave.cost.parameters import HOST
from tilewave.tune.machines import HostTiles, machine_of

ROLES = ("rows", "cols", "depth", "grid", "walk", "waves", "wave rows", "split")


@pytest.mark.parametrize("target", ["cpu", "gfx942", "gfx950", "sm_90a"])
def test_values_of_each_role(target, golden):
    """What is tried for a tile's sizes, by role and bytes of an element."""
    machine = HostTiles("avx512", 2, 14, 32, 64, HOST) if target == "cpu" else machine_of(target)
    golden("".join(f"{role}, {size} bytes: {machine.values(role, size)}\n" for role in ROLES for size in (1, 2, 4)))
