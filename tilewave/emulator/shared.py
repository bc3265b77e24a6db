"""Shared-memory instructions: reads, writes, atomics, and lanes that pass values to each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from tilewave.emulator.access import into_half, widened
from tilewave.emulator.atomics import Change, change, change_in_turn, compare_and_swap, put_found
from tilewave.emulator.instruction import Instruction
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.numbers import I64, U8, U16, U32, Array
from tilewave.emulator.shared_state import SEVERAL, Conflict, TouchedGranules
from tilewave.emulator.step import Draft, Execute, Traffic
from tilewave.emulator.swizzle import swizzled_lanes

LANE = np.arange(LANES)
Match = re.Match[str]


def build_shared(draft: Draft) -> Execute | None:
    """The meaning of a ds_* instruction; None where there is none."""
    name = draft.instruction.mnemonic.removeprefix("ds_")
    draft.unit, draft.traffic = "memory", Traffic(("lg",), "shared", accesses=1)
    for pattern, build in FAMILIES:
        if found := pattern.fullmatch(name):
            return build(draft, found)
    return None


# -- what is said of accesses that go wrong ----------------------------------------------------------------------------


def report_race(
    c: Convoy, instruction: Instruction, waves: Array, verb: str, conflicts: Sequence[Conflict | None]
) -> None:
    """The first is a race with a write, the second one with a read."""
    for conflict, did in zip(conflicts, ("written", "read"), strict=False):
        if conflict is None:
            continue
        other = "other waves" if conflict.other == SEVERAL else f"wave {conflict.other}"
        what = f"{verb} byte {conflict.byte} of shared memory, {did} by {other} since the last barrier"
        remedy = "s_waitcnt lgkmcnt(0) and s_barrier must be between them"
        c.report("shared-memory race", instruction, int(waves[conflict.lane]), what, remedy)


def _places(c: Convoy, instruction: Instruction, at: Array, waves: Array, size: int) -> tuple[Array, Array | None]:
    """Offsets into the bytes of all workgroups, and which lanes are inside, if not all are."""
    shared = c.machine.shared
    if c.machine.checking and size > 1 and (at & (min(size, 4) - 1)).any():
        lane = int(np.argmax((at & (min(size, 4) - 1)) != 0))
        what = f"{size} bytes at byte {int(at[lane])} of shared memory"
        remedy = f"its address must be divisible by {min(size, 4)}"
        c.report("misaligned access", instruction, int(waves[lane]), what, remedy)
    places = at + shared.base_of[waves]
    if not len(at) or int(at.max()) + size <= shared.size:
        return places, None
    inside = at + size <= shared.size
    lane = int(np.argmin(inside))
    what = f"{size} bytes at byte {int(at[lane])} of {shared.size} bytes of shared memory"
    remedy = "the kernel asks for too little of it, or the address is wrong"
    c.report("out of bounds", instruction, int(waves[lane]), what, remedy)
    return np.where(inside, places, shared.base_of[waves]), inside


def load_shared(c: Convoy, instruction: Instruction, at: Array, size: int) -> Array:
    """Bytes or, from four on, words of the lanes that are on, checked."""
    shared, waves = c.machine.shared, c.active_waves
    places, inside = _places(c, instruction, at, waves, size)
    if c.machine.checking:
        _check_read(c, instruction, places if inside is None else places[inside],
                    waves if inside is None else waves[inside], size)  # fmt: skip
    if size == 16 and not (places & 15).any():
        values = shared.quads[places >> 4]
    elif size >= 4 and not (places & 3).any():
        values = shared.words[(places >> 2)[:, None] + np.arange(size // 4)]
    else:
        values = shared.bytes[places[:, None] + np.arange(size)]
        values = values.view(U32) if size >= 4 else values
    result: Array = values if inside is None else np.where(inside[:, None], values, values.dtype.type(0))
    return result


def _check_read(c: Convoy, instruction: Instruction, places: Array, waves: Array, size: int) -> None:
    shared = c.machine.shared
    granules = shared.granules(places, size)
    race, unwritten, late = shared.read(granules, waves)
    shared.remember(c.members, TouchedGranules(granules, waves, "read"), direct=False)
    report_race(c, instruction, waves, "reads", [race])
    if unwritten is not None:
        what = f"reads byte {unwritten.byte} of shared memory, which was never written"
        c.report("unwritten shared memory", instruction, int(waves[unwritten.lane]), what, "write it first")
    if late is not None:
        what = f"reads byte {late.byte} of shared memory before the direct load that writes it has arrived"
        c.report("missing wait", instruction, int(waves[late.lane]), what, "s_waitcnt vmcnt(…) must be between them")


def store_shared(c: Convoy, instruction: Instruction, at: Array, data: Array) -> None:
    shared, waves, size = c.machine.shared, c.active_waves, data.shape[1]
    places, inside = _places(c, instruction, at, waves, size)
    if inside is not None:
        places, data, waves = places[inside], data[inside], waves[inside]
    if c.machine.checking:
        granules = shared.granules(places, size)
        report_race(c, instruction, waves, "overwrites", shared.write(granules, waves))
        shared.remember(c.members, TouchedGranules(granules, waves, "write"), direct=False)
    if size % 4 == 0 and not (places & 3).any():
        shared.words[(places >> 2)[:, None] + np.arange(size // 4)] = np.ascontiguousarray(data).view(U32)
    else:
        shared.bytes[places[:, None] + np.arange(size)] = data


def _address(draft: Draft, index: int) -> Callable[[Convoy, int], Array]:
    """Return a function for each lane's address; base + offset wraps at 32 bits, so that a base may be negative."""
    read = draft.source(draft.operands[index], "u")
    return lambda c, offset: (c.active(read(c)) + U32(offset)).astype(I64)


