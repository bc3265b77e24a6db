"""Matrix products in any layout, batched and broadcast like `torch.matmul`, and linear layers.

Each call becomes a product of two matrices, or of two stacks of matrices, by a kernel for their layouts: row-major or
column-major. Nothing is copied where views suffice.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import F32, I8, I32, DType
from tilewave.kernels.activations import Activation, activation_named
from tilewave.kernels.gradients import activation_backward_kernel
from tilewave.kernels.linear import BATCH, ProductForm, product_kernel
from tilewave.kernels.products import K, M, N, accumulator
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.symbols import Symbol
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, broadcast, folded, folds, spelled, target_of
from tilewave.ops.digits import Digits, instruction_for
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only
from tilewave.ops.results import prepared, written
from tilewave.records import dataclass


def result_dtype(dtype: DType) -> DType:
    """Return the default dtype of a product: sums of one-byte operands need a wider one."""
    if dtype == I8:
        return I32
    return F32 if dtype.bytes == 1 else dtype


# the layout of a call -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """Two stacks of matrices and the stack for their products, all with the same batch axes."""

    a: Array
    b: Array
    c: Array

    @property
    def batches(self) -> int:
        return len(self.c.shape) - 2


def _matrices(caller: str, lib: ArrayLibrary, a: Array, b: Array) -> tuple[Array, Array, Shape]:
    """Return both operands with at least two axes, and their common batch shape."""
    if not len(a.shape) or not len(b.shape):
        raise CallError(f"{caller}: {'b' if len(a.shape) else 'a'} is a single number", loc=here(), remedy="write *")
    a = a[None, :] if len(a.shape) == 1 else a
    b = b[:, None] if len(b.shape) == 1 else b
    if a.shape[-1] != b.shape[-2]:
        unequal = f"a has {a.shape[-1]} columns, but b {b.shape[-2]} rows"
        what = f"{caller}: {unequal}; a is {spelled(a.shape)}, b is {spelled(b.shape)}"
        raise CallError(what, loc=here(), remedy="they must be equal; write b.swapaxes(-1, -2) if b is transposed")
    if len(a.shape) == 2 == len(b.shape):
        return a, b, ()
    try:
        batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        what = f"{caller}: the batches of a, {spelled(a.shape)}, and of b, {spelled(b.shape)}, do not go together"
        raise CallError(what, loc=here(), remedy="leading axes must be equal, or 1, or missing") from None
    return a, b, batch


def product_shape(a: Shape, b: Shape, batch: Shape) -> Shape:
    """Return the shape of `matmul`'s result: an operand of one axis adds none."""
    return (*batch, *((a[-2],) if len(a) > 1 else ()), *((b[-1],) if len(b) > 1 else ()))


