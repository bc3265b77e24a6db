"""The values of a lane in LLVM: a vector of the IR is several short LLVM vectors, one for each group of registers.

Long LLVM vectors would need consecutive registers as a whole. 8- and 16-bit elements are held as words of 32 bits,
since loads, stores and matrix instructions move words; arithmetic unpacks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from tilewave.ir.types import INDEX, DType
from tilewave.lower.elements import stored
from tilewave.lower.llvm import LlvmFunction, splat, vector
from tilewave.records import dataclass

Array = np.ndarray[Any, Any]
WORD_BITS = 32
BITS = {"half": 16, "float": 32, "double": 64, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def element(dtype: DType, index_bits: int = 64) -> str:
    """Return the LLVM type of one element; the width of an index follows from its bounds."""
    return f"i{index_bits}" if dtype == INDEX else stored(dtype)


def words(kind: str, width: int) -> int:
    """Return how many words hold `width` elements; 0 where they are not packed."""
    bits = BITS[kind]
    return bits * width // WORD_BITS if bits in (8, 16) and bits * width % WORD_BITS == 0 else 0


def held(kind: str, width: int) -> str:
    """Return the LLVM type of one part."""
    count = words(kind, width)
    return vector(count, "i32") if count else vector(width, kind)


@dataclass(frozen=True)
class Held:
    """A vector of the IR: its registers in order, `width` of them in each part."""

    shape: tuple[int, ...]
    kind: str
    width: int
    parts: tuple[str, ...]

    @property
    def type(self) -> str:
        return held(self.kind, self.width)


def natural_width(shape: tuple[int, ...], kind: str) -> int:
    """Return the default number of elements per part: 16 bytes at most, or a matrix instruction's sums; booleans are
    separate, so that equal ones can be recognized."""
    bits = BITS[kind]
    if bits == 32 and shape[-2:] == (4, 4):
        return 16
    return 1 if kind == "i1" else gcd(shape[-1], 128 // bits)


def plain(f: LlvmFunction, x: str, kind: str, width: int) -> str:
    """Return a part as elements."""
    if not words(kind, width):
        return x
    return f.value(f"bitcast {held(kind, width)} {x} to {vector(width, kind)}")


def packed(f: LlvmFunction, x: str, kind: str, width: int) -> str:
    """Return elements as a part."""
    if not words(kind, width):
        return x
    return f.value(f"bitcast {vector(width, kind)} {x} to {held(kind, width)}")


def as_word(f: LlvmFunction, x: str, kind: str, width: int) -> str:
    """Return the first 32 bits of a part, or all of a smaller one."""
    bits = BITS[kind] * width
    whole = x if held(kind, width) == f"i{bits}" else f.value(f"bitcast {held(kind, width)} {x} to i{bits}")
    if bits == WORD_BITS:
        return whole
    return f.value(f"{'trunc' if bits > WORD_BITS else 'zext'} i{bits} {whole} to i{WORD_BITS}")


def splatted(f: LlvmFunction, x: str, kind: str, width: int) -> str:
    """Return a part with one number in every element."""
    return packed(f, splat(f, kind, x, width), kind, width)


def constant(f: LlvmFunction, text: str, kind: str, width: int) -> str:
    """Return a part with one constant in every element."""
    whole = text if width == 1 else f"<{', '.join([f'{kind} {text}'] * width)}>"
    return packed(f, whole, kind, width)


def regrouped(f: LlvmFunction, x: Held, width: int) -> Held:
    """Return x in parts of another width."""
    if width == x.width:
        return x
    small = gcd(width, x.width)
    parts = [piece for part in x.parts for piece in cut(f, part, x.kind, x.width, small)]
    many = width // small
    joined = [join(f, parts[i : i + many], x.kind, small) for i in range(0, len(parts), many)]
    return Held(x.shape, x.kind, width, tuple(joined))


def cut(f: LlvmFunction, x: str, kind: str, width: int, small: int) -> list[str]:
    """Return a part in pieces of `small` elements."""
    if small == width:
        return [x]
    unit, whole, count = _units(kind, width, small)
    if not words(kind, small):
        x, unit, whole, count = plain(f, x, kind, width), kind, width, small
    return [_slice(f, x, unit, whole, first, count) for first in range(0, whole, count)]


def _units(kind: str, width: int, small: int) -> tuple[str, int, int]:
    return "i32", words(kind, width), words(kind, small)


def _slice(f: LlvmFunction, x: str, kind: str, width: int, first: int, count: int) -> str:
    whole = vector(width, kind)
    if count == 1:
        return f.value(f"extractelement {whole} {x}, i64 {first}")
    places = ", ".join(f"i32 {first + i}" for i in range(count))
    return f.value(f"shufflevector {whole} {x}, {whole} poison, <{count} x i32> <{places}>")


def join(f: LlvmFunction, pieces: Sequence[str], kind: str, width: int) -> str:
    """Return pieces of `width` elements as one part."""
    if len(pieces) == 1:
        return pieces[0]
    if words(kind, width):
        return concatenate(f, pieces, "i32", words(kind, width))
    return packed(f, concatenate(f, pieces, kind, width), kind, width * len(pieces))


def concatenate(f: LlvmFunction, pieces: Sequence[str], kind: str, width: int) -> str:
    """Concatenate LLVM vectors of `width` elements, or scalars where the width is 1."""
    if width == 1:
        whole, result = f"<{len(pieces)} x {kind}>", "poison"
        for i, piece in enumerate(pieces):
            result = f.value(f"insertelement {whole} {result}, {kind} {piece}, i64 {i}")
        return result
    if len(pieces) == 1:
        return pieces[0]
    half = (len(pieces) + 1) // 2
    left, right = concatenate(f, pieces[:half], kind, width), concatenate(f, pieces[half:], kind, width)
    return _two(f, left, right, kind, width * half, width * (len(pieces) - half))


def _two(f: LlvmFunction, a: str, b: str, kind: str, first: int, second: int) -> str:
    if first > second:  # shufflevector needs two vectors of one length
        places = ", ".join(f"i32 {i}" if i < second else "i32 poison" for i in range(first))
        b = f.value(f"shufflevector <{second} x {kind}> {b}, <{second} x {kind}> poison, <{first} x i32> <{places}>")
    places = ", ".join(f"i32 {i}" for i in range(first + second))
    return f.value(f"shufflevector <{first} x {kind}> {a}, <{first} x {kind}> {b}, <{first + second} x i32> <{places}>")


def rearranged(f: LlvmFunction, x: Held, shape: tuple[int, ...], sources: Array) -> Held:
    """Return a vector whose register i is register `sources.flat[i]` of x."""
    width = natural_width(shape, x.kind)
    singles = [one for part in x.parts for one in cut(f, part, x.kind, x.width, 1)] if x.width > 1 else list(x.parts)
    flat = [singles[i] for i in sources.reshape(-1)]
    assert len(flat) == prod(shape)
    parts = [join(f, flat[i : i + width], x.kind, 1) for i in range(0, len(flat), width)]
    return Held(shape, x.kind, width, tuple(parts))


def concatenated(f: LlvmFunction, parts: Sequence[Held], shape: tuple[int, ...], axis: int) -> Held:
    """Concatenate vectors along an axis."""
    counts = [prod(part.shape) for part in parts]
    begins = [sum(counts[:i]) for i in range(len(parts))]
    places = [np.arange(n).reshape(part.shape) + b for part, n, b in zip(parts, counts, begins, strict=True)]
    singles = tuple(one for part in parts for one in regrouped(f, part, 1).parts)
    return rearranged(f, Held(shape, parts[0].kind, 1, singles), shape, np.concatenate(places, axis))


def picked(f: LlvmFunction, x: Held, shape: tuple[int, ...], sources: Array) -> Held:
    """Return `rearranged(f, x, shape, sources)`, reusing whole parts without a shuffle where possible."""
    runs = sources.reshape(-1, x.width) if sources.size % x.width == 0 else sources.reshape(-1, 1)
    whole = runs.shape[1] == x.width and (runs == runs[:, :1] + np.arange(x.width)).all()
    if not whole or (runs[:, 0] % x.width).any():
        return rearranged(f, x, shape, sources)
    return Held(shape, x.kind, x.width, tuple(x.parts[i] for i in runs[:, 0] // x.width))
