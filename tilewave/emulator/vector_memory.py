"""Global, flat, scratch and buffer instructions: whose lanes load and store which bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tilewave.emulator.access import into_half, load, store, widened
from tilewave.emulator.atomics import all_lanes, build_atomic
from tilewave.emulator.direct import build_direct
from tilewave.emulator.instruction import Operand
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.numbers import I64, MASK32, U8, U32, Array
from tilewave.emulator.shared import load_shared, store_shared
from tilewave.emulator.shared_state import NO_ACCESS
from tilewave.emulator.step import PRIVATE_BASE, SHARED_BASE, Draft, Execute, Private, Reader, Traffic, unsupported


class AccessShape(NamedTuple):
    """What `load_sbyte_d16_hi` moves: bytes per lane, how they fill a register."""

    size: int
    is_signed: bool
    into_half: bool
    upper: bool

    @property
    def words(self) -> int:
        return max(1, self.size // 4)


SIZES = {
    "ubyte": (1, False), "sbyte": (1, True), "ushort": (2, False), "sshort": (2, True), "byte": (1, False),
    "short": (2, False), "dword": (4, False), "dwordx2": (8, False), "dwordx3": (12, False), "dwordx4": (16, False),
}  # fmt: skip


def shape_of(draft: Draft, text: str) -> AccessShape:
    name = text.replace("_d16", "").replace("_hi", "")
    if name not in SIZES:
        raise unsupported(draft.instruction, "this width is not known")
    return AccessShape(*SIZES[name], "d16" in text, text.endswith("_hi"))


# -- global and flat ---------------------------------------------------------------------------------------------------


def build_flat(draft: Draft) -> Execute | None:
    """global_*, flat_*, scratch_*."""
    family, name = draft.instruction.mnemonic.split("_", 1)
    draft.unit = "memory"
    if family == "scratch":
        return _scratch(draft, name)
    is_flat = family == "flat"
    of_shared = 0 if name.startswith("atomic_") else 1
    draft.traffic = Traffic(("vm", "lg"), "flat", of_shared) if is_flat else Traffic(("vm",), "vector")
    operands = draft.operands
    if name.startswith("load_lds_"):
        address = _address(draft, operands[0], operands[1] if len(operands) > 1 else None)
        return build_direct(draft, shape_of(draft, name.removeprefix("load_lds_")).size, all_lanes(address))
    if name.startswith("load_"):
        address = _address(draft, operands[1], operands[2] if len(operands) > 2 else None)
        return _load(draft, address, operands[0], shape_of(draft, name.removeprefix("load_")), is_flat)
    if name.startswith("store_"):
        address = _address(draft, operands[0], operands[2] if len(operands) > 2 else None)
        return _store(draft, address, operands[1], shape_of(draft, name.removeprefix("store_")), is_flat)
    if name.startswith("atomic_"):
        result = operands[0] if _returns(draft) else None
        rest = operands[1:] if result else operands
        address = _address(draft, rest[0], rest[2] if len(rest) > 2 else None)
        return build_atomic(draft, name.removeprefix("atomic_"), all_lanes(address), rest[1], result)
    return None


def _returns(draft: Draft) -> bool:
    return "sc0" in draft.modifiers or "glc" in draft.modifiers


def _address(draft: Draft, vector: Operand, scalar: Operand | None) -> Reader:
    """64-bit addresses per lane, from a pair of vector registers or a scalar pair and a vector offset."""
    offset = draft.instruction.integer("offset")
    if scalar is not None and scalar.kind == "scalar":
        base = draft.scalar_source(scalar, 64)
        if vector.kind != "vector":
            return lambda c: base(c).view(I64)[:, None] + offset
        index = draft.source(vector, "u")
        return lambda c: base(c).view(I64)[:, None] + index(c).astype(I64) + offset
    whole = draft.source(vector, "I")
    return lambda c: whole(c) + offset


def _load(draft: Draft, address: Reader, target: Operand, shape: AccessShape, is_flat: bool) -> Execute:
    row, instruction = target.row, draft.instruction
    draft.vector_writes += range(row, row + shape.words)

    def execute(c: Convoy) -> None:
        addresses, waves = c.active(address(c)), c.active_waves
        if is_flat and _is_shared(c, draft, addresses):
            put_loaded(c, row, shape, load_shared(c, instruction, addresses & MASK32, shape.size))
        else:
            put_loaded(c, row, shape, load(c, instruction, addresses, waves, shape.size))

    return execute


def put_loaded(c: Convoy, row: int, shape: AccessShape, values: Array) -> None:
    """Words, or bytes widened to a register, into the lanes that are on."""
    if shape.size >= 4:
        for word in range(shape.words):
            c.put_active(row + word, values[:, word])
    elif shape.into_half:
        c.put_active(row, into_half(values, is_signed=shape.is_signed, upper=shape.upper))
    else:
        c.put_active(row, widened(values, is_signed=shape.is_signed))


def stored_bytes(c: Convoy, row: int, shape: AccessShape) -> Array:
    data = c.active_rows(row, shape.words).view(U8)
    start = 2 if shape.upper else 0
    return data[:, start : start + shape.size]


def _store(draft: Draft, address: Reader, source: Operand, shape: AccessShape, is_flat: bool) -> Execute:
    row, instruction = source.row, draft.instruction
    draft.vector_reads += range(row, row + shape.words)
    draft.held_data = tuple(range(row, row + shape.words)) if shape.words > 2 else ()
    draft.use_part(row, shape.size, upper=shape.upper)

    def execute(c: Convoy) -> None:
        addresses, waves, data = c.active(address(c)), c.active_waves, stored_bytes(c, row, shape)
        if is_flat and _is_shared(c, draft, addresses):
            store_shared(c, instruction, addresses & MASK32, data)
        else:
            store(c, instruction, addresses, waves, data)

    return execute


def _is_shared(c: Convoy, draft: Draft, addresses: Array) -> bool:
    """Whether flat addresses mean shared memory; those of one instruction must agree."""
    upper = addresses >> 32
    if (upper == PRIVATE_BASE).any():
        raise unsupported(draft.instruction, "flat access to private memory is not emulated")
    in_shared = upper == SHARED_BASE
    if in_shared.any() and not in_shared.all():
        raise unsupported(draft.instruction, "its lanes mean shared and global memory at once")
    if c.machine.checking and not in_shared.any():
        c.machine.shared.remember(c.members, NO_ACCESS, direct=False)  # lgkmcnt counts it all the same
    return bool(in_shared.any())


# -- private memory ----------------------------------------------------------------------------------------------------


def _scratch(draft: Draft, name: str) -> Execute:
    loads = name.startswith("load_")
    shape, operands = shape_of(draft, name.split("_", 1)[1]), draft.operands
    target, vector = (operands[0], operands[1]) if loads else (operands[1], operands[0])
    scalar, row, instruction = operands[2] if len(operands) > 2 else None, target.row, draft.instruction
    index = draft.source(vector, "u") if vector.kind == "vector" else None
    base = draft.scalar_source(scalar, 32) if scalar is not None and scalar.kind == "scalar" else None
    (draft.vector_writes if loads else draft.vector_reads).extend(range(row, row + shape.words))
    draft.traffic, offset = Traffic(("vm",), "vector"), instruction.integer("offset")
    if index is None:
        by = scalar.row if base and scalar else None
        draft.private = Private(loads, tuple(range(row, row + shape.words)), offset, shape.size, by)

    def places(c: Convoy) -> Array:
        at = np.full((c.count, LANES), offset, I64)
        at += index(c).astype(I64) if index else 0
        at += base(c).astype(I64)[:, None] if base else 0
        return at

    def execute(c: Convoy) -> None:
        memory, at = c.machine.scratch, c.active(places(c))
        waves, lanes = c.active_waves, c.active(np.arange(LANES)[None, :])
        outside = (at < 0) | (at + shape.size > memory.shape[2])
        if outside.any():
            lane = int(np.argmax(outside))
            what = f"byte {int(at[lane])} of {memory.shape[2]} bytes of private memory"
            c.report("out of bounds", instruction, int(waves[lane]), what, "the kernel's metadata says too little")
            at = np.where(outside, 0, at)
        where = (waves[:, None], lanes[:, None], at[:, None] + np.arange(shape.size))
        if loads:
            values = np.ascontiguousarray(memory[where])
            put_loaded(c, row, shape, values.view(U32) if shape.size >= 4 else values)
        else:
            memory[where] = stored_bytes(c, row, shape)

    return execute


# -- buffers -----------------------------------------------------------------------------------------------------------


class LaneAddresses(NamedTuple):
    """Addresses per lane, their offset into the buffer, and how far the buffer reaches."""

    addresses: Array
    offsets: Array
    limit: Array
    indexed: Array | None

    def inside(self, size: int) -> Array:
        """Which lanes find `size` bytes in the buffer."""
        if self.indexed is not None:
            return self.indexed
        inside: Array = self.offsets + size <= self.limit
        return inside


def build_buffer(draft: Draft) -> Execute | None:
    """buffer_*: addresses from a descriptor; lanes outside of it read zeros and store nothing."""
    name = draft.instruction.mnemonic.removeprefix("buffer_")
    if name.startswith(("wbl2", "inv", "wbinvl1")):
        return lambda c: None
    draft.unit, draft.traffic = "memory", Traffic(("vm",), "vector")
    direct = "lds" in draft.modifiers
    data = None if direct else draft.operands[0]
    places = _buffer_places(draft, *draft.operands[0 if direct else 1 :][:3])
    if name.startswith("atomic_"):
        assert data is not None
        size = 8 if name.endswith(("_x2", "_f64")) else 4
        return build_atomic(draft, name.removeprefix("atomic_"), _lanes_inside(places, size), data,
                            data if _returns(draft) else None)  # fmt: skip
    shape = shape_of(draft, name.split("_", 1)[1])
    if direct or data is None:
        return build_direct(draft, shape.size, _lanes_inside(places, shape.size))
    rows = range(data.row, data.row + shape.words)
    if name.startswith("load_"):
        draft.vector_writes += rows
        return _buffer_load(draft, places, data.row, shape)
    draft.vector_reads += rows
    if shape.words > 2 and draft.operands[3].kind != "scalar":
        draft.held_data = tuple(rows)
    return _buffer_store(draft, places, data.row, shape)


def _buffer_places(
    draft: Draft, vector: Operand, descriptor: Operand, scalar: Operand
) -> Callable[[Convoy], LaneAddresses]:
    offset, row = draft.instruction.integer("offset"), descriptor.row
    by_offset, by_index = "offen" in draft.modifiers, "idxen" in draft.modifiers
    draft.scalar_reads += range(row, row + 4)
    uniform = draft.scalar_source(scalar, 32)
    index = draft.source(vector, "u") if by_index else None
    lane_offset = draft.source(Operand("", "vector", vector.row + by_index), "u") if by_offset else None

    def places(c: Convoy) -> LaneAddresses:
        words = c.su[row : row + 3, c.sel].astype(I64)
        if (words[1] >> 31).any():
            raise unsupported(draft.instruction, "swizzled buffers are not emulated")
        base, stride = words[0] | (words[1] & 0xFFFF) << 32, (words[1] >> 16) & 0x3FFF
        moved = uniform(c).astype(I64)
        # The two offsets of a lane are added in 32 bits; the scalar one is added, and all compared, in more.
        within = np.full((1, 1), offset, I64) if lane_offset is None else (lane_offset(c) + U32(offset)).astype(I64)
        total, indexed = (base + moved)[:, None] + within, None
        if index is not None:
            number = index(c).astype(I64)
            total = total + number * stride[:, None]
            indexed = c.active(number < words[2][:, None]) if stride.any() else None
        return LaneAddresses(c.active(total), c.active(within + moved[:, None]), c.active(words[2][:, None]), indexed)

    return places


def _lanes_inside(
    places: Callable[[Convoy], LaneAddresses], size: int
) -> Callable[[Convoy], tuple[Array, Array, Array]]:
    """Return the lanes of an access that is either whole inside its bounds or dropped."""

    def lanes(c: Convoy) -> tuple[Array, Array, Array]:
        found = places(c)
        inside = np.flatnonzero(found.inside(size))
        return found.addresses[inside], c.active_waves[inside], inside

    return lanes


def _buffer_load(draft: Draft, places: Callable[[Convoy], LaneAddresses], row: int, shape: AccessShape) -> Execute:
    instruction, piece = draft.instruction, min(shape.size, 4)

    def execute(c: Convoy) -> None:
        found, waves = places(c), c.active_waves
        if found.inside(shape.size).all():
            put_loaded(c, row, shape, load(c, instruction, found.addresses, waves, shape.size))
            return
        values = np.zeros((len(waves), shape.words), U32) if piece == 4 else np.zeros((len(waves), piece), U8)
        for word in range(shape.words):
            inside = found.inside(4 * word + piece)
            part = load(c, instruction, found.addresses[inside] + 4 * word, waves[inside], piece)
            values[inside, word : word + part.shape[1]] = part
        put_loaded(c, row, shape, values)

    return execute


def _buffer_store(draft: Draft, places: Callable[[Convoy], LaneAddresses], row: int, shape: AccessShape) -> Execute:
    instruction, piece = draft.instruction, min(shape.size, 4)
    draft.use_part(row, shape.size, upper=shape.upper)

    def execute(c: Convoy) -> None:
        found, waves, data = places(c), c.active_waves, stored_bytes(c, row, shape)
        if found.inside(shape.size).all():
            store(c, instruction, found.addresses, waves, data)
            return
        for start in range(0, shape.size, piece):
            inside = found.inside(start + piece)
            store(
                c, instruction, found.addresses[inside] + start, waves[inside], data[inside][:, start : start + piece]
            )

    return execute
