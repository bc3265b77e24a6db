"""Machine code of CPUs ↔ the members of a file."""

from __future__ import annotations

from dataclasses import asdict, replace

from tilewave.backend.cpu.build import OBJECT, CpuBuild
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.backend.protocol import Build
from tilewave.errors import SavedKernelError, here
from tilewave.ir.core import Kernel
from tilewave.ir.launch import HostLaunch, is_open, numbers_of
from tilewave.ir.ops import Prepack
from tilewave.ir.types import Memory
from tilewave.runtime.cpu import CpuLaunch
from tilewave.runtime.records import restored
from tilewave.runtime.saved_file import Contents, Stored

OPENING = "launch.ir"
"""The member with the ops computed at each launch, for dynamic shapes."""
MOST_ADDRESSED = 1 << 47
"""Bytes of a process's address space."""


def stored_cpu(build: Build) -> Stored:
    assert isinstance(build, CpuBuild)
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
    opening = contents.text(OPENING) if is_open(kernel) else ""
    launch = restored(CpuLaunch, about.record("launch"), opening=opening)
    _want_launch(contents, kernel, launch)
    return CpuBuild(kernel, s, contents.member(OBJECT), launch, contents.path)


def _want_launch(contents: Contents, kernel: Kernel, launch: CpuLaunch) -> None:
    """Raise an error unless a saved launch has the argument layout that follows from the kernel's text.

    The words of a call are, for each array, its address and strides; the scalars that it is given or computes; packed
    operands; scratch memory and its stride. Only the sizes of packed operands and scratch memory do not follow from the
    text: sizes that no machine has are refused here, and sizes that this machine lacks at the call.
    """
    given, packed = _numbers_and_packed(contents, kernel, launch)
    arrays = [v.type for v in kernel.body.args if isinstance(v.type, Memory)]
    scratch = sum(1 + kind.rank for kind in arrays) + given + packed
    passed = launch.words, launch.scratch_slot, launch.packed_slots, launch.item_bytes
    slots = tuple(range(scratch - packed, scratch))
    if passed != (scratch + 2, scratch, slots, tuple(kind.dtype.bytes for kind in arrays)):
        raise contents.unaligned("kernel.ir")
    if len(launch.packed_bytes) != (0 if launch.opening else packed):
        raise contents.unaligned("kernel.ir")
    if max(launch.scratch_bytes, *launch.packed_bytes, 0) > MOST_ADDRESSED:
        raise contents.unaligned("kernel.ir")


def _numbers_and_packed(contents: Contents, kernel: Kernel, launch: CpuLaunch) -> tuple[int, int]:
    """Return the numbers of scalars and of packed operands; for dynamic shapes both follow from the opening."""
    if not launch.opening:
        return len(numbers_of(kernel)), len(launch.packed_slots)
    opening = contents.kernel(OPENING)
    if (opening.name, opening.body.args) != (kernel.name, kernel.body.args):
        raise contents.unaligned(OPENING)
    return len(HostLaunch(opening).names), sum(isinstance(op, Prepack) for op in opening.body.ops)
