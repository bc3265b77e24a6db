"""Which memories a kernel reads and writes."""

from __future__ import annotations

from tilewave.ir.core import Kernel, Value
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk


def touched(kernel: Kernel) -> tuple[set[Value], set[Value]]:
    """Return the global memories that a kernel writes, and those it reads."""
    ops = list(walk(kernel.body))
    written, read = (v for op in ops for v in op.written), (v for op in ops for v in op.read)
    return {v for v in written if is_in(v, "global")}, {v for v in read if is_in(v, "global")}
