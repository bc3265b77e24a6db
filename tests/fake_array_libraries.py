"""torch and cupy as tilewave sees them: a few attributes of an array, and a current stream."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewave.ir.types import DTYPES, INTERNAL
from tilewave.runtime import foreign_arrays as guests
from tilewave.runtime.dlpack import row_major


def forget_guests() -> None:
    """What is remembered of a library is true only while that library is there."""
    of_torch = guests._torch_reader, guests._torch_dtypes, guests._torch_device, guests._machine_reader
    for known in (
        guests._library,
        guests._reader,
        guests._reader_of,
        guests.devices_of,
        *of_torch,
        guests._cupy_device,
    ):
        known.cache_clear()


class DLTensor(ctypes.Structure):
    """As dlpack.h has it, written out once more."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 2),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


CODES = {"int8": 0, "int32": 0, "int64": 0, "float16": 2, "float32": 2, "float64": 2, "bfloat16": 4, "bool": 6}
LookFunction = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
StreamFunction = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def exchange_table(torch: Any) -> Any:
    """DLPack's table of C functions, as newer versions of torch have it on their class of tensors."""

    def look(tensor: Any, out: Any) -> int:
        torch.asked.append("look")
        if tensor.layout != torch.strided:
            return -1
        name = tensor.dtype.removeprefix("torch.")
        bits = 8 if name == "bool" else int(re.findall("[0-9]+", name)[0])
        sides = [(ctypes.c_int64 * len(side))(*side) for side in (tensor.shape, tensor.strides)]
        tensor.sides = sides  # they are the tensor's own
        out[0] = DLTensor(tensor.pointer, (2 if tensor.is_cuda else 1, max(0, tensor.number)), len(tensor.shape))
        out[0].dtype[:], out[0].lanes = (CODES.get(name, 5), bits), 1
        out[0].shape, out[0].strides = (ctypes.cast(side, ctypes.POINTER(ctypes.c_int64)) for side in sides)
        return 0

    def stream(kind: int, number: int, out: Any) -> int:
        torch.asked.append("stream")
        assert kind == 2
        out[0] = torch.streams[number]
        return 0

    functions = LookFunction(look), StreamFunction(stream)
    words = [1 | 3 << 32, 0, 0, 0, 0, *(ctypes.cast(f, ctypes.c_void_p).value for f in functions)]
    table = (ctypes.c_uint64 * len(words))(*words)
    torch.table = functions, table
    return new_capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)


def install_torch(
    monkeypatch: pytest.MonkeyPatch, hip: str | None = None, raw_stream: bool = True, has_table: bool = True
) -> Any:
    """A module named torch, as far as tilewave looks."""
    torch: Any = ModuleType("torch")
    for dtype in DTYPES.values():
        if dtype not in INTERNAL:
            setattr(torch, dtype.numpy.name, f"torch.{dtype.numpy.name}")
    torch.complex64, torch.strided, torch.sparse_coo = "torch.complex64", "torch.strided", "torch.sparse_coo"
    torch.version = SimpleNamespace(hip=hip)
    torch.streams = {0: 0, 1: 0}
    torch.asked = []

    @dataclass(eq=False)
    class Tensor:
        pointer: int
        shape: tuple[int, ...]
        dtype: str = "torch.float32"
        number: int = 0
        strides: tuple[int, ...] = ()
        is_cuda: bool = True
        requires_grad: bool = False
        layout: str = "torch.strided"
        negated: bool = False

        def __post_init__(self) -> None:
            self.strides = self.strides or row_major(self.shape, 1)

        def data_ptr(self) -> int:
            return self.pointer

        def stride(self) -> tuple[int, ...]:
            return self.strides

        def is_neg(self) -> bool:
            return self.negated

        def get_device(self) -> int:
            return self.number

    class Parameter(Tensor):
        pass

    Tensor.__module__ = Parameter.__module__ = "torch"
    torch.Tensor, torch.nn = Tensor, SimpleNamespace(Parameter=Parameter)
    if has_table:
        Tensor.__dlpack_c_exchange_api__ = exchange_table(torch)

    def raw(number: int) -> int:
        torch.asked.append("raw")
        return torch.streams[number]

    def current(number: int) -> Any:
        torch.asked.append("current")
        return SimpleNamespace(cuda_stream=torch.streams[number])

    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=raw) if raw_stream else SimpleNamespace()
    torch.cuda = SimpleNamespace(current_stream=current)
    forget_guests()
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    return torch


def install_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module named cupy, as far as tilewave looks."""
    cupy: Any = ModuleType("cupy")
    cupy.stream = 0

    @dataclass(eq=False)
    class ndarray:
        pointer: int
        shape: tuple[int, ...]
        dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
        number: int = 0
        given_strides: tuple[int, ...] | None = None

        @property
        def data(self) -> Any:
            return SimpleNamespace(ptr=self.pointer)

        @property
        def device(self) -> Any:
            return SimpleNamespace(id=self.number)

        @property
        def strides(self) -> tuple[int, ...]:
            return self.given_strides or row_major(self.shape, self.dtype.itemsize)

    ndarray.__module__ = "cupy._core.core"
    cupy.ndarray = ndarray
    cupy.bfloat16 = np.dtype(ml_dtypes.bfloat16)
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=False), get_current_stream=lambda number: SimpleNamespace(ptr=cupy.stream)
    )
    forget_guests()
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    return cupy
