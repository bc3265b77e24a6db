"""What an instruction of a loop occupies on its compute unit, read from its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from tilewave.cycles.facts import ComputeUnit
from tilewave.emulator.instruction import Instruction, Operand
from tilewave.emulator.machine import LANES
from tilewave.emulator.matrix import shape_of
from tilewave.emulator.statistics import Class, access_width, classify
from tilewave.emulator.waits import allowed_outstanding
from tilewave.records import dataclass

Kind = Literal["matrix", "vector", "scalar", "shared", "global", "wait", "barrier", "nop", "priority", "branch"]
KINDS: dict[Class, Kind] = {
    "matrix": "matrix",
    "accumulator move": "vector",
    "vector": "vector",
    "shared read": "shared",
    "shared write": "shared",
    "shared other": "shared",
    "global load": "global",
    "direct load": "global",
    "global store": "global",
    "global atomic": "global",
    "scratch": "global",
    "scalar memory": "scalar",
    "wait": "wait",
    "barrier": "barrier",
    "nop": "nop",
    "priority": "priority",
    "branch": "branch",
    "scalar": "scalar",
    "other": "scalar",
}
TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
UNKNOWN_PASSES = 8
"""Passes of a matrix instruction that the emulator's table does not list."""
SLEEP_SLOTS = 16
"""Slots of one unit of s_sleep, 64 cycles."""


@dataclass(frozen=True)
class TimedInstruction:
    """One instruction of a loop: what it occupies, and whose results it waits for."""

    instruction: Instruction
    kind: Kind
    slots: int = 1
    """Slots of the matrix or vector unit, or of waiting."""
    cycles: float = 0
    """Cycles of LDS, or of the L1 cache for an access of global memory."""
    loaded_cycles: float = 0
    """Cycles in which a global load's data arrive; 0: a store."""
    direct_cycles: float = 0
    """Cycles of LDS for the data of a global load that is written there."""
    is_write: bool = False
    loads_scalars: bool = False
    vector_count: int | None = None
    """The vmcnt to wait for; the next field is the lgkmcnt."""
    other_count: int | None = None
    priority: int = 0
    producers: tuple[int, ...] = ()
    """Positions of the instructions that compute its operands, of those that take longer than a slot."""
    chained: tuple[int, ...] = ()
    """Positions of the matrix instructions that compute its accumulator."""

    @property
    def is_transcendental(self) -> bool:
        """Whether it is an exponential, a logarithm, a root or a reciprocal, which take several slots."""
        return self.kind == "vector" and self.slots > 1


def timed(
    body: Sequence[Instruction], unit: ComputeUnit, conflicts: Mapping[int, float] | None = None
) -> tuple[TimedInstruction, ...]:
    """Return the loop's instructions in the order of an iteration, each with what it occupies.

    `conflicts` are cycles that LDS loses to bank conflicts, by an instruction's position in `body`.
    """
    lost = conflicts or {}
    return _with_producers([_occupied(one, unit, lost.get(at, 0)) for at, one in enumerate(body)])


def _occupied(instruction: Instruction, unit: ComputeUnit, conflict_cycles: float) -> TimedInstruction:
    kind = KINDS[classify(instruction)]
    match kind:
        case "matrix":
            return TimedInstruction(instruction, kind, _passes(instruction))
        case "vector":
            is_slow = TRANSCENDENTAL.match(instruction.mnemonic) is not None
            return TimedInstruction(instruction, kind, unit.transcendental_slots if is_slow else 1)
        case "shared":
            return _shared(instruction, unit, conflict_cycles)
        case "global":
            return _global(instruction, unit)
        case "wait":
            vector, other = allowed_outstanding(instruction)
            return TimedInstruction(instruction, kind, vector_count=vector, other_count=other)
        case "nop":
            return TimedInstruction(instruction, kind, _first_number(instruction) + 1)
        case "priority":
            return TimedInstruction(instruction, kind, priority=_first_number(instruction))
        case "scalar" if instruction.mnemonic.startswith("s_sleep"):
            return TimedInstruction(instruction, "nop", SLEEP_SLOTS * max(1, _first_number(instruction)))
        case _:
            return TimedInstruction(instruction, kind, loads_scalars=classify(instruction) == "scalar memory")


