"""Atomic operations: what they leave in memory, lane after lane."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilewave.emulator.access import want_kept_after, word_offsets
from tilewave.emulator.instruction import Operand
from tilewave.emulator.machine import Convoy
from tilewave.emulator.numbers import F16, F32, F64, I32, I64, U16, U32, U64, Array, from_bfloat16, to_bfloat16
from tilewave.emulator.step import Draft, Execute, Reader, unsupported

Change = Callable[..., Array]
TYPES: dict[str, type[np.generic]] = {
    "u32": U32, "b32": U32, "i32": I32, "f32": F32, "u64": U64, "b64": U64, "i64": I64, "f64": F64,
}  # fmt: skip
CHANGES: dict[str, Change] = {
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "swap": lambda old, new: new,
    "wrxchg": lambda old, new: new,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}
NAME = re.compile(
    r"(pk_add|add|sub|smin|umin|smax|umax|min|max|and|or|xor|inc|dec|swap|cmpswap)"
    r"(?:_(f32|f64|f16|bf16|u32|i32))?(_x2)?"
)


def change(operation: str, type_name: str) -> Change:
    """The words that an operation leaves, from the words it found and those it was given."""
    if operation == "pk_add":
        if type_name == "f16":
            return lambda old, new: (old.view(F16) + new.view(F16)).view(U32)
        return lambda old, new: (
            to_bfloat16(from_bfloat16(old.view(U16)) + from_bfloat16(new.view(U16))).astype(U16).view(U32)
        )
    formula, dtype = CHANGES[operation], TYPES[type_name]
    return lambda old, new: np.ascontiguousarray(formula(old.view(dtype), new.view(dtype)).astype(dtype)).view(U32)


def compare_and_swap(old: Array, new: Array, expected: Array) -> Array:
    return new if (old == expected).all() else old


Lanes = Callable[[Convoy], tuple[Array, Array, Array]]
"""Addresses, waves, and positions among the lanes that are on."""


def build_atomic(draft: Draft, name: str, lanes: Lanes, data: Operand, result: Operand | None) -> Execute:
    """An atomic operation on global memory."""
    found = NAME.fullmatch(name)
    if not found:
        raise unsupported(draft.instruction, "this atomic operation is not known")
    operation, type_name = found[1], found[2]
    words = 2 if found[3] or type_name == "f64" else 1
    if type_name is None:
        type_name = ("i" if operation in ("smin", "smax") else "u") + str(32 * words)
    swaps = operation == "cmpswap"
    apply = compare_and_swap if swaps else change(re.sub("^[su](?=min|max)", "", operation), type_name)
    draft.vector_reads += range(data.row, data.row + words * (2 if swaps else 1))
    if result is not None:
        draft.vector_writes += range(result.row, result.row + words)
    instruction = draft.instruction

    def execute(c: Convoy) -> None:
        addresses, waves, positions = lanes(c)
        if not len(addresses):
            return
        places, inside = word_offsets(c, instruction, addresses, waves, 4 * words)
        given = c.active_rows(data.row, words * (2 if swaps else 1))[positions]
        found = change_in_turn(c.machine.memory.words, places, inside, given, words, apply)
        want_kept_after(c, instruction, waves)
        if result is not None:
            put_found(c, result.row, found, positions)

    return execute


def change_in_turn(memory: Array, places: Array, inside: Array, given: Array, words: int, apply: Change) -> Array:
    """Change memory lane by lane, and return what each lane found there."""
    found = np.zeros((len(places), words), U32)
    for lane in np.flatnonzero(inside).tolist():
        at = int(places[lane])
        found[lane] = memory[at : at + words]
        pieces = [given[lane, start : start + words].copy() for start in range(0, given.shape[1], words)]
        memory[at : at + words] = apply(found[lane].copy(), *pieces)
    return found


def put_found(c: Convoy, row: int, found: Array, positions: Array) -> None:
    for word in range(found.shape[1]):
        whole = c.active(c.vu[row + word, c.sel]).copy()
        whole[positions] = found[:, word]
        c.put_active(row + word, whole)


def all_lanes(read: Reader) -> Lanes:
    """Every lane that is on takes part."""

    def lanes(c: Convoy) -> tuple[Array, Array, Array]:
        addresses = c.active(read(c))
        return addresses, c.active_waves, np.arange(len(addresses))

    return lanes
