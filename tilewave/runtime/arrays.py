"""Whatever a user passes as an array, as one record: where it lies, how, and who keeps it alive.

`view` takes numpy arrays, anything that speaks DLPack (torch, cupy, jax) and anything with `__cuda_array_interface__`
(numba), without copying a byte and without importing any of them. `check_call` holds the records against what the
kernel was compiled for; every refusal leaves the arrays untouched.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewave.errors import CallError, Loc
from tilewave.ir.types import DTYPES, I64, INDEX, INTERNAL, DType, dims
from tilewave.runtime.dlpack import Refused, UnknownDType, export, exports, row_major

NDArray = np.ndarray[Any, np.dtype[Any]]

OVERLAP_WORK = 10_000
"""How long numpy may search for a common address, in its own unit: about half a millisecond."""

_KNOWN = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype not in INTERNAL}
_TARGETS = {"cpu": '"cpu"', "cuda": '"sm_90a"', "rocm": '"gfx942" or "gfx950"'}


@dataclass(frozen=True)
class ArrayView:
    """An array's memory: the address of its first element, and strides in bytes, which may be 0 or negative."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: str
    readonly: bool
    owner: object = field(repr=False, compare=False)

    def numpy(self) -> NDArray:
        """The same memory as a numpy array, which keeps the owner alive."""
        if self.device != "cpu":
            raise CallError(f"an array on {self.device} is not in numpy's reach", remedy="copy it to the CPU first")
        array = _elements(self).view(self.dtype.numpy)
        array.flags.writeable = not self.readonly
        return array


@dataclass(frozen=True)
class _Range:
    """Addresses as numpy's array interface, with what keeps them alive."""

    __array_interface__: dict[str, object]
    owner: object


def _elements(v: ArrayView) -> NDArray:
    """The view's elements as raw bytes; of a GPU's, only the addresses are of use."""
    return _at(v.pointer, v.shape, v.strides, v.dtype.bytes, v)


def _at(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int, owner: object) -> NDArray:
    interface: dict[str, object] = {
        "version": 3,
        "data": (pointer, False),
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{item_bytes}",
    }
    return np.asarray(_Range(interface, owner))


# view ---------------------------------------------------------------------------------------------------------------


def view(array: object) -> ArrayView:
    """The array's memory; a CallError where it has none that a kernel could use."""
    try:
        return _view(array)
    except Refused as refused:
        raise CallError(
            f"view: array {refused.what}", remedy=refused.remedy.replace("{name}", "array")
        ) from refused.__cause__


