"""Control flow"""

from __future__ import annotations

from tilewave.ir.core import Block, Op, Value, Want
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_BOTH, ON_LANES, parts_only, want_results, want_yields
from tilewave.ir.types import BOOL, INDEX_SCALAR, Accumulator, Scalar, Tile, is_held
from tilewave.records import dataclass

__all__ = [
    "Loop",
    "Role",
    "While",
    "Yield",
]

MOST_WAVES = 1024
"""More waves than any workgroup has; each target's passes check its limit."""


@dataclass(frozen=True)
class Loop(Computed):
    """body(i, *carried) for i in range(trips) yields the next carried values; the results are the last ones."""

    levels = ON_BOTH
    gives = None

    trips: Value
    init: tuple[Value, ...]
    body: Block
    optional: bool = False
    """Whether the author allows that it does not run; what only this loop writes may then stay unwritten."""
    split: int = 1
    """The number of equal parts into which the iterations are split. Each part starts from zeros, and the parts' sums
    are added in order to the loop's initial value. Only on the tile level; lowering to lanes assigns the parts."""

    def check(self, want: Want) -> None:
        carried = [v.type for v in self.init]
        _want_carried(self, want)
        want(self.split >= 1, f"is cut into one part at least, not {self.split}")
        want(self.split == 1 or all(isinstance(kind, Tile) for kind in carried), "adds up tiles, if it is cut")
        want(self.trips.type == INDEX_SCALAR, f"counts by an index, not {self.trips.type}")
        args = [v.type for v in self.body.args]
        want(args == [INDEX_SCALAR, *carried], "its block takes an index and what it carries")
        want_yields(self.body, carried, want)
        want_results(self, want, *carried)

    @property
    def carried(self) -> list[tuple[Value, ...]]:
        """For each carried value: the result, its name inside, what is yielded, and the initial value."""
        return list(zip(self.results, self.body.args[1:], self.body.yielded, self.init, strict=True))


@dataclass(frozen=True)
class While(Computed):
    """While condition(*carried) yields true, carried = body(*carried)."""

    levels = ON_BOTH
    gives = None

    init: tuple[Value, ...]
    condition: Block
    body: Block

    def check(self, want: Want) -> None:
        carried = [v.type for v in self.init]
        _want_carried(self, want)
        for block in (self.condition, self.body):
            want([v.type for v in block.args] == carried, "its blocks take what it carries")
        want_yields(self.condition, [Scalar(BOOL)], want)
        want_yields(self.body, carried, want)
        want_results(self, want, *carried)

    @property
    def carried(self) -> list[tuple[Value, ...]]:
        """For each carried value: the result, its names inside, what is yielded, and the initial value."""
        inside = (self.condition.args, self.body.args)
        return list(zip(self.results, *inside, self.body.yielded, self.init, strict=True))


def _want_carried(op: Loop | While, want: Want) -> None:
    held = all(is_held(v.type) or isinstance(v.type, Accumulator) for v in op.init)
    want(held, "carries numbers and tiles")


@dataclass(frozen=True)
class Role(Op):
    """Only waves `first` to `last` - 1 run this block; the others continue after it.

    `others_keep` limits the registers of the other waves' lanes, so that these waves have more; 0 changes nothing.
    """

    levels = ON_LANES

    first: int
    last: int
    body: Block
    others_keep: int = 0

    def check(self, want: Want) -> None:
        fits = 0 <= self.first < self.last <= MOST_WAVES and not self.body.args
        want(fits, "takes waves first to last - 1")
        want(not self.body.ops or not isinstance(self.body.ops[-1], Yield), "yields nothing")
        want(self.others_keep >= 0, "leaves the other waves some registers")


@dataclass(frozen=True)
class Yield(Op):
    """Ends a block and yields its values."""

    levels = ON_BOTH
    ends_blocks = True

    values: tuple[Value, ...]

    check = parts_only  # the op that owns the block checks the yielded types


OPS: tuple[type[Op], ...] = (
    Loop,
    While,
    Role,
    Yield,
)
