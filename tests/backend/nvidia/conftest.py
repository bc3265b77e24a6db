"""A machine with an H200, and a torch with tensors on it: both are fakes that check their arguments."""

import pytest
from fake_array_libraries import forget_guests, install_torch
from fake_cuda import FakeCuda, Gpu

import tilewave.backend.nvidia.compiler  # noqa: F401  LLVM is loaded before ctypes.CDLL is a fake
from tilewave.runtime import cuda_driver as cuda_driver_module
from tilewave.runtime import driver as driver_module


@pytest.fixture
def fake(monkeypatch):
    """Install a fake driver for a machine with an H200."""
    fake = FakeCuda(Gpu())
    cuda_driver_module._opened.cache_clear()
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda file: fake)
    yield fake
    cuda_driver_module._opened.cache_clear()
    forget_guests()
    assert fake.faults == []


@pytest.fixture
def torch(monkeypatch):
    return install_torch(monkeypatch)
