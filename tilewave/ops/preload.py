"""Load in the background what the first call of an operation on torch tensors would wait for.

These are imports, and the machine code of the host's side of launches: a few tenths of a second, in which a program
mostly loads its weights. It begins when `tilewave.ops` is imported after torch. With `TILEWAVE_BACKGROUND=0` the first
call loads them. A thread imports one part after the other, each under the lock that a fork waits for, and the end of
the process waits for the part that is being loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

from tilewave.backend.targets import targets_on
from tilewave.errors import TilewaveError
from tilewave.forks import IMPORTING
from tilewave.hooks import Hooks

BACKGROUND = "TILEWAVE_BACKGROUND"


class Preload:
    """A thread that loads parts until the process ends."""

    def __init__(self, parts: tuple[Callable[[], object], ...]) -> None:
        self.parts, self.is_over = parts, False
        self.thread = threading.Thread(target=self._run, name="tilewave preload", daemon=True)

    def start(self) -> None:
        atexit.register(self.end)
        self.thread.start()

    def end(self) -> None:
        """Load no further part, and wait for the one that is being loaded."""
        self.is_over = True
        self.thread.join()

    def _run(self) -> None:
        for part in self.parts:
            if self.is_over:
                return
            try:
                part()
            except (ImportError, OSError, AttributeError, TilewaveError):  # the first call says what is wrong
                return


def start() -> None:
    """Begin to load, where torch is there and nothing forbids the background."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "compile") and os.environ.get(BACKGROUND, "") != "0":  # the last name that torch defines
        Preload((Hooks.torch_operators, _machine_code, _choosing, _passes)).start()


def _machine_code() -> None:
    with IMPORTING:
        from tilewave.runtime.native.engine import engine  # noqa: PLC0415  LLVM is heavy

    engine()


def _choosing() -> None:
    with IMPORTING:
        import tilewave.tune.default  # noqa: F401, PLC0415  kernels with given tiles need none of it


def _passes() -> None:
    version = sys.modules["torch"].version
    kind = "rocm" if version.hip else "cuda" if version.cuda else "cpu"
    for target in targets_on(kind)[:1]:
        target.passes()
