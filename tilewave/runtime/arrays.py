"""Every kind of array argument as an `ArrayView`: its address, its layout, and the object that keeps it alive.

`view` takes numpy arrays, anything that speaks DLPack (torch, cupy, jax) and anything with `__cuda_array_interface__`
(numba), without copying a byte and without importing any of them. `call_checks` compares the views with the kernel's
parameters.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from tilewave.errors import CallError
from tilewave.forks import cached_property
from tilewave.ir.types import DTYPES, I64, INDEX, INTERNAL, DType
from tilewave.records import dataclass
from tilewave.runtime.array_view import HOST as HOST
from tilewave.runtime.array_view import ArrayView as ArrayView
from tilewave.runtime.array_view import NDArray
from tilewave.runtime.array_view import Shape as Shape
from tilewave.runtime.dlpack import Refused, UnknownDType, export, exports, row_major
from tilewave.runtime.foreign_arrays import address_of, cuda_interface, device_name, devices_of, look, place
from tilewave.runtime.overlaps import MOST_BYTES, impossible, layout_of, repeats
from tilewave.runtime.remedies import as_array, described

_KNOWN = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype not in INTERNAL}


# view ---------------------------------------------------------------------------------------------------------------


def view(array: object, name: str = "view: array") -> ArrayView:
    """Return the array's memory; a CallError, which calls it `name`, where it has none that a kernel could use."""
    try:
        return read_array(array)
    except Refused as refused:
        called = name.split()[-1]
        raise CallError(
            f"{name} {refused.what}", remedy=refused.remedy.replace("{name}", called)
        ) from refused.__cause__


def place_of(array: object) -> tuple[str, tuple[int, ...]]:
    """Return an array's device and shape; raise `Refused` for anything else."""
    if type(array) is _ndarray:
        return HOST, array.shape
    on_gpu = place(array)
    if on_gpu is not None:
        return on_gpu
    found = read_array(array)
    return found.device, found.shape


def quick_device(array: object) -> str:
    """Return the device of a numpy array, or of a library's array on a GPU; empty where `view` must find it."""
    return HOST if type(array) is _ndarray else device_name(array)


def quick_place(arrays: Sequence[object]) -> tuple[Any, ...] | None:
    """Return a key that is equal for calls with arrays on equal devices; None where they need the full check."""
    kinds: tuple[Any, ...] = (*map(type, arrays),)
    ask = devices_of(kinds)
    if ask is None:
        return (HOST, len(kinds)) if {*kinds} == _ONLY_NUMPY else None
    devices = ask(arrays)
    return None if -1 in devices else devices


def quick_address(arrays: Sequence[object]) -> Callable[[Any], int] | None:
    """Return a function that reads an array's address, for arrays of one library; None where `view` must do it."""
    kinds = {*map(type, arrays)}
    return numpy_address if kinds == _ONLY_NUMPY else address_of(frozenset(kinds))


_ONLY_NUMPY: set[Any] = {np.ndarray}


def read_array(array: object) -> ArrayView:
    """Return the array's memory; raise `Refused` where it has none that a kernel could use."""
    kind = type(array)  # not isinstance, which trusts an object's `__class__`
    if issubclass(kind, np.ma.MaskedArray):
        raise Refused("is masked, and a kernel would not see the mask", "pass {name}.filled(0), or {name}.data")
    found = _from_numpy(array) if issubclass(kind, _ndarray) else _from_others(array)
    why = impossible(found.pointer, found.shape, found.strides, found.dtype.bytes)
    if why:
        raise Refused(why, "pass an array that its own library can read")
    return found


def _from_others(array: object) -> ArrayView:
    guest = look(array)
    if guest is not None:
        return guest
    if exports(array):
        return export(array)
    interface = cuda_interface(array)
    if interface is not None:
        return _from_interface(interface, array)
    raise Refused(f"is {described(array)}, not an array", as_array(array))


def _from_numpy(array: Any) -> ArrayView:
    """Return the memory by numpy's own descriptors: a derived class may override shape, strides and flags."""
    held = _dtype_of(array)
    dtype = _KNOWN.get(held)
    if dtype is None:
        raise UnknownDType(_numpy_name(held))
    readonly = not _flags_of(array).writeable
    return ArrayView(numpy_address(array), _shape_of(array), _strides_of(array), dtype, HOST, readonly, array)


