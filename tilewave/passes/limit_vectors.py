"""Rows that begin or end within a wide load get narrower ones, and neighbouring lanes take neighbouring parts.

    16 bytes a lane, of f16       lane 0: 0 … 7      lane 1: 8 … 15     …   one load, if rows begin at multiples of 16
    2 bytes a lane                lane 0: 0, 32, …   lane 1: 1, 33, …   …   each load of a wave is one stretch

A lane that holds eight neighbours of an unaligned row would load them one by one, 16 bytes from the next lane's: each
load of a wave would touch as many sectors of memory as eight do here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewave.ir.core import Kernel


@dataclass(frozen=True)
class LimitVectors:
    """Lanes move at most so many neighbouring bytes at once."""

    most_bytes: int

    def __call__(self, kernel: Kernel) -> Kernel:
        return kernel if kernel.vector_bytes <= self.most_bytes else replace(kernel, vector_bytes=self.most_bytes)
