"""Autotune with measurements: time the cost model's best configs, or every legal one, and keep the fastest.

`measure` is given by the caller: it takes configs of one kernel, the first of which is the baseline of the others, and
returns the time of each or the reason why it has none. Each time is stored at once; a search that was killed resumes
after the last stored config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tilewave._version import __version__
from tilewave.errors import TilewaveError
from tilewave.records import dataclass
from tilewave.tune.choose import TileChoice
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import STRENGTHS, BadRecord, RecordKey, TileRecord
from tilewave.tune.store import add, read_lines, write_lines, writing

UNFINISHED = "unfinished.jsonl"
"""Points of searches that have not ended."""
RUNS = 8
"""Points that are timed at most, where not all of them are."""
AT_ONCE = 4
"""Points that are timed in turns with the first one."""
BEYOND = 0.01
"""The least advantage over the model's config, besides the noise, for which a config replaces it."""


@dataclass(frozen=True)
class ConfigTime:
    """What timing a point gave: seconds, or why there are none."""

    seconds: float | None
    spread: float = 0.0
    rounds: int = 0
    why: str = ""


NO_TIME = ConfigTime(None)


@dataclass(frozen=True)
class Tried:
    """A point that was timed, and its prediction."""

    choice: TileChoice
    time: ConfigTime

    @property
    def text(self) -> str:
        return self.choice.text

    @property
    def is_timed(self) -> bool:
        return self.time.seconds is not None

    def record(self, key: RecordKey) -> TileRecord:
        """Return the tuning record of this point alone."""
        one, time = self.choice, self.time
        facts = (
            one.values,
            one.order,
            STRENGTHS[1],
            one.considered,
            sum(one.illegal.values()),
            1,
            one.prediction.seconds,
        )
        spread = time.spread if self.is_timed else None
        return TileRecord(key, *facts, time.seconds, spread, time.rounds, notes=time.why)


Batch = Sequence[TileChoice]
"""Points that are timed in turns; the first is the model's own in every batch, and says how batches differ."""
Measure = Callable[[Batch], Sequence[ConfigTime]]
Advance = Callable[[], object]


class Spread(Protocol):
    """Who measures batches."""

    @property
    def measures_here(self) -> bool:
        """Whether this machine has to have the target's device."""

    def __call__(self, measure: Measure, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Sequence[ConfigTime]]]:
        """Yield the times of batches in any order; `measure` times one on this machine."""


class InTurn:
    """A `Spread` that measures in this process, one batch after the other."""

    measures_here = True

    def __call__(self, measure: Measure, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Sequence[ConfigTime]]]:
        return ((batch, measure(batch)) for batch in batches)


IN_TURN = InTurn()


@dataclass(frozen=True)
class Tuned:
    """What a search decided, and all that it tried."""

    record: TileRecord
    winner: TileChoice
    tried: tuple[Tried, ...]
    resumed: int
    """How many of `tried` were timed by an earlier search."""
    legal: tuple[TileChoice, ...]
    """Every point that was considered and can be, the best predicted first."""
    tiles: TunableKernel


def want_strength(how: str) -> None:
    """Refuse a name that no strength of a search has."""
    if how not in STRENGTHS:
        raise TilewaveError(f"unknown strength {how!r}", remedy=f"there are {', '.join(STRENGTHS)}")


def candidates(open_tiles: TunableKernel, how: str, runs: int) -> list[TileChoice]:
    """The points of a strength, the best predicted first."""
    want_strength(how)
    found = open_tiles.predicted({})
    if not found:
        raise open_tiles.nothing_fits()
    order = found[0].order
    if how == STRENGTHS[1]:
        asked = [replace(found[0], order=o) for o in open_tiles.asked if o != order and order]
        return [found[0], *asked, *found[1 : max(1, runs - len(asked))]][:runs]
    if how == STRENGTHS[2]:
        others = [o for o in open_tiles.asked or open_tiles.machine.orders if o != order] if order else []
        return [*found, *(replace(one, order=o) for o in others for one in found)]
    return found[:1]


