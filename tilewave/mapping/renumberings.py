"""Renumberings: which number a workgroup takes, given the XCD that the hardware dispatched it to.

The hardware deals workgroups to XCDs round-robin: workgroup w sits on XCD w % xcds. With 12 workgroups on 4 XCDs:

    XCD 0 | 0 4  8        each XCD has its own L2, but 0, 4 and 8 are no neighbours in any order of tiles
    XCD 1 | 1 5  9
    XCD 2 | 2 6 10
    XCD 3 | 3 7 11

`xcd_contiguous(4)` gives each XCD one range of numbers, `xcd_chunked(4, 2)` gives it chunks of two, while they last:

    XCD 0 | 0  1  2       XCD 0 | 0 1  8
    XCD 1 | 3  4  5       XCD 1 | 2 3  9
    XCD 2 | 6  7  8       XCD 2 | 4 5 10
    XCD 3 | 9 10 11       XCD 3 | 6 7 11

A persistent launch deals its tiles in waves: tile t goes to workgroup w = t % n in wave t // n, and w, not t, decides
where it is computed. With 6 workgroups and 14 tiles on 4 XCDs, XCDs 0 and 1 hold two workgroups and the
others one, so their lists of tiles have unequal lengths S:

    XCD 0 | 0 4  6 10 12          S = 5        contiguous:  0  1  2  3  4
    XCD 1 | 1 5  7 11 13          S = 5                     5  6  7  8  9
    XCD 2 | 2    8                S = 2                    10    11
    XCD 3 | 3    9                S = 2                    12    13

With count = R·n + rest, an XCD x holds c = n // X + [x < n % X] workgroups, and the t-th tile is in its list at

    P = wave · c + w // X,         S(x) = R · c + rest // X + [x < rest % X]

so S falls with x, in at most three different values, and sums over it are closed forms of `smaller`.
"""

from __future__ import annotations

from typing import ClassVar

from tilewave.mapping.algebra import Renumbering
from tilewave.mapping.grid import AnyDeal, Deal, OpenDeal
from tilewave.mapping.index import Index, choose, divide, is_one, is_zero, larger, smaller, times, total
from tilewave.records import dataclass


@dataclass(frozen=True)
class XcdContiguous(Renumbering):
    """Each XCD gets one contiguous range of numbers, remainders included."""

    xcds: Index
    name: ClassVar[str] = "xcd_contiguous"

    def formula(self, t: Index, deal: AnyDeal) -> Index:
        lists = _Lists.of(deal, self.xcds)
        xcd, position = lists.place(t)
        per_round = times(smaller(xcd, lists.larger_xcds), lists.rounds)
        before = total(times(xcd, lists.shortest), per_round, smaller(xcd, lists.longer_by_rest))
        return total(before, position)

    def no_effect(self, deal: Deal) -> str:
        return _no_xcds(self.xcds, deal)


@dataclass(frozen=True)
class XcdChunked(Renumbering):
    """Each XCD gets chunks of `chunk` consecutive numbers; what fills no chunk on every XCD is dealt round-robin."""

    xcds: Index
    chunk: Index
    name: ClassVar[str] = "xcd_chunked"

    def formula(self, t: Index, deal: AnyDeal) -> Index:
        lists = _Lists.of(deal, self.xcds)
        # A chunk longer than the shortest list chunks nothing; a huge dynamic one must not overflow below.
        chunk = smaller(self.chunk, lists.shortest + 1)
        chunked = lists.shortest // chunk * chunk
        xcd, position = lists.place(t)
        in_turn = lists.in_turn(t, xcd, position)
        if isinstance(chunked, int) and chunked == 0:
            return in_turn
        nth, within = divide(position, chunk)
        number = total(times(nth, lists.xcds * chunk), times(xcd, chunk), within)
        return choose(position < chunked, number, in_turn)

    def no_effect(self, deal: Deal) -> str:
        lists = _Lists.of(deal, self.xcds)
        if self.chunk > lists.shortest:
            return f"a chunk of {self.chunk} is larger than an XCD's share of {lists.shortest}, so nothing is chunked"
        if self.chunk == 1 and lists.even:
            return "chunks of 1 are what the hardware deals"
        return _no_xcds(self.xcds, deal)


@dataclass(frozen=True)
class LastFirst(Renumbering):
    """From the last number to the first: where later tiles take longer, as in causal attention, none begins late."""

    name: ClassVar[str] = "last_first"

    def formula(self, t: Index, deal: AnyDeal) -> Index:
        return deal.count - 1 - t

    def no_effect(self, deal: Deal) -> str:
        return "one tile has no order" if deal.count == 1 else ""


