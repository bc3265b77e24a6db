"""The number of roundings of a kernel's result along its program, each of one unit of its dtype.

In any order of summation, k products and sums are k + 1 roundings; an elementwise op is one; a loop repeats those of
its body if it carries floats between iterations. Each is relative to numbers that may be larger than the
result, so the count is useful only together with a measure of how sensitive the result is to its inputs: see
`reference.py`.
"""

from __future__ import annotations

import math

import ml_dtypes

from tilewave.analysis.ranges import Ranges, ranges_of
from tilewave.bench.gpu import FLOAT8_UNIT
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Accumulate, Cast, Elementwise, Function, Loop, Mma, Scatter, While, Write
from tilewave.ir.rewrite import walk
from tilewave.ir.types import FLOAT8, DType, Memory
from tilewave.machine.matrix import WISHES

FUNCTION_UNITS = 4
"""What exp and its kind may be off by, in units in the last place."""


def unit(dtype: DType) -> float:
    """Return one unit in the last place, relative to the number: a matrix unit may truncate where a CPU rounds."""
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def smallest(dtype: DType) -> float:
    """The smallest number above zero."""
    return float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]


def rounding_error(kernel: Kernel) -> float:
    """All roundings that a result may have gone through, relative; its last cast, to an array's dtype, apart."""
    last = {op.tile for op in walk(kernel.body) if isinstance(op, (Write, Scatter))}
    longest = max((n for v in kernel.body.args if isinstance(v.type, Memory) for n in v.type.shape), default=1)
    return _Count(ranges_of(kernel), last, longest).block(kernel.body) + _ignored(kernel)


def casts_floats_to_integers(kernel: Kernel) -> bool:
    """Return whether a kernel casts floats to integers: a float near a rounding boundary may then become either one."""
    casts = (op for op in walk(kernel.body) if isinstance(op, Cast))
    return any(op.x.type.dtype.is_float and op.result.type.dtype.is_int for op in casts)


def _ignored(kernel: Kernel) -> float:
    """Return the relative error of the operand bits that the requested matrix instruction ignores."""
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
        """Return how many elements a reduction combines into one; 0 for other ops."""
        tiles = [v.type for v in op.operands if not isinstance(v.type, Memory)]
        given = max((math.prod(kind.shape) for kind in tiles), default=0)
        made = math.prod(op.result.type.shape)
        return given // made if given > made else 0
