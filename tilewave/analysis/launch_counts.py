"""The tiles of a kernel and the workgroups of a launch: numbers, or formulas of dynamic sizes, `ceil(M / 128)`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewave.analysis.indexed_writes import as_windows
from tilewave.analysis.schedule import stores
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import MOST_OPEN, HostLaunch, launch_of, numbers_of, open_sizes
from tilewave.ir.ops import Add, Const, FloorDiv, Max, Min, Mod, Mul, Select, Sub, TileOf, Write, Yield
from tilewave.ir.rewrite import walk
from tilewave.ir.stream_k import MOST_TILES
from tilewave.ir.types import INDEX_SCALAR

Count = int | str
"""A number, or the formula that gives it at each launch."""
SIGNS: dict[type[Op], str] = {Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", Mod: "%"}


class NoFormula(Exception):
    """Raised for a launch that is too long for a formula: stream-K compares many splits."""


def tiles_of(kernel: Kernel) -> Count | None:
    """Return the tiles of the first array that a kernel writes; None where it writes elements one by one."""
    op = next((op for op in walk(as_windows(kernel).body) if stores(op)), None)
    if not isinstance(op, Write):
        return None
    extents, tile = op.memory.type.extents, dict(zip(op.axes, op.tile.type.shape, strict=True))
    sides = [_tiles_along(extent, tile.get(axis, 1)) for axis, extent in enumerate(extents)]
    known = [side for side in sides if isinstance(side, int)]
    return prod(known) if len(known) == len(sides) else " * ".join(str(side) for side in sides if side != 1)


def _tiles_along(extent: Count, length: int) -> Count:
    if isinstance(extent, int):
        return -(-extent // length)
    return extent if length == 1 else f"ceil({extent} / {length})"


def workgroups_of(kernel: Kernel) -> Count:
    """Return the workgroups that one launch of a kernel starts."""
    if isinstance(kernel.workgroups, int):
        return kernel.workgroups
    try:
        return _Formulas(kernel).of(kernel.workgroups)
    except NoFormula:
        sizes = ", ".join(open_sizes(kernel))
        return f"at most {most_workgroups(kernel)}, computed at each launch from {sizes}"


def most_workgroups(kernel: Kernel) -> int:
    """Return the workgroups of a launch with the largest sizes."""
    if isinstance(kernel.workgroups, int):
        return kernel.workgroups
    sizes = open_sizes(kernel)
    numbers = [MOST_OPEN if v.name in sizes else 1 for v in numbers_of(kernel)]
    return int(HostLaunch.of(kernel)(numbers).workgroups)


def is_persistent(traced: Kernel, launched: Kernel) -> bool:
    """Return whether a workgroup of the launched kernel computes several tiles of the traced one in turn.

    Without a `TileOf` the author's own loop deals the tiles to the workgroups of a `GridConstraint`.
    """
    dealt = [op for op in walk(traced.body) if isinstance(op, TileOf)]
    by_author = not dealt or any(map(_is_of_a_fixed_grid, dealt))
    return by_author or most_workgroups(launched) < most_workgroups(traced)


def _is_of_a_fixed_grid(op: TileOf) -> bool:
    """Return whether there are fewer workgroups than tiles, or a static number of them and dynamic sizes (0)."""
    tiles = op.rows * op.cols * op.batches
    return op.workgroups > 0 and (tiles == 0 or op.workgroups < tiles)


class _Formulas:
    """Formulas of the values that a launch computes, in Python's signs."""

    def __init__(self, kernel: Kernel) -> None:
        launch = launch_of(kernel)
        self.made: Mapping[Value, Op] = {}
        self.named = {v.name: v for v in kernel.body.args if v.type == INDEX_SCALAR}
        if launch is not None:
            *ops, ends = launch.body.ops
            assert isinstance(ends, Yield)
            self.made = {op.result: op for op in ops}
            self.named |= {r.name: v for r, v in zip(launch.results, ends.values, strict=True)}

    def of(self, name: str) -> str:
        return str(self.count(self.named[name]))

    def count(self, value: Value) -> Count:
        op = self.made.get(value)
        if op is None:
            return value.name
        if isinstance(op, Const):
            return int(op.value)
        if isinstance(op, Select) or not isinstance(op, (*SIGNS, Min, Max)):
            raise NoFormula
        x, y = map(self.count, op.operands)
        return self.quotient(op) or _joined(op, x, y)

    def quotient(self, op: Op) -> str:
        """Return `ceil(M / 128)` for (M + 127) // 128; empty for anything else."""
        added = self.made.get(op.operands[0])
        if not isinstance(op, FloorDiv) or not isinstance(added, Add):
            return ""
        by, (x, more) = self.count(op.operands[1]), map(self.count, added.operands)
        return f"ceil({x} / {by})" if isinstance(by, int) and more == by - 1 else ""


def _joined(op: Op, x: Count, y: Count) -> Count:
    if isinstance(op, Min) and isinstance(y, int) and y >= MOST_TILES:
        return x  # a launch with more tiles is refused
    if isinstance(op, (Min, Max)):
        return f"{op.name}({x}, {y})"
    sign = SIGNS[type(op)]
    return f"{_inside(x, sign)} {sign} {_inside(y, sign)}"


def _inside(x: Count, sign: str) -> str:
    """Return an operand, in parentheses where it is a sum or a quotient, and the sign binds tighter."""
    text = str(x)
    return text if " " not in text or sign == "+" or _is_product(text, sign) else f"({text})"


def _is_product(text: str, sign: str) -> bool:
    """Return whether a text is a call or a product of calls, which needs no parentheses in a product."""
    depth, outside = 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        outside += letter if not depth else ""
    return sign == "*" and not {*outside} & {*"+-/%"}
