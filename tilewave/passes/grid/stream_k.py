"""Stream-K: tiles of the last, partial wave are split along K, so that it keeps more workgroups busy.

    kernel {workgroups = 608}          kernel {workgroups = 132}, 80 tiles left, cut among 120 workgroups
      %sum = loop(%c65, …) {…}    →      loop(‹whole tiles, then one part or two›) do (%turn) {
      write(%sum, %c, …)                   %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
                                           loop(‹1 where it ends too early›)  { hand_over(%part, %exchange, %own) }
                                           %sum = loop(‹parts before it›, [%part]) { take_over(…, %exchange, …) }
                                           loop(‹1 where it ends the tile›) { write(%sum, %c, …) }

Workgroup w has the steps from w · S // G to (w + 1) · S // G of the S steps that are left; G workgroups share these.
Such a range is shorter than a tile, so it is one part of a tile or the end of one and the begin of the next. The
workgroup of a begin stores its partial sum; the workgroup of an end adds all partial sums before its own, in order, so
results are deterministic. A begin comes before an end, so that no workgroup waits for one that waits itself.

Workgroups with multicast loads take the same number of steps in every turn. Where rows are such that they would
multicast, each of the T tiles that are left is split into equal parts, and workgroup w has part w // T of tile w % T:
most neighbours then still need the same operands. The last part may run past the end of its tile, where zeros are read.
"""

from __future__ import annotations

from tilewave.analysis.shared_tiles import TileProgram, hands_over
from tilewave.analysis.splits import splits_that_pay
from tilewave.ir.core import BATCH_INVARIANT, Kernel
from tilewave.ir.ops import Mma
from tilewave.ir.placements import is_line_aligned
from tilewave.ir.remarks import Left, RemarkKind, want
from tilewave.ir.rewrite import walk
from tilewave.ir.stream_k import equal_splits, stream_k_workgroups
from tilewave.machine.tuning import SplitTuning
from tilewave.records import dataclass
from tilewave.transform.scattered_split_k import ScatteredSplits, slices_of
from tilewave.transform.stream_k import EqualParts, SingleTiles, StepRanges, StreamKBuilder, TileWaves

AS_QUICK = RemarkKind(
    "the last wave has {left} of {at_once} tiles, and stream-K with splits of {steps} steps would take as long as "
    "whole tiles"
)
BEYOND = RemarkKind(
    "equal splits of {steps} steps extend past the end of a tile, where this loop adds more than zeros, so stream-K "
    "is not used for the last wave",
    "let the loop have an even number of steps",
)
ONE_SUM = RemarkKind("the kernel is batch-invariant, so stream-K is not used for the last wave")
UNALIGNED_LINES = RemarkKind(
    "loads of rows with dynamic sizes are multicast, so tiles of small grids are not split among workgroups",
    "give the loop's dimension a value in subs",
)


@dataclass(frozen=True)
class StreamK:
    """`workgroups`: as many as run at once.

    Where rows do not begin on lines of `line_bytes`, neighbours multicast loads, and take equally many steps.
    """

    workgroups: int
    costs: SplitTuning
    line_bytes: int = 1
    open_on_lines: bool = True
    """Whether the code is for arrays of dynamic row length whose rows begin on cache lines."""
    only_few: bool = False
    """Whether tiles are split only where no wave is full; else each workgroup has one tile and ends."""

    def __repr__(self) -> str:
        return f"StreamK({self.workgroups})"

    def __call__(self, kernel: Kernel) -> Kernel:
        products = any(isinstance(op, Mma) for op in walk(kernel.body))
        if not self.workgroups or not products or hands_over(kernel):
            return kernel
        left = kernel.workgroups % self.workgroups if isinstance(kernel.workgroups, int) else None
        if left == 0 or (self.only_few and left != kernel.workgroups and left is not None):
            return kernel
        if kernel.sums == BATCH_INVARIANT:
            return kernel.with_remarks(ONE_SUM.at(next(op.loc for op in walk(kernel.body) if isinstance(op, Mma))))
        try:
            found = TileProgram.of(kernel)
            if left is None or not isinstance(found.steps, int):
                return self.open_waves(kernel, found).kernel()
            return self.waves(kernel, found, left).kernel()
        except Left as why:
            return kernel.with_remarks(why.remarks)

    def is_on_lines(self, found: TileProgram) -> bool:
        return all(is_line_aligned(memory, self.line_bytes, self.open_on_lines) for memory in found.memories)

    def open_waves(self, kernel: Kernel, found: TileProgram) -> StreamKBuilder:
        """Return the kernel for dynamic shapes: the launch computes how many workgroups share the last wave, if any."""
        sharing = self.costs, self.workgroups, self.workgroups
        if self.is_on_lines(found):
            return StepRanges(kernel, found, *sharing, SingleTiles.at_launch if self.only_few else TileWaves.at_launch)
        want(not self.only_few, UNALIGNED_LINES, found.loop.loc)
        want(found.ends_in_zeros, BEYOND, found.loop.loc, steps="equally many")
        return EqualParts(kernel, found.running_on, *sharing, TileWaves.at_launch)

    def waves(self, kernel: Kernel, found: TileProgram, left: int) -> StreamKBuilder | ScatteredSplits:
        """Return the kernel for static shapes; raise `Left` where whole tiles are as fast."""
        on_lines, whole = self.is_on_lines(found), kernel.workgroup_count - left
        if on_lines and not whole and (scattered := self.scattered(kernel, found)):
            return scattered
        decide = stream_k_workgroups if on_lines else equal_splits
        shares = decide(left, found.steps, self.workgroups, found.step_bytes, self.costs.hand_over_bytes)
        want(shares, AS_QUICK, found.loop.loc, left=left, at_once=self.workgroups, steps=found.steps)
        shares = shares if on_lines else self.parts(found, left, shares)
        waves = TileWaves(whole, left, found.steps, left * found.steps, shares, self.workgroups)
        if on_lines:
            return StepRanges(kernel, found, self.costs, shares, self.workgroups, lambda _: waves)
        tile = found.running_on if found.steps % shares else found
        return EqualParts(kernel, tile, self.costs, left * shares, self.workgroups, lambda _: waves)

    def scattered(self, kernel: Kernel, found: TileProgram) -> ScatteredSplits | None:
        """Return the small grid in splits whose slices several workgroups add up; None where that does not pay."""
        weighed = kernel.workgroup_count, found.steps, self.workgroups, found.step_bytes, found.sums_bytes
        parts = splits_that_pay(*weighed, self.costs)
        slices = slices_of(found, parts, self.costs)
        return ScatteredSplits(kernel, found, parts, slices, self.costs) if slices > 1 else None

    def parts(self, found: TileProgram, left: int, parts: int) -> int:
        """Return `parts`, or fewer that divide the steps where these may not run past the end of a tile."""
        if found.ends_in_zeros:
            return parts
        exact = (n for n in range(parts, 1, -1) if found.steps % n == 0 and left * n % 2 == 0)
        fewer = next(exact, 0)
        want(fewer, BEYOND, found.loop.loc, steps=found.steps)
        return fewer
