"""`tilewave.load`: a kernel that was compiled elsewhere, ready to run; nothing is compiled here."""

from __future__ import annotations

from os import PathLike

from tilewave.compile import Compiled
from tilewave.forks import IMPORTING
from tilewave.ir.types import INDEX_SCALAR
from tilewave.lang.kernel import arguments


def load(path: str | PathLike[str]) -> Compiled:
    """The kernel that `compiled.save(path)` wrote; load only what you would run, since its machine code will be."""
    with IMPORTING:
        from tilewave.saved.kernel import read_kernel  # noqa: PLC0415  zipfile is heavy; `import tilewave` does not wait

    contents, saved = read_kernel(path)
    facts = saved.target, saved.dynamic_symbols, saved.build, saved.remedy
    loaded = Compiled(saved.kernel, saved.kernel, (), *facts, file=contents.path)
    symbols = tuple(v.name for v in arguments(saved.kernel)[1] if v.type == INDEX_SCALAR)
    if (loaded.parameters, loaded.dynamic_symbols) != (saved.parameters, symbols):
        raise contents.misfit("kernel.ir")
    return loaded
