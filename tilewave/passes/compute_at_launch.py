"""What depends on the sizes of a call alone is computed once, by whoever launches the kernel.

    %across = mul(%c4, %cols)                     %across = launch() : index do () {
    …                                                 %c = const() {value = 4} : index
    %band = floor_div(%w, %across)            →       %m = mul(%c, %cols) : index
                                                      yield(%m)
                                                  }
                                                  %band = floor_div(%w, %across)

A kernel whose sizes are all known has nothing of that kind left: `simplify` has computed it.
"""

from __future__ import annotations

from tilewave.ir.core import Kernel
from tilewave.ir.launch import at_launch


def compute_at_launch(kernel: Kernel) -> Kernel:
    return at_launch(kernel)
