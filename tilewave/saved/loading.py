"""`tilewave.load`: a kernel that was compiled elsewhere, ready to run; nothing is compiled here."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import NoReturn

from tilewave.compile import Compiled
from tilewave.errors import SavedKernelError, here
from tilewave.forks import IMPORTING
from tilewave.ir.core import Kernel
from tilewave.lang.kernel import arguments
from tilewave.pipeline.runner import Step


@dataclass(frozen=True, eq=False, repr=False)
class Loaded(Compiled):
    """A compiled kernel without the story of its making: it runs, and it can be looked at as far as its file goes."""

    path: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        self._has_no("steps")

    def ir(self, pass_name: str = "") -> Kernel:
        """The last that its file holds: what each lane does on a GPU, whole tiles elsewhere."""
        if pass_name:
            self._has_no(f"kernel after {pass_name!r}", "ir() is the kernel that it has; ")
        return self.kernel if self.gpu is None else self.gpu.lanes

    @property
    def llvm_ir(self) -> str:
        self._has_no("LLVM IR")

    @property
    def asm(self) -> str:
        """The machine's instructions, as text, which files for GPUs hold."""
        if self.gpu is None:
            self._has_no("assembly", "code_object is the machine code; " if self.build else "")
        return self.gpu.asm

    def _has_no(self, what: str, instead: str = "") -> NoReturn:
        remedy = f"{instead}what wave_compile(…) gives has every step of its making"
        raise SavedKernelError(
            f"{self.name} was loaded from {self.path}, which holds no {what}", loc=here(), remedy=remedy
        )


def load(path: str | PathLike[str]) -> Compiled:
    """The kernel that `compiled.save(path)` wrote; load only what you would run, since its machine code will be."""
    with IMPORTING:
        from tilewave.saved.kernel import read_kernel  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait

    contents, saved = read_kernel(path)
    loaded = Loaded(
        saved.kernel,
        saved.kernel,
        (),
        saved.target,
        saved.dynamic_symbols,
        saved.build,
        saved.remedy,
        path=contents.path,
    )
    symbols = tuple(v.name for v in arguments(saved.kernel)[1])
    if (loaded.parameters, loaded.dynamic_symbols) != (saved.parameters, symbols):
        raise contents.misfit("kernel.ir")
    return loaded
