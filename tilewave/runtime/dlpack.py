"""DLPack's side of an array: the capsule that a producer returns, and its C struct.

The structs follow dlpack.h 1.1. An unversioned capsule is named `dltensor`, a versioned one `dltensor_versioned`; both
end in the same DLTensor. A consumer that takes over the memory renames the capsule and calls the deleter itself. Here
the capsule keeps its name and is kept alive: its destructor calls the deleter, once.
"""

from __future__ import annotations

import ctypes

from tilewave.ir.types import (
    BF16,
    BOOL,
    DTYPES,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INTERNAL,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from tilewave.runtime.array_view import ArrayView

MAX_VERSION = (1, 1)
READ_ONLY, IS_COPIED = 1 << 0, 1 << 1
MOST_AXES = 32
"""The most axes of an array; a tensor with more is refused, and its sizes are not read."""
NO_SYNCHRONISATION = -1
"""The stream argument that keeps a producer from waiting: kernels are ordered by the stream they are launched on."""

CUDA = 2
_CPU, _CUDA_HOST, _ROCM, _ROCM_HOST, _CUDA_MANAGED = 1, 3, 10, 11, 13
_CPUS = (_CPU, _CUDA_HOST, _ROCM_HOST)  # pinned memory is host memory
_STREAMED = (CUDA, _ROCM, _CUDA_MANAGED)
_DEVICES = {
    CUDA: "cuda",
    _CUDA_MANAGED: "cuda",
    _ROCM: "rocm",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    14: "oneapi",
    15: "webgpu",
}

_BFLOAT, _BOOL = 4, 6
_DTYPES = {
    (0, 8): I8,
    (0, 16): I16,
    (0, 32): I32,
    (0, 64): I64,
    (1, 8): U8,
    (1, 16): U16,
    (1, 32): U32,
    (1, 64): U64,
    (2, 16): F16,
    (2, 32): F32,
    (2, 64): F64,
    (_BFLOAT, 16): BF16,
    (_BOOL, 8): BOOL,
    (10, 8): F8E4M3FN,
    (11, 8): F8E4M3FNUZ,
    (12, 8): F8E5M2,
    (13, 8): F8E5M2FNUZ,
}
_WORDS = {dtype.name: code | bits << 8 | 1 << 16 for (code, bits), dtype in _DTYPES.items()}
_CODES = {0: "int", 1: "uint", 2: "float", 3: "handle", _BFLOAT: "bfloat", 5: "complex", _BOOL: "bool"}
_SMALL_FLOATS = {
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    14: "float8_e8m0fnu",
    15: "float6_e2m3fn",
    16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}


class Refused(Exception):
    """An argument is refused as an array: the problem, as said after its name, and a remedy with `{name}` for it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


class UnknownDType(Refused):
    """An array of a dtype that tilewave does not have."""

    def __init__(self, dtype: str) -> None:
        super().__init__(f"is {dtype}, which no kernel takes", "pass one of " + ", ".join(SPELLED))
        self.dtype = dtype


SPELLED = [d.name for d in DTYPES.values() if d not in INTERNAL]


def dtype_word(dtype: DType) -> int:
    """Return a DLDataType as a word in memory: code, bits, and one lane."""
    return _WORDS[dtype.name]


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ExchangeTable(ctypes.Structure):
    """DLPackExchangeAPI: a library's C functions, which read an array without Python."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("take", ctypes.c_void_p),
        ("give", ctypes.c_void_p),
        ("look", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


EXCHANGE, EXCHANGE_MAJOR = b"dlpack_exchange_api", 1


def exchange_table(kind: type) -> ExchangeTable | None:
    """Return the DLPack exchange table of an array class; None where it has none, or one of another version."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _is_named(capsule, EXCHANGE):
        return None
    table = ExchangeTable.from_address(_address(capsule, EXCHANGE))
    return table if table.major == EXCHANGE_MAJOR and table.look and table.stream else None


class Unversioned(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


# Private prototypes, as anyone may set the argtypes of `ctypes.pythonapi.PyCapsule_GetPointer`.
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def exports(array: object) -> bool:
    """Return whether the array supports DLPack."""
    kind = type(array)
    return hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")


def export(array: object) -> ArrayView:
    """Return the array's memory, which its capsule owns, without copying and without waiting."""
    try:
        capsule = _capsule(array)
    except Exception as error:
        if getattr(array, "requires_grad", False):
            raise Refused("requires grad, which a kernel does not compute", "pass {name}.detach()") from error
        raise Refused(f"does not export its memory: {error}", "pass a dense copy of {name}") from error
    return _read(capsule)


def _capsule(array: object) -> object:
    device_type, _ = array.__dlpack_device__()  # type: ignore[attr-defined]
    stream = {"stream": NO_SYNCHRONISATION} if device_type in _STREAMED else {}
    try:
        return array.__dlpack__(max_version=MAX_VERSION, **stream)  # type: ignore[attr-defined]
    except TypeError:  # a producer from before version 1
        return array.__dlpack__(**stream)  # type: ignore[attr-defined]


def _read(capsule: object) -> ArrayView:
    if _is_named(capsule, b"dltensor_versioned"):
        versioned = Versioned.from_address(_address(capsule, b"dltensor_versioned"))
        if versioned.major != MAX_VERSION[0]:  # another struct layout: nothing further may be read
            raise Refused(
                f"exports DLPack {versioned.major}.{versioned.minor}, which is newer than what tilewave reads",
                "pass it as a numpy array, or use an older release of its library",
            )
        # Writes into a copy never reach the array, so a copy counts as read-only.
        return _describe(versioned.tensor, bool(versioned.flags & (READ_ONLY | IS_COPIED)), capsule)
    if _is_named(capsule, b"dltensor"):
        return _describe(Unversioned.from_address(_address(capsule, b"dltensor")).tensor, False, capsule)
    raise Refused("exports no DLPack capsule that tilewave can read", "pass it as a numpy array")


def _describe(tensor: DLTensor, readonly: bool, capsule: object) -> ArrayView:
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise UnknownDType(_spelled(tensor.code, tensor.bits, tensor.lanes))
    if not 0 <= tensor.ndim <= MOST_AXES or (tensor.ndim and not tensor.shape) or tensor.device_id < 0:
        raise Refused("exports a DLPack capsule that describes no array", "pass it as a numpy array")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if tensor.ndim and tensor.strides:
        strides = tuple([stride * dtype.bytes for stride in tensor.strides[: tensor.ndim]])
    else:  # before version 1.2, missing strides meant row-major
        strides = row_major(shape, dtype.bytes)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return ArrayView(pointer, shape, strides, dtype, _device(tensor), readonly, capsule)


def row_major(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Return the strides, in bytes, of a contiguous row-major array."""
    strides, step = [], item_bytes
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _device(tensor: DLTensor) -> str:
    if tensor.device_type in _CPUS:
        return "cpu"
    return f"{_DEVICES.get(tensor.device_type, f'dlpack{tensor.device_type}')}:{tensor.device_id}"


def _spelled(code: int, bits: int, lanes: int) -> str:
    name = _SMALL_FLOATS.get(code) or f"{_CODES.get(code, f'dlpack{code}_')}{bits}"
    return name if lanes == 1 else f"{name}x{lanes}"
