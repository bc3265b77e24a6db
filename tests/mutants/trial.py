"""Runs tests on a mutant, in a copy of the work tree that is used for one mutant after the other."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .changed import files_of_tree
from .mutations import Mutant

PYTEST = ("-m", "pytest", "-q", "-n", "0", "-m", "not slow", "--no-header", "--tb=line")
TO_THE_FIRST_FAILURE = ("-x", "-p", "no:cacheprovider")
TO_THE_END = ("--continue-on-collection-errors",)
NO_TESTS = 5  # pytest's exit status where it collected none
DATA_BYTES = 8 << 30  # a mutant that appends for ever must not take the machine with it


class Outcome(Enum):
    """What became of a mutant; one that timed out counts as killed."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Limits:
    """How long tests may run: processor time for loops without end, the clock for waits without end."""

    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class SelectedTests:
    """Test files in their order, and what is left out of them: pytest's names of tests, or of whole files."""

    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Return pytest's arguments; a test whose name begins like one that is left out is left out with it."""
        files = [file for file in self.files if file not in self.left_out]
        return [*files, *(f"--deselect={name}" for name in self.left_out if name not in self.files)] if files else []


@dataclass(frozen=True)
class Ran:
    """A run of pytest that has ended."""

    status: int
    cpu_seconds: float
    output: str

    @property
    def green(self) -> bool:
        return self.status in (0, NO_TESTS)

    @property
    def outcome(self) -> Outcome:
        """Say what a run on a mutant means, its tests being green without it."""
        if self.green:
            return Outcome.SURVIVED
        # A soft limit ends a process by SIGXCPU, a hard one and the clock's by SIGKILL.
        stopped = self.status in (-signal.SIGXCPU, -signal.SIGKILL)
        return Outcome.TIMED_OUT if stopped else Outcome.KILLED


NONE_RAN = Ran(NO_TESTS, 0.0, "")


def limits_after(cpu_seconds: float) -> Limits:
    """Return limits for tests that took this long without a mutant: only a mutant that does not end reaches them."""
    cpu = 30 + 3 * cpu_seconds
    return Limits(cpu, 120 + 10 * cpu)  # the clock runs much faster than processor time on a busy machine


class Copy:
    """A copy of the work tree, with the processes that run in it."""

    def __init__(self, root: Path, place: Path) -> None:
        self.tree, self.temporary = place / "tree", place / "temporary"
        self.temporary.mkdir(parents=True)
        for path in files_of_tree(root):
            target = self.tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target)
        self.running: subprocess.Popen[bytes] | None = None

    def run(self, tests: SelectedTests, limits: Limits | None = None) -> Ran:
        """Run tests in their order up to the first failure; none at all are green."""
        return self._run((*TO_THE_FIRST_FAILURE, *tests.arguments), limits) if tests.arguments else NONE_RAN

    def run_all(self, tests: SelectedTests) -> tuple[Ran, tuple[str, ...]]:
        """Run all tests, and return the names of those that fail as well, and of files that cannot be imported."""
        if not tests.arguments:
            return NONE_RAN, ()
        with tempfile.TemporaryDirectory(dir=self.temporary) as cache:
            ran = self._run((*TO_THE_END, f"--override-ini=cache_dir={cache}", *tests.arguments), None)
            failed = Path(cache, "v/cache/lastfailed")
            return ran, tuple(json.loads(failed.read_text())) if failed.exists() else ()

    def _run(self, arguments: Sequence[str], limits: Limits | None) -> Ran:
        with tempfile.TemporaryFile(dir=self.temporary) as output:
            command = [sys.executable, *PYTEST, *arguments]
            self.running = subprocess.Popen(
                command,
                cwd=self.tree,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status, cpu_seconds = self._wait(self.running, limits)
            output.seek(0)
            return Ran(status, cpu_seconds, output.read().decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        # CI: hypothesis draws the same examples every time, so the same seed gives the same outcomes.
        return {**os.environ, "PYTHONPATH": str(self.tree), "TMPDIR": str(self.temporary), "CI": "1"}

    def _wait(self, process: subprocess.Popen[bytes], limits: Limits | None) -> tuple[int, float]:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        clock = None
        if limits:
            cpu = int(limits.cpu_seconds) + 1
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu, cpu + 5))
            clock = threading.Timer(limits.wall_seconds, self.stop)
            clock.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if clock:
            clock.cancel()
        self.stop()  # end processes that the tests started and did not end
        self.running = None
        return process.returncode, usage.ru_utime + usage.ru_stime

    def stop(self) -> None:
        """End the tests that run now, and whatever they started."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant to this copy, and take it back."""
        file = self.tree / mutant.path
        source = file.read_bytes()
        try:
            self._write(file, mutant.applied(source))
            yield
        finally:
            self._write(file, source)

    def _write(self, file: Path, source: bytes) -> None:
        """Write a module and drop what was compiled of it: Python compares whole seconds and the size alone."""
        file.write_bytes(source)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
