"""Work in the background: a few threads that end with the process; a forked child begins with none."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable

from tilewave.forks import LOCKS

MOST_THREADS = 2
EXIT_SECONDS = 10.0
"""How long the end of the process waits for a job that runs."""
SWITCH_SECONDS = 0.0005
"""How long a job keeps Python's lock while a call waits for it: a call takes the lock several times, and Python's own
5 ms each time would be a stall."""
STATE = threading.RLock()
"""Held for moments only, never during a job."""
LOCKS.append(STATE)


class _BackgroundWork:
    """Jobs in the order in which they were added, and the threads that do them."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.threads: set[threading.Thread] = set()
        self.usual_seconds = 0.0
        """The switch interval that the last thread restores."""

    def add(self, job: Callable[[], None]) -> None:
        with STATE:
            self.jobs.append(job)
            if len(self.threads) < MOST_THREADS:
                if not self.threads:
                    self.usual_seconds = sys.getswitchinterval()
                    sys.setswitchinterval(min(self.usual_seconds, SWITCH_SECONDS))
                thread = threading.Thread(target=self._run, name="tilewave", daemon=True)
                self.threads.add(thread)
                thread.start()

    def _run(self) -> None:
        while True:
            with STATE:
                if not self.jobs:
                    self._leave()
                    return
                job = self.jobs.popleft()
            try:
                job()
            except BaseException:
                with STATE:
                    self._leave()  # the next job starts another
                raise

    def _leave(self) -> None:
        self.threads.discard(threading.current_thread())
        if not self.threads:
            sys.setswitchinterval(self.usual_seconds)

    def wait(self) -> None:
        """Wait until no job is left."""
        while threads := [*self.threads]:
            threads[0].join()

    def end(self) -> None:
        """Drop what has not begun, and wait for what runs."""
        self.jobs.clear()
        for thread in [*self.threads]:
            thread.join(EXIT_SECONDS)

    def forget(self) -> None:
        if self.threads:
            sys.setswitchinterval(self.usual_seconds)
        self.jobs, self.threads = deque(), set()


BACKGROUND_WORK = _BackgroundWork()
atexit.register(BACKGROUND_WORK.end)
os.register_at_fork(after_in_child=BACKGROUND_WORK.forget)
