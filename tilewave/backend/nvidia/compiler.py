"""From a lane-level kernel to PTX: lowering and LLVM; not imported where the cache has the code."""

from __future__ import annotations

from tilewave.analysis.loads import moved_in_chunks
from tilewave.backend.assembler import assembled
from tilewave.backend.nvidia.code import NvidiaCode, Specialization
from tilewave.backend.nvidia.spelling import Nvptx
from tilewave.backend.nvidia.text import sums_of_each_half
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Asynchronous, LaunchDependents, WaitPriorLaunch
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.lower.gpu.kernel import LoweredLanes, lower_lanes
from tilewave.machine.chips import Chip


def lowered_for(kernel: Kernel, chip: Chip, wanted: Specialization) -> LoweredLanes:
    memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
    alignments = {v.name: v.type.dtype.bytes for v in memories}
    if not wanted.vector_bytes:  # with vector_bytes, `narrow` lists all arrays that are moved in chunks
        alignments |= dict.fromkeys(moved_in_chunks(kernel), chip.widest_load_bytes)
    alignments |= dict(wanted.narrow)
    return lower_lanes(kernel, Nvptx(chip), frozenset(wanted.any_strides), alignments, loads_whole_rows(kernel, wanted))


def loads_whole_rows(kernel: Kernel, wanted: Specialization) -> bool:
    """Return whether dynamic rows are multiples of a lane's access; other rows need a separate wanted."""
    starting = WaitPriorLaunch, LaunchDependents
    copies = any(isinstance(op, Asynchronous) and not isinstance(op, starting) for op in walk(kernel.body))
    return not copies and not wanted.any_strides and (not wanted.narrow or wanted.vector_bytes > 0)


def code_of(kernel: Kernel, chip: Chip, wanted: Specialization) -> NvidiaCode:
    lowered = lowered_for(kernel, chip, wanted)
    made = assembled(kernel.name, chip.name, lowered.llvm_ir, Nvptx(chip).machine)
    sizes = lowered.shared_bytes, lowered.workgroup_size, kernel.workgroups, kernel.cluster
    uses_pdl = any(isinstance(op, WaitPriorLaunch) for op in walk(kernel.body))
    return NvidiaCode(
        lowered.arguments,
        lowered.maps,
        *sizes,
        uses_pdl,
        moved_in_chunks(kernel),
        lowered.launch,
        sums_of_each_half(made.asm),
    )
