"""Remedies for a refused call, written with the functions of the array's library."""

from __future__ import annotations

from typing import Protocol

from tilewave.ir.types import DTYPES, DType
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import library


class Wanted(Protocol):
    """A parameter that a kernel needs an array for."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stored(self) -> DType: ...
    @property
    def written(self) -> bool: ...


def described(value: object) -> str:
    """Return a description of a value: `None`, `a list`, `a pandas.DataFrame`."""
    if value is None:
        return "None"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    name = kind.__name__ if package in ("builtins", "__main__") else f"{package}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


LONGEST_SHOWN = 40
"""The most characters of a value in a message."""


def brief(value: object) -> str:
    """Return a value as its author wrote it, shortened where that is long."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integers of more than 4300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def as_array(value: object) -> str:
    """Return how to make an array of a value that is none."""
    if hasattr(value, "to_numpy"):  # pandas, polars, arrow
        return "pass {name}.to_numpy()"
    if hasattr(value, "toarray"):  # scipy.sparse
        return "pass {name}.toarray()"
    if isinstance(value, list | tuple | memoryview) or hasattr(value, "__array__"):
        return "pass np.array({name})"
    return "pass a numpy array, a torch tensor, or anything with DLPack or __cuda_array_interface__"


def wrong_dtype(p: Wanted, dtype: str, array: object, device: str) -> Refused:
    """Return the refusal of an array with another dtype than the kernel takes."""
    if p.written:
        remedy = f"pass {fresh(p, array, device)}"
    elif _is_torch(array):
        remedy = f"pass {p.name}.to({_spelled(p.stored, array)})"
    else:
        remedy = f"pass {p.name}.astype({_spelled(p.stored, array)})"
    if not p.written and dtype in DTYPES and _differ_in_sign(DTYPES[dtype], p.stored):
        kept = f"pass {p.name}.view({_spelled(p.stored, array)})"
        changed = f"above the largest {p.stored}" if p.stored.is_signed else "below 0"
        remedy = f"{kept}, which keeps the bits; values {changed} change"
    if dtype in DTYPES:
        remedy += f", or compile with Memory[..., {dtype}]"
    return Refused(f"{p.name} is {dtype}, but the kernel {'writes' if p.written else 'reads'} {p.stored}", remedy)


def _differ_in_sign(one: DType, other: DType) -> bool:
    return one.is_int and other.is_int and one.bits == other.bits and one.is_signed != other.is_signed


def _is_torch(array: object) -> bool:
    return library(array) == "torch"


def moved(p: Wanted, array: object, device: str) -> str:
    """Return how to move the parameter's array to a device, with the functions of its library."""
    if p.written:
        return fresh(p, array, device)
    if not _is_torch(array):
        return f"a copy of {p.name} on {device}"
    return f"{p.name}.cpu()" if device == "cpu" else f'{p.name}.to("{_torch_device(device)}")'


def copied(p: Wanted, array: object) -> str:
    """Return how to get a contiguous copy."""
    return f"{p.name}.clone()" if _is_torch(array) else f"{p.name}.copy()"


def _torch_device(device: str) -> str:
    return device.replace("rocm", "cuda")  # torch calls both cuda


def _spelled(dtype: DType, array: object) -> str:
    """Return the dtype's name in the array's library: `np.float32`, `ml_dtypes.bfloat16`, `torch.float32`."""
    name = dtype.numpy.name
    if _is_torch(array):
        return f"torch.{name}"
    if dtype.numpy.type.__module__ != "numpy":
        return f"ml_dtypes.{name}"
    return f"np.{name}" if name != "bool" else "np.bool_"  # numpy 1 has no np.bool


def fresh(p: Wanted, array: object, device: str) -> str:
    """Return how to make a new array for the parameter, with the functions of the array's library."""
    if _is_torch(array):
        place = "" if device == "cpu" else f', device="{_torch_device(device)}"'
        return f"torch.empty({p.shape}, dtype={_spelled(p.stored, array)}{place})"
    if device == "cpu":
        return f"np.empty({p.shape}, {_spelled(p.stored, array)})"
    if library(array) == "cupy":
        return f"cupy.empty({p.shape}, {_spelled(p.stored, array)})"
    return f"a new {p.stored} array of shape {p.shape} on {device}"
