"""Arrays of torch and cupy, read by their own attributes, and the current streams of these libraries.

DLPack would do, but costs several microseconds an array. Neither library is imported here: a call with its arrays
shows that the user has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from tilewave.ir.types import DTYPES, INTERNAL, DType
from tilewave.records import dataclass
from tilewave.runtime.array_view import HOST, ArrayView, PlacedArray
from tilewave.runtime.dlpack import CUDA, Refused, UnknownDType, exchange_table
from tilewave.runtime.native.engine import engine, of_record
from tilewave.runtime.native.records import READER, NativeRecord

DEFAULT_STREAM = 0
_KNOWN = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype not in INTERNAL}


class SeenArrays(NamedTuple):
    """All facts of a call's arrays that decide its launch."""

    placed: tuple[PlacedArray, ...]
    devices: tuple[int, ...]
    """Device numbers; negative for the CPU."""
    kinds: tuple[Any, ...]
    """Everything else that checks depend on, such as dtypes."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """Functions that read a library's arrays."""

    look: Callable[[Any], ArrayView | None]
    seen: Callable[[Sequence[Any]], SeenArrays | None]
    """Returns the facts of a call's arrays; None where each must be looked at separately."""
    devices: Callable[[Sequence[Any]], tuple[int, ...]]
    """Returns the device numbers of all arrays of a call; negative for the CPU."""
    device: Callable[[Any], str]
    """Returns the name of an array's device; empty for the CPU."""
    stream: Callable[[int], int]
    """Returns the library's current stream on a device."""


def library(array: object) -> str:
    """Return the package of an array's class: `torch` for torch tensors and derived classes; empty for others."""
    kind: Any = type(array)
    return _library(kind)


@lru_cache(maxsize=256)
def _library(kind: type) -> str:
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((name for name in ("torch", "cupy") if name in packages), "")


@lru_cache(maxsize=256)
def _reader(kind: type) -> _Reader | None:
    """Return the reader of arrays of exactly this class; a derived class may redefine its attributes."""
    package = _library(kind)
    module = sys.modules.get(package) if package else None
    if module is None:
        return None
    if package == "torch":
        return _torch_reader(module) if kind in (module.Tensor, module.nn.Parameter) else None
    return (
        _Reader(_from_cupy, _seen_by_cupy, _cupy_devices, lambda array: _cupy_device(array.device.id), _cupy_stream)
        if kind is module.ndarray
        else None
    )


def look(array: object) -> ArrayView | None:
    """Return the memory of a torch tensor or a cupy array; None for everything else."""
    kind: Any = type(array)
    reader = _reader(kind)
    return None if reader is None else reader.look(array)


def device_name(array: object) -> str:
    """Return the device of an array that `look` reads; empty for everything else."""
    kind: Any = type(array)
    reader = _reader(kind)
    return "" if reader is None else reader.device(array)


def place(array: object) -> tuple[str, tuple[int, ...]] | None:
    """Return only the device and the shape of an array that `look` reads; None for everything else."""
    kind: Any = type(array)
    reader = _reader(kind)
    guest: Any = array
    device = "" if reader is None else reader.device(guest)
    return (device, tuple(guest.shape)) if device else None


@lru_cache(maxsize=256)
def devices_of(kinds: tuple[Any, ...]) -> Callable[[Sequence[Any]], tuple[int, ...]] | None:
    """Return a function that reads device numbers, negative for the CPU; None for classes of unknown libraries."""
    reader = _reader_of(kinds)
    return None if reader is None else reader.devices


@lru_cache(maxsize=256)
def address_of(kinds: frozenset[Any]) -> Callable[[Any], int] | None:
    """Return a function that reads a tensor's address; None where a class is not torch's, or is a subclass of it."""
    torch = sys.modules.get("torch")
    known = torch is not None and kinds <= {torch.Tensor, torch.nn.Parameter}
    return torch.Tensor.data_ptr if known and torch is not None else None


# torch --------------------------------------------------------------------------------------------------------------


def _from_torch(tensor: Any) -> ArrayView | None:
    on_cpu = getattr(tensor, "is_cpu", False)
    if not tensor.is_cuda and not on_cpu:
        return None
    torch = sys.modules["torch"]
    if tensor.requires_grad:
        raise Refused("requires grad, which a kernel does not compute", "pass {name}.detach()")
    if tensor.layout is not torch.strided:
        raise Refused(f"is laid out as {tensor.layout}, not as rows and columns", "pass {name}.to_dense()")
    if tensor.is_neg():
        raise Refused("is stored with its signs negated", "pass {name}.resolve_neg()")
    dtype = _torch_dtypes(torch).get(tensor.dtype)
    if dtype is None:
        raise UnknownDType(str(tensor.dtype).removeprefix("torch."))
    strides = _in_bytes(tensor.stride(), dtype.bytes)
    device = HOST if on_cpu else _torch_device(torch, tensor.get_device())
    return ArrayView(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, device, False, tensor)


