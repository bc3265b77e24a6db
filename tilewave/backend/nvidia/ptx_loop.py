"""Instruction counts of the K loop of a matrix kernel, from its PTX, without a card.

The loop is the innermost one around the most matrix instructions. Where the kernel is warp-specialized, the loads are
in another loop, that of the producer warp, which is counted separately. Counts are per warp and step; blocks that some
lanes or warps skip count too. They are of PTX: ptxas may make several instructions of one, or one of several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Literal, get_args

from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.loops import FlowStep, MachineLoop, find_loops_of_flow
from tilewave.records import dataclass

Class = Literal[
    "matrix", "matrix wait", "TMA load", "TMA store", "async copy", "mbarrier wait", "mbarrier arrive", "barrier",
    "shared read", "shared write", "global load", "global store", "branch", "alu",
]  # fmt: skip
OPCODES: tuple[tuple[str, Class], ...] = (
    (r"wgmma\.mma_async|w?mma\.", "matrix"),
    (r"wgmma\.", "matrix wait"),
    (r"cp\.async\.bulk\.\S*shared::\w+\.global", "TMA load"),
    (r"cp\.(reduce\.)?async\.bulk", "TMA store"),
    (r"cp\.async", "async copy"),
    (r"mbarrier\.(try|test)_wait", "mbarrier wait"),
    (r"mbarrier\.arrive", "mbarrier arrive"),
    (r"bar\.|barrier\.", "barrier"),
    (r"ld\.\S*shared|ldmatrix", "shared read"),
    (r"st\.\S*shared|stmatrix", "shared write"),
    (r"ld\.\S*global", "global load"),
    (r"(st|red|atom)\.\S*global", "global store"),
    (r"bra\b|brx\b|ret\b|exit\b", "branch"),
)
"""Classes by opcode prefix, the first match; an opcode without one is arithmetic: addresses, masks, conversions."""
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
LINE_DIRECTIVE = re.compile(r"^\s*\.(loc|file|section|pragma)\b[^\n]*", re.MULTILINE)
"""Directives that end with their line and not with a semicolon."""
LABEL = re.compile(r"\s*([$\w]+):(?!:)")
SCOPE = re.compile(r"\s*[{}]")
PREDICATE = re.compile(r"@!?[%\w]+\s+")


@dataclass(frozen=True)
class PtxInstruction:
    """An opcode with its suffixes, whether it is predicated, and the label of a branch."""

    opcode: str
    is_predicated: bool = False
    label: str = ""

    @property
    def kind(self) -> Class:
        return next((kind for pattern, kind in OPCODES if re.match(pattern, self.opcode)), "alu")

    def step(self, labels: dict[str, int]) -> FlowStep:
        """Return its effect on the control flow."""
        name = self.opcode.partition(".")[0]
        if name == "bra":
            return "may branch" if self.is_predicated else "branches", labels[self.label]
        if name in ("ret", "exit"):
            return "may branch" if self.is_predicated else "ends", None
        return "falls through", None


@dataclass(frozen=True)
class PtxLoop:
    """Instruction counts of a loop, per warp and step."""

    instructions: int
    matrix_instructions: int
    matrix_waits: int
    """Fences, commits and waits for wgmma."""
    tma_loads: int
    tma_stores: int
    async_copies: int
    """Loads of lanes into shared memory: cp.async, its commits and its waits."""
    mbarrier_waits: int
    mbarrier_arrives: int
    barriers: int
    """Barriers of warps and of the workgroup."""
    shared_reads: int
    shared_writes: int
    global_loads: int
    global_stores: int
    branches: int
    alu_instructions: int


@dataclass(frozen=True)
class PtxLoopStatistics(PtxLoop):
    """Instruction counts of a K loop, per warp and step, and of the producer warp's loop if there is one."""

    kernel: str
    chip: str
    producer: PtxLoop | None

    @property
    def instructions_per_matrix(self) -> float:
        return self.instructions / self.matrix_instructions

    @property
    def heading(self) -> str:
        return "Per warp and step, in PTX"

    @property
    def rows(self) -> dict[str, str]:
        """The counts for display."""
        found = {
            "instructions per matrix instruction": f"{self.instructions_per_matrix:.2f}",
            "instructions, of them matrix": f"{self.instructions}, {self.matrix_instructions}",
            "fences, commits and waits of wgmma": str(self.matrix_waits),
            **_traffic(self),
            "shared reads, writes": f"{self.shared_reads}, {self.shared_writes}",
            "global loads, stores": f"{self.global_loads}, {self.global_stores}",
            "cp.async, with its waits": str(self.async_copies),
            "barriers": str(self.barriers),
            "branches": str(self.branches),
            "arithmetic, addresses included": str(self.alu_instructions),
        }
        if self.producer is not None:
            found["producer warp: instructions"] = str(self.producer.instructions)
            found.update({f"producer warp: {name}": text for name, text in _traffic(self.producer).items()})
        return found


