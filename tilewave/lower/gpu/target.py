"""Protocol that a GPU target implements for the lane-level lowering."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from tilewave.lower.atomics import AtomicUnit
from tilewave.lower.gpu.asynchronous_target import AsynchronousTarget
from tilewave.lower.llvm import LlvmFunction, Module
from tilewave.records import dataclass


@dataclass(frozen=True)
class Product:
    """One matrix instruction: a and b as words, acc as elements; `transposed` swaps the operands."""

    instruction: str
    transposed: bool
    a: str
    b: str
    acc: str


class Windows(Protocol):
    """Access to global memory through windows, whose bounds the hardware checks."""

    def window(self, f: LlvmFunction, pointer: str, size_bytes: str) -> str:
        """Return a window of less than 2³¹ bytes; out-of-bounds loads give 0 and out-of-bounds stores do nothing."""
        ...

    def load(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        """Load from `lane_offset`, which differs by lane, + `offset`, uniform, in bytes; kind is words or narrower."""
        ...

    def load_in_order(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        """Load as `load` does from memory that the kernel also writes, in order with stores and barriers."""
        ...

    def store(self, f: LlvmFunction, kind: str, x: str, window: str, lane_offset: str, offset: str) -> None: ...


class Float8Pairs(Protocol):
    """Hardware conversions of 8-bit floats, to nearest even, two at a time: half 0 or 1 of a word of four."""

    @property
    def converts(self) -> tuple[str, ...]:
        """The dtypes converted; overflow gives what casts give, infinity or NaN."""
        ...

    def from_float8(self, f: LlvmFunction, dtype: str, word: str, half: int) -> str:
        """Return two numbers as <2 x float>."""
        ...

    def to_float8(self, f: LlvmFunction, dtype: str, numbers: tuple[str, str], word: str, half: int) -> str:
        """Return the word with two of its bytes replaced."""
        ...


class DirectLoadTarget(Protocol):
    """Loads from global directly into shared memory, and the metadata that LLVM needs for them."""

    @property
    def farthest(self) -> int:
        """The largest immediate offset of an instruction, in bytes."""
        ...

    @property
    def read_note(self) -> str:
        """The metadata of a load from shared memory, so that LLVM does not make it wait for direct loads in flight."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """The metadata definitions that `read_note` refers to."""
        ...

    def load_direct(
        self, f: LlvmFunction, place: str, size_bytes: int, window: str, lane_offset: str, offset: str, far: int
    ) -> None:
        """Load a chunk per lane, with `far` added to the offset in the window and to `place`."""
        ...

    def wait_async(self, f: LlvmFunction, pending: int) -> None:
        """Wait until at most `pending` instructions are in flight."""
        ...

    def meet(self, f: LlvmFunction) -> None:
        """Emit a barrier that does not wait for this wave's loads in flight."""
        ...


class TransposingReads(Protocol):
    """Loads from shared memory in which neighbouring lanes exchange rows, so that each gets a column."""

    def load_transposed(self, f: LlvmFunction, element_bytes: int, pointer: str, note: str) -> str:
        """Load 8 bytes per lane, as words."""
        ...


