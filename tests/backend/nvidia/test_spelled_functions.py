"""All functions as they are spelled for sm_90a, run on this machine, with powers of two as bad as the card may have."""

import numpy as np
import pytest
from function_values import NAMES, check, hard_values, turns
from spelled_code import as_on_hopper, power_off_by, run_spelled

from tilewave.ir import ops as ir

POWERS = ("exp", "exp2", "tanh", "erf")
UNITS = 2
"""In the last place, that NVIDIA promises of ex2.approx.f32."""
SPELLED = [name for name in NAMES if name != "reciprocal"]  # which is a quotient, and no function
OPS = {"round": "RoundAway", "roundeven": "RoundEven"}
CASES = [*((name, 0) for name in SPELLED), *((name, sign * UNITS) for name in POWERS for sign in (-1, 1))]


def run(name, x, lanes, units):
    return run_spelled(as_on_hopper(getattr(ir, OPS.get(name, name.capitalize()))), x, lanes, power_off_by(units))


@pytest.mark.parametrize(("name", "units"), CASES)
def test_functions_stay_within_what_the_documents_say(name, units):
    x = hard_values("f32")
    x = x[: len(x) // 2 * 2].copy()
    check("sm_90a", name, "f32", x, run(name, x, 2, units))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_an_angle_is_the_same_whatever_its_neighbours_are(name, lanes):
    """Vectors reduce large angles in another way than small ones, each number by itself."""
    x = np.concatenate([turns("f32"), np.random.default_rng(4).permutation(hard_values("f32"))])
    x = x[: len(x) // 16 * 16].copy()
    np.testing.assert_array_equal(run(name, x, lanes, 0), run(name, x, 2, 0))
