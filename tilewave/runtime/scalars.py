"""Scalar arguments for parameters such as `alpha: f32`: checked, rounded once, and converted to words of a launch.

A launch passes every scalar in a word of 64 bits, with the scalar in the low bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewave.ir.casts import cast
from tilewave.ir.types import BOOL, DTYPES, F32, F64, I64, U64, DType
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.remedies import brief, described

_FLOATS = {dtype.numpy for dtype in DTYPES.values() if dtype.is_float}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PACKED = {
    32: (struct.Struct("<f").pack, struct.Struct("<I").unpack),
    64: (struct.Struct("<d").pack, struct.Struct("<q").unpack),
}


_LARGEST = float(np.finfo(np.float32).max)
_USUAL: dict[tuple[type, str], tuple[float, float, Any]] = {
    (float, F32.name): (-_LARGEST, _LARGEST, np.float32),
    (float, F64.name): (-math.inf, math.inf, np.float64),
    (bool, BOOL.name): (False, True, bool),
    **{(int, d.name): (*d.bounds, int) for d in DTYPES.values() if d.is_int},
}
"""The fast path of most calls: the bounds of a value, and the type it becomes."""


def scalar_value(name: str, given: object, dtype: DType) -> Any:
    """Return the value that a kernel computes with: a numpy float, a Python int or bool; `Refused` where it is none."""
    usual = _USUAL.get((type(given), dtype.name))
    if usual is not None:
        low, high, make = usual
        if low <= given <= high:  # type: ignore[operator]
            return make(given)
    return _looked_at(name, given, dtype)


def _looked_at(name: str, given: object, dtype: DType) -> Any:
    kind = _kind(given)
    if kind != dtype.kind:
        raise Refused(f"{name} is {_shown(given)}, but the kernel takes {_wanted(dtype)}", _remedy(name, given, dtype))
    number: Any = given.item() if isinstance(given, np.ndarray) and given.dtype not in _FLOATS else given
    if dtype == BOOL:
        return bool(number)
    return _rounded(name, number, dtype) if dtype.is_float else _whole(name, int(number), dtype)


def _kind(given: object) -> str:
    """Return `float`, `int` or `bool`; empty for anything else."""
    if isinstance(given, np.generic) or (isinstance(given, np.ndarray) and not given.ndim):
        letter = given.dtype.kind
        is_float = letter == "f" or given.dtype in _FLOATS
        return "float" if is_float else {"i": "int", "u": "int", "b": "bool"}.get(letter, "")
    kinds = ((bool, "bool"), (int, "int"), (float, "float"))
    return next((name for kind, name in kinds if isinstance(given, kind)), "")


def _rounded(name: str, given: Any, dtype: DType) -> Any:
    found = cast(float(given), dtype)
    if not math.isnan(given) and (math.isnan(found) or math.isfinite(given) != math.isfinite(found)):
        larger = "" if dtype.bits == 64 else f"; declare {name}: f64 for numbers as large as this one"
        remedy = f"the largest {dtype} is {largest(dtype)}{larger}"
        raise Refused(f"{name} is {given!s}, which {dtype} does not have", remedy)
    return found


def largest(dtype: DType) -> Any:
    """Return the largest finite number of a float dtype."""
    return ml_dtypes.finfo(dtype.numpy).max  # type: ignore[no-untyped-call]


def _whole(name: str, given: int, dtype: DType) -> int:
    least, greatest = dtype.bounds
    if not least <= given <= greatest:
        wider = next((d for d in (I64, U64) if d.bounds[0] <= given <= d.bounds[1]), None)
        larger = f", or declare {name}: {wider}" if wider else ""
        remedy = f"{dtype} goes from {least} to {greatest}{larger}"
        raise Refused(f"{name} is {brief(given)}, which is no {dtype}", remedy)
    return given


def _shown(given: object) -> str:
    if isinstance(given, int):
        return f"{brief(given)} ({type(given).__name__})"
    if isinstance(given, (float, np.generic)):
        return f"{given} ({type(given).__name__})"
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype.name}"
    return described(given)


def _wanted(dtype: DType) -> str:
    return {"float": f"a float ({dtype})", "int": f"a whole number ({dtype})", "bool": "True or False"}[dtype.kind]


def _remedy(name: str, given: object, dtype: DType) -> str:
    kind = _kind(given)
    if not kind:
        asks = f"pass {name}.item()" if hasattr(given, "item") else f"pass {name}=…, a Python or numpy number"
        return asks if getattr(given, "shape", ()) == () else f"declare {name} as Memory[…] to pass an array"
    number: Any = given
    if dtype == BOOL:
        return f"write {name}={number != 0}"
    if dtype.is_float:
        return _as_float(name, number, dtype)
    declare = f"declare {name}: f32 to compute with fractions"
    return f"write {name}={int(number)}, or {declare}" if math.isfinite(number) else declare


def _as_float(name: str, number: Any, dtype: DType) -> str:
    """Return how to write an integer or a bool as a float, or the largest float where it is larger."""
    try:
        return f"write {name}={float(number)}"
    except OverflowError:
        return f"the largest {dtype} is {largest(dtype)}"


def word_of(value: Any, dtype: DType) -> int:
    """Return the value as a signed 64-bit word: its bits are the low ones; integers are sign- or zero-extended."""
    return word_maker(dtype)(value)


def word_maker(dtype: DType) -> Callable[[Any], int]:
    """Return the function that converts values of a dtype to words."""
    if dtype == U64:
        return lambda value: int(value) - (int(value) >> 63 << 64)
    if not dtype.is_float:
        return int
    if dtype.bits >= 32:
        pack, unpack = _PACKED[dtype.bits]
        return lambda value: unpack(pack(value))[0]
    return lambda value: int(np.asarray(value, dtype.numpy).view(_UNSIGNED[dtype.bytes]))


def value_of(word: int, dtype: DType) -> Any:
    """Return the value that `word_of` converted."""
    if dtype == BOOL:
        return bool(word)
    if not dtype.is_float:
        return word if dtype.is_signed else word & dtype.bounds[1]
    return np.asarray(word & (1 << dtype.bits) - 1, _UNSIGNED[dtype.bytes]).view(dtype.numpy)[()]
