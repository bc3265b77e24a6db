"""Every kind of array argument as one record: its address, its layout, and the object that keeps it alive.

`view` takes numpy arrays, anything that speaks DLPack (torch, cupy, jax) and anything with `__cuda_array_interface__`
(numba), without copying a byte and without importing any of them. `check_call` compares the records with what the
kernel was compiled for; every refusal leaves the arrays untouched.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from operator import index
from typing import Any

import numpy as np

from tilewave.errors import NOWHERE, CallError, Loc, WrongDevice, here
from tilewave.forks import cached_property
from tilewave.ir.types import DTYPES, I64, INDEX, INTERNAL, DType, dims
from tilewave.runtime.dlpack import Refused, UnknownDType, export, exports, row_major
from tilewave.runtime.foreign_arrays import HOST as HOST
from tilewave.runtime.foreign_arrays import address_of, cuda_interface, device_name, devices_of, look, place
from tilewave.runtime.overlaps import MOST_BYTES, NDArray, impossible, layout_of, meet, placed, repeats
from tilewave.runtime.remedies import as_array, copied, described, fresh, moved, wrong_dtype

Shape = tuple[int, ...]

_KNOWN = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype not in INTERNAL}


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
        """Return a numpy array over this memory, which keeps the owner alive."""
        if self.device != "cpu":
            raise CallError(f"an array on {self.device} is not in numpy's reach", remedy="copy it to the CPU first")
        array = _elements(self).view(self.dtype.numpy)
        array.flags.writeable = not self.readonly
        return array


def _elements(v: ArrayView) -> NDArray:
    """Return the view's elements as raw bytes; for a GPU's memory only their addresses can be used."""
    return placed(v.pointer, v.shape, v.strides, v.dtype.bytes, v)


# view ---------------------------------------------------------------------------------------------------------------


def view(array: object, name: str = "view: array") -> ArrayView:
    """Return the array's memory; a CallError, which calls it `name`, where it has none that a kernel could use."""
    try:
        return _view(array)
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
    found = _view(array)
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


def _view(array: object) -> ArrayView:
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
        return ArrayView(guest.pointer, tuple(guest.shape), guest.strides, guest.dtype, guest.device, False, array)
    if exports(array):
        e = export(array)
        return ArrayView(e.pointer, e.shape, e.strides, e.dtype, e.device, e.readonly, e.capsule)
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
    return _made(array, numpy_address(array), _shape_of(array), _strides_of(array), dtype, "cpu", readonly)


def _made(
    array: object,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DType,
    device: str,
    readonly: bool,
) -> ArrayView:
    """Return ArrayView(…) in 0.7 µs instead of 1.9; it is made for every array of every call."""
    made = _new(ArrayView)
    fields = made.__dict__
    fields["pointer"] = pointer
    fields["shape"] = shape
    fields["strides"] = strides
    fields["dtype"] = dtype
    fields["device"] = device
    fields["readonly"] = readonly
    fields["owner"] = array
    return made


def _data_at(array: NDArray) -> int:
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
numpy_address = _data_at if _data_at(_PROBE) == _data_asked(_PROBE) else _data_asked
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


# check_call ---------------------------------------------------------------------------------------------------------


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


def check_call(
    kernel: str,
    parameters: Sequence[Parameter],
    arrays: Sequence[object],
    device: str,
    loc: Loc,
    device_of: Callable[[int], int] | None = None,
) -> tuple[ArrayView, ...]:
    """Return the arrays of a call as views that the kernel may use; a CallError says which one does not fit, and why.

    `device` is `cpu`, one GPU (`cuda:1`), or any of a kind (`cuda`): then all arrays are on the same one.
    `device_of` returns the device number of an address, for arrays that do not give their device.
    """
    if len(arrays) != len(parameters):
        names = ", ".join(p.name for p in parameters)
        plural = "" if len(parameters) == 1 else "s"
        what = f"{kernel}: takes {len(parameters)} array{plural} ({names}), but got {len(arrays)}"
        raise CallError(what, loc=loc, remedy=f"call {kernel}({names})")
    try:
        quick = _quick(parameters, arrays) if device == "cpu" else _quick_guests(parameters, arrays, device)
        return quick or _checked(parameters, arrays, device, device_of)
    except RefusedDevice as refused:
        raise WrongDevice(f"{kernel}: {refused.what}", loc=loc, remedy=refused.remedy, device=refused.kind) from None
    except Refused as refused:
        raise CallError(f"{kernel}: {refused.what}", loc=loc, remedy=refused.remedy) from refused.__cause__


