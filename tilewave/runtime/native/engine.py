"""The machine code that every launch on an NVIDIA GPU runs on the host: from the compile cache, or compiled by LLVM.

It evaluates host programs, fills what the driver reads of a launch, and calls the driver. `call` does a whole call of
torch tensors: it reads each tensor's layout (by DLPack's table of C functions, which takes a sixth of the time that
attributes take), runs the kernel's program, finds the launch in the kernel's dictionary, and makes it. Calls that it
does not know are left to Python.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

from tilewave.forks import IMPORTING, LOCKS
from tilewave.runtime.native.calls import call, is_plain, look_at, make_call, read_tensor
from tilewave.runtime.native.dynamic import chosen_call, dynamic_call, new_result, new_tuple, result_of, try_plan
from tilewave.runtime.native.host_code import functions_of
from tilewave.runtime.native.launch import make_launch
from tilewave.runtime.native.records import NativeRecord
from tilewave.runtime.native.replay import layout, replay_call
from tilewave.runtime.native.steps import INTRINSICS, evaluate
from tilewave.runtime.native.text import copy_words

_MAKING = threading.RLock()
"""Held while the machine code is made."""
LOCKS.append(_MAKING)
_FAST_CALL = 0x80
"""Python's METH_FASTCALL: arguments come as an array and a count."""


class _MethodDefinition(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


# A private prototype, as anyone may set the argtypes of `ctypes.pythonapi`.
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class Engine(NamedTuple):
    """The functions of the machine code."""

    evaluate: Any
    """Takes the addresses of a program and of its numbers."""
    launch: Any
    """Takes a record of `LAUNCH`, the address of the call's numbers, and a stream."""
    make_call: Any
    """Takes a record of `CALL`, the address of arrays and numbers with space for the program, a device and a stream."""
    call: _MethodDefinition
    """A call of (arrays, numbers), bound to a record of `CALL`."""
    layout: _MethodDefinition
    """From (arrays, grad) to the layout key, bound to a record of `READER`."""
    replay_call: _MethodDefinition
    """A replayed call of (arrays[, numbers]), bound to a record of its first call."""
    dynamic_call: _MethodDefinition
    """A call of (arrays, grad) by a plan for any sizes, bound to a record of `CALLS`."""


def of_record(method: _MethodDefinition, record: NativeRecord) -> Any:
    """Return a Python function bound to a record, which it keeps alive as if it were its module."""
    return _new_function(ctypes.addressof(method), record.address, record)


def engine() -> Engine:
    """Return the machine code, made at the first launch of the process, or before in the background."""
    return _Made.engine or _made_once()


class _Made:
    """The machine code of the process."""

    engine: Engine | None = None


def _made_once() -> Engine:
    with IMPORTING, _MAKING:  # in this order, as a fork takes them: compiling imports LLVM
        if _Made.engine is None:
            _Made.engine = _made()
        return _Made.engine


PARTS = (
    *(copy_words, evaluate, make_launch, make_call, look_at, is_plain, read_tensor, call, layout, replay_call),
    *(chosen_call, new_tuple, new_result, result_of, try_plan, dynamic_call),
)
METHODS = ("call", "layout", "replay_call", "dynamic_call")
NAMES = ("evaluate", "make_launch", "make_call", *METHODS)


def _made() -> Engine:
    text = INTRINSICS + "".join(part() for part in PARTS)
    found = functions_of(NAMES, ["engine", text], lambda: text)
    address, word = ctypes.c_void_p, ctypes.c_int64
    return Engine(
        ctypes.PYFUNCTYPE(word, address, address)(found["evaluate"]),
        ctypes.PYFUNCTYPE(word, address, address, word)(found["make_launch"]),
        ctypes.PYFUNCTYPE(word, address, address, word, word)(found["make_call"]),
        *(_MethodDefinition(name.encode(), found[name], _FAST_CALL, None) for name in METHODS),
    )
