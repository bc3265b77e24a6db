"""`out=`: the array that a caller gives for a result, by one rule for all operations.

An `out` is written in place, whatever its strides, or refused before anything runs. It has the result's shape, is on
the device of the inputs, and can be written: it is not read-only, no two of its elements share an address, and none
overlaps an input. A float result goes into floats, an integer one into integers or floats. Where the kernel's view of
it does not exist (axes that do not collapse into one), the kernel writes a temporary array, which is copied into `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tilewave.errors import NOWHERE, CallError, here
from tilewave.ir.types import BOOL, DType
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, folded, folds, spelled
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.call_checks import check_call
from tilewave.runtime.remedies import fresh

INSTEAD = "pass an out of the result's shape and dtype, or none: it is allocated then"


def prepared(
    caller: str, lib: ArrayLibrary, out: Array | None, shape: Shape, dtype: DType, inputs: Mapping[str, Array | None]
) -> Array:
    """Return the array for a result: `out`, which is refused where it cannot be written in place, or a new one.

    The result is on the device of the first of the inputs, which are checked as well.
    """
    given = {name: array for name, array in inputs.items() if array is not None}
    like = next(iter(given.values()))
    if out is None:
        return lib.empty(shape, dtype, like)
    want_shape(caller, out, shape)
    held = _dtype(caller, lib, "out", out)
    if held == BOOL or (dtype.is_float and not held.is_float):
        instead = fresh(Parameter("out", shape, dtype, True), out, lib.device(like))
        what = f"{caller}: out is {held}, but the result is {dtype}"
        raise CallError(what, loc=here(), remedy=f"pass {instead}, or none: it is allocated then")
    want_apart(caller, lib, out, given)
    return out


def want_shape(caller: str, out: Array, shape: Sequence[int]) -> None:
    """Raise an error where an `out` does not have the shape of the result."""
    if tuple(out.shape) != tuple(shape):
        what = f"{caller}: out is {spelled(out.shape)}, but the result is {spelled(shape)}"
        remedy = f"pass an out of shape {tuple(shape)}, or none: it is allocated then"
        raise CallError(what, loc=here(), remedy=remedy)


def want_apart(caller: str, lib: ArrayLibrary, out: Array, inputs: Mapping[str, Array]) -> None:
    """Raise an error where an `out` is on another device, read-only, or overlaps itself or an input."""
    arrays = {**inputs, "out": out}
    parameters = [
        Parameter(name, tuple(array.shape), _dtype(caller, lib, name, array), name == "out")
        for name, array in arrays.items()
    ]
    device = lib.device(next(iter(inputs.values())))
    try:
        check_call(caller, parameters, tuple(arrays.values()), device, NOWHERE)
    except CallError as error:  # looking for the author's line costs more than the check
        raise error.at(here()) from None


def _dtype(caller: str, lib: ArrayLibrary, name: str, array: Array) -> DType:
    """Return the dtype of a call's array; for an `out` that no kernel takes, the error advises no cast."""
    try:
        return lib.dtype(caller, name, array)
    except CallError as error:
        raise error if name != "out" else CallError(error.what, loc=here(), remedy=INSTEAD) from None


class WrittenResult(NamedTuple):
    """The array that a kernel writes for a result, and the work after it, if any."""

    array: Array
    after: Callable[[], None] | None = None


def written(lib: ArrayLibrary, found: Array, kept: int = 1) -> WrittenResult:
    """Return a result with all axes but the last `kept` as one: a view, or a temporary array that is copied back."""
    if folds(lib, found, kept):
        return WrittenResult(folded(found, kept))
    temporary = lib.empty(tuple(found.shape), lib.dtype("out", "out", found), found)

    def copy_back() -> None:
        found[...] = temporary

    return WrittenResult(folded(temporary, kept), copy_back)
