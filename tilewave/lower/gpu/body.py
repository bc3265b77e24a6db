"""The function of one lane while it is lowered: its LLVM values, memories and arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tilewave.analysis.barriers import Handovers, Transits, touched_by_lanes, written_by_lanes
from tilewave.analysis.turns import added_in_turns
from tilewave.errors import NOWHERE
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.launch import launch_of
from tilewave.ir.rewrite import walk
from tilewave.ir.types import BOOL, INDEX, Memory, Vector
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.asynchronous import AsynchronousOps
from tilewave.lower.gpu.direct_loads import DirectLoads
from tilewave.lower.gpu.exchanges import Exchanges
from tilewave.lower.gpu.indexed import IndexedAccess
from tilewave.lower.gpu.memory import GlobalAccess, GlobalPlace
from tilewave.lower.gpu.pointers import Pointers
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.shared import SharedAccess, SharedPlace
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.values import Held
from tilewave.lower.gpu.windows import ArrayWindow
from tilewave.lower.launch_arguments import Reach
from tilewave.lower.lines import Lines, LocatedFunction, first_line
from tilewave.lower.llvm import Module, Typed

Lowerings = Mapping[type[Op], Callable[["LaneBody", Any], None]]
"""The lowering of each lane-level op."""
SHARED_ALIGNMENT = 16


class LaneBody:
    """The function of one lane; it has an LLVM value for each value of the kernel."""

    def __init__(
        self,
        kernel: Kernel,
        target: LaneTarget,
        lowerings: Lowerings,
        any_strides: frozenset[str],
        alignments: Mapping[str, int],
        whole_rows: bool,
    ) -> None:
        self.kernel, self.target, self.any_strides, self.alignments = kernel, target, any_strides, alignments
        self.lowerings, self.whole_rows = lowerings, whole_rows
        self.module = Module()
        self.lines = Lines(first_line(kernel), target.line_detail)
        located = self.lines.function(kernel.name)
        self.f = LocatedFunction(self.module, kernel.name, _parameters(kernel, target), located)
        self.registers = Registers(self.f, kernel, target)
        self.handovers = Handovers(kernel, written_by_lanes, any_strides)
        self.turnovers = Handovers(kernel, touched_by_lanes, any_strides)
        self.transits = Transits(kernel)
        self.places: dict[Value, GlobalPlace | SharedPlace] = {}
        self.written = _stored(kernel)
        self.waits_for_launch = any(isinstance(op, ir.WaitPriorLaunch) for op in walk(kernel.body))
        self.requested: dict[Value, Callable[[], Held]] = {}
        """The results of loads that are to be shifted; they are waited for where they are used."""
        self.shared_bytes = 0
        self.leader = 0
        """The first of the waves that run the current block."""
        reach = ArrayWindow if target.windows else Pointers
        self.global_memory, self.shared_memory = GlobalAccess(self.registers, reach), SharedAccess(self.registers)
        self.indexed_memory = IndexedAccess(self.global_memory)
        # After shared_memory, because direct loads decide the metadata of its loads.
        self.direct_loads = self.make_direct_loads()
        self.async_ops = (
            AsynchronousOps(target.asynchronous, self.registers, kernel, self.places, self.allot)
            if target.asynchronous
            else None
        )
        self.exchanges = Exchanges(target.asynchronous, self.registers, kernel) if target.asynchronous else None

    def make_direct_loads(self) -> DirectLoads | None:
        """Return the direct-to-shared loads, if any; the kernel waits for them, so LLVM must not insert waits."""
        direct = self.target.direct
        if direct is None or not any(isinstance(op, ir.CopyAsyncChunks) for op in walk(self.kernel.body)):
            return None
        self.shared_memory.note = direct.read_note
        return DirectLoads(self.global_memory, direct, self.kernel.lanes)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        return tuple(self.global_memory.reaches.values())

    def write(self) -> str:
        for v in self.kernel.body.args:
            self.argument(v)
        self.block(self.kernel.body)
        self.f.loc = NOWHERE
        attributes = self.target.attributes(self.kernel.lanes, prod(self.kernel.waves), self.kernel.resident)
        text = self.f.finish(attributes=attributes, linkage=self.target.convention)
        self.module.functions.append(text)
        flags = [*self.target.flags(), self.lines.flag]
        numbered = [f"!{i} = {flag}" for i, flag in enumerate(flags)]
        named = f"!llvm.module.flags = !{{{', '.join(f'!{i}' for i in range(len(flags)))}}}"
        notes = self.direct_loads.direct.notes if self.direct_loads else ()
        return "\n".join([str(self.module), named, *numbered, *notes, self.lines.metadata()])

    def argument(self, v: Value) -> None:
        if isinstance(v.type, Memory):
            strides = tuple(f"%{v.name}.{axis}" for axis in range(v.type.rank))
            any_strides, aligned = v.name in self.any_strides, self.alignments.get(v.name, 1)
            written = v in self.written
            of_rows = written, self.whole_rows and not any_strides, written or self.waits_for_launch
            place = GlobalPlace(v.name, v.type, f"%{v.name}", strides, any_strides, aligned, *of_rows)
            self.places[v] = place
            if isinstance(extent := v.type.extents[-1], str):
                self.registers.multiples[extent] = max(place.whole, self.registers.multiples.get(extent, 1))
            return
        kind = _parameter_kind(v)
        name = f"%{v.name}"
        if v.type.dtype == BOOL:
            self.registers.scalars[v] = "i1", self.f.value(f"icmp ne {kind} {name}, 0")
        elif kind == "i64" and self.registers.positions.ranges.bits(v) < 64:
            self.registers.scalars[v] = "i32", self.f.value(f"trunc i64 {name} to i32")
        else:
            self.registers.scalars[v] = kind, name

    def allot(self, name: str, size: int, alignment: int) -> str:
        """Return the address of `size` bytes of shared memory after those allocated so far."""
        begin = -(-self.shared_bytes // alignment) * alignment
        self.shared_bytes = begin + -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        return self.target.shared_memory(self.module, f"{self.kernel.name}.{name}", begin, size)

    def block(self, block: Block) -> list[Value]:
        """Emit a block's ops and return what it yields."""
        for run in _runs(block.ops):
            self.at(run[0])
            self.settle(run)
            if isinstance(run[0], ir.Yield):
                return list(run[0].values)
            if _is_elementwise(run[0]):
                self.registers.elementwise(run, self.at)
            else:
                self.op(run[0])
        return []

    def settle(self, ops: Sequence[Op]) -> None:
        """Finish the loads whose results these ops use; all of them before a region."""
        is_end = any(op.blocks or op.ends_blocks for op in ops)
        for v in [*self.requested] if is_end else [v for op in ops for v in op.operands if v in self.requested]:
            if finish := self.requested.pop(v, None):
                self.registers.vectors[v] = finish()

    def at(self, op: Op) -> None:
        self.f.loc = op.loc

    def op(self, op: Op) -> None:
        row_of(self.lowerings, op, "cannot lower")(self, op)


