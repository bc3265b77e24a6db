"""A session of mutation testing: mutants are drawn, the tests are seen green, and each mutant is tried."""

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
from .trial import Copy, Limits, Outcome, Ran, limits_after

Key = TypeVar("Key")
Result = TypeVar("Result")
Progress = Callable[[str, int], Callable[[], None]]


class NotGreen(Exception):
    """Tests fail without a mutant, so that their failures with one would say nothing."""


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

    def limits(self, mutants: Sequence[Mutant], progress: Progress) -> dict[str, Limits]:
        """Run the tests of every mutated module without a mutant; return how long each module's may take with one."""
        tests = {module: module_tests(self.plan.root, module) for module in sorted({m.path for m in mutants})}
        rooms = sorted({tuple(sorted(files)) for files in tests.values()})
        advance = progress("tests without a mutant", len(rooms))
        ran = self._map(lambda copy, files: _green(copy.run(files)), rooms, advance)
        return {module: limits_after(ran[tuple(sorted(files))].cpu_seconds) for module, files in tests.items()}

    def tried(self, mutants: Sequence[Mutant], limits: dict[str, Limits], progress: Progress) -> list[Tried]:
        """Try each mutant against its module's tests, nearest first."""
        advance = progress("mutants", len(mutants))
        done = self._map(lambda copy, mutant: self._try(copy, mutant, limits[mutant.path]), mutants, advance)
        return [done[mutant] for mutant in mutants]

    def _try(self, copy: Copy, mutant: Mutant, limits: Limits) -> Tried:
        difference = mutant.difference((copy.tree / mutant.path).read_bytes())
        with copy.mutated(mutant):
            ran = copy.run(module_tests(self.plan.root, mutant.path), limits)
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


def _green(ran: Ran) -> Ran:
    if not ran.green:
        raise NotGreen(f"tests fail without a mutant; mend them first:\n{ran.output[-4000:]}")
    return ran


def run(plan: Plan, progress: Progress) -> list[Tried]:
    """Draw mutants, see their tests green, and try them; `progress` begins a bar and returns what advances it."""
    mutants = draw(plan, candidates(plan))
    if not mutants:
        return []
    with tempfile.TemporaryDirectory(prefix="tilewave-mutants-") as place:
        session = Session(plan, Path(place))
        limits = session.limits(mutants, progress)
        return session.tried(mutants, limits, progress)
