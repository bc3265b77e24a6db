"""exp, log, sin and their kind as machine code of gfx942 and gfx950, emulated, against exact arithmetic."""

import pytest
from function_values import F8, IN_F64, NARROW, check_kernel, every_function, numbers_of, of_f64

CHIPS = ("gfx942", "gfx950")
COLUMN = "gfx942, gfx950"


def emulated(compiled, *arrays):
    compiled.emulate(*arrays)


def test_functions_of_f32():
    check_kernel(COLUMN, "f32", numbers_of("f32", 8), every_function("f32"), emulated, target="gfx942")


def test_functions_of_f16_that_others_are_computed_like():
    check_kernel(COLUMN, "f16", numbers_of("f16", 61), every_function("f16"), emulated, target="gfx950")


@pytest.mark.parametrize("chip", CHIPS)
def test_functions_of_f64(chip):
    x = numbers_of("f64", 16)
    check_kernel("GPUs, f64", "f64", x, of_f64(), emulated, IN_F64, target=chip)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", *NARROW])
@pytest.mark.parametrize("chip", CHIPS)
def test_every_dtype(chip, dtype):
    kernel = every_function(dtype, 1 if dtype in F8 else 16)
    check_kernel(COLUMN, dtype, numbers_of(dtype), kernel, emulated, target=chip)