def _operands(lib: ArrayLibrary, a: Array, b: Array, c: Array, batch: Shape) -> Operands:
    """Collapse batch axes by views: all of them where b has none, else into one where strides are even."""
    if not batch:
        return Operands(a, b, c)
    if len(b.shape) == 2 and all(folds(lib, x) for x in (a, c)):
        return Operands(folded(a), b, folded(c))
    a, b = (lib.broadcast(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if all(folds(lib, x, 2) for x in (a, b, c)):
        return Operands(*(folded(x, 2) for x in (a, b, c)))
    return Operands(a, b, c)


def _by_columns(lib: ArrayLibrary, x: Array) -> bool:
    """Return whether a matrix is column-major; a contiguous column is, as its memory is one row."""
    *_, down, across = lib.steps(x)
    return bool(down == 1 and (across != 1 if x.shape[-1] != 1 else x.shape[-2] != 1))


def laid(lib: ArrayLibrary, x: Array, rows: Symbol, columns: Symbol) -> tuple[Array, tuple[Symbol, Symbol]]:
    """Return the matrix in its memory order, and the symbols of its axes."""
    return (x.swapaxes(-1, -2), (columns, rows)) if _by_columns(lib, x) else (x, (rows, columns))


# products -----------------------------------------------------------------------------------------------------------


def _matmul(lib: ArrayLibrary, a: Array, b: Array, out: Array | None, digits: Digits) -> CallWork:
    x, y, batch = _matrices("matmul", lib, a, b)
    held = common_dtype("matmul", lib, a=a, b=b)
    shape = product_shape(a.shape, b.shape, batch)
    found = prepared("matmul", lib, out, shape, result_dtype(held), {"a": a, "b": b})
    if not prod(found.shape):
        return CallWork({"out": found})
    to = _operands(lib, x, y, _as_matrices(found, a, b), batch)
    if to.batches > len(BATCH):
        return _of_copies(lib, found, to, digits)
    return CallWork({"out": found}, _launch(lib, to, digits, ("a", "b")))


matmul = Operated("matmul", ("a", "b", "out?"), _matmul)
"""The product of a and b, in `out` or in a new array; a further argument is the precision of operands."""


def _as_matrices(c: Array, a: Array, b: Array) -> Array:
    """Return a view of a result with the axes that operands of one axis leave out."""
    c = c[..., None] if len(b.shape) == 1 else c
    return c[..., None, :] if len(a.shape) == 1 else c


def _of_copies(lib: ArrayLibrary, found: Array, to: Operands, digits: Digits) -> CallWork:
    """Return the product of copies with one batch axis, where the batch has more axes than a grid."""
    c, after = written(lib, to.c, 2)
    of_copies = Operands(folded(to.a, 2), folded(to.b, 2), c)
    return CallWork({"out": found}, _launch(lib, of_copies, digits, ("a", "b")), after=after)


def _launch(
    lib: ArrayLibrary,
    to: Operands,
    digits: Digits,
    names: tuple[str, str],
    activation: str | None = None,
    **beside: Array | None,
) -> KernelLaunch:
    """Return the launch for operands of these names, with a bias, a residual or sums where given."""
    by_columns = _by_columns(lib, to.a), _by_columns(lib, to.b)
    dtype, out = lib.dtype("matmul", "a", to.a), lib.dtype("matmul", "out", to.c)
    others = given_only(**beside)
    dtypes = tuple([(name, lib.dtype("linear", name, array)) for name, array in others.items()])
    kernel = _kernel_of(dtype, out, by_columns, to.batches, activation or "", dtypes, lib.device(to.c), digits)
    sides = (x.swapaxes(-1, -2) if is_swapped else x for x, is_swapped in zip((to.a, to.b), by_columns, strict=True))
    return KernelLaunch(kernel, {**dict(zip(names, sides, strict=True)), **others, "out": to.c})


def product_of(lib: ArrayLibrary, digits: Digits, **matrices: Array) -> KernelLaunch:
    """Return the launch that multiplies the first two of three matrices, and writes the third."""
    *names, result = matrices
    a, b, c = matrices.values()
    common_dtype("matmul", lib, a=a, b=b)
    launch = _launch(lib, Operands(a, b, c), digits, (names[0], names[1]))
    return launch._replace(arrays={result if name == "out" else name: x for name, x in launch.arrays.items()})


@cache
def _kernel_of(
    dtype: DType,
    out: DType,
    by_columns: tuple[bool, bool],
    batches: int,
    activation: str,
    beside: tuple[tuple[str, DType], ...],
    device: str,
    digits: Digits,
) -> WaveKernel:
    """Return the kernel for operands that are column-major or not, and for further arrays of these dtypes."""
    a_axes, b_axes = (K, M) if by_columns[0] else (M, K), (N, K) if by_columns[1] else (K, N)
    product = ProductForm(dtype, out, a_axes, b_axes, BATCH[:batches], activation=activation, **dict(beside))
    return product_kernel(product, instruction_for(target_of(product.name, device), dtype, digits))


def matmul_kernel(lib: ArrayLibrary, a: Array, b: Array) -> WaveKernel:
    """The kernel that multiplies a and b."""
    x, y, batch = _matrices("matmul", lib, a, b)
    c = lib.empty((*batch, x.shape[-2], y.shape[-1]), result_dtype(common_dtype("matmul", lib, a=a, b=b)), a)
    return _launch(lib, _operands(lib, x, y, c, batch), lib.digits(), ("a", "b")).kernel


def common_dtype(caller: str, lib: ArrayLibrary, **arrays: Array) -> DType:
    (first, one), (second, other) = ((name, lib.dtype(caller, name, array)) for name, array in arrays.items())
    if one != other:
        what = f"{caller}: {first} is {one}, but {second} is {other}"
        raise DTypeError(what, loc=here(), remedy="both have one dtype; cast one of them")
    if one.is_int and one != I8:
        what = f"{caller}: there are no products of {one}"
        raise DTypeError(what, loc=here(), remedy="pass floats, or i8, whose sums are i32")
    return one


# linear layers ------------------------------------------------------------------------------------------------------


def _linear(
    lib: ArrayLibrary,
    x: Array,
    weight: Array,
    bias: Array | None,
    residual: Array | None,
    out: Array | None,
    activation: str | None,
    keeps: bool,
    digits: Digits,
) -> CallWork:
    results = {"out": _layer_result(lib, x, weight, bias, activation, residual, out)}
    if keeps:
        results["sums"] = _layer_result(lib, x, weight, bias, activation, residual, None)
    added = None if residual is None else _residual(lib, residual, results["out"])
    if not prod(results["out"].shape):
        return CallWork(results)
    to, after = written(lib, results["out"])
    layer = _layer(lib, x, weight, bias, activation, added, digits, to, results.get("sums"))
    return CallWork(results, layer, after=after)


linear = Operated("linear", ("x", "weight", "bias?", "residual?", "out?"), _linear)
"""activation(x · weightᵀ + bias) + residual; further arguments are the activation, whether its input is returned as
well, and the precision of operands."""


def linear_kernel(
    lib: ArrayLibrary, x: Array, weight: Array, bias: Array | None, activation: str | None, residual: Array | None
) -> WaveKernel:
    """Return the kernel of a linear layer."""
    found = _layer_result(lib, x, weight, bias, activation, residual, None)
    added = None if residual is None else _residual(lib, residual, found)
    return _layer(lib, x, weight, bias, activation, added, lib.digits(), folded(found)).kernel


def _residual(lib: ArrayLibrary, residual: Array, out: Array) -> Array:
    """Return the residual as rows of the result's shape."""
    return folded(broadcast("linear", lib, "residual", residual, tuple(out.shape)))


def _layer(
    lib: ArrayLibrary,
    x: Array,
    weight: Array,
    bias: Array | None,
    activation: str | None,
    added: Array | None,
    digits: Digits,
    out: Array,
    sums: Array | None = None,
) -> KernelLaunch:
    """Return the launch of a layer that writes the rows `out`."""
    to = Operands(folded(x), weight.swapaxes(0, 1), out)
    kept = None if sums is None else folded(sums)
    return _launch(lib, to, digits, ("x", "weight"), activation, bias=bias, residual=added, sums=kept)


def _layer_result(
    lib: ArrayLibrary,
    x: Array,
    weight: Array,
    bias: Array | None,
    activation: str | None,
    residual: Array | None,
    out: Array | None,
) -> Array:
    """Return the array for the result, after all checks of the arguments."""
    applied = None if activation is None else activation_named("linear", activation)
    if len(weight.shape) != 2 or not len(x.shape) or x.shape[-1] != weight.shape[1]:
        what = f"linear: x is {spelled(x.shape)}, and weight is {spelled(weight.shape)}"
        remedy = "weight has a row for each output and a column for each input, which is the last axis of x"
        raise CallError(what, loc=here(), remedy=remedy)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        what = f"linear: bias is {spelled(bias.shape)}, but weight has {weight.shape[0]} rows"
        raise CallError(what, loc=here(), remedy="bias has a number for each output")
    dtype = common_dtype("linear", lib, x=x, weight=weight)
    _want_same_kind(lib, accumulator(dtype), applied, bias=bias, residual=residual)
    shape = (*x.shape[:-1], weight.shape[0])
    inputs = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return prepared("linear", lib, out, shape, result_dtype(dtype), inputs)


def _want_same_kind(lib: ArrayLibrary, sums: DType, activation: Activation | None, **added: Array | None) -> None:
    """Raise an error where the epilogue of a linear layer is of another kind than the products' sums.

    Floats converted to integer sums would lose their fractions, and wide integers their upper bits.
    """
    for name, array in given_only(**added).items():
        dtype = lib.dtype("linear", name, array)
        if dtype.kind != sums.kind or (sums.is_int and dtype.bits > sums.bits):
            what = f"linear: {name} is {dtype}, but the sums of products that it is added to are {sums}"
            remedy = f"cast x and weight to {dtype} first" if dtype.is_float else f"cast {name} to {sums} first"
            raise DTypeError(what, loc=here(), remedy=remedy)
    if activation is not None and sums.is_int and not activation.takes_integers:
        what = f"linear: the sums of products are {sums}, but {activation.name} takes floats"
        raise DTypeError(what, loc=here(), remedy="cast x and weight to floats, or apply the activation to the result")


# backward -----------------------------------------------------------------------------------------------------------


def _activation_backward(lib: ArrayLibrary, sums: Array, grad: Array, activation: str) -> CallWork:
    activation_named("activation_backward", activation)
    found = lib.empty(tuple(sums.shape), lib.dtype(activation, "sums", sums), sums)
    if not prod(sums.shape):
        return CallWork({"grad_sums": found})
    kernel = activation_backward_kernel(activation, *(lib.dtype(activation, "sums", x) for x in (sums, grad, found)))
    arrays = {"sums": folded(sums), "grad": folded(grad), "grad_sums": folded(found)}
    return CallWork({"grad_sums": found}, KernelLaunch(kernel, arrays))


activation_backward = Operated("activation_backward", ("sums", "grad"), _activation_backward)
"""The gradient of an activation's input: its slope times the gradient of its output; an argument names it."""
