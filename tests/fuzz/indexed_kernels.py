"""The net of kernels with indices from memory: on every target, judged by numpy; contracts that are not kept are found.

A kernel that is compiled has no collisions where its contracts are kept. Where one is not, the interpreters, emulated
kernels and calls with TILEWAVE_CHECK=1 say so; a compiled kernel that is not checked stays inside its arrays anyway.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewave.errors import AccessError, TilewaveError

from .indexed import Indexed, generate_indexed, indexed_of_text, shrink_indexed, text_of_indexed
from .indexed_reference import Collision, Guarded, arrays_of, expected, is_broken
from .indexed_source import indexed_source, subs_source
from .judge import TARGETS, OnCard, Outcome, Way, plain, ways

REFUSED = ("CoverageError", "AccessError", "CannotCompile")


class IndexedKernels:
    """A net whose cases are kernels with indices, each for one target."""

    def make(self, seed: int, target: str) -> Indexed:
        return generate_indexed(seed, target)

    def judged(self, case: Indexed, target: str, only: str = "") -> Outcome:
        return judge_indexed(case, target, only)

    def case_on(self, seed: int, target: str) -> Outcome:
        return self.judged(self.make(seed, target), target)

    def case(self, seed: int) -> str | None:
        outcome = self.case_on(seed // len(TARGETS), TARGETS[seed % len(TARGETS)])
        return str(outcome) if outcome.wrong else None

    def text(self, case: Indexed) -> str:
        return text_of_indexed(case)

    def of_text(self, text: str) -> Indexed:
        return indexed_of_text(text)

    def shrunk(self, case: Indexed, still_wrong: Callable[[Indexed], bool]) -> Indexed:
        return shrink_indexed(case, still_wrong)

    def reproduction(self, case: Indexed, target: str, outcome: Outcome) -> str:
        return reproduction_of(case, target, outcome)


def load_indexed(case: Indexed) -> dict[str, Any]:
    text, name = indexed_source(case), f"<indexed {case.seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(text, name, "exec"), names)  # the text is ours
    return names


def judge_indexed(case: Indexed, target: str, only: str = "") -> Outcome:
    given = arrays_of(case)
    try:
        names = load_indexed(case)
        compiled = names["kernel"].compile(target=target, subs=eval(subs_source(case), names))
    except TilewaveError as error:
        if type(error).__name__ in REFUSED:
            return Outcome("refused", target, str(error))
        return Outcome(f"{type(error).__name__}: {plain(str(error))}", target, str(error))
    except Exception as error:
        return Outcome(f"compiling raised {type(error).__name__}", target, plain(str(error)) + "\n" + str(error))
    outcome = Outcome("agrees", target)
    for way in ways(target, case.seed):
        if only and way.name != only:
            continue
        outcome = attempt(case, way, compiled, given)
        if outcome.kind != "agrees":
            break
    return outcome


def attempt(case: Indexed, way: Way, compiled: Any, given: dict[str, np.ndarray]) -> Outcome:
    held = {name: Guarded.of(x) for name, x in given.items()}
    is_wrong = is_broken(case, given)
    is_compiled = way.name.startswith("cpu") or way.on_card
    try:
        with checked(is_wrong and is_compiled and case.seed % 2 == 0) as is_checked:
            on_card = OnCard(held) if way.on_card else None
            way.run(compiled, on_card.tensors if on_card else [g.view for g in held.values()], {})
            if on_card:
                on_card.bring_back()
    except AccessError as error:
        if is_wrong and "are said to be unique" in str(error):
            return around(way, held)
        return Outcome(f"AccessError: {plain(str(error))}", way.name, str(error))
    except TilewaveError as error:
        return Outcome(f"{type(error).__name__}: {plain(str(error))}", way.name, str(error))
    except Exception as error:
        return Outcome(f"running raised {type(error).__name__}", way.name, plain(str(error)) + "\n" + str(error))
    if is_wrong and (is_checked or not is_compiled):
        return Outcome("a broken contract is not found", way.name, "")
    return around(way, held) if is_wrong else compare(case, way, held, given)


@contextmanager
def checked(is_wanted: bool) -> Iterator[bool]:
    """Check contracts at calls, where that is wanted."""
    before = os.environ.get("TILEWAVE_CHECK")
    try:
        if is_wanted:
            os.environ["TILEWAVE_CHECK"] = "1"
        yield is_wanted
    finally:
        if before is None:
            os.environ.pop("TILEWAVE_CHECK", None)
        else:
            os.environ["TILEWAVE_CHECK"] = before


def around(way: Way, held: dict[str, Guarded]) -> Outcome:
    left = next((name for name, g in held.items() if not g.is_kept_around), None)
    if left is not None:
        return Outcome("memory changed around an array", way.name, left)
    return Outcome("agrees", way.name)


def compare(case: Indexed, way: Way, held: dict[str, Guarded], given: dict[str, np.ndarray]) -> Outcome:
    try:
        written, want = expected(case, given)
    except Collision:
        return Outcome("a scatter that collides was compiled", way.name, "")
    kept = around(way, held)
    if kept.wrong:
        return kept
    for name, g in held.items():
        if name != written and g.memory.tobytes() != g.before:
            return Outcome("an input changed", way.name, name)
    found = held[written].view
    bad = found.astype(np.float64) != want.astype(np.float64)
    if bad.any():
        at = tuple(int(n[0]) for n in np.nonzero(bad))
        what = (
            f"{int(bad.sum())} of {bad.size} elements of {written}; {written}{list(at)} is {found[at]}, not {want[at]}"
        )
        return Outcome("wrong numbers", way.name, what)
    return Outcome("agrees", way.name, "", found.size, 0)


def reproduction_of(case: Indexed, target: str, outcome: Outcome) -> str:
    """Return a file that runs alone: the kernel, its arrays as numbers, and what they should give."""
    given = arrays_of(case)
    run = {"numpy": "compiled.interpret(*arrays)", "cpu": "compiled(*arrays)"}.get(target, "compiled.emulate(*arrays)")
    if "lanes" in outcome.way:
        run = 'compiled.interpret(*arrays, level="lane")'
    arrays = "".join(f"    {name}={x.tolist()!r},\n" for name, x in given.items())
    kinds = {name: str(x.dtype) for name, x in given.items()}
    try:
        written, want = expected(case, given)
        wanted = f"    np.testing.assert_array_equal(given[{written!r}].astype(np.float64), {want.tolist()!r})"
    except Collision:
        wanted = "    raise AssertionError('it is compiled, and two elements have one place')"
    return f'''"""{outcome.way}: {outcome.kind}"""

import ml_dtypes  # noqa: F401  its dtypes have names
{indexed_source(case)}

GIVEN = dict(
{arrays})
KINDS = {kinds!r}


def check():
    given = {{name: np.array(x).astype(np.dtype(KINDS[name])) for name, x in GIVEN.items()}}
    arrays = list(given.values())
    compiled = kernel.compile(target={target!r}, subs={subs_source(case)})
    {run}
{wanted}


if __name__ == "__main__":
    check()
'''


INDEXED = {"indexed_kernels": IndexedKernels()}
"""Kernels that read and write at indices from memory."""
