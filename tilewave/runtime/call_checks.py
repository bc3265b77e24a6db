"""The check of a call: each of its arrays fits its parameter, and no written array overlaps another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np

from tilewave.errors import NOWHERE, CallError, Loc, WrongDevice, here
from tilewave.ir.types import dims
from tilewave.runtime.array_view import HOST, ArrayView
from tilewave.runtime.arrays import Parameter, numpy_address, read_array
from tilewave.runtime.dlpack import Refused, UnknownDType
from tilewave.runtime.foreign_arrays import look
from tilewave.runtime.overlaps import meet, repeats
from tilewave.runtime.remedies import copied, fresh, moved, wrong_dtype


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
    return v._replace(device=f"{v.device}:{device_of(v.pointer)}") if nameless else v


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
        if type(array) is not np.ndarray or array.dtype is not p.numpy or array.shape != p.shape:
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
        if type(array) is not np.ndarray or array.dtype is not p.numpy or array.shape != p.shape:
            return None
        start, strides = numpy_address(array), array.strides
        reach = p.reach(strides)
        if reach is None:
            return None
        view = ArrayView(start, p.shape, strides, p.stored, HOST, not array.flags.writeable, array)
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
        start = guest.pointer
        if guest.device != where:
            if where or not guest.device.startswith(device):
                return None
            where = guest.device
        reach = p.reach(guest.strides)
        if reach is None or reach[0] or start % p.item_bytes:
            return None
        views.append(guest)
        (written if p.written else read).append((start, start + reach[1]))
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
            views.append(read_array(array))
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
    found = meet(v.elements(), other_view.elements())
    if found is not False:
        verb = "overlaps" if found else "may overlap"
        what = f"{p.name} {verb} {other.name}, but the kernel writes {p.name}"
        raise Refused(what, f"pass {fresh(p, array, v.device)} as {p.name}")
