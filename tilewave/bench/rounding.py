"""How far roundings may carry a kernel's result: its roundings along the program, each of a unit of its dtype.

Whatever order sums are taken in, k products and sums are k + 1 roundings; an elementwise op is one; a loop repeats
those of its body where it carries floats from round to round. Each is relative to numbers that may be larger than the
result, so the count is of use only beside a measure of how strongly the result follows what it is computed from: see
`reference.py`.
"""

from __future__ import annotations

import math

import ml_dtypes

from tilewave.analysis.ranges import Ranges
from tilewave.bench.gpu import FLOAT8_UNIT
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Accumulate, Cast, Elementwise, Function, Loop, Mma, Scatter, While, Write
from tilewave.ir.rewrite import walk
from tilewave.ir.types import FLOAT8, DType, Memory
from tilewave.machine.matrix import WISHES

FUNCTION_UNITS = 4
"""What exp and its kind may be off by, in units in the last place."""


def unit(dtype: DType) -> float:
    """Of the last place, relative to the number: a matrix unit may cut off what a processor rounds."""
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def smallest(dtype: DType) -> float:
    """The smallest number above zero."""
    return float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]


def rounding_error(kernel: Kernel) -> float:
    """All roundings that a result may have gone through, relative; its last cast, to an array's dtype, apart."""
    last = {op.tile for op in walk(kernel.body) if isinstance(op, (Write, Scatter))}
    longest = max((n for v in kernel.body.args if isinstance(v.type, Memory) for n in v.type.shape), default=1)
    return _Count(Ranges(kernel), last, longest).block(kernel.body) + _ignored(kernel)


def casts_floats_to_integers(kernel: Kernel) -> bool:
    """A float that lies on a whole number's edge may then become either of two."""
    casts = (op for op in walk(kernel.body) if isinstance(op, Cast))
    return any(op.x.type.dtype.is_float and op.result.type.dtype.is_int for op in casts)


def _ignored(kernel: Kernel) -> float:
    """What the matrix instruction asked for leaves out of both operands."""
    wish = WISHES.get(kernel.matrix)
    products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
    if wish is None or not wish.ignored_bits or not products:
        return 0.0
    return float(2 * 2**wish.ignored_bits * unit(products[0].a.type.dtype))


class _Count:
    def __init__(self, ranges: Ranges, last: set[Value], longest: int) -> None:
        self.ranges, self.last, self.longest = ranges, last, longest

    def block(self, block: Block) -> float:
        return sum(self.op(op) for op in block.ops)

    def op(self, op: Op) -> float:
        if isinstance(op, (Loop, While)):
            return self.rounds(op) * self.block(op.body)
        if not op.results or not op.result.type.dtype.is_float:
            return 0.0
        here = unit(op.result.type.dtype)
        if isinstance(op, (Mma, Accumulate)):
            kind = op.a.type
            return (kind.shape[-1] + 1) * (max(here, FLOAT8_UNIT) if kind.dtype in FLOAT8 else here)
        if isinstance(op, Cast) and op.result in self.last:
            return 0.0
        if isinstance(op, Function):
            return FUNCTION_UNITS * here
        return here if isinstance(op, Elementwise) else here * self.added_up(op)

    def rounds(self, op: Loop | While) -> int:
        """How often roundings pile up: once where no float goes from round to round."""
        if not any(v.type.dtype.is_float for v in op.init):
            return 1
        most = self.ranges.of(op.trips)[1] if isinstance(op, Loop) else self.longest
        return max(1, min(most, self.longest))

    def added_up(self, op: Op) -> int:
        """Of an op that makes fewer numbers of many: how many of them go into one."""
        tiles = [v.type for v in op.operands if not isinstance(v.type, Memory)]
        given = max((math.prod(kind.shape) for kind in tiles), default=0)
        made = math.prod(op.result.type.shape)
        return given // made if given > made else 0
