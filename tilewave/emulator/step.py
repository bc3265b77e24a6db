"""An instruction made ready to run: its meaning as a function, and what the checks must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

import numpy as np

from tilewave.emulator.chips import ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import Instruction, Operand
from tilewave.emulator.machine import Convoy
from tilewave.emulator.numbers import LETTERS, MASK32, MASK64, NARROW, U16, U32, U64, WIDE, Array, constant_bits
from tilewave.records import dataclass

Execute = Callable[[Convoy], None]
Reader = Callable[[Convoy], Array]
Writer = Callable[..., None]
ScalarWriter = Callable[[Convoy, Array], None]
Condition = Callable[[Convoy], Array]

Unit = Literal["scalar", "vector", "transcendental", "matrix", "memory"]
Counter = Literal["vm", "lg"]
SCALAR_ROWS = 512
SHARED_BASE, PRIVATE_BASE = 0x00010000, 0x00020000
"""The upper halves of flat addresses that mean shared and private memory."""
WORDS = {
    "off": 0,
    "null": 0,
    "src_shared_base": SHARED_BASE << 32,
    "src_shared_limit": (SHARED_BASE << 32) | MASK32,
    "src_private_base": PRIVATE_BASE << 32,
    "src_private_limit": (PRIVATE_BASE << 32) | MASK32,
}


@dataclass(frozen=True)
class Traffic:
    """A memory operation that runs asynchronously until the wave waits for it."""

    counters: tuple[Counter, ...]
    order: Literal["vector", "shared", "flat", "direct", "scalar"]
    """Operations of one kind complete in issue order; scalar loads complete in any order."""
    accesses: int = 0
    """How many accesses of shared memory it makes that races are looked for among."""


@dataclass(frozen=True)
class MatrixTiming:
    """What the wait-state rules ask of a matrix instruction."""

    passes: int
    a_and_b: tuple[int, ...]
    c: tuple[int, ...]
    d: tuple[int, ...]
    is_xdl: bool
    delay: int
    """Wait states that the newer chip adds."""
    is_double: bool


@dataclass(frozen=True)
class Early:
    """A register that must have been written so many wait states before; scalars from SCALAR_ROWS on."""

    row: int
    wait_states: int
    why: str


@dataclass(frozen=True)
class Private:
    """Registers spilled to private memory or reloaded from it, at an offset that is the same for every lane."""

    loads: bool
    rows: tuple[int, ...]
    offset: int
    size: int
    """Bytes."""
    base: int | None
    """The scalar register that is added to the offset."""


@dataclass(frozen=True, eq=False)
class ReadyInstruction:
    """One instruction, ready to run."""

    instruction: Instruction
    execute: Execute
    unit: Unit
    vector_reads: tuple[int, ...]
    vector_writes: tuple[int, ...]
    scalar_reads: tuple[int, ...]
    scalar_writes: tuple[int, ...]
    wait_states: int = 1
    traffic: Traffic | None = None
    waits: tuple[int | None, int | None] = (None, None)
    """For s_waitcnt: how many operations of vmcnt and of lgkmcnt may stay outstanding."""
    matrix: MatrixTiming | None = None
    early: tuple[Early, ...] = ()
    """Registers that it reads in a way that needs them early."""
    held_data: tuple[int, ...] = ()
    """Registers of a wide store, which reads them a little later."""
    shifts_result: bool = False
    """Whether the instruction writes a part of a register that is not the lowest."""
    flows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """For destinations that depend on only some of the operands: on which; scalar rows from SCALAR_ROWS on."""
    keeps_rest: bool = False
    """Whether the instruction writes a part of its destination and keeps the rest."""
    private: Private | None = None
    condition: Condition | None = None
    jump: Reader | None = None
    low_bits: Mapping[int, int] = field(default_factory=dict)
    """For registers of which only the lowest bits are used: how many."""
    moved_down: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """For destinations whose lowest bits are those of one register, shifted right: which, and by how many bits."""


def nothing(c: Convoy) -> None:
    """What an instruction does that only the checks look at."""


def unsupported(instruction: Instruction, why: str) -> UnsupportedCode:
    """What is said of an instruction without a meaning."""
    return UnsupportedCode(
        f"the emulator does not support: {instruction.text}",
        loc=instruction.loc,
        remedy=f"{instruction.place}; {why}",
    )


class Draft:
    """Puts a step together and notes what it reads and writes."""

    def __init__(self, instruction: Instruction, chip: ChipName) -> None:
        self.instruction, self.chip = instruction, chip
        self.operands, self.modifiers = instruction.operands, instruction.modifiers
        self.vector_reads: list[int] = []
        self.vector_writes: list[int] = []
        self.scalar_reads: list[int] = []
        self.scalar_writes: list[int] = []
        self.unit: Unit = "scalar"
        self.wait_states = 1
        self.traffic: Traffic | None = None
        self.waits: tuple[int | None, int | None] = (None, None)
        self.matrix: MatrixTiming | None = None
        self.early: list[Early] = []
        self.held_data: tuple[int, ...] = ()
        self.shifts_result = False
        self.flows: dict[int, tuple[int, ...]] = {}
        self.upper_reads: list[int] = []
        self.keeps_rest = False
        self.private: Private | None = None
        self.condition: Condition | None = None
        self.jump: Reader | None = None
        self.low_bits: dict[int, int] = {}
        self.moved_down: dict[int, tuple[int, int]] = {}

    def finish(self, execute: Execute) -> ReadyInstruction:
        return ReadyInstruction(
            self.instruction,
            execute,
            self.unit,
            tuple(dict.fromkeys(self.vector_reads)),
            tuple(dict.fromkeys(self.vector_writes)),
            tuple(dict.fromkeys(self.scalar_reads)),
            tuple(dict.fromkeys(self.scalar_writes)),
            self.wait_states,
            self.traffic,
            self.waits,
            self.matrix,
            tuple(self.early),
            self.held_data,
            self.shifts_result,
            self.flows,
            self.keeps_rest,
            self.private,
            self.condition,
            self.jump,
            {row: bits for row, bits in self.low_bits.items() if self.vector_reads.count(row) == 1},
            self.moved_down,
        )

    def split_by_halves(self) -> None:
        """The low half of the result depends on low halves alone."""
        rows = [*self.vector_reads, *(SCALAR_ROWS + row for row in self.scalar_reads)]
        self.flows[self.vector_writes[0]] = tuple(row for row in rows if row not in self.upper_reads)

    def follow_shift_down(self) -> None:
        """The upper half never depends on the lower one, nor the lower one where the shift is of a word or more."""
        by, pair = self.operands[1:3]
        if by.kind != "integer" or pair.is_constant:
            return
        low, high = (pair.row + half + (SCALAR_ROWS if pair.kind == "scalar" else 0) for half in range(2))
        target, bits = self.vector_writes[0], by.whole % 64
        self.flows[target + 1] = (high,)
        if bits < 32:
            self.moved_down[target] = (low, bits)
        else:
            self.flows[target] = (high,)

    def use_part(self, row: int, size: int, *, upper: bool) -> None:
        """Record that only `size` bytes of a register are stored, so that only these must have been written."""
        if size < 4 and not upper:
            self.low_bits[row] = 8 * size

    def follow_first(self) -> None:
        """Follow only the low half of a packed pair, because LLVM packs with any register at hand."""
        first = self.operands[1]
        row = first.row + (SCALAR_ROWS if first.kind == "scalar" else 0)
        self.flows[self.operands[0].row] = () if first.is_constant else (row,)

    # -- vector operands: [waves, 64], or [waves, 1] and [1, 1] where all lanes hold the same -------------------------

    def source(self, operand: Operand, letter: str) -> Reader:
        """Read an operand as the type that the letter names, with the signs written around it."""
        match operand.kind:
            case "vector":
                read = self._vector_source(operand.row, letter)
            case "scalar":
                read = self._scalar_as_vector(operand.row, letter)
            case "integer" | "float":
                read = _constant(operand, letter)
            case _:
                word, bits = self.scalar_source(operand, 64 if letter in WIDE else 32), U64 if letter in WIDE else U32
                dtype = LETTERS[letter]
                read = lambda c: word(c).astype(bits)[:, None].view(dtype)  # noqa: E731
        return signed_reader(read, operand) if letter in "fhF" else read

    def _vector_source(self, row: int, letter: str) -> Reader:
        self.vector_reads += range(row, row + (2 if letter in WIDE else 1))
        self.upper_reads += [row + 1] if letter in WIDE else []
        dtype = LETTERS[letter]
        match letter:
            case "u":
                return lambda c: c.vu[row, c.sel]
            case "f":
                return lambda c: c.vf[row, c.sel]
            case "i":
                return lambda c: c.vi[row, c.sel]
            case "h" | "s" | "w":
                return lambda c: c.vu[row, c.sel].astype(U16).view(dtype)
            case _:
                return lambda c: _joined(c.vu[row, c.sel], c.vu[row + 1, c.sel]).view(dtype)

    def _scalar_as_vector(self, row: int, letter: str) -> Reader:
        self.scalar_reads += range(row, row + (2 if letter in WIDE else 1))
        self.upper_reads += [SCALAR_ROWS + row + 1] if letter in WIDE else []
        dtype = LETTERS[letter]
        match letter:
            case "u":
                return lambda c: c.su[row, c.sel][:, None]
            case "f":
                return lambda c: c.sf[row, c.sel][:, None]
            case "i":
                return lambda c: c.si[row, c.sel][:, None]
            case "h" | "s" | "w":
                return lambda c: c.su[row, c.sel].astype(U16).view(dtype)[:, None]
            case _:
                return lambda c: c.scalar64(row).view(dtype)[:, None]

    def target(self, operand: Operand, letter: str, *, half: Literal["none", "low", "high"] = "none") -> Writer:
        """Write a vector register; with a half, 16 bits of it, and the others stay."""
        if operand.kind != "vector":
            raise unsupported(self.instruction, f"{operand.text} is no vector register")
        row = operand.row
        self.vector_writes += range(row, row + (2 if letter in WIDE else 1))
        if letter in "ufi":
            return _row_writer(row, letter)
        if letter in WIDE:
            return _pair_writer(row)
        if half != "none":
            self.vector_reads.append(row)
            self.keeps_rest = True
        return _half_writer(row, half)

    # -- scalar operands: [waves] of uint64 ---------------------------------------------------------------------------

    def scalar_source(self, operand: Operand, bits: int) -> Reader:
        row = operand.row
        match operand.kind:
            case "scalar":
                self.scalar_reads += range(row, row + bits // 32)
                return (lambda c: c.scalar32(row)) if bits == 32 else (lambda c: c.scalar64(row))
            case "integer" | "float":
                letter = "u" if bits == 32 else "F" if operand.kind == "float" else "U"
                pattern = constant_bits(operand.text, operand.number, operand.kind == "float", letter)
                value = np.array([pattern & (MASK32 if bits == 32 else MASK64)], U64)
                return lambda c: np.broadcast_to(value, c.count)
            case _:
                return self._word(operand.text, bits)

    def _word(self, text: str, bits: int) -> Reader:
        if text in WORDS:
            value = np.array([WORDS[text] if bits == 64 else WORDS[text] >> 32], U64)
            return lambda c: np.broadcast_to(value, c.count)
        match text.removeprefix("src_"):
            case "scc":
                return lambda c: c.scc.astype(U64)
            case "vccz":
                return lambda c: (c.scalar64(106) == 0).astype(U64)
            case "execz":
                return lambda c: (~c.any_on).astype(U64)
            case _:
                raise unsupported(self.instruction, f"the operand {text} is not known")

    def scalar_target(self, operand: Operand, bits: int) -> ScalarWriter:
        if operand.kind != "scalar":
            raise unsupported(self.instruction, f"{operand.text} is no scalar register")
        row = operand.row
        self.scalar_writes += range(row, row + bits // 32)
        return (lambda c, v: c.put_scalar32(row, v)) if bits == 32 else (lambda c, v: c.put_scalar64(row, v))


def signed_reader(read: Reader, operand: Operand) -> Reader:
    """The signs written around a floating-point operand."""
    if operand.absolute and operand.negated:
        return lambda c: -np.abs(read(c))
    if operand.absolute:
        return lambda c: np.abs(read(c))
    if operand.negated:
        return lambda c: -read(c)
    return read


def _joined(low: Array, high: Array) -> Array:
    joined: Array = low.astype(U64) | (high.astype(U64) << U64(32))
    return joined


def _constant(operand: Operand, letter: str) -> Reader:
    bits = constant_bits(operand.text, operand.number, operand.kind == "float", letter)
    dtype = LETTERS[letter]
    if letter in WIDE:
        value = np.array([[bits]], U64).view(dtype)
    elif letter in NARROW:
        value = np.array([[bits & 0xFFFF]], U16).view(dtype)
    else:
        value = np.array([[bits & MASK32]], U32).view(dtype)
    return lambda c: value


def _row_writer(row: int, letter: str) -> Writer:
    match letter:
        case "u":
            return lambda c, v, where=None: c.put(c.vu, row, v, where)
        case "f":
            return lambda c, v, where=None: c.put(c.vf, row, v, where)
        case _:
            return lambda c, v, where=None: c.put(c.vi, row, v, where)


def _pair_writer(row: int) -> Writer:
    def write(c: Convoy, value: Array, where: Array | None = None) -> None:
        bits = np.ascontiguousarray(value).view(U64)
        c.put(c.vu, row, bits.astype(U32), where)
        c.put(c.vu, row + 1, (bits >> U64(32)).astype(U32), where)

    return write


def _half_writer(row: int, half: Literal["none", "low", "high"]) -> Writer:
    def write(c: Convoy, value: Array, where: Array | None = None) -> None:
        bits = np.ascontiguousarray(value).view(U16).astype(U32)
        if half == "high":
            bits = (c.vu[row, c.sel] & U32(0xFFFF)) | (bits << U32(16))
        elif half == "low":
            bits = (c.vu[row, c.sel] & U32(0xFFFF0000)) | bits
        c.put(c.vu, row, bits, where)

    return write
