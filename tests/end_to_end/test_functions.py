"""exp, log, sin and their kind against exact arithmetic: in the interpreter, lane by lane, and on this CPU."""

import re

import kernels
import numpy as np
import pytest
from function_values import (
    COLUMNS,
    ENDS,
    IN_F64,
    NAMES,
    NARROW,
    M,
    N,
    check,
    check_kernel,
    every_function,
    every_value,
    in_double,
    numbers_of,
)

import tilewave as tw
from tilewave import bf16, f32
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here

HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
ELSEWHERE = [s.name for s in INSTRUCTION_SETS.values() if not runs_here(s) and not s.matrix_unit]


def called(compiled, *arrays):
    compiled(*arrays)


def lane_by_lane(compiled, *arrays):
    compiled.interpret(*arrays, level="lane")


SLOW_TO_JUDGE = 16
"""One of so many hard numbers of f64 is tried where there is not time for all: each takes exact arithmetic."""


@pytest.mark.parametrize("dtype", ["f32", *NARROW])
def test_the_interpreter_takes_the_nearest_number(dtype):
    check_kernel("interpreter", dtype, numbers_of(dtype), every_function(dtype), called, target="numpy")


def test_the_interpreter_computes_f64_as_well_as_the_c_library_does():
    check_kernel("cpu, f64", "f64", numbers_of("f64", SLOW_TO_JUDGE), every_function("f64"), called, target="numpy")


@pytest.mark.parametrize("dtype", ["f32", "f16", "f8e4m3fn"])
def test_lanes_compute_as_tiles_do(dtype):
    check_kernel("interpreter", dtype, numbers_of(dtype, 29), every_function(dtype), lane_by_lane, target="gfx942")


@pytest.mark.parametrize("name", HERE)
def test_every_instruction_set_of_this_machine(name):
    check_kernel("cpu", "f32", numbers_of("f32"), every_function("f32", 1), called, target="cpu", instruction_set=name)


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_dtypes_on_this_machine(dtype):
    column = "cpu, f64" if dtype == "f64" else "cpu"
    check_kernel(column, dtype, numbers_of(dtype, SLOW_TO_JUDGE), every_function(dtype, 1), called, target="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f64", *NARROW])
@pytest.mark.parametrize("name", HERE)
def test_every_instruction_set_and_dtype(name, dtype):
    column = "cpu, f64" if dtype == "f64" else "cpu"
    check_kernel(column, dtype, numbers_of(dtype), every_function(dtype, 1), called, target="cpu", instruction_set=name)


@pytest.mark.slow
@pytest.mark.skipif(not runs_here(INSTRUCTION_SETS["amx"]), reason="this machine has no AMX")
@pytest.mark.parametrize("name", NAMES)
def test_functions_of_what_amx_multiplied(name):
    """All normal numbers of bf16, times the unit matrix."""
    x = every_value("bf16")
    size = np.abs(x.astype(np.float32))
    x = np.resize(x[(size >= np.finfo(np.float32).tiny) & (size < np.inf)], (1024, 64))
    kernel = kernels.gemm(bf16, f32, epilogue=lambda sums: getattr(tw, name)(sums))
    compiled = kernels.compiled(kernel, subs=kernels.sizes(1024, 64, 64), target="cpu", instruction_set="amx")
    found = kernels.poisoned(x.shape, f32)
    compiled(x, np.eye(64).astype(x.dtype), found)
    check("cpu", name, "f32", x.astype(np.float32).ravel(), found.ravel())


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_instruction_sets_call_the_c_library_where_nothing_is_spelled_out(name):
    subs = {M: 1, N: COLUMNS}
    compiled = kernels.compiled(every_function("f32", 1), subs=subs, target="cpu", instruction_set=name)
    for function in NAMES:
        is_called = re.search(rf"\b{function}f\b", compiled.asm) is not None
        assert function in IN_F64 or is_called == (function not in ("exp", "exp2", "log1p", "sqrt", "rsqrt")), function


@pytest.mark.parametrize("name", NAMES)
def test_what_functions_are_held_against_keeps_the_rules_at_the_ends(name):
    x, wanted = (np.array(column) for column in zip(*[*ENDS[name], (np.nan, np.nan)], strict=True))
    found = in_double(name, x)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(wanted)[wanted == 0])
    assert {float(v).hex() for v in x} <= {float(v).hex() for v in numbers_of("f32", 10**6)}