@dataclass(frozen=True)
class Folded(Renumbering):
    """A renumbering that reverses every second wave of a persistent launch: the workgroup with the longest tile of one
    wave has the shortest of the next."""

    name: ClassVar[str] = "folded"

    def formula(self, t: Index, deal: AnyDeal) -> Index:
        return t if deal.in_one_round else self.dealt(*divide(t, deal.workgroups), deal)

    def dealt(self, turn: Index, w: Index, deal: AnyDeal) -> Index:
        """Return the number of the tile that workgroup w computes in its turn; the last wave may be shorter."""
        first = turn * deal.workgroups
        size = smaller(deal.count - first, deal.workgroups)
        return first + choose(turn % 2 >= 1, size - 1 - w, w)

    def no_effect(self, deal: Deal) -> str:
        if deal.in_one_round:
            return "each workgroup computes one tile"
        if deal.workgroups == 1:
            return "one workgroup computes all tiles"
        return "the second wave is one tile" if deal.count == deal.workgroups + 1 else ""


def _no_xcds(xcds: int, deal: Deal) -> str:
    if xcds == 1:
        return "with one XCD there is nothing to renumber"
    if xcds >= deal.count and deal.in_one_round:
        return f"each of the {deal.count} tiles is alone on its XCD"
    return ""


@dataclass(frozen=True)
class _Lists:
    """The tiles of each XCD, in the order in which it computes them: the lists' lengths, and positions in them."""

    workgroups: Index
    rounds: Index  # full rounds, R; a launch of one round counts as none and a rest
    rest: Index
    xcds: Index  # those that hold a workgroup

    @staticmethod
    def of(deal: AnyDeal, xcds: Index) -> _Lists:
        if deal.in_one_round:
            # The XCDs without a tile do no harm: no rest reaches them. They are dropped where that costs nothing.
            holding = xcds if isinstance(deal, OpenDeal) else smaller(xcds, deal.count)
            return _Lists(deal.count, 0, deal.count, holding)
        rounds, rest = divide(deal.count, deal.workgroups)
        return _Lists(deal.workgroups, rounds, rest, 1 if is_one(xcds) else smaller(xcds, deal.workgroups))

    @property
    def larger_xcds(self) -> Index:
        """How many XCDs, from the first, hold one workgroup more than the others."""
        return self.workgroups % self.xcds

    @property
    def longer_by_rest(self) -> Index:
        """The number of XCDs, from the first, that get one more tile in the last, partial wave."""
        return self.rest % self.xcds

    @property
    def shortest(self) -> Index:
        """The last XCD's list, which no other undercuts."""
        return self.rounds * (self.workgroups // self.xcds) + self.rest // self.xcds

    @property
    def even(self) -> bool:
        """Whether the position times xcds, plus the XCD, is known to be t."""
        known = isinstance(self.xcds, int) and isinstance(self.workgroups, int)
        return is_zero(self.rounds) or is_one(self.xcds) or (known and self.workgroups % self.xcds == 0)

    def place(self, t: Index) -> tuple[Index, Index]:
        """The XCD that computes the t-th tile, and the tile's position in its list."""
        turn, w = (0, t) if is_zero(self.rounds) else divide(t, self.workgroups)
        seat, xcd = divide(w, self.xcds)
        per_round = times(turn, self.workgroups // self.xcds)
        extra = 0 if self.even else choose(xcd < self.larger_xcds, turn, 0)
        return xcd, total(per_round, extra, seat)

    def in_turn(self, t: Index, xcd: Index, position: Index) -> Index:
        """The number of a tile if each XCD in turn takes the next of its list, while it has one."""
        if self.even:
            return t
        one, other = self.larger_xcds, self.longer_by_rest
        few, many = smaller(one, other), larger(one, other)
        middle = self.shortest + choose(one > other, self.rounds, 1)
        # The sum over all XCDs of smaller(their list, position); the longest lists are longer than any position.
        taken = (
            times(position, few),
            times(smaller(position, middle), many - few),
            times(smaller(position, self.shortest), self.xcds - many),
        )
        return total(xcd, *taken)


def xcd_contiguous(xcds: Index) -> XcdContiguous:
    """Each XCD gets one contiguous range of numbers, remainders included."""
    return XcdContiguous(xcds)


def xcd_chunked(xcds: Index, chunk: Index) -> XcdChunked:
    """Each XCD gets chunks of `chunk` consecutive numbers."""
    return XcdChunked(xcds, chunk)


def folded() -> Folded:
    """Every second round from the last workgroup to the first."""
    return Folded()


def last_first() -> LastFirst:
    """From the last number to the first."""
    return LastFirst()
