"""The instruction sets of CPUs, and how each multiplies and adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from tilewave.backend.cpu.amx import Amx
from tilewave.backend.cpu.soft_half import SOFT_HALF
from tilewave.backend.llvm_machine import LlvmMachine
from tilewave.errors import TargetError, here
from tilewave.ir.core import Kernel
from tilewave.ir.faults import lacking
from tilewave.ir.ops import Mma, ReadIndexed
from tilewave.ir.rewrite import walk
from tilewave.ir.types import FLOAT8, DType
from tilewave.lower.cpu.target import OperandRows, Panel
from tilewave.lower.elements import stored, suffix
from tilewave.lower.llvm import LlvmFunction, splat, vector
from tilewave.lower.numbers import cast
from tilewave.machine.register_blocks import PART_VECTORS, RegisterBlock
from tilewave.passes.memory.prepack_operands import PanelFormat
from tilewave.records import dataclass


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set of a CPU; `features` are LLVM's, `needs` are those that the host must have."""

    name: str
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    vector_bytes: int
    rows: int
    cols: int
    """The largest register block: so many rows of A by so many columns of B."""
    unit: int
    """Unrolled steps along the depth."""
    by_lane: bool
    """Whether a vector can be multiplied by one lane of another in one instruction."""
    integers: PanelFormat
    vector_registers: int = 32
    matrix_unit: Amx | None = None
    fuses: bool = True
    """Whether it has fused multiply-add."""
    runtime: str = ""
    """LLVM IR of functions that the code may call."""
    only: tuple[str, ...] = ()
    """The dtypes of products it is for; empty: all."""

    @property
    def broadcasts(self) -> bool:
        """Whether products broadcast single elements of rows, wherever these are, as they load them."""
        return not (self.by_lane or self.matrix_unit)

    def multiply_panels(
        self, f: LlvmFunction, a: Panel | OperandRows, b: Panel, acc: Sequence[Sequence[str]], lanes: int, dtype: DType
    ) -> list[str]:
        if self.matrix_unit:
            raise lacking("use_matrix_unit", f"panels of {self.name} are multiplied by its matrix unit alone")
        formats = {(p.dtype, p.group) for p in self.panel_formats().values()}
        given = (a.dtype.name, 1 if isinstance(a, OperandRows) else a.group), (b.dtype.name, b.group)
        assert given[0] == given[1] in formats, f"{self.name} multiplies no panels of {given[0]} by {given[1]}"
        rows = [list(row) for row in acc]
        for k in range(0, a.depth, b.group):
            across = [
                self._load(f, b, k * b.all_rows + first * b.group, lanes * b.group) for first in range(0, b.rows, lanes)
            ]
            # A row's factor is broadcast right before its use: earlier, it would occupy a register all the while.
            for row, factor in enumerate(self._factors(f, a, k, len(rows), lanes)):
                for column, line in enumerate(across):
                    rows[row][column] = self._step(f, factor, line, rows[row][column], lanes, b, dtype)
        return [v for row in rows for v in row]

    def _load(self, f: LlvmFunction, panel: Panel, offset: int, count: int) -> str:
        element = stored(panel.dtype)
        where = f.value(f"getelementptr {element}, ptr {panel.pointer}, i64 {offset}")
        return f.value(f"load {vector(count, element)}, ptr {where}, align {panel.dtype.bytes}, !invariant.load !0")

    def _factors(self, f: LlvmFunction, a: Panel | OperandRows, k: int, rows: int, lanes: int) -> Iterator[str]:
        """Return the element (or group) of each row of a at depth k, broadcast to every lane."""
        if isinstance(a, OperandRows):
            yield from (splat(f, stored(a.dtype), a.element(f, str(row), str(k)), lanes) for row in range(rows))
            return
        offset = k * a.all_rows
        bits = a.group * a.dtype.bits
        one = stored(a.dtype) if a.group == 1 else f"i{bits}"
        whole = vector(lanes, one)
        as_panel = vector(lanes * a.group, stored(a.dtype))
        several = ""
        for row in range(a.rows):
            if self.by_lane and lanes > 1 and a.rows % lanes == 0:
                if row % lanes == 0:
                    several = self._load(f, a, offset + row * a.group, lanes * a.group)
                    several = several if a.group == 1 else f.value(f"bitcast {as_panel} {several} to {whole}")
                mask = f"<{', '.join([f'i32 {row % lanes}'] * lanes)}>"
                found = f.value(f"shufflevector {whole} {several}, {whole} poison, <{lanes} x i32> {mask}")
            else:
                where = f.value(f"getelementptr {stored(a.dtype)}, ptr {a.pointer}, i64 {offset + row * a.group}")
                scalar = f.value(f"load {one}, ptr {where}, align {a.dtype.bytes}, !invariant.load !0")
                found = splat(f, one, scalar, lanes)
            yield found if a.group == 1 else f.value(f"bitcast {whole} {found} to {as_panel}")

    def _step(self, f: LlvmFunction, a: str, b: str, acc: str, lanes: int, panel: Panel, dtype: DType) -> str:
        wide = vector(lanes, stored(dtype))
        if panel.group == 1:
            x, y = (cast(f, v, panel.dtype, dtype, lanes) for v in (a, b))
            return self.multiply_add(f, wide, x, y, acc, dtype)
        several = vector(lanes * panel.group, stored(panel.dtype))
        if panel.group == 4 and lanes in (2, 4):
            name = f"llvm.aarch64.neon.sdot.{suffix(wide)}.{suffix(several)}"
            return f.call(wide, name, [(wide, acc), (several, a), (several, b)])
        if panel.group == 2 and lanes in PAIR_PRODUCTS:
            both = f.call(wide, PAIR_PRODUCTS[lanes], [(several, a), (several, b)])
            return f.value(f"add {wide} {both}, {acc}")
        return self._group_by_group(f, a, b, acc, lanes, panel, dtype)

    def _group_by_group(self, f: LlvmFunction, a: str, b: str, acc: str, lanes: int, panel: Panel, dtype: DType) -> str:
        """Return products of groups, for widths without an instruction: all at once, then added within each group."""
        count = lanes * panel.group
        wide, many = vector(lanes, stored(dtype)), vector(count, stored(dtype))
        x, y = (cast(f, v, panel.dtype, dtype, count) for v in (a, b))
        products = f.value(f"mul {many} {x}, {y}")
        for d in range(panel.group):
            places = ", ".join(f"i32 {lane * panel.group + d}" for lane in range(lanes))
            part = f.value(f"shufflevector {many} {products}, {many} poison, <{lanes} x i32> <{places}>")
            if lanes == 1:
                part = f.value(f"extractelement <1 x {stored(dtype)}> {part}, i64 0")
            acc = f.value(f"add {wide} {part}, {acc}")
        return acc

    def multiply_add(self, f: LlvmFunction, kind: str, a: str, b: str, acc: str, dtype: DType) -> str:
        if dtype.is_int:
            both = f.value(f"mul {kind} {a}, {b}")
            return f.value(f"add {kind} {both}, {acc}")
        return f.call(kind, f"llvm.fmuladd.{suffix(kind)}", [(kind, a), (kind, b), (kind, acc)])

    def block(self, kernel: Kernel) -> RegisterBlock:
        """Return the largest register block for a kernel, whose sums may be wider than 4 bytes.

        Rows that are read at indices are on pages of their own: there are fewer of these at a time, and more of each.
        """
        size = max((op.result.type.dtype.bytes for op in walk(kernel.body) if isinstance(op, Mma)), default=4)
        rows, cols = self.rows, self.cols * 4 // size
        if any(isinstance(op, ReadIndexed) for op in walk(kernel.body)):
            rows, cols = max(1, rows // 2), cols * 2
        part = PART_VECTORS * self.vector_bytes // 4
        lanes = 0 if self.matrix_unit else self.vector_bytes // size
        return RegisterBlock(rows, cols, lanes, part)

    @property
    def machine(self) -> LlvmMachine:
        return LlvmMachine(self.triple, self.cpu, self.features, gives="object")

    def panel_formats(self) -> dict[str, PanelFormat]:
        """The panel format of operands, by dtype."""
        if self.matrix_unit:
            return {"bf16": PanelFormat("bf16", 2, 32), "i8": PanelFormat("i8", 4, 64)}
        floats = {name: PanelFormat("f32", 1) for name in ("f32", "f16", "bf16", *(d.name for d in FLOAT8))}
        return {**floats, "f64": PanelFormat("f64", 1), "i8": self.integers}


PAIR_PRODUCTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
LINUX_X86, LINUX_ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

PAIRS, FOURS, ONES = PanelFormat("i16", 2), PanelFormat("i8", 4), PanelFormat("i32", 1)
NEON: dict[str, Any] = {
    "triple": LINUX_ARM,
    "features": "",
    "vector_bytes": 16,
    "rows": 12,
    "cols": 8,
    "unit": 8,
    "by_lane": True,
}
X86: dict[str, Any] = {"triple": LINUX_X86, "unit": 8, "by_lane": False, "integers": PAIRS}

INSTRUCTION_SETS: dict[str, InstructionSet] = {
    s.name: s
    for s in (
        InstructionSet(
            "amx",
            cpu="sapphirerapids",
            features="-prefer-256-bit",
            needs=(*AVX512, "amx-tile", "amx-bf16", "amx-int8"),
            vector_bytes=64,
            rows=32,
            cols=32,
            **{**X86, "unit": 64},
            matrix_unit=Amx(),
            only=("bf16", "i8"),
        ),
        InstructionSet(
            "avx512",
            cpu="skylake-avx512",
            features="-prefer-256-bit",
            needs=AVX512,
            vector_bytes=64,
            rows=8,
            cols=48,
            **{**X86, "unit": 1},
        ),
        InstructionSet(
            "avx2",
            cpu="haswell",
            features="",
            needs=("avx2", "fma", "f16c"),
            vector_bytes=32,
            vector_registers=16,
            rows=6,
            cols=16,
            **X86,
        ),
        InstructionSet(
            "x86-64",
            cpu="x86-64",
            features="",
            needs=("sse2",),
            vector_bytes=16,
            vector_registers=16,
            rows=6,
            cols=8,
            fuses=False,
            runtime=SOFT_HALF,
            **X86,
        ),
        InstructionSet("neon-dot", cpu="neoverse-n1", needs=("neon", "dotprod"), integers=FOURS, **NEON),
        InstructionSet("neon", cpu="generic", needs=("neon",), integers=ONES, **NEON),
    )
}
"""The instruction sets, best first; the host uses the first whose needs it has."""


ARM_FEATURES = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "i8mm": "i8mm", "bf16": "bf16"}


