"""Object code in this process: loaded once, then called with arrays; no Python runs between its workgroups."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import llvmlite.binding as llvm

from tilewave.forks import cached_property
from tilewave.ir.launch import HostLaunch, numbers_of
from tilewave.ir.ops import Prepack
from tilewave.ir.parse import parse
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.pool import MAX_THREADS, launch_address, runner_on_numpy
from tilewave.runtime.scratch import Scratch
from tilewave.runtime.sizes import KEPT_CALLS

PAGE_BYTES = 4096
KEPT_STRIDES = 64
"""The layouts of arrays whose strides in elements a kernel keeps."""


@dataclass(frozen=True)
class CpuLaunch:
    """The layout of a call's arguments: how many words they take, and which memory to provide."""

    words: int
    packed_slots: tuple[int, ...]
    packed_bytes: tuple[int, ...]
    """The size of each packed operand, where all sizes are static."""
    scratch_slot: int
    scratch_bytes: int
    item_bytes: tuple[int, ...]
    """The element size of each array: strides are passed in elements."""
    opening: str = ""
    """For a kernel with dynamic shapes: its launch and its packed memories, as IR text."""


@dataclass(frozen=True)
class CallSizes:
    """The launch for the sizes of a call."""

    numbers: tuple[int, ...]
    """The call's numbers, then what its launch computes."""
    packed_bytes: tuple[int, ...]
    workgroups: int

    @cached_property
    def packed_pages(self) -> int:
        return sum(map(_pages, self.packed_bytes))


class Opening:
    """Computes a launch from the sizes of a call, for dynamic shapes; results are stored by the sizes."""

    def __init__(self, text: str) -> None:
        kernel = parse(text)
        self._launch = HostLaunch(kernel)
        at = {name: place for place, name in enumerate(self._launch.names)}
        self._packed: list[tuple[int, list[int]]] = []
        """For each packed memory: its static bytes, and the positions of the numbers that multiply them."""
        for kind in (op.result.type for op in kernel.body.ops if isinstance(op, Prepack)):
            known = prod(n for n in kind.extents if isinstance(n, int)) * kind.dtype.bytes
            self._packed.append((known, [at[n] for n in kind.extents if isinstance(n, str)]))
        given = numbers_of(kernel)
        self._given = len(given)
        self._indices = tuple(i for i, v in enumerate(given) if v.type == INDEX_SCALAR)
        self._kept: dict[tuple[int, ...], CallSizes] = {}

    def of(self, numbers: tuple[int, ...]) -> CallSizes:
        """Return the launch for these numbers; it depends on the indices among them alone."""
        indices = numbers if len(self._indices) == self._given else tuple([numbers[i] for i in self._indices])
        found = self._kept.get(indices)
        if found is None:
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            found = self._kept[indices] = self._sizes(numbers)
        return found

    def passed(self, numbers: tuple[int, ...], sizes: CallSizes) -> tuple[int, ...]:
        """Return the numbers of a call, then what its launch computes."""
        if len(self._indices) == self._given:
            return sizes.numbers
        return (*numbers, *sizes.numbers[self._given :])

    def _sizes(self, numbers: tuple[int, ...]) -> CallSizes:
        launched = self._launch(numbers)
        packed = [known * prod([launched.numbers[place] for place in places]) for known, places in self._packed]
        return CallSizes(launched.numbers, tuple(packed), launched.workgroups)


@cache
def _jit() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The other linker maps code and constants apart, and aborts the process where 2 GiB or more are between them.
    return llvm.create_lljit_compiler(use_jit_link=os.name == "posix")


_SCRATCH = Scratch()
_count = iter(range(1 << 62))


