"""Chains of casts and single ops on random dtypes, at a random level or target, against exact results.

Compilers optimize across ops: an op that is right alone may be wrong after another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # nets run without pytest too, which puts it there

import exact
import numpy as np
from one_op import NAMES, TRUTHS, UNARY, WAYS, WORDS, kernel_of, mistakes, outputs, run, words_of

from tilewave import *
from tilewave.errors import TilewaveError
from tilewave.ir.types import DTYPES

SIZE, TILE = 61, 32
"""A ragged last tile."""
MOST_STEPS = 6


@dataclass(frozen=True)
class Step:
    """An op on earlier values; a cast where `word` names a dtype."""

    word: str
    operands: tuple[int, ...]
    dtype: str


def case(seed: int) -> str | None:
    rng = np.random.default_rng(seed)
    way = str(rng.choice(WAYS))
    given = [str(name) for name in rng.choice(NAMES[:-1], rng.integers(1, 3))]
    steps = _steps(rng, given)
    arrays = [np.ascontiguousarray(rng.choice(exact.every_value(n, DTYPES[n].numpy), SIZE)) for n in given]
    wanted = _wanted(arrays, given, steps)
    results = [(DTYPES[step.dtype], _computed(steps, i)) for i, step in enumerate(steps)][-2:]
    got = outputs(results, SIZE)
    told = f"{way}: {', '.join(given)}; " + "; ".join(f"{s.word}{s.operands}" for s in steps)
    try:
        run(way, kernel_of([DTYPES[n] for n in given], results, TILE), [*arrays, *got])
    except TilewaveError as error:
        return f"{told}: {error}"
    wrong = mistakes([told] * len(got), arrays, got, wanted[-len(got) :])
    return "\n".join(wrong) or None


def _steps(rng: np.random.Generator, given: list[str]) -> list[Step]:
    """Each takes a value that is there; two operands are values of one dtype."""
    kinds, steps = list(given), []
    for _ in range(rng.integers(2, MOST_STEPS + 1)):
        a = int(rng.integers(len(kinds)))
        words = [] if kinds[a] == "bool" else words_of(kinds[a])
        if not words or rng.integers(3) == 0:
            dtype = str(rng.choice(NAMES))
            step = Step(dtype, (a,), dtype)
        else:
            word = str(rng.choice(words))
            b = int(rng.choice([i for i, kind in enumerate(kinds) if kind == kinds[a]]))
            step = Step(word, (a,) if word in UNARY else (a, b), "bool" if word in TRUTHS else kinds[a])
        steps.append(step)
        kinds.append(step.dtype)
    return steps


def _wanted(arrays: list[Any], given: list[str], steps: list[Step]) -> list[Any]:
    values, kinds = list(arrays), list(given)
    for step in steps:
        taken = [values[i] for i in step.operands]
        kind = kinds[step.operands[0]]
        if step.word in DTYPES:
            values.append(exact.cast(taken[0], kind, step.dtype, DTYPES[step.dtype].numpy))
        else:
            values.append(exact.computed(step.word, taken, kind))
        kinds.append(step.dtype)
    return values


def _computed(steps: list[Step], last: int) -> Callable[..., Any]:
    """What a kernel does for one of the steps."""

    def compute(*tiles: Any) -> Any:
        values = list(tiles)
        for step in steps[: last + 1]:
            taken = [values[i] for i in step.operands]
            values.append(cast(taken[0], DTYPES[step.dtype]) if step.word in DTYPES else WORDS[step.word](*taken))
        return values[-1]

    return compute
