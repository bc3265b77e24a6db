"""Tables with a row for each op: what it means, how it is written down for a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tilewave.ir.core import Op

Row = TypeVar("Row")


def find_row(table: Mapping[type[Op], Row], op: Op) -> Row | None:
    """The row of an op's class, or of the nearest class that it is made from; None where there is none."""
    kind = type(op)
    if kind in table:
        return table[kind]
    return next((table[base] for base in kind.__mro__ if base in table), None)


def row_of(table: Mapping[type[Op], Row], op: Op, lacks: str) -> Row:
    """As `find_row`, for a table that must have one; `lacks` says what is lacking: "cannot lower"."""
    row = find_row(table, op)
    if row is None:
        raise NotImplementedError(f"{op.loc}: {lacks} {op.name}")
    return row