def launched(kernel: Kernel) -> tuple[Value, ...]:
    """Return the values computed once per launch, which are passed after the scalar arguments."""
    launch = launch_of(kernel)
    return launch.results if launch else ()


def exchanges(kernel: Kernel) -> list[Value]:
    return [op.result for op in walk(kernel.body) if isinstance(op, ir.MakeExchange)]


def _is_elementwise(op: Op) -> bool:
    return isinstance(op, ir.Elementwise) and isinstance(op.result.type, Vector)


def _reduces_rows(op: Op, run: Sequence[Op]) -> bool:
    """Return whether an op reduces rows of a result of a run of elementwise ops."""
    made = {other.result for other in run}
    return isinstance(op, ir.ReduceRegisters) and op.x in made and len(op.x.type.shape) - 1 in op.axes


def _runs(ops: Sequence[Op]) -> list[list[Op]]:
    """Return the ops in runs: elementwise ops of one shape together, pure ops between them moved before the run."""
    found: list[list[Op]] = []
    run: list[Op] = []
    """The last of `found`, if it can be extended."""
    for op in ops:
        if run and _is_elementwise(op) and op.result.type.shape == run[0].result.type.shape:
            run.append(op)
        elif run and _reduces_rows(op, run):
            run.append(op)
            run = []
        elif run and op.is_pure and not set(op.operands) & {other.result for other in run}:
            found.insert(-1, [op])
        else:
            found.append([op])
            run = found[-1] if _is_elementwise(op) else []
    return found


def _parameter_kind(v: Value) -> str:
    return "i64" if v.type.dtype == INDEX else in_memory(v.type.dtype)


def _stored(kernel: Kernel) -> set[Value]:
    """Return the memories that lanes or TMA write."""
    return {v for op in walk(kernel.body) for v in op.written}


def _parameters(kernel: Kernel, target: LaneTarget) -> list[Typed]:
    # LLVM assumes that no other pointer writes the memory of a `noalias` one, from the function's entry on, and keeps
    # loaded values across barriers; so arrays that are also stored, that others add to between two turns, or that an
    # earlier kernel wrote (PDL), have none.
    uses_pdl = any(isinstance(op, ir.WaitPriorLaunch) for op in walk(kernel.body))
    loaded = {v for op in walk(kernel.body) for v in op.read}
    shared_with_others = (loaded & _stored(kernel)) | added_in_turns(kernel)
    found: list[Typed] = []
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            alone = "" if uses_pdl or v in shared_with_others else " noalias"
            found.append((f"{target.global_pointer}{alone}", f"%{v.name}"))
            found += [("i64", f"%{v.name}.{axis}") for axis in range(v.type.rank)]
        else:
            found.append((_parameter_kind(v), f"%{v.name}"))
    found += [(_parameter_kind(v), f"%{v.name}") for v in launched(kernel)]
    found += [(target.global_pointer, f"%{v.name}") for v in exchanges(kernel)]
    return found
