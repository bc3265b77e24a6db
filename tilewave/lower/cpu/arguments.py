"""Arguments of every CPU task: 64-bit words with addresses, strides, scalar arguments and launch values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.launch import is_open, launch_of
from tilewave.ir.rewrite import walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, DType, Extent, Memory
from tilewave.lower.cpu.memory import Place
from tilewave.lower.elements import in_memory
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


@dataclass(frozen=True)
class ArgumentSlots:
    """The index of each argument in the array of 64-bit words that every task gets."""

    memories: dict[Value, int]
    """The word with the address; the strides, in elements, follow it."""
    numbers: dict[Value, int]
    packed: dict[Value, int]
    scratch: int
    count: int

    @staticmethod
    def of(kernel: Kernel) -> ArgumentSlots:
        memories, numbers, packed, at = {}, {}, {}, 0
        for v in kernel.body.args:
            if isinstance(v.type, Memory):
                memories[v] = at
                at += 1 + v.type.rank
        for v in kernel.body.args:  # scalar arguments come after all arrays, in whatever order the kernel lists them
            if not isinstance(v.type, Memory):
                numbers[v] = at
                at += 1
        for v in launched(kernel):
            numbers[v] = at
            at += 1
        for op in walk(kernel.body):
            if isinstance(op, ir.Prepack):
                packed[op.result] = at
                at += 1
        return ArgumentSlots(memories, numbers, packed, at, at + 2)


def opening(kernel: Kernel) -> str:
    """Return the ops that the host computes at launch, and the prepacked memories, as text; "" for static shapes."""
    if not is_open(kernel):
        return ""
    ops = tuple(op for op in kernel.body.ops if isinstance(op, (ir.Launch, ir.Prepack)))
    return str(replace(kernel, body=Block(kernel.body.args, ops)))


def launched(kernel: Kernel) -> tuple[Value, ...]:
    """Return the values computed once per launch; the host passes them after the scalar arguments."""
    launch = launch_of(kernel)
    return launch.results if launch else ()


def load_word(f: LlvmFunction, slot: int, kind: str = "i64") -> str:
    where = f.value(f"getelementptr i64, ptr %args, i64 {slot}")
    return f.value(f"load {kind}, ptr {where}, align 8, !invariant.load !0")


def load_number(f: LlvmFunction, slot: int, dtype: DType) -> str:
    """Load a scalar argument from its word: its bits are the low ones, which come first on a little-endian CPU."""
    found = load_word(f, slot, in_memory(dtype))
    return f.value(f"icmp ne i8 {found}, 0") if dtype == BOOL else found


def load_place(f: LlvmFunction, value: Value, slots: ArgumentSlots) -> Place:
    kind, slot = value.type, slots.memories[value]
    assert isinstance(kind, Memory)
    strides = tuple(load_word(f, slot + 1 + axis) for axis in range(kind.rank))
    return Place(kind, load_word(f, slot, "ptr"), strides, load_extents(f, kind.extents, slots))


def load_packed(f: LlvmFunction, value: Value, slots: ArgumentSlots) -> Place:
    assert isinstance(value.type, Memory)
    return Place(value.type, load_word(f, slots.packed[value], "ptr"), (), load_extents(f, value.type.extents, slots))


def load_extents(f: LlvmFunction, extents: Sequence[Extent], slots: ArgumentSlots) -> tuple[str, ...]:
    """Return extents as LLVM values: constants, and loaded words for dynamic ones."""
    return tuple(str(n) if isinstance(n, int) else load_word(f, slots.numbers[Value(n, INDEX_SCALAR)]) for n in extents)
