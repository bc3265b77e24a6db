"""How the tiles that a last round leaves over are shared: decided at each launch, in constant time.

A tile of S steps in p parts takes as long as ceil(S / p) steps and p hand-overs do. That is least near the root of S
times a step / a hand-over, so a few numbers around it are weighed, and not all; ranges may also give three workgroups
two tiles.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

HAND_OVER_BYTES = 512
"""Of depth: about as long as products of these take, a tile of sums takes to go from one workgroup to another and be
added there. On an H200, 128x256 sums: 6,000 cycles to write and about 4,000 to add, where 128 bytes take 1,024."""
SCATTERED_BYTES = 256 << 10
"""Of sums that one workgroup would take over: from here on it is quicker if several take a slice of them each. On an
H200 one reads about 32 bytes in a cycle, and a workgroup begins within 2,000."""
LEAST_SUMS_BYTES = 16 << 10
"""Of a tile that is added up in slices: smaller ones have too few columns."""
SCATTERED = 3
"""Hand-overs that this takes as long as, however many parts there are."""
AROUND = 2
"""Parts on each side of the best of an undivided number: rounding up moves it no further, which a test tries."""
LARGEST = (1 << 31) - 1
"""The numbers of steps that workgroups compute with, which are products of these, stay in 32 bits."""
KEPT = 1024
"""Answers that are remembered: of the sizes of calls, mostly one changes from one to the next."""
MOST_TILES = 1 << 27
"""Of one launch; so few that their rows and columns, in groups of up to 15, are computed in 32 bits."""


@lru_cache(maxsize=KEPT)
def range_sharers(left: int, steps: int, workgroups: int, step_bytes: int, hand_over_bytes: int) -> int:
    """How many of `workgroups` share the steps of `left` tiles evenly; 0 where whole tiles are as quick."""
    if not 0 < left < workgroups or left * steps * workgroups > LARGEST:
        return 0
    shared, most = left * steps, min(workgroups, left * steps)
    ways = [(left * 3 // 2, 3 if left % 2 else 2)]
    ways += [(left * p, p) for p in _near(steps, step_bytes, hand_over_bytes, workgroups // left)]
    quickest = steps * step_bytes, 0
    for sharers, parts in ways:
        if left < sharers <= most:
            quickest = min(quickest, (-(-shared // sharers) * step_bytes + parts * hand_over_bytes, sharers))
    return quickest[1]


@lru_cache(maxsize=KEPT)
def equal_parts(left: int, steps: int, workgroups: int, step_bytes: int, hand_over_bytes: int) -> int:
    """Into how many parts of equally many steps each of `left` tiles is cut; 0 where whole tiles are as quick.

    Both workgroups of each pair have a part, or none of the two, and no part is empty.
    """
    if not 0 < left < workgroups or left * steps * workgroups > LARGEST:
        return 0
    quickest = steps * step_bytes, 0
    for parts in _near(steps, step_bytes, hand_over_bytes, min(workgroups // left, steps)):
        longest = -(-steps // parts)
        if left * parts % 2 == 0 and (parts - 1) * longest < steps:
            quickest = min(quickest, (longest * step_bytes + parts * hand_over_bytes, parts))
    return quickest[1]


def is_scattered(parts: int, sums_bytes: int) -> bool:
    """Whether a tile in so many parts is added up in slices."""
    return sums_bytes >= LEAST_SUMS_BYTES and (parts - 1) * sums_bytes > SCATTERED_BYTES


@lru_cache(maxsize=KEPT)
def parts_that_pay(
    tiles: int,
    steps: int,
    workgroups: int,
    step_bytes: int,
    sums_bytes: int,
    hand_over_bytes: int = HAND_OVER_BYTES,
) -> int:
    """Into how many parts each of few tiles is best cut, where `workgroups` run at once; 1: whole tiles are as quick.

    `step_bytes` are those of a row of an operand in one step, `sums_bytes` those of a tile of sums. For whoever chooses
    tiles, or the number in a `SplitConstraint`.
    """
    quickest = steps * step_bytes, 1
    for parts in range(2, min(workgroups // max(1, tiles), steps) + 1):
        joined = SCATTERED if is_scattered(parts, sums_bytes) else parts
        quickest = min(quickest, (-(-steps // parts) * step_bytes + joined * hand_over_bytes, parts))
    return quickest[1]


def _near(steps: int, step_bytes: int, hand_over_bytes: int, most: int) -> range:
    best = min(isqrt(steps * step_bytes // max(1, hand_over_bytes)), most)
    return range(max(2, best - AROUND), min(most, best + 1 + AROUND) + 1)


@lru_cache(maxsize=KEPT)
def reciprocal_shift(divisor: int) -> int:
    """s with 2^s / divisor between 2^31 and 2^32, for divisors below 2^31; 0 for 0, which divides nothing."""
    return 31 + (divisor - 1).bit_length() if divisor > 0 else 0


@lru_cache(maxsize=KEPT)
def reciprocal(divisor: int) -> int:
    """f with x // divisor == x * f >> s for all 0 <= x < 2^31; 0 for 0, by which the quotient is 0.

    f is (2^s + e) / d with e < d, and so the quotient too large by x · e / 2^s / d < 1 / d, since x < 2^31 and
    d <= 2^(s - 31): less than it lacks to the next whole number.
    """
    return -((-1 << reciprocal_shift(divisor)) // divisor) if divisor > 0 else 0
