"""Which lane holds which element."""

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewave.lang.mma_types import MMAType
from tilewave.layouts.formulas import blocks, linear, read_transposed
from tilewave.layouts.fragments import WARPGROUP, mfma
from tilewave.machine.matrix import INSTRUCTIONS, WISHES, instructions_for

TABLES = Path(__file__).parents[1] / "data" / "matrix_layouts"


def table(instruction):
    """AMD's own table of which element each lane's register holds."""
    return json.loads((TABLES / f"{instruction.name}.json").read_text())


def held(layout, waves=1):
    return layout.positions(waves, 64).reshape(64 * waves, -1, layout.rank)


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_fragments_are_laid_out_as_amd_says(instruction):
    facts, fragment = table(instruction), mfma(instruction.rows, instruction.depth)
    assert (facts["M"], facts["N"], facts["K"]) == (instruction.rows, instruction.rows, instruction.depth)
    assert tuple(facts["arch"]) == instruction.chips
    shape = (instruction.rows, instruction.depth)
    np.testing.assert_array_equal(held(fragment.operand(shape, (1, 1), 0)), facts["A"])
    np.testing.assert_array_equal(held(fragment.operand(shape, (1, 1), 1))[..., ::-1], facts["B"])
    square = (instruction.rows, instruction.rows)
    np.testing.assert_array_equal(held(fragment.sums(square, (1, 1), transposed=False)), facts["CD"])
    np.testing.assert_array_equal(held(fragment.sums(square, (1, 1), transposed=True))[..., ::-1], facts["CD"])


def test_every_matrix_instruction_of_the_language_is_known():
    assert {t.value for t in MMAType} == set(WISHES)


def test_a_chip_takes_its_own_eight_bit_floats():
    first = next(instructions_for("gfx942", "f8e4m3fnuz", "f8e4m3fnuz", "f32"))
    assert first.name == "f32_16x16x32_fp8_fp8"
    assert not list(instructions_for("gfx942", "f8e4m3fn", "f8e4m3fn", "f32"))
    assert list(instructions_for("gfx950", "f8e4m3fn", "f8e4m3fn", "f32"))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("fragment", [mfma(16, 16), mfma(32, 8), mfma(16, 64)], ids=str)
def test_what_lanes_hold_becomes_a_matrix_and_back(fragment, turned):
    rng = np.random.default_rng(3)
    whole = rng.standard_normal((2, 3 * fragment.rows, 2 * fragment.rows))
    layout = fragment.sums(whole.shape, (1, 1), turned)
    in_lanes = whole[tuple(np.moveaxis(layout.positions(1, 64), -1, 0))]
    np.testing.assert_array_equal(fragment.from_sums(in_lanes, turned), whole)
    np.testing.assert_array_equal(fragment.to_sums(whole, turned), in_lanes)
    operand = rng.standard_normal((2, 3 * fragment.rows, 2 * fragment.depth))
    layout = fragment.operand(operand.shape, (1, 1), 0)
    in_lanes = operand[tuple(np.moveaxis(layout.positions(1, 64), -1, 0))]
    np.testing.assert_array_equal(fragment.matrix(in_lanes), operand)


@pytest.mark.parametrize("waves", [(1, 1), (2, 2), (4, 2), (1, 4)])
def test_sums_are_held_once_and_operands_by_every_wave_that_needs_them(waves):
    fragment = mfma(16, 32)
    sums = np.zeros((128, 128), int)
    np.add.at(sums, tuple(held(fragment.sums((128, 128), waves, True), prod(waves)).reshape(-1, 2).T), 1)
    assert (sums == 1).all()
    for side in (0, 1):
        times = np.zeros((128, 64), int)
        np.add.at(times, tuple(held(fragment.operand((128, 64), waves, side), prod(waves)).reshape(-1, 2).T), 1)
        assert (times == waves[1 - side]).all()


