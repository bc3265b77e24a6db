"""Machine code of CPUs ↔ the members of a file."""

from __future__ import annotations

from dataclasses import asdict, replace

from tilewave.backend.cpu.build import OBJECT, CpuBuild
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.errors import SavedKernelError, here
from tilewave.ir.core import Kernel
from tilewave.runtime.cpu import CpuLaunch
from tilewave.runtime.records import restored
from tilewave.runtime.saved_file import Contents, Stored


def stored_cpu(build: CpuBuild) -> Stored:
    s = build.instruction_set
    about = {"instruction_set": s.name, "triple": s.triple, "needs": s.needs, "launch": asdict(build.launch)}
    return about, {OBJECT: build.code}


def loaded_cpu(contents: Contents, kernel: Kernel) -> CpuBuild:
    about = contents.about
    name = about.text("instruction_set")
    if name not in INSTRUCTION_SETS:
        raise SavedKernelError(
            f"{contents.path} holds code for {name}, an instruction set that this tilewave does not know",
            loc=here(),
            remedy=f"load it with the tilewave that wrote it, {about.text('tilewave')}",
        )
    s = replace(INSTRUCTION_SETS[name], triple=about.text("triple"), needs=about.texts("needs"))
    launch = restored(CpuLaunch, about.record("launch"))
    return CpuBuild(kernel, s, contents.member(OBJECT), launch, contents.path)