@cache
def host_features() -> frozenset[str]:
    found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    return frozenset(found | _kernel_features())


def _kernel_features() -> set[str]:
    """Return the features that Linux reports of an ARM core, in LLVM's names; LLVM does not query these."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    words = next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), [])
    return {ARM_FEATURES[word] for word in words if word in ARM_FEATURES}


def host_instruction_set(kernel: Kernel | None = None) -> InstructionSet:
    """Return the best instruction set that this machine has, for a kernel."""
    arch = llvm.get_process_triple().partition("-")[0]
    for s in INSTRUCTION_SETS.values():
        if runs_here(s) and (not s.matrix_unit or (kernel and suits_matrix_unit(kernel, s))):
            return s
    raise TargetError(f"no instruction set of tilewave's fits this machine ({arch})", loc=here())


def suits_matrix_unit(kernel: Kernel, s: InstructionSet) -> bool:
    """Return whether all products are of the unit's dtypes, and their tiles whole multiples of its registers."""
    products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
    return bool(products) and all(
        x.type.dtype.name in s.only and x.type.shape[-2] % 16 == 0 and x.type.shape[-1] * x.type.dtype.bytes % 64 == 0
        for op in products
        for x in (op.a, op.b)
    )


def runs_here(s: InstructionSet) -> bool:
    features = host_features()
    same = llvm.get_process_triple().partition("-")[0] == s.triple.partition("-")[0]
    return same and all(need in features for need in s.needs)


def instruction_set(name: str | None, kernel: Kernel) -> InstructionSet:
    """Return the named instruction set, or the host's best for this kernel."""
    if name is None:
        return host_instruction_set(kernel)
    if name not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise TargetError(f"no instruction set is called {name!r}", loc=here(), remedy=f"there are {known}")
    found = INSTRUCTION_SETS[name]
    if found.matrix_unit and not suits_matrix_unit(kernel, found):
        raise TargetError(
            f"{kernel.name}: {name} multiplies {' and '.join(found.only)}, in tiles of 16 rows and 64 bytes",
            loc=here(),
            remedy="leave instruction_set out: another is then taken where it does not fit",
        )
    return found
