"""Which lane of which wave of which workgroup this is, on NVIDIA's chips."""

from __future__ import annotations

from tilewave.lower.llvm import Function

LANES = 32
ALL_LANES = "-1"


def thread(f: Function) -> str:
    """The number of this lane in its workgroup."""
    return f.call("i32", "llvm.nvvm.read.ptx.sreg.tid.x", [])


def lane(f: Function) -> str:
    return f.value(f"and i32 {thread(f)}, {LANES - 1}")


def wave(f: Function) -> str:
    number = f.value(f"lshr i32 {thread(f)}, {LANES.bit_length() - 1}")
    # All lanes of a wave agree; said in this way, the assembler knows it and keeps what follows in uniform registers.
    arguments = [("i32", ALL_LANES), ("i32", number), ("i32", "0"), ("i32", str(LANES - 1))]
    return f.call("i32", "llvm.nvvm.shfl.sync.idx.i32", arguments)


def workgroup(f: Function) -> str:
    return f.call("i32", "llvm.nvvm.read.ptx.sreg.ctaid.x", [])


def cluster_rank(f: Function) -> str:
    """The number of this workgroup in its cluster."""
    return f.call("i32", "llvm.nvvm.read.ptx.sreg.cluster.ctarank", [])
