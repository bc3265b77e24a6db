"""A staged GEMM of eight waves at the lane level: right in every order, and no barrier of it can be left out."""

import numpy as np
import pytest
from lane_texts import ORDERS, line_of

from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify

M, N, K = 256, 256, 128
CONSTANTS = "".join(f"  %c{n} = const() {{value = {n}}} : index\n" for n in (0, 2, 4, 8, 16, 32, 64, 128, 256))
STAGED = (
    f"kernel @gemm {{workgroups = 2, level = lane, waves = [4, 2], lanes = 64}} (%a: memory<{M}x{K}xf16, global>, "
    f"%b: memory<{N}x{K}xf16, global>, %c: memory<{M}x{N}xf32, global>) {{\n"
    + CONSTANTS
    + """  %sa = allocate() : memory<128x64xf16, shared, xor(8, 8, 1)>
  %sb = allocate() : memory<256x64xf16, shared, xor(8, 8, 1)>
  %w = workgroup() : index
  %lane = lane() : index
  %wave = wave() : index
  %m = mul(%w, %c128) : index
  %lanes_before = mul(%wave, %c64) : index
  %t = add(%lanes_before, %lane) : index
  %row = floor_div(%t, %c8) : index
  %chunk = mod(%t, %c8) : index
  %col = mul(%chunk, %c8) : index
  %a_row = add(%m, %row) : index
  %wave_row = floor_div(%wave, %c2) : index
  %wave_col = mod(%wave, %c2) : index
  %own_row = mul(%wave_row, %c32) : index
  %own_col = mul(%wave_col, %c128) : index
  %low = mod(%lane, %c16) : index
  %high = floor_div(%lane, %c16) : index
  %depth = mul(%high, %c8) : index
  %left = add(%own_row, %low) : index
  %right = add(%own_col, %low) : index
  %none = const() {value = 0.0} : vector<2x8x1x4xf32>
  %sum = loop(%c2, [%none]) : vector<2x8x1x4xf32> do (%i: index, %acc: vector<2x8x1x4xf32>) {
    %k0 = mul(%i, %c64) : index
    %k = add(%k0, %col) : index
    %x = load(%a, [%a_row, %k], []) {steps = [[64, 0], [0, 1]]} : vector<2x8xf16>
    %y = load(%b, [%row, %k], []) {steps = [[64, 0], [0, 1]]} : vector<4x8xf16>
    barrier() // before the stores
    store(%x, %sa, [%row, %col], []) {steps = [[64, 0], [0, 1]]} // write a
    store(%y, %sb, [%row, %col], []) {steps = [[64, 0], [0, 1]]} // write b
    barrier() // behind the stores
    %xs = load(%sa, [%left, %depth], []) {steps = [[16, 0], [0, 32], [0, 1]]} : vector<2x2x8xf16> // read a
    %ys = load(%sb, [%right, %depth], []) {steps = [[16, 0], [0, 32], [0, 1]]} : vector<8x2x8xf16> // read b
    %z = matrix(%xs, %ys, %acc) {shape = [16, 16, 32], instruction = f32_16x16x16_f16} : vector<2x8x1x4xf32>
    yield([%z])
  }
  %high4 = mul(%high, %c4) : index
  %c_row0 = add(%m, %own_row) : index
  %c_row = add(%c_row0, %high4) : index
  store(%sum, %c, [%c_row, %right], []) {steps = [[16, 0], [0, 16], [16, 0], [1, 0]]}
}
"""
)


def run(text, order, seed):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    c = np.full((M, N), np.nan, np.float32)
    interpret_lanes(verify(parse(text, "gemm.ir")), [a, b, c], {}, order, seed)
    return a.astype(np.float64), b.astype(np.float64), c


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_it_agrees_with_float64(order, seed):
    a, b, c = run(STAGED, order, seed)
    assert (np.abs(c - a @ b.T) <= K * 2.0**-24 * (np.abs(a) @ np.abs(b).T)).all()


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize(
    ("barrier", "first", "second"),
    [("behind the stores", "write", "read"), ("before the stores", "read", "write")],
)
def test_a_missing_barrier_is_found_with_both_lines(barrier, first, second, order, seed):
    text = STAGED.replace(f"    barrier() // {barrier}", "")
    with pytest.raises(InterpreterError, match="with no barrier between") as raised:
        run(text, order, seed)
    lines = {operand: (line_of(text, f"{first} {operand}"), line_of(text, f"{second} {operand}")) for operand in "ab"}
    operand = next(x for x in "ab" if f"s{x}[" in raised.value.what)
    assert raised.value.loc.line == lines[operand][1]
    assert f"the {first} is at gemm.ir:{lines[operand][0]};" in raised.value.remedy