# -- reads and writes --------------------------------------------------------------------------------------------------


def _plain(draft: Draft, found: Match) -> Execute:
    """ds_read_* and ds_write_*."""
    size, is_signed, to_half, upper = int(found[3]) // 8, found[2] == "i", "_d16" in found[0], found[0].endswith("hi")
    words, offset, instruction = max(1, size // 4), draft.instruction.integer("offset"), draft.instruction
    if found[1] == "write":
        address, row = _address(draft, 0), draft.operands[1].row
        draft.vector_reads += range(row, row + words)
        draft.use_part(row, size, upper=upper)
        start = 2 if upper else 0

        def write(c: Convoy) -> None:
            data = c.active_rows(row, words).view(U8)
            store_shared(c, instruction, address(c, offset), data[:, start : start + size])

        return write
    address, row = _address(draft, 1), draft.operands[0].row
    draft.vector_writes += range(row, row + words)

    def read(c: Convoy) -> None:
        values = load_shared(c, instruction, address(c, offset), size)
        if size >= 4:
            for word in range(words):
                c.put_active(row + word, values[:, word])
        elif to_half:
            c.put_active(row, into_half(values, is_signed=is_signed, upper=upper))
        else:
            c.put_active(row, widened(values, is_signed=is_signed))

    return read


def _double(draft: Draft, found: Match) -> Execute:
    """ds_read2_* and ds_write2_*: two places per lane."""
    draft.traffic = Traffic(("lg",), "shared", accesses=2)
    words = int(found[3]) // 32
    unit = 4 * words * (64 if found[2] else 1)
    instruction, operands = draft.instruction, draft.operands
    first, second = instruction.integer("offset0") * unit, instruction.integer("offset1") * unit
    if found[1] == "write":
        address, rows = _address(draft, 0), (operands[1].row, operands[2].row)
        for row in rows:
            draft.vector_reads += range(row, row + words)

        def write(c: Convoy) -> None:
            for row, offset in zip(rows, (first, second), strict=True):
                store_shared(c, instruction, address(c, offset), c.active_rows(row, words).view(U8))

        return write
    address, row = _address(draft, 1), operands[0].row
    draft.vector_writes += range(row, row + 2 * words)

    def read(c: Convoy) -> None:
        places = address(c, first), address(c, second)  # the first load may overwrite the register that says where
        for start, at in zip((row, row + words), places, strict=True):
            values = load_shared(c, instruction, at, 4 * words)
            for word in range(words):
                c.put_active(start + word, values[:, word])

    return read


def _transposed(draft: Draft, found: Match) -> Execute:
    """16 lanes fetch 64 bits each, and the block of elements comes back transposed."""
    bits, row, instruction = int(found[1]), draft.operands[0].row, draft.instruction
    address, offset = _address(draft, 1), instruction.integer("offset")
    draft.vector_writes += [row, row + 1]
    dtype, each = (U16, 4) if bits == 16 else (U8, 8)

    def execute(c: Convoy) -> None:
        raw = np.zeros((c.count, LANES, 2), U32)
        raw[c.on] = load_shared(c, instruction, address(c, offset), 8)
        block = raw.view(dtype).reshape(c.count, 4, each, 16)
        transposed = np.ascontiguousarray(block.transpose(0, 1, 3, 2)).reshape(c.count, LANES, each).view(U32)
        for word in range(2):
            c.put(c.vu, row + word, transposed[:, :, word])

    return execute


# -- lanes that pass values to each other, through the unit but not through memory -------------------------------------


def _without_memory(draft: Draft) -> None:
    draft.traffic = Traffic(("lg",), "shared")


def _permute(draft: Draft, found: Match) -> Execute:
    _without_memory(draft)
    operands, offset = draft.operands, U32(draft.instruction.integer("offset"))
    places, values, row = draft.source(operands[1], "u"), draft.source(operands[2], "u"), operands[0].row
    draft.vector_writes.append(row)

    def execute(c: Convoy) -> None:
        lanes = (((places(c) + offset) >> U32(2)) & U32(63)).astype(I64)
        given = values(c).copy()
        if found[1]:
            taken = np.where(np.take_along_axis(c.on, lanes, 1), np.take_along_axis(given, lanes, 1), U32(0))
        else:
            taken = np.zeros((c.count, LANES), U32)
            waves, sources = np.nonzero(c.on)
            taken[waves, lanes[waves, sources]] = given[waves, sources]
        c.put(c.vu, row, taken)

    return execute


def _swizzle(draft: Draft, found: Match) -> Execute:
    _without_memory(draft)
    lanes, row = swizzled_lanes(draft.instruction), draft.operands[0].row
    values = draft.source(draft.operands[1], "u")
    draft.vector_writes.append(row)

    def execute(c: Convoy) -> None:
        given = values(c).copy()
        c.put(c.vu, row, np.where(c.on[:, lanes], given[:, lanes], U32(0)))

    return execute


def _nop(draft: Draft, found: Match) -> Execute:
    _without_memory(draft)
    return lambda c: None


# -- atomics -----------------------------------------------------------------------------------------------------------


def _atomic(draft: Draft, found: Match) -> Execute:
    operation, type_name, words = found[1], found[3], 2 if found[3].endswith("64") else 1
    result = draft.operands[0] if found[2] else None
    rest = draft.operands[1:] if result else draft.operands
    address = _address(draft, 1 if result else 0)
    for operand in rest[1:]:
        draft.vector_reads += range(operand.row, operand.row + words)
    if result:
        draft.vector_writes += range(result.row, result.row + words)
    apply: Change = (
        (lambda old, expected, new: compare_and_swap(old, new, expected))
        if operation == "cmpst"
        else change(operation, type_name)
    )
    instruction, offset, rows = draft.instruction, draft.instruction.integer("offset"), [o.row for o in rest[1:]]

    def execute(c: Convoy) -> None:
        shared, waves = c.machine.shared, c.active_waves
        places, inside = _places(c, instruction, address(c, offset), waves, 4 * words)
        if c.machine.checking:
            granules = shared.granules(places, 4 * words)
            *races, unwritten = shared.touch(granules, waves)
            shared.remember(c.members, TouchedGranules(granules, waves, "change"), direct=False)
            report_race(c, instruction, waves, "changes", races)
            if unwritten is not None:
                what = f"changes byte {unwritten.byte} of shared memory, which was never written"
                c.report("unwritten shared memory", instruction, int(waves[unwritten.lane]), what, "write it first")
        given = np.concatenate([c.active_rows(row, words) for row in rows], axis=1)
        every = np.ones(len(places), bool) if inside is None else inside
        before = change_in_turn(shared.words, places >> 2, every, given, words, apply)
        if result is not None:
            put_found(c, result.row, before, np.arange(len(places)))

    return execute


FAMILIES: tuple[tuple[re.Pattern[str], Callable[[Draft, Match], Execute]], ...] = (
    (re.compile(r"(read|write)_([bui])(8|16|32|64|96|128)(?:_d16)?(?:_hi)?"), _plain),
    (re.compile(r"(read|write)2(st64)?_b(32|64)"), _double),
    (re.compile(r"read_b64_tr_b(16|8)"), _transposed),
    (re.compile(r"(b)?permute_b32"), _permute),
    (re.compile(r"swizzle_b32"), _swizzle),
    (re.compile(r"nop"), _nop),
    (
        re.compile(
            r"(add|sub|min|max|and|or|xor|inc|dec|wrxchg|cmpst|pk_add)(_rtn)?"
            r"_(u32|i32|b32|f32|f16|bf16|u64|b64|i64|f64)"
        ),
        _atomic,
    ),
)