def check_host_call(kernel: str, parameters: Sequence[Parameter], arrays: Sequence[object]) -> tuple[ArrayView, ...]:
    """Run `check_call` for arrays in host memory; the author's line is looked up only for an error."""
    try:
        return check_call(kernel, parameters, arrays, "cpu", NOWHERE)
    except CallError as error:  # looking up the author's line costs more than a small kernel
        raise error.at(here()) from None


class RefusedDevice(Refused):
    """An array is on another kind of device than the kernel runs on."""

    def __init__(self, what: str, remedy: str, kind: str) -> None:
        super().__init__(what, remedy)
        self.kind = kind


def _checked(
    parameters: Sequence[Parameter],
    arrays: Sequence[object],
    device: str,
    device_of: Callable[[int], int] | None,
) -> tuple[ArrayView, ...]:
    views = _views(parameters, arrays, device)
    if device_of is not None:
        views = tuple(_numbered(v, device_of) for v in views)
    for check in (_check_dtype, _check_shape, _check_device, _check_alignment, _check_writable, _check_direction):
        for p, v, array in zip(parameters, views, arrays, strict=True):
            try:
                check(p, v, array, device)
            except Refused as refused:
                raise _in_another_order(refused, parameters, views) or refused from refused.__cause__
    _check_one_device(parameters, views, arrays)
    _check_overlaps(parameters, views, arrays)
    return views


def _numbered(v: ArrayView, device_of: Callable[[int], int]) -> ArrayView:
    nameless = v.device in ("cuda", "rocm") and v.pointer
    return replace(v, device=f"{v.device}:{device_of(v.pointer)}") if nameless else v


def device_number(views: Sequence[ArrayView]) -> int:
    """Return the number of the GPU that checked arrays are on; 0 where none of them gives it."""
    for v in views:
        _, _, number = v.device.partition(":")
        if number:
            return int(number)
    return 0


def plain_pointers(parameters: Sequence[Parameter], arrays: Sequence[object]) -> tuple[int, ...] | None:
    """Return the addresses of contiguous numpy arrays that the kernel may use; else None.

    For one set of parameters the further checks depend on these addresses alone.
    """
    found = []
    for p, array in zip(parameters, arrays):  # noqa: B905 - strict costs time, and the last line counts
        if type(array) is not _ndarray or array.dtype is not p.numpy or array.shape != p.shape:
            return None
        if array.strides != p.row_major or (p.written and not array.flags.writeable):
            return None
        found.append(numpy_address(array))
    return tuple(found) if len(found) == len(arrays) == len(parameters) else None


def _quick(parameters: Sequence[Parameter], arrays: Sequence[object]) -> tuple[ArrayView, ...] | None:
    """Return views of numpy arrays that pass every check and do not overlap; None: use the full check."""
    views: list[ArrayView] = []
    read: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    for p, array in zip(parameters, arrays):  # noqa: B905 - strict costs time, and check_call has counted
        if type(array) is not _ndarray or array.dtype is not p.numpy or array.shape != p.shape:
            return None
        start, strides = numpy_address(array), array.strides
        reach = p.reach(strides)
        if reach is None:
            return None
        view = _made(array, start, p.shape, strides, p.stored, "cpu", not array.flags.writeable)
        if start % p.item_bytes or (p.written and view.readonly):
            return None
        views.append(view)
        (written if p.written else read).append((start + reach[0], start + reach[1]))
    return tuple(views) if _apart(read, written) else None


def _quick_guests(
    parameters: Sequence[Parameter], arrays: Sequence[object], device: str
) -> tuple[ArrayView, ...] | None:
    """Return views of torch tensors and cupy arrays on a GPU; None: use the full check, which names a refused array."""
    views: list[ArrayView] = []
    read: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    where = device if ":" in device else ""
    for p, array in zip(parameters, arrays):  # noqa: B905 - strict costs time, and check_call has counted
        try:
            guest = look(array)
        except Refused:
            return None
        if guest is None or guest.dtype is not p.stored or guest.shape != p.shape:
            return None
        start, _, strides, _, place = guest
        if place != where:
            if where or not place.startswith(device):
                return None
            where = place
        reach = p.reach(strides)
        if reach is None or reach[0] or start % p.item_bytes:
            return None
        views.append(_made(array, start, p.shape, strides, p.stored, place, False))
        (written if p.written else read).append((start + reach[0], start + reach[1]))
    return tuple(views) if _apart(read, written) else None


def _apart(read: list[tuple[int, int]], written: list[tuple[int, int]]) -> bool:
    """Return whether no written range overlaps another."""
    while written:
        low, high = written.pop()
        for other_low, other_high in read + written if written else read:
            if low < other_high and other_low < high:
                return False
    return True


