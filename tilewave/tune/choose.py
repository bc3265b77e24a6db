"""The model's choice: every legal point of a space with its predicted time, the best first, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Protocol

from tilewave.errors import NOWHERE, Loc
from tilewave.ir.reasons import Declined, Reason
from tilewave.lang.symbols import Symbol
from tilewave.tune.gpu import Prediction
from tilewave.tune.problem import CutWork, TiledProblem
from tilewave.tune.space import BUFFERS, IN_PLACE, KNOBS, SPLIT, Space, TileValues

CHOSEN = Reason("{reason}", "write {kept} to keep it, or other values; fitted on {fit}")
SHOWN = 3
"""Points that a reason names beside the one that was chosen."""


class TileMachine(TileValues, Protocol):
    """A machine: which tiles are worth a try, which cannot be, and how long a launch takes."""

    @property
    def name(self) -> str:
        """As records have it: times of one are compared with those of its like alone."""

    @property
    def units(self) -> int:
        """That compute at once."""

    def refused(self, cut: CutWork) -> str: ...
    def is_repeated(self, cut: CutWork) -> bool: ...
    def predict(self, cut: CutWork) -> Prediction: ...


@dataclass(frozen=True)
class Predicted:
    """A legal point and its time."""

    point: Mapping[Symbol, int]
    prediction: Prediction

    @property
    def text(self) -> str:
        return point_text(self.point)


@dataclass(frozen=True)
class TileChoice:
    """What was decided, from what, and why."""

    point: Mapping[Symbol, int]
    order: str
    """Of tiles, where that was decided too; nothing where the author says it, or it makes no difference."""
    prediction: Prediction
    considered: int
    illegal: Mapping[str, int]
    """Points that were never compiled, by what there is too little of."""
    others: tuple[Predicted, ...]
    """The next best."""
    sizes: str
    """That it was decided for."""
    how: str = "the model"
    worst_share: float = 1.0
    """Of the best predicted time, how much the choice takes at most, over the sizes that it serves."""
    notes: str = ""
    """What else must be said."""

    @property
    def tiles(self) -> dict[Symbol, int]:
        """Of the kernel's own symbols."""
        return {s: n for s, n in self.point.items() if s not in KNOBS}

    @property
    def buffers(self) -> int | None:
        """Steps that shared memory holds at once, where that was decided."""
        return self.point.get(BUFFERS)

    @property
    def split(self) -> int:
        """Parts that sums are cut into."""
        return self.point.get(SPLIT, 1)

    @property
    def is_in_place(self) -> bool:
        """Whether operands are read where they lie."""
        return bool(self.point.get(IN_PLACE))

    @property
    def text(self) -> str:
        return point_text(self.point) + (f", {self.order}" if self.order else "")

    @property
    def reason(self) -> str:
        """One sentence for each: the choice, its time, what was left out."""
        p = self.prediction
        told = [
            f"no tile was given; {self.how} chose {self.text} for {self.sizes}: "
            f"{seconds_text(p.seconds)} ± {100 * p.error:.0f} %, which go into {p.limit}"
        ]
        if self.worst_share > 1.0:
            told.append(f"no size of these is predicted to lose more than {100 * (self.worst_share - 1):.0f} %")
        if self.others:
            told.append("next " + ", ".join(f"{o.text}: {seconds_text(o.prediction.seconds)}" for o in self.others))
        told.append(f"of {self.considered} points {illegal_text(self.illegal)}")
        told += [self.notes] if self.notes else []
        return "; ".join(told)

    def declined(self, loc: Loc = NOWHERE) -> Declined:
        """As `why()` shows it."""
        names = ", ".join(f"{s}: {v}" for s, v in self.tiles.items())
        kept = [f"subs={{{names}}}", *(f"{s}={v}" for s, v in self.point.items() if s in KNOBS)]
        return CHOSEN.at(loc, reason=self.reason, kept=", ".join(kept), fit=self.fit)

    @property
    def fit(self) -> str:
        return self.prediction.fitted_on


def point_text(point: Mapping[Symbol, int]) -> str:
    return ", ".join(f"{s}={v}" for s, v in point.items())


def illegal_text(illegal: Mapping[str, int]) -> str:
    if not illegal:
        return "all are legal"
    why = ", ".join(f"{count} by {name}" for name, count in sorted(illegal.items()))
    return f"{sum(illegal.values())} are illegal ({why})"


