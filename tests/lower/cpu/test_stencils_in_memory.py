"""Windows that cannot be split stay whole in memory; they are read in place, and not copied first."""

import numpy as np
import pytest
from kernels import G, poisoned

from tilewave import *
from tilewave.ir.ops import Read
from tilewave.ir.rewrite import walk
from tilewave.lower.cpu.kernel import fits_registers
from tilewave.lower.cpu.tile_uses import tile_uses

H, W, M, N = sym.H, sym.W, sym.M, sym.N
ROW, COLUMN = IndexMapping.iterator(0), IndexMapping.iterator(1)
TILES = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 64, 1)]
NEIGHBOURS = ((1, 2), (1, 0), (2, 1), (0, 1))


def window(down, right):
    return IndexMapping(2, inputs={H: ROW + down, W: COLUMN + right}, outputs={M: ROW, N: COLUMN})


@wave(TILES)
def laplace(x: Memory[H, W, G, f32], y: Memory[M, N, G, f32]):
    total = read(x, mapping=window(1, 1)) * -4.0
    for down, right in NEIGHBOURS:
        total = total + read(x, mapping=window(down, right))
    write(total, y)


@wave(TILES)
def shifted(x: Memory[H, W, G, f32], y: Memory[M, N, G, f32]):
    write(read(x, mapping=window(2, 1)), y)


@wave(TILES)
def squared(x: Memory[H, W, G, f32], y: Memory[M, N, G, f32]):
    """One window used twice, and its largest number besides: this one needs a copy."""
    here = read(x, mapping=window(1, 1))
    write(here * here + here.max(dim=N), y)


def numbers(rows, columns, how="rows"):
    """Small whole numbers, of which every sum is exact."""
    made = np.random.default_rng(rows + columns).integers(-8, 9, (rows, columns)).astype(np.float32)
    return {"rows": made, "columns": np.asfortranarray(made), "backwards": made[::-1, ::-1]}[how]


def neighbours(x, rows, columns):
    wide = x.astype(np.float64)

    def at(down, right):
        return wide[down : down + rows, right : right + columns]

    return sum(at(*place) for place in NEIGHBOURS) - 4 * at(1, 1)


@pytest.mark.share(6)
@pytest.mark.parametrize("how", ["rows", "columns", "backwards"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (33, 65), (1, 1), (31, 200), (70, 63)])
def test_a_stencil_is_exact_however_its_array_lies(rows, columns, how):
    x = numbers(rows + 2, columns + 2, how)
    y, moved = poisoned((rows, columns), f32), poisoned((rows, columns), f32)
    for compiled in (laplace.compile(target="cpu", subs={M: rows, N: columns}), laplace.compile(target="cpu")):
        compiled(x, y)
        np.testing.assert_array_equal(y, neighbours(x, rows, columns))
    shifted.compile(target="cpu")(x, moved)
    np.testing.assert_array_equal(moved, x[2:, 1:-1])


def test_what_is_used_element_by_element_is_not_copied():
    subs = {H: 102, W: 202, M: 100, N: 200}
    passed = laplace.compile(target="cpu", subs=subs).build.passed[0]
    assert not fits_registers(passed), "its tiles are in registers"
    reads = {op.result for op in walk(passed.body) if isinstance(op, Read)}
    assert len(reads) == 5
    assert tile_uses(passed.body).operands == reads


def test_what_a_reduction_takes_too_is_copied():
    subs = {H: 66, W: 66, M: 64, N: 64}  # whole tiles: a mask would come between the window and the reduction
    assert not tile_uses(squared.compile(target="numpy", subs=subs).kernel.body).operands
    x, y = numbers(66, 66), poisoned((64, 64), f32)
    squared.compile(target="cpu", subs=subs)(x, y)
    inner = x[1:-1, 1:-1].astype(np.float64)
    np.testing.assert_array_equal(y, inner**2 + inner.max(axis=1, keepdims=True))


@wave(TILES)
def in_place(x: Memory[M, N, G, f32]):
    own = read(x)
    write(own * 0.0, x)
    write(own + 1.0, x)


def test_what_is_written_meanwhile_is_copied():
    assert not tile_uses(in_place.compile(target="numpy", subs={M: 64, N: 64}).kernel.body).operands