def _views(parameters: Sequence[Parameter], arrays: Sequence[object], device: str) -> tuple[ArrayView, ...]:
    views = []
    for p, array in zip(parameters, arrays, strict=True):
        try:
            views.append(_view(array))
        except UnknownDType as unknown:
            raise wrong_dtype(p, unknown.dtype, array, device) from None
        except Refused as refused:
            raise Refused(f"{p.name} {refused.what}", refused.remedy.replace("{name}", p.name)) from refused.__cause__
    return tuple(views)


def _same_device(one: str, other: str) -> bool:
    """Return whether two device names may mean one device: `cuda` is a CUDA device of unknown number."""
    return one == other or (one.partition(":")[0] == other.partition(":")[0] and (":" in one) != (":" in other))


# what to say --------------------------------------------------------------------------------------------------------


MOST_EXCHANGED = 6
"""The most arrays whose other orders are tried where they do not fit as passed: 720 orders."""


def _in_another_order(refused: Refused, parameters: Sequence[Parameter], views: Sequence[ArrayView]) -> Refused | None:
    """Return the refusal with the order of arguments in which the arrays would fit; None where no order does."""

    def fits(order: Sequence[int]) -> bool:
        pairs = ((p, views[i]) for p, i in zip(parameters, order, strict=True))
        return all(v.dtype is p.stored and v.shape == p.shape for p, v in pairs)

    own = range(len(parameters))
    if isinstance(refused, RefusedDevice) or len(own) > MOST_EXCHANGED or fits(own):
        return None
    order = next((order for order in permutations(own) if fits(order)), None)
    if order is None:
        return None
    names = [p.name for p in parameters]
    given = ", ".join(names[i] for i in order)
    return Refused(refused.what, f"what was given as {given} fits as {', '.join(names)}: pass the arrays in that order")


def _check_dtype(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if v.dtype is not p.stored:
        raise wrong_dtype(p, v.dtype.name, array, device)


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
    remedy = f"pass {moved(p, array, device)}"
    what = f"{p.name} is on {v.device}, but the kernel runs on {device}"
    kind = v.device.partition(":")[0]
    if kind == device.partition(":")[0]:
        raise Refused(what, remedy)
    raise RefusedDevice(what, remedy, kind)


def _check_alignment(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if any(place % p.item_bytes for place in (v.pointer, *v.strides)):
        what = f"{p.name} has elements at addresses that are no multiples of {p.item_bytes} bytes"
        raise Refused(what, f"pass {fresh(p, array, v.device) if p.written else copied(p, array)}")


def _check_direction(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    backwards = any(stride < 0 < size - 1 for size, stride in zip(v.shape, v.strides, strict=True))
    if backwards and device != "cpu":
        what = f"{p.name} has negative strides {v.strides}, which a kernel on {device} does not take"
        raise Refused(what, f"pass {fresh(p, array, v.device) if p.written else copied(p, array)}")


def _check_one_device(parameters: Sequence[Parameter], views: Sequence[ArrayView], arrays: Sequence[object]) -> None:
    placed = [(p, v, array) for p, v, array in zip(parameters, views, arrays, strict=True) if ":" in v.device]
    for p, v, array in placed[1:]:
        first, there, _ = placed[0]
        if v.device != there.device:
            remedy = f"pass {moved(p, array, there.device)}"
            raise Refused(f"{p.name} is on {v.device}, but {first.name} is on {there.device}", remedy)


def _check_writable(p: Parameter, v: ArrayView, array: object, device: str) -> None:
    if p.written and v.readonly:
        raise Refused(f"{p.name} is read-only, but the kernel writes it", f"pass {fresh(p, array, device)}")


# overlaps -----------------------------------------------------------------------------------------------------------


def _check_overlaps(parameters: Sequence[Parameter], views: Sequence[ArrayView], arrays: Sequence[object]) -> None:
    """Refuse a written array with an element at the address of another element, of the same or of another array."""
    for i, p in enumerate(parameters):
        if p.written:
            _check_repeats(p, views[i], arrays[i])
            for j, other in enumerate(parameters):
                if i != j:
                    _check_meeting(p, views[i], arrays[i], other, views[j])


def _check_repeats(p: Parameter, v: ArrayView, array: object) -> None:
    found = repeats(v.shape, v.strides, p.item_bytes)
    if found is not False:
        what = f"{p.name} {'has' if found else 'may have'} several elements at one address (strides {v.strides})"
        raise Refused(f"{what}, but the kernel writes it", f"pass {fresh(p, array, v.device)}")


def _check_meeting(p: Parameter, v: ArrayView, array: object, other: Parameter, other_view: ArrayView) -> None:
    found = meet(_elements(v), _elements(other_view))
    if found is not False:
        verb = "overlaps" if found else "may overlap"
        what = f"{p.name} {verb} {other.name}, but the kernel writes {p.name}"
        raise Refused(what, f"pass {fresh(p, array, v.device)} as {p.name}")
