"""wgmma: a warpgroup of four waves multiplies tiles in shared memory.

An operand is given by a 64-bit descriptor: its address / 16, strides / 16, and its swizzle.

| | along the depth | transposed: along M or N, 16-bit dtypes only |
|---|---|---|
| leading byte offset | ignored | from panel to panel |
| stride byte offset | 8 rows | 8 steps of the depth, a row each |
| the next instruction | 32 bytes along the rows, or in the next panel | 16 rows down |

Source: NVIDIA, "PTX ISA", chapter "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewave.backend.nvidia.inline_ptx import asm_on
from tilewave.errors import TargetError
from tilewave.lower.gpu.asynchronous_target import SharedProduct, SharedRows
from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.records import dataclass

STEP_BYTES = 32
"""The depth of one instruction."""
BLOCK_ROWS, UNIT = 64, 16
"""Rows of one instruction's sums, and the bytes that addresses and offsets in a descriptor count in."""
HELD_DEPTH, HELD_REGISTERS = 16, 4
"""The depth of one instruction whose first operand is in registers, and the registers per lane."""
LEAST_WIDTH, MOST_WIDTHS = 16, 8
"""The fewest columns between two widths of a product, and the most widths that it is compiled for."""
WAIT = "wgmma.wait_group.sync.aligned {};"
NEVER_COMPUTED, PAUSE = "0x7fa00001", "@p nanosleep.u32 0;"
"""A signalling NaN, which arithmetic never returns; and what lanes that have it would execute."""
SWIZZLES = {128: 1, 64: 2, 32: 3}
"""The swizzle mode in bits 62 and 63 of a descriptor, by the bytes of a row."""


@dataclass(frozen=True)
class Spelling:
    """An instruction's name for an operand's dtype, and its arguments after scale-d."""

    dtype: str
    bytes: int
    tail: str
    ignored_bits: int = 0
    """The low bits of an operand that the instruction ignores."""
    turns: bool = False
    """Whether the instruction has arguments for transposed operands."""


SPELLINGS = {
    "f16": Spelling("f16", 2, ", 1, 1", turns=True),
    "bf16": Spelling("bf16", 2, ", 1, 1", turns=True),
    "f32": Spelling("tf32", 4, ", 1, 1", 13),
    "f8e4m3fn": Spelling("e4m3", 1, ", 1, 1"),
    "f8e5m2": Spelling("e5m2", 1, ", 1, 1"),
    "i8": Spelling("s8", 1, ""),
}


def multiply(f: LlvmFunction, product: SharedProduct) -> list[str]:
    """Emit the whole depth of a block as one piece of inline assembly, so that nothing touches the sums before its end,
    or, for a product that is only issued, before `wait_mma`."""
    spelling = SPELLINGS[product.b.dtype]
    if product.ignored_bits != spelling.ignored_bits:
        raise TargetError(
            f"wgmma ignores {spelling.ignored_bits} bits of {product.b.dtype}, not {product.ignored_bits}"
        )
    kind = "i32" if spelling.dtype == "s8" else "float"
    count = len(product.sums)
    operands: list[Typed] = []
    if isinstance(product.a, SharedRows):
        operands.append(("i64", descriptor(f, product.a)))
    operands.append(("i64", descriptor(f, product.b)))
    operands += [("i32", x) for x in (product.adds, product.columns_used) if x]
    held = () if isinstance(product.a, SharedRows) else product.a
    lines = _instructions(product, spelling, 2 * count, 2 * count + len(operands))
    return asm_on(f, "\n".join(lines), [(kind, x) for x in product.sums], [*operands, *(("i32", x) for x in held)])


def _instructions(product: SharedProduct, spelling: Spelling, first: int, held: int) -> list[str]:
    """Return the instructions; `first` is the operand after the sums, `held` the first register of `a`."""
    after = first + 1 + isinstance(product.a, SharedRows)
    lines = ["{", ".reg .b64 da, db;", ".reg .pred p, fits;"]
    if product.adds:
        lines.append(f"setp.ne.b32 p, ${after}, 0;")
    each = {n: _of_width(product, n, spelling, first, held) for n in widths(product)}
    return [*lines, *_by_width(each, after + bool(product.adds)), "}"]


def widths(product: SharedProduct) -> list[int]:
    """Return the numbers of columns that the product is compiled for, in ascending order.

    A product that is only issued has one: a later wait, and not a branch, orders what uses its sums.
    """
    if not product.columns_used or product.later:
        return [product.columns]
    step = max(LEAST_WIDTH, product.columns // MOST_WIDTHS)
    return [*range(step, product.columns, step), product.columns]


def _by_width(each: Mapping[int, Sequence[str]], used: int) -> list[str]:
    """Return the instructions of the least width that has all columns in use, found by bisection; the number of these
    columns is operand `used`. Labels are local to the braces around."""
    if len(each) == 1:
        return [*next(iter(each.values()))]
    ordered = sorted(each)
    low, high = ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]
    name = f"{low[0]}_{high[-1]}"
    return [
        f"setp.le.s32 fits, ${used}, {low[-1]};",
        f"@fits bra.uni narrow_{name};",
        *_by_width({n: each[n] for n in high}, used),
        f"bra.uni after_{name};",
        f"narrow_{name}:",
        *_by_width({n: each[n] for n in low}, used),
        f"after_{name}:",
    ]


