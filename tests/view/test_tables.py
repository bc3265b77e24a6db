"""Tables in terminals of any width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tilewave.view.tables import names, numbers, print_table, words

COLUMNS = (*names("mapping"), *numbers("time", "HBM read"), *words("why"))
ROWS = [
    ("xcd_contiguous(8) >> supertiles(4, 8)", "1.21 ms", "268 MB", "+9.4 % compared with linear(), the same traffic"),
    ("linear()", "12 µs", "1.97 GB", ""),
]


def printed(width: int, rows=ROWS) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=width), COLUMNS, rows)
    return out.getvalue()


def test_a_table_that_fits_is_a_table():
    head, line, first, *_ = printed(120).strip("\n").splitlines()[1:]
    assert head.split() == ["mapping", "time", "HBM", "read", "why"]
    assert set(line.strip()) == {"─"}
    assert first.split("  ")[1] == "xcd_contiguous(8) >> supertiles(4, 8)"


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 90])
def test_no_name_and_no_number_is_ever_broken(width):
    text = re.sub(r"\s+", " ", printed(width))
    for cell in ("xcd_contiguous(8) >> supertiles(4, 8)", "1.21 ms", "268 MB", "9.4 %", "12 µs", "1.97 GB"):
        assert cell in text
    assert not [line for line in printed(width).splitlines() if re.search(r"\d$", line.rstrip())], "no unit alone"


def test_what_does_not_fit_is_told_row_by_row():
    assert printed(60).splitlines() == [
        "xcd_contiguous(8) >> supertiles(4, 8)",
        "    time 1.21 ms · HBM read 268 MB",
        "    why +9.4 % compared with linear(), the same traffic",
        "linear()",
        "    time 12 µs · HBM read 1.97 GB",
    ]


def test_markup_in_a_cell_is_text():
    assert "[bold]" in printed(120, [("[bold]", "1 ms", "1 B", "[red]")])
