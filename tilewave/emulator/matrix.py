"""Matrix instructions: which lane and register holds which element, and the product.

The registers of A, B and C seen as a list of elements: operand A of v_mfma_f32_16x16x16_f16 has 4 elements in each of
64 lanes, and lane l holds A[l % 16, 4 * (l // 16) : 4 * (l // 16) + 4]. All shapes follow four formulas, of which
`Layout` makes the table "which lane, which element" once; a product is then three gathers and a matmul.
Products and sums are formed in float64 and rounded once; integer products are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tilewave.emulator.chips import OPINIONS, ChipName
from tilewave.emulator.instruction import Operand
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.matrix_table import INSTRUCTIONS
from tilewave.emulator.numbers import (
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    SMALL_FLOAT,
    U8,
    U16,
    U32,
    U64,
    Array,
    from_bfloat16,
    values_of,
)
from tilewave.emulator.step import Draft, Execute, MatrixTiming, Reader, unsupported
from tilewave.records import dataclass

NAME = re.compile(r"v_mfma_(scale_)?((f32|f64|i32)_(\d+)x(\d+)x(\d+)_(?:(\d+)b_)?([a-z0-9_]+?))(?:_e64)?")
BITS = {
    "f16": 16,
    "bf16": 16,
    "i8": 8,
    "f32": 32,
    "xf32": 32,
    "f64": 64,
    "fp8": 8,
    "bf8": 8,
    "fp6": 6,
    "bf6": 6,
    "fp4": 4,
}
CODES = ("fp8", "bf8", "fp6", "bf6", "fp4")
"""The formats that cbsz and blgp select in the f8f6f4 instructions."""


@dataclass(frozen=True)
class MatrixShape:
    """v_mfma_f32_32x32x8_f16: m, n, k, how many such products at once, and the formats."""

    m: int
    n: int
    k: int
    blocks: int
    result: str
    a_format: str
    b_format: str
    source: str

    passes: int


def shape_of(mnemonic: str, cbsz: int = 0, blgp: int = 0) -> MatrixShape | None:
    """What a matrix instruction's name says."""
    found = NAME.fullmatch(mnemonic)
    entry = INSTRUCTIONS.get(found[2]) if found else None
    if found is None or entry is None:
        return None
    source, passes = found[8], entry.passes
    if source == "f8f6f4":
        a, b = CODES[cbsz], CODES[blgp]
    elif source in BITS:
        a = b = source
    else:
        a, _, b = source.partition("_")
    if source == "f8f6f4" and BITS[a] < 8 and BITS[b] < 8:
        passes //= 2
    m, n, k, blocks = (int(found[group] or 1) for group in (4, 5, 6, 7))
    return MatrixShape(m, n, k, blocks, found[3], a, b, source, passes)


@dataclass(frozen=True)
class MatrixLayout:
    """Which lane and element hold each entry of a matrix: [blocks, m, k], [blocks, n, k] and [blocks, m, n]."""

    a_lane: Array
    a_element: Array
    b_lane: Array
    b_element: Array
    c_lane: Array
    c_element: Array


@lru_cache(maxsize=256)
def layout_of(shape: MatrixShape) -> MatrixLayout:
    a = _input_places(shape.m, shape.k, shape.blocks, BITS[shape.a_format])
    b = _input_places(shape.n, shape.k, shape.blocks, BITS[shape.b_format])
    return MatrixLayout(*a, *b, *_result_places(shape))


def _input_places(extent: int, k: int, blocks: int, bits: int) -> tuple[Array, Array]:
    """Lanes count rows first, then blocks, then groups of K."""
    block, row, step = np.meshgrid(np.arange(blocks), np.arange(extent), np.arange(k), indexing="ij")
    groups = LANES // (extent * blocks)
    each = k // groups
    if each > 16 and bits == 8:  # K = 64 and 128 of 8-bit floats: pieces of 16 elements are dealt in turn
        group, element = step // 16 % groups, step // 16 // groups * 16 + step % 16
    else:
        group, element = step // each, step % each
    return (group * blocks + block) * extent + row, element


