"""Divisions by one of a few numbers, as products: exact for every number that can come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewave import *
from tilewave.interp.tiles import interpret
from tilewave.ir.ops import Const, FloorDiv
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.kernels import gemm
from tilewave.passes.lanes.strength_reduce_division import StrengthReduceDivision

TEXT = """kernel @k {{workgroups = {count}}} (%a: memory<{count}x1xf32, global>, %c: memory<{count}x1xf32, global>) {{
  %w = workgroup() : index
  %o = const() {{value = 0}} : index
  %every = const() {{value = {every}}} : index
  %small = const() {{value = {small}}} : index
  %step = const() {{value = {step}}} : index
  %which = mod(%w, %every) : index
  %more = mul(%which, %step) : index
  %divisor = add(%small, %more) : index
  %q = floor_div(%w, %divisor) : index
  %t = read(%a, [%q, %o]) {{axes = [0, 1]}} : tile<1x1xf32>
  write(%t, %c, [%w, %o]) {{axes = [0, 1]}}
}}
"""


def quotients(kernel, count):
    """w // divisor for every workgroup w."""
    c = np.full((count, 1), np.nan, np.float32)
    interpret(kernel, [np.arange(count, dtype=np.float32)[:, None], c], {})
    return c[:, 0]


def divides(kernel):
    constant = {op.result for op in walk(kernel.body) if isinstance(op, Const)}
    return any(isinstance(op, FloorDiv) and op.b not in constant for op in walk(kernel.body))


@given(st.integers(1, 300), st.integers(2, 4), st.integers(1, 40), st.integers(1, 40))
def test_every_quotient_is_exact(count, every, small, step):
    kernel = parse(TEXT.format(count=count, every=every, small=small, step=step))
    made = verify(StrengthReduceDivision()(kernel))
    numbers = np.arange(count)
    np.testing.assert_array_equal(quotients(made, count), numbers // (small + numbers % every * step))
    assert not divides(made) or count < every


def test_more_divisors_than_are_worth_it_stay():
    kernel = parse(TEXT.format(count=100, every=5, small=1, step=1))
    assert StrengthReduceDivision()(kernel) == kernel


def test_a_divisor_that_may_be_0_stays():
    kernel = parse(TEXT.format(count=100, every=2, small=0, step=1))
    assert StrengthReduceDivision()(kernel) == kernel


def test_products_that_do_not_fit_into_32_bits_are_not_made():
    kernel = parse(TEXT.format(count=1 << 17, every=2, small=1, step=12))
    assert StrengthReduceDivision()(kernel) == kernel


@pytest.mark.parametrize("shape", [(2048, 2048, 64), (4096, 4096, 64), (4864, 8192, 64), (16384, 4096, 64)])
@pytest.mark.parametrize("size", [5, 8, 12])
def test_no_order_in_groups_divides_on_the_way(shape, size):
    made = gemm(shape, f16, f16, tile=(128, 256, 64), mapping=f"grouped({size})")
    lanes = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel).build.lanes
    assert not divides(lanes)
