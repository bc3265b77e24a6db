"""Select a matrix instruction of the machine for every product, and assign each wave its part of the tile.

Where tiles, waves and instructions do not divide each other, tiles are padded to whole blocks (`padded_products.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from tilewave.analysis.axes import Axes, own_leaves
from tilewave.errors import NOWHERE, ConstraintError, Loc
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Mma
from tilewave.ir.rewrite import rewrite, walk
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import (
    ALL,
    WISHES,
    GroupInstruction,
    MatrixInstruction,
    Waves,
    instructions_for,
    spelled,
    up_to_multiple,
)
from tilewave.records import dataclass
from tilewave.transform.padded_products import padded_products

SIDES = ("rows", "columns")


@dataclass(frozen=True)
class SelectMma:
    """`each_way`: waves, or warpgroups, along rows and along columns where the author does not give their number."""

    machine: Chip
    places: Places
    each_way: int = 2

    def __repr__(self) -> str:
        return f"SelectMma({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        self.check_wave_tiles()
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        wished = _two(kernel.waves)
        self.check_number(wished or (1, 1))
        cut = wished or self.below_each_other(kernel)
        chosen: dict[Mma, MatrixInstruction] = {}
        waves: Waves | None = None
        for op in products:
            chosen[op] = self.instruction(op, op.wish or kernel.matrix, waves or cut)
            waves = waves or self.waves(op, chosen[op], cut)
            self.check_holds(op, chosen[op], waves)

        def choose(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Mma):
                return None
            return [replace(op, instruction=chosen[op].name, depth=self.block_depth(op, chosen[op]))]

        selected = rewrite(kernel, choose)
        return padded_products(replace(selected, waves=waves or wished or (1, 1), lanes=self.machine.lanes))

    def below_each_other(self, kernel: Kernel) -> Waves | None:
        """Return waves that split rows only, where an accumulator is the left operand of another product.

        Each wave then has whole rows of that operand. Return None where there is no such product; rows and columns are
        then split by `each_way`.
        """
        own = own_leaves(kernel)
        axes, products = Axes(own.body.ops), [op for op in walk(own.body) if isinstance(op, Mma)]
        rows = {axes.of(op.acc)[-2:] for op in products}
        if not any((axes.of(op.acc)[-2], axes.of(op.a)[-1]) in rows for op in products):
            return None
        block, _ = self.instruction(products[0], kernel.matrix, None).block
        count = self.each_way**2
        while count > 1 and _tile(products[0])[0] % (count * block):
            count //= 2
        return count, 1

    # -- the instruction

    def instruction(self, op: Mma, wish: str, waves: Waves | None) -> MatrixInstruction:
        """Return the author's instruction, or the first among those that pad the tile least."""

        def padded(i: MatrixInstruction) -> int:
            return prod(i.padded(_box(op), self.waves(op, i, waves)))

        return min(self.in_order_of_choice(op, wish), key=padded)

    def waves(self, op: Mma, instruction: MatrixInstruction, wished: Waves | None) -> Waves:
        return instruction.waves(_tile(op), wished, self.each_way)

    def in_order_of_choice(self, op: Mma, wish: str) -> list[MatrixInstruction]:
        chip = self.machine.matrix
        dtypes = _dtypes(op)
        wished = WISHES.get(wish)
        if wished and wished.ignored_bits and chip in wished.chips and wished.dtypes(chip) == dtypes:
            return [wished]
        found = list(instructions_for(chip, *dtypes))
        if not found:
            self.refuse_dtypes(op)
        if not wish:
            return found
        if wished is None:
            raise ConstraintError(f"no matrix instruction is called {wish!r}", loc=self.wished_at(op))
        if dtypes not in [wished.dtypes(c) for c in ((chip,) if chip in wished.chips else wished.chips)]:
            self.refuse_wish(op, wished, found[0])
        if wished in found:
            return [wished]
        return sorted(found, key=lambda i: i.rows != wished.rows)

    def block_depth(self, op: Mma, instruction: MatrixInstruction) -> int:
        """Return the K depth that a lane reads at once: the widest read of an operand, where the depth allows it.

        Return the whole depth for a `GroupInstruction`, which reads shared memory itself.
        """
        depth = up_to_multiple(op.a.type.shape[-1], instruction.depth)
        if isinstance(instruction, GroupInstruction):
            return depth
        bytes_of_one = instruction.fragment().per_lane * op.a.type.dtype.bytes
        count = max(1, self.machine.shared.widest_bytes // bytes_of_one)
        while depth % (count * instruction.depth):
            count //= 2
        return count * instruction.depth

    def refuse_dtypes(self, op: Mma) -> NoReturn:
        chip = self.machine.matrix
        has = [i.dtypes(chip) for i in ALL if chip in i.chips and not i.ignored_bits]
        near = [dtypes for dtypes in has if _are_near(dtypes, _dtypes(op))]
        raise ConstraintError(
            f"no matrix instruction of {self.machine.name} is used for {_products(_dtypes(op))}, "
            f"which the mma at {op.loc} needs",
            loc=self.places.hardware,
            remedy=f"it multiplies {_inputs(near or has)}; declare the memories so, or cast what is read"
            + self.less_exact(op),
        )

    def less_exact(self, op: Mma) -> str:
        """Return the part of a remedy that offers instructions which ignore low bits."""
        chip = self.machine.matrix
        offered = [i for i in WISHES.values() if i.ignored_bits and chip in i.chips and i.dtypes(chip) == _dtypes(op)]
        return "".join(
            f"; or write mma_type={spelled(i)}, which ignores the last {i.ignored_bits} bits of both" for i in offered
        )

    def refuse_wish(self, op: Mma, wished: MatrixInstruction, better: MatrixInstruction) -> NoReturn:
        chip = self.machine.matrix if self.machine.matrix in wished.chips else wished.chips[0]
        like = next((i for i in instructions_for(self.machine.matrix, *_dtypes(op)) if i.rows == wished.rows), better)
        instead = f"write mma_type={spelled(like)}, or " if like.name in WISHES else ""
        raise ConstraintError(
            f"{spelled(wished)} computes {_products(wished.dtypes(chip))}, but the mma at {op.loc} computes "
            f"{_products(_dtypes(op))}",
            loc=self.wished_at(op),
            remedy=f"{instead}leave mma_type out",
        )

    def wished_at(self, op: Mma) -> Loc:
        """Return the source location that names the instruction of a product."""
        return op.loc if op.wish else self.places.hardware

    # -- what a machine can hold

    def check_holds(self, op: Mma, instruction: MatrixInstruction, waves: Waves) -> None:
        """Raise where the accumulator exceeds the columns or registers that a `GroupInstruction` allows."""
        if not isinstance(instruction, GroupInstruction):
            return
        rows, cols, _ = instruction.padded(_box(op), waves)
        if cols > instruction.most_columns:
            raise ConstraintError(
                f"the tile has {cols} columns, but {instruction.name} computes {instruction.most_columns} at most",
                loc=_first(self.places.sides[1].tiled_at, self.places.tiles, op.loc),
                remedy=f"make the tile of {self.side_name(1)} {instruction.most_columns} or less",
            )
        held = prod(op.acc.type.shape[:-2]) * rows * cols // (prod(waves) * self.machine.lanes)
        if held > instruction.most_sums:
            raise ConstraintError(
                f"a tile of {rows}x{cols} leaves each lane {held} sums to hold, but {self.machine.name} has registers "
                f"for {instruction.most_sums}",
                loc=_first(self.places.tiles, op.loc),
                remedy=f"make the tile of {self.side_name(0)} or that of {self.side_name(1)} smaller",
            )

    def check_wave_tiles(self) -> None:
        for side in self.places.sides:
            if side.wave_tile and side.tile % side.wave_tile:
                parts = [d for d in range(1, side.tile + 1) if side.tile % d == 0]
                near = min(parts, key=lambda d: (abs(d - side.wave_tile), -d))
                raise ConstraintError(
                    f"waves of {side.wave_tile} do not divide the tile of {side.name}, which is {side.tile}",
                    loc=side.cut_at,
                    remedy=f"write WaveConstraint({side.name}, {near}), or another divisor of {side.tile}",
                )

    def check_number(self, waves: Waves) -> None:
        if prod(waves) > self.machine.most_waves:
            raise ConstraintError(
                f"a workgroup of {waves[0]}x{waves[1]} waves has {prod(waves)}, but {self.machine.name} runs "
                f"{self.machine.most_waves} at most",
                loc=self.places.waves,
                remedy="give each wave a larger part of the tile",
            )

    def side_name(self, axis: int) -> str:
        return self.places.sides[axis].name or SIDES[axis]


def _two(waves: tuple[int, ...]) -> Waves | None:
    """Return waves along rows and columns; None where the author leaves them open."""
    if not waves:
        return None
    rows, cols = (*waves, 1)[:2]
    return rows, cols


def _tile(op: Mma) -> tuple[int, int]:
    """Return rows and columns of the accumulator."""
    rows, cols = op.acc.type.shape[-2:]
    return rows, cols


def _box(op: Mma) -> tuple[int, int, int]:
    """Return rows, columns and depth of a product."""
    return *_tile(op), op.a.type.shape[-1]


def _dtypes(op: Mma) -> tuple[str, str, str]:
    a, b, acc = (v.type.dtype.name for v in (op.a, op.b, op.acc))
    return a, b, acc


def _products(dtypes: tuple[str, str, str]) -> str:
    a, b, acc = dtypes
    return f"{a} times {b} into {acc}"


def _inputs(products: Sequence[tuple[str, str, str]]) -> str:
    """Format operand dtypes by accumulator dtype: `f16, bf16 into f32; i8 into i32`."""
    by_acc: dict[str, dict[str, None]] = {}
    for a, b, acc in products:
        by_acc.setdefault(acc, {}).update(dict.fromkeys((a, b)))
    return "; ".join(f"{', '.join(inputs)} into {acc}" for acc, inputs in by_acc.items())


def _are_near(ours: tuple[str, str, str], theirs: tuple[str, str, str]) -> bool:
    """Whether two products have dtypes of the same kinds and widths: `f8e4m3fnuz` and `f8e4m3fn`."""
    return all(a[:6] == b[:6] for a, b in zip(ours, theirs, strict=True))


def _first(*locs: Loc) -> Loc:
    return next((loc for loc in locs if loc != NOWHERE), NOWHERE)
