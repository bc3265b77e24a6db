"""A Gaussian process over features of launches that corrects the cost model by its errors on measured launches.

Errors of the cost model are similar for similar launches. A few hundred measured rows are kept that are least
predicted by each other, each with a weight: the correction of a time's logarithm is the sum of the weights, each
multiplied by the similarity of its launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewave.tune.measured import DATA, MeasuredLaunch
from tilewave.tune.problem import CutWork

Places = NDArray[np.float64]
"""Traits of launches, one row for each."""
REACH = 2.0
"""The distance at which the correlation of model errors has dropped to exp(-1/2)."""
NOISE = 0.4
"""The deviation of model errors that features do not explain, as a share of the one that they do."""
TINY = 1e-3
"""A share of the explained variance that avoids division by zero."""
ROOM = 16
"""Columns that there is room for at first."""
COUNT = 3200
"""Launches that are kept."""
AT_ONCE = 512
"""Launches that are predicted together: their similarities take 8 bytes each."""
NEAR = 0.5
"""Rows slower than the best of their shape by more than this in the logarithm are left out, unless the cost model
predicts them to be fast."""
BEST_FIRST = 4.0
"""By this power of how much slower a row is than the best of its shape, or is taken for, it counts less."""
FARTHEST = 0.8
"""A row that is further off counts as if it were so far off: what is not modelled must not bend the rest."""


def likeness(a: Places, b: Places, reach: float) -> NDArray[np.float64]:
    """Return the similarity of each of `a` to each of `b`: 1 for equal, 0 for unrelated."""
    apart = np.square(a).sum(1)[:, None] + np.square(b).sum(1)[None, :] - 2.0 * a @ b.T
    return _similarity(np.maximum(apart, 0.0), reach)


def _similarity(apart: NDArray[np.float64], reach: float) -> NDArray[np.float64]:
    """Return the similarity for squared distances."""
    return np.exp(apart / (-2.0 * reach**2))


class Unsure:
    """How unsure the times of launches are, as some of them become known: from 1 to 0."""

    def __init__(self, places: Places, reach: float) -> None:
        self.places, self.reach = places, reach
        self.variance = np.ones(len(places))
        self._known = 0
        self._columns = np.empty((len(places), ROOM), order="F")
        """A column for each that is known, and room for more."""

    def know(self, at: int) -> None:
        given = self._columns[:, : self._known]
        likeness_ = likeness(self.places, self.places[at : at + 1], self.reach)[:, 0] - given @ given[at]
        column = likeness_ / np.sqrt(self.variance[at] + TINY)
        if self._known == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], axis=1)
        self._columns[:, self._known] = column
        self._known += 1
        self.variance = np.maximum(self.variance - column**2, 0.0)

    @property
    def deviation(self) -> NDArray[np.float64]:
        return np.sqrt(self.variance)


@dataclass(frozen=True)
class Neighbours:
    """Launches that represent all measured ones, and their weights."""

    places: Places
    weights: NDArray[np.float64]

    @staticmethod
    def of(places: Places, beyond: NDArray[np.float64], counts: NDArray[np.float64]) -> Neighbours:
        """Fit weights whose sums approximate the logarithms of measured over predicted times; `counts` weighs the
        rows."""
        unsure, kept = Unsure(places, REACH), []
        for _ in range(min(COUNT, len(places))):
            kept.append(int(np.argmax(unsure.variance)))
            unsure.know(kept[-1])
        chosen = places[kept]
        to_all, to_each_other = likeness(places, chosen, REACH), likeness(chosen, chosen, REACH)
        counted = to_all.T * (counts / counts.mean())
        least_squares = counted @ to_all + NOISE**2 * (to_each_other + 1e-8 * np.eye(len(kept)))
        return Neighbours(chosen, np.linalg.solve(least_squares, counted @ beyond))

    def beyond(self, traits: Sequence[tuple[float, ...]]) -> list[float]:
        """What is to be added to the logarithms of the times of launches."""
        if not traits or len(traits[0]) != self.places.shape[1]:
            return [0.0] * len(traits)
        parts = (np.array(traits[at : at + AT_ONCE]) for at in range(0, len(traits), AT_ONCE))
        return [float(x) for part in parts for x in likeness(part, self.places, REACH) @ self.weights]

    def write(self, path: Path) -> None:
        np.savetxt(path, np.column_stack([self.weights, self.places]), "%.9g", ",")


@cache
def neighbours_in(name: str) -> Neighbours:
    """Return the neighbours in a file of `data`: one per line, its weight first."""
    rows = np.loadtxt(DATA / name, delimiter=",", ndmin=2)
    return Neighbours(rows[:, 1:], rows[:, 0])


class PredictedTime(Protocol):
    """The time that a cost model predicts for a launch."""

    @property
    def seconds(self) -> float: ...


class CostModel(Protocol):
    """The part of a cost model that neighbours are fitted to; `GpuTiles` is the model of GPUs."""

    def predict(self, cut: CutWork) -> PredictedTime:
        """Return the predicted time of a launch."""

    def traits(self, cut: CutWork) -> tuple[float, ...]:
        """Return the features of a launch."""


def neighbours_of(machine: CostModel, rows: Sequence[tuple[MeasuredLaunch, CutWork]]) -> Neighbours:
    """Return the neighbours of measured rows, for a machine without neighbours."""
    best: dict[object, float] = {}
    for launch, _ in rows:
        best[launch.product] = min(launch.seconds, best.get(launch.product, np.inf))
    times = np.array([(launch.seconds, machine.predict(work).seconds) for launch, work in rows])
    slower = times.min(1) / [best[launch.product] for launch, _ in rows]
    near = slower < np.exp(NEAR)
    places = np.array([machine.traits(work) for (_, work), is_near in zip(rows, near, strict=True) if is_near]).round(3)
    beyond = np.log(times[near, 0] / times[near, 1])
    return Neighbours.of(places, np.clip(beyond, -FARTHEST, FARTHEST), np.maximum(slower[near], 1.0) ** -BEST_FIRST)
