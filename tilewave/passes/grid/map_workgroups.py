"""Replace `tile_of` by the arithmetic of a workgroup mapping, which proofs and drawings of the mapping evaluate too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from tilewave.errors import TraceError, here
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import TileOf, Workgroup
from tilewave.ir.rewrite import names, rename, replace_values, rewrite, walk
from tilewave.mapping import Grid, OpenGrid
from tilewave.records import dataclass


class TileOrder(Protocol):
    """A map from the number of a tile, in launch order, to its (batch, row, column)."""

    def bind(self, lookup: Callable[[Any], Any]) -> TileOrder:
        """Return the order with the parameters replaced that are known only at the call."""
        ...

    def tile(self, number: Any, grid: Grid | OpenGrid, workgroups: Any) -> tuple[Any, Any, Any]: ...


@dataclass(frozen=True, eq=False)
class Dealt(Number):
    """The number of a tile as an author's formula sees it: it allows arithmetic and no more."""

    called: str = "the workgroup's number"

    def make(self, value: Value) -> Number:
        return Dealt(self.builder, value, self.called)

    def __bool__(self) -> bool:
        self._refuse("has no truth value: it is known only when the kernel runs", CHOOSE)

    def __index__(self) -> int:
        self._refuse("is no Python number: it is known only when the kernel runs", CHOOSE)

    def __truediv__(self, other: object) -> NoReturn:
        self._refuse("is a whole number, and / may leave a fraction", "write //")

    __int__ = __float__ = __index__
    __rtruediv__ = __truediv__

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise TraceError(f"{self.called} {what}", loc=here(), remedy=remedy)

    def __repr__(self) -> str:
        return str(self.value)


CHOOSE = "write choose(condition, a, b), smaller(a, b), larger(a, b) of tilewave.mapping in place of if, min, max"


@dataclass(frozen=True)
class MapWorkgroups:
    order: TileOrder

    def __repr__(self) -> str:
        return f"MapWorkgroups({self.order})"

    def __call__(self, kernel: Kernel) -> Kernel:
        taken, same = names(kernel), dict[Value, Value]()

        def expand(op: Op) -> Sequence[Op] | None:
            return self.expand(op, kernel, taken, same) if isinstance(op, TileOf) else None

        return replace_values(rewrite(kernel, expand), same)

    def expand(self, op: TileOf, kernel: Kernel, taken: set[str], same: dict[Value, Value]) -> Sequence[Op]:
        """Return the arithmetic of the order; a result that needs none is entered in `same`."""
        builder = Builder(taken, locate=lambda: op.loc)
        arguments = {v.name: Dealt(builder, v) for v in kernel.body.args}
        order = self.order.bind(lambda symbol: arguments[str(symbol)])
        found = order.tile(Dealt(builder, op.number), *_grid(op, kernel, builder))
        values = [x.value if isinstance(x, Number) else builder.const(int(x)) for x in found]
        computed = {v for new in builder.ops for v in new.results}
        renamed: dict[Value, Value] = {}
        for value, result in zip(values, op.results, strict=True):
            if value in computed and value not in renamed:
                renamed[value] = result
            else:
                same[result] = renamed.get(value, value)
        return [rename(new, renamed) for new in builder.ops]


def _grid(op: TileOf, kernel: Kernel, builder: Builder) -> tuple[Grid | OpenGrid, Any]:
    """Return the grid and its number of workgroups, which is None where each computes the tile of its number."""
    if not op.sides:
        return Grid(op.rows, op.cols, op.batches), op.workgroups
    *sides, workgroups = op.with_sides([Dealt(builder, v, "a side of the grid") for v in op.sides])
    is_plain = any(isinstance(other, Workgroup) and other.result == op.number for other in walk(kernel.body))
    return OpenGrid(*sides), None if is_plain else workgroups
