"""Give unaligned arrays a layout that TMA can load; the launch makes packed copies of them.

    (%a: memory<4097x4097xf16, global>, …)   →   (%a: memory<4097x4097xf16, global, pad(63)>, …)
    (%b: memory<4096x4096xi8, global>, …)    →   (%b: memory<4096x4096xi8, global, columns(0)>, …)
    (%x: memory<4096x1xf16, global>, …)      →   (%x: memory<4096x1xf16, global, columns(0)>, …)

Rows that begin at no multiple of 16 bytes are padded. Operands whose dtype the matrix unit reads along K only, and
whose rows are not along K, are transposed. A single column is a row in memory already, so that it is not copied, and a
single row never is. Only the types of the arrays change, so that later passes know the distance of rows. The launch
makes the copies (`backend/nvidia/packing.py`), once per call. Where that takes longer than it saves, lanes load all
tiles, unless a call is given what `prepack` made. Rows of dynamic length are checked at the launch.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tilewave.analysis.packing import across_depth, left_in_place, single_columns, unaligned_rows
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Read
from tilewave.ir.placements import row_pitch
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import rename_block, walk
from tilewave.ir.types import Columns, Memory, Padded
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import ALONG_DEPTH
from tilewave.records import dataclass

REPACKED = RemarkKind(
    "the row stride of {memory} is {bytes} bytes, and TMA needs a multiple of {grain}, so each launch first makes a "
    "packed copy with rows of {pitch} bytes",
    "give it rows of a multiple of {elements} elements, or keep the result of prepack",
)
LEFT_IN_PLACE = RemarkKind(
    "the row stride of {memory} is {bytes} bytes, and TMA needs a multiple of {grain}; it is read too rarely for a "
    "packed copy, so lanes load all tiles",
    "give it rows of a multiple of {elements} elements, or keep the result of prepack",
)
TRANSPOSED = RemarkKind(
    "{memory} is read transposed, and products of {dtype} need it along its rows, so each launch first makes a "
    "transposed copy",
    "declare it with the product's K dimension last",
)


@dataclass(frozen=True)
class PackUnaligned:
    machine: Chip

    def __repr__(self) -> str:
        return f"PackUnaligned({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.tma
        if engine is None:
            return kernel
        single, tuning = single_columns(kernel), self.machine.tuning.packing
        transposed = [name for name in across_depth(kernel, ALONG_DEPTH, tuning) if name not in single]
        odd = [n for n in unaligned_rows(kernel, engine.grain_bytes, tuning) if n not in (*single, *transposed)]
        placed = {
            v: self.placed(v, single, transposed) for v in kernel.body.args if v.name in (*single, *transposed, *odd)
        }
        if not placed:
            return kernel
        copied = (v for v in placed.values() if v.name not in single)
        padded = LEFT_IN_PLACE if not transposed and left_in_place(kernel, odd, tuning) else REPACKED
        packed = replace(kernel, body=rename_block(kernel.body, placed))
        return packed.with_remarks(*(self.remark(v, kernel, padded) for v in copied))

    def placed(self, v: Value, single: Container[str], transposed: Container[str]) -> Value:
        assert isinstance(v.type, Memory)
        if v.name in single:
            return Value(v.name, replace(v.type, placement=Columns(0)))
        return self.columns(v) if v.name in transposed else self.padded(v)

    def padded(self, v: Value) -> Value:
        memory = v.type
        assert isinstance(memory, Memory)
        per_line = self.machine.line_bytes // memory.dtype.bytes
        return Value(v.name, replace(memory, placement=Padded(-memory.shape[-1] % per_line)))

    def columns(self, v: Value) -> Value:
        memory = v.type
        assert isinstance(memory, Memory)
        high = memory.extents[-2]
        unused = -high % (self.machine.line_bytes // memory.dtype.bytes) if isinstance(high, int) else 0
        return Value(v.name, replace(memory, placement=Columns(unused)))

    def remark(self, v: Value, kernel: Kernel, padded: RemarkKind) -> Remark:
        memory, engine = v.type, self.machine.tma
        assert isinstance(memory, Memory) and engine is not None
        loc = next(op.loc for op in walk(kernel.body) if isinstance(op, Read) and op.memory.name == v.name)
        if isinstance(memory.placement, Columns):
            return TRANSPOSED.at(loc, memory=v.name, dtype=memory.dtype)
        size, pitch = memory.dtype.bytes, row_pitch(v)
        assert isinstance(pitch, int)
        facts = {"bytes": memory.shape[-1] * size, "pitch": pitch * size, "elements": engine.grain_bytes // size}
        return padded.at(loc, memory=v.name, grain=engine.grain_bytes, **facts)
