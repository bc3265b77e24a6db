"""Tables with a row for each op class: its semantics, or its lowering for a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tilewave.ir.core import Op

Row = TypeVar("Row")


def find_row(table: Mapping[type[Op], Row], op: Op) -> Row | None:
    """Return the row of an op's class, or of its nearest base class; None where there is none."""
    for kind in type(op).__mro__:
        if kind in table:
            return table[kind]
    return None


def row_of(table: Mapping[type[Op], Row], op: Op, lacks: str) -> Row:
    """Return the row of an op; raise where there is none, with `lacks` in the message: "cannot lower"."""
    row = find_row(table, op)
    if row is None:
        raise NotImplementedError(f"{op.loc}: {lacks} {op.name}")
    return row
