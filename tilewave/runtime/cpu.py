"""Object code in this process: loaded once, then called with arrays; no Python runs between its workgroups."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
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
from tilewave.runtime.pool import launch_address
from tilewave.runtime.scratch import Scratch
from tilewave.runtime.sizes import KEPT_CALLS

PAGE_BYTES = 4096
KEPT_BYTES = 1 << 18
"""Memory up to this stays with a kernel between calls; more is leased from the scratch of all kernels."""


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
        self._opening = Opening(launch.opening) if launch.opening else None
        self._known = CallSizes((), launch.packed_bytes, 1)
        self._scratch_pages = _pages(launch.scratch_bytes)
        self._strides: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._given = launch.scratch_slot - len(launch.packed_slots)
        self._frames: list[_Frame] = []

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], threads: int) -> None:
        self.call(self.words_of(views), numbers, threads)

    def words_of(self, views: Sequence[ArrayView]) -> list[int]:
        """Return the argument words of the arrays, which precede the scalars; frames compare the list by identity."""
        words: list[int] = []
        for view, item in zip(views, self.launch.item_bytes):  # noqa: B905  strict costs time, and they are counted
            words.append(view.pointer)
            strides = view.strides
            words += self._strides.get((strides, item)) or self._in_elements(strides, item)
        return words

    def call(self, words: list[int], numbers: Sequence[int], threads: int) -> None:
        """Run the kernel on the arrays of `words_of`."""
        sizes = self._known
        if self._opening:
            sizes = self._opening.of(tuple(numbers))
            if sizes.workgroups < 2:
                threads = sizes.workgroups
            numbers = self._opening.passed(tuple(numbers), sizes)
        if not threads:
            return
        each = self._scratch_pages
        needed = sizes.packed_pages + threads * each
        if needed <= KEPT_BYTES:
            self._call_kept(words, numbers, sizes, threads, needed)
            return
        words = [*words, *numbers]
        with _SCRATCH.lease(1, needed) as lease:
            laid_out = self._words(*words, *self._memory(lease.address, sizes, each))
            self._run(self._launcher, ctypes.addressof(laid_out), threads)

    def replay(self, views: Sequence[ArrayView]) -> CpuReplay:
        """Return the replayed call for arrays with the layout of `views`, at any addresses."""
        ranks = [len(view.strides) for view in views]
        places = [*accumulate((1 + rank for rank in ranks[:-1]), initial=0)]
        return CpuReplay(self, self.words_of(views), places)

    def _in_elements(self, strides: tuple[int, ...], item: int) -> list[int]:
        """Return strides in elements, as machine code counts them, and store them for the next calls."""
        if len(self._strides) > 64:
            self._strides.clear()
        found = self._strides[strides, item] = [stride // item for stride in strides]
        return found

    def _call_kept(self, words: list[int], numbers: Sequence[int], sizes: CallSizes, threads: int, needed: int) -> None:
        """Make a call whose memory is small enough to keep for the next one; concurrent calls have separate memory."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame.new(self._words, needed)
        if frame.bytes < needed:
            frame = _Frame.new(self._words, needed)
        if frame.laid_out_for is not sizes:
            frame.words[self._given :] = self._memory(frame.memory_address, sizes, self._scratch_pages)
            frame.laid_out_for = sizes
        if frame.holds is not words or frame.numbers is not numbers:
            frame.words[: self._given] = [*words, *numbers]
            frame.holds, frame.numbers = words, numbers
        self._run(self._launcher, frame.address, threads)
        self._frames.append(frame)

    def _memory(self, at: int, sizes: CallSizes, each: int) -> list[int]:
        """Return the words after the caller's: the address of each packed operand, then scratch and its stride."""
        words = []
        for size in sizes.packed_bytes:
            words.append(at)
            at += _pages(size)
        return [*words, at, each]


class CpuReplay:
    """A replayed call, in which only addresses and numbers are new."""

    def __init__(self, program: CpuProgram, words: list[int], places: list[int]) -> None:
        """`words` are the argument words of arrays with this layout; `places` are the positions of their addresses."""
        self._program, self._words, self._places = program, words, places

    def __call__(self, addresses: Iterable[int], numbers: tuple[int, ...], threads: int) -> None:
        words = self._words.copy()
        for place, address in zip(self._places, addresses):  # noqa: B905  strict costs time, and they are counted
            words[place] = address
        self._program.call(words, numbers, threads)


class _Frame:
    """The arguments of one call in memory, and its small scratch memory."""

    __slots__ = ("address", "bytes", "holds", "laid_out_for", "memory", "memory_address", "numbers", "words")

    def __init__(self, words: Any, memory: Any, size: int) -> None:
        self.words, self.memory, self.bytes = words, memory, size
        self.address = ctypes.addressof(words)
        start = ctypes.addressof(memory)
        self.memory_address = -(-start // PAGE_BYTES) * PAGE_BYTES
        self.laid_out_for: CallSizes | None = None
        self.holds: list[int] | None = None
        """The list that `words` was filled from; with `numbers` it shows whether the next call can reuse the frame."""
        self.numbers: Sequence[int] | None = None

    @staticmethod
    def new(kind: Any, size: int) -> _Frame:
        return _Frame(kind(), ctypes.create_string_buffer(size + PAGE_BYTES), size)


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
