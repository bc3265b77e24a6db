"""Wait states after matrix instructions, where LLVM counts them along the wrong path.

The sums of a matrix instruction are written some instructions later. Until then no other instruction may read or write
their registers, and the hardware does not check it (AMD, "CDNA3 / CDNA4 Instruction Set Architecture", manually
inserted wait states): LLVM inserts `s_nop`. For an instruction it searches backwards, one predecessor of a block after
the other, and enters each block once (getWaitStatesSince in llvm/llvm-project's GCNHazardRecognizer, LLVM 22.1):

    first:                         one way back: through `first`, around the outermost loop, to the matrix instruction
    outer:  v_add v1, ...          here the search begins
    inner:  ...
            v_mfma v[0:3], ...
            branch inner
            branch outer           the other way back, which is shorter
            ...
            branch first

Where it takes the longer path first, it finds the matrix instruction far off, and does not enter that block again on
the shorter one. So LLVM's output is checked again, from matrix instructions forwards, across block boundaries; within a
block there is one path. Where wait states are missing, the kernel is compiled again with `s_nop` after each run of
matrix instructions: as many as LLVM searches, so that no search goes beyond them. They are in the block of the matrix
instruction itself, because LLVM's register allocator inserts copies at both ends of an edge, before anything that
follows a loop or a branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from tilewave.forks import cached_property
from tilewave.machine.matrix import CDNA4, NAMED, MatrixInstruction
from tilewave.records import dataclass

FARTHEST = 20
"""The most wait states that a matrix instruction needs."""
LABEL = re.compile(r"([.\w$]+):")
INSTRUCTION = re.compile(r"\t([a-z]\w*)(?:[ \t]+([^;]*))?")
REGISTERS = re.compile(r"\b([va])(?:\[(\d+):(\d+)\]|(\d+)\b)")
MATRIX = "v_mfma_"
LEAVING = ("s_branch", "s_cbranch", "s_endpgm")
STORES = ("global_store", "buffer_store", "scratch_store", "flat_store", "ds_write", "ds_store")
SETTLE = (
    "  call void @llvm.amdgcn.sched.barrier(i32 0)",
    "  call void @llvm.amdgcn.s.nop(i16 15)",
    f"  call void @llvm.amdgcn.s.nop(i16 {FARTHEST - 16 - 1})",
    "  call void @llvm.amdgcn.sched.barrier(i32 0)",
)
DECLARED = ("declare void @llvm.amdgcn.sched.barrier(i32)", "declare void @llvm.amdgcn.s.nop(i16)")
MULTIPLIES = re.compile(r"  \S+ = call .*@llvm\.amdgcn\.mfma\.")
RESHAPES = re.compile(r"  \S+ = (?:bitcast|shufflevector|extractelement|insertelement) ")
"""Instructions between matrix instructions of a run; LLVM does not split the block there."""

Rows = frozenset[str]


def settled(llvm_ir: str) -> str:
    """Return LLVM IR with enough wait states after each run of matrix instructions."""
    lines: list[str] = []
    waits = False
    for line in llvm_ir.splitlines():
        multiplies = MULTIPLIES.match(line) is not None
        if waits and not multiplies and RESHAPES.match(line) is None:
            lines += SETTLE
            waits = False
        lines.append(line)
        waits = waits or multiplies
    return "\n".join([*lines, *(said for said in DECLARED if said not in lines)]) + "\n"


def too_early(asm: str, family: str) -> str | None:
    """Return a message on an instruction too soon after another block's matrix instruction; None if there is none."""
    blocks = _blocks(asm) if MATRIX in asm else {}
    for block in blocks.values():
        for sums, following in _last_sums(block, family):
            for to in block.leads_to:
                found = sums.touched_from(blocks, to, following)
                if found is not None:
                    return found
    return None


@dataclass(frozen=True)
class _Instruction:
    mnemonic: str
    text: str
    """The operands as text."""

    @cached_property
    def operands(self) -> list[str]:
        return [part.strip() for part in self.text.split(",")]

    @cached_property
    def rows(self) -> tuple[Rows, ...]:
        """The vector registers of each operand."""
        return tuple(frozenset(_rows(operand)) for operand in self.operands)

    @cached_property
    def touches(self) -> Rows:
        return frozenset().union(*self.rows)

    @cached_property
    def writes(self) -> Rows:
        if "swap" in self.mnemonic:
            return self.touches
        return frozenset() if self.mnemonic.startswith(STORES) else self.rows[0]

    @property
    def is_matrix(self) -> bool:
        return self.mnemonic.startswith(MATRIX)

    @property
    def wait_states(self) -> int:
        return int(self.operands[0], 0) + 1 if self.mnemonic == "s_nop" else 1

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.text}".strip()


