"""A session of mutation testing: mutants are drawn, tests that are red without one left out, and each mutant tried."""

from __future__ import annotations

import fnmatch
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from .changed import changed_lines
from .equivalent import Equivalent
from .mutations import Mutant, mutants_of, parses
from .rooms import module_tests
from .trial import Copy, Limits, Outcome, Ran, SelectedTests, limits_after

Key = TypeVar("Key")
Result = TypeVar("Result")
Progress = Callable[[str, int], Callable[[], None]]


class NotRun(Exception):
    """Tests end without a mutant in a way that does not say which of them fail."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a session."""

    root: Path
    base: str
    count: int
    seed: int
    jobs: int
    files: str = "*"
    equivalents: tuple[Equivalent, ...] = ()


@dataclass(frozen=True)
class Tried:
    """A mutant, the lines that it changes, and what became of it."""

    mutant: Mutant
    difference: tuple[str, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Held:
    """What holds a module: its tests without those that are red, and how long they may take."""

    tests: SelectedTests
    limits: Limits


@dataclass(frozen=True)
class Found:
    """What a session found: what became of each mutant, and the tests that are red without one."""

    tried: tuple[Tried, ...] = ()
    red: tuple[str, ...] = ()


def candidates(plan: Plan) -> list[Mutant]:
    """Return the mutants of all changed lines, without those that are listed as equivalent."""
    listed = {(entry.path, entry.difference) for entry in plan.equivalents}
    found = []
    for path, lines in sorted(changed_lines(plan.root, plan.base).items()):
        if fnmatch.fnmatch(path, plan.files):
            source = (plan.root / path).read_bytes()
            mutants = (m for m in mutants_of(path, source) if m.line in lines)
            found += [m for m in mutants if (path, m.difference(source)) not in listed]
    return found


def draw(plan: Plan, mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return `count` mutants at random, the same ones for the same seed; all of them where there are fewer."""
    drawn: list[Mutant] = []
    for mutant in random.Random(plan.seed).sample(mutants, len(mutants)):
        if len(drawn) == plan.count:
            break
        if parses(mutant.applied((plan.root / mutant.path).read_bytes())):
            drawn.append(mutant)
    return drawn


class Session:
    """Copies of the work tree, one a worker, and what is run in them."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan = plan
        self.copies = [Copy(plan.root, place / str(job)) for job in range(plan.jobs)]

    def holding(self, mutants: Sequence[Mutant], progress: Progress) -> dict[str, Held]:
        """Run the tests of every mutated module without a mutant; return those that are green, and their limits.

        The failures of a test that is red anyway would say nothing of a mutant.
        """
        files = {module: module_tests(self.plan.root, module) for module in sorted({m.path for m in mutants})}
        rooms = sorted({tuple(sorted(of_module)) for of_module in files.values()})
        advance = progress("tests without a mutant", len(rooms))
        ran = self._map(lambda copy, room: _without_mutant(copy, SelectedTests(room)), rooms, advance)
        found = {}
        for module, of_module in files.items():
            alone, red = ran[tuple(sorted(of_module))]
            found[module] = Held(SelectedTests(of_module, red), limits_after(alone.cpu_seconds))
        return found

    def tried(self, mutants: Sequence[Mutant], held: dict[str, Held], progress: Progress) -> list[Tried]:
        """Try each mutant against its module's tests, nearest first."""
        advance = progress("mutants", len(mutants))
        done = self._map(lambda copy, mutant: self._try(copy, mutant, held[mutant.path]), mutants, advance)
        return [done[mutant] for mutant in mutants]

    def _try(self, copy: Copy, mutant: Mutant, held: Held) -> Tried:
        difference = mutant.difference((copy.tree / mutant.path).read_bytes())
        with copy.mutated(mutant):
            ran = copy.run(held.tests, held.limits)
        return Tried(mutant, difference, ran.outcome)

    def _map(
        self, work: Callable[[Copy, Key], Result], keys: Sequence[Key], advance: Callable[[], None]
    ) -> dict[Key, Result]:
        """Do the work for each key, each in a copy that no other thread uses meanwhile."""
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in self.copies:
            free.put(copy)

        def one(key: Key) -> Result:
            copy = free.get()
            try:
                return work(copy, key)
            finally:
                free.put(copy)
                advance()

        with ThreadPoolExecutor(len(self.copies)) as pool:
            try:
                return dict(zip(keys, pool.map(one, keys), strict=True))
            except BaseException:  # the keyboard's too: what runs would go on by itself
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in self.copies:
                    copy.stop()
                raise


def _without_mutant(copy: Copy, tests: SelectedTests) -> tuple[Ran, tuple[str, ...]]:
    """Return how the tests end without a mutant, and which of them are red."""
    ran, red = copy.run_all(tests)
    if not ran.green and not red:
        raise NotRun(f"tests end with status {ran.status} without a mutant, and name none:\n{ran.output[-4000:]}")
    return ran, red


def run(plan: Plan, progress: Progress) -> Found:
    """Draw mutants, run their tests without one, and try them; `progress` begins a bar and returns what advances it."""
    mutants = draw(plan, candidates(plan))
    if not mutants:
        return Found()
    with tempfile.TemporaryDirectory(prefix="tilewave-mutants-") as place:
        session = Session(plan, Path(place))
        held = session.holding(mutants, progress)
        red = sorted({name for one in held.values() for name in one.tests.left_out})
        return Found(tuple(session.tried(mutants, held, progress)), tuple(red))
