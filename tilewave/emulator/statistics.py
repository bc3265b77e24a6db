"""Statistics of a matrix kernel's K loop, counted from its machine code, without a GPU.

The loop is the innermost one around the most matrix instructions, with all that may run in an iteration: blocks that
some lanes or waves skip count too. Counts are per wave and iteration.
Cycles are throughput bounds for a compute unit: a matrix instruction takes 4 cycles per pass on one of 4 SIMD units,
shared memory takes 128 bytes per cycle and delivers 128 or 256, global memory 64. Latency is not modelled: these
numbers reject bad code, they do not predict how fast good code is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from tilewave.emulator.assembly import MachineCode, read_assembly
from tilewave.emulator.chips import MOST_WAVES, OPINIONS, REGISTER_PIECE, REGISTERS, UNITS, ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import Instruction
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.loops import MachineLoop, find_loops
from tilewave.emulator.matrix import shape_of
from tilewave.emulator.probe import bank_conflicts
from tilewave.records import dataclass

Class = Literal[
    "matrix", "accumulator move", "vector", "shared read", "shared write", "shared other", "global load",
    "direct load", "global store", "global atomic", "scratch", "scalar memory", "wait", "barrier", "nop", "priority",
    "branch", "scalar", "other",
]  # fmt: skip
PREFIXES: tuple[tuple[str, Class], ...] = (
    (r"v_s?mfma", "matrix"),
    (r"v_accvgpr", "accumulator move"),
    (r"v_", "vector"),
    (r"ds_(read|load)", "shared read"),
    (r"ds_(write|store)", "shared write"),
    (r"ds_", "shared other"),
    (r"scratch_", "scratch"),
    (r"(global|buffer|flat)_load", "global load"),
    (r"(global|buffer|flat)_store", "global store"),
    (r"(global|buffer|flat)_atomic", "global atomic"),
    (r"s_(load|buffer_load|store|dcache)", "scalar memory"),
    (r"s_waitcnt", "wait"),
    (r"s_barrier", "barrier"),
    (r"s_nop", "nop"),
    (r"s_setprio", "priority"),
    (r"s_(cbranch|branch)", "branch"),
    (r"s_", "scalar"),
)
SIZES = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "u8": 1, "i8": 1, "b8": 1, "ushort": 2, "sshort": 2, "short": 2, "u16": 2,
    "i16": 2, "b16": 2, "dword": 4, "b32": 4, "dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16,
    "b128": 16,
}  # fmt: skip
NOT_IN_THE_WAY: tuple[Class, ...] = ("priority", "nop")
LANES, CYCLES_PER_PASS = 64, 4
SHARED_WRITE_BYTES, GLOBAL_BYTES = 128, 64


@dataclass(frozen=True)
class LoopStatistics:
    """A K loop in numbers, per wave and round where they do not say otherwise."""

    kernel: str
    chip: ChipName
    waves: int
    registers: int
    """Vector registers, accumulation registers included."""
    accumulation_registers: int
    spills: int
    shared_bytes: int
    waves_per_unit: int
    instructions: int
    matrix_instructions: int
    vector_instructions: int
    accumulator_moves: int
    nops: int
    waits: int
    barriers: int
    shared_reads: int
    shared_read_bytes: tuple[int, ...]
    """The widths that occur, in bytes per lane and access; so are the next four."""
    shared_writes: int
    shared_write_bytes: tuple[int, ...]
    global_loads: int
    global_load_bytes: tuple[int, ...]
    store_bytes: tuple[int, ...]
    """Widths of the global stores after the loop, in bytes per lane."""
    bank_conflict_cycles: float
    matrix_cycles: float
    """Cycles of a workgroup on its compute unit, as are the next two fields."""
    shared_cycles: float
    global_cycles: float
    longest_gap: int
    """The longest run without a matrix instruction, around the loop's edge too."""

    @property
    def instructions_per_matrix(self) -> float:
        return self.instructions / self.matrix_instructions

    @property
    def matrix_over_next(self) -> float:
        """Matrix cycles over those of the unit that is busiest after it."""
        return self.matrix_cycles / max(self.shared_cycles, self.global_cycles, 1)

    @property
    def heading(self) -> str:
        return "Per wave and iteration"

    @property
    def rows(self) -> dict[str, str]:
        """For people, in the terms in which kernels are compared."""
        vector = f"{self.vector_instructions}, {self.accumulator_moves}, {self.nops}"
        registers = f"{self.registers}, {self.accumulation_registers}; {self.spills}"
        return {
            "instructions per matrix instruction": f"{self.instructions_per_matrix:.2f}",
            "instructions, of them matrix": f"{self.instructions}, {self.matrix_instructions}",
            "vector instructions, accumulator moves, nops": vector,
            "registers, of them accumulation; spills": registers,
            "shared reads": _accesses(self.shared_reads, self.shared_read_bytes),
            "shared writes": _accesses(self.shared_writes, self.shared_write_bytes),
            "global loads": _accesses(self.global_loads, self.global_load_bytes),
            "stores after the loop": " and ".join(f"{size} B" for size in self.store_bytes) or "none",
            "bank-conflict cycles": f"{self.bank_conflict_cycles:g}",
            "matrix cycles ÷ next unit's": f"{self.matrix_over_next:.2f}",
            "longest run without matrix instruction": str(self.longest_gap),
            "waves per matrix unit": str(self.waves_per_unit),
        }


