"""Read the left operands of matrix products in place, where nothing would be gained from packing them.

%a_panels = prepack(%a) {row_axis = 0, depth_axis = 1} : memory<{M_by_8}x{K}x8x1xf32, packed>   →   (nothing)
%x = read_panel(%a_panels, [%m // 8, %k]) : tile<8x1xf32>          →   %x = read_rows(%a, [%m, %k]) : tile<8x1xf32>

A product multiplies vectors of the right operand by single elements of the left one. Where a CPU broadcasts an element
as it loads it, rows that are stored along the depth are read as fast as a panel, which would be written first: products
of 1500 x 80 x 900 take 0.62 of the time, of 512 x 512 x 512 0.96 (Xeon, avx512). Operands that are stored across the
depth need another cache line at each step, and are packed: 1054 x 1334 x 903 would take 1.5 times as long.

The last rows of a boundary tile are read as copies of the memory's last row, so their sums may only be written, which
leaves them out. Panels that convert their elements, or are deeper than the memory, are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewave.analysis.positions import BlockScalars
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, FloorDiv, Loop, Mma, Prepack, ReadPanel, ReadRows, Write, Yield
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import known_at_most


def read_rows_in_place(kernel: Kernel) -> Kernel:
    finder = _RowReads(kernel)
    found: dict[Value, Sequence[Op]] = {}
    for pack in kernel.body.ops:
        if isinstance(pack, Prepack) and (reads := finder.reads(pack)):
            found[pack.result] = ()
            found |= {read.result: (read,) for read in reads}

    def rule(op: Op) -> Sequence[Op] | None:
        return found.get(op.result) if isinstance(op, (Prepack, ReadPanel)) else None

    return rewrite(kernel, rule) if found else kernel


class _RowReads:
    """Finds what would be read in place of panels."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.positions = kernel, BlockScalars(kernel.body)
        self.loops = {id(op.body.ops[-1]): op for op in walk(kernel.body) if isinstance(op, Loop)}

    def reads(self, pack: Prepack) -> list[ReadRows]:
        """Return the read in place of each read of the panels; nothing where one of these needs the panels."""
        memory, panels = pack.memory.type, pack.result.type
        *_, groups, _, group = panels.extents
        along = pack.depth_axis == memory.rank - 1 and panels.dtype == memory.dtype
        exact = group == 1 and groups == memory.extents[pack.depth_axis]
        users = self.kernel.users[pack.result] if along and exact else ()
        found = [read for op in users if isinstance(op, ReadPanel) and (read := self.read(op, pack))]
        return found if len(found) == len(users) else []

    def read(self, op: ReadPanel, pack: Prepack) -> ReadRows | None:
        """Return the rows of a panel; None where their first one is not known, or the rows past the end are used."""
        *batch, number, depth = op.at
        row = self.first_row(number, pack)
        if row is None or not all(self.is_left(product, op) for product in self.kernel.users[op.result]):
            return None
        others = iter(batch)
        here = {pack.row_axis: row, pack.depth_axis: depth}
        at = tuple(here.get(axis) or next(others) for axis in range(pack.memory.type.rank))
        found = ReadRows(pack.memory, at, pack.row_axis, pack.depth_axis, results=op.results, loc=op.loc)
        return found if all(self.is_written(v, found) for v in self.sums(op.result)) else None

    def first_row(self, number: Value, pack: Prepack) -> Value | None:
        """Return the first row of a panel, where its number is computed from that row."""
        rows, divided = pack.result.type.extents[-2], self.kernel.defs.get(number)
        assert isinstance(rows, int), f"{pack.result}: panels have rows of a known number"
        if not isinstance(divided, FloorDiv) or self.positions.constant(divided.b) != rows:
            return None
        return divided.a if self.positions.divisor(divided.a) % rows == 0 else None

    def is_left(self, product: Op, read: ReadPanel) -> bool:
        return isinstance(product, Mma) and product.a == read.result and product.b != read.result

    def sums(self, operand: Value) -> Iterator[Value]:
        return (v for product in self.kernel.users[operand] for v in product.results)

    def is_written(self, sums: Value, read: ReadRows) -> bool:
        """Whether all that is computed of a product's sums, row by row, is written to the rows of a memory that has no
        more of them than the operand."""
        seen, left = {sums}, [sums]
        while left:
            v = left.pop()
            for op in self.kernel.users[v]:
                following = self.following(op, v, read)
                if following is None:
                    return False
                left += [x for x in following if x not in seen]
                seen.update(following)
        return True

    def following(self, op: Op, v: Value, read: ReadRows) -> tuple[Value, ...] | None:
        """Return the values with the rows of `v` that an op makes of it; None where it does anything else with them."""
        match op:
            case Mma(a=a, b=b) if v not in (a, b):
                return op.results
            case Elementwise():
                return op.results
            case Yield(values) if id(op) in self.loops:
                loop = self.loops[id(op)]
                places = [i for i, x in enumerate(values) if x == v]
                return tuple(x for i in places for x in (loop.body.args[i + 1], loop.results[i]))
            case Write() if self.is_inside(op, read):
                return ()
            case _:
                return None

    def is_inside(self, write: Write, read: ReadRows) -> bool:
        """Whether rows past the end of the operand are past the end of what is written too."""
        axis, formula = write.axes[-2], self.positions.formula
        most = read.memory.type.extents[read.row_axis]
        return formula(write.at[axis]) == formula(read.at[read.row_axis]) and known_at_most(
            write.memory.type.extents[axis], most
        )
