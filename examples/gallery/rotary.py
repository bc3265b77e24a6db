"""Rotary embedding: each pair of numbers of a head is rotated by an angle that grows with the token's position.

The elements of a pair are half a head apart, so a call passes both halves as separate arrays: views, without a copy.
"""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write

T, D = sym.T, sym.D  # tokens, half the elements of a head
Half = Memory[T, D, GLOBAL_ADDRESS_SPACE, f32]


@wave([WorkgroupConstraint(T, 32, 0), WorkgroupConstraint(D, 64, 1)])
def rotary(x: Half, y: Half, cosine: Half, sine: Half, turned_x: Half, turned_y: Half):
    a, b, c, s = read(x), read(y), read(cosine), read(sine)
    write(a * c - b * s, turned_x)
    write(a * s + b * c, turned_y)


def transposed(x, y, c, s):
    return x * c - y * s, x * s + y * c


def sizes(x, y, c, s):
    return abs(x * c) + abs(y * s), abs(x * s) + abs(y * c)


def case(tokens=512, head=128):
    whole = np.random.default_rng(4).standard_normal((tokens, head), np.float32)
    half = head // 2
    angles = np.outer(np.arange(tokens), 10_000.0 ** -(np.arange(half) / half))
    inputs = whole[:, :half], whole[:, half:], np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    result = np.empty_like(whole)
    return Case(rotary, inputs, (result[:, :half], result[:, half:]), transposed, transposed, roundings=3, size=sizes)


if __name__ == "__main__":
    present(case(), rotary.name)
