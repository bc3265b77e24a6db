"""Array libraries: how results are allocated, and how an array's dtype, device and strides are read.

Each operation is written once, over the methods of `ArrayLibrary`. The implementation for torch is in
`tilewave.torch`, which the package's hook imports with the first torch tensor of a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewave.backend.targets import target_on
from tilewave.errors import CallError, here
from tilewave.hooks import Hooks
from tilewave.ir.types import DTYPES, INTERNAL, DType
from tilewave.ops.digits import Digits
from tilewave.runtime.arrays import HOST, view
from tilewave.runtime.dynamic_calls import Allocation, DynamicCalls
from tilewave.runtime.foreign_arrays import library
from tilewave.runtime.remedies import as_array, described

Array = Any
Shape = tuple[int, ...]
F = TypeVar("F", bound=Callable[..., Any])
_KNOWN = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype not in INTERNAL}


class ArrayLibrary(Protocol):
    """What operations need from an array library."""

    def dtype(self, caller: str, name: str, array: Array) -> DType:
        """Return the dtype of an array's elements; an error where no kernel takes them."""

    def steps(self, array: Array) -> Shape:
        """Return an array's strides, in elements."""

    def device(self, array: Array) -> str:
        """Return an array's device: `cpu`, `cuda:1`."""

    def empty(self, shape: Shape, dtype: DType, like: Array) -> Array:
        """Return a new row-major array on the device of another."""

    def broadcast(self, array: Array, shape: Shape) -> Array:
        """Return a view of an array in which axes of one element are broadcast to `shape`."""

    def strided(self, array: Array, shape: Shape, steps: Shape) -> Array:
        """Return a view that begins where the array does, with strides in elements."""

    def address(self, array: Array) -> int:
        """Return the address of an array's first element."""

    def layout(self, arrays: tuple[Array | None, ...]) -> Any:
        """Return a key that is equal for arrays with the same layout: shape, strides, dtype, device, and the alignment
        of addresses; None where it cannot be read quickly. An array may be None."""

    def allocation(self, like: Array) -> Callable[[], Array]:
        """Return a function that makes arrays such as `like`, which `empty` made."""

    def bare(self, arrays: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """Return the arrays as kernels take them."""

    def dynamic_calls(self) -> DynamicCalls | None:
        """Return what replays calls of any sizes by machine code; None where nothing can."""

    def heads(self, arrays: tuple[Array | None, ...]) -> tuple[tuple[int, int], ...]:
        """Return what describes a call's arguments to machine code; empty where they are not on one GPU."""

    def result_allocation(self, like: Array) -> Allocation:
        """Return how machine code allocates arrays of the dtype and on the device of another."""

    def digits(self) -> Digits:
        """Return the precision that products may use for their operands."""


class NumpyLike:
    """numpy, and cupy, which has the same functions."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def dtype(self, caller: str, name: str, array: Array) -> DType:
        found = _KNOWN.get(array.dtype)
        if found is None:
            what = f"{caller}: {name} is {array.dtype}, which no kernel takes"
            raise CallError(what, loc=here(), remedy=f"pass {name}.astype(np.float32)")
        return found

    def steps(self, array: Array) -> Shape:
        return tuple(stride // array.itemsize for stride in array.strides)

    def device(self, array: Array) -> str:
        return HOST if type(array) is np.ndarray else view(array).device

    def empty(self, shape: Shape, dtype: DType, like: Array) -> Array:
        return self.module.empty(shape, dtype.numpy)

    def broadcast(self, array: Array, shape: Shape) -> Array:
        return self.module.broadcast_to(array, shape)

    def strided(self, array: Array, shape: Shape, steps: Shape) -> Array:
        strides = [step * array.itemsize for step in steps]
        return self.module.lib.stride_tricks.as_strided(array, shape, strides)

    def address(self, array: Array) -> int:
        return view(array).pointer

    def layout(self, arrays: tuple[Array | None, ...]) -> Any:
        return numpy_layout(arrays)

    def allocation(self, like: Array) -> Callable[[], Array]:
        if like.flags.c_contiguous:
            return partial(self.module.empty, like.shape, like.dtype)
        order = sorted(range(len(like.shape)), key=lambda axis: -like.strides[axis])
        shape, back = [like.shape[axis] for axis in order], [order.index(axis) for axis in range(len(order))]
        return lambda: self.module.empty(shape, like.dtype).transpose(back)

    def bare(self, arrays: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        return arrays

    def dynamic_calls(self) -> None:
        return None

    def heads(self, arrays: tuple[Array | None, ...]) -> tuple[()]:
        return ()

    def result_allocation(self, like: Array) -> Allocation:
        raise NotImplementedError("machine code allocates no numpy arrays")

    def digits(self) -> Digits:
        return Digits.ALL


NUMPY = NumpyLike(np)
_ndarray = np.ndarray
_CHECKED_FLAGS = 0x500
"""numpy's flags ALIGNED and WRITEABLE, which decide whether a kernel takes an array."""


def numpy_layout(arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a key that is equal for numpy arrays of equal layouts, or None for each; None where one is no such array.

    No kernel for a host depends on the alignment of addresses.
    """
    found: list[Any] = []
    for array in arrays:
        if type(array) is _ndarray:
            found.append((array.shape, array.strides, array.dtype, array.flags.num & _CHECKED_FLAGS))
        elif array is None:
            found.append(None)
        else:
            return None
    return tuple(found)


# collapsed axes -------------------------------------------------------------------------------------------------------


def folded(x: Array, kept: int = 1) -> Array:
    """Return the array with all axes but the last `kept` collapsed into one; a copy where strides allow no view."""
    if len(x.shape) == kept + 1:
        return x
    return x.reshape(prod(x.shape[: len(x.shape) - kept]), *x.shape[len(x.shape) - kept :])


def folds(lib: ArrayLibrary, x: Array, kept: int = 1) -> bool:
    """Return whether `folded` gives a view: whether the axes are evenly strided, so that they collapse into one."""
    count = len(x.shape) - kept
    return evenly_strided(x.shape[:count], lib.steps(x)[:count])


def evenly_strided(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Return whether axes with these strides collapse into one."""
    longer = [(size, step) for size, step in zip(shape, steps, strict=True) if size != 1]
    return 0 in shape or all(step == size * inner for (_, step), (size, inner) in pairwise(longer))


def broadcast(caller: str, lib: ArrayLibrary, name: str, array: Array, shape: Shape) -> Array:
    """Return a view of an array in which axes that are missing, or have one element, are as long as `shape` says."""
    axes = len(array.shape)
    ends = shape[len(shape) - axes :] if axes <= len(shape) else ()
    if len(ends) != axes or any(own not in (1, size) for own, size in zip(array.shape, ends, strict=True)):
        what = f"{caller}: {name} is {spelled(array.shape)}, and cannot be broadcast to {spelled(shape)}"
        raise CallError(
            what, loc=here(), remedy="its axes, counted from the last, must be equal to these, 1, or missing"
        )
    return lib.broadcast(array, shape)


def spelled(shape: Sequence[int]) -> str:
    """Return a shape as messages show it: `3x70x50`."""
    return "x".join(map(str, shape)) or "one number"


# whose arrays a call has ----------------------------------------------------------------------------------------------


class _Door:
    """The torch implementation of the operations, once it is imported."""

    operators: Any = None


def torch_operators() -> Any:
    """Return the operations on torch tensors, differentiable and known to `torch.compile`."""
    _open_door()  # always: torch.compile would not look again once it has traced a call without operators
    return _Door.operators


def constant_for_compilers(function: F) -> F:
    """Let torch's compiler run a function as it traces a call, and take its result for a constant.

    As `torch.compiler.assume_constant_result`, which imports the compiler and so takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_for_compilers
def _open_door() -> None:
    """Import torch's operators, which no trace can."""
    if _Door.operators is None:
        _Door.operators = Hooks.torch_operators()


def are_torchs(*arrays: Array) -> bool:
    """Return whether one of the arrays is a torch tensor, or of a class derived from it."""
    for array in arrays:  # noqa: SIM110  `any` of a generator takes three times as long
        if hasattr(array, "__torch_function__"):
            return True
    return False


class ArrayArguments:
    """The arrays that an operation takes: their names in order, and which of them may be None."""

    def __init__(self, caller: str, names: Sequence[str]) -> None:
        """Names that end with `?` are of arrays that may be None."""
        self.caller = caller
        self.names = tuple(name.removesuffix("?") for name in names)
        self.required = tuple(not name.endswith("?") for name in names)

    def want_all(self, arrays: Sequence[Array | None]) -> None:
        """Raise an error where None is given for an array that the operation cannot do without."""
        for name, required, array in zip(self.names, self.required, arrays, strict=True):
            if required and array is None:
                what = f"{self.caller}: {name} is None, not an array"
                raise CallError(what, loc=here(), remedy=as_array(None))


def taken(of: ArrayArguments, *arrays: Array | None) -> tuple[ArrayLibrary, list[Any]]:
    """Return the library of a call's arrays, and each as an array of that library; None stays None."""
    of.want_all(arrays)
    named = zip(of.names, arrays, strict=True)
    if "cupy" in {library(array) for array in arrays}:
        return NumpyLike(sys.modules["cupy"]), [_as_cupy(of.caller, name, array) for name, array in named]
    return NUMPY, [_as_numpy(of.caller, name, array) for name, array in named]


def _as_cupy(caller: str, name: str, array: Array | None) -> Array:
    if array is not None and library(array) != "cupy":
        what = f"{caller}: {name} is {described(array)}, but others of this call are cupy's"
        raise CallError(what, loc=here(), remedy=f"pass cupy.asarray({name})")
    return array


def _as_numpy(caller: str, name: str, array: Array | None) -> Array:
    """Return a plain numpy view of an array in host memory: a derived class may index otherwise."""
    if array is None or type(array) is np.ndarray:
        return array
    try:
        return view(array, f"{caller}: {name}").numpy()
    except CallError as error:
        raise error.at(here()) from None


def target_of(caller: str, device: str) -> str:
    """Return the target whose code runs on a device."""
    found = _TARGETS.get(device)
    if found is None:
        found = _TARGETS[device] = target_on(caller, device).name
    return found


_TARGETS: dict[str, str] = {}
