"""Make a kernel persistent: where it has more tiles than run at once, each workgroup computes several in a loop.

    kernel {workgroups = 512}              kernel {workgroups = 132}
      %w = workgroup()                →      %w = workgroup()
      …                                      loop(‹as many as %w, %w + 132, … are below 512›) {
                                               %number = add(%w, mul(%i, %c132))
                                               …

With dynamic shapes there is always a loop, and the launch counts tiles and workgroups.
The loads of one tile then overlap with the epilogue of the previous one; tiles are computed in launch order. Tiles with
different numbers of steps, as under a causal mask, are dealt in alternating direction, as `folded()` of the mappings
does, to a number of workgroups that gives each the same work (`even_rounds`); where these would be few, the kernel
stays as it is, and the hardware assigns the next tile to the next free SM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewave.analysis.ranges import divisor_of, last_workgroups
from tilewave.analysis.shared_tiles import hands_over
from tilewave.analysis.splits import tiles_of
from tilewave.analysis.tile_programs import computes_one_tile, finds_numbers
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.launch import at_launch, known_at_launch, launch_and_rest
from tilewave.ir.ops import Const, Loop, Mma, Sub, WaitTurn, Workgroup, Yield
from tilewave.ir.remarks import RemarkKind
from tilewave.ir.rewrite import names, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR, Scalar
from tilewave.mapping import even_rounds, folded
from tilewave.mapping.grid import Deal, OpenDeal, OpenGrid
from tilewave.records import dataclass

OWN_LOOP = RemarkKind(
    "another loop encloses the K loop, so the kernel is not made persistent: {tiles} workgroups are launched, and "
    "{at_once} run at once"
)
IN_TURNS = RemarkKind(
    "a workgroup of a persistent kernel may wait for a turn of one that has not started, so the kernel is not made "
    "persistent: each workgroup computes one tile"
)
UNEVEN = RemarkKind(
    "tiles take different numbers of steps, and no number of workgroups near {at_once} balances them, so the kernel "
    "is not made persistent: each workgroup computes one tile",
    "start with the longest tiles: WorkgroupMapping(last_first()) under a causal mask",
)


@dataclass(frozen=True)
class MakePersistent:
    """`workgroups`: as many as run at once; 0 where several fit on an SM, and each computes one tile."""

    workgroups: int

    def __call__(self, kernel: Kernel) -> Kernel:
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        fits = isinstance(kernel.workgroups, int) and kernel.workgroups <= self.workgroups
        if not self.workgroups or fits or not products or hands_over(kernel):
            return kernel
        if not computes_one_tile(kernel):
            many = kernel.workgroups if isinstance(kernel.workgroups, int) else "all"
            return kernel.with_remarks(OWN_LOOP.at(products[0].loc, tiles=many, at_once=self.workgroups))
        turns = next((op for op in walk(kernel.body) if isinstance(op, WaitTurn)), None)
        if turns is not None:
            return kernel.with_remarks(IN_TURNS.at(turns.loc))
        loops = [op for op in kernel.body.ops if isinstance(op, Loop) and not finds_numbers(op)]
        uneven = next((op for op in loops if op.trips in depending(kernel)), None)
        rounds = _Rounds(kernel, self.workgroups)
        if uneven is None:
            return rounds.in_order()
        return rounds.to_and_fro(uneven) or kernel.with_remarks(UNEVEN.at(uneven.loc, at_once=self.workgroups))


class _Rounds:
    """Builds a kernel whose workgroups loop over tiles."""

    def __init__(self, kernel: Kernel, workgroups: int) -> None:
        self.old, self.at_once = kernel, workgroups
        self.first = next(op for op in kernel.body.ops if isinstance(op, Workgroup))
        self.builder = Builder(names(kernel), locate=lambda: self.first.loc)
        self.own = Number(self.builder, self.builder.emit(Workgroup, type=INDEX_SCALAR, name="own"))
        self.tiles = tiles_of(kernel, self.builder)
        self.same: dict[Value, Value] = {}
        """Values of the old kernel, and their replacements."""

    def in_order(self) -> Kernel:
        return self.dealt(self.at_once, lambda turn: self.own + turn * self.at_once)

    def to_and_fro(self, uneven: Loop) -> Kernel | None:
        """Return the kernel with the tiles of every second wave dealt from the last workgroup to the first.

        Return None where many workgroups would have less work. With dynamic shapes the launch decides: all tiles may
        be in one wave.
        """
        period = self.period(uneven)
        staying = self.at_once if period is None else even_rounds(period, self.at_once)
        if isinstance(staying, Number):
            staying = (staying > 0).choose(staying, self.tiles).smaller(self.tiles)
        if isinstance(staying, int) and staying == 0:
            return None
        fixed = isinstance(self.tiles, int)
        deal = Deal(self.tiles, staying) if fixed else OpenDeal(OpenGrid(self.tiles, 1), staying)
        last = self.last()

        def number(turn: Number) -> Any:
            found = folded().dealt(turn, self.own, deal)
            return found.larger(0).smaller(last)  # no change, but gives later passes the range

        return self.dealt(staying, number)

    def last(self) -> Any:
        """Return the number of the last tile; with dynamic shapes it also replaces the number of the last
        workgroup."""
        if isinstance(self.tiles, int):
            return self.tiles - 1
        last = self.tiles.larger(1) - 1
        self.same = dict.fromkeys(last_workgroups(self.old), last.value)
        return last

    def period(self, uneven: Loop) -> Any:
        """Return after how many tiles the trip counts repeat: an int, or a scalar of the launch; None where that is
        not known."""
        defs = self.old.defs
        looked_at, known = [uneven.trips], known_at_launch(self.old)
        for v in looked_at:
            op = defs.get(v)
            divisor = divisor_of(op.a, op.b, defs) if isinstance(op, Sub) else None
            if divisor is not None:
                maker = defs.get(divisor)
                fixed = int(maker.value) if isinstance(maker, Const) else None
                return fixed or (Number(self.builder, divisor) if divisor in known else None)
            looked_at += [x for x in op.operands if x not in looked_at] if op and not op.blocks else []
        return None

    def dealt(self, staying: Any, number: Callable[[Number], Any]) -> Kernel:
        """Return the kernel for `staying` workgroups; `number` maps an iteration to the tile that it computes."""
        tiles, builder = self.tiles, self.builder
        trips = (tiles + (staying - 1) - self.own) // staying
        turn = Number(builder, builder.fresh("turn", INDEX_SCALAR))
        with builder.region():
            body = self.body(turn.value, number(turn).value)
        loop = Loop(trips.value, (), body, loc=self.first.loc)
        grid = staying
        if not isinstance(tiles, int):
            grid = (tiles.smaller(staying) if isinstance(staying, int) else staying).value.name
        launch, _ = launch_and_rest(self.old.body)
        whole = replace(self.old.body, ops=(*launch, *builder.ops, loop))
        return at_launch(replace(self.old, body=whole, workgroups=grid))

    def body(self, turn: Value, number: Value) -> Block:
        """Return the body of the old kernel with the tile number in place of the workgroup number."""
        numbers = {op.result: number for op in self.old.body.ops if isinstance(op, Workgroup)}
        _, rest = launch_and_rest(self.old.body)
        inner = substitute_block(rest, {**self.same, **numbers})
        ops = [op for op in inner.ops if not isinstance(op, Workgroup)]
        return Block((turn,), (*self.builder.ops, *ops, Yield((), loc=ops[-1].loc)))


def depending(kernel: Kernel) -> set[Value]:
    """Return the scalars that differ between workgroups."""
    found: set[Value] = set()
    for op in kernel.body.ops:
        numbers = all(isinstance(v.type, Scalar) for v in op.results)
        if isinstance(op, Workgroup) or (numbers and found.intersection(op.operands)):
            found.update(op.results)
    return found
