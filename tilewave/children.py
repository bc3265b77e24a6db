"""Child processes: each ends within a time limit, and one that cannot be started raises `ChildFailed`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from subprocess import PIPE

from tilewave.errors import TilewaveError
from tilewave.forks import STARTING

LIMIT = "TILEWAVE_COMPILE_SECONDS"
DEFAULT_SECONDS = 600
"""A limit far beyond what compiles: kernels take seconds, so what takes longer is stuck, or far too large."""


class ChildFailed(Exception):
    """A program could not be started or did not end in time; the text says what happened, `remedy` what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def run_child(command: Sequence[str], request: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program with this stdin and return its output; one that does not end within the limit is killed."""
    seconds = limit_seconds()
    with _started(command) as child:
        try:
            stdout, stderr = child.communicate(request, timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            raise ChildFailed(
                f"it was not done within {seconds} s",
                f"smaller tiles make less code to compile; {LIMIT} sets another limit",
            ) from None
        except BaseException:  # such as a keyboard interrupt
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        with STARTING:
            return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    except (OSError, ValueError) as error:
        raise ChildFailed(f"{command[0]!r} does not start: {error}", "see whether it is there and executable") from None


def limit_seconds() -> int:
    """Return TILEWAVE_COMPILE_SECONDS, or ten minutes."""
    wanted = os.environ.get(LIMIT)
    if wanted is None:
        return DEFAULT_SECONDS
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= 6 and int(wanted)):
        raise TilewaveError(
            f"{LIMIT} is {wanted!r}, which is no number of seconds",
            remedy=f"set it to a whole number from 1 to 999999, or unset it for {DEFAULT_SECONDS}",
        )
    return int(wanted)
