"""C = activation(A · B + bias) + residual: a kernel for each layout, dtype and epilogue."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.ir.types import DType
from tilewave.kernels.activations import ACTIVATIONS
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, accumulator
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, HardwareConstraint, TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.mma_types import MMAType
from tilewave.lang.ops import cast
from tilewave.lang.products import mma
from tilewave.lang.symbols import Symbol, sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.records import dataclass

BATCH = (sym.B, sym.B2, sym.B3)
"""The batch axes of a matrix: as many as a grid has besides rows and columns."""


@dataclass(frozen=True)
class ProductForm:
    """The dtypes and layouts of a product's operands, and its epilogue."""

    dtype: DType
    out: DType
    a_axes: tuple[Symbol, Symbol] = (M, K)
    b_axes: tuple[Symbol, Symbol] = (N, K)
    batch: tuple[Symbol, ...] = ()
    bias: DType | None = None
    activation: str = ""
    residual: DType | None = None
    sums: DType | None = None
    """The dtype of the array that receives the activation's input, if there is one."""

    @property
    def name(self) -> str:
        """The kernel's name in profilers."""
        beside = ("bias" if self.bias else "", self.activation, "residual" if self.residual else "")
        return "_".join(["linear", *filter(None, beside)]) if any(beside) else "matmul"


@cache
def product_kernel(product: ProductForm, asked: MMAType | None = None) -> WaveKernel:
    """Return the kernel of c = activation(a · b + bias) + residual, with the parts that the product has.

    Tile sizes are autotuned: the sizes of each call choose them. `asked` is the matrix instruction, where it decides
    the precision.
    """
    acc, batch = accumulator(product.dtype), product.batch

    def multiply(to: Any) -> None:
        @iterate(K, init_args=[RegisterType((*batch, M, N), acc)(0)])
        def total(sums: Any) -> Any:
            return mma(read(to.a), read(to.b), sums)

        found = total + cast(read(to.bias), acc) if product.bias else total
        if product.sums:
            write(cast(found, product.sums), to.sums)
        rounded_to = acc if product.residual else product.out
        found = ACTIVATIONS[product.activation].value(found, rounded_to) if product.activation else found
        found = found + cast(read(to.residual), acc) if product.residual else found
        write(cast(found, product.out), to.c)

    parameters = given(
        a=MemoryType((*batch, *product.a_axes), SHARED_ADDRESS_SPACE, product.dtype),
        b=MemoryType((*batch, *product.b_axes), SHARED_ADDRESS_SPACE, product.dtype),
        bias=product.bias and MemoryType((N,), GLOBAL_ADDRESS_SPACE, product.bias),
        residual=product.residual and _result(batch, product.residual),
        sums=product.sums and _result(batch, product.sums),
        c=_result(batch, product.out),
    )
    return kernel_of(product.name, _constraints(batch, asked), parameters, multiply)


def _result(batch: tuple[Symbol, ...], dtype: DType) -> MemoryType:
    return MemoryType((*batch, M, N), GLOBAL_ADDRESS_SPACE, dtype)


def _constraints(batch: tuple[Symbol, ...], asked: MMAType | None) -> list[Constraint]:
    return [
        WorkgroupConstraint(M, BLOCK_M, 0),
        WorkgroupConstraint(N, BLOCK_N, 1),
        *(WorkgroupConstraint(dim, 1, 2 + i) for i, dim in enumerate(batch)),
        TilingConstraint(K, BLOCK_K),
        *([HardwareConstraint(mma_type=asked)] if asked else []),
    ]
