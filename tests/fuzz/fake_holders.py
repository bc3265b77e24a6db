"""torch and cupy as far as a reproduction uses them, in this machine's memory."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class Tensor:
    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory

    def cuda(self) -> Tensor:
        return Tensor(self.memory.copy())

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.memory

    def view(self, kind: str) -> Tensor:
        return Tensor(self.memory.view(kind))

    def as_strided(self, shape, steps, first) -> np.ndarray:
        strides = [s * self.memory.itemsize for s in steps]
        return np.lib.stride_tricks.as_strided(self.memory[first:], shape, strides)


class Place:
    """An address: memory and bytes from its beginning."""

    def __init__(self, memory: np.ndarray, first: int = 0) -> None:
        self.memory, self.first = memory, first

    def __add__(self, bytes: int) -> Place:
        return Place(self.memory, self.first + bytes)


def fake_torch() -> Any:
    torch = _module("torch")
    torch.from_numpy, torch.frombuffer = Tensor, _frombuffer
    torch.cuda.synchronize = lambda: None
    for name in ("float32", "float16", "bool", "uint8"):
        setattr(torch, name, name)
    return torch


def _frombuffer(buffer: bytearray, dtype: str) -> Tensor:
    if not buffer:
        raise ValueError("both buffer length (0) and count (-1) must not be 0")
    return Tensor(np.frombuffer(buffer, dtype))


def fake_cupy() -> Any:
    cupy = _module("cupy")
    cupy.asarray = lambda x: SimpleNamespace(data=Place(memory := x.copy()), get=lambda: memory)
    cupy.ndarray = lambda shape, dtype, at, strides: np.ndarray(shape, dtype, at.memory, at.first, strides)
    return cupy


def _module(name: str) -> Any:
    module: Any = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.cuda = SimpleNamespace(is_available=lambda: True)
    return module