@given(st.data())
def test_linear_layouts_take_each_element_once(data):
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 20, 48, 64]), min_size=1, max_size=3)))
    width = data.draw(st.sampled_from([w for w in (1, 2, 4, 8, 16) if shape[-1] % w == 0]))
    waves = data.draw(st.integers(1, 8))
    times = np.zeros(shape, int)
    for layout in linear(shape, width, 64 * waves):
        np.add.at(times, tuple(layout.positions(waves, 64).reshape(-1, len(shape)).T), 1)
        assert layout.registers[-1] == width
    assert (times == 1).all()


def test_lanes_that_divide_a_tile_need_one_layout():
    (layout,) = linear((128, 64), 8, 512)
    assert layout.registers == (2, 8)
    assert layout.steps == ((64, 0), (0, 1))


def test_what_runs_along_one_axis_keeps_its_registers_only():
    layout = mfma(16, 32).sums((64, 128), (2, 2), transposed=True)
    along, kept = layout.along([1])
    assert kept == (1, 2, 3)
    assert along.registers == (4, 1, 4)
    whole = layout.positions(4, 64)[..., 1]
    np.testing.assert_array_equal(along.positions(4, 64)[..., 0], whole[:, 0])


@pytest.mark.parametrize(
    ("shape", "rows", "width", "lanes"),
    [((64, 256), 4, 8, 512), ((64, 128), 2, 8, 512), ((32, 96), 2, 4, 128)],
    ids=str,
)
def test_blocks_cover_a_tile_once(shape, rows, width, lanes):
    found = np.concatenate([held(x, lanes // 64).reshape(-1, 2) for x in blocks(shape, rows, width, lanes)])
    assert sorted(map(tuple, found)) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    first = blocks(shape, rows, width, lanes)[0].positions(lanes // 64, 64)
    offsets = first[:, 0] - first[:, 0, :1, :1]  # of a lane's first block
    assert (offsets == np.stack(np.indices((rows, width)), axis=-1)).all()


@pytest.mark.parametrize(("rows", "depth"), [(16, 32), (32, 16), (16, 16), (32, 8)])
def test_what_lanes_read_for_each_other_is_what_they_hold(rows, depth):
    """A tile by 2x1 waves: groups of 16 lanes read four rows along the depth, and exchange them."""
    layout = mfma(rows, depth).operand((4 * rows, 2 * depth), (2, 1), 0)
    reads = read_transposed(layout, 16, 4)
    holds = layout.positions(2, 64).reshape(8, 16, -1, 4, 2)  # groups of lanes x lanes x accesses x rows
    found = reads.positions(2, 64).reshape(8, 16, -1, 4, 2)
    for access in range(holds.shape[2]):
        matrix = found[:, :, access].reshape(8, 4, 16, 2)
        np.testing.assert_array_equal(holds[:, :, access], matrix.swapaxes(1, 2))


def test_what_lanes_hold_otherwise_they_do_not_read_for_each_other():
    assert read_transposed(mfma(16, 4).operand((32, 32), (1, 1), 0), 16, 4) is None  # an element each
    assert read_transposed(linear((64, 32), 8, 64)[0], 16, 4) is None
    assert read_transposed(mfma(16, 16).sums((32, 32), (1, 1), False), 16, 4) is not None


def test_neighbours_come_last():
    (layout,) = blocks((64, 64), 4, 8, 128)
    turned = layout.with_last(0)
    assert (layout.registers, turned.registers, turned.steps[-1]) == ((1, 4, 8), (1, 8, 4), (1, 0))
    assert layout.with_last(1) == layout


def test_axes_of_one_element_are_put_in_and_left_out_again():
    """Each register holds what it held, at place 0 of the further axes."""
    layout = WARPGROUP.sums((1, 64, 32), (4, 1))
    wider = layout.spread_over((1, 3, 4), 5)
    assert wider.along((1, 3, 4))[0] == layout
    places, before = wider.positions(4, 32), layout.positions(4, 32)
    assert (places[..., [1, 3, 4]] == before).all() and not places[..., [0, 2]].any()
