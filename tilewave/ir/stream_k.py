"""Stream-K: how the tiles of a partial last wave of workgroups are split, decided at each launch in constant time.

A tile of S steps split into p parts takes as long as ceil(S / p) steps and p reductions of partial sums. The minimum is
near the root of S times a step / a reduction, so only a few numbers of parts around it are compared; ranges may also
give two tiles to three workgroups.
"""

from __future__ import annotations

from tilewave.ir.host_program import Number, bits, chosen, larger, power, quotient, remainder, root, rounded_up, smaller

AROUND = 2
"""Numbers of parts that are tried on each side of the real-valued optimum; rounding moves it no further."""
LARGEST = (1 << 31) - 1
"""The largest product of tiles, steps and workgroups, so that step numbers fit 32 bits."""
MOST_TILES = 1 << 27
"""The most tiles of one launch: rows and columns, in groups of up to 15, are then computed in 32 bits."""


def stream_k_workgroups(left: Number, steps: Number, workgroups: int, step_bytes: int, hand_over_bytes: int) -> Number:
    """Return how many of `workgroups` share the steps of `left` tiles evenly; 0 where whole tiles are as fast."""
    shared, most = left * steps, smaller(workgroups, left * steps)
    ways = [(True, quotient(left * 3, 2), remainder(left, 2) + 2)]
    near = _near(steps, step_bytes, hand_over_bytes, quotient(workgroups, left))
    ways += [(is_near, left * parts, parts) for is_near, parts in near]
    quickest = _weighed(steps * step_bytes, 0, workgroups)
    for is_way, number, parts in ways:
        takes = rounded_up(shared, number) * step_bytes + parts * hand_over_bytes
        can_be = is_way & (left < number) & (number <= most)
        quickest = smaller(quickest, chosen(can_be, _weighed(takes, number, workgroups), quickest))
    return chosen(_may_share(left, steps, workgroups), remainder(quickest, workgroups + 1), 0)


def equal_splits(left: Number, steps: Number, workgroups: int, step_bytes: int, hand_over_bytes: int) -> Number:
    """Return into how many parts of equal steps each of `left` tiles is split; 0 where whole tiles are as fast.

    Both workgroups of each pair have a part, or neither has, and no part is empty.
    """
    quickest = _weighed(steps * step_bytes, 0, workgroups)
    for is_near, parts in _near(steps, step_bytes, hand_over_bytes, smaller(quotient(workgroups, left), steps)):
        longest = rounded_up(steps, parts)
        takes = longest * step_bytes + parts * hand_over_bytes
        can_be = is_near & (remainder(left * parts, 2) == 0) & ((parts - 1) * longest < steps)
        quickest = smaller(quickest, chosen(can_be, _weighed(takes, parts, workgroups), quickest))
    return chosen(_may_share(left, steps, workgroups), remainder(quickest, workgroups + 1), 0)


def likely_workgroups(left: Number, steps: Number, workgroups: int, step_bytes: int, hand_over_bytes: int) -> Number:
    """Return about how many of `workgroups` share `left` tiles, for a prediction; 0 where whole tiles are as fast.

    Only the root itself is compared with whole tiles, or three workgroups for two tiles where it is below two.
    """
    near = smaller(root(quotient(steps * step_bytes, max(1, hand_over_bytes))), quotient(workgroups, left))
    number = chosen(near > 1, left * near, quotient(left * 3, 2))
    takes = rounded_up(left * steps, number) * step_bytes + larger(near, 2) * hand_over_bytes
    return chosen((number <= workgroups) & (left < number) & (takes < steps * step_bytes), number, 0)


def _weighed(takes: Number, peers: Number, workgroups: int) -> Number:
    """Return a number that orders choices by time, and equal times by fewer workgroups."""
    return takes * (workgroups + 1) + peers


def _may_share(left: Number, steps: Number, workgroups: int) -> Number:
    return (left > 0) & (left < workgroups) & (left * steps * workgroups <= LARGEST)


def _near(steps: Number, step_bytes: int, hand_over_bytes: int, most: Number) -> list[tuple[Number, Number]]:
    """Return numbers of parts around the optimum, and whether each is at most `most`."""
    best = smaller(root(quotient(steps * step_bytes, max(1, hand_over_bytes))), most)
    least, last = larger(2, best - AROUND), smaller(most, best + 1 + AROUND)
    return [(least + i <= last, least + i) for i in range(2 * AROUND + 2)]


def reciprocal_shift(divisor: Number) -> Number:
    """Return s with 2^s / divisor between 2^31 and 2^32, for divisors below 2^31; 0 for a divisor of 0."""
    return chosen(divisor > 0, bits(divisor - 1) + 31, 0)


def reciprocal(divisor: Number) -> Number:
    """Return f with x // divisor == x * f >> s for all 0 <= x < 2^31; 0 for a divisor of 0, whose quotient is 0.

    f is (2^s + e) / d with e < d, so the quotient is too large by x · e / 2^s / d < 1 / d, since x < 2^31 and
    d <= 2^(s - 31): less than the distance to the next integer.
    """
    return chosen(divisor > 0, rounded_up(power(bits(divisor - 1) + 31), divisor), 0)
