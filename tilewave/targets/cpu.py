"""CPUs: which instruction sets there are, how each multiplies and adds, and LLVM IR made into object code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from tilewave.errors import TargetError, here
from tilewave.ir.types import DType
from tilewave.lower.llvm import Function, splat, vector
from tilewave.lower.numbers import cast, stored, suffix
from tilewave.lower.target import Panel
from tilewave.passes.prepack_operands import PanelFormat


@dataclass(frozen=True)
class InstructionSet:
    """One way a CPU computes; `features` is what LLVM is told, `needs` what the host must have."""

    name: str
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    vector_bytes: int
    rows: int
    cols: int
    """The register block: this many rows of A against this many columns of B."""
    by_lane: bool
    """Whether a vector can be multiplied by one lane of another at no cost."""
    integers: PanelFormat

    def multiply_panels(
        self, f: Function, a: Panel, b: Panel, acc: Sequence[Sequence[str]], lanes: int, dtype: DType
    ) -> list[str]:
        rows = [list(row) for row in acc]
        for k in range(0, a.depth, a.group):
            across = [self._load(f, b, k * b.rows + first * b.group, lanes * b.group) for first in range(0, b.rows, lanes)]
            factors = self._factors(f, a, k * a.rows, lanes)
            for row, factor in enumerate(factors):
                for column, line in enumerate(across):
                    rows[row][column] = self._step(f, factor, line, rows[row][column], lanes, a, dtype)
        return [v for row in rows for v in row]

    def _load(self, f: Function, panel: Panel, offset: int, count: int) -> str:
        element = stored(panel.dtype)
        where = f.value(f"getelementptr {element}, ptr {panel.pointer}, i64 {offset}")
        return f.value(f"load {vector(count, element)}, ptr {where}, align {panel.dtype.bytes}, !invariant.load !0")

    def _factors(self, f: Function, a: Panel, offset: int, lanes: int) -> list[str]:
        """For each row of a, its element (or group) in every lane."""
        bits = a.group * a.dtype.bits
        one = stored(a.dtype) if a.group == 1 else f"i{bits}"
        whole = vector(lanes, one)
        as_panel = vector(lanes * a.group, stored(a.dtype))
        found = []
        if self.by_lane and a.rows % lanes == 0:
            for first in range(0, a.rows, lanes):
                several = self._load(f, a, offset + first * a.group, lanes * a.group)
                several = several if a.group == 1 else f.value(f"bitcast {as_panel} {several} to {whole}")
                for lane in range(lanes):
                    mask = f"<{', '.join([f'i32 {lane}'] * lanes)}>"
                    found.append(f.value(f"shufflevector {whole} {several}, {whole} poison, <{lanes} x i32> {mask}"))
        else:
            for row in range(a.rows):
                where = f.value(f"getelementptr {stored(a.dtype)}, ptr {a.pointer}, i64 {offset + row * a.group}")
                scalar = f.value(f"load {one}, ptr {where}, align {a.dtype.bytes}, !invariant.load !0")
                found.append(splat(f, one, scalar, lanes))
        return found if a.group == 1 else [f.value(f"bitcast {whole} {x} to {as_panel}") for x in found]

    def _step(self, f: Function, a: str, b: str, acc: str, lanes: int, panel: Panel, dtype: DType) -> str:
        wide = vector(lanes, stored(dtype))
        if panel.group == 1:
            return self.multiply_add(f, wide, a, b, acc, dtype)
        several = vector(lanes * panel.group, stored(panel.dtype))
        if panel.group == 4:
            name = f"llvm.aarch64.neon.sdot.{suffix(wide)}.{suffix(several)}"
            return f.call(wide, name, [(wide, acc), (several, a), (several, b)])
        name = PAIR_PRODUCTS[lanes]
        both = f.call(wide, name, [(several, a), (several, b)])
        return f.value(f"add {wide} {both}, {acc}")

    def multiply_add(self, f: Function, kind: str, a: str, b: str, acc: str, dtype: DType) -> str:
        if dtype.is_int:
            both = f.value(f"mul {kind} {a}, {b}")
            return f.value(f"add {kind} {both}, {acc}")
        return f.call(kind, f"llvm.fmuladd.{suffix(kind)}", [(kind, a), (kind, b), (kind, acc)])

    def cast(self, f: Function, x: str, old: DType, new: DType) -> str:
        return cast(f, x, old, new, 1)

    def panel_formats(self) -> dict[str, PanelFormat]:
        """How operands of each dtype are packed."""
        floats = {name: PanelFormat("f32", 1) for name in ("f32", "f16", "bf16", *FLOAT8)}
        return {**floats, "f64": PanelFormat("f64", 1), "i8": self.integers}


FLOAT8 = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
PAIR_PRODUCTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
LINUX_X86, LINUX_ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

INSTRUCTION_SETS = {
    s.name: s
    for s in (
        InstructionSet(
            "avx512", LINUX_X86, "skylake-avx512", "-prefer-256-bit", AVX512, 64, 8, 32, False,
            PanelFormat("i16", 2),
        ),
        InstructionSet("avx2", LINUX_X86, "haswell", "", ("avx2", "fma", "f16c"), 32, 4, 16, False, PanelFormat("i16", 2)),
        InstructionSet("x86-64", LINUX_X86, "x86-64", "", ("sse2",), 16, 4, 8, False, PanelFormat("i16", 2)),
        InstructionSet("neon-dot", LINUX_ARM, "neoverse-n1", "", ("neon", "dotprod"), 16, 8, 8, True, PanelFormat("i8", 4)),
        InstructionSet("neon", LINUX_ARM, "generic", "", ("neon",), 16, 8, 8, True, PanelFormat("i32", 1)),
    )
}
"""Best first; the host takes the first whose needs it has."""


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def host_features() -> frozenset[str]:
    return frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)


@cache
def host_instruction_set() -> InstructionSet:
    """The best that this machine can run."""
    arch = llvm.get_process_triple().partition("-")[0]
    for s in INSTRUCTION_SETS.values():
        if s.triple.startswith(arch) and runs_here(s):
            return s
    raise TargetError(f"no instruction set of tilewave's fits this machine ({arch})", loc=here())


def runs_here(s: InstructionSet) -> bool:
    features = host_features()
    same = llvm.get_process_triple().partition("-")[0] == s.triple.partition("-")[0]
    return same and all(need in features for need in s.needs)


def instruction_set(name: str | None) -> InstructionSet:
    """The named one, or the host's best."""
    if name is None:
        return host_instruction_set()
    if name not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise TargetError(f"no instruction set is called {name!r}", loc=here(), remedy=f"there are {known}")
    return INSTRUCTION_SETS[name]


@dataclass(frozen=True)
class ObjectCode:
    code: bytes
    asm: str


def assemble(llvm_ir: str, s: InstructionSet) -> ObjectCode:
    """Optimise LLVM IR and make object code of it."""
    _initialize()
    target = llvm.Target.from_triple(s.triple)
    machine = target.create_target_machine(cpu=s.cpu, features=s.features, opt=3, reloc="pic", codemodel="default")
    module = llvm.parse_assembly(llvm_ir)
    module.triple, module.data_layout = s.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # what is worth unrolling is unrolled already
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    optimized = str(module)
    code = machine.emit_object(module)
    return ObjectCode(code, machine.emit_assembly(llvm.parse_assembly(optimized)))
