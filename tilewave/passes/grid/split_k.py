"""Split-K: workgroups compute the splits of a sum in parallel, and one of them adds up the partial sums.

    kernel {workgroups = 8}                          kernel {workgroups = 32}
      %sum = loop(%steps, [%zero]) {split = 4}  →      %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
      write(%sum, %c, …)                               loop(‹1 but for the first part›)  { hand_over(%part, …) }
                                                       %sum = loop(‹3 for the first part›, [%part]) { take_over(…) }
                                                       loop(‹1 for the first part›) { write(%sum, %c, …) }

Neighbours have the same split of different tiles, so that operands they share are in the cache when the second one
loads them: of T tiles in P splits, workgroup w has split (w // T + 1) % P of tile w % T. The first split comes last,
and adds all others in order: ((split 0 + split 1) + split 2) + …, whichever is ready first, so results are
deterministic. No workgroup waits for one that starts later.

Where there are more tiles than the machine needs, each workgroup computes all splits of a tile in sequence, and stores
its running sum in a slot while it computes the next split: results are bit-identical. With dynamic shapes, the launch
chooses between the two.
"""

from __future__ import annotations

from tilewave.analysis.register_pressure import REGISTER_BYTES, splits_in_turns
from tilewave.analysis.shared_tiles import TileProgram
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Loop
from tilewave.ir.remarks import Left
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import Chip
from tilewave.machine.tuning import SplitTuning
from tilewave.records import dataclass
from tilewave.transform.scattered_split_k import ScatteredSplits, slices_of
from tilewave.transform.split_k import SplitKBuilder


@dataclass(frozen=True)
class SplitK:
    """`workgroups`: as many as run at once, one on each processor.

    `sharing`: the chip, where lanes load what they multiply, so that several workgroups share a processor.
    """

    workgroups: int
    costs: SplitTuning
    sharing: Chip | None = None

    def __repr__(self) -> str:
        return f"SplitK({self.workgroups})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if not any(isinstance(op, Loop) and op.split > 1 for op in walk(kernel.body)):
            return kernel
        try:
            program = TileProgram.of(kernel)
        except Left as why:
            return kernel.with_remarks(why.remarks)
        found = SplitKBuilder(kernel, program, self.at_once(program), self.costs)
        is_known = found.shares is True and isinstance(program.steps, int)
        slices = slices_of(program, found.parts, self.costs) if is_known else 1
        shared = ScatteredSplits(kernel, program, found.parts, slices, self.costs) if slices > 1 else found
        return shared.kernel()

    def at_once(self, program: TileProgram) -> int:
        """Return how many workgroups run at once."""
        if self.sharing is None:
            return self.workgroups
        return splits_in_turns(self.sharing, program.sums_bytes // REGISTER_BYTES, program.loaded_bytes)
