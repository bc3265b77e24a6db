"""Functions for the host in LLVM IR: compiled once, and read from the compile cache without LLVM from then on.

The cache has them as an `Image`, which this module writes to memory; where there is no image of a host's code, it has
the object file, which LLVM links.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tilewave.forks import IMPORTING
from tilewave.runtime.cache import compile_key, default_cache
from tilewave.runtime.native.image import Image, image_of

Functions = Mapping[str, int]
"""The addresses of functions by their names."""
_HOST = sys.platform, platform.machine(), str(sys.maxsize)
_KEPT: list[Any] = []
"""The owners of all code: it is called until the process ends."""
_KNOWN = re.compile(r"@(_?Py\w+)")
_OBJECTS = {"_Py_NoneStruct": None, "_Py_FalseStruct": False}
"""Immortal objects of Python that machine code compares with, by their symbols."""


def functions_of(names: Sequence[str], key: Sequence[str], text: Callable[[], str]) -> Functions:
    """Return functions of LLVM IR, from the cache or compiled; the key says what the text is made from.

    The text may use the functions of Python's C API, and the objects in `_OBJECTS`, by their names.
    """
    cache, entry = default_cache(), compile_key("host code", *_HOST, *names, *key)
    stored = cache.get(entry)
    image = None if stored is None else Image.restored(stored)
    if image is None:
        made = _compiled(text()) if stored is None or stored.startswith(b"{") else stored
        image = image_of(made)
        kept = made if image is None else image.stored()
        if kept != stored:
            cache.put(entry, kept)
        if image is None:
            return _linked(made, names)
    found = _mapped(image)
    return {name: found + image.functions[name] for name in names}


def _compiled(text: str) -> bytes:
    """Return the object file of LLVM IR, with declarations of what it uses of Python."""
    used = dict.fromkeys(_KNOWN.findall(text))
    declared = [
        f"@{name} = external global i8" if name in _OBJECTS else f"declare void @{name}() nonlazybind" for name in used
    ]
    llvm, machine = _llvm()
    code: bytes = machine.emit_object(llvm.parse_assembly("\n".join([*declared, text])))
    return code


def _llvm() -> tuple[Any, Any]:
    with IMPORTING:
        import llvmlite.binding as llvm  # noqa: PLC0415  it is heavy, and the cache mostly has the code
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_default_triple()
    return llvm, triple.create_target_machine(opt=1, reloc="pic", codemodel="small")


def _linked(code: bytes, names: Sequence[str]) -> Functions:
    """Return the functions of an object file, linked by LLVM."""
    llvm, machine = _llvm()
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in names:
        builder.export_symbol(name)
    compiler = llvm.create_lljit_compiler(machine)
    library = builder.link(compiler, f"host code {len(_KEPT)}")
    _KEPT.append((compiler, library))
    return {name: int(library[name]) for name in names}


def _mapped(image: Image) -> int:
    """Write an image to memory that can be run, and return its address."""
    memory = mmap.mmap(-1, len(image.code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(image.code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for name, at in image.addresses.items():
        ctypes.c_void_p.from_address(address + at).value = address_of(name)
    protect = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(("mprotect", ctypes.pythonapi))(address, len(image.code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError("this process may not run machine code that it has written")
    if image.frames >= 0:
        _register(address + image.frames)
    _KEPT.append(memory)
    return address


def _register(frames: int) -> None:
    """Register unwinding tables: a thread that ends within a call leaves all functions that it is in."""
    with suppress(OSError, AttributeError):  # a C library without gcc's unwinder
        ctypes.CDLL("libgcc_s.so.1").__register_frame(ctypes.c_void_p(frames))


def address_of(name: str) -> int:
    """Return the address of a function of Python's C API, or of an object of Python."""
    if name in _OBJECTS:
        return id(_OBJECTS[name])
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
