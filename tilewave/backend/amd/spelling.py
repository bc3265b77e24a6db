"""AMD chips in LLVM IR: lane numbers, buffers, barriers, matrix instructions, attributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from tilewave.backend.amd import exchanges
from tilewave.backend.llvm_machine import LlvmMachine
from tilewave.ir.types import DType
from tilewave.lower.atomics import AtomicUnit
from tilewave.lower.elements import suffix
from tilewave.lower.gpu.target import Product
from tilewave.lower.llvm import LlvmFunction, Module, Typed, vector
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import NAMED
from tilewave.records import dataclass

TRIPLE = "amdgcn-amd-amdhsa"
CODE_OBJECT_VERSION = 500
BUFFER_WORD_3 = 159744
"""The last word of a buffer descriptor: raw bytes, 32-bit elements, checked against its size."""
GROUPED = {"matrix": 0x8, "load": 0x20, "shared_load": 0x100, "shared_store": 0x200}
"""Instruction classes of sched_group_barrier, as bits of its mask."""
IN_ORDER = 'fence syncscope("singlethread") seq_cst'
"""A fence that LLVM moves no memory access across; it emits no instruction."""
FARTHEST = 4095
"""The largest immediate offset of a buffer instruction."""
MOST_LOADS = 63
"""The most loads that s_waitcnt can leave in flight."""
NOTES = (
    '!5 = distinct !{!5, !"shared memory"}',
    '!6 = distinct !{!6, !5, !"async loads"}',
    '!7 = distinct !{!7, !5, !"reads"}',
    "!8 = !{!6}",
    "!9 = !{!7}",
)
"""Alias scopes: LLVM takes each direct load into shared memory for a write that every read must wait for. In separate
scopes, reads do not wait; fences and the kernel's explicit waits keep them in order."""
NO_LOADS, NO_SHARED = 0x0F70, 0xC07F
"""s_waitcnt with vmcnt(0), or with lgkmcnt(0), and the other counters at their maximum; ANDed, both."""

FRAGMENT = {
    ("f32", 1): "float",
    ("f16", 4): "<4 x half>",
    ("f16", 8): "<8 x half>",
    ("bf16", 4): "<4 x i16>",
    ("bf16", 8): "<8 x bfloat>",
    ("f8", 8): "i64",
    ("i8", 8): "i64",
    ("i8", 16): "<4 x i32>",
}
"""The operand types of the intrinsics, by dtype and elements per lane."""

INTRINSICS = {
    "f32_16x16x4_f32": "mfma.f32.16x16x4f32",
    "f32_32x32x2_f32": "mfma.f32.32x32x2f32",
    "f32_16x16x32_f16": "mfma.f32.16x16x32.f16",
    "f32_32x32x16_f16": "mfma.f32.32x32x16.f16",
    "f32_16x16x16_f16": "mfma.f32.16x16x16f16",
    "f32_32x32x8_f16": "mfma.f32.32x32x8f16",
    "f32_16x16x32_bf16": "mfma.f32.16x16x32.bf16",
    "f32_32x32x16_bf16": "mfma.f32.32x32x16.bf16",
    "f32_16x16x16_bf16": "mfma.f32.16x16x16bf16.1k",
    "f32_32x32x8_bf16": "mfma.f32.32x32x8bf16.1k",
    "f32_16x16x32_fp8_fp8": "mfma.f32.16x16x32.fp8.fp8",
    "f32_16x16x32_fp8_bf8": "mfma.f32.16x16x32.fp8.bf8",
    "f32_16x16x32_bf8_fp8": "mfma.f32.16x16x32.bf8.fp8",
    "f32_16x16x32_bf8_bf8": "mfma.f32.16x16x32.bf8.bf8",
    "f32_32x32x16_fp8_fp8": "mfma.f32.32x32x16.fp8.fp8",
    "f32_32x32x16_bf8_bf8": "mfma.f32.32x32x16.bf8.bf8",
    "i32_16x16x64_i8": "mfma.i32.16x16x64.i8",
    "i32_32x32x32_i8": "mfma.i32.32x32x32.i8",
    "i32_16x16x32_i8": "mfma.i32.16x16x32.i8",
    "i32_32x32x16_i8": "mfma.i32.32x32x16.i8",
}
TRANSPOSED = {"f32_16x16x32_fp8_bf8": "f32_16x16x32_bf8_fp8", "f32_16x16x32_bf8_fp8": "f32_16x16x32_fp8_bf8"}
"""The instruction for swapped operands, for those with two dtypes."""

EIGHT_BIT = {"f8e4m3": "fp8", "f8e5m2": "bf8"}
"""AMD's names of 8-bit floats, with or without a negative zero, depending on the chip."""