class LaneTarget(Protocol):
    @property
    def global_pointer(self) -> str:
        """The LLVM type of an array's address."""
        ...

    @property
    def shared_pointer(self) -> str: ...

    @property
    def atomics(self) -> AtomicUnit:
        """The atomic operations, in the scope of all workgroups."""
        ...

    @property
    def widest_bytes(self) -> int:
        """The most bytes that one load or store of a lane moves."""
        ...

    def workgroup(self, f: LlvmFunction) -> str:
        """Return the workgroup's number, 32 bits and uniform in a wave; `lane` is the lane's number in its wave."""
        ...

    def lane(self, f: LlvmFunction) -> str: ...

    def wave(self, f: LlvmFunction) -> str: ...

    def load_if(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        """Load one access from an aligned address; zeros, without an access, where the condition is false. The kernel
        does not write this memory, so the load may be delayed."""
        ...

    def load_if_in_order(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        """Load as `load_if` does from memory that the kernel may write."""
        ...

    def store_if(self, f: LlvmFunction, condition: str, raw: str, x: str, pointer: str) -> None:
        """Store one access to an aligned address, or nothing where the condition is false."""
        ...

    def shuffle(self, f: LlvmFunction, word: str, lane: str) -> str:
        """Return the 32 bits of `word` in another lane of this wave."""
        ...

    def opaque(self, f: LlvmFunction, words: str, count: int, turn: int) -> str:
        """Return an opaque copy of words: LLVM cannot merge it with the original or with copies of another `turn`."""
        ...

    def across(self, f: LlvmFunction, word: str, bit: int) -> str:
        """Return the 32 bits of the lane whose number differs in one bit."""
        ...

    def both(self, f: LlvmFunction, word: str, bit: int, same: Collection[int]) -> tuple[str, str]:
        """Return the 32 bits of this lane and of the one whose number differs in one bit, in any order; lanes whose
        numbers differ in the bits `same` have equal words."""
        ...

    def vote(self, f: LlvmFunction, how: str, truth: str, lanes: int) -> str | None:
        """Return whether `truth` holds in `all` or `any` of so many lanes; None where the target has no such vote."""
        ...

    @property
    def nan_extremes(self) -> bool:
        """Whether one instruction gives the maximum of two numbers, and NaN where one of them is NaN."""
        ...

    def barrier(self, f: LlvmFunction) -> None: ...

    def order_lanes(self, f: LlvmFunction) -> None:
        """Order shared memory within a wave: stores before are visible to its lanes after."""
        ...

    def wait_stores(self, f: LlvmFunction) -> None:
        """Wait until this wave's stores to shared memory are complete."""
        ...

    def wait_turn(self, f: LlvmFunction, counter: str, passed: str) -> None:
        """Wait until a counter in global memory is at least `passed`; this wave then sees what others stored and added
        before they increased it."""
        ...

    def pass_turn(self, f: LlvmFunction, counter: str) -> None:
        """Increase a counter by 1, after all that this wave stored and added is visible to other workgroups."""
        ...

    def wait_memory(self, f: LlvmFunction) -> None:
        """Wait until this wave's loads and stores, to shared and to global memory, are complete."""
        ...

    def priority(self, f: LlvmFunction, level: int) -> None:
        """Set the scheduling priority of this wave."""
        ...

    def keep_order(self, f: LlvmFunction) -> None:
        """Emit a scheduling barrier that no instruction moves across."""
        ...

    def together(self, f: LlvmFunction, kind: str, count: int) -> None:
        """Make LLVM's scheduler place the next `count` instructions of a kind here."""
        ...

    def wait_loads(self, f: LlvmFunction) -> None:
        """Wait until this wave's loads from global memory are complete."""
        ...

    def shared_memory(self, module: Module, name: str, offset: int, size_bytes: int) -> str:
        """Return the address of shared memory at `offset` bytes from the workgroup's first."""
        ...

    @property
    def windows(self) -> Windows | None:
        """The windows on global memory; None: 64-bit addresses without bounds checks."""
        ...

    @property
    def asynchronous(self) -> AsynchronousTarget | None:
        """The asynchronous copies and products of the target; None where it has none."""
        ...

    @property
    def direct(self) -> DirectLoadTarget | None:
        """The loads directly into shared memory; None where the target has none."""
        ...

    @property
    def transposing_reads(self) -> TransposingReads | None:
        """The transposing loads from shared memory; None where the target has none."""
        ...

    @property
    def float8(self) -> Float8Pairs | None:
        """The hardware conversions of 8-bit floats; None where arithmetic emulates them."""
        ...

    def instruction_depth(self, instruction: str) -> int: ...

    def multiply(self, f: LlvmFunction, product: Product) -> str:
        """Return acc + a · b."""
        ...

    def attributes(self, lanes: int, waves: int, resident: int) -> str:
        """Return the LLVM attributes of a kernel: lanes of a wave, waves of a workgroup, resident workgroups."""
        ...

    @property
    def convention(self) -> str:
        """The calling convention of a kernel."""
        ...

    @property
    def functions(self) -> Mapping[str, str]:
        """LLVM intrinsics of exp, exp2, log, log2 and upper_product: on vectors (llvm.…), or on scalars."""
        ...

    @property
    def line_detail(self) -> str:
        """The emission kind of LLVM debug metadata for source lines."""
        ...

    def flags(self) -> list[str]:
        """Return the module flags."""
        ...
