"""The model's choice: every legal point of a space with its predicted time, the best first, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, Protocol

from tilewave.errors import NOWHERE, Loc, SymbolError
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.lang.symbols import Symbol
from tilewave.trace import TileWork
from tilewave.tune.gpu import Prediction
from tilewave.tune.problem import NO_WORK, Config, CutWork, TiledProblem
from tilewave.tune.space import IN_PLACE, KNOBS, NUM_STAGES, SPLIT, Space, TileValues
from tilewave.tune.tune import Tune

CHOSEN = RemarkKind("{reason}", "write {kept} to keep it, or other values; fitted on {fit}")
SHOWN = 3
"""The number of runner-up configs that a reason names."""


class TileMachine(TileValues, Protocol):
    """A machine: which tiles are worth a try, which cannot be, and how long a launch takes."""

    @property
    def name(self) -> str:
        """As records have it: times of one are compared with those of its like alone."""

    @property
    def units(self) -> int:
        """The number of units (SMs, CUs, threads) that compute concurrently."""

    @property
    def stages_operands(self) -> bool:
        """Whether mma operands always go through shared memory, even if the kernel does not ask for it."""

    def refused(self, cut: CutWork) -> str: ...
    def is_repeated(self, cut: CutWork) -> bool: ...
    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return whether the order of summation of an element's products is the same for every tile size."""

    def program_of(self, cut: CutWork) -> Hashable | None:
        """Equal for points that come to the same program; None where each has its own."""

    def predict(self, cut: CutWork) -> Prediction: ...
    def predict_all(self, cuts: Sequence[CutWork]) -> list[Prediction]:
        """Return the predictions of `predict` for many configs of one kernel, computed faster."""

    def traits(self, cut: CutWork) -> tuple[float, ...] | None:
        """Return a config's coordinates in feature space, where errors of the cost model correlate within 1 or 2.
        None if they do not correlate."""


@dataclass(frozen=True)
class Predicted:
    """A legal point and its time."""

    config: Mapping[Symbol, int]
    prediction: Prediction

    @property
    def text(self) -> str:
        return config_text(self.config)


@dataclass(frozen=True)
class TileChoice:
    """What was decided, from what, and why."""

    config: Mapping[Symbol, int]
    order: str
    """The order of tiles if it was chosen; empty if the author gives it or it makes no difference."""
    prediction: Prediction
    considered: int
    illegal: Mapping[str, int]
    """Points that were never compiled, by what there is too little of."""
    others: tuple[Predicted, ...]
    """The next best."""
    sizes: str
    """The sizes that the choice is for."""
    how: str = "the model"
    worst_share: float = 1.0
    """The largest ratio of the choice's time to the best predicted time, over the sizes of its bucket."""
    notes: tuple[str, ...] = ()
    """What else must be said: records that were passed over, and why."""
    record: str = ""
    """The file of the record that says so; nothing where the model chose."""

    def noting(self, notes: Sequence[str]) -> TileChoice:
        """Return this choice with further notes on how it was made."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def tiles(self) -> dict[Symbol, int]:
        """The values of the kernel's symbols."""
        return {s: n for s, n in self.config.items() if s not in KNOBS}

    @property
    def alone(self) -> Tune:
        """What makes another compilation of the kernel choose the same."""
        values: dict[str, Any] = {s.name: n for s, n in self.config.items()}
        return Tune(**values)

    @property
    def num_stages(self) -> int | None:
        """Steps that shared memory holds at once, where that was decided."""
        return self.config.get(NUM_STAGES)

    @property
    def split(self) -> int:
        """Parts that sums are cut into."""
        return self.config.get(SPLIT, 1)

    @property
    def is_in_place(self) -> bool:
        """Whether operands are read in place, without packing."""
        return bool(self.config.get(IN_PLACE))

    @property
    def text(self) -> str:
        return config_text(self.config) + (f", {self.order}" if self.order else "")

    @property
    def reason(self) -> str:
        """One sentence for each: the choice, its time, what was left out."""
        p = self.prediction
        given = [
            f"no tile was given; {self.how} chose {self.text} for {self.sizes}: "
            f"{seconds_text(p.seconds)} ± {100 * p.error:.0f} %, bottleneck: {p.limit}"
        ]
        if self.worst_share > 1.0:
            given.append(f"no size of these is predicted to lose more than {100 * (self.worst_share - 1):.0f} %")
        if self.others:
            given.append("next " + ", ".join(f"{o.text}: {seconds_text(o.prediction.seconds)}" for o in self.others))
        given.append(f"of {self.considered} configs {illegal_text(self.illegal)}")
        given += self.notes
        return "; ".join(given)

    def remarks(self, loc: Loc = NOWHERE) -> Remark:
        """As `why()` shows it."""
        names = ", ".join(f"{s}: {v}" for s, v in self.tiles.items())
        kept = [f"subs={{{names}}}", *(f"{s}={v}" for s, v in self.config.items() if s in KNOBS)]
        return CHOSEN.at(loc, reason=self.reason, kept=", ".join(kept), fit=self.fit)

    @property
    def fit(self) -> str:
        return self.prediction.fitted_on


