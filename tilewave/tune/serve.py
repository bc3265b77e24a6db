"""The kernels of a kernel set: the sizes of each call choose one, and what is missing is compiled in the background.

The first call waits for its kernel. A later call whose best config is not compiled yet is served by the best one that
is, while another thread compiles the better one; so which of them serves depends on time, and so does the order of
sums of a kernel that is not batch-invariant. `TILEWAVE_BACKGROUND=0`, or torch's deterministic algorithms, let each
call wait for its best kernel instead.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tilewave.errors import TilewaveError
from tilewave.forks import LOCKS
from tilewave.lang.kernel import WaveKernel, parameters_of
from tilewave.lang.symbols import Symbol
from tilewave.lang.types import MemoryType
from tilewave.tune.choose import TileChoice
from tilewave.tune.chosen import take

BACKGROUND = "TILEWAVE_BACKGROUND"
KEPT_SIZES = 4096
"""The most sizes whose kernel is remembered; one more clears them all."""
MOST_THREADS = 2
EXIT_SECONDS = 10.0
"""How long the end of the process waits for a compilation that runs."""
STATE = threading.RLock()
"""Held for moments only, never while something is compiled."""
LOCKS.append(STATE)
T = TypeVar("T")


@dataclass(frozen=True)
class GivenSize:
    """A dynamic size, and the array and axis of a call that it is read from."""

    symbol: Symbol
    array: int
    axis: int


def given_sizes(kernel: WaveKernel, left_open: Sequence[Symbol]) -> tuple[GivenSize, ...]:
    """Return the first array and axis of each dynamic size."""
    found: dict[Symbol, GivenSize] = {}
    arrays = [kind for _, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    for at, kind in enumerate(arrays):
        for axis, dim in enumerate(kind.dims):
            if isinstance(dim, Symbol) and dim in left_open:
                found.setdefault(dim, GivenSize(dim, at, axis))
    return tuple(found.values())


class Maker(Protocol[T]):
    """Chooses and compiles the kernels of a set."""

    def choices(self, sizes: Mapping[Symbol, int]) -> list[TileChoice]:
        """Return the choices for sizes, the best first."""

    def time(self, sizes: Mapping[Symbol, int]) -> None:
        """Time configs for the class of these sizes, where that is asked for and not known."""

    def make(self, choice: TileChoice) -> T:
        """Compile the kernel of a choice."""

    def quick(self) -> Callable[[Sequence[int]], str] | None:
        """Return a function from sizes to the text of the best config; None where machine code cannot compute it."""

    def prepare(self, made: T, arrays: Sequence[Any]) -> None:
        """Do all that a call with such arrays would wait for."""

    def nothing_fits(self) -> TilewaveError:
        """Return the error where there is no choice."""


class KernelSet(Generic[T]):
    """The kernels of one author's kernel, by config."""

    def __init__(self, passed: tuple[GivenSize, ...], maker: Maker[T]) -> None:
        self.passed, self.maker = passed, maker
        self.by_size: dict[tuple[int, ...], T] = {}
        self.made: dict[str, T] = {}
        """By the text of the config."""
        self.waiting: set[str] = set()
        """Configs that are to be compiled in the background, or were."""
        self.refused: set[str] = set()
        """Configs that cannot be compiled."""
        self.ranked: dict[tuple[int, ...], list[TileChoice]] = {}
        """The choices for sizes that have no settled kernel yet."""
        self.quick: Callable[[Sequence[int]], str] | None = None
        """Finds the best config by machine code, once that has been recorded in the background."""

    def of(self, shapes: Sequence[tuple[int, ...]], arrays: Sequence[Any] = ()) -> T:
        """Return the kernel for arrays of these shapes."""
        try:
            key = tuple([shapes[one.array][one.axis] for one in self.passed])
        except IndexError:  # an array has too few axes, which the kernel's check of its arguments reports
            return next(iter(self.made.values()))
        return self.by_size.get(key) or self._new(key, arrays)

    def near(self, sizes: Mapping[Symbol, int]) -> T:
        """Return the kernel for calls with these sizes."""
        return self._new(tuple(sizes[one.symbol] for one in self.passed), ())

    def choice(self, shapes: Sequence[tuple[int, ...]]) -> TileChoice:
        """Return the best choice for arrays of these shapes, whether or not it is compiled."""
        return self.maker.choices({one.symbol: shapes[one.array][one.axis] for one in self.passed})[0]

    def is_settled(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether calls with these shapes have their best kernel, so that they may be replayed."""
        return tuple(shapes[one.array][one.axis] for one in self.passed) in self.by_size

    def _new(self, key: tuple[int, ...], arrays: Sequence[Any]) -> T:
        """Return the kernel for sizes that have no settled one yet."""
        if self.quick is not None and (found := self.made.get(self.quick(key))) is not None:
            return self._settled(key, found)
        if arrays:
            self.maker.time(self._sizes(key))
        choices = self._ranked(key)
        best = next((one for one in choices if one.text not in self.refused), None)
        if best is not None and best.text in self.made:
            return self._settled(key, self.made[best.text])
        usable = next((self.made[one.text] for one in choices if one.text in self.made), None)
        if usable is None or must_wait() or not arrays:
            found = self._settled(key, self._made(choices))
            if usable is None and not must_wait():
                BACKGROUND_WORK.add(self._record)
            return found
        if best is not None:
            self._compile_later(best, arrays)
        return usable

    def _ranked(self, key: tuple[int, ...]) -> list[TileChoice]:
        """Return the choices for sizes, the best first, remembered until the sizes have a settled kernel."""
        found = self.ranked.get(key)
        if found is None:
            if len(self.ranked) >= KEPT_SIZES:
                self.ranked.clear()
            found = self.ranked[key] = self.maker.choices(self._sizes(key))
        return found

    def _sizes(self, key: tuple[int, ...]) -> dict[Symbol, int]:
        return {one.symbol: size for one, size in zip(self.passed, key, strict=True)}

    def _compile_later(self, choice: TileChoice, arrays: Sequence[Any]) -> None:
        with STATE:
            is_new = choice.text not in self.waiting
            self.waiting.add(choice.text)
        if is_new:
            BACKGROUND_WORK.add(lambda: self._compile(choice, arrays))

    def _settled(self, key: tuple[int, ...], found: T) -> T:
        if len(self.by_size) >= KEPT_SIZES:
            self.by_size.clear()
        self.by_size[key] = found
        self.ranked.pop(key, None)
        return found

    def _made(self, choices: Sequence[TileChoice]) -> T:
        """Return the kernel of the first choice that compiles; the caller waits."""

        def made(choice: TileChoice) -> T:
            found = self.made.get(choice.text)
            return self.made.setdefault(choice.text, self.maker.make(choice)) if found is None else found

        return take(choices, made, self.maker.nothing_fits)

    def _record(self) -> None:
        self.quick = self.maker.quick()

    def _compile(self, choice: TileChoice, arrays: Sequence[Any]) -> None:
        """Compile a config in the background; one that cannot be compiled is left out from then on."""
        try:
            found = self.maker.make(choice)
            self.maker.prepare(found, arrays)
            self.made[choice.text] = found
        except Exception:  # the kernel that serves meanwhile is right, and a call that waits says why
            self.refused.add(choice.text)


def must_wait() -> bool:
    """Return whether each call waits for its best kernel."""
    if os.environ.get(BACKGROUND, "") == "0":
        return True
    # Another thread may be importing torch.
    is_deterministic = getattr(sys.modules.get("torch"), "are_deterministic_algorithms_enabled", None)
    return is_deterministic is not None and bool(is_deterministic())


class _BackgroundWork:
    """A few threads that end with the process; a forked child begins with none."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.threads: set[threading.Thread] = set()

    def add(self, job: Callable[[], None]) -> None:
        with STATE:
            self.jobs.append(job)
            if len(self.threads) < MOST_THREADS:
                thread = threading.Thread(target=self._run, name="tilewave", daemon=True)
                self.threads.add(thread)
                thread.start()

    def _run(self) -> None:
        while True:
            with STATE:
                if not self.jobs:
                    self.threads.discard(threading.current_thread())
                    return
                job = self.jobs.popleft()
            try:
                job()
            except BaseException:
                with STATE:
                    self.threads.discard(threading.current_thread())  # the next job starts another
                raise

    def wait(self) -> None:
        """Wait until nothing is left to compile."""
        while threads := [*self.threads]:
            threads[0].join()

    def end(self) -> None:
        """Drop what has not begun, and wait for what runs."""
        self.jobs.clear()
        for thread in [*self.threads]:
            thread.join(EXIT_SECONDS)

    def forget(self) -> None:
        self.jobs, self.threads = deque(), set()


BACKGROUND_WORK = _BackgroundWork()
atexit.register(BACKGROUND_WORK.end)
os.register_at_fork(after_in_child=BACKGROUND_WORK.forget)
