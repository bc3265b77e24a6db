"""Numbers of lane, wave, workgroup and cluster rank on NVIDIA chips."""

from __future__ import annotations

from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.machine.chips import NVIDIA_LANES

LANES = NVIDIA_LANES
ALL_LANES = "-1"


def thread(f: LlvmFunction) -> str:
    """Return the number of this lane in its workgroup."""
    return _at_first(f, "%.thread", "llvm.nvvm.read.ptx.sreg.tid.x", [])


def lane(f: LlvmFunction) -> str:
    return f.value(f"and i32 {thread(f)}, {LANES - 1}")


def wave(f: LlvmFunction) -> str:
    number = f.at_first("%own.wave", f"lshr i32 {thread(f)}, {LANES.bit_length() - 1}")
    # The number is uniform; in this form ptxas knows it and keeps what follows in uniform registers.
    arguments = [("i32", ALL_LANES), ("i32", number), ("i32", "0"), ("i32", str(LANES - 1))]
    return _at_first(f, "%wave.of.all", "llvm.nvvm.shfl.sync.idx.i32", arguments)


def shuffle(f: LlvmFunction, word: str, lane: str) -> str:
    arguments = [("i32", ALL_LANES), ("i32", word), ("i32", lane), ("i32", str(LANES - 1))]
    return f.call("i32", "llvm.nvvm.shfl.sync.idx.i32", arguments)


def of_lane_across(f: LlvmFunction, word: str, bit: int) -> str:
    """Return the word of the lane whose number differs in one bit."""
    arguments = [("i32", ALL_LANES), ("i32", word), ("i32", str(1 << bit)), ("i32", str(LANES - 1))]
    return f.call("i32", "llvm.nvvm.shfl.sync.bfly.i32", arguments)


def workgroup(f: LlvmFunction) -> str:
    return f.call("i32", "llvm.nvvm.read.ptx.sreg.ctaid.x", [])


def hidden_zero(f: LlvmFunction, turn: int) -> str:
    """Return a 0 that neither LLVM nor ptxas can fold, one of three."""
    row, layer = (_at_first(f, f"%zero.{axis}", f"llvm.nvvm.read.ptx.sreg.ctaid.{axis}", []) for axis in "yz")
    return (row, layer, f.at_first("%zero.of.both", f"or i32 {row}, {layer}"))[turn % 3]


def cluster_rank(f: LlvmFunction) -> str:
    """Return the rank of this workgroup in its cluster."""
    return f.call("i32", "llvm.nvvm.read.ptx.sreg.cluster.ctarank", [])


def _at_first(f: LlvmFunction, name: str, function: str, arguments: list[Typed]) -> str:
    """Return a special register, read once in the entry block: LLVM does not merge convergent calls."""
    f.module.declare(f"i32 @{function}({', '.join(kind for kind, _ in arguments)})")
    passed = ", ".join(f"{kind} {x}" for kind, x in arguments)
    return f.at_first(name, f"call i32 @{function}({passed})")
