"""Hoist scalars that depend only on the sizes of a call out of the kernel: the launch computes them once.

    %across = mul(%c4, %cols)                     %across = launch() : index do () {
    …                                                 %c = const() {value = 4} : index
    %band = floor_div(%w, %across)            →       %m = mul(%c, %cols) : index
                                                      yield(%m)
                                                  }
                                                  %band = floor_div(%w, %across)

A kernel whose sizes are all static has no such scalars: `simplify` has folded them.
"""

from __future__ import annotations

from tilewave.ir.core import Kernel
from tilewave.ir.launch import at_launch


def hoist_to_launch(kernel: Kernel) -> Kernel:
    return at_launch(kernel)