def _result_places(shape: MatrixShape) -> tuple[Array, Array]:
    """Four rows in successive registers of a lane, the next four in the next group of lanes; f64: one row."""
    block, row, column = np.meshgrid(np.arange(shape.blocks), np.arange(shape.m), np.arange(shape.n), indexing="ij")
    rows, area = LANES // shape.n, shape.m * shape.n
    together = 1 if shape.result == "f64" else 4
    side_by_side = -(-LANES // (area // together))
    register = block * (area // LANES) + row // (together * rows) * together + row % together
    lane = (block % side_by_side) * shape.n + row // together % rows * side_by_side * shape.n + column
    return lane, register


# -- operands ----------------------------------------------------------------------------------------------------------


def _decoder(format_name: str, chip: ChipName) -> Callable[[Array], Array]:
    """Registers [waves, lanes, words] to elements [waves, lanes, elements]."""
    match format_name:
        case "f16":
            return lambda bits: bits.view(F16).astype(F64)
        case "bf16":
            return lambda bits: from_bfloat16(bits.view(U16)).astype(F64)
        case "i8":
            return lambda bits: bits.view(I8).astype(F64)
        case "f32":
            return lambda bits: bits.view(F32).astype(F64)
        case "xf32":
            return lambda bits: (bits & U32(0xFFFFE000)).view(F32).astype(F64)
        case "f64":
            return lambda bits: bits.view(F64)
        case "fp8" | "bf8":
            values = values_of(OPINIONS[chip].float8[format_name], 8)
            return lambda bits: values[bits.view(U8)]
        case _:
            width, dtype = SMALL_FLOAT[format_name]
            small = values_of(dtype, width)
            return lambda bits: small[_small_patterns(bits, width)]


def _small_patterns(bits: Array, width: int) -> Array:
    """Patterns of 4 or 6 bits, one after another."""
    loose = np.unpackbits(bits.view(U8), axis=2, bitorder="little").reshape(*bits.shape[:2], -1, width)
    return np.packbits(loose, axis=3, bitorder="little")[..., 0]


def _operand(row: int, words: int, decode: Callable[[Array], Array], places: Array) -> Reader:
    """[waves, blocks, rows, k] in float64."""

    def read(c: Convoy) -> Array:
        bits = np.ascontiguousarray(c.vu[row : row + words, c.sel].transpose(1, 2, 0))
        elements = decode(bits).reshape(c.count, -1)
        return elements[:, places]

    return read


def _words(extent: int, k: int, blocks: int, bits: int) -> int:
    return max(1, extent * k * blocks // LANES * bits // 32)


# -- the instruction ---------------------------------------------------------------------------------------------------


def build_matrix(draft: Draft) -> Execute | None:
    """v_mfma_*: D = A · B + C, for all lanes whatever the mask says."""
    instruction = draft.instruction
    cbsz, abid, blgp = (instruction.integer(name) for name in ("cbsz", "abid", "blgp"))
    shape = shape_of(instruction.mnemonic, cbsz, blgp)
    if shape is None:
        return None
    if draft.chip not in INSTRUCTIONS[NAME.sub(r"\2", instruction.mnemonic)].chips:
        raise unsupported(instruction, f"{draft.chip} does not have it")
    layout = layout_of(shape)
    d, a, b, c_operand = draft.operands[:4]
    a_words = _words(shape.m, shape.k, shape.blocks, BITS[shape.a_format])
    b_words = _words(shape.n, shape.k, shape.blocks, BITS[shape.b_format])
    c_words = shape.m * shape.n * shape.blocks // LANES * (2 if shape.result == "f64" else 1)
    a_lane, b_lane = _broadcast_lanes(shape, layout, cbsz, abid, blgp)
    read_a = _operand(
        a.row, a_words, _decoder(shape.a_format, draft.chip), _places(a_lane, layout.a_element, a_words, shape.a_format)
    )
    read_b = _operand(
        b.row, b_words, _decoder(shape.b_format, draft.chip), _places(b_lane, layout.b_element, b_words, shape.b_format)
    )
    read_a, read_b = _scales(draft, shape, read_a, read_b)
    sign = _sign(draft, shape, blgp)
    _note_registers(draft, shape, (a.row, a_words), (b.row, b_words), (c_operand, c_words), d.row)
    read_c = (
        draft.source(c_operand, {"f64": "F", "f32": "f"}.get(shape.result, "i")) if c_operand.kind != "vector" else None
    )
    write = _writer(shape, layout, d.row, c_operand.row, c_words, read_c)

    def execute(c: Convoy) -> None:
        product = np.matmul(read_a(c), read_b(c).swapaxes(-1, -2))
        write(c, product if sign > 0 else -product)

    return execute


def _places(lane: Array, element: Array, words: int, format_name: str) -> Array:
    return lane * (words * 32 // BITS[format_name]) + element


def _broadcast_lanes(shape: MatrixShape, layout: MatrixLayout, cbsz: int, abid: int, blgp: int) -> tuple[Array, Array]:
    """cbsz and abid let several blocks read one block of A; blgp turns the lanes of B."""
    a, b = layout.a_lane, layout.b_lane
    if shape.source == "f8f6f4" or shape.result == "f64":
        return a, b
    if cbsz:
        size = LANES >> cbsz
        a = a % size + size * abid
    rotated = {0: b, 1: b % 32, 2: b % 32 + 32, 3: (b + 16) % 64}
    return a, rotated[blgp] if blgp in rotated else b % 16 + 16 * (blgp - 4)


def _sign(draft: Draft, shape: MatrixShape, blgp: int) -> int:
    negative = draft.instruction.flags("neg", (0, 0))[:2]
    flips = sum(negative) + (bin(blgp & 3).count("1") if shape.result == "f64" else 0)
    return -1 if flips % 2 else 1


def _note_registers(
    draft: Draft, shape: MatrixShape, a: tuple[int, int], b: tuple[int, int], c: tuple[Operand, int], d: int
) -> None:
    a_and_b = (*range(a[0], a[0] + a[1]), *range(b[0], b[0] + b[1]))
    c_rows = tuple(range(c[0].row, c[0].row + c[1])) if c[0].kind == "vector" else ()
    d_rows = tuple(range(d, d + c[1]))
    draft.unit = "matrix"
    draft.vector_reads += [*a_and_b, *c_rows]
    draft.vector_writes += d_rows
    is_xdl = shape.source not in ("f32", "f64")
    delay = _delay(shape, is_xdl) if OPINIONS[draft.chip].newer_matrix else 0
    draft.matrix = MatrixTiming(shape.passes, a_and_b, c_rows, d_rows, is_xdl, delay, shape.result == "f64")


def _delay(shape: MatrixShape, is_xdl: bool) -> int:
    """Wait states that gfx950 adds: one to most, eight to the large product of float64, which takes longer there."""
    if shape.result == "f64":
        return 8 if shape.passes == 8 else 0
    return int(is_xdl and shape.passes != 2)


def _scales(draft: Draft, shape: MatrixShape, read_a: Reader, read_b: Reader) -> tuple[Reader, Reader]:
    """v_mfma_scale_*: one power of two per row and 32 elements of K."""
    if not draft.instruction.mnemonic.startswith("v_mfma_scale_"):
        return read_a, read_b
    high, low = draft.instruction.flags("op_sel_hi", (0, 0, 0)), draft.instruction.flags("op_sel", (0, 0, 0))
    if len(draft.operands) < 6:
        raise unsupported(draft.instruction, "its scales are missing")

    def scaled(read: Reader, operand: Operand, extent: int, byte: int) -> Reader:
        bits, shift = draft.source(operand, "u"), U32(8 * byte)
        lanes = np.arange(extent)[:, None] + extent * (np.arange(shape.k) // 32)[None, :]

        def with_scale(c: Convoy) -> Array:
            power = (np.broadcast_to(bits(c), (c.count, LANES)) >> shift) & U32(255)
            factor = np.where(power == 255, np.nan, np.ldexp(1.0, power.astype(I32) - 127))
            return read(c) * factor[:, lanes][:, None]

        return with_scale

    a = scaled(read_a, draft.operands[4], shape.m, low[0] + 2 * high[0])
    return a, scaled(read_b, draft.operands[5], shape.n, low[1] + 2 * high[1])


def _writer(
    shape: MatrixShape, layout: MatrixLayout, d: int, c_row: int, words: int, constant: Reader | None
) -> Callable[[Convoy, Array], None]:
    """Add C in the order of its registers, round once, and write D."""
    elements = words // 2 if shape.result == "f64" else words
    order = np.empty(elements * LANES, I64)
    order[(layout.c_element * LANES + layout.c_lane).reshape(-1)] = np.arange(elements * LANES)

    def in_registers(c: Convoy, product: Array) -> Array:
        flat = product.reshape(c.count, -1)[:, order]
        result: Array = flat.reshape(c.count, elements, LANES).swapaxes(0, 1)
        return result

    def addend(c: Convoy) -> Array:
        if constant is not None:
            return constant(c)[None]
        view = {"f32": c.vf, "i32": c.vi}.get(shape.result)
        if view is not None:
            return view[c_row : c_row + words, c.sel]
        pairs = c.vu[c_row : c_row + words, c.sel].astype(U64)
        result: Array = (pairs[0::2] | pairs[1::2] << U64(32)).view(F64)
        return result

    def write(c: Convoy, product: Array) -> None:
        total = in_registers(c, product)
        match shape.result:
            case "f32":
                c.vf[d : d + words, c.sel] = total + addend(c)
            case "i32":
                c.vu[d : d + words, c.sel] = (total.astype(I64) + addend(c)).astype(U64).astype(U32)
            case _:
                bits = np.ascontiguousarray(total + addend(c)).view(U64)
                c.vu[d : d + words : 2, c.sel] = bits.astype(U32)
                c.vu[d + 1 : d + words : 2, c.sel] = (bits >> U64(32)).astype(U32)

    return write
