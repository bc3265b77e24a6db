"""exp, exp2, log and log2 as they are spelled for machines without them, run on this one."""

import numpy as np
import pytest
from spelled_code import run_spelled

from tilewave.lower.gpu.exponents import ExponentArithmetic, spelled

NAMES = ("exp", "exp of powers", "exp2", "log", "log2")
ULPS = 4


POWERS = {"exp2": "llvm.exp2", "exp2_flushed": "llvm.exp2.f32"}
"""Powers of two as instructions, which make exp of two of them."""


def run(name, x, lanes=1):
    name, known = ("exp", POWERS) if name == "exp of powers" else (name, {})
    return run_spelled(lambda f, x, lanes: spelled(ExponentArithmetic(f, lanes, known), name, x), x, lanes)


def numbers(name):
    rng = np.random.default_rng(5)
    if name.startswith("log"):
        far = np.exp(rng.uniform(-103, 88, 20000))
        return np.concatenate([far, rng.uniform(0.5, 2, 20000), 1 + rng.uniform(-1e-3, 1e-3, 20000)]).astype(np.float32)
    largest = 127.9 if name == "exp2" else 88.7
    return np.concatenate([rng.uniform(-103, largest, 30000), rng.standard_normal(30000)]).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_it_stays_within_four_units_in_the_last_place(name):
    x = numbers(name)
    wanted = getattr(np, name.split()[0])(x.astype(np.float64))
    unit = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(run(name, x) - wanted) / unit) <= ULPS


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_computed_as_single_numbers_are(name):
    x = numbers(name)[::100]
    x = x[: len(x) // 4 * 4].copy()
    np.testing.assert_array_equal(run(name, x, 4), run(name, x))


@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("exp", [0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 200, -200], [1, 1, np.inf, 0, np.nan, 1, np.inf, 0]),
        (
            "exp of powers",
            [0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 200, -200],
            [1, 1, np.inf, 0, np.nan, 1, np.inf, 0],
        ),
        ("exp2", [0, 10, np.inf, -np.inf, np.nan, -149, 128, -151], [1, 1024, np.inf, 0, np.nan, 2.0**-149, np.inf, 0]),
        ("log", [1, 0, -0.0, np.inf, -1, np.nan, -np.inf], [0, -np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan]),
        ("log2", [1, 8, 0, np.inf, -1, np.nan, 2.0**-149], [0, 3, -np.inf, np.inf, np.nan, np.nan, -149]),
    ],
)
def test_its_ends(name, x, wanted):
    np.testing.assert_array_equal(run(name, np.array(x, np.float32)), np.array(wanted, np.float32))
