"""Matrix instructions as rows of data: those of chips that are no targets yet are said in the same words."""

import numpy as np
import pytest

from tilewave.layouts.conversions import conversion
from tilewave.layouts.formulas import as_linear
from tilewave.layouts.fragments import Fragment, held, mfma
from tilewave.layouts.linear import Holder
from tilewave.machine.matrix import NAMED, MatrixInstruction

AMPERE = Fragment(
    a=held("rd", (16, 16), registers="d0 r3 d3", lanes="d1 d2 r0 r1 r2"),
    b=held("cd", (8, 16), registers="d0 d3", lanes="d1 d2 c0 c1 c2"),
    acc=held("rc", (16, 8), registers="c0 r3", lanes="c1 c2 r0 r1 r2"),
)
"""mma.sync m16n8k16 of 16-bit floats: NVIDIA, "PTX ISA", matrix fragments for mma.m16n8k16."""

RDNA3 = Fragment(
    a=held("rd", (16, 16), registers="d0 d1 d2 d3", lanes="r0 r1 r2 r3 -"),
    b=held("cd", (16, 16), registers="d0 d1 d2 d3", lanes="c0 c1 c2 c3 -"),
    acc=held("rc", (16, 16), registers="r1 r2 r3", lanes="c0 c1 c2 c3 r0"),
)
"""v_wmma_f32_16x16x16_f16 by a wave of 32 lanes: AMD, "RDNA3 Instruction Set Architecture", WMMA matrices."""

ROWS = {
    "m16n8k16": MatrixInstruction("f32_16x8x16_f16", 16, 16, "f16", "f16", "f32", (), layouts=AMPERE),
    "wmma": MatrixInstruction("f32_16x16x16_f16_32", 16, 16, "f16", "f16", "f32", (), layouts=RDNA3),
    "mfma": NAMED["f32_16x16x16_f16"],
    "deep mfma": NAMED["f32_32x32x16_f16"],
}


def test_the_fragments_of_m16n8k16_are_as_its_manual_says():
    """groupID = lane >> 2, threadID_in_group = lane % 4; a is row x column, b column x row here, c row x column."""
    for lane in range(32):
        group, within = lane >> 2, lane % 4
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            column = within * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert divmod(AMPERE.a.at(i, lane), 16) == (row, column)
        for i in range(4):
            assert divmod(AMPERE.b.at(i, lane), 16) == (group, within * 2 + (i & 1) + (8 if i >= 2 else 0))
            assert divmod(AMPERE.acc.at(i, lane), 8) == (group + (8 if i >= 2 else 0), within * 2 + (i & 1))


def test_the_fragments_of_wmma_are_as_its_manual_says():
    """Lanes 16 to 31 hold what lanes 0 to 15 hold; even rows of the sums are in the lower lanes."""
    for lane in range(32):
        for i in range(16):
            assert divmod(RDNA3.a.at(i, lane), 16) == divmod(RDNA3.b.at(i, lane), 16) == (lane % 16, i)
        for i in range(8):
            assert divmod(RDNA3.acc.at(i, lane), 16) == (2 * i + lane // 16, lane % 16)
    assert RDNA3.a.copies() == (Holder(lane=16),)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_all_that_a_product_needs(name):
    """From matrices to lanes and back, for tiles of 2 x 3 blocks over 2 of depth."""
    fragment = ROWS[name].fragment()
    m, n, k = (count * size for count, size in zip((2, 3, 2), fragment.shape, strict=True))
    rng = np.random.default_rng(0)
    a, b, acc = (rng.integers(-4, 5, shape).astype(float) for shape in ((m, k), (n, k), (m, n)))
    in_lanes = [
        x[tuple(np.moveaxis(fragment.operand(x.shape, (1, 1), s).positions(1, fragment.lanes), -1, 0))]
        for s, x in ((0, a), (1, b))
    ]
    found = fragment.from_sums(fragment.to_sums(acc, False), False)
    found += fragment.matrix(in_lanes[0], 0) @ fragment.matrix(in_lanes[1], 1).T
    np.testing.assert_array_equal(found, acc + a @ b.T)


@pytest.mark.parametrize("name", ROWS)
def test_sums_convert_to_the_left_operand_of_the_next_product(name):
    fragment = ROWS[name].fragment()
    shape = (2 * fragment.rows, 2 * max(fragment.cols, fragment.depth))
    sums = as_linear(fragment.sums(shape, (1, 1), False), shape, 1, fragment.lanes)
    operand = as_linear(fragment.operand(shape, (1, 1), 0), shape, 1, fragment.lanes)
    found = conversion(sums, operand)
    assert found is not None and found.exchanged(4) <= 1 << len(operand.registers)
    if name == "m16n8k16":  # what NVIDIA's attention kernels live on: registers change places, lanes exchange nothing
        assert found.exchanged(4) == 0


@pytest.mark.parametrize(("rows", "depth"), [(16, 16), (16, 4), (32, 8), (32, 2)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_instructions_behind_each_other_are_one_deeper_block(rows, depth, count):
    assert mfma(rows, depth).deepened(count) == mfma(rows, depth * count)


def test_fewer_neighbours_make_a_shallower_block():
    assert mfma(16, 32).with_neighbours(2) == mfma(16, 8)
