"""Random kernels: straight-line code, loops and while loops over one 8x8 memory, written as IR."""

import numpy as np
from hypothesis import strategies as st

from tilewave.errors import InterpreterError
from tilewave.interp.tiles import interpret
from tilewave.ir import ops
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.types import F32, I32, INDEX_SCALAR, Memory, Scalar, Tile

TILE, MEMORY = Tile((2, 2), F32), Memory((8, 8), F32, "global")
COMPARISONS = [ops.Less, ops.LessEqual, ops.Equal, ops.NotEqual]
INDEX_OPS = (ops.Add, ops.Sub, ops.Mul, ops.FloorDiv, ops.Mod, ops.Min, ops.Max)
TILE_OPS = (ops.Add, ops.Sub, ops.Mul, ops.Min, ops.Max)


class _Writer:
    """Draws ops into a builder; indices are kept small so that nothing overflows or divides by zero."""

    def __init__(self, draw):
        self.draw, self.builder = draw, Builder()
        self.memory = self.builder.fresh("m", MEMORY)

    def pick(self, values):
        return self.draw(st.sampled_from(values))

    def index(self, indices):
        kind = self.pick(["const", "const", "op", "select", "cast"])
        if kind == "const" or not indices:
            value = self.builder.const(self.draw(st.integers(0, 6)))
        elif kind == "op":
            cls, a = self.pick(INDEX_OPS), self.pick(indices)
            b = (
                self.pick(indices)
                if cls not in (ops.FloorDiv, ops.Mod)
                else self.builder.const(self.pick([1, 2, 3, 7]))
            )
            value = self.builder.binary(cls, a, b)
            value = self.builder.binary(ops.Mod, value, self.builder.const(97))
        elif kind == "select":
            a, b = self.pick(indices), self.pick(indices)
            condition = self.builder.binary(self.pick(COMPARISONS), a, b)
            value = self.builder.emit(ops.Select, condition, a, b, type=INDEX_SCALAR)
        else:
            value = self.builder.cast(self.builder.cast(self.pick(indices), I32), INDEX_SCALAR.dtype)
        indices.append(value)
        return value

    def position(self, indices):
        """Return a position in the memory, perhaps of a boundary tile."""
        eight = self.builder.const(8)
        return tuple(self.builder.binary(ops.Mod, self.index(indices), eight) for _ in range(2))

    def block(self, indices, tiles, depth):
        indices, tiles = list(indices), list(tiles)
        for kind in self.draw(st.lists(st.sampled_from(KINDS), max_size=6)):
            if kind == "const" or not tiles:
                tiles.append(self.builder.const(float(self.draw(st.integers(0, 3))), TILE))
            elif kind == "op":
                tiles.append(self.builder.binary(self.pick(TILE_OPS), self.pick(tiles), self.pick(tiles)))
            elif kind == "read":
                axes = self.pick([(0, 1), (1, 0)])
                tiles.append(self.builder.emit(ops.Read, self.memory, self.position(indices), axes, type=TILE))
            elif kind == "permute":
                tiles.append(self.builder.emit(ops.Permute, self.pick(tiles), self.pick([(0, 1), (1, 0)]), type=TILE))
            elif kind == "write":
                self.builder.effect(ops.Write, self.pick(tiles), self.memory, self.position(indices), (0, 1))
            elif kind == "index":
                self.index(indices)
            elif depth < 2:
                tiles.append((self.loop if kind == "loop" else self.loop_while)(indices, tiles, depth))
        return indices, tiles

    def loop(self, indices, tiles, depth):
        trips, init = self.builder.const(self.draw(st.integers(0, 3))), self.pick(tiles)
        i, carried = self.builder.fresh("i", INDEX_SCALAR), self.builder.fresh("carried", TILE)
        with self.builder.region():
            _, inner = self.block([*indices, i], [*tiles, carried], depth + 1)
            body = self.builder.block([i, carried], [self.pick(inner)])
        result = self.builder.fresh("after", TILE)
        self.builder.effect(ops.Loop, trips, (init,), body, results=(result,))
        return result

    def loop_while(self, indices, tiles, depth):
        """Counts down from a constant, carrying a tile along."""
        start, init = self.builder.const(self.draw(st.integers(0, 3))), self.pick(tiles)
        names = [self.builder.fresh(n, t) for n in ("a", "b") for t in (INDEX_SCALAR, TILE)]
        count, carried, count_2, carried_2 = names
        with self.builder.region():
            more = Number(self.builder, count) > 0
            condition = self.builder.block([count, carried], [more.value])
        with self.builder.region():
            _, inner = self.block([*indices, count_2], [*tiles, carried_2], depth + 1)
            left = Number(self.builder, count_2) - 1
            body = self.builder.block([count_2, carried_2], [left.value, self.pick(inner)])
        results = (self.builder.fresh("left", INDEX_SCALAR), self.builder.fresh("last", TILE))
        self.builder.effect(ops.While, (start, init), condition, body, results=results)
        return results[1]


KINDS = ["const", "op", "read", "permute", "write", "index", "loop", "while"]


@st.composite
def kernels(draw):
    writer = _Writer(draw)
    n = Value("n", INDEX_SCALAR)
    writer.builder.taken.add("n")
    workgroup = writer.builder.emit(ops.Workgroup, type=Scalar(INDEX_SCALAR.dtype))
    indices, tiles = writer.block([n, workgroup], [], 0)
    if tiles:
        writer.builder.effect(ops.Write, tiles[-1], writer.memory, writer.position(indices), (0, 1))
    return Kernel("random", Block((writer.memory, n), tuple(writer.builder.ops)), workgroups=1)


def outcome(kernel):
    memory = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    try:
        interpret(kernel, [memory], {"n": 3})
    except InterpreterError as error:
        return error.what
    return memory