def search(
    open_tiles: TunableKernel,
    how: str,
    measure: Measure,
    directory: Path,
    runs: int = RUNS,
    advance: Advance = lambda: None,
    notes: str = "",
    spread: Spread = IN_TURN,
    untimed: TileChoice | None = None,
    key: RecordKey | None = None,
) -> Tuned:
    """Autotune one kernel for its sizes, and save a tuning record.

    The record is for `key`, or else for the kernel's sizes. `untimed` is chosen if no config has a time: the best
    predicted one that compiles, if the caller knows it.
    """
    configs, is_timed = candidates(open_tiles, how, runs), how != STRENGTHS[0]
    key, first = key or open_tiles.key({}), configs[0]
    tried = _stored(directory, key, configs) if is_timed else {}
    left = [one for one in configs if one.text not in tried] if is_timed else []
    resumed = len(tried)
    for _ in tried:
        advance()
    for batch, times in spread(measure, list(_batches(first, left))):
        for one in _scaled(batch, times, tried.get(first.text)):
            if one.text not in tried:
                add(one.record(key), directory, UNFINISHED)
                tried[one.text] = one
                advance()
    in_order = sorted(tried.values(), key=_by_time)
    best = _winner(Tried(first, NO_TIME), in_order)
    if not best.is_timed and untimed is not None:
        best = Tried(replace(untimed, order=first.order), NO_TIME)
    record = replace(
        best.record(key),
        how=how if best.is_timed else STRENGTHS[0],
        tried=sum(one.is_timed for one in in_order),
        baseline=tried[first.text].time.seconds if first.text in tried else None,
        notes=notes,
    )
    add(record, directory)
    _forget(directory, key)
    legal = {one.text: one for one in (*configs, *open_tiles.predicted({}))}
    return Tuned(record, best.choice, tuple(in_order), resumed, tuple(legal.values()), open_tiles)


def _batches(first: TileChoice, left: Sequence[TileChoice]) -> Iterator[list[TileChoice]]:
    others = [one for one in left if one.text != first.text]
    if first in left and not others:
        yield [first]
    for at in range(0, len(others), AT_ONCE):
        yield [first, *others[at : at + AT_ONCE]]


def _scaled(batch: Batch, times: Sequence[ConfigTime], first: Tried | None) -> list[Tried]:
    """Times as if all batches had been timed in one."""
    own, known = times[0].seconds, first.time.seconds if first else None
    scale = known / own if known and own else 1.0
    scaled = [
        replace(one, seconds=None if one.seconds is None else one.seconds * scale, spread=one.spread * scale)
        for one in times
    ]
    return list(map(Tried, batch, scaled))


def _by_time(one: Tried) -> tuple[bool, float, str]:
    return one.time.seconds is None, one.time.seconds or 0.0, one.text


def _winner(first: Tried, in_order: Sequence[Tried]) -> Tried:
    """The fastest; the model's own choice where none is faster beyond the spread."""
    best = in_order[0] if in_order and in_order[0].is_timed else first
    own = next((one for one in in_order if one.text == first.text), best)
    if best.time.seconds is None or own.time.seconds is None:
        return best
    needed = max(BEYOND * own.time.seconds, best.time.spread)
    return own if own.time.seconds - best.time.seconds <= needed else best


def _stored(directory: Path, key: RecordKey, configs: Sequence[TileChoice]) -> dict[str, Tried]:
    """Return the configs that a search of this key has timed and not ended, by their texts."""
    times = {
        (frozenset(one.choice.items()), one.order): ConfigTime(one.measured, one.spread or 0.0, one.rounds, one.notes)
        for one in filter(None, (_unfinished(line, key) for line in read_lines(directory / UNFINISHED)))
    }
    named = ((one, (frozenset(one.values.items()), one.order)) for one in configs)
    return {one.text: Tried(one, times[name]) for one, name in named if name in times}


def _unfinished(line: str, key: RecordKey) -> TileRecord | None:
    """Return the record of a line; None for lines of other searches or versions, and for damaged ones."""
    try:
        found = TileRecord.parse(line)
    except BadRecord:
        return None
    return found if found.key == key and found.version == __version__ else None


def _forget(directory: Path, key: RecordKey) -> None:
    """Remove the times of a search that has ended."""
    path = directory / UNFINISHED
    if path.exists():
        with writing(directory):
            kept = [line for line in read_lines(path) if _unfinished(line, key) is None]
            write_lines(path, kept) if kept else path.unlink()