def numpy_data(array: NDArray) -> int:
    """Return a numpy array's address, which is where `_PROBE` has it."""
    return _word_at(id(array) + _HEADER_BYTES).value


def _data_asked(array: NDArray) -> int:
    return int(_ctypes_of(array).data)


_shape_of, _strides_of, _dtype_of, _flags_of, _ctypes_of = (
    vars(np.ndarray)[name].__get__ for name in ("shape", "strides", "dtype", "flags", "ctypes")
)

# The data pointer is the first field of numpy's array struct, right after Python's header: part of numpy's ABI, which
# every extension compiles in. Reading it takes 0.3 µs, asking `ctypes.data` or `__array_interface__` 2 µs.
_HEADER_BYTES = object.__basicsize__
_word_at = ctypes.c_size_t.from_address
# A view whose data pointer is not its base's: a numpy with another struct shows here, and is read the slow way.
_PROBE = np.zeros((3, 5), np.float32)[1:, ::-1]
numpy_address = numpy_data if numpy_data(_PROBE) == _data_asked(_PROBE) else _data_asked
_new, _ndarray = object.__new__, np.ndarray


def _from_interface(interface: dict[str, Any], array: object) -> ArrayView:
    """Read `__cuda_array_interface__`, versions 2 and 3; the device number stays unknown, as it does not give one."""
    if interface.get("mask") is not None:
        raise Refused("is masked, and a kernel would not see the mask", "pass {name} without its mask")
    try:
        held = np.dtype(_text(interface["typestr"]))
        shape, strides = _numbers(interface["shape"]), interface.get("strides")
        address, readonly = interface["data"]
        pointer = 0 if address is None else index(address)
        laid = None if strides is None else _numbers(strides)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"has a __cuda_array_interface__ that describes no array: {type(error).__name__}: {error}"
        raise Refused(what, "pass it as an array of torch or cupy") from error
    dtype = _KNOWN.get(held)
    if dtype is None:
        raise UnknownDType(_numpy_name(held))
    laid = row_major(shape, dtype.bytes) if laid is None else laid
    return ArrayView(pointer, shape, laid, dtype, "cuda", bool(readonly), array)


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no dtype")
    return given


def _numbers(given: object) -> tuple[int, ...]:
    if not isinstance(given, tuple | list):
        raise TypeError(f"{given!r} is no tuple")
    return tuple(map(index, given))


def _numpy_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"


# parameters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One array parameter of a compiled kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    written: bool

    # Read at every call, so computed once.

    @cached_property
    def stored(self) -> DType:
        """The dtype of arrays for this parameter: numpy has no `index`."""
        return I64 if self.dtype.name == INDEX.name else DTYPES[self.dtype.name]

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        return self.stored.numpy

    @cached_property
    def item_bytes(self) -> int:
        return self.stored.bytes

    @cached_property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @cached_property
    def row_major(self) -> tuple[int, ...]:
        return row_major(self.shape, self.item_bytes)

    def of_shape(self, shape: tuple[int, ...]) -> Parameter:
        """Return this parameter with another shape; fields that do not depend on the shape are reused."""
        made, fields = _new(Parameter), self._of_any_shape
        made.__dict__.update(fields)
        made.__dict__["shape"] = shape
        return made

    @cached_property
    def _of_any_shape(self) -> dict[str, Any]:
        names = ("name", "dtype", "written", "stored", "numpy", "item_bytes")
        return {name: getattr(self, name) for name in names}

    def reach(self, strides: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the byte range, relative to the address, of an array with these strides; None: use the full check."""
        step = self.item_bytes
        for size, stride in zip(self.shape[::-1], strides[::-1]):  # noqa: B905 - they are equally many
            if stride != step:
                break
            step *= size
        else:
            return 0, step
        layout = layout_of(self.shape, strides, self.item_bytes)
        if layout.uneven or layout.high - layout.low > MOST_BYTES:
            return None
        if self.written and repeats(self.shape, strides, self.item_bytes) is not False:
            return None
        return layout.low, layout.high