def _combines(how: str, dtype: DType) -> bool:
    return dtype.bits >= 32 and (dtype.is_int or how == "add")


ATOMICS = AtomicUnit(_combines, 4, "agent")
"""LLVM would make loops of the other operations, which begin with a load that is not atomic."""

UNUSED = (
    "implicitarg-ptr",
    "dispatch-ptr",
    "queue-ptr",
    "dispatch-id",
    "workgroup-id-y",
    "workgroup-id-z",
    "workitem-id-y",
    "workitem-id-z",
    "heap-ptr",
    "hostcall-ptr",
    "multigrid-sync-arg",
    "default-queue",
    "completion-action",
    "lds-kernel-id",
    "flat-scratch-init",
)
"""Kernel inputs that the driver need not prepare."""


@dataclass(frozen=True)
class Amdgcn:
    """An AMD chip as a target of the lane-level lowering."""

    chip: Chip

    global_pointer = "ptr addrspace(1)"
    atomics = ATOMICS
    shared_pointer = "ptr addrspace(3)"

    @property
    def machine(self) -> LlvmMachine:
        return LlvmMachine(TRIPLE, self.chip.cpu, self.chip.features, negates_choices=False)

    @property
    def widest_bytes(self) -> int:
        return self.chip.widest_load_bytes

    # -- numbers of workgroup, wave and lane

    def workgroup(self, f: LlvmFunction) -> str:
        return f.call("i32", "llvm.amdgcn.workgroup.id.x", [])

    def lane(self, f: LlvmFunction) -> str:
        thread = f.call("i32", "llvm.amdgcn.workitem.id.x", [])
        return f.value(f"and i32 {thread}, {self.chip.lanes - 1}")

    def wave(self, f: LlvmFunction) -> str:
        thread = f.call("i32", "llvm.amdgcn.workitem.id.x", [])
        wave = f.value(f"lshr i32 {thread}, {self.chip.lanes.bit_length() - 1}")
        # The number is uniform; with readfirstlane LLVM knows it and keeps what follows in scalar registers.
        return f.call("i32", "llvm.amdgcn.readfirstlane.i32", [("i32", wave)])

    def load_if(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        raise NotImplementedError(f"{self.chip.name} reaches arrays through windows, which say what is inside")

    load_if_in_order = load_if

    def store_if(self, f: LlvmFunction, condition: str, raw: str, x: str, pointer: str) -> None:
        raise NotImplementedError(f"{self.chip.name} stores to arrays through windows, which say what is inside")

    def shuffle(self, f: LlvmFunction, word: str, lane: str) -> str:
        """Return `word` of another lane; ds_bpermute takes the lane's number as a byte offset."""
        return f.call("i32", "llvm.amdgcn.ds.bpermute", [("i32", f.value(f"shl i32 {lane}, 2")), ("i32", word)])

    def opaque(self, f: LlvmFunction, words: str, count: int, turn: int) -> str:
        kind = vector(count, "i32")
        return f.value(f'call {kind} asm sideeffect "", "=v,0"({kind} {words})')

    def across(self, f: LlvmFunction, word: str, bit: int) -> str:
        if bit < exchanges.ROW_BITS:
            return exchanges.in_a_row(f, word, bit, ())
        if bit == exchanges.ROW_BITS:
            return exchanges.of_other_row(f, word)
        return self.shuffle(f, word, f.value(f"xor i32 {self.lane(f)}, {1 << bit}"))

    def both(self, f: LlvmFunction, word: str, bit: int, same: Collection[int]) -> tuple[str, str]:
        if bit < exchanges.ROW_BITS:
            return word, exchanges.in_a_row(f, word, bit, same)
        return exchanges.swapped(f, word, bit) if self.chip.swaps_rows else (word, self.across(f, word, bit))

    def vote(self, f: LlvmFunction, how: str, truth: str, lanes: int) -> str | None:
        return None

    @property
    def nan_extremes(self) -> bool:
        return self.chip.nan_extremes

    def barrier(self, f: LlvmFunction) -> None:
        f.do('fence syncscope("workgroup") release')
        call(f, "s.barrier")
        f.do('fence syncscope("workgroup") acquire')

    def order_lanes(self, f: LlvmFunction) -> None:
        # Shared memory serves a wave in order, so no wait is needed; but without the fences LLVM reorders accesses that
        # do not conflict within one lane.
        f.do('fence syncscope("wavefront") release')
        call(f, "wave.barrier")
        f.do('fence syncscope("wavefront") acquire')

    def wait_stores(self, f: LlvmFunction) -> None:
        # LLVM inserts this wait at a fence and drops it where nothing is in flight; but it decides that when it first
        # reaches the fence, before it has seen the end of a loop around it (llvm/llvm-project#220357). Ours stays.
        call(f, "s.waitcnt", ("i32", str(NO_SHARED)))

    def wait_turn(self, f: LlvmFunction, counter: str, passed: str) -> None:
        load = f'load atomic i32, {self.global_pointer} {counter} syncscope("{ATOMICS.scope}") acquire, align 4'

        def found() -> list[Typed]:
            return [("i32", f.value(load))]

        f.loop_while(found(), lambda carried: f.value(f"icmp slt i32 {carried[0][1]}, {passed}"), lambda _: found())

    def pass_turn(self, f: LlvmFunction, counter: str) -> None:
        # The fence waits for this wave's stores and additions, those of all its lanes.
        f.do(f'fence syncscope("{ATOMICS.scope}") release')
        is_first = f.value(f"icmp eq i32 {self.lane(f)}, 0")
        add = f"atomicrmw add {self.global_pointer} {counter}, i32 1 {ATOMICS.order}, align 4"
        f.when(is_first, lambda: f.do(f"{f.fresh()} = {add}"), lambda: None)

    def wait_memory(self, f: LlvmFunction) -> None:
        # Waves of a workgroup share one write-through vector cache, so completed stores are visible to all of them.
        # LLVM's workgroup fences wait for shared memory alone, assuming that the cache keeps accesses in order.
        call(f, "s.waitcnt", ("i32", str(NO_LOADS & NO_SHARED)))

    # -- scheduling

    def priority(self, f: LlvmFunction, level: int) -> None:
        call(f, "s.setprio", ("i16", str(level)))

    def keep_order(self, f: LlvmFunction) -> None:
        call(f, "sched.barrier", ("i32", "0"))

    def together(self, f: LlvmFunction, kind: str, count: int) -> None:
        call(f, "sched.group.barrier", ("i32", str(GROUPED[kind])), ("i32", str(count)), ("i32", "0"))

    def wait_loads(self, f: LlvmFunction) -> None:
        call(f, "s.waitcnt", ("i32", str(NO_LOADS)))

    # -- memory

    def shared_memory(self, module: Module, name: str, offset: int, size_bytes: int) -> str:
        name = f"{name}.memory"  # a dot, which no kernel name has
        return module.helper(
            name, lambda: f"@{name} = internal addrspace(3) global [{size_bytes} x i8] poison, align 16"
        )

    @property
    def windows(self) -> Amdgcn:
        return self

    asynchronous = None

    @property
    def direct(self) -> Amdgcn | None:
        return self if self.widest_bytes in self.chip.direct_load_bytes else None

    def window(self, f: LlvmFunction, pointer: str, size_bytes: str) -> str:
        arguments = [("ptr addrspace(1)", pointer), ("i16", "0"), ("i64", size_bytes), ("i32", str(BUFFER_WORD_3))]
        return f.call("ptr addrspace(8)", "llvm.amdgcn.make.buffer.rsrc.p8.p1", arguments)

    def load(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        where = [("ptr addrspace(8)", window), ("i32", lane_offset), ("i32", offset), ("i32", "0")]
        # Convergent, so that LLVM does not sink it into divergent branches: a window computed there counts as
        # divergent, and each load through it becomes a loop over the lanes.
        return f.call(kind, f"llvm.amdgcn.raw.ptr.buffer.load.{suffix(kind)}", where, "convergent")

    def load_in_order(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        x = self.load(f, kind, window, lane_offset, offset)
        if kind not in ("i8", "i16"):
            return x
        # LLVM fuses a load of one or two bytes with its sign extension and then loses the order of the load and later
        # stores. So the loaded value is hidden from the extension.
        word = f.value(f"zext {kind} {x} to i32")
        hidden = f.value(f'call i32 asm "", "=v,0"(i32 {word})')
        return f.value(f"trunc i32 {hidden} to {kind}")

    def store(self, f: LlvmFunction, kind: str, x: str, window: str, lane_offset: str, offset: str) -> None:
        where = [("ptr addrspace(8)", window), ("i32", lane_offset), ("i32", offset), ("i32", "0")]
        call(f, f"raw.ptr.buffer.store.{suffix(kind)}", (kind, x), *where)

    # -- into shared memory

    farthest = FARTHEST
    read_note = ", !alias.scope !9, !noalias !8"
    notes = NOTES

    def load_direct(
        self, f: LlvmFunction, place: str, size_bytes: int, window: str, lane_offset: str, offset: str, far: int
    ) -> None:
        where = [("ptr addrspace(8)", window), (self.shared_pointer, place), ("i32", str(size_bytes))]
        offsets = [("i32", lane_offset), ("i32", offset), ("i32", str(far)), ("i32", "0")]
        call(f, "raw.ptr.buffer.load.lds", *where, *offsets, note=", !alias.scope !8, !noalias !9")

    def wait_async(self, f: LlvmFunction, pending: int) -> None:
        few = min(pending, MOST_LOADS)
        f.do(IN_ORDER)
        call(f, "s.waitcnt", ("i32", str(NO_LOADS | few & 15 | few >> 4 << 14)))
        f.do(IN_ORDER)

    def meet(self, f: LlvmFunction) -> None:
        # A workgroup fence would wait for all loads in flight, and not only for those that the kernel waits for.
        f.do(IN_ORDER)
        call(f, "s.barrier")
        f.do(IN_ORDER)

    @property
    def transposing_reads(self) -> Amdgcn | None:
        return self if self.chip.transposing_reads else None

    def load_transposed(self, f: LlvmFunction, element_bytes: int, pointer: str, note: str) -> str:
        assert element_bytes == 2, f"no transposing read has elements of {element_bytes} bytes"
        found = f.call("<4 x i16>", "llvm.amdgcn.ds.read.tr16.b64.v4i16", [(self.shared_pointer, pointer)], note)
        return f.value(f"bitcast <4 x i16> {found} to <2 x i32>")

    # -- products

    def instruction_depth(self, instruction: str) -> int:
        return NAMED[instruction].depth

    def multiply(self, f: LlvmFunction, product: Product) -> str:
        name = TRANSPOSED.get(product.instruction, product.instruction) if product.transposed else product.instruction
        row = NAMED[name]
        per_lane = row.depth * row.rows // self.chip.lanes
        dtype, _, acc = row.dtypes(self.chip.matrix)
        kind = FRAGMENT["f8" if dtype.startswith("f8") else dtype, per_lane]
        sums = f"<{row.rows * row.rows // self.chip.lanes} x {'i32' if acc == 'i32' else 'float'}>"
        operands = (product.b, product.a) if product.transposed else (product.a, product.b)
        taken = [(kind, _as_fragment(f, x, kind, dtype, per_lane)) for x in operands]
        zeros = [("i32", "0")] * 3
        return f.call(sums, f"llvm.amdgcn.{INTRINSICS[name]}", [*taken, (sums, product.acc), *zeros])

    # -- 8-bit floats

    @property
    def float8(self) -> Amdgcn | None:
        return self if self.chip.converts else None

    @property
    def converts(self) -> tuple[str, ...]:
        return self.chip.converts

    def from_float8(self, f: LlvmFunction, dtype: str, word: str, half: int) -> str:
        arguments = [("i32", word), ("i1", str(half))]
        return f.call("<2 x float>", f"llvm.amdgcn.cvt.pk.f32.{EIGHT_BIT[dtype[:6]]}", arguments)

    def to_float8(self, f: LlvmFunction, dtype: str, numbers: tuple[str, str], word: str, half: int) -> str:
        arguments = [*(("float", x) for x in numbers), ("i32", word), ("i1", str(half))]
        return f.call("i32", f"llvm.amdgcn.cvt.pk.{EIGHT_BIT[dtype[:6]]}.f32", arguments)

    # -- the whole

    convention = "amdgpu_kernel"
    line_detail = "LineTablesOnly"
    functions: ClassVar[Mapping[str, str]] = {
        **{name: f"llvm.{name}" for name in ("exp", "exp2", "log", "log2", "log10")},
        "exp2_flushed": "llvm.amdgcn.exp2.f32",
        "reciprocal_flushed": "llvm.amdgcn.rcp.f32",
    }

    def attributes(self, lanes: int, waves: int, resident: int) -> str:
        threads = lanes * waves
        said = [
            "nounwind convergent",
            f'"amdgpu-flat-work-group-size"="{threads},{threads}"',
            '"uniform-work-group-size"="true"',
            *(f'"amdgpu-no-{name}"' for name in UNUSED),
        ]
        return " ".join(said)

    def flags(self) -> list[str]:
        return [f'!{{i32 1, !"amdhsa_code_object_version", i32 {CODE_OBJECT_VERSION}}}']


def call(f: LlvmFunction, name: str, *arguments: tuple[str, str], note: str = "") -> None:
    """Call one of the target's intrinsics without a result."""
    f.module.declare(f"void @llvm.amdgcn.{name}({', '.join(kind for kind, _ in arguments)})")
    f.do(f"call void @llvm.amdgcn.{name}({', '.join(f'{kind} {x}' for kind, x in arguments)}){note}")


def _as_fragment(f: LlvmFunction, x: str, kind: str, dtype: str, per_lane: int) -> str:
    """Return words in the operand type of the intrinsic."""
    if dtype == "f32":
        return x
    words = per_lane * (8 if "8" in dtype else 16) // 32
    words_type = f"<{words} x i32>" if words > 1 else "i32"
    return x if words_type == kind else f.value(f"bitcast {words_type} {x} to {kind}")
