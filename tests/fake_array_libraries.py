"""torch and cupy as tilewave sees them: a few attributes of an array, and a current stream."""

from __future__ import annotations

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
    of_torch = guests._torch_reader, guests._torch_dtypes, guests._torch_device
    for known in (
        guests._library,
        guests._reader,
        guests._reader_of,
        guests.devices_of,
        *of_torch,
        guests._cupy_device,
    ):
        known.cache_clear()


def install_torch(monkeypatch: pytest.MonkeyPatch, hip: str | None = None, raw_stream: bool = True) -> Any:
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
