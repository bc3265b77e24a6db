"""Columns of a shared memory in panels: the position of each element."""

import numpy as np
import pytest

from tilewave.ir.parse import parse
from tilewave.ir.placements import elements, offset, panels, row_elements, without_swizzle
from tilewave.ir.types import F16, Memory, Panels


def everywhere(memory):
    return offset(memory, *np.indices(memory.shape))


@pytest.mark.parametrize("shape", [(8, 128), (16, 64), (3, 8, 192), (2, 2, 24, 64)])
def test_every_element_has_a_place_of_its_own(shape):
    memory = Memory(shape, F16, "shared", Panels(64, 8, 8, 1))
    places = everywhere(memory)
    assert sorted(places.reshape(-1)) == list(range(elements(memory)))
    assert elements(memory) == places.size and row_elements(memory) == 64 and panels(memory) == shape[-1] // 64


def test_a_panel_has_its_part_of_all_rows():
    memory = Memory((16, 128), F16, "shared", Panels(64, 8, 8, 1))
    second = everywhere(memory)[:, 64:]
    assert second.min() == 16 * 64 and second.max() == 2 * 16 * 64 - 1


def test_chunks_change_places_within_a_row_of_a_panel():
    memory = Memory((16, 128), F16, "shared", Panels(64, 8, 8, 1))
    plain = everywhere(without_swizzle(memory))
    assert (plain[:, :64] == np.arange(16 * 64).reshape(16, 64)).all()
    moved = everywhere(memory)
    assert (moved[0] == plain[0]).all() and moved[3, 64] == plain[3, 64 + 3 * 8]
    assert (moved // 64 == plain // 64).all()


def test_it_is_read_back_as_it_is_written():
    text = "kernel @f {workgroups = 1} () {\n  %x = allocate() : memory<8x128xf16, shared, panels(64, 8, 8, 1)>\n}"
    assert "panels(64, 8, 8, 1)" in str(parse(text)) and parse(str(parse(text))) == parse(text)
