"""The matrix instructions of the chips; a new one is a row.

Sources: AMD, "CDNA3 / CDNA4 Instruction Set Architecture", and AMD's matrix instruction calculator; NVIDIA, "PTX ISA",
wgmma. A row includes the register layouts of operands and sums (`layouts/fragments.py`); tests check those of AMD
against the calculator's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import ClassVar

from tilewave.layouts.fragments import WARPGROUP, Fragment, GroupFragment, mfma
from tilewave.records import dataclass

CDNA3, CDNA4, HOPPER = "gfx942", "gfx950", "sm_90a"
BOTH = (CDNA3, CDNA4)
Waves = tuple[int, int]
CHUNK_BYTES = 16
FP8 = {CDNA3: "f8e4m3fnuz", CDNA4: "f8e4m3fn"}
BF8 = {CDNA3: "f8e5m2fnuz", CDNA4: "f8e5m2"}
"""gfx942 computes with 8-bit floats that have no negative zero, gfx950 with those of the OCP standard."""


def up_to_multiple(n: int, of: int) -> int:
    return -(-n // of) * of


def largest_divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`."""
    return next(d for d in range(min(n, max(most, 1)), 0, -1) if n % d == 0)


@dataclass(frozen=True)
class MatrixInstruction:
    """A matrix instruction: rows x rows sums over `depth`, by the 64 lanes of a wave, or as `layouts` says."""

    name: str
    rows: int
    depth: int
    a: str | dict[str, str]
    b: str | dict[str, str]
    acc: str
    chips: tuple[str, ...] = BOTH
    ignored_bits: int = 0
    """Low mantissa bits of every operand that are ignored; an instruction with some is used on request only."""
    layouts: Fragment | None = None
    """Register layouts of operands and sums; None: those of CDNA chips, by rows and depth."""

    def fragment(self, depth: int = 0) -> Fragment:
        """Return the layout of one block: an instruction, or several consecutive ones that add up to a depth."""
        one = self.layouts or mfma(self.rows, self.depth)
        return one.deepened(depth // self.depth) if depth else one

    def dtypes(self, chip: str) -> tuple[str, str, str]:
        """Return the dtypes of a, b and the accumulator on a chip."""
        a, b = (d if isinstance(d, str) else d[chip] for d in (self.a, self.b))
        return a, b, self.acc

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of one block, computed by one wave or by a warpgroup."""
        return self.fragment().shape[:2]

    def waves(self, tile: tuple[int, int], wished: Waves | None, each_way: int) -> Waves:
        """Return the waves along rows and columns: `wished`, else `each_way` where each gets whole blocks, else one."""
        if wished:
            return wished
        rows, cols = (
            each_way if extent % (each_way * size) == 0 else 1 for extent, size in zip(tile, self.block, strict=True)
        )
        return rows, cols

    def parts(self, waves: Waves) -> Waves:
        """Return the number of parts of a tile along rows and columns."""
        return waves

    def multiples(self, waves: Waves, tile: tuple[int, int] = (0, 0)) -> tuple[int, int, int]:
        """Return the numbers that rows, columns and depth of a tile must be multiples of."""
        (rows, cols), (high, wide) = self.parts(waves), self.block
        return rows * high, cols * wide, self.depth

    def padded(self, box: tuple[int, int, int], waves: Waves) -> tuple[int, int, int]:
        """Return rows, columns and depth, each padded to its multiple."""
        rows, cols, depth = (up_to_multiple(n, m) for n, m in zip(box, self.multiples(waves, box[:2]), strict=True))
        return rows, cols, depth


THIRDS = 3


@dataclass(frozen=True)
class GroupInstruction(MatrixInstruction):
    """A wgmma: `rows` x up to `most_columns` sums over 32 bytes of depth, by a warpgroup of four waves of 32 lanes.

    Both operands are read from shared memory, where their rows have the layout of `swizzle`.
    """

    columns: int = 8
    """The columns of a tile are a multiple of this."""
    turns: bool = False
    """Whether it also takes operands that are contiguous along M or N, in panels."""

    group: GroupFragment = WARPGROUP
    """The waves that execute it together, and how their lanes hold sums."""

    @property
    def takes_sums(self) -> bool:
        """Whether the first operand may be in registers with the layout of sums: 16-bit dtypes, 16 deep."""
        return self.depth == 16

    most_columns: ClassVar[int] = 256
    most_sums: ClassVar[int] = 192
    """The most sums of a lane: of its 255 registers some are needed for the rest."""
    thirds_columns: ClassVar[int] = 192
    """The most columns of a tile that three warpgroups share: a lane has 160 registers then, and 96 sums."""
    row_bytes: ClassVar[tuple[int, ...]] = (128, 64, 32)
    """The row lengths that the swizzles of shared memory allow."""

    @property
    def block(self) -> tuple[int, int]:
        return self.rows, self.columns

    def waves(self, tile: tuple[int, int], wished: Waves | None, each_way: int) -> Waves:
        """Return whole warpgroups, one below the other; `wished` is for waves that multiply alone and is ignored.

        Three get a block of rows each if lanes have the registers: while one works on its sums, the others multiply.
        """
        groups = each_way
        if tile[0] == THIRDS * self.rows and tile[1] <= self.thirds_columns:
            groups = THIRDS
        while tile[0] % (groups * self.rows) and groups > 1:
            groups //= 2
        return groups * self.group.waves, 1

    def parts(self, waves: Waves) -> Waves:
        return waves[0] // self.group.waves, waves[1]

    def multiples(self, waves: Waves, tile: tuple[int, int] = (0, 0)) -> tuple[int, int, int]:
        """Groups are below each other, or, where a tile has rows for one only, beside each other."""
        groups, (rows, columns) = self.parts(waves)[0], self.block
        is_low = 0 < tile[0] <= rows and groups > 1 and not tile[1] % (groups * columns)
        return (rows, groups * columns, self.depth) if is_low else super().multiples(waves)

    def swizzle(self, row_bytes: int) -> tuple[int, int, int]:
        """Return chunk bytes, period and `every`: chunk c of row r is stored at c ^ (r // every % period)."""
        return CHUNK_BYTES, row_bytes // CHUNK_BYTES, max(self.row_bytes) // row_bytes

    def panel_bytes(self, side_bytes: int) -> int:
        """Return the row length in shared memory of an operand with so many contiguous bytes; 0 if none divides it."""
        return next((n for n in self.row_bytes if side_bytes % n == 0), 0)


INSTRUCTIONS = (
    MatrixInstruction("f32_16x16x4_f32", 16, 4, "f32", "f32", "f32"),
    MatrixInstruction("f32_32x32x2_f32", 32, 2, "f32", "f32", "f32"),
    MatrixInstruction("f32_16x16x32_f16", 16, 32, "f16", "f16", "f32", (CDNA4,)),
    MatrixInstruction("f32_32x32x16_f16", 32, 16, "f16", "f16", "f32", (CDNA4,)),
    MatrixInstruction("f32_16x16x16_f16", 16, 16, "f16", "f16", "f32"),
    MatrixInstruction("f32_32x32x8_f16", 32, 8, "f16", "f16", "f32"),
    MatrixInstruction("f32_16x16x32_bf16", 16, 32, "bf16", "bf16", "f32", (CDNA4,)),
    MatrixInstruction("f32_32x32x16_bf16", 32, 16, "bf16", "bf16", "f32", (CDNA4,)),
    MatrixInstruction("f32_16x16x16_bf16", 16, 16, "bf16", "bf16", "f32"),
    MatrixInstruction("f32_32x32x8_bf16", 32, 8, "bf16", "bf16", "f32"),
    MatrixInstruction("f32_16x16x32_fp8_fp8", 16, 32, FP8, FP8, "f32"),
    MatrixInstruction("f32_16x16x32_fp8_bf8", 16, 32, FP8, BF8, "f32"),
    MatrixInstruction("f32_16x16x32_bf8_fp8", 16, 32, BF8, FP8, "f32"),
    MatrixInstruction("f32_16x16x32_bf8_bf8", 16, 32, BF8, BF8, "f32"),
    MatrixInstruction("f32_32x32x16_fp8_fp8", 32, 16, FP8, FP8, "f32"),
    MatrixInstruction("f32_32x32x16_bf8_bf8", 32, 16, BF8, BF8, "f32"),
    MatrixInstruction("i32_16x16x64_i8", 16, 64, "i8", "i8", "i32", (CDNA4,)),
    MatrixInstruction("i32_32x32x32_i8", 32, 32, "i8", "i8", "i32", (CDNA4,)),
    MatrixInstruction("i32_16x16x32_i8", 16, 32, "i8", "i8", "i32"),
    MatrixInstruction("i32_32x32x16_i8", 32, 16, "i8", "i8", "i32"),
)
"""Instructions of one wave; among those of the same dtypes the preferred ones come first."""

NAMED = {instruction.name: instruction for instruction in INSTRUCTIONS}
"""The instructions of one wave, by name."""


def _eight_bit(a: str, b: str) -> GroupInstruction:
    names = {"f8e4m3fn": "fp8", "f8e5m2": "bf8"}
    return GroupInstruction(f"f32_64xNx32_{names[a]}_{names[b]}", 64, 32, a, b, "f32", (HOPPER,))


MANY_SUMS = 128
"""Sums of a lane in warpgroup products; more leave few registers for the rest, and none for a tile that is read or
written meanwhile."""
GROUP_INSTRUCTIONS = (
    GroupInstruction("f32_64xNx16_f16", 64, 16, "f16", "f16", "f32", (HOPPER,), turns=True),
    GroupInstruction("f32_64xNx16_bf16", 64, 16, "bf16", "bf16", "f32", (HOPPER,), turns=True),
    *(_eight_bit(a, b) for a in ("f8e4m3fn", "f8e5m2") for b in ("f8e4m3fn", "f8e5m2")),
    GroupInstruction("i32_64xNx32_i8", 64, 32, "i8", "i8", "i32", (HOPPER,), columns=16),
    GroupInstruction("f32_64xNx8_tf32", 64, 8, "f32", "f32", "f32", (HOPPER,), ignored_bits=13),
)
_TRANSPOSED = {name for i in GROUP_INSTRUCTIONS if i.turns for name in (i.a, i.b)}
ALONG_DEPTH = frozenset(str(name) for i in GROUP_INSTRUCTIONS for name in (i.a, i.b) if name not in _TRANSPOSED)
"""Dtypes of operands that warpgroup instructions take along their depth only."""
ALL = (*INSTRUCTIONS, *GROUP_INSTRUCTIONS)
BY_NAME = {instruction.name: instruction for instruction in ALL}
ELSEWHERE = (
    MatrixInstruction("f32_16x16x32_k8_f16", 16, 32, "f16", "f16", "f32"),
    MatrixInstruction("f32_32x32x16_k8_f16", 32, 16, "f16", "f16", "f32"),
    MatrixInstruction("f32_16x16x32_k4_fp8", 16, 32, FP8, FP8, "f32"),
    MatrixInstruction("f32_32x32x16_k4_fp8", 32, 16, FP8, FP8, "f32"),
    MatrixInstruction("i32_16x16x16_i8", 16, 16, "i8", "i8", "i32", ("gfx908",)),
    MatrixInstruction("i32_32x32x8_i8", 32, 8, "i8", "i8", "i32", ("gfx908",)),
    MatrixInstruction("rdna4_wave32_f32_16x16x16_f16", 16, 16, "f16", "f16", "f32", ("gfx1201",)),
    MatrixInstruction("gfx1250_f32_16x16x32_f16", 16, 32, "f16", "f16", "f32", ("gfx1250",)),
)
"""Names that kernels may use but that no target has: instructions of other chips, or several consecutive ones that
lanes load at once; only their rows and dtypes are used."""
WISHES = (
    NAMED
    | {instruction.name: instruction for instruction in ALL if instruction.ignored_bits}
    | {instruction.name: instruction for instruction in ELSEWHERE}
)
"""The instructions that a kernel may request by name."""


def instructions_for(chip: str, a: str, b: str, acc: str) -> Iterator[MatrixInstruction]:
    """Return a chip's instructions for these dtypes, the best first, without those used on request only."""
    return (i for i in ALL if chip in i.chips and i.dtypes(chip) == (a, b, acc) and not i.ignored_bits)


def spelled(instruction: MatrixInstruction) -> str:
    """Return an instruction's name in the language: MMAType.F32_16x16x32_F8."""
    words = [word for word, _ in groupby(instruction.name.split("_"))]  # inputs of one kind are named once
    names = [word if word[0].isdigit() else word.upper().replace("FP8", "F8") for word in words]
    return f"MMAType.{'_'.join(names)}"
