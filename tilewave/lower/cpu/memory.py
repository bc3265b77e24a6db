"""Addresses of the elements of a kernel's memories."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewave.ir.types import BOOL, DType, Memory
from tilewave.lower.elements import in_memory, stored, suffix
from tilewave.lower.llvm import LlvmFunction, Module, splat, vector
from tilewave.records import dataclass


@dataclass(frozen=True)
class Place:
    """A memory at run time: the address of its first element, and its strides in elements."""

    type: Memory
    pointer: str
    strides: tuple[str, ...]
    extents: tuple[str, ...]
    """Constants, and LLVM values for dynamic extents."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def group(self) -> tuple[int, int]:
        """Return the rows of a packed panel and the depth of one group."""
        *_, rows, depth = self.type.extents
        assert isinstance(rows, int) and isinstance(depth, int), f"{self.type}: panels have rows of a known number"
        return rows, depth

    def address(self, f: LlvmFunction, position: Sequence[str]) -> str:
        """Return the address of the element at `position`, one index per axis."""
        offset = "0"
        for index, stride in zip(position, self.strides, strict=True):
            if index != "0":
                step = index if stride == "1" else f.value(f"mul i64 {index}, {stride}")
                offset = step if offset == "0" else f.value(f"add i64 {offset}, {step}")
        return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {offset}")


def add(f: LlvmFunction, a: str, b: str | int) -> str:
    """Return a + b, folded for constants."""
    if b in ("0", 0):
        return a
    if a == "0":
        return str(b)
    if is_number(a) and is_number(str(b)):
        return str(int(a) + int(b))
    return f.value(f"add i64 {a}, {b}")


def less(f: LlvmFunction, a: str, b: str) -> str:
    """Return a - b, folded for constants."""
    if is_number(a) and is_number(b):
        return str(int(a) - int(b))
    return a if b == "0" else f.value(f"sub i64 {a}, {b}")


def times(f: LlvmFunction, a: str, b: int) -> str:
    """Return a · b, folded if a is a constant."""
    if is_number(a):
        return str(int(a) * b)
    return a if b == 1 else f.value(f"mul i64 {a}, {b}")


def product(f: LlvmFunction, a: str, b: str) -> str:
    """Return a · b, folded for constants."""
    if is_number(b):
        return times(f, a, int(b))
    return times(f, b, int(a)) if is_number(a) else f.value(f"mul i64 {a}, {b}")


def parts(f: LlvmFunction, a: str, b: int) -> str:
    """Return how many whole parts of b a length has, folded if it is a constant."""
    if is_number(a):
        return str(int(a) // b)
    return a if b == 1 else f.value(f"udiv i64 {a}, {b}")


def is_number(x: str) -> bool:
    return x.lstrip("-").isdigit()


def load(f: LlvmFunction, dtype: DType, address: str, lanes: int = 1) -> str:
    """Load one element, or `lanes` contiguous ones."""
    kind = vector(lanes, in_memory(dtype))
    found = f.value(f"load {kind}, ptr {address}, align {dtype.bytes}")
    return f.value(f"trunc {kind} {found} to {vector(lanes, 'i1')}") if dtype == BOOL else found


def store(f: LlvmFunction, dtype: DType, x: str, address: str, lanes: int = 1) -> None:
    kind = vector(lanes, in_memory(dtype))
    if dtype == BOOL:
        x = f.value(f"zext {vector(lanes, 'i1')} {x} to {kind}")
    f.do(f"store {kind} {x}, ptr {address}, align {dtype.bytes}")


LINE_BYTES = 64
"""Bytes of a cache line on most CPUs; where lines are longer, some are prefetched twice."""
NEXT_CACHE = 2
"""LLVM's prefetch locality for data that is used soon, but not at once."""


def prefetch(f: LlvmFunction, address: str) -> None:
    """Prefetch the cache line of an address; an invalid address is ignored."""
    f.module.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 {NEXT_CACHE}, i32 1)")


def load_inside(f: LlvmFunction, dtype: DType, address: str, mask: str, lanes: int) -> str:
    """Load `lanes` contiguous elements under a mask: masked-out elements are 0 and are not accessed."""
    kind, bits = vector(lanes, in_memory(dtype)), vector(lanes, "i1")
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    f.module.declare(f"{kind} @{name}(ptr, i32, {bits}, {kind})")
    found = f.value(f"call {kind} @{name}(ptr {address}, i32 {dtype.bytes}, {bits} {mask}, {kind} zeroinitializer)")
    return f.value(f"trunc {kind} {found} to {bits}") if dtype == BOOL else found


def store_inside(f: LlvmFunction, dtype: DType, x: str, address: str, mask: str, lanes: int) -> None:
    """Store contiguous elements under a mask."""
    kind, bits = vector(lanes, in_memory(dtype)), vector(lanes, "i1")
    if dtype == BOOL:
        x = f.value(f"zext {bits} {x} to {kind}")
    name = f"llvm.masked.store.{suffix(kind)}.p0"
    f.module.declare(f"void @{name}({kind}, ptr, i32, {bits})")
    f.do(f"call void @{name}({kind} {x}, ptr {address}, i32 {dtype.bytes}, {bits} {mask})")


