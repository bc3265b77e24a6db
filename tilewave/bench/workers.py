"""Tasks distributed over processes, local or of a Ray cluster. A dead worker is replaced, and its task repeated.

    with LocalWorkers(4) as workers:
        for number, result in workers.results(compile_point, tasks):
            ...

A task is a value, and the function that runs it is at module level: both are pickled. Results are yielded as they
finish, one per task. A task that kills its worker is given up after MOST_TIMES times, and its result is `Killed`.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tilewave.errors import TilewaveError
from tilewave.records import dataclass

T = TypeVar("T")
R = TypeVar("R")
MOST_TIMES = 3
"""How often a task is started if it kills its worker each time."""


@dataclass(frozen=True)
class Killed:
    """The result of a task that ended every process which took it."""

    times: int


class Workers(Protocol):
    """Who does tasks."""

    def results(self, do: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R | Killed]]:
        """The number of each task, and what came of it; the words of an error that a task raises are raised here."""

    def __enter__(self) -> Workers: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop all workers."""


# -- processes of this machine -----------------------------------------------------------------------------------------


class LocalWorkers:
    """A pool of `count` local processes; each runs one task at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: list[_Process] = []

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self.processes:
            one.end()
        self.processes.clear()

    def results(self, do: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R | Killed]]:
        left, times = deque(range(len(tasks))), [0] * len(tasks)
        busy: dict[_Process, int] = {}
        while left or busy:
            while left and len(busy) < self.count:
                number = left.popleft()
                times[number] += 1
                process = self._free(busy)
                busy[process] = number
                process.give(do, tasks[number])
            for process in self._done(busy):
                number = busy.pop(process)
                found = process.answer()
                if found is not None:
                    yield number, found.result()
                elif times[number] < MOST_TIMES:
                    left.append(number)
                else:
                    yield number, Killed(times[number])

    def _free(self, busy: dict[_Process, int]) -> _Process:
        """Return an idle process; start a new one if there is none."""
        self.processes = [one for one in self.processes if one.is_alive]
        for one in self.processes:
            if one not in busy:
                return one
        self.processes.append(_Process())
        return self.processes[-1]

    def _done(self, busy: dict[_Process, int]) -> list[_Process]:
        """Wait for and return the processes that have answered or died."""
        ready = {*wait([x for one in busy for x in (one.pipe, one.process.sentinel)])}
        return [one for one in busy if one.pipe in ready or one.process.sentinel in ready]


@dataclass(frozen=True)
class Answer:
    """What came of a task: a value, or an error's words; errors themselves may not be able to travel."""

    value: Any
    what: str = ""
    remedy: str = ""

    def result(self) -> Any:
        if self.what:
            raise TilewaveError(self.what, remedy=self.remedy)
        return self.value


def answer(do: Callable[[T], R], task: T) -> Answer:
    """Do a task, where it is to be done."""
    try:
        return Answer(do(task))
    except TilewaveError as error:
        return Answer(None, error.what, error.remedy)
    except Exception as error:  # every error is reported to the parent process
        return Answer(None, f"{type(error).__name__}: {error}")


class _Process:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive()

    def give(self, do: Callable[[Any], Any], task: Any) -> None:
        with suppress(OSError):  # it died before it could take it, which `answer` finds
            self.pipe.send((do, task))

    def answer(self) -> Answer | None:
        """None where it died, or is about to."""
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                found: Answer = self.pipe.recv()
                return found
        self.end()  # its pipe may close before the process exits: `_free` must not reuse it
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Run one task after the other, until the parent process closes the pipe."""
    while True:
        try:
            do, task = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answer(do, task))
