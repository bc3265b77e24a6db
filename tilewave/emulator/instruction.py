"""One machine instruction as its text says it: name, operands, modifiers, and where it came from."""

from __future__ import annotations

import re
from dataclasses import field
from functools import lru_cache
from typing import Literal

import numpy as np

from tilewave.errors import NOWHERE, Loc
from tilewave.records import dataclass

CODE_BASE = 0x6000_0000_0000
"""Address of a code object's bytes in the emulated address space."""
ACCUMULATORS = 256
"""Vector registers are numbered v0 = 0, …, a0 = 256, …"""
VCC, TRAP, M0, EXEC = 106, 108, 124, 126
FLAT_SCRATCH, XNACK_MASK = 102, 104
SPECIAL = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "m0": (M0, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "flat_scratch": (FLAT_SCRATCH, 2),
    "flat_scratch_lo": (FLAT_SCRATCH, 1),
    "flat_scratch_hi": (FLAT_SCRATCH + 1, 1),
    "xnack_mask": (XNACK_MASK, 2),
    "xnack_mask_lo": (XNACK_MASK, 1),
    "xnack_mask_hi": (XNACK_MASK + 1, 1),
}
FIRST_ROW = {"v": 0, "a": ACCUMULATORS, "s": 0, "ttmp": TRAP}
REGISTERS = {"v": 256, "a": 256, "s": VCC, "ttmp": 16}
REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d{1,4})|\[(\d{1,4})(?::(\d{1,4}))?\])")
NO_REGISTER = re.compile(r"(v|a|s|ttmp)(\d|\[)")
"""The beginning of a word that would be a register if there were so many."""
INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|0|[1-9]\d*)")
"""Other numbers that begin with 0 would be octal, which compilers do not write."""
FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
ONE_OVER_TWO_PI = 0.15915494309189532


@dataclass(frozen=True)
class Operand:
    """A register range, a number or a word, with the signs written around it."""

    text: str
    kind: Literal["vector", "scalar", "integer", "float", "word"]
    row: int = 0
    count: int = 1
    number: float = 0
    negated: bool = False
    absolute: bool = False
    extended: bool = False

    @property
    def is_constant(self) -> bool:
        return self.kind in ("integer", "float")

    @property
    def whole(self) -> int:
        """Return the operand's number; assert that it is an integer."""
        assert self.kind == "integer", f"{self.text} is no whole number"
        return int(self.number)

    @property
    def rows(self) -> range:
        return range(self.row, self.row + self.count)


@dataclass(frozen=True)
class Instruction:
    """One line of assembly, parsed; `target` is the position a branch leads to."""

    text: str
    mnemonic: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, str] = field(hash=False)
    line: int
    loc: Loc = NOWHERE
    target: int | None = None
    address: int = -1

    @property
    def place(self) -> str:
        """Where a person finds it: a line of assembly text, an address in a code object."""
        return f"line {self.line}" if self.address < 0 else f"address {self.address - CODE_BASE:#x}"

    def integer(self, modifier: str) -> int:
        """The value of a modifier such as `offset:16`; 0 where it is absent."""
        return int(self.modifiers.get(modifier, "0"), 0)

    def flags(self, modifier: str, absent: tuple[int, ...]) -> tuple[int, ...]:
        """The list of a modifier such as `op_sel:[0,1]`."""
        text = self.modifiers.get(modifier)
        return absent if text is None else tuple(int(x, 0) for x in text.strip("[]").split(","))


@lru_cache(maxsize=65536)
def split_text(text: str) -> tuple[str, tuple[Operand, ...], dict[str, str]]:
    """The name, the operands and the modifiers in an instruction's text."""
    mnemonic, _, rest = text.partition(" ")
    operands, modifiers = [], {}
    for part in _split(rest, ","):
        for at, token in enumerate(_split(part, " ")):
            if at == 0 and not _is_modifier(token):
                operands.append(parse_operand(token))
            else:
                name, _, value = token.partition(":")
                modifiers[name] = value
    return mnemonic, tuple(operands), modifiers


def _is_modifier(token: str) -> bool:
    return ":" in token and not re.match(r"[vas|\-]|ttmp|0x", token)


def _split(text: str, separator: str) -> list[str]:
    """Split outside of brackets."""
    parts, depth, current = [], 0, ""
    for char in text + separator:
        depth += (char in "[(") - (char in "])")
        if char == separator and depth == 0:
            if current.strip():
                parts.append(current.strip())
            current = ""
        else:
            current += char
    return parts


def parse_operand(text: str) -> Operand:
    """`-|v3|`, `s[0:3]`, `0x1f`, `neg(1.0)`, `vcc`, `off`."""
    body, negated, absolute, extended = text.strip(), False, False, False
    if wrapped := re.fullmatch(r"lit(?:64)?\((.*)\)", body):
        body = wrapped[1]
    if wrapped := re.fullmatch(r"sext\((.*)\)", body):
        extended, body = True, wrapped[1]
    if wrapped := re.fullmatch(r"-?neg\((.*)\)", body):
        negated, body = True, wrapped[1]
    if re.match(r"-[|vas(]", body):
        negated, body = True, body[1:]
    if wrapped := re.fullmatch(r"\|(.*)\||abs\((.*)\)", body):
        absolute, body = True, wrapped[1] or wrapped[2]
    plain = _plain_operand(text, body)
    return Operand(text, plain.kind, plain.row, plain.count, plain.number, negated, absolute, extended)


def _plain_operand(text: str, body: str) -> Operand:
    if found := REGISTER.fullmatch(body):
        low = int(found[2] or found[3])
        high = int(found[4]) if found[4] else low
        if not low <= high < REGISTERS[found[1]]:
            return Operand(body, "word")
        kind: Literal["vector", "scalar"] = "vector" if found[1] in "va" else "scalar"
        return Operand(text, kind, low + FIRST_ROW[found[1]], high - low + 1)
    if body in SPECIAL:
        row, count = SPECIAL[body]
        return Operand(text, "scalar", row, count)
    if INTEGER.fullmatch(body):
        return Operand(text, "integer", number=int(body, 0))
    if FLOAT.fullmatch(body):
        number = float(body)
        if abs(abs(number) - ONE_OVER_TWO_PI) < 1e-4:
            number = float(np.copysign(ONE_OVER_TWO_PI, number))
        return Operand(text, "float", number=number)
    return Operand(body, "word")


def register_name(row: int) -> str:
    """v7 or a7."""
    return f"v{row}" if row < ACCUMULATORS else f"a{row - ACCUMULATORS}"