@cache
def _torch_reader(torch: ModuleType) -> _Reader:
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", _torch_stream)
    return _Reader(_from_torch, _seen_by_torch, _torch_devices, _device_of_tensor, stream)


_tuple = tuple.__new__
"""Makes a named tuple without a call of Python's: half of the time, for every array of a call."""


def _seen_by_torch(tensors: Sequence[Any]) -> SeenArrays:
    placed = tuple([_tuple(PlacedArray, (t.data_ptr(), t.shape, t.stride())) for t in tensors])
    kinds = tuple([(t.dtype, t.requires_grad, t.is_neg()) for t in tensors])
    return _tuple(SeenArrays, (placed, _torch_devices(tensors), kinds))


def machine_reader() -> NativeRecord | None:
    """Return how machine code reads torch tensors; None without torch, or with one without a table of C functions."""
    torch = sys.modules.get("torch")
    return None if torch is None else _machine_reader(torch)


def machine_layout() -> Callable[[tuple[Any, ...], bool], bytes | None] | None:
    """Return the native function from (tensors, grad) to their layout key; None where machine code cannot read them."""
    reader = machine_reader()
    return None if reader is None else of_record(engine().layout, reader)


@cache
def _machine_reader(torch: ModuleType) -> NativeRecord | None:
    table = exchange_table(torch.Tensor)
    if table is None or getattr(torch.version, "hip", None):
        return None
    asked, name = torch.Tensor.is_neg, sys.intern("requires_grad")
    fields = {
        "tensor": id(torch.Tensor),
        "parameter": id(torch.nn.Parameter),
        "look": table.look,
        "stream": table.stream,
        "requires_grad": id(name),
        "is_neg": id(asked),
        "device": CUDA,
    }
    return NativeRecord(READER, fields, (torch, asked, name))


def _torch_devices(tensors: Sequence[Any]) -> tuple[int, ...]:
    return (*[tensor.get_device() for tensor in tensors],)


def _device_of_tensor(tensor: Any) -> str:
    return _torch_device(sys.modules["torch"], tensor.get_device()) if tensor.is_cuda else ""


@cache
def _torch_dtypes(torch: ModuleType) -> dict[object, DType]:
    spelled = ((getattr(torch, dtype.numpy.name, None), dtype) for dtype in _KNOWN.values())
    return {theirs: ours for theirs, ours in spelled if theirs is not None}


@cache
def _torch_device(torch: ModuleType, number: int) -> str:
    kind = "rocm" if getattr(torch.version, "hip", None) else "cuda"  # torch calls both cuda
    return f"{kind}:{number}"