def _of_width(product: SharedProduct, columns: int, spelling: Spelling, first: int, held: int) -> list[str]:
    """Return the instructions that compute the first columns, with fence and wait: ptxas serializes products whose
    fence is on another path."""
    from_shared = [x for x in (product.a, product.b) if isinstance(x, SharedRows)]
    b_at = first + len(from_shared) - 1
    size, per_block = spelling.bytes, product.columns // 2
    tail = spelling.tail + "".join(f", {int(rows.is_transposed)}" for rows in from_shared if spelling.turns)
    lines, word = ["wgmma.fence.sync.aligned;"], _word(product, columns, spelling)
    for step in range(product.depth * size // STEP_BYTES):
        for block in range(product.rows // BLOCK_ROWS):
            adds = "p" if product.adds and step == 0 else "1"
            registers = ", ".join(f"${i}" for i in range(block * per_block, block * per_block + columns // 2))
            if isinstance(product.a, SharedRows):
                far = _deeper(product.a, step, size) + _below(product.a, block * BLOCK_ROWS, size)
                lines.append(f"add.s64 da, ${first}, {far // UNIT};")
                a = "da"
            else:
                own = held + (block * product.depth // HELD_DEPTH + step) * HELD_REGISTERS
                a = "{" + ", ".join(f"${own + i}" for i in range(HELD_REGISTERS)) + "}"
            lines += [
                f"add.s64 db, ${b_at}, {_deeper(product.b, step, size) // UNIT};",
                f"wgmma.mma_async.sync.aligned.{word} {{{registers}}}, {a}, db, {adds}{tail};",
            ]
    end = () if product.later else (WAIT.format(0),)
    return [*lines, "wgmma.commit_group.sync.aligned;", *end]


def wait_mma(f: LlvmFunction, pending: int, kind: str, sums: Sequence[str], meanwhile: Sequence[str]) -> list[str]:
    """Wait until at most `pending` products are in flight; the sums pass through, so that their uses come after.

    ptxas moves whatever it can after a wait, but not the values of a condition before it. So `meanwhile` is compared
    with a value that no arithmetic returns; lanes would only pause if one were equal, and no result would change.
    """
    lines = [WAIT.format(pending)]
    if meanwhile:
        first = 2 * len(sums)
        ask = [f"setp.eq.or.b32 p, ${first + i}, {NEVER_COMPUTED}, p;" for i in range(1, len(meanwhile))]
        lines = ["{", ".reg .pred p;", f"setp.eq.b32 p, ${first}, {NEVER_COMPUTED};", *ask, PAUSE, *lines, "}"]
    words = [("i32", f.value(f"bitcast float {x} to i32")) for x in meanwhile]
    return asm_on(f, "\n".join(lines), [(kind, x) for x in sums], words)


def _word(product: SharedProduct, columns: int, spelling: Spelling) -> str:
    sums = "s32" if spelling.dtype == "s8" else "f32"
    a = SPELLINGS[product.a.dtype] if isinstance(product.a, SharedRows) else spelling
    return f"m64n{columns}k{STEP_BYTES // spelling.bytes}.{sums}.{a.dtype}.{spelling.dtype}"


def _below(rows: SharedRows, count: int, size: int) -> int:
    """Return the byte offset of the operand's row `count` rows later."""
    return count * size // rows.row_bytes * rows.panel_bytes if rows.is_transposed else count * rows.row_bytes


def _deeper(rows: SharedRows, step: int, size: int) -> int:
    """Return the byte offset of the operand for the instruction `step` steps along the depth."""
    if rows.is_transposed:
        return step * STEP_BYTES // size * rows.row_bytes
    panel, along = divmod(step * STEP_BYTES, rows.row_bytes)
    return panel * rows.panel_bytes + along


def descriptor(f: LlvmFunction, rows: SharedRows) -> str:
    """Return the descriptor of an operand that begins at a multiple of 8 rows."""
    across = rows.panel_bytes // UNIT if rows.is_transposed else 1
    fixed = SWIZZLES[rows.row_bytes] << 62 | (8 * rows.row_bytes // UNIT) << 32 | across << 16
    # A descriptor has bits 4 to 17 of the address.
    low = f.value(f"and i32 {rows.address}, {(1 << 18) - 1}")
    low = f.value(f"lshr i32 {low}, 4")
    wide = f.value(f"zext i32 {low} to i64")
    return f.value(f"or i64 {wide}, {fixed - (1 << 64) if fixed >> 63 else fixed}")
