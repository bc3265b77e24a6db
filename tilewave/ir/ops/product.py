"""MMA of tiles, and panels of operands packed for it"""

from __future__ import annotations

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.placements import is_in
from tilewave.ir.rules import GLOBAL, ON_TILES, PACKED, are_axes, are_indices, places, same_axes, want_results
from tilewave.ir.types import BOOL, INDEX, Accumulator, Extent, Memory, Tile, Type
from tilewave.records import dataclass

__all__ = [
    "Accumulate",
    "LoadAccumulator",
    "MatrixUnitOp",
    "Mma",
    "Prepack",
    "ReadAccumulator",
    "ReadPanel",
    "ReadRows",
    "ZeroAccumulator",
]


@dataclass(frozen=True)
class Mma(Computed):
    """acc + a · bᵀ over the last two axes, in the accumulator's dtype; leading axes are batches."""

    levels = ON_TILES

    a: Value
    b: Value
    acc: Value
    wish: str = ""
    """The instruction that the author names for this MMA; empty for the kernel's default."""
    instruction: str = ""
    """The matrix instruction; chosen by `select_mma`."""
    depth: int = 0
    """K of a block that each wave multiplies at once: one instruction, or several consecutive ones."""
    neighbours: str = "columns"
    """Along what a lane's consecutive sums are, `rows` or `columns`; chosen by `chain_mma`."""
    in_order: bool = False
    """Whether all of a lane's sums along that axis are consecutive, and not only those of one block."""
    columns_used: tuple[Value, ...] = ()
    """The number of first columns whose sums are used, where it is known only when the kernel runs; the sums of other
    columns may be anything."""

    def check(self, want: Want) -> None:
        _want_product(self, isinstance(self.acc.type, Tile), want)
        want(len(self.columns_used) <= 1 and are_indices(self.columns_used), "uses a number of its first columns")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        a, b, acc = self.a, self.b, self.acc
        *batch, rows, last = range(len(acc.type.shape))
        found = [*same_axes(self.result, acc)]
        for i in batch:
            found += [((a, i), (acc, i)), ((b, i), (acc, i))]
        return (*found, ((a, rows), (acc, rows)), ((b, rows), (acc, last)), ((a, last), (b, last)))

    @property
    def contracted(self) -> tuple[Axis, ...]:
        return ((self.a, len(self.a.type.shape) - 1),)

    @property
    def is_transposed(self) -> bool:
        """Whether a lane's consecutive sums are along columns."""
        return self.neighbours == "columns"


@dataclass(frozen=True)
class Prepack(Computed):
    """A copy of `memory` made once per launch, before any workgroup: panels of rows, their depth in groups.

    The result has the shape (batches…, panels, groups, rows, depth of a group), the dtype of its type, and 0 wherever a
    panel is out of bounds: result[b, p, g, r, d] = memory[b, p · rows + r, g · depth + d], where `row_axis` and
    `depth_axis` name the axes of `memory` that rows and depth run along.
    """

    levels = ON_TILES
    reads = places(memory=GLOBAL)

    memory: Value
    row_axis: int
    depth_axis: int

    def check(self, want: Want) -> None:
        memory, out, along = self.memory.type, self.result.type, (self.row_axis, self.depth_axis)
        want(isinstance(memory, Memory), f"reads a memory, not {memory}")
        rank = memory.rank
        want(is_in(self.memory, "global"), f"copies a global memory, not {memory}")
        want(is_in(self.result, "packed"), f"makes a packed memory, not {out}")
        want(out.rank == rank + 2 and are_axes(along, rank), f"{memory} has no such panels")
        *batches, panels, groups, rows, depth = out.extents
        others = [n for axis, n in enumerate(memory.extents) if axis not in along]
        long, deep = memory.extents[self.row_axis], memory.extents[self.depth_axis]
        whole = _may_hold(panels, rows, long) and _may_hold(groups, depth, deep)
        want(whole and batches == others, f"{out} does not hold all of {memory}")


@dataclass(frozen=True)
class ReadPanel(Computed):
    """Part of a panel: result[…, r, k] is row r of panel `at[-2]` at depth `at[-1]` + k; batches come first in `at`.

    The result may have fewer rows than the panel.
    """

    levels = ON_TILES
    reads = places(memory=PACKED)

    memory: Value
    at: tuple[Value, ...]

    def check(self, want: Want) -> None:
        memory, out, at = self.memory.type, self.result.type, self.at
        want(isinstance(memory, Memory), f"reads a memory, not {memory}")
        fits = is_in(self.memory, "packed") and isinstance(out, Tile) and 2 <= len(out.shape) <= len(at)
        want(fits and len(at) == memory.rank - 2, f"reads {out} from {memory}")
        *_, rows, depth = memory.extents
        parts = (
            isinstance(depth, int) and isinstance(rows, int) and out.shape[-2] <= rows and out.shape[-1] % depth == 0
        )
        want(parts, f"{out} is no part of a panel of {memory}")
        same = are_indices(at) and out.dtype == memory.dtype
        want(same and set(out.shape[:-2]) <= {1}, f"reads {out} from {memory}")


