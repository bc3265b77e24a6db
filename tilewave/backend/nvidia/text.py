"""PTX for ptxas: LLVM's text, with workarounds for instructions that ptxas miscompiles."""

from __future__ import annotations

import re

PAIR_SUM = re.compile(r"\badd\.[su]16x2\s+(%\w+), (%\w+), (%\w+);")
EACH_HALF = r"""{
	.reg .b16 %x0, %x1, %y0, %y1;
	mov.b32 	{%x0, %x1}, \2;
	mov.b32 	{%y0, %y1}, \3;
	add.s16 	%x0, %x0, %y0;
	add.s16 	%x1, %x1, %y1;
	mov.b32 	\1, {%x0, %x1};
	}"""


def sums_of_each_half(ptx: str) -> str:
    """Return PTX in which packed 16-bit additions are split into halves.

    Where a constant is added to a pair and only one half of the sum is used, ptxas (of CUDA 13.0, and of drivers) drops
    the addition and uses the operand instead. It keeps `min` and `max` of pairs, and packed floats.
    """
    spelled = PAIR_SUM.sub(EACH_HALF, ptx)
    assert not re.search(r"\badd\.[su]16x2", spelled), "a sum of pairs whose operands are no registers"
    return spelled
