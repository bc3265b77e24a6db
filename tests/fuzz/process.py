"""Child processes that run cases: given a case and a time, an answer, whatever becomes of the child."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HEALTHY = ("agrees", "refused", "wrong numbers")
"""After these, a GPU's context is as good as before."""


class Child:
    """A worker that is started when it is needed, and again after it died or was stopped."""

    def __init__(self, module: str = "tests.fuzz.worker") -> None:
        self.module = module
        self.process: subprocess.Popen[str] | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the child

    def start(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.errors.seek(0)
            self.errors.truncate()
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        return self.process

    def ask(self, case: dict[str, Any], seconds: float) -> dict[str, Any]:
        """What the worker says of a case; or how it ended, or that it took too long."""
        process = self.start()
        assert process.stdin and process.stdout
        way = case.get("target") or case.get("net", "")
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line is None:
            self.stop()
            return {"kind": "takes too long", "way": way, "text": f"stopped after {seconds:.0f} s"}
        if not line:
            return {"kind": self.how_it_ended(process), "way": way, "text": self.last_words()}
        answer: dict[str, Any] = json.loads(line)
        if answer["way"].endswith(" card") and answer["kind"] not in HEALTHY:
            self.stop()  # a fault leaves the context unusable for the next case
        return answer

    def how_it_ended(self, process: subprocess.Popen[str]) -> str:
        code = process.wait()
        self.stop()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-2000:]

    def stop(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        self.process = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.errors.close()


def now() -> float:
    return time.monotonic()
