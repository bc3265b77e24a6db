"""Products deeper than the rows that a matrix unit reads from shared memory become several, one behind the other.

%x = read(%a, [%m, %k]) : tile<128x128xf16>   →  %x_0 = read(%a, [%m, %k]) : tile<128x64xf16>
%z = mma(%x, %y, %acc)                           %x_64 = read(%a, [%m, %k_64]) : tile<128x64xf16>
                                                 %z_0 = mma(%x_0, %y_0, %acc)
                                                 %z = mma(%x_64, %y_64, %z_0)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewave.analysis.instructions import instruction_of
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Add, Broadcast, Const, Elementwise, Iota, Mma, Part, Permute, Read
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import INDEX_SCALAR, Tile
from tilewave.machine.matrix import GroupInstruction

Cut = tuple[int, int]
"""Where a slice begins, and how deep it is."""


def slice_depth(kernel: Kernel) -> Kernel:
    deep = {op: cuts for op in walk(kernel.body) if isinstance(op, Mma) and len(cuts := tuple(_cuts(op))) > 1}
    return _Slicing(kernel, deep).kernel() if deep else kernel


def _cuts(op: Mma) -> Iterator[Cut]:
    """The longest rows first; one cut where the instruction takes its operands from lanes, or all of them at once."""
    instruction, depth, size = instruction_of(op), op.a.type.shape[-1], op.a.type.dtype.bytes
    if not isinstance(instruction, GroupInstruction):
        yield 0, depth
        return
    first = 0
    for row in (row_bytes // size for row_bytes in instruction.row_bytes):
        while depth - first >= row:
            yield first, row
            first += row


class _Slicing:
    def __init__(self, kernel: Kernel, deep: dict[Mma, tuple[Cut, ...]]) -> None:
        self.old, self.deep = kernel, deep
        self.makers = {v: op for op in walk(kernel.body) for v in op.results}
        self.builder = Builder(names(kernel))
        self.slices: dict[tuple[Value, int, Cut], Value] = {}
        self.behind: dict[Value, list[Op]] = {}
        """What stands behind the op that makes a value."""
        for op, cuts in deep.items():
            self.loc = op.loc
            for cut in cuts:
                for x in (op.a, op.b):
                    self.slice(x, len(x.type.shape) - 1, cut)

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body))

    def block(self, block: Block) -> Block:
        ops: list[Op] = [op for v in block.args for op in self.behind.get(v, ())]
        for old in block.ops:
            op = map_blocks(old, self.block)
            ops += self.product(op) if isinstance(op, Mma) and op in self.deep else [op]
            for v in op.results:
                ops += self.behind.get(v, ())
        return replace(block, ops=tuple(ops))

    def product(self, op: Mma) -> list[Op]:
        """Slice by slice, each onto the sums of the one before; the last one has the product's name."""
        found: list[Op] = []
        acc, cuts = op.acc, self.deep[op]
        for cut in cuts:
            a, b = (self.slices[x, len(x.type.shape) - 1, cut] for x in (op.a, op.b))
            last = cut == cuts[-1]
            result = op.result if last else self.builder.fresh(f"{op.result.name}_{cut[0]}", op.result.type)
            found.append(replace(op, a=a, b=b, acc=acc, depth=cut[1], results=(result,)))
            acc = result
        return found

    def slice(self, v: Value, axis: int, cut: Cut) -> Value:
        """The part of a tile along one of its axes, made where the tile is made."""
        if (v, axis, cut) not in self.slices:
            shape = list(v.type.shape)
            shape[axis] = cut[1]
            kind = Tile(tuple(shape), v.type.dtype)
            made = self.made(v, axis, cut)
            result = self.builder.fresh(f"{v.name}_{cut[0]}", kind)
            self.behind.setdefault(v, []).extend([*made[:-1], replace(made[-1], results=(result,))])
            self.slices[v, axis, cut] = result
        return self.slices[v, axis, cut]

    def made(self, v: Value, axis: int, cut: Cut) -> list[Op]:
        """The ops that make a slice; the last one's result is still to be named.

        What is computed from sums is cut when it is there: lanes hold its parts already.
        """
        op = self.makers.get(v)
        if op is None or not self.is_read(v):
            return [Part(v, axis, cut[0], loc=op.loc if op else self.loc)]
        match op:
            case Read(at=at, axes=axes):
                along = axes[axis]
                first = Const(cut[0], results=(self.builder.fresh(f"c{cut[0]}", INDEX_SCALAR),), loc=op.loc)
                start = self.builder.fresh(f"{at[along].name}_{cut[0]}", INDEX_SCALAR)
                moved = (*at[:along], start, *at[along + 1 :])
                sliced = replace(op, at=moved, within=_within(op.within, axis, cut))
                return [first, Add(at[along], first.result, results=(start,), loc=op.loc), sliced]
            case Const():
                return [op]
            case Iota():
                kind = Tile((cut[1],), op.result.type.dtype)
                count, start = (self.builder.fresh(name, kind) for name in ("count", "start"))
                from_zero = replace(op, results=(count,))
                return [from_zero, Const(cut[0], results=(start,), loc=op.loc), Add(count, start, loc=op.loc)]
            case Broadcast(x, axes):
                if axis not in axes:
                    return [op]
                return [replace(op, x=self.slice(x, axes.index(axis), cut))]
            case Permute(x, axes):
                return [replace(op, x=self.slice(x, axes[axis], cut))]
            case Elementwise():
                tiles = [x for x in op.operands if isinstance(x.type, Tile)]
                return [substitute(op, {x: self.slice(x, axis, cut) for x in tiles})]
            case _:
                raise NotImplementedError(f"{op.loc}: nobody says how a part of {op.name} is read")

    def is_read(self, v: Value) -> bool:
        """Whether lanes can make any part of it of what they read."""
        match self.makers.get(v):
            case Read() | Const() | Iota():
                return True
            case Broadcast() | Permute() | Elementwise() as op:
                return all(self.is_read(x) for x in op.operands if isinstance(x.type, Tile))
            case _:
                return False


def _within(within: tuple[int, ...], axis: int, cut: Cut) -> tuple[int, ...]:
    """How much of a slice is there."""
    first, depth = cut
    return tuple(min(max(n - first, 0), depth) if i == axis else n for i, n in enumerate(within))