class CpuProgram:
    """A kernel's machine code, ready to run."""

    def __init__(self, code: bytes, launch: CpuLaunch) -> None:
        self.launch = launch
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol("run")
        self._library = builder.link(_jit(), f"kernel_{next(_count)}")
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.run_address: int = self._library["run"]
        self.run: Callable[[int, int, int], None] = kind(self.run_address)
        self.run_on = runner_on_numpy()
        self.launcher = launch_address()
        self.words = ctypes.c_int64 * launch.words
        self._opening = Opening(launch.opening) if launch.opening else None
        self._known = CallSizes((), launch.packed_bytes, MAX_THREADS)  # the launcher knows the number of workgroups
        self.scratch_pages = _pages(launch.scratch_bytes)
        self._strides: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], threads: int) -> None:
        self.call(self.words_of(views), numbers, threads)

    def words_of(self, views: Sequence[ArrayView]) -> list[int]:
        """Return the argument words of the arrays, which precede the scalars."""
        words: list[int] = []
        for view, item in zip(views, self.launch.item_bytes):  # noqa: B905  strict costs time, and they are counted
            words.append(view.pointer)
            strides = view.strides
            words += self._strides.get((strides, item)) or self._in_elements(strides, item)
        return words

    def call(self, words: list[int], numbers: Sequence[int], threads: int) -> None:
        """Run the kernel on the arrays of `words_of`."""
        sizes, passed = self._sized(tuple(numbers))
        CpuReplay(self, [*words, *passed], [], sizes)((), threads)

    def _sized(self, numbers: tuple[int, ...]) -> tuple[CallSizes, tuple[int, ...]]:
        """Return the launch for the numbers of a call, and these numbers with what it computes."""
        if self._opening is None:
            return self._known, numbers
        sizes = self._opening.of(numbers)
        return sizes, self._opening.passed(numbers, sizes)

    def replay(self, views: Sequence[ArrayView], numbers: Sequence[int]) -> CpuReplay:
        """Return the replayed call for arrays with the layout of `views`, at any addresses."""
        ranks = [len(view.strides) for view in views]
        places = [*accumulate((1 + rank for rank in ranks[:-1]), initial=0)]
        sizes, passed = self._sized(tuple(numbers))
        return CpuReplay(self, [*self.words_of(views), *passed], places, sizes)

    def _in_elements(self, strides: tuple[int, ...], item: int) -> list[int]:
        """Return strides in elements, as machine code counts them, and store them for the next calls."""
        if len(self._strides) > KEPT_STRIDES:
            self._strides.clear()
        found = self._strides[strides, item] = [stride // item for stride in strides]
        return found


class CpuReplay:
    """A call whose arrays have a known layout, for arrays at any addresses."""

    def __init__(self, program: CpuProgram, words: list[int], places: list[int], sizes: CallSizes) -> None:
        """`words` are the arguments of a call with this layout; `places` are the positions of addresses among them."""
        self._program, self._words, self._places, self._sizes = program, words, places, sizes
        self._frames: list[_Frame] = []
        """The arguments of past calls, of which each call uses one: concurrent calls have separate ones."""

    def __call__(self, addresses: Iterable[int], threads: int) -> None:
        program, threads = self._program, self._threads(threads)
        if not threads:
            return
        region = _SCRATCH.take(self._sizes.packed_pages + threads * program.scratch_pages)
        frame = self._frame(region.address)
        words = frame.words
        for place, address in zip(self._places, addresses, strict=True):
            words[place] = address
        program.run(program.launcher, frame.address, threads)
        self._frames.append(frame)
        _SCRATCH.give(region)

    def on(self, arrays: tuple[Any, ...], threads: int) -> None:
        """Run the call on numpy arrays, whose addresses machine code reads."""
        program, threads = self._program, self._threads(threads)
        if not threads:
            return
        region = _SCRATCH.take(self._sizes.packed_pages + threads * program.scratch_pages)
        frame = self._frame(region.address)
        program.run_on(frame.head_address, threads, arrays)
        self._frames.append(frame)
        _SCRATCH.give(region)

    def _threads(self, threads: int) -> int:
        workgroups = self._sizes.workgroups
        return threads if workgroups > 1 else workgroups

    def _frame(self, memory: int) -> _Frame:
        """Return a frame that no other call uses, with its memory at this address."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(self._program, self._words, self._places)
        if frame.memory_at != memory:
            for place, word in enumerate(self._memory(memory), len(self._words)):
                frame.words[place] = word
            frame.memory_at = memory
        return frame

    def _memory(self, at: int) -> list[int]:
        """Return the words after the caller's: the address of each packed operand, then scratch and its stride."""
        words = []
        for size in self._sizes.packed_bytes:
            words.append(at)
            at += _pages(size)
        return [*words, at, self._program.scratch_pages]


class _Frame:
    """The arguments of one call in memory."""

    __slots__ = ("address", "head", "head_address", "memory_at", "words")

    def __init__(self, program: CpuProgram, words: Sequence[int], places: Sequence[int]) -> None:
        self.words = program.words(*words)
        self.address = ctypes.addressof(self.words)
        head = (program.run_address, program.launcher, self.address, len(places), *places)
        self.head = (ctypes.c_int64 * len(head))(*head)
        """What `pool.runner_on_numpy` reads."""
        self.head_address = ctypes.addressof(self.head)
        self.memory_at = -1
        """The scratch memory that the words are for."""


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
