"""What every launch on an NVIDIA GPU runs on the host, as machine code: made once in a process, by LLVM.

It computes host programs, fills what the driver reads of a launch, and has the driver launch it. `call` does all that a
call needs whose arrays are torch's: it asks each tensor where it lies (by DLPack's table of C functions, which takes a
sixth of the time that its attributes take), runs the kernel's program, finds the launch in the kernel's own dictionary,
and makes it. What it does not know, it leaves to Python.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from tilewave.forks import IMPORTING
from tilewave.runtime.native.calls import call, is_plain, look_at, make_call, read_tensor
from tilewave.runtime.native.launch import make_launch
from tilewave.runtime.native.records import NativeRecord
from tilewave.runtime.native.replay import layout, replay_call
from tilewave.runtime.native.steps import INTRINSICS, evaluate

_FAST_CALL = 0x80
"""As Python numbers ways to call: arguments come in an array, and with their number."""


class _MethodDefinition(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


# A prototype of our own: `ctypes.pythonapi` is shared by everybody who sets its argtypes.
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class Engine(NamedTuple):
    """The machine code, callable."""

    evaluate: Any
    """A program and its numbers, by their addresses."""
    launch: Any
    """A record of `LAUNCH`, the numbers of a call by their address, and a stream."""
    make_call: Any
    """A record of `CALL`, arrays and numbers by their address, with room for a program, a device and a stream."""
    call: _MethodDefinition
    """call(arrays, numbers) of a record of `CALL`."""
    layout: _MethodDefinition
    """lie(arrays, grad) of a record of `READER`."""
    replay_call: _MethodDefinition
    """replay_call(arrays[, numbers]) of a record of `ALIKE`."""
    memory: Any
    """What holds it."""


def of_record(method: _MethodDefinition, record: NativeRecord) -> Any:
    """A function of a record, which lives as long: Python takes it for that one's module."""
    return _new_function(ctypes.addressof(method), record.address, record)


@cache
def engine() -> Engine:
    """Made when something is first launched."""
    with IMPORTING:
        import llvmlite.binding as llvm  # noqa: PLC0415  it is heavy, and most of what is compiled is not launched

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    parts = (evaluate, make_launch, make_call, look_at, is_plain, read_tensor, call, layout, replay_call)
    builder = llvm.JITLibraryBuilder().add_ir(INTRINSICS + "".join(part() for part in parts))
    for name in ("evaluate", "make_launch", "make_call", "call", "lie", "replay_call"):
        builder.export_symbol(name)
    compiler = llvm.create_lljit_compiler(machine)
    library = builder.link(compiler, "host_engine")
    address, word = ctypes.c_void_p, ctypes.c_int64
    return Engine(
        ctypes.PYFUNCTYPE(word, address, address)(library["evaluate"]),
        ctypes.PYFUNCTYPE(word, address, address, word)(library["make_launch"]),
        ctypes.PYFUNCTYPE(word, address, address, word, word)(library["make_call"]),
        _MethodDefinition(b"call", library["call"], _FAST_CALL, None),
        _MethodDefinition(b"lie", library["lie"], _FAST_CALL, None),
        _MethodDefinition(b"replay_call", library["replay_call"], _FAST_CALL, None),
        (compiler, library),
    )
