"""Unaligned neighbours, moved in aligned 16-byte accesses.

A chunk of 16 bytes at address a is in the aligned blocks of its first and of its last byte, which are one block where
a is a multiple of 16. Both are loaded, and the bytes from a on are shifted down:

    block:    x0 x1 x2 x3 | y0 y1 y2 y3          words of 32 bits; here a begins in the middle of x2
    by 8:     x2 x3 y0 y1 y2 y3                  where bit 3 of a is set
    by 4:     the same                           where bit 2 of a is set, one further
    by bytes: x2⋯x3 x3⋯y0 y0⋯y1 y1⋯y2            a funnel shift by the last two bits

Each block that is loaded has an element of the array: only aligned blocks of the array are accessed. Where a chunk
crosses the end of its row, or begins before it, the blocks are those of its first and last element inside, and the
elements outside are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import gcd

from tilewave.ir.ops import Load, LoadUnaligned, Store, StoreUnaligned
from tilewave.ir.placements import row_elements
from tilewave.ir.types import Memory, Padded, Swizzled
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.memory import RAW, Chunks, GlobalAccess, GlobalPlace, bounds, from_raw, to_raw
from tilewave.lower.gpu.pointers import Pointers
from tilewave.lower.gpu.values import Held, cut, regrouped
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass

BLOCK_BYTES = 16
WORD_BYTES = 4
WORDS = BLOCK_BYTES // WORD_BYTES
BLOCK = RAW[BLOCK_BYTES]
BLOCKS_OF_A_CHUNK = 2


def takes_blocks(memory: GlobalAccess, op: Load | Store, place: GlobalPlace, shape: tuple[int, ...]) -> bool:
    """Return whether a lane's chunks are as long as blocks, of an array with contiguous rows, and each is valid as a
    whole or not at all, except at the ends of rows."""
    if place.any_strides or BLOCK_BYTES % place.bytes:
        return False
    per_block = BLOCK_BYTES // place.bytes
    in_one_part = memory.whole_there(op, len(op.at) - 1) % per_block == 0
    return in_one_part and Chunks.of(shape, op.steps, per_block, op.begin).width == per_block


def is_quicker_in_blocks(memory: GlobalAccess, op: Load, place: GlobalPlace) -> bool:
    """Return whether blocks are faster for a load that may be aligned: a chunk would take more than two accesses.

    Blocks include elements that other lanes may write, so arrays that the kernel writes are loaded by elements.
    """
    shape = op.result.type.shape
    if place.is_written or not takes_blocks(memory, op, place, shape):
        return False
    per_block = BLOCK_BYTES // place.bytes
    chunks = Chunks.of(shape, op.steps, per_block, op.begin)
    return BLOCKS_OF_A_CHUNK * Pointers(memory, op, place).unbroken(chunks) < per_block


def request_blocks(memory: GlobalAccess, op: Load, place: GlobalPlace) -> Callable[[], Held]:
    """Load the blocks of all chunks, and return what waits for them and shifts them."""
    kind, shape, width = in_memory(place.memory.dtype), op.result.type.shape, BLOCK_BYTES // place.bytes
    pointers = Pointers(memory, op, place)
    chunks = Chunks.of(shape, op.steps, width, op.begin)
    shifts: dict[tuple[int, ...], ByteShift] = {}
    requested = [_Chunk(pointers, at, width).requested(shifts) for at in chunks.offsets]
    return lambda: Held(shape, kind, width, tuple(from_raw(memory.f, x(), BLOCK, kind, width) for x in requested))


def store_unaligned(memory: GlobalAccess, op: StoreUnaligned, x: Held, place: GlobalPlace) -> None:
    width = BLOCK_BYTES // place.bytes
    pointers = Pointers(memory, op, place)
    chunks = Chunks.of(x.shape, op.steps, width, op.begin)
    for part, at in zip(regrouped(memory.f, x, width).parts, chunks.offsets, strict=True):
        _Chunk(pointers, at, width).store(part, x.kind)


@dataclass(frozen=True)
class _Chunk:
    """A chunk of `width` neighbours at `at`, relative to a lane's first register."""

    p: Pointers
    at: tuple[int, ...]
    width: int

    @property
    def f(self) -> LlvmFunction:
        return self.p.f

    # -- loads

    def requested(self, shifts: dict[tuple[int, ...], ByteShift]) -> Callable[[], str]:
        """Load the blocks, and return what shifts them."""
        f, p, size = self.f, self.p, self.p.place.bytes
        if any(p.m.is_never_there(p.op, axis, step) for axis, step in enumerate(self.at)):
            return lambda: "zeroinitializer"
        first, after = self._inside()
        own = p.pointer(self.at)
        low = f.value(f"getelementptr i8, {p.kind} {own}, i32 {self._times(first, size)}")
        far = f.value(f"sub i32 {self._times(after, size)}, 1")
        high = f.value(f"getelementptr i8, {p.kind} {own}, i32 {far}")
        condition = self._some_inside(first, after)
        if condition and isinstance(p.op, LoadUnaligned):
            # Almost all lanes of a copy load something, and have few registers. The array's first element can always
            # be loaded, and discarded.
            low, high = (
                f.value(f"select i1 {condition}, {p.kind} {x}, {p.kind} {p.place.pointer}") for x in (low, high)
            )
            after = f.value(f"select i1 {condition}, i32 {after}, i32 0")
            condition = ""
        blocks = [self._block(x, condition) for x in (low, high)]
        key = tuple(n * size % BLOCK_BYTES for n in self.at)  # chunks so far apart have the same alignment
        if key not in shifts:
            address = f.value(f"ptrtoint {p.kind} {own} to i64")
            shifts[key] = ByteShift.of(f, f.value(f"trunc i64 {address} to i32"), size)
        shift = shifts[key]

        def finish() -> str:
            words = [word for block in blocks for word in words_of(f, block)]
            return joined(f, self._within(shift.of_blocks(f, words), first, after))

        return finish

    def _inside(self) -> tuple[str, str]:
        """Return the first element inside its row and the end of those inside, relative to the chunk."""
        f, p = self.f, self.p
        if p.inner not in p.op.guard:
            return "0", str(self.width)
        place = p.sums[p.inner].plus(self.at[-1])
        position = p.n.sum(place, 32)
        left = f.value(f"sub i32 {p.m.extent(p.place, p.inner, 32)}, {position}")
        after = f.call("i32", "llvm.smin.i32", [("i32", left), ("i32", str(self.width))])
        if bounds(place, p.n.positions)[0] >= 0:
            return "0", after
        before = f.value(f"sub i32 0, {position}")
        return f.call("i32", "llvm.smax.i32", [("i32", before), ("i32", "0")]), after

    def _some_inside(self, first: str, after: str) -> str:
        """Return whether an element of the chunk is inside; "" if one always is."""
        f, p = self.f, self.p
        truths = [p.is_inside(axis, self.at[axis]) for axis in p.op.guard if axis != p.inner]
        if p.inner in p.op.guard:
            truths.append(f.value(f"icmp sgt i32 {after}, 0"))
        if first != "0":
            truths.append(f.value(f"icmp slt i32 {first}, {self.width}"))
        truths += filter(None, (p.m.is_there(p.op, axis, step) for axis, step in enumerate(self.at)))
        return p.m.all_of([*map(p.n.truth, p.op.mask), *truths])

    def _times(self, x: str, size: int) -> str:
        if not x.startswith("%"):
            return str(int(x) * size)
        return self.f.value(f"mul i32 {x}, {size}")

    def _block(self, pointer: str, condition: str) -> str:
        """Load the aligned block of an address; zeros, without an access, where the condition is false."""
        f, kind = self.f, self.p.kind
        # What LLVM gets wrong in `load_shared_blocks` cannot happen here: two blocks' addresses are 15 bytes apart.
        where = f.call(kind, "llvm.ptrmask.p1.i64", [(kind, pointer), ("i64", str(-BLOCK_BYTES))])
        if condition:
            return self.p.m.target.load_if_in_order(f, condition, BLOCK, where)
        return f.value(f"load {BLOCK}, {kind} {where}, align {BLOCK_BYTES}")

    def _within(self, words: list[str], first: str, after: str) -> list[str]:
        """Return the words with 0 where the chunk is outside."""
        f, size = self.f, self.p.place.bytes
        found = words
        if after.startswith("%"):
            found = [f.value(f"and i32 {x}, {m}") for x, m in zip(found, self._masks(after, size), strict=True)]
        if first != "0":
            outside = self._masks(first, size)
            kept = [f.value(f"xor i32 {m}, -1") for m in outside]
            found = [f.value(f"and i32 {x}, {m}") for x, m in zip(found, kept, strict=True)]
        return found

    def _masks(self, elements: str, size: int) -> list[str]:
        """Return masks of the first `elements` elements, word by word."""
        f, found = self.f, []
        bits = f.value(f"mul i32 {elements}, {8 * size}")
        for i in range(WORDS):
            left = f.value(f"sub i32 {bits}, {8 * WORD_BYTES * i}")
            some = f.call("i32", "llvm.smax.i32", [("i32", left), ("i32", "0")])
            most = f.call("i32", "llvm.umin.i32", [("i32", some), ("i32", "32")])
            wide = f.value(f"zext i32 {most} to i64")
            after = f.value(f"shl i64 -1, {wide}")
            low = f.value(f"trunc i64 {after} to i32")
            found.append(f.value(f"xor i32 {low}, -1"))
        return found

    # -- stores

    def store(self, part: str, kind: str) -> None:
        f, p = self.f, self.p
        pointer = p.pointer(self.at)
        address = f.value(f"ptrtoint {p.kind} {pointer} to i64")
        low = f.value(f"and i64 {address}, {BLOCK_BYTES - 1}")
        last = (*self.at[:-1], self.at[-1] + self.width - 1)
        ends = [p.condition(self.at), p.condition(last)]
        whole = p.m.all_of([f.value(f"icmp eq i64 {low}, 0"), *filter(None, ends)])

        def at_once() -> None:
            raw = to_raw(f, part, BLOCK, kind, self.width)
            f.do(f"store {BLOCK} {raw}, {p.kind} {pointer}, align {BLOCK_BYTES}")

        def one_by_one() -> None:
            raw = RAW[p.place.bytes]
            for i, piece in enumerate(cut(f, part, kind, self.width, 1)):
                p.store(raw, to_raw(f, piece, raw, kind, 1), (*self.at[:-1], self.at[-1] + i))

        f.when(whole, at_once, one_by_one)


