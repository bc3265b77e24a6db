"""Lowering of layout conversions: registers permuted within a lane, depending on its number, and shuffles.

Both are matrices over bits (`layouts/conversions.py`). Neighbours that stay together move as words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from math import prod

from tilewave.ir.ops import Rearrange, Shuffle
from tilewave.layouts.bits import Columns, applied
from tilewave.layouts.conversions import LaneExchange, Rearrangement, stays, together
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.values import BITS, WORD_BITS, Held, regrouped
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.records import dataclass


@dataclass(frozen=True)
class Conversions:
    f: LlvmFunction
    target: LaneTarget

    def rearranged(self, op: Rearrange, x: Held) -> Held:
        """Permute registers: each bit of the lane's number that matters selects between two registers, for all."""
        step = Rearrangement(op.of_register, op.of_lane)
        width = _width(step, x.kind)
        x = regrouped(self.f, x, width)
        parts = list(x.parts)
        for i, column in enumerate(_units(op.of_lane, width)):
            if column:
                chosen = self.has_bit(i)
                parts = [
                    self.f.value(f"select i1 {chosen}, {x.type} {parts[q ^ column]}, {x.type} {part}")
                    for q, part in enumerate(parts)
                ]
        shape, of_register = op.result.type.shape, _units(op.of_register, width)[width.bit_length() - 1 :]
        found = tuple(parts[applied(of_register, r)] for r in range(prod(shape) // width))
        return Held(shape, x.kind, width, found)

    def shuffled(self, op: Shuffle, x: Held) -> Held:
        step = LaneExchange(op.of_register, op.of_lane)
        width = _width(step, x.kind)
        x = regrouped(self.f, x, width)
        first, of_register = self.giver(op.of_lane), op.of_register[width.bit_length() - 1 :]
        lanes: dict[int, str] = {0: first}
        parts = []
        for r, part in enumerate(x.parts):
            if stays(step, r * width):
                parts.append(part)
                continue
            far = applied(of_register, r)
            if far not in lanes:
                lanes[far] = self.f.value(f"xor i32 {first}, {far}")
            parts.append(self.taken(x, part, lanes[far]))
        return Held(op.result.type.shape, x.kind, width, tuple(parts))

    def opaque(self, x: Held, turn: int) -> Held:
        return replace(x, parts=tuple(self.opaque_part(x, part, turn) for part in x.parts))

    def opaque_part(self, x: Held, part: str, turn: int) -> str:
        """Return an opaque copy of a part, word by word, so that LLVM cannot merge it with the original."""
        bits = BITS[x.kind] * x.width
        if bits % WORD_BITS:
            return part
        words = vector(bits // WORD_BITS, "i32")
        whole = part if x.type == words else self.f.value(f"bitcast {x.type} {part} to {words}")
        found = self.target.opaque(self.f, whole, bits // WORD_BITS, turn)
        return found if x.type == words else self.f.value(f"bitcast {words} {found} to {x.type}")

    def giver(self, of_lane: Columns) -> str:
        """Return the matrix times this lane's number; bits that stay in place are masked together."""
        lane = self.target.lane(self.f)
        stay = sum(column for i, column in enumerate(of_lane) if column == 1 << i)
        found = self.f.value(f"and i32 {lane}, {stay}")
        for i, column in enumerate(of_lane):
            if column not in (0, 1 << i):
                bit = self.f.value(f"and i32 {self.f.value(f'lshr i32 {lane}, {i}')}, 1")
                found = self.f.value(f"xor i32 {found}, {self.f.value(f'mul i32 {bit}, {column}')}")
        return found

    def has_bit(self, bit: int) -> str:
        """Return whether this lane's number has a bit."""
        alone = self.f.value(f"and i32 {self.target.lane(self.f)}, {1 << bit}")
        return self.f.value(f"icmp ne i32 {alone}, 0")

    def across(self, x: Held, part: str, bit: int) -> str:
        """Return the part of the lane whose number differs in one bit."""
        return self.part(x, (self.target.across(self.f, word, bit) for word in self.words(x, part)))

    def taken(self, x: Held, part: str, lane: str) -> str:
        """Return the part of another lane, word by word."""
        moved = (self.target.shuffle(self.f, word, lane) for word in self.words(x, part))
        return self.part(x, moved)

    def both(self, x: Held, part: str, bit: int, same: Collection[int]) -> tuple[str, str]:
        """Return the parts of this lane and of the one whose number differs in one bit, in any order."""
        pairs = [self.target.both(self.f, word, bit, same) for word in self.words(x, part)]
        return self.part(x, (a for a, _ in pairs)), self.part(x, (b for _, b in pairs))

    def words(self, x: Held, part: str) -> Iterator[str]:
        """Yield the 32-bit words of a part, each extracted on demand."""
        bits = BITS[x.kind] * x.width
        if bits > WORD_BITS:
            words = f"<{bits // WORD_BITS} x i32>"
            whole = self.f.value(f"bitcast {x.type} {part} to {words}")
            for i in range(bits // WORD_BITS):
                yield self.f.value(f"extractelement {words} {whole}, i64 {i}")
            return
        narrow = f"i{bits}"
        word = self.f.value(f"bitcast {x.type} {part} to {narrow}") if x.type != narrow else part
        yield self.f.value(f"zext {narrow} {word} to i32") if bits < WORD_BITS else word

    def part(self, x: Held, words: Iterable[str]) -> str:
        """Return the part made of these words."""
        bits = BITS[x.kind] * x.width
        if bits > WORD_BITS:
            kind, found = f"<{bits // WORD_BITS} x i32>", "poison"
            for i, word in enumerate(words):
                found = self.f.value(f"insertelement {kind} {found}, i32 {word}, i64 {i}")
            return self.f.value(f"bitcast {kind} {found} to {x.type}")
        (word,), narrow = words, f"i{bits}"
        word = self.f.value(f"trunc i32 {word} to {narrow}") if bits < WORD_BITS else word
        return self.f.value(f"bitcast {narrow} {word} to {x.type}") if x.type != narrow else word


def _width(step: Rearrangement | LaneExchange, kind: str) -> int:
    return together(step, max(1, BITS[kind] // 8))


def _units(columns: Columns, width: int) -> Columns:
    """Return the columns in units of `width` registers."""
    return tuple(column >> width.bit_length() - 1 for column in columns)
