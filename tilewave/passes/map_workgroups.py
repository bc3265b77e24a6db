"""Replace `tile_of` by the arithmetic of a workgroup mapping: what was proved and drawn is what runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import TileOf
from tilewave.ir.rewrite import names, rename, replace_values, rewrite
from tilewave.mapping import Grid


class Order(Protocol):
    """From the number of a tile, in the order dealt, to its (batch, row, column)."""

    def bind(self, lookup: Callable[[object], Any]) -> Order:
        """With the parameters that are known only at the call replaced."""
        ...

    def tile(self, number: Any, grid: Grid, workgroups: int) -> tuple[Any, Any, Any]: ...


@dataclass(frozen=True)
class MapWorkgroups:
    order: Order

    def __repr__(self) -> str:
        return f"MapWorkgroups({self.order})"

    def __call__(self, kernel: Kernel) -> Kernel:
        taken, same = names(kernel), dict[Value, Value]()

        def expand(op: Op) -> Sequence[Op] | None:
            return self.expand(op, kernel, taken, same) if isinstance(op, TileOf) else None

        return replace_values(rewrite(kernel, expand), same)

    def expand(self, op: TileOf, kernel: Kernel, taken: set[str], same: dict[Value, Value]) -> Sequence[Op]:
        """The order's arithmetic; a result that it leaves as it came goes into `same`."""
        builder = Builder(taken, locate=lambda: op.loc)
        arguments = {v.name: Number(builder, v) for v in kernel.body.args}
        order = self.order.bind(lambda symbol: arguments[str(symbol)])
        grid = Grid(op.rows, op.cols, op.batches)
        found = order.tile(Number(builder, op.number), grid, op.workgroups)
        values = [x.value if isinstance(x, Number) else builder.const(int(x)) for x in found]
        computed = {v for new in builder.ops for v in new.results}
        renamed: dict[Value, Value] = {}
        for value, result in zip(values, op.results, strict=True):
            if value in computed and value not in renamed:
                renamed[value] = result
            else:
                same[result] = renamed.get(value, value)
        return [rename(new, renamed) for new in builder.ops]
