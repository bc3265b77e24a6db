"""TMA loads of the rows that a product uses, where `narrow_mma` leaves out columns of it.

    copy(%x, [%first, %k], %x_shared)        →  copy(%x, [%first, %k], %x_shared, …, [%left])
    %b = read(%x_shared, [%o, %o])              %b = read(%x_shared, [%o, %o])
    %z = mma(%a, %b, %acc, [%left])             %z = mma(%a, %b, %acc, [%left])

Rows of the next group need not be loaded: they would take bandwidth between L2 and the SM, which other loads need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Copy, Loop, Mma, Read
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk


def load_used_rows(kernel: Kernel) -> Kernel:
    """Return the kernel whose copies by TMA say which of their rows a product uses."""

    def trim(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop):
            return None
        used = dict(_used_rows(op, kernel))
        if not any(isinstance(inner, Copy) and inner.to in used for inner in op.body.ops):
            return None
        ops = (
            replace(inner, rows_used=used[inner.to]) if isinstance(inner, Copy) and inner.to in used else inner
            for inner in op.body.ops
        )
        return [replace(op, body=replace(op.body, ops=tuple(ops)))]

    return rewrite(kernel, trim)


def _used_rows(loop: Loop, kernel: Kernel) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Yield shared memories that only products of a loop use, as second operands, and the number of their rows used."""
    for read in loop.body.ops:
        if not isinstance(read, Read) or not is_in(read.memory, "shared"):
            continue
        products = [op for op in kernel.users[read.result] if isinstance(op, Mma)]
        used = {op.columns_used for op in products if op.b == read.result and op.a != read.result}
        alone = [op for op in walk(kernel.body) if read.memory in op.read] == [read]
        in_rows = read.axes == tuple(sorted(read.axes)) and read.result.type.shape == read.memory.type.shape
        if alone and in_rows and len(products) == len(kernel.users[read.result]) and len(used) == 1:
            (rows,) = used
            if rows:
                yield read.memory, rows
