"""Atomic operations: an element of memory is combined with another, in one step that no other access divides.

Where a machine has no instruction for it, a loop does what the instruction would:

    old = memory[i]                                    an atomic load
    while true:
        found = compare_and_swap(i, old, old + x)      stores the sum if memory[i] is still `old`
        if found == old: break
        old = found

The machine swaps whole words. An element of fewer bytes is swapped with its neighbours, which keep their bits: whatever
changes them in the meantime makes the swap fail, and the loop tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewave.ir.types import DType
from tilewave.lower.elements import atomic_word, stored, suffix
from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.lower.numbers import is_narrow, narrowed, widened
from tilewave.records import dataclass

WORD_BYTES = 4


@dataclass(frozen=True)
class AtomicUnit:
    """What a machine does atomically in one instruction."""

    combines: Callable[[str, DType], bool]
    """Whether there is an instruction that combines elements of a dtype in that way."""
    least_bytes: int
    """The fewest bytes that it compares and swaps."""
    scope: str = ""
    """LLVM's name of the scope of all workgroups; empty: of everything."""
    most_in_a_run: Callable[[str, DType], int] = lambda how, dtype: 1
    """How many neighbours one instruction combines in that way, each of them atomically, none with the others."""
    run: Callable[[LlvmFunction, DType, str, Sequence[str]], None] | None = None
    """Emits that instruction, for the address of the first neighbour."""

    @property
    def order(self) -> str:
        return f'syncscope("{self.scope}") monotonic' if self.scope else "monotonic"


@dataclass(frozen=True)
class AtomicCombine:
    """Combines elements of a dtype with what memory has, through pointers of one LLVM type."""

    f: LlvmFunction
    unit: AtomicUnit
    pointer: str
    how: str
    dtype: DType

    def __call__(self, where: str, x: str) -> None:
        if self.unit.combines(self.how, self.dtype):
            self._at_once(where, x)
        elif self.dtype.bytes >= self.unit.least_bytes:
            self._swap_until_kept(where, 8 * self.dtype.bytes, lambda old: self._changed(old, x))
        else:
            self._in_a_word(where, x)

    def in_a_run(self, where: str, run: Sequence[str]) -> None:
        """Combine neighbours, of which `where` is the first; as many as the machine combines in one instruction."""
        if len(run) == 1:
            self(where, run[0])
            return
        assert self.unit.run is not None
        self.unit.run(self.f, self.dtype, where, run)

    def _at_once(self, where: str, x: str) -> None:
        f, kind = self.f, stored(self.dtype)
        if self.dtype.name == "bf16":
            kind, x = "bfloat", f.value(f"bitcast i16 {x} to bfloat")
        word = atomic_word(self.how, self.dtype)
        f.value(f"atomicrmw {word} {self.pointer} {where}, {kind} {x} {self.unit.order}, align {self.dtype.bytes}")

    def _in_a_word(self, where: str, x: str) -> None:
        """Change the bytes of an element in its word."""
        f, kind, bits = self.f, f"i{8 * self.dtype.bytes}", 8 * WORD_BYTES
        address = f.value(f"ptrtoint {self.pointer} {where} to i32")
        after = f.value(f"and i32 {address}, {WORD_BYTES - 1}")
        word = f.value(f"getelementptr i8, {self.pointer} {where}, i32 {f.value(f'sub i32 0, {after}')}")
        shift = f.value(f"shl i32 {after}, 3")
        own = f.value(f"shl i32 {(1 << 8 * self.dtype.bytes) - 1}, {shift}")
        others = f.value(f"xor i32 {own}, -1")

        def change(old: str) -> str:
            mine = f.value(f"trunc i32 {f.value(f'lshr i32 {old}, {shift}')} to {kind}")
            new = f.value(f"zext {kind} {self._changed(mine, x)} to i32")
            kept = f.value(f"and i32 {old}, {others}")
            return f.value(f"or i32 {kept}, {f.value(f'shl i32 {new}, {shift}')}")

        self._swap_until_kept(word, bits, change)

    def _swap_until_kept(self, where: str, bits: int, change: Callable[[str], str]) -> None:
        f, kind, order = self.f, f"i{bits}", self.unit.order
        first = f.value(f"load atomic {kind}, {self.pointer} {where} {order}, align {bits // 8}")

        def swap(carried: list[Typed]) -> list[Typed]:
            old = carried[0][1]
            pair = f.value(
                f"cmpxchg {self.pointer} {where}, {kind} {old}, {kind} {change(old)} {order} monotonic, "
                f"align {bits // 8}"
            )
            found, kept = (f.value(f"extractvalue {{ {kind}, i1 }} {pair}, {i}") for i in (0, 1))
            return [(kind, found), ("i1", f.value(f"xor i1 {kept}, true"))]

        f.loop_while([(kind, first), ("i1", "true")], lambda carried: carried[1][1], swap)

    def _changed(self, old: str, x: str) -> str:
        """Return the bits of an element, given as bits, combined with another."""
        f, dtype, kind = self.f, self.dtype, stored(self.dtype)
        bits = f"i{8 * dtype.bytes}"
        element = old if kind == bits else f.value(f"bitcast {bits} {old} to {kind}")
        if is_narrow(dtype):
            wide = self._combined("float", widened(f, element, dtype, 1), widened(f, x, dtype, 1))
            result = narrowed(f, wide, dtype, 1)
        else:
            result = self._combined(kind, element, x)
        return result if kind == bits else f.value(f"bitcast {kind} {result} to {bits}")

    def _combined(self, kind: str, a: str, b: str) -> str:
        f, dtype = self.f, self.dtype
        if self.how in ("min", "max"):
            name = f"{self.how}imum" if dtype.is_float else f"{'s' if dtype.is_signed else 'u'}{self.how}"
            return f.call(kind, f"llvm.{name}.{suffix(kind)}", [(kind, a), (kind, b)])
        return f.value(f"{'f' if dtype.is_float else ''}{self.how} {kind} {a}, {b}")