@dataclass(frozen=True)
class ReadRows(Computed):
    """Rows of a product's left operand, which is not packed: result[…, r, k] is the element of `memory` in row
    `at[row_axis]` + r, or in the last row where there are fewer, at depth `at[depth_axis]` + k.

    The first row and the whole depth are in bounds.
    """

    levels = ON_TILES
    reads = places(memory=GLOBAL)

    memory: Value
    at: tuple[Value, ...]
    row_axis: int
    depth_axis: int

    def check(self, want: Want) -> None:
        memory, out, at, along = self.memory.type, self.result.type, self.at, (self.row_axis, self.depth_axis)
        want(isinstance(memory, Memory), f"reads a memory, not {memory}")
        want(is_in(self.memory, "global"), f"reads a global memory, not {memory}")
        fits = isinstance(out, Tile) and 2 <= len(out.shape) <= memory.rank and are_axes(along, memory.rank)
        want(fits and len(at) == memory.rank and are_indices(at), f"reads {out} from {memory}")
        want(out.dtype == memory.dtype and set(out.shape[:-2]) <= {1}, f"reads {out} from {memory}")


class MatrixUnitOp(Computed):
    """An op on the registers of a matrix unit."""

    levels = ON_TILES


@dataclass(frozen=True)
class ZeroAccumulator(MatrixUnitOp):
    """Zeros in the matrix unit's registers."""

    def check(self, want: Want) -> None:
        made = self.result.type
        want(_is_accumulator(made), f"makes an accumulator of one block, not {made}")


@dataclass(frozen=True)
class LoadAccumulator(MatrixUnitOp):
    """A tile, loaded into the matrix unit's registers."""

    x: Value

    def check(self, want: Want) -> None:
        _want_taken(self.x.type, self.result.type, want)


@dataclass(frozen=True)
class Accumulate(MatrixUnitOp):
    """acc + a · bᵀ for two panels, in the matrix unit's registers."""

    a: Value
    b: Value
    acc: Value

    def check(self, want: Want) -> None:
        _want_product(self, _is_accumulator(self.acc.type), want)


@dataclass(frozen=True)
class ReadAccumulator(MatrixUnitOp):
    """The accumulator, as a tile."""

    acc: Value

    def check(self, want: Want) -> None:
        _want_taken(self.acc.type, self.result.type, want)


def _may_hold(count: Extent, each: Extent, length: Extent) -> bool:
    """Return whether `count` parts of `each` can cover a length; dynamic sizes are not checked."""
    if not isinstance(each, int):
        return False
    return isinstance(count, str) or isinstance(length, str) or count * each >= length


def _want_product(op: Mma | Accumulate, adds_up: bool, want: Want) -> None:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    ok = adds_up and all(isinstance(t, Tile) and len(t.shape) == len(acc.shape) >= 2 for t in (a, b))
    ok = ok and not {a.dtype, b.dtype, acc.dtype} & {BOOL, INDEX}
    ok = ok and a.shape[:-2] == b.shape[:-2] == acc.shape[:-2] and a.shape[-1] == b.shape[-1]
    ok = ok and acc.shape[-2:] == (a.shape[-2], b.shape[-2])
    want(ok, f"{a} times {b} does not fit the accumulator {acc}")
    want_results(op, want, acc)


def _want_taken(x: Type, out: Type, want: Want) -> None:
    """Check the types of a tile of one block and an accumulator of a matrix unit."""
    kinds = {type(x), type(out)} == {Tile, Accumulator}
    same = (x.shape, x.dtype) == (out.shape, out.dtype)
    want(kinds and same and _is_block(x.shape), f"{x} cannot become {out}")


def _is_accumulator(kind: Type) -> bool:
    return isinstance(kind, Accumulator) and _is_block(kind.shape)


def _is_block(shape: tuple[int, ...]) -> bool:
    """Return whether a shape has rows and columns, of one batch."""
    return len(shape) >= 2 and {*shape[:-2]} <= {1}


OPS: tuple[type[Op], ...] = (
    Mma,
    Prepack,
    ReadPanel,
    ReadRows,
    ZeroAccumulator,
    LoadAccumulator,
    Accumulate,
    ReadAccumulator,
)