def seconds_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


@dataclass(frozen=True)
class RankedPoints:
    """Legal points, the fastest first, and how many were illegal."""

    legal: tuple[Predicted, ...]
    illegal: Mapping[str, int]

    @property
    def considered(self) -> int:
        return len(self.legal) + sum(self.illegal.values())

    def choice(self, at: int, order: str, sizes: str, share: float = 1.0) -> TileChoice:
        chosen = self.legal[at]
        others = tuple(p for i, p in enumerate(self.legal[: SHOWN + 1]) if i != at)[:SHOWN]
        facts = chosen.point, order, chosen.prediction, self.considered, self.illegal, others, sizes
        return TileChoice(*facts, worst_share=share)


def rank(problem: TiledProblem, space: Space, machine: TileMachine) -> RankedPoints:
    """All points of a space by predicted time; of equal ones, the one with the fewest tiles first."""
    found: list[tuple[float, int, int, Predicted]] = []
    illegal: Counter[str] = Counter()
    cuts: dict[tuple[int, ...], CutWork] = {}
    refused: dict[tuple[int, ...], str] = {}
    for number, point in enumerate(space.points()):
        tile = tuple([point[s] for s in space.tiles])
        if tile not in cuts:
            cuts[tile] = problem.cut({s: point[s] for s in space.tiles})
            refused[tile] = machine.refused(cuts[tile])
        cut = cuts[tile].with_knobs(point)
        if why := refused[tile] or machine.refused(cut):
            illegal[why] += 1
            continue
        if machine.is_repeated(cut):
            continue
        prediction = machine.predict(cut)
        found.append((prediction.seconds, cut.tasks, number, Predicted(point, prediction)))
    return RankedPoints(tuple(one[-1] for one in sorted(found, key=lambda one: one[:3])), dict(illegal))


# -- sizes that a call tells ------------------------------------------------------------------------------------------

LARGEST_BITS = 15
"""Sizes beyond 2 ** 15 are decided as one."""


def bucket(size: int) -> int:
    """Sizes from one power of two, which does not belong to it, to the next, which does, are one bucket."""
    return min(LARGEST_BITS + 1, max(0, size - 1).bit_length())


def bucket_ends(number: int) -> tuple[int, int]:
    """The least and the largest size of a bucket; of the last, a size that stands for all."""
    return (1, 1) if number == 0 else ((1 << number - 1) + 1, 1 << number)


def bucket_text(buckets: Mapping[Symbol, int]) -> str:
    """`M from 65 to 128, N over 32768`."""

    def told(symbol: Symbol, number: int) -> str:
        least, most = bucket_ends(number)
        if number > LARGEST_BITS:
            return f"{symbol} over {least - 1}"
        return f"{symbol} = {most}" if least == most else f"{symbol} from {least} to {most}"

    return ", ".join(told(*one) for one in buckets.items())


def rank_buckets(
    problem: TiledProblem, space: Space, machine: TileMachine, buckets: Mapping[Symbol, int]
) -> tuple[RankedPoints, float]:
    """The points for all sizes of a bucket: the one that loses least at its ends first, and how much that loses.

    Times are those at the largest sizes.
    """
    ends = [bucket_ends(number) for number in buckets.values()]
    space = space.within({**problem.values, **{dim: most for dim, (_, most) in zip(buckets, ends, strict=True)}})
    corners = [dict(zip(buckets, sizes, strict=True)) for sizes in product(*map(dict.fromkeys, ends))]
    ranked = [rank(problem.sized(sizes), space, machine) for sizes in corners]
    times = [{_key(p.point): p.prediction.seconds for p in one.legal} for one in ranked]
    largest = ranked[-1]

    def loss(p: Predicted) -> float:
        return max(found.get(_key(p.point), inf) / min(found.values()) for found in times)

    order = sorted((p for p in largest.legal if loss(p) < inf), key=loss)
    return RankedPoints(tuple(order), largest.illegal), loss(order[0]) if order else 1.0


def _key(point: Mapping[Symbol, int]) -> tuple[tuple[Symbol, int], ...]:
    return tuple(point.items())


def sizes_text(sizes: Mapping[Symbol, int]) -> str:
    return ", ".join(f"{s}={v}" for s, v in sizes.items())