def load_apart(f: LlvmFunction, dtype: DType, address: str, stride: str, mask: str, lanes: int) -> str:
    """Load elements with a stride under a mask: masked-out elements are 0 and are not accessed."""
    name, kind, bits = f"load_apart_{lanes}_{dtype}", vector(lanes, stored(dtype)), vector(lanes, "i1")
    function = f.module.helper(name, lambda: _write_load_apart(f.module, name, dtype, lanes))
    return f.value(f"call {kind} {function}(ptr {address}, i64 {stride}, {bits} {mask})")


def _write_load_apart(module: Module, name: str, dtype: DType, lanes: int) -> str:
    kind, bits = vector(lanes, stored(dtype)), vector(lanes, "i1")
    f = LlvmFunction(module, name, [("ptr", "%first"), ("i64", "%stride"), (bits, "%mask")], kind)
    found = "poison"
    for lane in range(lanes):
        there = f.value(f"getelementptr {in_memory(dtype)}, ptr %first, i64 {f.value(f'mul i64 %stride, {lane}')}")
        wanted = f.value(f"extractelement {bits} %mask, i64 {lane}")
        ((_, one),) = f.choose(
            wanted,
            partial(_loaded, f, dtype, there),
            lambda: [(stored(dtype), zero(dtype))],
        )
        found = f.value(f"insertelement {kind} {found}, {stored(dtype)} {one}, i64 {lane}")
    return f.finish(f"{kind} {found}", attributes="nounwind noinline cold", linkage="internal")


def _loaded(f: LlvmFunction, dtype: DType, address: str) -> list[tuple[str, str]]:
    return [(stored(dtype), load(f, dtype, address))]


def store_apart(f: LlvmFunction, dtype: DType, x: str, address: str, stride: str, mask: str, lanes: int) -> None:
    """Store elements with a stride under a mask."""
    name, kind, bits = f"store_apart_{lanes}_{dtype}", vector(lanes, stored(dtype)), vector(lanes, "i1")
    function = f.module.helper(name, lambda: _write_store_apart(f.module, name, dtype, lanes))
    f.do(f"call void {function}({kind} {x}, ptr {address}, i64 {stride}, {bits} {mask})")


def _write_store_apart(module: Module, name: str, dtype: DType, lanes: int) -> str:
    kind, bits = vector(lanes, stored(dtype)), vector(lanes, "i1")
    f = LlvmFunction(module, name, [(kind, "%some"), ("ptr", "%first"), ("i64", "%stride"), (bits, "%mask")])
    for lane in range(lanes):
        one = f.value(f"extractelement {kind} %some, i64 {lane}")
        offset = f.value(f"mul i64 %stride, {lane}")
        there = f.value(f"getelementptr {in_memory(dtype)}, ptr %first, i64 {offset}")
        wanted = f.value(f"extractelement {bits} %mask, i64 {lane}")
        f.when(wanted, partial(store, f, dtype, one, there), lambda: None)
    return f.finish(attributes="nounwind noinline cold", linkage="internal")


def lanes_inside(f: LlvmFunction, position: Sequence[str], sizes: Sequence[str], axis: int, lanes: int) -> str:
    """Return the mask of the `lanes` elements from `position` along an axis that are inside the memory."""
    bits, kind = vector(lanes, "i1"), vector(lanes, "i32")
    numbers = f"<{', '.join(f'i32 {lane}' for lane in range(lanes))}>"
    first, end = less(f, "0", position[axis]), less(f, sizes[axis], position[axis])
    begun, left = (
        f.value(f"icmp {how} {kind} {numbers}, {splat(f, 'i32', _clamped(f, x, lanes), lanes)}")
        for how, x in (("uge", first), ("ult", end))
    )
    others = [(p, n) for i, (p, n) in enumerate(zip(position, sizes, strict=True)) if i != axis]
    there = splat(f, "i1", inside(f, [p for p, _ in others], [n for _, n in others]), lanes)
    mask = f.value(f"and {bits} {begun}, {left}")
    return f.value(f"and {bits} {mask}, {there}")


def _clamped(f: LlvmFunction, x: str, lanes: int) -> str:
    """Return a number of lanes, clamped to 0 and `lanes`."""
    above = f.call("i64", "llvm.smax.i64", [("i64", x), ("i64", "0")])
    return f.value(f"trunc i64 {f.call('i64', 'llvm.smin.i64', [('i64', above), ('i64', str(lanes))])} to i32")


def inside(f: LlvmFunction, position: Sequence[str], sizes: Sequence[str]) -> str:
    """Return whether an element is inside a memory."""
    return all_of(f, [f.value(f"icmp ult i64 {p}, {n}") for p, n in zip(position, sizes, strict=True)])


def whole_inside(f: LlvmFunction, at: Sequence[str], extents: Sequence[int], sizes: Sequence[str]) -> str:
    """Return whether a window is inside a memory as a whole."""
    found = []
    for position, extent, size in zip(at, extents, sizes, strict=True):
        if not is_number(size):
            found.append(f.value(f"icmp uge i64 {size}, {extent}"))
        elif int(size) < extent:
            found.append("false")
            continue
        # Unsigned, so that a negative position is beyond every end.
        found.append(f.value(f"icmp ule i64 {position}, {add(f, size, -extent)}"))
    return all_of(f, found)


def all_of(f: LlvmFunction, conditions: Sequence[str]) -> str:
    result = "true"
    for c in conditions:
        result = c if result == "true" else f.value(f"and i1 {result}, {c}")
    return result


def zero(dtype: DType) -> str:
    return {"half": "0xH0000", "float": "0.0", "double": "0.0", "i1": "false"}.get(stored(dtype), "0")