def _view(array: object) -> ArrayView:
    if type(array) is _ndarray:
        return _from_numpy(array)
    if isinstance(array, np.ma.MaskedArray):
        raise Refused("is masked, and a kernel would not see the mask", "pass {name}.filled(0), or {name}.data")
    if isinstance(array, np.ndarray):
        return _from_numpy(array)
    if exports(array):
        e = export(array)
        return ArrayView(e.pointer, e.shape, e.strides, e.dtype, e.device, e.readonly, e.capsule)
    interface = getattr(array, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        return _from_interface(interface, array)
    raise Refused(f"is {_described(array)}, not an array", _as_array(array))


def _from_numpy(array: NDArray) -> ArrayView:
    dtype = _KNOWN.get(array.dtype)
    if dtype is None:
        raise UnknownDType(_numpy_name(array.dtype))
    return _made(array, _pointer(array), array.shape, array.strides, dtype)


def _made(array: NDArray, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> ArrayView:
    """The same as ArrayView(…), which takes 1.9 µs where this takes 0.7; every call comes by here for every array."""
    made = _new(ArrayView)
    fields = made.__dict__
    fields["pointer"] = pointer
    fields["shape"] = shape
    fields["strides"] = strides
    fields["dtype"] = dtype
    fields["device"] = "cpu"
    fields["readonly"] = not array.flags.writeable
    fields["owner"] = array
    return made


def _data_at(array: NDArray) -> int:
    return _word_at(id(array) + _HEADER_BYTES).value


def _data_asked(array: NDArray) -> int:
    return array.ctypes.data


# The data pointer is the first field of numpy's array struct, right after Python's header: part of numpy's ABI, which
# every extension compiles in. Reading it takes 0.3 µs, asking `ctypes.data` or `__array_interface__` 2 µs.
_HEADER_BYTES = object.__basicsize__
_word_at = ctypes.c_size_t.from_address
_PROBE = np.zeros((3, 5), np.float32)[1:, ::-1]
_pointer = _data_at if _data_at(_PROBE) == _data_asked(_PROBE) else _data_asked
_new, _ndarray = object.__new__, np.ndarray


def _from_interface(interface: dict[str, Any], array: object) -> ArrayView:
    """`__cuda_array_interface__`, versions 2 and 3: it does not tell which CUDA device, so neither do we."""
    if interface.get("mask") is not None:
        raise Refused("is masked, and a kernel would not see the mask", "pass {name} without its mask")
    described = np.dtype(interface["typestr"])
    dtype = _KNOWN.get(described)
    if dtype is None:
        raise UnknownDType(_numpy_name(described))
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    pointer, readonly = interface["data"]
    laid = row_major(shape, dtype.bytes) if strides is None else tuple(strides)
    return ArrayView(pointer or 0, shape, laid, dtype, "cuda", bool(readonly), array)


def _numpy_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"


def _described(value: object) -> str:
    """`None`, `a list`, `a pandas.DataFrame`."""
    if value is None:
        return "None"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    name = kind.__name__ if package in ("builtins", "__main__") else f"{package}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _as_array(value: object) -> str:
    """How to make an array of what is none."""
    if hasattr(value, "to_numpy"):  # pandas, polars, arrow
        return "pass {name}.to_numpy()"
    if hasattr(value, "toarray"):  # scipy.sparse
        return "pass {name}.toarray()"
    if isinstance(value, list | tuple | memoryview) or hasattr(value, "__array__"):
        return "pass np.array({name})"
    return "pass a numpy array, a torch tensor, or anything with DLPack or __cuda_array_interface__"


# check_call ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """What the kernel was compiled for in one place of its argument list."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    written: bool

    # What every call asks, worked out once.
    stored: DType = field(init=False, repr=False, compare=False)
    """The dtype that arrays spell it with: numpy knows no `index`."""
    numpy: np.dtype[Any] = field(init=False, repr=False, compare=False)
    item_bytes: int = field(init=False, repr=False, compare=False)
    bytes: int = field(init=False, repr=False, compare=False)
    row_major: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stored = I64 if self.dtype.name == INDEX.name else DTYPES[self.dtype.name]
        derive = partial(object.__setattr__, self)
        derive("stored", stored)
        derive("numpy", stored.numpy)
        derive("item_bytes", stored.bytes)
        derive("bytes", math.prod(self.shape) * stored.bytes)
        derive("row_major", row_major(self.shape, stored.bytes))


def check_call(
    kernel: str, parameters: Sequence[Parameter], arrays: Sequence[object], device: str, loc: Loc
) -> tuple[ArrayView, ...]:
    """The arrays of a call as the kernel may use them, or a CallError that says which one does not fit, and why."""
    if len(arrays) != len(parameters):
        names = ", ".join(p.name for p in parameters)
        plural = "" if len(parameters) == 1 else "s"
        what = f"{kernel}: takes {len(parameters)} array{plural} ({names}), but got {len(arrays)}"
        raise CallError(what, loc=loc, remedy=f"call {kernel}({names})")
    quick = _quick(parameters, arrays) if device == "cpu" else None
    if quick is not None:
        return quick
    try:
        views = _views(parameters, arrays)
        for check in (_check_dtype, _check_shape, _check_device, _check_alignment, _check_writable):
            for p, v, array in zip(parameters, views, arrays, strict=True):
                check(p, v, array, device)
        _check_overlaps(parameters, views, arrays)
    except Refused as refused:
        raise CallError(f"{kernel}: {refused.what}", loc=loc, remedy=refused.remedy) from refused.__cause__
    return views


def _quick(parameters: Sequence[Parameter], arrays: Sequence[object]) -> tuple[ArrayView, ...] | None:
    """Numpy arrays that pass every check and lie apart from each other; None means: look closer."""
    views: list[ArrayView] = []
    read: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    for p, array in zip(parameters, arrays):  # noqa: B905 - strict costs time, and check_call has counted
        if type(array) is not _ndarray or array.dtype is not p.numpy or array.shape != p.shape:
            return None
        start, strides = _pointer(array), array.strides
        if strides == p.row_major:
            low, high = start, start + p.bytes
        else:
            layout = _layout(p.shape, strides, p.item_bytes)
            if layout.uneven or (p.written and _repeats(p.shape, strides, p.item_bytes) is not False):
                return None
            low, high = start + layout.low, start + layout.high
        view = _made(array, start, p.shape, strides, p.stored)
        if start % p.item_bytes or (p.written and view.readonly):
            return None
        views.append(view)
        (written if p.written else read).append((low, high))
    while written:
        low, high = written.pop()
        for other_low, other_high in read + written if written else read:
            if low < other_high and other_low < high:
                return None
    return tuple(views)


def _views(parameters: Sequence[Parameter], arrays: Sequence[object]) -> tuple[ArrayView, ...]:
    views = []
    for p, array in zip(parameters, arrays, strict=True):
        try:
            views.append(_view(array))
        except UnknownDType as unknown:
            raise _wrong_dtype(p, unknown.dtype, array) from None
        except Refused as refused:
            raise Refused(f"{p.name} {refused.what}", refused.remedy.replace("{name}", p.name)) from refused.__cause__
    return tuple(views)


def _same_device(one: str, other: str) -> bool:
    """Whether they may be one device: `cuda` is a CUDA device that nobody named."""
    return one == other or (one.partition(":")[0] == other.partition(":")[0] and (":" in one) != (":" in other))


# what to say --------------------------------------------------------------------------------------------------------


def _check_dtype(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if v.dtype is not p.stored:
        raise _wrong_dtype(p, v.dtype.name, array)


def _wrong_dtype(p: Parameter, dtype: str, array: object) -> Refused:
    if p.written:
        remedy = f"pass {_fresh(p, array)}"
    elif _is_torch(array):
        remedy = f"pass {p.name}.to({_spelled(p.stored, array)})"
    else:
        remedy = f"pass {p.name}.astype({_spelled(p.stored, array)})"
    if dtype in DTYPES:
        remedy += f", or compile with Memory[..., {dtype}]"
    return Refused(f"{p.name} is {dtype}, but the kernel {'writes' if p.written else 'reads'} {p.stored}", remedy)


def _check_shape(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if v.shape == p.shape:
        return
    if len(p.shape) > 1 and v.shape == (*p.shape[:-2], p.shape[-1], p.shape[-2]):
        transposed = f"{p.name}.T" if len(p.shape) == 2 else f"{p.name}.swapaxes(-1, -2)"
        remedy = f"it looks transposed: pass {transposed}"
    else:
        remedy = f"pass an array of shape {p.shape}, or compile for {_shape(v.shape)}"
    raise Refused(f"{p.name} is {_shape(v.shape)}, but the kernel was compiled for {_shape(p.shape)}", remedy)


def _shape(shape: tuple[int, ...]) -> str:
    return dims(shape) or "0-dimensional"


def _check_device(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if _same_device(v.device, device):
        return
    if p.written:
        remedy = f"pass {_fresh(p, array, device)}"
    elif not _is_torch(array):
        remedy = f"pass a copy of {p.name} on {device}"
    elif device == "cpu":
        remedy = f"pass {p.name}.cpu()"
    else:
        remedy = f'pass {p.name}.to("{_torch_device(device)}")'
    kind = v.device.partition(":")[0]
    if kind in _TARGETS and kind != device.partition(":")[0]:
        remedy += f", or compile with target={_TARGETS[kind]}"
    raise Refused(f"{p.name} is on {v.device}, but the kernel runs on {device}", remedy)


def _check_alignment(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if any(place % p.item_bytes for place in (v.pointer, *v.strides)):
        what = f"{p.name} has elements at addresses that are no multiples of {p.item_bytes} bytes"
        raise Refused(what, f"pass {_fresh(p, array) if p.written else f'{p.name}.copy()'}")


def _check_writable(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if p.written and v.readonly:
        raise Refused(f"{p.name} is read-only, but the kernel writes it", f"pass {_fresh(p, array, device)}")


def _is_torch(array: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(array).__mro__)


def _torch_device(device: str) -> str:
    return device.replace("rocm", "cuda")  # torch calls both cuda


def _spelled(dtype: DType, array: object) -> str:
    """`np.float32`, `ml_dtypes.bfloat16`, `torch.float32`: the dtype in the words of the array's library."""
    name = dtype.numpy.name
    if _is_torch(array):
        return f"torch.{name}"
    if dtype.numpy.type.__module__ != "numpy":
        return f"ml_dtypes.{name}"
    return f"np.{name}" if name != "bool" else "np.bool_"  # numpy 1 has no np.bool


def _fresh(p: Parameter, array: object, device: str = "cpu") -> str:
    """How to make a new array for the parameter in the words of the array's library."""
    if _is_torch(array):
        place = "" if device == "cpu" else f', device="{_torch_device(device)}"'
        return f"torch.empty({p.shape}, dtype={_spelled(p.stored, array)}{place})"
    if device == "cpu":
        return f"np.empty({p.shape}, {_spelled(p.stored, array)})"
    return f"a new {p.stored} array of shape {p.shape} on {device}"


# overlaps -----------------------------------------------------------------------------------------------------------


def _check_overlaps(parameters: Sequence[Parameter], views: Sequence[ArrayView], arrays: Sequence[object]) -> None:
    """No element of a written array may lie where another element lies, its own or another array's."""
    for i, p in enumerate(parameters):
        if p.written:
            _check_repeats(p, views[i], arrays[i])
            for j, other in enumerate(parameters):
                if i != j:
                    _check_meeting(p, views[i], arrays[i], other, views[j])


def _check_repeats(p: Parameter, v: ArrayView, array: object) -> None:
    repeats = _repeats(v.shape, v.strides, p.item_bytes)
    if repeats is not False:
        what = f"{p.name} {'has' if repeats else 'may have'} several elements at one address (strides {v.strides})"
        raise Refused(f"{what}, but the kernel writes it", f"pass {_fresh(p, array, v.device)}")


def _check_meeting(p: Parameter, v: ArrayView, array: object, other: Parameter, other_view: ArrayView) -> None:
    meet = _meet(_elements(v), _elements(other_view))
    if meet is not False:
        verb = "overlaps" if meet else "may overlap"
        what = f"{p.name} {verb} {other.name}, but the kernel writes {p.name}"
        raise Refused(what, f"pass {_fresh(p, array, v.device)} as {p.name}")


@dataclass(frozen=True)
class _Layout:
    """Where elements lie, in bytes from the first; `uneven` where some stride is no whole number of elements."""

    low: int
    high: int
    uneven: bool


@lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> _Layout:
    last = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low, high = sum(min(0, step) for step in last), sum(max(0, step) for step in last) + item_bytes
    return _Layout(low, high, any(stride % item_bytes for stride in strides))


@lru_cache(maxsize=1024)
def _repeats(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool | None:
    """Whether two elements share an address; None where that is too hard to tell.

    Cut an axis in two: if the parts do not meet, a shared address lies within one of them. The parts are laid out
    alike, so the longer one answers for both; cut it again.
    """
    answer: bool | None = False
    part = _at(1 << 62, shape, strides, item_bytes, None)
    # The widest stride first: the parts of a nested layout then lie apart, which is quickly seen.
    for axis in sorted(range(len(shape)), key=lambda a: -abs(strides[a])):
        while part.shape[axis] > 1:
            shorter, part = np.split(part, [part.shape[axis] // 2], axis)
            meet = _meet(shorter, part)
            if meet:
                return True
            if meet is None:
                answer = None
    return answer


def _meet(one: NDArray, other: NDArray) -> bool | None:
    """Whether they have an address in common; None where that is too hard to tell."""
    try:
        return bool(np.shares_memory(one, other, OVERLAP_WORK))  # type: ignore[arg-type]  # the stubs know only 0, -1
    except np.exceptions.TooHardError:
        return None
