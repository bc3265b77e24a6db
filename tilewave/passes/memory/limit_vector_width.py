"""Load unaligned rows in narrower vectors, and let neighbouring lanes load neighbouring elements.

    16 bytes a lane, of f16       lane 0: 0 … 7      lane 1: 8 … 15     …   one load, if rows begin at multiples of 16
    2 bytes a lane                lane 0: 0, 32, …   lane 1: 1, 33, …   …   each load of a wave is coalesced

A lane that holds eight neighbours of an unaligned row would load them one by one, 16 bytes from the next lane's: each
load of a wave would touch as many memory sectors as eight coalesced ones. Arrays whose rows are of another length keep
their width: a table of ten numbers a row does not narrow the loads of the rows that it names.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.core import Kernel
from tilewave.records import dataclass


@dataclass(frozen=True)
class LimitVectorWidth:
    """Limits the neighbouring bytes that a lane loads or stores at once to `most_bytes`, in `wide` memories to more."""

    most_bytes: int
    wide: tuple[tuple[str, int], ...] = ()

    def __call__(self, kernel: Kernel) -> Kernel:
        if kernel.vector_bytes <= self.most_bytes:
            return kernel
        return replace(kernel, vector_bytes=self.most_bytes, wide_rows=self.wide)
