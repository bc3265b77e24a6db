"""What the lowering of lanes asks of a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tilewave.lower.gpu.asynchronous_target import AsynchronousTarget
from tilewave.lower.llvm import LlvmFunction, Module


@dataclass(frozen=True)
class Product:
    """One matrix instruction: a and b as words, the sums as they are; `transposed` swaps the operands."""

    instruction: str
    transposed: bool
    a: str
    b: str
    acc: str


class Windows(Protocol):
    """Global memory through windows, whose bounds the machine checks."""

    def window(self, f: LlvmFunction, pointer: str, size_bytes: str) -> str:
        """A part of global memory, fewer than 2³¹ bytes of it; outside nothing is loaded (0) and nothing stored."""
        ...

    def load(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        """From `lane_offset`, each lane's own, + `offset`, the same for all lanes, in bytes; kind is words or less."""
        ...

    def load_in_order(self, f: LlvmFunction, kind: str, window: str, lane_offset: str, offset: str) -> str:
        """The same where the kernel writes that memory too: it keeps its place among stores and barriers."""
        ...

    def store(self, f: LlvmFunction, kind: str, x: str, window: str, lane_offset: str, offset: str) -> None: ...


class Float8Pairs(Protocol):
    """8-bit floats that the machine converts itself, to nearest even, two at a time: half 0 or 1 of a word of four."""

    @property
    def converts(self) -> tuple[str, ...]:
        """The dtypes; beyond their largest number is what casts give there, infinity or NaN."""
        ...

    def from_float8(self, f: LlvmFunction, dtype: str, word: str, half: int) -> str:
        """Two numbers, as <2 x float>."""
        ...

    def to_float8(self, f: LlvmFunction, dtype: str, numbers: tuple[str, str], word: str, half: int) -> str:
        """The word with two of its bytes replaced."""
        ...


class Brings(Protocol):
    """How a machine loads into shared memory, and what LLVM must be told of it."""

    @property
    def farthest(self) -> int:
        """The largest distance, in bytes, that an instruction can say."""
        ...

    @property
    def read_note(self) -> str:
        """What a load from shared memory carries, so that LLVM does not make it wait for what is on its way."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """The metadata that notes refer to."""
        ...

    def bring(
        self, f: LlvmFunction, place: str, size_bytes: int, window: str, lane_offset: str, offset: str, far: int
    ) -> None:
        """A chunk per lane, `far` bytes further in the window and behind `place`."""
        ...

    def await_async(self, f: LlvmFunction, pending: int) -> None:
        """At most so many instructions are still on their way."""
        ...

    def meet(self, f: LlvmFunction) -> None:
        """A barrier that waits for nothing that this wave has under way."""
        ...


class TransposingReads(Protocol):
    """How neighbouring lanes read rows of shared memory for each other, so that each gets a column."""

    def load_transposed(self, f: LlvmFunction, element_bytes: int, pointer: str, note: str) -> str:
        """8 bytes of each lane, as words."""
        ...


class LaneTarget(Protocol):
    @property
    def global_pointer(self) -> str:
        """The LLVM type of an array's address."""
        ...

    @property
    def shared_pointer(self) -> str: ...

    @property
    def widest_bytes(self) -> int:
        """The most that one load or store of a lane moves."""
        ...

    def workgroup(self, f: LlvmFunction) -> str:
        """Numbers of 32 bits: this workgroup's, this lane's in its wave, and the wave's, the same for its lanes."""
        ...

    def lane(self, f: LlvmFunction) -> str: ...

    def wave(self, f: LlvmFunction) -> str: ...

    def load_if(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        """What one access moves, from an address that is a multiple of its bytes; zeros where the condition does not
        hold, and nothing is looked at. The kernel writes nothing there, so it may be loaded later."""
        ...

    def load_if_in_order(self, f: LlvmFunction, condition: str, raw: str, pointer: str) -> str:
        """The same of what the kernel may write."""
        ...

    def shuffle(self, f: LlvmFunction, word: str, lane: str) -> str:
        """The 32 bits that a lane of this wave has for `word`."""
        ...

    def renewed(self, f: LlvmFunction, words: str, count: int, turn: int) -> str:
        """The same words, but no compiler knows it, nor that those of another turn are the same."""
        ...

    def across(self, f: LlvmFunction, word: str, bit: int) -> str:
        """The 32 bits of the lane whose number differs in one bit."""
        ...

    def both(self, f: LlvmFunction, word: str, bit: int, alike: Collection[int]) -> tuple[str, str]:
        """The 32 bits of this lane and of the one whose number differs in one bit, in any order; lanes whose numbers
        differ in the bits `alike` have the same."""
        ...

    def vote(self, f: LlvmFunction, how: str, truth: str, lanes: int) -> str | None:
        """Whether it holds in `all` of so many lanes, or in `any`; None where the machine cannot ask them at once."""
        ...

    def barrier(self, f: LlvmFunction) -> None: ...

    def order_lanes(self, f: LlvmFunction) -> None:
        """What lanes of a wave stored to shared memory, its other lanes see behind this."""
        ...

    def await_stores(self, f: LlvmFunction) -> None:
        """What this wave stores to shared memory has arrived there."""
        ...

    def await_memory(self, f: LlvmFunction) -> None:
        """What this wave loads and stores, to shared and to global memory, has arrived."""
        ...

    def priority(self, f: LlvmFunction, level: int) -> None:
        """How urgent this wave is from here on."""
        ...

    def keep_order(self, f: LlvmFunction) -> None:
        """No instruction moves across."""
        ...

    def together(self, f: LlvmFunction, kind: str, count: int) -> None:
        """The next instructions of a kind stand here."""
        ...

    def await_loads(self, f: LlvmFunction) -> None:
        """Everything that this wave loads from global memory has come."""
        ...

    def shared_memory(self, module: Module, name: str, offset: int, size_bytes: int) -> str:
        """The address of a shared memory of the workgroup, `offset` bytes behind the first one's."""
        ...

    @property
    def windows(self) -> Windows | None:
        """How parts of global memory are reached; None: by 64-bit addresses, which nobody checks."""
        ...

    @property
    def asynchronous(self) -> AsynchronousTarget | None:
        """What the machine does by itself, beside its waves; None where it does nothing so."""
        ...

    @property
    def brings(self) -> Brings | None:
        """How lanes load into shared memory past their registers; None where they cannot."""
        ...

    @property
    def transposing_reads(self) -> TransposingReads | None:
        """None where each lane reads for itself."""
        ...

    @property
    def float8(self) -> Float8Pairs | None:
        """How 8-bit floats are converted; None where arithmetic has to do it."""
        ...

    def instruction_depth(self, instruction: str) -> int: ...

    def multiply(self, f: LlvmFunction, product: Product) -> str:
        """acc + a · b."""
        ...

    def attributes(self, lanes: int, waves: int, resident: int) -> str:
        """What LLVM is told of a kernel whose workgroups have so many waves, and of which so many are to be there."""
        ...

    @property
    def convention(self) -> str:
        """The calling convention of a function that is launched."""
        ...

    @property
    def functions(self) -> Mapping[str, str]:
        """Which of exp, exp2, log, log2 and upper_product LLVM has words for: of vectors (llvm.…), or of one number."""
        ...

    @property
    def line_detail(self) -> str:
        """How much LLVM is to emit of the author's lines, in its own word."""
        ...

    def flags(self) -> list[str]:
        """What is said of the module as a whole."""
        ...
