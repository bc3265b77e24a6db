"""Intel AMX: eight tile registers of 16 rows of 64 bytes; four hold a 32x32 block of sums, two each operand."""

from __future__ import annotations

import ctypes
from math import prod

from tilewave.errors import TargetError
from tilewave.ir.types import Accumulator, DType
from tilewave.lower.cpu.target import Panel
from tilewave.lower.llvm import LlvmFunction, Module

ROWS, ROW_BYTES, LINE = 16, 64, 16
"""Rows and row bytes of a tile register; a row has 16 sums of 4 bytes."""
LEFT, RIGHT = 4, 6
"""The first tile registers of a and b; the sums are in 0 to 3."""
PRODUCTS = {"bf16": "llvm.x86.tdpbf16ps", "i8": "llvm.x86.tdpbssd"}


class Amx:
    """The `MatrixUnit` of AMX."""

    def begin(self, f: LlvmFunction) -> None:
        table = f.module.helper("amx_shapes", lambda: _shapes(f.module))
        _do(f, "llvm.x86.ldtilecfg", f"ptr {table}")

    def end(self, f: LlvmFunction) -> None:
        _do(f, "llvm.x86.tilerelease")

    def zero(self, f: LlvmFunction, kind: Accumulator) -> None:
        for number, _, _ in blocks(kind):
            _do(f, "llvm.x86.tilezero", f"i8 {number}")

    def load(self, f: LlvmFunction, kind: Accumulator, buffer: str) -> None:
        """Load the sums from memory, row after row."""
        self._move(f, kind, buffer, "llvm.x86.tileloadd64")

    def store(self, f: LlvmFunction, kind: Accumulator, buffer: str) -> None:
        self._move(f, kind, buffer, "llvm.x86.tilestored64")

    def _move(self, f: LlvmFunction, kind: Accumulator, buffer: str, how: str) -> None:
        columns = kind.shape[-1]
        for number, row, column in blocks(kind):
            where = f.value(f"getelementptr i32, ptr {buffer}, i64 {row * columns + column}")
            _do(f, how, f"i8 {number}", f"ptr {where}", f"i64 {4 * columns}")

    def multiply(self, f: LlvmFunction, a: Panel, b: Panel, kind: Accumulator) -> None:
        depth = ROW_BYTES // a.dtype.bytes
        for k in range(0, a.depth, depth):
            for row in range(0, a.rows, ROWS):
                where = _at(f, a.pointer, a.dtype, k * a.all_rows + row * depth)
                _do(f, "llvm.x86.tileloadd64", f"i8 {LEFT + row // ROWS}", f"ptr {where}", f"i64 {ROW_BYTES}")
            for column in range(0, b.rows, LINE):
                where = _at(f, b.pointer, b.dtype, k * b.all_rows + column * b.group)
                _do(f, "llvm.x86.tileloadd64", f"i8 {RIGHT + column // LINE}", f"ptr {where}", f"i64 {4 * b.all_rows}")
            for number, row, column in blocks(kind):
                registers = (number, LEFT + row // ROWS, RIGHT + column // LINE)
                _do(f, PRODUCTS[a.dtype.name], *(f"i8 {r}" for r in registers))


def blocks(kind: Accumulator) -> list[tuple[int, int, int]]:
    """Return (register, first row, first column) of each tile of a block of sums."""
    *batch, rows, columns = kind.shape
    assert prod(batch) == 1 and rows in (16, 32) and columns in (16, 32), f"{kind} is no block of AMX's"
    places = [(row, column) for row in range(0, rows, ROWS) for column in range(0, columns, LINE)]
    return [(number, row, column) for number, (row, column) in enumerate(places)]


def _at(f: LlvmFunction, pointer: str, dtype: DType, offset: int) -> str:
    return f.value(f"getelementptr i{dtype.bits}, ptr {pointer}, i64 {offset}")


def _do(f: LlvmFunction, name: str, *arguments: str) -> None:
    kinds = ", ".join(a.split()[0] for a in arguments)
    f.module.declare(f"void @{name}({kinds})")
    f.do(f"call void @{name}({', '.join(arguments)})")


def _shapes(module: Module) -> str:
    """Return the tile configuration: palette 1, all 16 rows of 64 bytes."""
    row_bytes = b"".join(ROW_BYTES.to_bytes(2, "little") for _ in range(8)).ljust(32, b"\0")
    table = bytes([1]).ljust(16, b"\0") + row_bytes + bytes([ROWS] * 8).ljust(16, b"\0")
    numbers = ", ".join(f"i8 {x}" for x in table)
    return f"@amx_shapes = internal constant [64 x i8] [{numbers}], align 64"


def ask_permission() -> None:
    """Request the tile registers from Linux, which gives them to a process only on request."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    if ctypes.CDLL(None, use_errno=True).syscall(arch_prctl, request_permission, tile_data) != 0:
        raise TargetError(
            "the system does not let this process use AMX", remedy='compile with instruction_set="avx512"'
        )