def words_of(f: LlvmFunction, block: str) -> list[str]:
    return [f.value(f"extractelement {BLOCK} {block}, i32 {i}") for i in range(WORDS)]


@dataclass(frozen=True)
class ByteShift:
    """The distance of the first byte of a chunk from that of its first block."""

    words: tuple[tuple[int, str], ...]
    """Numbers of words, and whether they are part of the distance."""
    bits: str
    """The bits within a word; "" where elements are whole words."""

    @staticmethod
    def of(f: LlvmFunction, begin: str, size: int) -> ByteShift:
        """Return the shift of a chunk of elements of `size` bytes at the address `begin`."""
        found = []
        for step in (2, 1):
            if step * WORD_BYTES >= size:
                bit = f.value(f"and i32 {begin}, {step * WORD_BYTES}")
                found.append((step, f.value(f"icmp ne i32 {bit}, 0")))
        bits = "" if size >= WORD_BYTES else f.value(f"shl i32 {begin}, 3")  # a funnel shift counts them modulo 32
        return ByteShift(tuple(found), bits)

    def of_blocks(self, f: LlvmFunction, words: list[str]) -> list[str]:
        """Return the words of two blocks from the chunk's first byte on."""
        for step, moved in self.words:
            pairs = zip(words[step:], words, strict=False)
            words = [f.value(f"select i1 {moved}, i32 {there}, i32 {here}") for there, here in pairs]
        if not self.bits:
            return words[:WORDS]
        return [
            f.call("i32", "llvm.fshr.i32", [("i32", high), ("i32", low), ("i32", self.bits)])
            for low, high in pairwise(words[: WORDS + 1])
        ]