def _traffic(loop: PtxLoop) -> dict[str, str]:
    return {
        "TMA loads, stores": f"{loop.tma_loads}, {loop.tma_stores}",
        "mbarrier waits, arrives": f"{loop.mbarrier_waits}, {loop.mbarrier_arrives}",
    }


def ptx_loop_statistics(ptx: str, kernel: str, chip: str) -> PtxLoopStatistics:
    """Count the instructions in the K loop of a PTX module's kernel."""
    code, labels = read_ptx(ptx)
    loops = find_loops_of_flow([one.step(labels) for one in code], 0, len(code))
    counted = _most(code, loops, "matrix")
    if counted is None:
        raise UnsupportedCode(f"{kernel} has no loop with matrix instructions")
    producer = None if counted["TMA load"] else _most(code, loops, "TMA load")
    beside = None if producer is None else PtxLoop(**_numbers(producer))
    return PtxLoopStatistics(**_numbers(counted), kernel=kernel, chip=chip, producer=beside)


def read_ptx(ptx: str) -> tuple[list[PtxInstruction], dict[str, int]]:
    """Return the instructions of a module's kernel in the order of its text, and the index of each label."""
    code: list[PtxInstruction] = []
    labels: dict[str, int] = {}
    text = LINE_DIRECTIVE.sub("", COMMENT.sub("", ptx))
    for statement in _body(text).split(";"):
        rest = statement
        while found := LABEL.match(rest) or SCOPE.match(rest):
            if found.re is LABEL:
                labels[found[1]] = len(code)
            rest = rest[found.end() :]
        rest = rest.strip()
        if rest and not rest.startswith("."):
            predicate = PREDICATE.match(rest)
            words = rest[predicate.end() if predicate else 0 :].split()
            code.append(PtxInstruction(words[0], predicate is not None, words[-1]))
    return code, labels


def _body(text: str) -> str:
    """Return the text between the braces of the entry."""
    start, depth = text.index("{", text.index(")", text.index(".entry "))), 0
    for brace in re.finditer("[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start + 1 : start + brace.start()]
    raise AssertionError("PTX that LLVM wrote closes what it opens")


def _most(code: Sequence[PtxInstruction], loops: Sequence[MachineLoop], kind: Class) -> Counter[Class] | None:
    """Return the innermost loop with the most instructions of a class; None if no loop has any."""
    able = [loop for loop in loops if any(code[at].kind == kind for at in loop.body)]
    innermost = [a for a in able if not any(set(b.body) < set(a.body) for b in able)]
    counts = [Counter(code[at].kind for at in loop.body) for loop in innermost]
    return max(counts, key=lambda one: one[kind], default=None)


def _numbers(counts: Counter[Class]) -> dict[str, int]:
    """Return the fields of `PtxLoop`: the total, then the counts in the order of `Class`."""
    numbers = counts.total(), *(counts[kind] for kind in get_args(Class))
    return dict(zip((field.name for field in fields(PtxLoop)), numbers, strict=True))
