"""Loads and stores of global memory by the lanes of a convoy, and what is said of those that miss."""

from __future__ import annotations

import numpy as np

from tilewave.emulator.instruction import Instruction
from tilewave.emulator.machine import Convoy
from tilewave.emulator.memory import Buffer, OutsideBuffers
from tilewave.emulator.numbers import I16, I32, U8, U16, U32, U64, Array
from tilewave.emulator.races import Touch
from tilewave.emulator.wait_counters import SCALAR, VECTOR


def load(c: Convoy, instruction: Instruction, addresses: Array, waves: Array, size: int, queue: int = VECTOR) -> Array:
    """Bytes or, from four on, 32-bit words of each lane; zeros from outside of every buffer."""
    memory = c.machine.memory
    if not len(addresses):
        return np.zeros((0, max(1, size // 4)), U32) if size >= 4 else np.zeros((0, size), U8)
    looks = _is_atomic(instruction)
    offsets, inside, outside = memory.locate(addresses, size, stores=False, words=looks)
    if outside is not None:
        _report_outside(c, instruction, outside, waves, size, "reads")
    if c.machine.checking:
        _touch(c, instruction, "look" if looks else "read", offsets, waves, inside, size, queue)
    if inside is not None:
        offsets = np.where(inside, offsets, 0)
    values = memory.load_words(offsets, size // 4) if size >= 4 else memory.load_bytes(offsets, size)
    return values if inside is None else np.where(inside[:, None], values, values.dtype.type(0))


def store(c: Convoy, instruction: Instruction, addresses: Array, waves: Array, data: Array) -> None:
    """One row of bytes per lane; what misses every buffer is dropped."""
    if not len(addresses):
        return
    offsets, inside, outside = c.machine.memory.locate(addresses, data.shape[1], stores=True)
    if outside is not None:
        _report_outside(c, instruction, outside, waves, data.shape[1], "writes")
    if c.machine.checking:
        kind: Touch = "change" if _is_atomic(instruction) else "write"
        _touch(c, instruction, kind, offsets, waves, inside, data.shape[1], VECTOR)
    if inside is not None:
        offsets, data = offsets[inside], data[inside]
    c.machine.memory.store_bytes(offsets, data)


def load_scalar(c: Convoy, instruction: Instruction, addresses: Array, inside: Array | None) -> Array:
    """One 32-bit word per wave; 0 where a buffer descriptor says that there is none."""
    if inside is None:
        return load(c, instruction, addresses, c.indices, 4, SCALAR)[:, 0].astype(U64)
    values = np.zeros(c.count, U64)
    values[inside] = load(c, instruction, addresses[inside], c.indices[inside], 4, SCALAR)[:, 0]
    return values


def word_offsets(c: Convoy, instruction: Instruction, addresses: Array, waves: Array, size: int) -> tuple[Array, Array]:
    """Where atomic operations find their word, and which lanes have one."""
    offsets, inside, outside = c.machine.memory.locate(addresses, size, stores=True, words=True)
    if outside is not None:
        _report_outside(c, instruction, outside, waves, size, "changes")
    if c.machine.checking and (addresses & (size - 1)).any():
        lane = int(np.argmax((addresses & (size - 1)) != 0))
        what = f"an atomic operation on {size} bytes at {int(addresses[lane]):#x}"
        c.report("misaligned access", instruction, int(waves[lane]), what, f"its address must be divisible by {size}")
    elif c.machine.checking:
        _touch(c, instruction, "change", offsets, waves, inside, size, VECTOR)
    return offsets >> 2, np.ones(len(addresses), bool) if inside is None else inside


def want_kept_after(c: Convoy, instruction: Instruction, waves: Array) -> None:
    """Report an atomic operation that changes bytes after an array, in the word of its last byte."""
    changed = c.machine.memory.changed_after() if c.machine.checking else None
    if changed is not None:
        what = f"changes bytes after the end of {changed.name}, which has {changed.size}"
        c.report("out of bounds", instruction, int(waves[0]), what, "keep the other bytes of the word")


def _touch(
    c: Convoy, instruction: Instruction, kind: Touch, offsets: Array, waves: Array, inside: Array | None, size: int,
    queue: int,
) -> None:  # fmt: skip
    if inside is not None:
        offsets, waves = offsets[inside], waves[inside]
    c.machine.flight.touch(c, instruction, kind, offsets, waves, size, queue)


def _is_atomic(instruction: Instruction) -> bool:
    """Whether a load or store has the scope that compilers give to atomic ones."""
    return "sc0" in instruction.modifiers or "sc1" in instruction.modifiers


def _report_outside(
    c: Convoy, instruction: Instruction, outside: OutsideBuffers, waves: Array, size: int, verb: str
) -> None:
    if not c.machine.checking:
        return
    near = outside.nearest
    if near is None:
        what, remedy = f"{verb} {size} bytes, and there is no buffer", "pass the array"
    elif outside.reason:
        what, remedy = f"{verb} {size} bytes of {near.name}, which is read-only", "pass an array that may be written"
    else:
        what = f"{verb} {size} bytes {_place(outside.address, near)}"
        remedy = "predicate the access, or pass the whole array"
    c.report("out of bounds", instruction, int(waves[outside.lane]), what, remedy)


def _place(address: int, near: Buffer) -> str:
    """Describe where an address is relative to the nearest buffer, for a finding."""
    end = near.address + near.size
    if address < near.address:
        return f"that begin {near.address - address} bytes before {near.name}"
    if address < end:
        return f"that extend past the end of {near.name}, of which {end - address} bytes are left"
    return f"that begin {address - end} bytes after the end of {near.name}, which has {near.size}"


def widened(values: Array, *, is_signed: bool) -> Array:
    """One or two bytes as a 32-bit register."""
    size = values.shape[1]
    contiguous = np.ascontiguousarray(values)
    if is_signed:
        return contiguous.view(np.int8 if size == 1 else I16)[:, 0].astype(I32).view(U32)
    return contiguous.view(U8 if size == 1 else U16)[:, 0].astype(U32)


def into_half(values: Array, *, is_signed: bool, upper: bool) -> Array:
    """One or two bytes as 16 bits of a register; memory with error correction fills the other half with zeros."""
    half = widened(values, is_signed=is_signed) & U32(0xFFFF)
    result: Array = half << U32(16) if upper else half
    return result
