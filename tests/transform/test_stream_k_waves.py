"""Kernels of stream-K for sizes that are known and for open ones: both split the same tiles at the same steps."""

import numpy as np
import pytest
from kernels import check_product, gemm, poisoned, sizes
from lane_runs import operands
from tunings import FREE

from tilewave import *
from tilewave.analysis.splits import EqualSplits, Split
from tilewave.interp.tiles import interpret
from tilewave.ir.launch import bind
from tilewave.ir.ops import MakeExchange
from tilewave.ir.rewrite import walk
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline.runner import run
from tilewave.transform.stream_k import SingleTiles, TileWaves

TILE = (64, 64, 8)


def tiles_of(subs):
    return wave_compile(WaveCompileOptions(subs={s: v for s, v in subs.items() if v}, target="numpy"), gemm()).kernel


def sums(kernel, shape):
    """The sums, and the workgroups that ran."""
    numbers = dict(zip("MNK", shape, strict=True))
    bound = bind(kernel, numbers)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret(bound, [a, b, c], numbers)
    check_product(c, a, b, f32)
    return c, bound.workgroups


CASES = {
    "ranges after a full wave": (StreamK(4, FREE), (320, 64, 264)),
    "ranges of two tiles": (StreamK(5, FREE), (128, 64, 104)),
    "as many ranges of each tile": (StreamK(8, FREE), (128, 64, 136)),
    "tiles of a small grid": (StreamK(8, FREE, only_few=True), (128, 64, 136)),
    "equal parts after a full wave": (StreamK(4, FREE, 128, False), (384, 64, 60)),
    "equal parts of a small grid": (StreamK(8, FREE, 128, False), (128, 64, 68)),
}


@pytest.mark.parametrize("case", CASES)
def test_open_sizes_are_split_as_known_ones(case):
    split, shape = CASES[case]
    known, _ = run(tiles_of(sizes(*shape, *TILE)), [split, simplify])
    opened, _ = run(tiles_of(sizes(0, 0, 0, *TILE)), [split, simplify])
    assert any(isinstance(op, MakeExchange) for op in walk(known.body))
    (found, workgroups), (wanted, of_known) = sums(opened, shape), sums(known, shape)
    assert workgroups == of_known
    assert found.tobytes() == wanted.tobytes()


def test_the_waves_of_known_tiles_are_full():
    waves = TileWaves(whole=264, left=12, steps=7, all_steps=84, shares=120, at_once=132)
    assert (waves.full, waves.turns(None), waves.grid(120), waves.parts_of_each) == (2, 2, 132, 1)
    few = TileWaves(whole=0, left=12, steps=7, all_steps=84, shares=36, at_once=132)
    assert (few.full, few.turns(None), few.grid(36), few.parts_of_each) == (0, 0, 36, 3)
    assert [SingleTiles.left_of(n, 132) for n in (131, 132, 200)] == [131, 0, 0]


def test_a_range_ends_where_the_next_begins():
    split, parts = Split(10, 3), EqualSplits(2, 5, 2)
    assert [split.first(w) for w in range(4)] == [0, 3, 6, 10]
    assert [split.workgroup_of(s) for s in range(10)] == np.repeat([0, 1, 2], [3, 3, 4]).tolist()
    assert [(parts.tile(w), parts.first(w)) for w in range(4)] == [(0, 0), (1, 0), (0, 3), (1, 3)]