@dataclass
class _Block:
    instructions: list[_Instruction] = field(default_factory=list)
    leads_to: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Sums:
    """The registers that a matrix instruction has yet to write, and those that it still reads as C, along a path."""

    by: _Instruction
    family: str
    written: Rows
    read: Rows

    @staticmethod
    def of(by: _Instruction, family: str) -> _Sums:
        return _Sums(by, family, by.rows[0], by.rows[3])

    @cached_property
    def passes(self) -> int:
        """Passes of four cycles each; f32 products take twice as many as others of their shape."""
        return self._row.rows // (4 if self._is_quick else 2)

    @cached_property
    def wait_states(self) -> int:
        """Wait states until others may use the sums; all but f32 products need one more, and on gfx950 two."""
        return self.passes + 2 + self._is_quick + (self._is_quick and self.family == CDNA4)

    @cached_property
    def _row(self) -> MatrixInstruction:
        return NAMED[self.by.mnemonic.removeprefix(MATRIX)]

    @property
    def _is_quick(self) -> bool:
        return self._row.a != "f32"

    def wanted(self, by: _Instruction) -> int:
        """Return the wait states needed between the matrix instruction and this one."""
        if by.is_matrix:
            if self.written & (by.rows[1] | by.rows[2]):
                return self.wait_states
            # An accumulator that is exactly these sums is forwarded without a wait; one that overlaps them is not.
            goes_on = by.rows[3] == self.by.rows[0]
            return 0 if goes_on or not self.written & by.rows[3] else self.wait_states - 2
        if self.written & by.touches:
            return self.wait_states
        return self.passes - 1 if self._is_quick and self.read & by.writes else 0

    def after(self, by: _Instruction) -> _Sums:
        if not (self.written | self.read) & by.writes:
            return self
        return _Sums(self.by, self.family, self.written - by.writes, self.read - by.writes)

    def touched_from(self, blocks: Mapping[str, _Block], label: str, following: int) -> str | None:
        """Return a message on an instruction too early on some path from a block, `following` wait states later."""
        ways = [(label, self, following)]
        nearest: dict[tuple[str, _Sums], int] = {}
        while ways:
            label, sums, following = ways.pop()
            if nearest.get((label, sums), FARTHEST) <= following:
                continue
            nearest[label, sums] = following
            for by in blocks[label].instructions:
                wanted = sums.wanted(by)
                if following < wanted:
                    return f"{by} comes {following} wait states after {self.by}, and must come {wanted} after it"
                sums, following = sums.after(by), following + by.wait_states
                if following >= FARTHEST:
                    break
            ways += [(to, sums, following) for to in blocks[label].leads_to]
        return None


def _last_sums(block: _Block, family: str) -> Iterator[tuple[_Sums, int]]:
    """Yield the sums still being written at the end of a block, and the wait states since each matrix instruction."""
    following = 0
    for at in range(len(block.instructions) - 1, -1, -1):
        by = block.instructions[at]
        if by.is_matrix:
            sums = _Sums.of(by, family)
            for later in block.instructions[at + 1 :]:
                sums = sums.after(later)
            yield sums, following
        following += by.wait_states
        if following >= FARTHEST:
            return


def _blocks(asm: str) -> dict[str, _Block]:
    """Return the blocks by label; code after a branch without a label gets a generated one."""
    block = _Block()
    blocks = {"": block}
    for line in asm.splitlines():
        if (label := LABEL.match(line)) is not None:
            block.leads_to.append(label[1])
            block = blocks[label[1]] = _Block()
        elif (found := INSTRUCTION.match(line)) is not None:
            by = _Instruction(found[1], (found[2] or "").strip())
            block.instructions.append(by)
            if by.mnemonic.startswith(LEAVING):
                following = f"{len(blocks)}"
                block.leads_to += _ways(by, following)
                block = blocks[following] = _Block()
    return blocks


def _ways(by: _Instruction, following: str) -> list[str]:
    """Return the successors of a block, by its last instruction."""
    if by.mnemonic == "s_endpgm":
        return []
    return [by.text] if by.mnemonic == "s_branch" else [by.text, following]


def _rows(operand: str) -> Iterator[str]:
    for kind, first, last, one in REGISTERS.findall(operand):
        yield from (f"{kind}{row}" for row in range(int(first or one), int(last or one) + 1))
