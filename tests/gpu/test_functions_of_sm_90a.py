"""exp, log, sin and their kind on a real GPU, against exact arithmetic: all narrow floats, and hard ones of f32."""

import numpy as np
import pytest
from function_values import (
    F8,
    IN_F64,
    NAMES,
    NARROW,
    check_kernel,
    error_in_f32,
    every_function,
    in_double,
    numbers_of,
    of_f64,
)

pytestmark = pytest.mark.gpu
WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def on_card(torch):
    """Runs a compiled kernel on copies in the card's memory, and takes the results back, bit by bit."""

    def run(compiled, *arrays):
        names = [a.dtype.name for a in arrays]
        words = [torch.from_numpy(a.view(WORDS[a.itemsize])).cuda() for a in arrays]
        compiled(*(w.view(getattr(torch, name)) for w, name in zip(words, names, strict=True)))
        for array, word in zip(arrays, words, strict=True):
            array.view(WORDS[array.itemsize])[...] = word.cpu().numpy()

    return run


@pytest.mark.parametrize("dtype", ["f32", *NARROW])
def test_every_function(torch, dtype):
    kernel = every_function(dtype, 1 if dtype in F8 else 4)
    check_kernel("sm_90a", dtype, numbers_of(dtype), kernel, on_card(torch), target="sm_90a")


def test_many_more_numbers_of_f32(torch):
    """Four million of all sizes, and as many between -100 and 100; prints how far each function is off at most."""
    rng = np.random.default_rng(8)
    count = 2**22
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    x = np.concatenate([bits, rng.uniform(-100, 100, count).astype(np.float32)])
    check_kernel("sm_90a", "f32", x, every_function("f32", 4), measured(on_card(torch)), target="sm_90a")


def measured(run):
    def told(compiled, x, *outputs):
        run(compiled, x, *outputs)
        for name, found in zip(NAMES, outputs, strict=True):
            units = error_in_f32(found, in_double(name, x))
            print(f"{name}: off by {np.nanmax(units):.3f} units at {x.ravel()[np.nanargmax(units)]!r}")

    return told


def test_functions_of_f64(torch):
    x = numbers_of("f64")
    check_kernel("GPUs, f64", "f64", x, of_f64(4), on_card(torch), IN_F64, target="sm_90a")
