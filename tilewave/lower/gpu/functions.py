"""exp, tanh, erf and similar functions on GPUs: LLVM intrinsics where there are any, else f32 arithmetic.

tanh and erf are odd: near 0 a polynomial of the square times x keeps every digit, further out they come from exp. sin
and cos are in `angles`. The coefficients are Chebyshev fits; docs/language.md gives the error of each function.
What has no `case` here is composed of these, in a row of the common table of `numbers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewave.errors import TargetError
from tilewave.ir import ops as ir
from tilewave.ir.core import Op
from tilewave.ir.types import F32, DType
from tilewave.lower.elements import Written
from tilewave.lower.gpu.angles import rotated
from tilewave.lower.gpu.exponents import LOG2_E, ExponentArithmetic
from tilewave.lower.llvm import LlvmFunction
from tilewave.lower.numbers import elementwise, lowered

TANH = (
    0.9999999998085947,
    -0.33333328697554787,
    0.13333149251916343,
    -0.05394065623463232,
    0.02167009798825952,
    -0.008105866310147043,
    0.002079985650165747,
)
TANH_NEAR = 0.64
"""Below this, tanh is a polynomial of the square times x; from there on it comes from exp."""
ERF = (
    0.1283791670623615,
    -0.3761263847599041,
    0.11283782622052202,
    -0.02686543831002643,
    0.00522105341125974,
    -0.0008484396531994109,
    0.00011268253752911387,
    -9.673590379172707e-06,
)
ERF_REST = (
    -0.0005103066909946108,
    -1.6259750810894955,
    -0.920765003664171,
    -0.14865151355034334,
    0.03145842999817609,
    -0.004240958027596113,
    0.0002677267972171263,
)
"""log2(1 - erf(x)) for 1 < x < 4.1; beyond, erf is 1."""
ERF_FAR = 4.1
ABOUT_DIVIDED = "fdiv afn"
"""A division to about one unit in the last place, enough for a term subtracted from 1; a fifth of the instructions."""


def function(f: LlvmFunction, op: Op, x: str, dtype: DType, lanes: int, known: Mapping[str, str]) -> str:
    """Return a function of f32; of f64 only those that the chip has: square root and roundings."""
    if isinstance(op, (ir.Sqrt, ir.Rsqrt, ir.Rounding)):
        return elementwise(f, op, [x], dtype, lanes)
    if dtype != F32:
        raise TargetError(
            f"{op.name}: this chip computes it in f32, not in {dtype}", loc=op.loc, remedy="cast its argument to f32"
        )
    m = _Math(f, lanes, known)
    match op:
        case ir.Tanh():
            return m.tanh(x)
        case ir.Erf():
            return m.erf(x)
        case ir.Sin():
            return rotated(m, x, 0)
        case ir.Cos():
            return rotated(m, x, 1)
        case ir.Exp() | ir.Exp2() | ir.Exp2Flushed() | ir.ReciprocalFlushed() | ir.Log() | ir.Log2() | ir.Log10():
            return m.exponential(op.name, x)
        case _:  # composed of those above
            return lowered(Written(f, op, [x], dtype, lanes, m.exponential))


class _Math(ExponentArithmetic):
    """The functions on a vector of f32."""

    def tanh(self, x: str) -> str:
        size = self.call("fabs", x)
        near = self.do("fmul", x, self.polynomial(self.do("fmul", x, x), TANH))
        grown = self.do("fadd", self.exponential("exp2", self.do("fmul", size, 2 * LOG2_E)), 1.0)
        far = self.do("fsub", self.number(1.0), self.do(ABOUT_DIVIDED, self.number(2.0), grown))
        return self.choose(self.below(size, TANH_NEAR), near, self.call("copysign", far, x))

    def erf(self, x: str) -> str:
        size = self.call("fabs", x)
        near = self.call("fma", x, self.polynomial(self.do("fmul", x, x), ERF), x)
        within = self.choose(self.below(size, ERF_FAR), size, self.number(ERF_FAR))
        rest = self.exponential("exp2", self.polynomial(within, ERF_REST))
        far = self.do("fsub", self.number(1.0), rest)
        # Unordered, so that NaN takes the polynomial.
        is_near = self.f.value(f"fcmp ult {self.kind} {size}, {self.number(1.0)}")
        return self.choose(is_near, near, self.call("copysign", far, x))