@lru_cache(maxsize=1024)
def _in_bytes(strides: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(stride * item_bytes for stride in strides)


# cupy ---------------------------------------------------------------------------------------------------------------


def _from_cupy(array: Any) -> ArrayView:
    dtype = _KNOWN.get(array.dtype)
    if dtype is None:
        raise UnknownDType(array.dtype.name)
    return ArrayView(array.data.ptr, array.shape, array.strides, dtype, _cupy_device(array.device.id), False, array)


@cache
def _cupy_device(number: int) -> str:
    kind = "rocm" if getattr(sys.modules["cupy"].cuda.runtime, "is_hip", False) else "cuda"
    return f"{kind}:{number}"


# streams ------------------------------------------------------------------------------------------------------------


def stream_of(arrays: Sequence[object], names: Sequence[str], number: int) -> int:
    """Return the stream for a kernel on these arrays: their libraries' current one, one they name, or the default.

    The arrays must agree: a kernel runs on one stream, and would have to wait for the others.
    """
    chosen, first, asked = None, 0, object
    for at, array in enumerate(arrays):
        kind: Any = type(array)
        if kind is asked:
            continue
        package = _library(kind)
        if package:
            asked = kind
        stream = _CURRENT[package](number) if package else _named_stream(array)
        if stream is None or stream == chosen:
            continue
        if chosen is not None:
            raise Refused(
                f"{names[first]} is used on stream {chosen:#x}, but {names[at]} on stream {stream:#x}",
                "make one of them the current stream of both, or synchronise the other and pass its array without it",
            )
        chosen, first = stream, at
    return DEFAULT_STREAM if chosen is None else chosen


def _torch_stream(number: int) -> int:
    torch = sys.modules["torch"]
    try:
        return int(torch._C._cuda_getCurrentRawStream(number))  # torch.cuda.current_stream builds an object: 4 µs
    except AttributeError:
        return int(torch.cuda.current_stream(number).cuda_stream)


def _cupy_stream(number: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(number).ptr)


_CURRENT = {"torch": _torch_stream, "cupy": _cupy_stream}


def _named_stream(array: object) -> int | None:
    interface = cuda_interface(array)
    stream = interface.get("stream") if interface is not None else None
    if stream is None:
        return None
    if not isinstance(stream, int) or not 0 <= stream < 1 << 64:
        raise Refused(f"an array names the stream {stream!r}, which is none", "give its address as an integer")
    # The interface writes 1 for the default stream, since 0 might be taken for none.
    return DEFAULT_STREAM if stream == 1 else stream


def cuda_interface(array: object) -> dict[str, Any] | None:
    """Return a copy of an array's `__cuda_array_interface__`, if it has one."""
    try:
        found = getattr(array, "__cuda_array_interface__", None)
        return {**found} if isinstance(found, dict) else None
    except Exception as error:
        raise Refused(f"does not give the address of its memory: {error}", "pass a dense copy of {name}") from error


# copies -------------------------------------------------------------------------------------------------------------


def in_padded_rows(array: Any, order: Sequence[int], row: int) -> Any:
    """Return a copy with its axes stored in another order and rows `row` elements apart, of the array's own library:
    torch, cupy, or (for interpreters) numpy."""
    back = [order.index(axis) for axis in range(len(order))]
    package = library(array) or type(array).__module__.partition(".")[0]
    if package == "torch":
        seen = array.detach().permute(*order)
        *outer, cols = seen.shape
        return seen.new_empty((*outer, row))[..., :cols].copy_(seen).permute(*back)
    if package not in ("cupy", "numpy"):
        raise Refused(f"is an array of {package}, which is not known to make another", "copy it to torch or cupy")
    seen = array.transpose(*order)
    *outer, cols = seen.shape
    made = sys.modules[package].empty((*outer, row), array.dtype)[..., :cols]
    made[...] = seen
    return made.transpose(*back)


def filled(like: Any, count: int, value: int) -> Any:
    """Return `count` numbers of i32, all of one value, of the library and on the device of an array."""
    package = library(like)
    if package == "torch":
        torch = sys.modules["torch"]
        return torch.full((count,), value, dtype=torch.int32, device=like.device)
    if package != "cupy":
        raise Refused(f"is an array of {type(like).__module__}, which is not known to make another", "copy it to torch")
    with like.device:
        return sys.modules["cupy"].full(count, value, "int32")


# all arrays of a call -------------------------------------------------------------------------------------------------


def seen_arrays(arrays: Sequence[object], names: Sequence[str]) -> tuple[SeenArrays | None, int]:
    """Return all facts that decide a launch with torch or cupy arrays, and their stream; None for other arrays.

    Calls with equal facts pass or fail the same checks and launch the same code, so they are prepared only once.
    """
    reader = _reader_of(tuple(map(type, arrays)))
    if reader is None:
        return None, DEFAULT_STREAM
    try:
        seen = reader.seen(arrays)
    except RuntimeError:  # a sparse tensor has no address
        return None, DEFAULT_STREAM
    if seen is None or min(seen.devices) < 0:  # an array on the CPU
        return None, DEFAULT_STREAM
    number = seen.devices[0]
    return seen, stream_of(arrays, names, number) if reader is _SEVERAL else reader.stream(number)


@lru_cache(maxsize=256)
def _reader_of(kinds: tuple[Any, ...]) -> _Reader | None:
    """Return the reader for the arrays of a call; None where one is neither torch's nor cupy's."""
    readers = {*map(_reader, kinds)}
    if None in readers or not readers:
        return None
    return readers.pop() if len(readers) == 1 else _SEVERAL


def _seen_by_several(arrays: Sequence[Any]) -> SeenArrays | None:
    """Return the facts of a call's arrays where they come from several libraries."""
    kinds: list[Any] = [*map(type, arrays)]
    found = [reader.seen([array]) for array, reader in zip(arrays, map(_reader, kinds), strict=True) if reader]
    each = [seen for seen in found if seen is not None]
    if len(each) < len(found):
        return None
    placed, devices = [seen.placed[0] for seen in each], [seen.devices[0] for seen in each]
    return SeenArrays(tuple(placed), tuple(devices), tuple([seen.kinds for seen in each]))


def _devices_of_several(arrays: Sequence[Any]) -> tuple[int, ...]:
    kinds: list[Any] = [*map(type, arrays)]
    readers = zip(arrays, map(_reader, kinds), strict=True)
    return tuple([number for array, reader in readers if reader for number in reader.devices([array])])


_SEVERAL = _Reader(look, _seen_by_several, _devices_of_several, device_name, lambda number: DEFAULT_STREAM)
"""The reader of arrays of two libraries, whose streams must be compared."""


def _cupy_devices(arrays: Sequence[Any]) -> tuple[int, ...]:
    return tuple([array.device.id for array in arrays])


def _seen_by_cupy(arrays: Sequence[Any]) -> SeenArrays | None:
    if any(stride % a.dtype.itemsize for a in arrays for stride in a.strides):
        return None
    steps = [tuple([stride // a.dtype.itemsize for stride in a.strides]) for a in arrays]
    placed = tuple([PlacedArray(a.data.ptr, a.shape, found) for a, found in zip(arrays, steps, strict=True)])
    return SeenArrays(placed, _cupy_devices(arrays), tuple([a.dtype for a in arrays]))
