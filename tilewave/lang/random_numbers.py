"""Random numbers that depend on a seed and an index alone: Philox 4×32-10, a counter-based generator.

A counter of four words and a key of two become four random words by ten rounds of

    c0, c1, c2, c3  ←  high(B · c2) ^ c1 ^ k0,  low(B · c2),  high(A · c0) ^ c3 ^ k1,  low(A · c0)

where high and low are the halves of a 64-bit product, and the key grows by a constant after each round. The seed is the
key, the index is the lower half of the counter, and the first word is the result: that of `triton.language.randint`.
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC11).
"""

from __future__ import annotations

from typing import Any

from tilewave.errors import DTypeError, here
from tilewave.ir.types import F32, I64, U32, U64
from tilewave.lang.ops import cast, scalar
from tilewave.lang.symbols import Expression
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe
from tilewave.trace import current

ROUNDS = 10
FACTORS = (0xD2511F53, 0xCD9E8D57)
"""A and B of the rounds."""
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""What the words of the key grow by: the golden ratio, and the root of 3 minus 1."""
FRACTION_BITS = 24
"""The bits of a random f32, as many as are exact below 1."""

Words = tuple[Any, Any]


@taggable
def random_bits(seed: Any, index: Any) -> Traced:
    """Return 32 random bits as a u32 for each element of `index`; the same on every target, and for equal arguments.

    `seed` and `index` are integers, numbers or tiles, of which all 64 bits count.
    """
    current("random_bits")
    return _first_word(_words("random_bits", "seed", seed), _words("random_bits", "index", index))


@taggable
def random(seed: Any, index: Any) -> Traced:
    """Return a random f32 of [0, 1) for each element of `index`: the upper 24 of `random_bits`, divided by 2 ** 24."""
    current("random")
    bits = _first_word(_words("random", "seed", seed), _words("random", "index", index))
    found: Traced = cast(bits >> (32 - FRACTION_BITS), F32) * 2.0**-FRACTION_BITS
    return found


def _words(op: str, name: str, x: Any) -> Words:
    """Return the lower and the upper 32 bits of an integer."""
    if isinstance(x, Traced) and not x.dtype.is_int:
        what = f"{op}: {name} is {describe(x)}, and takes an integer"
        raise DTypeError(what, loc=here(), remedy=f"write cast({name}, u64), or bitcast for the bits of a float")
    if isinstance(x, int) and not isinstance(x, bool):
        wide = scalar(x % 2**64, U64)
    else:
        wide = cast(scalar(x, I64) if isinstance(x, Expression) or not isinstance(x, Traced) else x, U64)
    return cast(wide, U32), cast(wide >> 32, U32)


def _first_word(key: Words, index: Words) -> Traced:
    """Return the first word of Philox, for a counter whose upper half is 0."""
    (k0, k1), (c0, c1), zero = key, index, scalar(0, U32)
    c2, c3 = zero, zero
    for _ in range(ROUNDS):
        (high_0, low_0), (high_2, low_2) = (_product(x, by) for x, by in zip((c0, c2), FACTORS, strict=True))
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0, k1 = k0 + KEY_STEPS[0], k1 + KEY_STEPS[1]
    found: Traced = c0
    return found


def _product(x: Any, by: int) -> Words:
    """Return the upper and the lower half of a product."""
    whole = cast(x, U64) * by
    return cast(whole >> 32, U32), cast(whole, U32)