def _passes(instruction: Instruction) -> int:
    try:
        shape = shape_of(instruction.mnemonic, instruction.integer("cbsz"), instruction.integer("blgp"))
    except (IndexError, ValueError):  # a format that does not exist
        shape = None
    return shape.passes if shape is not None else UNKNOWN_PASSES


def _shared(instruction: Instruction, unit: ComputeUnit, conflict_cycles: float) -> TimedInstruction:
    kind = classify(instruction)
    size, accesses = access_width(instruction) if kind != "shared other" else (4, 1)
    is_write = kind == "shared write"
    rate = unit.shared_write_bytes if is_write else unit.shared_read_bytes
    cycles = LANES * size * accesses / rate + conflict_cycles
    return TimedInstruction(instruction, "shared", cycles=cycles, is_write=is_write)


def _global(instruction: Instruction, unit: ComputeUnit) -> TimedInstruction:
    moved = LANES * access_width(instruction)[0]
    is_write = "store" in instruction.mnemonic
    is_direct = classify(instruction) == "direct load"
    return TimedInstruction(
        instruction,
        "global",
        cycles=moved / unit.l1_bytes,
        loaded_cycles=0 if is_write else moved / unit.load_bytes,
        direct_cycles=moved / unit.shared_write_bytes if is_direct else 0,
        is_write=is_write,
    )


def _first_number(instruction: Instruction) -> int:
    """Return the number that s_nop, s_sleep and s_setprio have, within what they can encode."""
    first = instruction.operands[0] if instruction.operands else None
    return min(127, max(0, int(first.number))) if first is not None and first.kind == "integer" else 0


# -- who waits for whose results ---------------------------------------------------------------------------------------


def _with_producers(body: Sequence[TimedInstruction]) -> tuple[TimedInstruction, ...]:
    """Go around the loop twice: an operand may come from the iteration before."""
    writer: dict[int, int | None] = {}
    for at, one in enumerate(body):
        writer.update(dict.fromkeys(_written(one), at if _is_slow(one) else None))
    found = []
    for at, one in enumerate(body):
        producers, chained = _last_writers(_read(one), writer), _last_writers(_accumulated(one), writer)
        found.append(TimedInstruction(**{**vars(one), "producers": producers, "chained": chained}))
        writer.update(dict.fromkeys(_written(one), at if _is_slow(one) else None))
    return tuple(found)


def _is_slow(one: TimedInstruction) -> bool:
    """Whether the next instruction of the wave could read its result too early."""
    return one.kind == "matrix" or one.is_transcendental


def _last_writers(rows: Sequence[int], writer: dict[int, int | None]) -> tuple[int, ...]:
    return tuple(sorted({at for row in rows if (at := writer.get(row)) is not None}))


def _rows(operands: Sequence[Operand]) -> tuple[int, ...]:
    return tuple(row for operand in operands if operand.kind == "vector" for row in operand.rows)


def _written(one: TimedInstruction) -> tuple[int, ...]:
    operands = one.instruction.operands
    if one.kind not in ("matrix", "vector"):
        return ()
    return _rows(operands[:2] if "swap" in one.instruction.mnemonic else operands[:1])


def _read(one: TimedInstruction) -> tuple[int, ...]:
    """Registers that are read, and those that are overwritten, whose earlier results must have arrived."""
    operands = one.instruction.operands
    return _rows(operands[1:3]) if one.kind == "matrix" else _rows(operands)


def _accumulated(one: TimedInstruction) -> tuple[int, ...]:
    return _rows(one.instruction.operands[3:4]) if one.kind == "matrix" else ()
