"""wgmma: a group of four waves multiplies tiles where they stand in shared memory.

An operand is named by a descriptor of 64 bits: its address / 16, distances / 16, and how its chunks change places.

| | along the depth | in panels along M or N, 16-bit dtypes only |
|---|---|---|
| one distance | ignored | from panel to panel |
| the other | 8 rows | 8 steps of the depth, a row each |
| the next instruction | 32 bytes along the rows | 16 rows down |

Source: NVIDIA, "PTX ISA", chapter "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.backend.nvidia.inline_ptx import asm_on
from tilewave.errors import TargetError
from tilewave.lower.gpu.asynchronous_target import SharedProduct, SharedRows
from tilewave.lower.llvm import LlvmFunction

STEP_BYTES = 32
"""The depth of one instruction."""
BLOCK_ROWS, UNIT = 64, 16
SWIZZLES = {128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Spelling:
    """How an instruction names an operand's dtype, and what it wants to hear behind `add to the sums`."""

    dtype: str
    bytes: int
    tail: str
    ignored_bits: int = 0
    """The last ones of the operand, which it takes for 0."""
    turns: bool = False
    """Whether it also hears which operands lie in panels."""


SPELLINGS = {
    "f16": Spelling("f16", 2, ", 1, 1", turns=True),
    "bf16": Spelling("bf16", 2, ", 1, 1", turns=True),
    "f32": Spelling("tf32", 4, ", 1, 1", 13),
    "f8e4m3fn": Spelling("e4m3", 1, ", 1, 1"),
    "f8e5m2": Spelling("e5m2", 1, ", 1, 1"),
    "i8": Spelling("s8", 1, ""),
}


def multiply(f: LlvmFunction, product: SharedProduct) -> list[str]:
    """All of a block's depth in one piece of assembly, so that nothing touches the sums meanwhile."""
    a, b = SPELLINGS[product.a.dtype], SPELLINGS[product.b.dtype]
    if product.ignored_bits != a.ignored_bits:
        raise TargetError(f"wgmma ignores {a.ignored_bits} bits of {product.a.dtype}, not {product.ignored_bits}")
    kind, sums = ("i32", "s32") if a.dtype == "s8" else ("float", "f32")
    count = len(product.sums)
    word = f"m64n{product.columns}k{STEP_BYTES // a.bytes}.{sums}.{a.dtype}.{b.dtype}"
    per_block = product.columns // 2
    tail = a.tail + "".join(f", {int(rows.panel_bytes > 0)}" for rows in (product.a, product.b) if a.turns)
    lines = ["{", ".reg .b64 da, db;", ".reg .pred p;", "wgmma.fence.sync.aligned;"]
    if product.adds:
        lines.append(f"setp.ne.b32 p, ${2 * count + 2}, 0;")
    for step in range(product.depth * a.bytes // STEP_BYTES):
        for block in range(product.rows // BLOCK_ROWS):
            below = _below(product.a, block * BLOCK_ROWS, a.bytes)
            deeper = [_deeper(rows, step, a.bytes) for rows in (product.a, product.b)]
            adds = "p" if product.adds and step == 0 else "1"
            registers = ", ".join(f"${i}" for i in range(block * per_block, (block + 1) * per_block))
            lines += [
                f"add.s64 da, ${2 * count}, {(deeper[0] + below) // UNIT};",
                f"add.s64 db, ${2 * count + 1}, {deeper[1] // UNIT};",
                f"wgmma.mma_async.sync.aligned.{word} {{{registers}}}, da, db, {adds}{tail};",
            ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", "}"]
    operands = [("i64", descriptor(f, rows)) for rows in (product.a, product.b)]
    operands += [("i32", product.adds)] if product.adds else []
    return asm_on(f, "\n".join(lines), [(kind, x) for x in product.sums], operands)


def _below(rows: SharedRows, count: int, size: int) -> int:
    """How many bytes further the operand's rows lie that come so many later."""
    if not rows.panel_bytes:
        return count * rows.row_bytes
    return count * size // rows.row_bytes * rows.panel_bytes


def _deeper(rows: SharedRows, step: int, size: int) -> int:
    """How many bytes further it goes on for an instruction that comes so many later."""
    return step * STEP_BYTES * (rows.row_bytes // size if rows.panel_bytes else 1)


def descriptor(f: LlvmFunction, rows: SharedRows) -> str:
    """Of an operand that begins with a whole number of 8 rows."""
    across = rows.panel_bytes // UNIT or 1
    fixed = SWIZZLES[rows.row_bytes] << 62 | (8 * rows.row_bytes // UNIT) << 32 | across << 16
    low = f.value(f"and i32 {rows.address}, {(1 << 18) - 1}")
    low = f.value(f"lshr i32 {low}, 4")
    wide = f.value(f"zext i32 {low} to i64")
    return f.value(f"or i64 {wide}, {fixed - (1 << 64) if fixed >> 63 else fixed}")
