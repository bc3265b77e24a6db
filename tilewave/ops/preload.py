"""Load in the background what the first call of an operation on torch tensors would wait for.

These are imports, and the machine code of the host's side of launches: a few tenths of a second, in which a program
mostly loads its weights. It begins when `tilewave.ops` is imported after torch. With `TILEWAVE_BACKGROUND=0` the first
call loads them. A thread imports one part after the other, each under the lock that a fork waits for; it ends where a
call begins, which would wait for Python's lock otherwise, and the end of the process waits for the part that is being
loaded. Passes come last, and only where the compile cache is empty: code from the cache needs none.
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
from tilewave.runtime.cache import default_directory, sources

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


class _Started:
    """The thread of this process."""

    preload: Preload | None = None


def start() -> None:
    """Begin to load, where torch is there and nothing forbids the background."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "compile") and os.environ.get(BACKGROUND, "") != "0":  # the last name that torch defines
        parts = Hooks.torch_operators, _machine_code, _choosing, sources, _launching, _passes
        _Started.preload = Preload(parts)
        _Started.preload.start()


def leave_to_calls() -> None:
    """Load no further part: a call imports what it needs itself."""
    if _Started.preload is not None:
        _Started.preload.is_over = True


def _machine_code() -> None:
    with IMPORTING:
        from tilewave.runtime.native.engine import engine  # noqa: PLC0415  LLVM is heavy

    engine()


def _choosing() -> None:
    with IMPORTING:
        import tilewave.tune.default  # noqa: F401, PLC0415  kernels with given tiles need none of it


def _launching() -> None:
    with IMPORTING:
        import tilewave.backend.nvidia.program  # noqa: PLC0415  only GPUs need it
        import tilewave.pipeline.tile_level  # noqa: F401, PLC0415  `import tilewave` does not wait for passes


def _passes() -> None:
    directory = default_directory()
    if directory is not None and os.listdir(directory):
        return
    version = sys.modules["torch"].version
    kind = "rocm" if version.hip else "cuda" if version.cuda else "cpu"
    for target in targets_on(kind)[:1]:
        target.passes()
