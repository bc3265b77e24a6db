"""Arrays that are made for a call, of the library and on the device of its own."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import filled


def array_of(library, device):
    """An array as far as its library and device go."""
    return type("Array", (), {"__module__": f"{library}.core", "device": device})()


def test_torch_makes_them_on_the_device_of_the_array(monkeypatch):
    made = SimpleNamespace(int32="i32", full=lambda shape, value, dtype, device: (shape, value, dtype, device))
    monkeypatch.setitem(sys.modules, "torch", made)
    assert filled(array_of("torch", "cuda:1"), 3, 7) == ((3,), 7, "i32", "cuda:1")


def test_cupy_makes_them_on_the_device_of_the_array(monkeypatch):
    entered = []
    device = nullcontext()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(full=lambda *facts: entered.append(facts)))
    filled(array_of("cupy", device), 3, 7)
    assert entered == [(3, 7, "int32")]


def test_other_libraries_are_not_asked():
    with pytest.raises(Refused, match="is not known to make another"):
        filled(np.empty(3), 3, 7)
