"""Products of tiles in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewave.ir.types import DType, Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import add, load
from tilewave.lower.cpu.products import Put, turn
from tilewave.lower.cpu.scratch_tiles import HeldTile, ProductTile, ScratchSpace, ScratchTile
from tilewave.lower.cpu.target import OperandRows, Panel
from tilewave.lower.elements import in_memory, stored
from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.lower.numbers import cast


def multiply_panels(
    space: ScratchSpace, a: HeldTile | Panel | OperandRows, b: HeldTile | Panel, acc: HeldTile
) -> ScratchTile:
    f, kind = space.f, acc.type
    depth = a.depth if isinstance(a, (Panel, OperandRows)) else a.type.shape[-1]
    wide = stored(kind.dtype)
    plus, times = ("fadd reassoc contract", "fmul contract") if kind.dtype.is_float else ("add", "mul")

    def element(index: list[str]) -> str:
        *batch, row, column = index

        def step(k: str, carried: list[Typed]) -> list[Typed]:
            x = cast(f, factor(f, a, [*batch, row, k]), a.dtype, kind.dtype, 1)
            y = cast(f, factor(f, b, [*batch, column, k]), b.dtype, kind.dtype, 1)
            both = f.value(f"{times} {wide} {x}, {y}")
            return [(wide, f.value(f"{plus} {wide} {carried[0][1]}, {both}"))]

        return f.loop(str(depth), [(wide, acc.element(f, index))], step)[0][1]

    return space.fill(kind, element)


def product_of_line(space: ScratchSpace, kind: Tile, multiply: Callable[[Put], None]) -> ProductTile:
    """Return a product with this source line; what uses its sums keeps its source line."""
    f, loc = space.f, space.f.loc

    def each(put: Put) -> None:
        later = f.loc

        def put_later(index: Sequence[str], x: str, lanes: int) -> None:
            with f.at(later):
                put(index, x, lanes)

        with f.at(loc):
            multiply(put_later)

    return ProductTile(kind, each)


def widened(space: ScratchSpace, x: ScratchTile, dtype: DType) -> ScratchTile:
    """Return the elements in another dtype, with the same order of axes."""
    if x.dtype == dtype:
        return x
    f, old = space.f, x.lying
    new = space.new(Tile(old.type.shape, dtype))
    for_each(f, new.type.shape, lambda index: new.put(f, index, cast(f, old.element(f, index), x.dtype, dtype, 1)))
    return ScratchTile(Tile(x.type.shape, dtype), new.pointer, x.order)


def with_rows_transposed(space: ScratchSpace, b: ScratchTile) -> ScratchTile:
    """Return b with its last two axes transposed and contiguous rows."""
    *batch, rows, columns = b.type.shape
    kind = Tile((*batch, columns, rows), b.dtype)
    if b.is_transposed:
        return ScratchTile(kind, b.pointer, (), b.lying.strides)
    out = space.new(kind)
    turn(space.f, space.target, space.in_rows(b), out)
    return out


def factor(f: LlvmFunction, x: HeldTile | Panel | OperandRows, index: Sequence[str]) -> str:
    """Load an element of a product's operand."""
    if isinstance(x, OperandRows):
        return x.element(f, *index[-2:])
    if not isinstance(x, Panel):
        return x.element(f, index)
    row, k = index[-2:]
    group, within = f.value(f"udiv i64 {k}, {x.group}"), f.value(f"urem i64 {k}, {x.group}")
    number = add(f, f.value(f"mul i64 {group}, {x.all_rows}"), row)
    number = add(f, f.value(f"mul i64 {number}, {x.group}"), within)
    return load(f, x.dtype, f.value(f"getelementptr {in_memory(x.dtype)}, ptr {x.pointer}, i64 {number}"))
