"""NVIDIA chips in LLVM IR: lane numbers, shared memory, attributes; Hopper's additions are in `asynchronous.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tilewave.backend.llvm_machine import LlvmMachine
from tilewave.backend.nvidia import numbers
from tilewave.backend.nvidia.asynchronous import Hopper
from tilewave.backend.nvidia.inline_ptx import asm, asm_on, when
from tilewave.backend.nvidia.waiting import WAVE_MEETS, one_lane
from tilewave.ir.types import F32, DType
from tilewave.lower.atomics import AtomicUnit
from tilewave.lower.gpu.arithmetic import UPPER_PRODUCT
from tilewave.lower.gpu.target import Product
from tilewave.lower.llvm import LlvmFunction, Module, splat, vector
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.records import dataclass

TRIPLE = "nvptx64-nvidia-cuda"
SHARED = "workgroup$memory"
"""A name that no kernel can have."""
TURN_LOOP = """{
.reg .pred p;
.reg .b32 x;
again_${:uid}:
ld.acquire.gpu.global.b32 x, [$0];
setp.lt.s32 p, x, $1;
@p bra again_${:uid};
}"""


def _combines(how: str, dtype: DType) -> bool:
    return dtype.bits >= 16 if dtype.is_float and how == "add" else dtype.is_int and dtype.bits >= 32


ATOMICS = AtomicUnit(_combines, 2, "device")
RUN = 4
"""The f32 elements, of 16 bytes, that chips with TMA add to memory in one instruction."""


def _most_in_a_run(how: str, dtype: DType) -> int:
    return RUN if how == "add" and dtype == F32 else 1


def _add_run(f: LlvmFunction, dtype: DType, where: str, run: Sequence[str]) -> None:
    names = ", ".join(f"${i + 1}" for i in range(len(run)))
    text = f"red.relaxed.gpu.global.add.v{len(run)}.{dtype} [$0], {{{names}}};"
    asm(f, text, [(Nvptx.global_pointer, where), *(("float", x) for x in run)])


@dataclass(frozen=True)
class Nvptx:
    """An NVIDIA chip as a target of the lane-level lowering."""

    chip: Chip

    global_pointer = "ptr addrspace(1)"
    shared_pointer = "ptr addrspace(3)"
    windows = None
    direct = None
    transposing_reads = None
    float8 = None

    @property
    def machine(self) -> LlvmMachine:
        return LlvmMachine(TRIPLE, self.chip.cpu, self.chip.features, "text")

    @property
    def widest_bytes(self) -> int:
        return self.chip.widest_load_bytes

    @property
    def atomics(self) -> AtomicUnit:
        return ATOMICS if self.chip.tma is None else replace(ATOMICS, most_in_a_run=_most_in_a_run, run=_add_run)

    @property
    def asynchronous(self) -> Hopper:
        return Hopper(self.chip)

    # -- numbers of workgroup, wave and lane

    def workgroup(self, f: LlvmFunction) -> str:
        return numbers.workgroup(f)

    def lane(self, f: LlvmFunction) -> str:
        return numbers.lane(f)

    def wave(self, f: LlvmFunction) -> str:
        return numbers.wave(f)

    def shuffle(self, f: LlvmFunction, word: str, lane: str) -> str:
        return numbers.shuffle(f, word, lane)

    def opaque(self, f: LlvmFunction, words: str, count: int, turn: int) -> str:
        """Return words xor a hidden 0: ptxas folds moves, but does not know that grids have one row and one layer."""
        zero = numbers.hidden_zero(f, turn)
        return f.value(f"xor {vector(count, 'i32')} {words}, {splat(f, 'i32', zero, count)}")

    def across(self, f: LlvmFunction, word: str, bit: int) -> str:
        return numbers.of_lane_across(f, word, bit)

    def both(self, f: LlvmFunction, word: str, bit: int, same: Collection[int]) -> tuple[str, str]:
        return word, self.across(f, word, bit)

    def vote(self, f: LlvmFunction, how: str, truth: str, lanes: int) -> str | None:
        if lanes != numbers.LANES:
            return None
        return f.call("i1", f"llvm.nvvm.vote.{how}.sync", [("i32", numbers.ALL_LANES), ("i1", truth)])

    @property
    def nan_extremes(self) -> bool:
        return self.chip.nan_extremes

    def barrier(self, f: LlvmFunction) -> None:
        asm(f, "bar.sync 0;")

    def order_lanes(self, f: LlvmFunction) -> None:
        asm(f, "bar.warp.sync -1;")

    def wait_stores(self, f: LlvmFunction) -> None:
        pass  # bar.sync waits for stores to shared memory

    def wait_turn(self, f: LlvmFunction, counter: str, passed: str) -> None:
        asm(f, f"{TURN_LOOP}\n{WAVE_MEETS}", [("ptr addrspace(1)", counter), ("i32", passed)])

    def pass_turn(self, f: LlvmFunction, counter: str) -> None:
        """A release is cumulative: it also makes visible what others added before this wave waited for them."""
        text = f"{WAVE_MEETS}\n{when(1, 'red.release.gpu.global.add.u32 [$0], 1;')}"
        asm(f, text, [("ptr addrspace(1)", counter), one_lane(f)])

    def wait_memory(self, f: LlvmFunction) -> None:
        pass  # bar.sync also orders the workgroup's accesses to global memory

    # -- scheduling: mostly left to the chip and ptxas

    def priority(self, f: LlvmFunction, level: int) -> None:
        pass

    def keep_order(self, f: LlvmFunction) -> None:
        """Emit a branch that is never taken, which ptxas does not know: it moves nothing across branches."""
        asm(f, when(0, "trap;"), [("i32", numbers.hidden_zero(f, 1))])

    def together(self, f: LlvmFunction, kind: str, count: int) -> None:
        pass

    def wait_loads(self, f: LlvmFunction) -> None:
        pass

    # -- memory

    def load_if(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        return self._load_if(f, condition, raw, pointer, "ld.global.nc")

    def load_if_in_order(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        return self._load_if(f, condition, raw, pointer, "ld.global")

    def _load_if(self, f: LlvmFunction, condition: str, raw: str, pointer: str, instruction: str) -> str:
        """Load under a predicate: lanes that load a discarded element instead are much slower, as all of them access
        one line; and in a branch LLVM would convert the loaded value, so that each load would wait for the last."""
        count, kind, element = _registers(raw)
        suffix, to = _spelled(count, element)
        load = f"{instruction}{suffix} {to}, [${2 * count}];"
        truth = f.value(f"zext i1 {condition} to i32")
        operands = [(self.global_pointer, pointer), ("i32", truth)]
        found = asm_on(f, when(2 * count + 1, load), [(kind, "0")] * count, operands)
        if count == 1:
            return found[0] if kind == element else f.value(f"trunc {kind} {found[0]} to {element}")
        whole = "poison"
        for i, word in enumerate(found):
            whole = f.value(f"insertelement {raw} {whole}, {kind} {word}, i32 {i}")
        return whole

    def store_if(self, f: LlvmFunction, condition: str, raw: str, x: str, pointer: str) -> None:
        """Store under a predicate: with a branch for each chunk, ptxas would keep the chunks in their order."""
        count, kind, element = _registers(raw)
        suffix, of = _spelled(count, element)
        words = [x] if count == 1 else [f.value(f"extractelement {raw} {x}, i32 {i}") for i in range(count)]
        words = [f.value(f"zext {element} {word} to {kind}") for word in words] if kind != element else words
        truth = f.value(f"zext i1 {condition} to i32")
        operands = [*((kind, word) for word in words), (self.global_pointer, pointer), ("i32", truth)]
        asm(f, when(count + 1, f"st.global{suffix} [${count}], {of};"), operands)

    def shared_memory(self, module: Module, name: str, offset: int, size_bytes: int) -> str:
        """Return an address in one dynamic array: more than 48 KiB must be requested at the launch."""
        whole = module.helper(
            SHARED, lambda: f"@{SHARED} = external addrspace(3) global [0 x i8], align {TENSOR_MAPS.pattern_bytes}"
        )
        return f"getelementptr (i8, {self.shared_pointer} {whole}, i32 {offset})" if offset else whole

    # -- products

    def instruction_depth(self, instruction: str) -> int:
        raise NotImplementedError(f"{self.chip.name} multiplies from shared memory, not by {instruction}")

    def multiply(self, f: LlvmFunction, product: Product) -> str:
        raise NotImplementedError(f"{self.chip.name} multiplies from shared memory, not by {product.instruction}")

    # -- the whole

    convention = "ptx_kernel"
    functions: ClassVar[Mapping[str, str]] = {
        "exp2": "llvm.nvvm.ex2.approx.f",
        "exp2_flushed": "llvm.nvvm.ex2.approx.ftz.f",
        "reciprocal_flushed": "llvm.nvvm.rcp.approx.ftz.f",
        UPPER_PRODUCT: "llvm.nvvm.mulhi.ui",
    }
    line_detail = "DebugDirectivesOnly"  # with tables the assembler would compile for a debugger, and slowly

    def attributes(self, lanes: int, waves: int, resident: int) -> str:
        return f'nounwind convergent "nvvm.maxntid"="{lanes * waves}" "nvvm.minctasm"="{resident}"'

    def flags(self) -> list[str]:
        return []


def _registers(raw: str) -> tuple[int, str, str]:
    """Return how many registers an access moves, their type, and the type of an element in memory."""
    words, _, element = raw.strip("<>").rpartition(" x ")
    return int(words or 1), "i16" if element == "i8" else element, element  # no register has 8 bits


def _spelled(count: int, element: str) -> tuple[str, str]:
    """Return an access's suffix and its first operands."""
    registers = ", ".join(f"${i}" for i in range(count))
    kind = f".b{element[1:]}"
    return (f".v{count}{kind}", f"{{{registers}}}") if count > 1 else (kind, registers)
