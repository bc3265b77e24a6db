"""Autotune with measurements: time the cost model's best configs, or every legal one, and keep the fastest.

`measure` is given by the caller: it takes configs of one kernel, the first of which is the baseline of the others, and
returns the time of each or the reason why it has none. Each time is stored at once; a search that was killed resumes
after the last stored config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tilewave._version import __version__
from tilewave.cost.work import CutWork
from tilewave.errors import TilewaveError
from tilewave.files import parse_json
from tilewave.tune.choose import TileChoice, seconds_text
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import LONGEST_SECONDS, STRENGTHS, RecordKey, TileRecord
from tilewave.tune.store import add, add_line, locked, read_lines, write_lines

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


@dataclass(frozen=True)
class Tried:
    """A point that was timed, and its prediction."""

    choice: TileChoice
    time: ConfigTime

    @property
    def text(self) -> str:
        return self.choice.text


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


@dataclass(frozen=True)
class InTurn:
    """A `Spread` that measures in this process, one batch after the other."""

    measures_here: bool = True

    def __call__(self, measure: Measure, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Sequence[ConfigTime]]]:
        for batch in batches:
            yield batch, measure(batch)


IN_TURN = InTurn()


@dataclass(frozen=True)
class Tuned:
    """What a search decided, and all that it tried."""

    record: TileRecord
    winner: TileChoice
    tried: tuple[Tried, ...]
    resumed: int
    """How many of `tried` were timed by an earlier search."""
    reasons: tuple[str, ...]
    legal: tuple[TileChoice, ...]
    """Every point that was considered and can be, the best predicted first."""

    def to_json(self) -> dict[str, Any]:
        configs = [
            {
                "point": {s.name: v for s, v in one.choice.config.items()},
                "order": one.choice.order,
                "predicted": one.choice.prediction.seconds,
                "seconds": one.time.seconds,
                "spread": one.time.spread,
                "why": one.time.why,
            }
            for one in self.tried
        ]
        return {
            "record": json.loads(self.record.line),
            "resumed": self.resumed,
            "reasons": self.reasons,
            "tried": configs,
        }


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
    found = [replace(one, order=order) for one in found]
    if how == STRENGTHS[1]:
        asked = [replace(found[0], order=o) for o in open_tiles.asked if o != order and order]
        return [found[0], *asked, *found[1 : max(1, runs - len(asked))]][:runs]
    if how == STRENGTHS[2]:
        others = [o for o in open_tiles.orders if o != order] if order else []
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
    configs = candidates(open_tiles, how, runs)
    key = key or open_tiles.key({})
    journal = _Journal(directory / UNFINISHED, f"{key} {__version__}")
    known = journal.times() if how != STRENGTHS[0] else {}
    tried = [Tried(one, known[one.text]) for one in configs if one.text in known]
    for _ in tried:
        advance()
    left = [one for one in configs if one.text not in known] if how != STRENGTHS[0] else []
    for batch, times in spread(measure, list(_batches(configs[0], left))):
        for one in _scaled(batch, times, known.get(configs[0].text)):
            if one.text not in known:
                journal.add(one)
                known[one.text] = one.time
                tried.append(one)
                advance()
    winner, timed = _winner(configs[0], tried)
    if timed is None and untimed is not None:
        winner = replace(untimed, order=configs[0].order)
    record = TileRecord(
        key,
        {s.name: v for s, v in winner.config.items()},
        winner.order,
        how if timed else STRENGTHS[0],
        winner.considered,
        sum(winner.illegal.values()),
        sum(one.time.seconds is not None for one in tried),
        winner.prediction.seconds,
        timed.seconds if timed else None,
        timed.spread if timed else None,
        timed.rounds if timed else 0,
        known[configs[0].text].seconds if configs[0].text in known else None,
        notes=notes,
    )
    add(record, directory)
    journal.end()
    reasons = reasons_for(open_tiles, winner, configs[0], tried)
    legal = {one.text: one for one in (*configs, *open_tiles.predicted({}))}
    facts = tuple(sorted(tried, key=_by_time)), len(configs) - len(left), reasons, tuple(legal.values())
    return Tuned(record, winner, *facts)


def _batches(first: TileChoice, left: Sequence[TileChoice]) -> Iterator[list[TileChoice]]:
    others = [one for one in left if one.text != first.text]
    if first in left and not others:
        yield [first]
    for at in range(0, len(others), AT_ONCE):
        yield [first, *others[at : at + AT_ONCE]]


def _scaled(batch: Batch, times: Sequence[ConfigTime], first: ConfigTime | None) -> list[Tried]:
    """Times as if all batches had been timed in one."""
    own = times[0].seconds
    scale = first.seconds / own if first and first.seconds and own else 1.0
    found = []
    for choice, time in zip(batch, times, strict=True):
        scaled = None if time.seconds is None else time.seconds * scale
        found.append(Tried(choice, replace(time, seconds=scaled, spread=time.spread * scale)))
    return found


def _by_time(one: Tried) -> tuple[bool, float, str]:
    return one.time.seconds is None, one.time.seconds or 0.0, one.text


def _winner(first: TileChoice, tried: Sequence[Tried]) -> tuple[TileChoice, ConfigTime | None]:
    """The fastest; the model's own choice where none is faster beyond the spread."""
    timed = sorted((one for one in tried if one.time.seconds is not None), key=_by_time)
    if not timed:
        return first, None
    best = timed[0]
    own = next((one for one in timed if one.text == first.text), None)
    if own is not None:
        assert own.time.seconds is not None and best.time.seconds is not None
        needed = max(BEYOND * own.time.seconds, best.time.spread)
        if own.time.seconds - best.time.seconds <= needed:
            return own.choice, own.time
    return best.choice, best.time


