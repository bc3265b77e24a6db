"""Object code in this process: loaded once, then called with arrays; no Python runs between its workgroups."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.pool import Scratch, launch_address

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Launch:
    """What a call must lay out: how many words the arguments take, and which memory to provide."""

    words: int
    packed_slots: tuple[int, ...]
    packed_bytes: tuple[int, ...]
    scratch_slot: int
    scratch_bytes: int
    item_bytes: tuple[int, ...]
    """Of each array's elements: strides are passed in elements."""


@cache
def _jit() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


_SCRATCH = Scratch()
_count = iter(range(1 << 62))


class Program:
    """A kernel's machine code, ready to run."""

    def __init__(self, code: bytes, launch: Launch) -> None:
        self.launch = launch
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol("run")
        self._library = builder.link(_jit(), f"kernel_{next(_count)}")
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._run = kind(self._library["run"])
        self._launcher = launch_address()
        self._words = ctypes.c_int64 * launch.words
        self._packed_pages = sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in launch.packed_bytes)

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], threads: int) -> None:
        words: list[int] = []
        for view, item in zip(views, self.launch.item_bytes, strict=True):
            words.append(view.pointer)
            words += [stride // item for stride in view.strides]
        words += numbers
        if not self._packed_pages and not self.launch.scratch_bytes:
            self._call([*words, 0, 0], threads)
            return
        each = -(-self.launch.scratch_bytes // PAGE_BYTES) * PAGE_BYTES
        with _SCRATCH.lease(1, self._packed_pages + threads * each) as lease:
            at = lease.address
            for size in self.launch.packed_bytes:
                words.append(at)
                at += -(-size // PAGE_BYTES) * PAGE_BYTES
            self._call([*words, at, each], threads)

    def _call(self, words: list[int], threads: int) -> None:
        laid_out = self._words(*words)  # kept until the call returns
        self._run(self._launcher, ctypes.addressof(laid_out), threads)
