"""What a notebook shows: it asks objects for `_repr_html_`, terminals for `repr`, errors for `_render_traceback_`."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest

from tilewave.errors import TilewaveError
from tilewave.view import show

CELL = "/tmp/ipykernel_4711/1234567890.py"
"""Jupyter's name for the code of a cell, which is in no file."""
SOURCE = """
from tilewave import *
M, N = sym.M, sym.N
Matrix = Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]

@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def copy(a: Matrix, c: Matrix):
    write(a, c)

copy.compile(target="numpy", subs={M: 64, N: 64})
"""


@pytest.fixture
def cell() -> Iterator[None]:
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    yield
    del linecache.cache[CELL]


def test_an_error_in_a_cell_is_its_message_with_the_line_and_no_name_of_a_file(cell: None) -> None:
    with pytest.raises(TilewaveError) as found:
        exec(compile(SOURCE, CELL, "exec"), {})
    (said,) = found.value._render_traceback_()
    lines = said.splitlines()
    assert lines[0] == "error: write needs a tile, and `a` is a memory"
    assert lines[1:3] == ["  notebook cell:8", "      write(a, c)"]


def test_a_terminal_gets_a_line_for_a_picture() -> None:
    picture = show("xcd_contiguous(8) >> grouped(2)", "8x8", compare=["linear()"])
    orders = "xcd_contiguous(8) >> grouped(2) compared with linear()"
    launch = "8×8 tiles, 64 workgroups, 8 XCDs"
    assert repr(picture) == f'<picture of {orders} on {launch}; .save("map.html") writes its page>'
