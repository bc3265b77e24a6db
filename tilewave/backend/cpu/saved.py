"""Machine code of CPUs ↔ the members of a file."""

from __future__ import annotations

from dataclasses import asdict, replace

from tilewave.backend.cpu.build import OBJECT, CpuBuild
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.errors import SavedKernelError, here
from tilewave.ir.core import Kernel
from tilewave.ir.launch import HostLaunch, is_open
from tilewave.ir.ops import Prepack
from tilewave.ir.types import Memory
from tilewave.runtime.cpu import CpuLaunch
from tilewave.runtime.records import restored
from tilewave.runtime.saved_file import Contents, Stored

OPENING = "launch.ir"
"""The member that says what is computed at each launch, where sizes are open."""


def stored_cpu(build: CpuBuild) -> Stored:
    s = build.instruction_set
    launch = asdict(build.launch)
    opening = launch.pop("opening")
    about = {"instruction_set": s.name, "triple": s.triple, "needs": s.needs, "launch": launch}
    return about, {OBJECT: build.code, **({OPENING: opening.encode()} if opening else {})}


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
    opening = _opening(contents, kernel) if is_open(kernel) else ""
    launch = restored(CpuLaunch, about.record("launch"), opening=opening)
    return CpuBuild(kernel, s, contents.member(OBJECT), launch, contents.path)


def _opening(contents: Contents, kernel: Kernel) -> str:
    """The text of what is computed at each launch, which is of this kernel, and as many words as its code reads."""
    opening = contents.kernel(OPENING)
    if (opening.name, opening.body.args) != (kernel.name, kernel.body.args):
        raise contents.misfit(OPENING)
    arrays = [v.type for v in opening.body.args if isinstance(v.type, Memory)]
    packed = sum(isinstance(op, Prepack) for op in opening.body.ops)
    words = sum(1 + kind.rank for kind in arrays) + len(HostLaunch(opening).names) + packed
    launch = contents.about.record("launch")
    if (words, packed) != (launch.number("scratch_slot"), len(launch.numbers("packed_slots"))):
        raise contents.misfit(OPENING)
    return contents.text(OPENING)
