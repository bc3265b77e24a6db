"""The gradients of activation(gate) · up, of tokens that were copied to their experts and came back weighted."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.call import power_of_two_for
from tilewave.ir.types import I32, DType
from tilewave.kernels.activations import ACTIVATIONS
from tilewave.kernels.indexed import D, T, V, array_of
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.ragged import K
from tilewave.kernels.rows import arithmetic_of
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast
from tilewave.lang.symbols import sym
from tilewave.lang.types import Indices, RegisterType
from tilewave.records import dataclass

PAIR = sym.PAIR
TOKENS, STEP = 4, 512
"""The tokens of a workgroup, one row of each, and the columns of a step."""


@dataclass(frozen=True)
class GatedForm:
    """The activation, the dtype of rows, and that of the weights of tokens."""

    activation: str
    dtype: DType
    weights: DType


@cache
def gated_backward_kernel(step: int, form: GatedForm) -> WaveKernel:
    """Return the kernel from the gradient of results to those of both products and of weights.

    Token t has the rows slots[t, k]. In row v, `both` are gate and up, and `grad` is the gradient of the hidden numbers
    where the weight is 1. Written are `hidden`, which is weight · activation(gate) · up, the gradient of both, and the
    gradient of the weights, the sum of grad · activation(gate) · up along a row.
    """
    of = arithmetic_of("gated_backward", both=form.dtype, weights=form.weights)
    activation = ACTIVATIONS[form.activation]

    def backward(to: Any) -> None:
        row, weight = read(to.slots), cast(read(to.weights), of)

        @iterate(D, init_args=[RegisterType((T, K), of)(0)])
        def total(so_far: Any) -> Any:
            gate, up = (cast(read(to.both, at={V: row, PAIR: i}), of) for i in (0, 1))
            grad, (value, slope) = cast(read(to.grad, at={V: row}), of), activation.both(gate, form.dtype)
            weighted, hidden = grad * weight, value * up
            write(cast(weighted * up * slope, form.dtype), to.grad_both, at={V: row, PAIR: 0})
            write(cast(weighted * value, form.dtype), to.grad_both, at={V: row, PAIR: 1})
            write(cast(hidden * weight, form.dtype), to.hidden, at={V: row})
            return (grad * hidden).sum(dim=D, acc=so_far)

        write(cast(total, form.weights), to.grad_weights)

    pairs, rows = array_of(form.dtype, V, PAIR, D), array_of(form.dtype, V, D)
    weights, slots = array_of(form.weights, T, K), array_of(I32, T, K, contract=Indices(unique=True))
    read_from = {"both": pairs, "grad": rows, "slots": slots, "weights": weights}
    written = {"grad_both": pairs, "hidden": rows, "grad_weights": weights}
    constraints = [WorkgroupConstraint(T, TOKENS, 0), WorkgroupConstraint(K, 1, 1), TilingConstraint(D, step)]
    return kernel_of("gated_backward", constraints, {**read_from, **written}, backward)


def step_for(columns: int) -> int:
    """Return the columns of a step, for rows of so many."""
    return min(STEP, power_of_two_for(columns))
