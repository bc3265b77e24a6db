"""Interleave matrix and memory instructions in a loop that loads one step ahead, so that they overlap.

| waves            | what is loaded            | order                                                              |
|------------------|---------------------------|--------------------------------------------------------------------|
| one a unit       | anything                  | one by one, operands are read ahead: `mma_alone.py`                |
| two share a unit | tiles, to registers       | in turns (ping-pong): `mma_in_turns.py`                            |
|                  | copies past the registers | one by one if both halves of the operands fit, else in turns       |

A unit is a matrix unit. Where the registers cannot hold both halves, or the depth has none, or a loop has one
step at most, a step reads and loads for itself; with several stages of copies in flight, a wave reads all operands of
a step ahead if two steps' fit. A loop of another form is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewave.analysis.mma_step import MmaStep, hands_shared_over
from tilewave.analysis.ranges import Ranges
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import CopyAsyncChunks, Load, Loop, Matrix, WaitAsync
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, replace_values, rewrite, uses
from tilewave.machine.chips import MatrixUnits
from tilewave.records import dataclass
from tilewave.transform.mma_alone import ReadAhead, ReadAtOnce, StepAhead
from tilewave.transform.mma_in_turns import CopiesInTurns, LoadsInTurns, StepsInTurns

OTHER_WAVES = RemarkKind(
    "loads are interleaved with products in workgroups of {alone} or {together} waves, and this one has {waves}",
    "split the tile among {alone} or {together} waves",
)

MmaOrder = StepAhead | ReadAhead | ReadAtOnce | CopiesInTurns | StepsInTurns | LoadsInTurns


@dataclass(frozen=True)
class InterleaveMma:
    """`depths`: the K depth of each matrix instruction; `units`: the matrix units of a CU, with their registers.

    `spare`: registers for addresses and the like. `margin`: with fewer free ones, sums are copied between ordinary and
    accumulation registers (VGPRs and AGPRs).
    """

    depths: dict[str, int]
    units: MatrixUnits
    spare: int = 40
    margin: int = 64

    def __repr__(self) -> str:
        return "InterleaveMma()"

    def __call__(self, kernel: Kernel) -> Kernel:
        taken, used, ranges = names(kernel), uses(kernel), Ranges(kernel)
        follows_turns = False
        new: dict[Value, Value] = {}
        remarks: list[Remark] = []

        def lay_out(op: Op) -> Sequence[Op] | None:
            nonlocal follows_turns
            if follows_turns and (hands_shared_over(op) or isinstance(op, WaitAsync)):
                return []  # since its last turn a wave has passed a barrier and waited for its copies
            step: MmaStep | None = None
            try:
                step = _step(op, used, prod(kernel.waves), self.units.count)
            except Left as left:
                remarks.append(left.remarks)
            follows_turns = False
            if step is None:
                return None
            least, most = ranges.of(step.loop.trips)
            order = self.order(step, kernel, taken, most)
            follows_turns = isinstance(order, (CopiesInTurns, StepsInTurns, LoadsInTurns)) and not step.pending
            ops, results = order.loops(max(least, 0))  # a range may reach below 0; a loop without steps is one of 0
            new.update(results)
            return ops

        return replace_values(rewrite(kernel, lay_out), new).with_remarks(*remarks)

    def order(self, step: MmaStep, kernel: Kernel, taken: set[str], most_trips: int) -> MmaOrder:
        """Return the order of a loop: in turns, unless a wave is alone or copies are all that its products wait for."""
        depth = self.depths[step.product.instruction]
        is_alone = prod(kernel.waves) == self.units.count
        spare = self.spare + (self.margin if is_alone else 0)
        room = self.units.registers // (1 if is_alone else 2)
        parts = step, taken, self.units, spare, depth
        is_ahead = most_trips > 1 and step.depths % 2 == 0 and step.registers() + spare <= room
        if step.depths % 2 and step.pending and step.registers() + step.operand_registers() + spare <= room:
            return StepAhead(*parts, kernel.lanes)
        if is_ahead and (is_alone or step.waits):
            return ReadAhead(*parts, kernel.lanes)
        if is_alone:
            return ReadAtOnce(*parts)
        if step.waits:
            return CopiesInTurns(*parts)
        return LoadsInTurns(*parts) if is_ahead else StepsInTurns(*parts)


def _step(op: Op, used: Mapping[Value, int], waves: int, alone: int) -> MmaStep | None:
    """Return the parts of a loop that loads and multiplies; None for other ops."""
    inside = op.body.ops if isinstance(op, Loop) else ()
    loads = any(
        isinstance(o, CopyAsyncChunks) or (isinstance(o, Load) and not is_in(o.memory, "shared")) for o in inside
    )
    if not isinstance(op, Loop) or not loads or not any(isinstance(o, Matrix) for o in inside):
        return None
    in_pairs = 2 * alone
    want(waves in (alone, in_pairs), OTHER_WAVES, op.loc, waves=waves, alone=alone, together=in_pairs)
    return MmaStep.of(op, used)