def joined(f: LlvmFunction, words: list[str]) -> str:
    found = "poison"
    for i, word in enumerate(words):
        found = f.value(f"insertelement {BLOCK} {found}, i32 {word}, i32 {i}")
    return found


def has_blocks(op: Load, memory: Memory) -> bool:
    """Return whether a lane loads one chunk as long as a block, of shared memory with whole blocks in each row."""
    size, placement = memory.dtype.bytes, memory.placement
    if not isinstance(op, LoadUnaligned) or op.mask or op.result.type.shape != (BLOCK_BYTES // size,):
        return False
    chunk = placement.chunk if isinstance(placement, Swizzled) else 0
    in_rows = placement is None or isinstance(placement, Padded | Swizzled)
    return in_rows and op.steps[0][-1] == 1 and gcd(row_elements(memory), chunk) * size % BLOCK_BYTES == 0


def load_shared_blocks(f: LlvmFunction, first: str, last: str, kind: str, pointer: str, size: int) -> str:
    """Load a chunk of shared memory from the blocks of its first and last element, of which these are the addresses."""
    words = []
    for x in (first, last):
        # Not by `llvm.ptrmask`: LLVM 22 takes it for its argument where it compares addresses, and read the first word
        # of the last element's block from the first element's, which has a word at that element's own address.
        address = f.value(f"ptrtoint {pointer} {x} to i64")
        inside = f.value(f"and i64 {address}, {BLOCK_BYTES - 1}")
        where = f.value(f"getelementptr i8, {pointer} {x}, i64 {f.value(f'sub i64 0, {inside}')}")
        words += words_of(f, f.value(f"load {BLOCK}, {pointer} {where}, align {BLOCK_BYTES}"))
    begin = f.value(f"ptrtoint {pointer} {first} to i32")
    return from_raw(f, joined(f, ByteShift.of(f, begin, size).of_blocks(f, words)), BLOCK, kind, BLOCK_BYTES // size)
