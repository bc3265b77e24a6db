"""Runs a kernel by the interpreter of tiles, on the CPU, by lanes and emulated, against float64 numpy."""

import numpy as np

from tilewave import sym

EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}


def run(kernel, target, *arrays, **subs):
    """Run a kernel; `subs` gives sizes that no array has, or that must be known."""

    made = kernel.compile(
        target="gfx942" if target == "tile" else target, subs={getattr(sym, n): v for n, v in subs.items()}
    )
    if target == "cpu":
        made(*arrays)
    elif target == "gfx942":
        made.emulate(*arrays)
    else:
        made.interpret(*arrays, level="lane" if target == "sm_90a" else "tile")
    return made


def check(found, wanted, terms, dtype="f32", size=None):
    """Compare results with float64: `terms` roundings of numbers of `size`, by default the largest result's."""
    size = np.abs(wanted).max() if size is None else size
    bound = terms * 2.0**-24 * size + EPSILON[dtype] * np.abs(wanted)
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all(), np.abs(found.astype(np.float64) - wanted).max()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
