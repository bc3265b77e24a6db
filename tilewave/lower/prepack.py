"""Packing an operand into panels: one task a panel."""

from __future__ import annotations

from tilewave.ir.ops import Prepack
from tilewave.ir.types import Memory
from tilewave.lower.llvm import Function, Typed
from tilewave.lower.memory import Place, add, inside, load, store, zero
from tilewave.lower.numbers import cast, in_memory, stored
from tilewave.lower.target import CpuTarget


def write_prepack(f: Function, op: Prepack, source: Place, packed: str, target: CpuTarget) -> None:
    """Fill panel `%number` (batches and panels counted together) of the packed memory."""
    kind = op.result.type
    assert isinstance(kind, Memory)
    *batch, panels, groups, rows, depth = kind.shape
    panel = f.value(f"urem i64 %number, {panels}")
    rest = f.value(f"udiv i64 %number, {panels}")
    outer: list[str] = []
    for extent in reversed(batch):
        outer.insert(0, f.value(f"urem i64 {rest}, {extent}"))
        rest = f.value(f"udiv i64 {rest}, {extent}")
    first_row = f.value(f"mul i64 {panel}, {rows}")
    base = f.value(f"mul i64 %number, {groups * rows * depth}")
    base = f.value(f"getelementptr {in_memory(kind.dtype)}, ptr {packed}, i64 {base}")

    def position(row: str, k: str) -> list[str]:
        left = iter(outer)
        axes = range(len(source.type.shape))
        return [row if a == op.row_axis else k if a == op.depth_axis else next(left) for a in axes]

    def element(g: str, r: str, d: str) -> None:
        k = add(f, f.value(f"mul i64 {g}, {depth}"), d)
        where = position(add(f, first_row, r), k)
        found = f.choose(
            inside(f, where, source.type.shape),
            lambda: [(stored(source.dtype), load(f, source.dtype, source.address(f, where)))],
            lambda: [(stored(source.dtype), zero(source.dtype))],
        )[0][1]
        number = f.value(f"mul i64 {g}, {rows * depth}")
        number = add(f, number, f.value(f"mul i64 {r}, {depth}"))
        address = f.value(f"getelementptr {in_memory(kind.dtype)}, ptr {base}, i64 {add(f, number, d)}")
        store(f, kind.dtype, cast(f, found, source.dtype, kind.dtype, 1), address)

    def over_groups(g: str, _: list[Typed]) -> list[Typed]:
        def over_rows(r: str, _: list[Typed]) -> list[Typed]:
            for d in range(depth):
                element(g, r, str(d))
            return []

        f.loop(str(rows), [], over_rows)
        return []

    f.loop(str(groups), [], over_groups)
