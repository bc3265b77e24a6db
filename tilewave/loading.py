"""`tilewave.load`: a kernel that was compiled before, ready to run; nothing is compiled at load time."""

from __future__ import annotations

from os import PathLike

from tilewave.compiled import Compiled
from tilewave.forks import IMPORTING


def load(path: str | PathLike[str]) -> Compiled:
    """Return the kernel that `compiled.save(path)` wrote; load only trusted files: their machine code will run."""
    with IMPORTING:
        from tilewave.saved.kernel import read_kernel  # noqa: PLC0415  zipfile is heavy; `import tilewave` does not wait

    contents, saved = read_kernel(path)
    facts = saved.target, saved.dynamic_symbols, saved.build, saved.verdicts
    return Compiled(saved.kernel, saved.kernel, (), *facts, file=contents.path, assumed=saved.assumed)
