"""`tilewave.load`: a kernel that was compiled elsewhere, ready to run; nothing is compiled here."""

from __future__ import annotations

from os import PathLike

from tilewave.compile import Compiled
from tilewave.forks import IMPORTING


def load(path: str | PathLike[str]) -> Compiled:
    """The kernel that `compiled.save(path)` wrote; load only what you would run, since its machine code will be."""
    with IMPORTING:
        from tilewave.saved.kernel import read_kernel  # noqa: PLC0415  zipfile is heavy; `import tilewave` does not wait

    contents, saved = read_kernel(path)
    facts = saved.target, saved.dynamic_symbols, saved.build, saved.verdicts
    return Compiled(saved.kernel, saved.kernel, (), *facts, file=contents.path, assumed=saved.assumed)
