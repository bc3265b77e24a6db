"""Object code in this process: loaded once, then called with arrays; no Python runs between its workgroups."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.pool import launch_address
from tilewave.runtime.scratch import Scratch

PAGE_BYTES = 4096
KEPT_BYTES = 1 << 18
"""Memory up to this stays with a kernel between calls; more is borrowed from all kernels' common store."""


@dataclass(frozen=True)
class CpuLaunch:
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


class CpuProgram:
    """A kernel's machine code, ready to run."""

    def __init__(self, code: bytes, launch: CpuLaunch) -> None:
        self.launch = launch
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol("run")
        self._library = builder.link(_jit(), f"kernel_{next(_count)}")
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._run = kind(self._library["run"])
        self._launcher = launch_address()
        self._words = ctypes.c_int64 * launch.words
        self._packed_pages = sum(_pages(size) for size in launch.packed_bytes)
        self._scratch_pages = _pages(launch.scratch_bytes)
        self._strides: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._given = launch.scratch_slot - len(launch.packed_slots)
        self._frames: list[_Frame] = []

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], threads: int) -> None:
        self.call(self.words_of(views), numbers, threads)

    def words_of(self, views: Sequence[ArrayView]) -> list[int]:
        """What the arrays put in front of the numbers; nobody may change it."""
        words: list[int] = []
        for view, item in zip(views, self.launch.item_bytes):  # noqa: B905  strict costs time, and they are counted
            words.append(view.pointer)
            strides = view.strides
            words += self._strides.get((strides, item)) or self._in_elements(strides, item)
        return words

    def call(self, words: list[int], numbers: Sequence[int], threads: int) -> None:
        """Run it on arrays that `words_of` was given."""
        each = self._scratch_pages
        needed = self._packed_pages + threads * each
        if needed <= KEPT_BYTES:
            self._call_kept(words, numbers, threads, needed, each)
            return
        words = [*words, *numbers]
        with _SCRATCH.lease(1, needed) as lease:
            laid_out = self._words(*words, *self._memory(lease.address, each))
            self._run(self._launcher, ctypes.addressof(laid_out), threads)

    def _in_elements(self, strides: tuple[int, ...], item: int) -> list[int]:
        """Strides as machine code counts them; those of a kernel's arrays are mostly the same from call to call."""
        if len(self._strides) > 64:
            self._strides.clear()
        found = self._strides[strides, item] = [stride // item for stride in strides]
        return found

    def _call_kept(self, words: list[int], numbers: Sequence[int], threads: int, needed: int, each: int) -> None:
        """A call whose memory is small enough to be kept for the next one; each concurrent call has its own."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame.new(self._words, needed)
        if frame.bytes < needed:
            frame = _Frame.new(self._words, needed)
        if frame.each != each or not frame.ready:
            frame.words[self._given :] = self._memory(frame.memory_address, each)
            frame.each, frame.ready = each, True
        if frame.holds is not words or numbers:  # the last call had the same arrays, and no numbers
            frame.words[: self._given] = [*words, *numbers]
            frame.holds = words if not numbers else None
        self._run(self._launcher, frame.address, threads)
        self._frames.append(frame)

    def _memory(self, at: int, each: int) -> list[int]:
        """The words behind what the caller gave: each packed operand's memory, then scratch and its stride."""
        words = []
        for size in self.launch.packed_bytes:
            words.append(at)
            at += _pages(size)
        return [*words, at, each]


class _Frame:
    """The arguments of one call in memory, and small memory for it."""

    __slots__ = ("address", "bytes", "each", "holds", "memory", "memory_address", "ready", "words")

    def __init__(self, words: Any, memory: Any, size: int) -> None:
        self.words, self.memory, self.bytes = words, memory, size
        self.address = ctypes.addressof(words)
        start = ctypes.addressof(memory)
        self.memory_address = -(-start // PAGE_BYTES) * PAGE_BYTES
        self.each, self.ready = 0, False
        self.holds: list[int] | None = None
        """What stands in its words, where no numbers do."""

    @staticmethod
    def new(kind: Any, size: int) -> _Frame:
        return _Frame(kind(), ctypes.create_string_buffer(size + PAGE_BYTES), size)


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
