"""Hardware conversions of 8-bit floats: two at a time, in the lower or upper half of a word of four.

6 bytes b0 … b5  →  words (b0 b1 b2 b3) (b4 b5 0 0)  →  pairs (b0 b1) (b2 b3) (b4 b5) of f32  →  6 numbers
"""

from __future__ import annotations

from tilewave.lower.gpu.target import Float8Pairs
from tilewave.lower.llvm import LlvmFunction, vector

BYTES = 4
"""Bytes of a word."""


def widen_pairs(f: LlvmFunction, x: str, dtype: str, lanes: int, by: Float8Pairs) -> str:
    """Return the f32 values of `lanes` 8-bit floats."""
    words = _words(f, x, lanes)
    pairs = [by.from_float8(f, dtype, words[at // 2], at % 2) for at in range(-(-lanes // 2))]
    whole = pairs[0] if len(pairs) == 1 else _joined(f, pairs)
    return _cut(f, whole, "float", 2 * len(pairs), lanes)


def narrow_pairs(f: LlvmFunction, x: str, dtype: str, lanes: int, by: Float8Pairs) -> str:
    """Return the bytes of `lanes` numbers, rounded to nearest even."""
    wide = vector(lanes, "float")
    numbers = [f.value(f"extractelement {wide} {x}, i32 {i}") for i in range(lanes)] if lanes > 1 else [x]
    numbers += numbers[-1:] * (lanes % 2)
    words: list[str] = []
    for at in range(0, len(numbers), 2):
        half = at // 2 % 2
        word = by.to_float8(f, dtype, (numbers[at], numbers[at + 1]), words.pop() if half else "0", half)
        words.append(word)
    held = words[0] if len(words) == 1 else _inserted(f, words)
    bytes_ = BYTES * len(words)
    whole = f.value(f"bitcast {vector(len(words), 'i32')} {held} to {vector(bytes_, 'i8')}")
    return _cut(f, whole, "i8", bytes_, lanes)


def _words(f: LlvmFunction, x: str, lanes: int) -> list[str]:
    """Return the bytes as words, padded with zeros after the last."""
    if lanes == 1:
        return [f.value(f"zext i8 {x} to i32")]
    count = -(-lanes // BYTES)
    if lanes % BYTES:
        order = ", ".join(f"i32 {min(i, lanes)}" for i in range(BYTES * count))
        many, few = vector(BYTES * count, "i32"), vector(lanes, "i8")
        x = f.value(f"shufflevector {few} {x}, {few} zeroinitializer, {many} <{order}>")
    held = f.value(f"bitcast {vector(BYTES * count, 'i8')} {x} to {vector(count, 'i32')}")
    if count == 1:
        return [held]
    return [f.value(f"extractelement {vector(count, 'i32')} {held}, i32 {i}") for i in range(count)]


def _joined(f: LlvmFunction, pairs: list[str]) -> str:
    """Concatenate pairs of f32."""
    whole = "poison"
    kind = vector(2 * len(pairs), "float")
    for at, pair in enumerate(pairs):
        for half in range(2):
            number = f.value(f"extractelement <2 x float> {pair}, i32 {half}")
            whole = f.value(f"insertelement {kind} {whole}, float {number}, i32 {2 * at + half}")
    return whole


def _inserted(f: LlvmFunction, words: list[str]) -> str:
    whole, kind = "poison", vector(len(words), "i32")
    for at, word in enumerate(words):
        whole = f.value(f"insertelement {kind} {whole}, i32 {word}, i32 {at}")
    return whole


def _cut(f: LlvmFunction, whole: str, kind: str, count: int, lanes: int) -> str:
    """Return the first `lanes` of `count` elements; a scalar for one lane."""
    if count == lanes:
        return whole
    if lanes == 1:
        return f.value(f"extractelement {vector(count, kind)} {whole}, i32 0")
    order = ", ".join(f"i32 {i}" for i in range(lanes))
    return f.value(
        f"shufflevector {vector(count, kind)} {whole}, {vector(count, kind)} poison, {vector(lanes, 'i32')} <{order}>"
    )
