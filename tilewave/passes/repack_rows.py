"""Arrays whose rows the copy engine cannot take are copied into rows that begin on cache lines, before the launch.

    (%a: memory<4097x4097xf16, global>, …)   →   (%a: memory<4097x4097xf16, global, pad(63)>, …)

The kernel itself stays as it is; from here on all know how far its rows lie apart. The copy is made by whoever launches
it (`backend/nvidia/repacking.py`), once per call. Rows that a launch tells the length of are looked at there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewave.analysis.repacking import odd_rows
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Read
from tilewave.ir.reasons import Declined, Reason
from tilewave.ir.rewrite import rename, rewrite_block, walk
from tilewave.ir.types import Memory, Padded
from tilewave.machine.chips import Chip

REPACKED = Reason(
    "rows of {memory} are {bytes} bytes apart, and the copy engine needs multiples of {grain}, so each launch copies "
    "it into rows of {pitch} bytes first",
    "give it rows of a multiple of {elements} elements, or keep what prepack makes of it",
)


@dataclass(frozen=True)
class RepackRows:
    machine: Chip

    def __repr__(self) -> str:
        return f"RepackRows({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.copy_engine
        names = odd_rows(kernel, engine.grain_bytes) if engine else ()
        if not names:
            return kernel
        new = {v: self.padded(v) for v in kernel.body.args if v.name in names}
        body = rewrite_block(kernel.body, lambda op: [rename(op, new)])
        body = replace(body, args=tuple(new.get(v, v) for v in body.args))
        return replace(kernel, body=body).declining(*(self.told(v, kernel) for v in new.values()))

    def padded(self, v: Value) -> Value:
        memory = v.type
        assert isinstance(memory, Memory)
        per_line = self.machine.line_bytes // memory.dtype.bytes
        return Value(v.name, replace(memory, placement=Padded(-memory.shape[-1] % per_line)))

    def told(self, v: Value, kernel: Kernel) -> Declined:
        memory, size = v.type, v.type.dtype.bytes
        assert isinstance(memory, Memory) and isinstance(memory.placement, Padded) and self.machine.copy_engine
        reads = (op.loc for op in walk(kernel.body) if isinstance(op, Read) and op.memory.name == v.name)
        grain, row = self.machine.copy_engine.grain_bytes, memory.shape[-1]
        facts = {"bytes": row * size, "pitch": (row + memory.placement.elements) * size, "elements": grain // size}
        return REPACKED.at(next(reads), memory=v.name, grain=grain, **facts)