def config_text(config: Mapping[Symbol, int]) -> str:
    return ", ".join(f"{s}={v}" for s, v in config.items())


def illegal_text(illegal: Mapping[str, int]) -> str:
    if not illegal:
        return "all are legal"
    why = ", ".join(f"{count} by {name}" for name, count in sorted(illegal.items()))
    return f"{sum(illegal.values())} are illegal ({why})"


def seconds_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


@dataclass(frozen=True)
class RankedConfigs:
    """Legal points, the fastest first, and how many were illegal."""

    legal: tuple[Predicted, ...]
    illegal: Mapping[str, int]

    @property
    def considered(self) -> int:
        return len(self.legal) + sum(self.illegal.values())

    def choice(self, at: int, order: str, sizes: str, share: float = 1.0) -> TileChoice:
        chosen = self.legal[at]
        others = tuple(p for i, p in enumerate(self.legal[: SHOWN + 1]) if i != at)[:SHOWN]
        facts = chosen.config, order, chosen.prediction, self.considered, self.illegal, others, sizes
        return TileChoice(*facts, worst_share=share)


def rank(problem: TiledProblem, space: Space, machine: TileMachine) -> RankedConfigs:
    """All points of a space by predicted time; of equal ones, the one with the fewest tiles first."""
    return rank_configs(problem, space.configs(), machine)


def rank_configs(problem: TiledProblem, configs: Iterable[Config], machine: TileMachine) -> RankedConfigs:
    found: list[tuple[Config, CutWork]] = []
    repeated: list[tuple[Config, CutWork]] = []
    illegal: Counter[str] = Counter()
    programs: set[Hashable] = set()
    tiles: dict[tuple[int, ...], tuple[CutWork, str]] = {}
    for config in configs:
        tile = _key(config)
        if tile not in tiles:
            tiles[tile] = _cut_or_why(problem, config, machine)
        work, refused = tiles[tile]
        cut = work.with_knobs(config)
        if why := refused or machine.refused(cut):
            illegal[why] += 1
            continue
        program = machine.program_of(cut)
        repeats = machine.is_repeated(cut) or program in programs
        programs |= {program} - {None}
        (repeated if repeats else found).append((config, cut))
    wanted = found or repeated  # `Tune` may have left only repeated configs
    predicted = zip(wanted, machine.predict_all([cut for _, cut in wanted]), strict=True)
    ranked = sorted(predicted, key=lambda one: (one[1].seconds, one[0][1].tasks))
    return RankedConfigs(tuple(Predicted(config, given) for (config, _), given in ranked), dict(illegal))


def _cut_or_why(problem: TiledProblem, config: Config, machine: TileMachine) -> tuple[CutWork, str]:
    """What the tiles of a point make of the work, and why that cannot be, if so."""
    try:
        work = problem.cut({s: n for s, n in config.items() if s not in KNOBS})
    except SymbolError:  # the half of an odd number, say
        return NO_WORK, "whole numbers"
    return work, machine.refused(work)


# -- dynamic sizes ----------------------------------------------------------------------------------------------------

WHOLE_BITS, LARGEST_BITS = 6, 15
"""Above 2 ** 6 there are two size buckets between powers of two; all sizes above 2 ** 15 share one bucket."""
LAST_BUCKET = WHOLE_BITS + 2 * (LARGEST_BITS - WHOLE_BITS) + 1
ALIGNED = 16
"""Elements that rows are a multiple of where they begin well."""
MOST_KNOBBED = 6
"""Tiles of a bucket that are looked at with what no constraint names."""