def loop_statistics(assembly: str, kernel_name: str, chip: str | None = None) -> LoopStatistics:
    """The statistics of a kernel in LLVM's assembly text."""
    return module_statistics(read_assembly(assembly, chip), kernel_name)


def module_statistics(
    module: MachineCode, kernel_name: str, conflicts: Mapping[int, float] | None = None
) -> LoopStatistics:
    """The statistics of a kernel of a module, read from assembly or from a code object.

    `conflicts` are those of `bank_conflicts`, where they are known already.
    """
    kernel = module.kernel(kernel_name)
    loop = find_loop(module, kernel)
    body = [module.instructions[at] for at in loop.body]
    later = [module.instructions[at] for at in loop.later]
    counts, chip = Counter(map(classify, body)), module.chip
    waves = max(1, kernel.resources.largest_workgroup // LANES)
    lost = sum((bank_conflicts(module, kernel, loop) if conflicts is None else conflicts).values(), 0.0)
    shared = _bytes(body, "shared read") * waves / OPINIONS[chip].read_bytes
    shared += (_bytes(body, "shared write") + _bytes(body, "direct load")) * waves / SHARED_WRITE_BYTES
    moved = sum(_bytes(body, kind) for kind in ("global load", "direct load", "global store"))
    return LoopStatistics(
        kernel=kernel_name,
        chip=chip,
        waves=waves,
        registers=kernel.resources.vector_registers,
        accumulation_registers=kernel.resources.accumulation_registers,
        spills=kernel.resources.spills,
        shared_bytes=kernel.descriptor.shared_bytes,
        waves_per_unit=waves_per_unit(chip, kernel, waves),
        instructions=len(body),
        matrix_instructions=counts["matrix"],
        vector_instructions=counts["vector"],
        accumulator_moves=counts["accumulator move"],
        nops=counts["nop"],
        waits=counts["wait"],
        barriers=counts["barrier"],
        shared_reads=counts["shared read"],
        shared_read_bytes=_widths(body, "shared read"),
        shared_writes=counts["shared write"],
        shared_write_bytes=_widths(body, "shared write"),
        global_loads=counts["global load"] + counts["direct load"],
        global_load_bytes=_widths(body, "global load", "direct load"),
        store_bytes=_widths(later, "global store"),
        bank_conflict_cycles=lost,
        matrix_cycles=_matrix_cycles(body) * waves / UNITS,
        shared_cycles=shared + lost * waves,
        global_cycles=moved * waves / GLOBAL_BYTES,
        longest_gap=longest_gap(body),
    )


def classify(instruction: Instruction) -> Class:
    """Which unit an instruction keeps busy."""
    name = instruction.mnemonic
    if re.match(r"(global|buffer)_load", name) and ("lds" in instruction.modifiers or "load_lds" in name):
        return "direct load"
    for prefix, found in PREFIXES:
        if re.match(prefix, name):
            return found
    return "other"


def access_width(instruction: Instruction) -> tuple[int, int]:
    """Bytes per lane and access, and how many accesses."""
    name = instruction.mnemonic.partition("_tr_")[0]  # after "_tr_" comes the width of the elements
    accesses = 2 if re.match(r"ds_\w*?(read|write|load|store)_?2", name) else 1
    for part in reversed(name.split("_")):
        if part in SIZES:
            return SIZES[part], accesses
    return 4, accesses


def find_loop(module: MachineCode, kernel: LoadedKernel) -> MachineLoop:
    """The K loop."""

    end = _end(module, kernel)
    matrix = {at for at in range(kernel.entry, end) if classify(module.instructions[at]) == "matrix"}

    def products(loop: MachineLoop) -> int:
        return len(matrix.intersection(loop.body))

    loops = [loop for loop in find_loops(module.instructions, kernel.entry, end) if products(loop)]
    innermost = [a for a in loops if not any(set(b.body) < set(a.body) for b in loops)]
    if not innermost:
        remedy = "a K loop multiplies by v_mfma instructions; one of few steps may have been unrolled"
        raise UnsupportedCode(f"{kernel.name} has no loop with matrix instructions", remedy=remedy)
    return max(innermost, key=products)


def _end(module: MachineCode, kernel: LoadedKernel) -> int:
    """Return the position after the kernel's last s_endpgm, which precedes the next kernel's entry."""
    entries = [k.entry for k in module.kernels.values() if k.entry > kernel.entry]
    end = min([len(module.instructions), *entries])
    while end > kernel.entry + 1 and module.instructions[end - 1].mnemonic != "s_endpgm":
        end -= 1
    return end


def _bytes(body: Sequence[Instruction], kind: Class) -> int:
    widths = [access_width(i) for i in body if classify(i) == kind]
    return sum(LANES * size * accesses for size, accesses in widths)


def _widths(body: Sequence[Instruction], *kinds: Class) -> tuple[int, ...]:
    return tuple(sorted({access_width(i)[0] for i in body if classify(i) in kinds}))


def _matrix_cycles(body: Sequence[Instruction]) -> int:
    shapes = [shape_of(i.mnemonic, i.integer("cbsz"), i.integer("blgp")) for i in body if classify(i) == "matrix"]
    return sum(CYCLES_PER_PASS * shape.passes for shape in shapes if shape is not None)


def longest_gap(body: Sequence[Instruction]) -> int:
    """Return the longest run of instructions in a loop without a matrix instruction."""
    longest = gap = 0
    for instruction in [*body, *body]:  # twice: a gap may go around the edge
        kind = classify(instruction)
        gap = 0 if kind == "matrix" else gap + (kind not in NOT_IN_THE_WAY)
        longest = max(longest, gap)
    return min(longest, len(body))


def waves_per_unit(chip: ChipName, kernel: LoadedKernel, waves: int) -> int:
    """How many waves share a matrix unit, as registers and shared memory allow."""
    asked = max(kernel.resources.vector_registers, kernel.descriptor.allocated_registers, 1)
    allocated = -(-asked // REGISTER_PIECE) * REGISTER_PIECE
    by_registers = min(MOST_WAVES, REGISTERS // allocated)
    piece, shared, each = OPINIONS[chip].shared_piece, kernel.descriptor.shared_bytes, max(1, waves // UNITS)
    by_shared = OPINIONS[chip].shared_bytes // (-(-shared // piece) * piece) if shared else by_registers
    return min(by_registers // each, by_shared) * each


def _accesses(count: int, sizes: tuple[int, ...]) -> str:
    return f"{count} of {' and '.join(f'{size} B' for size in sizes)}" if count else "0"
