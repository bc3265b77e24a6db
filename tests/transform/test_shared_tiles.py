"""The parts of a kernel whose workgroups share tiles, in the smallest split: two halves of the steps of one tile."""

from kernels import check_product, gemm, poisoned, sizes
from lane_runs import operands
from tunings import SPLITS

from tilewave import *
from tilewave.analysis.shared_tiles import TileProgram
from tilewave.interp.tiles import interpret
from tilewave.ir.build import Number
from tilewave.ir.ops import TakeOverAll
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.transform.shared_tiles import SharedTiles, Turn

SHAPE = (64, 64, 48)


class Halves(SharedTiles):
    """Workgroup 0 hands its half over, and workgroup 1 adds it to its own."""

    def kernel(self):
        self.prepare()
        self.compute(self.own)
        return self.finished(2)

    def compute(self, count):
        half = self.tile.steps // 2
        first, tile = count * half, self.builder.const(0)
        sums = self.add_up(Turn(tile, first, first + half))
        self.hand_over(sums, 1 - count)
        self.end(tile, self.joined(sums, count), count)

    def joined(self, sums, times):
        return self.take_over(sums, times)

    def slot(self, other):
        return other


class AtOnce(Halves):
    def joined(self, sums, times):
        return self.take_all(sums, times, Number(self.builder, self.builder.const(0)), 1, 1)


def built(cls):
    subs = sizes(*SHAPE, 64, 64, 8)
    kernel = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), gemm()).kernel
    return verify(cls(kernel, TileProgram.of(kernel), 1, SPLITS).kernel())


def sums(kernel):
    a, b = operands(SHAPE)
    c = poisoned(SHAPE[:2], f32)
    interpret(kernel, [a, b, c], {})
    check_product(c, a, b, f32)
    return c


def test_two_halves_add_up_to_the_tile():
    one_by_one, at_once = built(Halves), built(AtOnce)
    assert any(isinstance(op, TakeOverAll) for op in walk(at_once.body))
    assert sums(one_by_one).tobytes() == sums(at_once).tobytes()


def test_few_partial_sums_are_loaded_at_once():
    kernel = wave_compile(WaveCompileOptions(subs=sizes(*SHAPE, 64, 64, 8), target="numpy"), gemm()).kernel
    shared = Halves(kernel, TileProgram.of(kernel), 1, SPLITS)
    most = SPLITS.scattered_bytes // shared.tile.sums_bytes
    assert [shared.takes_all(n) for n in (1, 2, most, most + 1)] == [False, True, True, False]