def bucket(size: int) -> int:
    """Sizes from one power of two, which does not belong to it, to the next, which does; large ones are halved."""
    bits = max(0, size - 1).bit_length()
    if bits <= WHOLE_BITS:
        return bits
    upper = size - 1 >> bits - 2 & 1
    return min(LAST_BUCKET, WHOLE_BITS - 1 + 2 * (bits - WHOLE_BITS) + upper)


def bucket_ends(number: int) -> tuple[int, int]:
    """Return the smallest and the largest size of a bucket; the last bucket has a nominal largest size."""
    if number <= WHOLE_BITS:
        return (1, 1) if number == 0 else ((1 << number - 1) + 1, 1 << number)
    if number == LAST_BUCKET:
        return (1 << LARGEST_BITS) + 1, 2 << LARGEST_BITS
    bits, upper = divmod(number - WHOLE_BITS - 1, 2)
    half = 1 << WHOLE_BITS + bits - 1
    return (2 + upper) * half + 1, (3 + upper) * half


def bucket_text(buckets: Mapping[Symbol, int]) -> str:
    """`M from 65 to 128, N over 32768`."""

    def given(symbol: Symbol, number: int) -> str:
        least, most = bucket_ends(number)
        if number == LAST_BUCKET:
            return f"{symbol} over {least - 1}"
        return f"{symbol} = {most}" if least == most else f"{symbol} from {least} to {most}"

    return ", ".join(given(*one) for one in buckets.items())


def judged_sizes(number: int) -> tuple[int, ...]:
    """The sizes at which a bucket is looked at: its ends, the lower one such that rows begin as well as they may."""
    least, most = bucket_ends(number)
    return tuple(dict.fromkeys((min(most, -(-least // ALIGNED) * ALIGNED), most)))


def rank_buckets(
    problem: TiledProblem, space: Space, machine: TileMachine, buckets: Mapping[Symbol, int]
) -> tuple[RankedConfigs, float]:
    """The points for all sizes of a bucket: the one that loses least at its ends first, and how much that loses.

    The largest sizes count as much as the worst of all: those that programs have are round numbers, which end buckets.
    Tiles are looked at first; what no constraint names, of the best of them. Times are those at the largest sizes.
    """
    ends = [judged_sizes(number) for number in buckets.values()]
    space = space.within({**problem.values, **{dim: sizes[-1] for dim, sizes in zip(buckets, ends, strict=True)}})
    corners = [problem.sized(dict(zip(buckets, sizes, strict=True))) for sizes in product(*ends)]
    tiles, _ = _least_loss(corners, list(space.without(*KNOBS).configs()), machine)
    best = {_key(p.config) for p in tiles.legal[:MOST_KNOBBED]}
    knobbed = [p for p in space.configs() if _key(p) in best]
    ranked, share = _least_loss(corners, knobbed, machine)
    others = [p for p in tiles.legal if _key(p.config) not in best]
    illegal = Counter(tiles.illegal) + Counter(ranked.illegal)
    return RankedConfigs((*ranked.legal, *others), dict(illegal)), share


def _least_loss(
    corners: Sequence[TiledProblem], configs: Sequence[Config], machine: TileMachine
) -> tuple[RankedConfigs, float]:
    """By what a point loses at most at some corner, and at the largest; those that are illegal at one are left out."""
    ranked = [rank_configs(corner, configs, machine) for corner in corners]
    times = [{_whole_key(p.config): p.prediction.seconds for p in one.legal} for one in ranked]
    largest = ranked[-1]

    def loss(p: Predicted) -> float:
        return max(found.get(_whole_key(p.config), inf) / min(found.values(), default=inf) for found in times)

    losses = {_whole_key(p.config): loss(p) for p in largest.legal}
    legal = [p for p in largest.legal if losses[_whole_key(p.config)] < inf]
    quickest = min((p.prediction.seconds for p in largest.legal), default=inf)
    order = sorted(legal, key=lambda p: losses[_whole_key(p.config)] * p.prediction.seconds / quickest)
    return RankedConfigs(tuple(order), largest.illegal), losses[_whole_key(order[0].config)] if order else 1.0


def _key(config: Config) -> tuple[int, ...]:
    """Return the tile sizes of a config, without the knobs."""
    return tuple([n for s, n in config.items() if s not in KNOBS])


def _whole_key(config: Config) -> tuple[tuple[Symbol, int], ...]:
    return tuple(config.items())


def sizes_text(sizes: Mapping[Symbol, int]) -> str:
    return ", ".join(f"{s}={v}" for s, v in sizes.items())