# -- what was timed so far ---------------------------------------------------------------------------------------------


class _Journal:
    """Times of one search, line by line."""

    def __init__(self, path: Path, search: str) -> None:
        self.path, self.search = path, search

    def times(self) -> dict[str, ConfigTime]:
        found = {}
        for line in read_lines(self.path):
            facts = self._facts(line)
            if facts is not None:
                found[facts["point"]] = ConfigTime(facts["seconds"], facts["spread"], facts["rounds"], facts["why"])
        return found

    def _facts(self, line: str) -> dict[str, Any] | None:
        """Return the fields of a line of this search; None for lines of others, and for damaged ones."""
        try:
            facts = parse_json(line)
        except ValueError:
            return None
        kinds = {"point": str, "spread": float, "rounds": int, "why": str}
        if not isinstance(facts, dict) or facts.get("search") != self.search:
            return None
        right = all(type(facts.get(name)) is kind for name, kind in kinds.items())
        seconds = facts.get("seconds")
        is_time = seconds is None or (type(seconds) is float and 0 <= seconds < LONGEST_SECONDS)
        return facts if right and is_time else None

    def add(self, one: Tried) -> None:
        facts = {
            "search": self.search,
            "point": one.text,
            "seconds": one.time.seconds,
            "spread": float(one.time.spread),
        }
        add_line(self.path, json.dumps({**facts, "rounds": one.time.rounds, "why": one.time.why}))

    def end(self) -> None:
        """Remove this search's lines, which are no longer needed."""
        if not self.path.exists():
            return
        with locked(self.path.parent):
            kept = [line for line in read_lines(self.path) if self._facts(line) is None]
            if kept:
                write_lines(self.path, kept)
            else:
                self.path.unlink()


# -- why ---------------------------------------------------------------------------------------------------------------


def reasons_for(
    open_tiles: TunableKernel, winner: TileChoice, first: TileChoice, tried: Sequence[Tried]
) -> tuple[str, ...]:
    """Return why the winner won, compared with the slowest config that ran and the cost model's choice."""
    times = {one.text: one.time.seconds for one in tried if one.time.seconds is not None}
    given = [f"{winner.text}: {facts_text(open_tiles.problem.cut(winner.config), open_tiles)}"]
    if first.text != winner.text and first.text in times:
        given.append(f"the model's {first.text} took {seconds_text(times[first.text])}")
    fastest = min(times, key=lambda text: times[text], default=winner.text)
    if fastest != winner.text:
        given.append(f"{fastest} took {seconds_text(times[fastest])}, within noise of the winner")
    slowest = max((one for one in tried if one.text in times), key=lambda one: times[one.text], default=None)
    if slowest is not None and slowest.text != winner.text:
        cut = open_tiles.problem.cut(slowest.choice.config)
        given.append(f"slowest {slowest.text}, {seconds_text(times[slowest.text])}: {facts_text(cut, open_tiles)}")
    return tuple(given)


def facts_text(cut: CutWork, open_tiles: TunableKernel) -> str:
    """Return the tiles, waves, size of the last wave, bytes requested, and bottleneck of a config, as text."""
    units = open_tiles.machine.units
    rounds, left = divmod(cut.tasks, units)
    last = f" and one of {left} tiles" if left else ""
    repeats = cut.asked_bytes / max(1.0, cut.distinct_bytes)
    limit = open_tiles.machine.predict(cut).limit
    return (
        f"{cut.tasks} tiles, {units} concurrent: {rounds} full waves{last}; {cut.asked_bytes / 1e6:.3g} MB requested, "
        f"each byte {repeats:.1f} times; predicted bottleneck: {limit}"
    )
