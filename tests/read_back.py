"""Kernels that touch again what they wrote: in place, through a scratch array, in loops; and what numpy makes of them.

All numbers are small integers, so that results are exact whatever the order of sums.
"""

from dataclasses import dataclass, field

import numpy as np
from kernels import G, K, M, N

from tilewave import *

COLUMNS = 64
ROWS = 64
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)


@dataclass(frozen=True)
class Flip:
    """A tile upside down, or its columns from the last to the first."""

    name: str
    row: object
    column: object
    flipped: object

    def __str__(self):
        return self.name

    @property
    def read(self):
        return IndexMapping(2, inputs={M: self.row, N: self.column}, outputs={M: i, N: j})

    @property
    def write(self):
        return IndexMapping(2, inputs={M: i, N: j}, outputs={M: self.row, N: self.column})

    @property
    def write_factor(self):
        return IndexMapping(2, inputs={M: i, K: j}, outputs={M: self.row, K: j})


def _upside_down(x):
    return np.concatenate([x[first : first + ROWS][::-1] for first in range(0, len(x), ROWS)])


COLUMN_WISE = Flip("columns", i, COLUMNS - 1 - j, lambda x: x[:, ::-1])
"""Most often lanes of one wave exchange elements."""
ROW_WISE = Flip("rows", i // ROWS * ROWS + ROWS - 1 - i % ROWS, j, _upside_down)
"""Waves do; tiles must be whole."""


def cut(waves=(2, 2), *more):
    rows, columns = waves
    return [
        WorkgroupConstraint(M, ROWS, 0),
        WorkgroupConstraint(N, COLUMNS, 1),
        TilingConstraint(K, 32),
        WaveConstraint(M, ROWS // rows),
        WaveConstraint(N, COLUMNS // columns),
        *more,
    ]


def in_place(cuts, flip):
    @wave(cuts)
    def in_place(c: Memory[M, N, G, f32]):
        write(read(c, mapping=flip.read) + 1.0, c)

    return in_place


def through_scratch(cuts, flip):
    @wave(cuts)
    def through_scratch(a: Memory[M, N, G, f32], s: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0, s)
        write(read(s, mapping=flip.read) - 1.0, c)

    return through_scratch


def scattered(cuts, flip):
    @wave(cuts)
    def scattered(a: Memory[M, N, G, f32], s: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0, s, mapping=flip.write)
        write(read(s) + 3.0, c)

    return scattered


def a_product_read_back(cuts, flip):
    @wave(cuts)
    def a_product_read_back(
        a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], s: Memory[M, N, G, f32], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            return mma(read(a), read(b), x)

        write(total, s)
        write(read(s) * 2.0, c)

    return a_product_read_back


def a_factor_read_back(cuts, flip):
    @wave(cuts)
    def a_factor_read_back(
        a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], s: Memory[M, K, G, f16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            write(read(a) + 1.0, s, mapping=flip.write_factor)
            return mma(read(s), read(b), x)

        write(total, c)

    return a_factor_read_back


def in_a_loop(cuts, flip):
    """Each step writes the scratch that the step before has read."""

    @wave(cuts)
    def in_a_loop(a: Memory[M, N, G, f32], b: Memory[N, K, G, f16], s: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[read(a)])
        def total(x):
            write(x + 1.0, s)
            return read(s, mapping=flip.read)

        write(total, c)

    return in_a_loop


def written_twice(cuts, flip):
    """A lane of the product's sums overwrites what another, in chunks of rows, wrote."""

    @wave(cuts)
    def written_twice(
        a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], d: Memory[M, N, G, f32], c: Memory[M, N, G, f32]
    ):
        write(read(d), c)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            return mma(read(a), read(b), x)

        write(total, c)

    return written_twice


def _operands(rng, m, k):
    return [rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, COLUMNS)]


def _tile(rng, m):
    return rng.integers(-9, 10, (m, COLUMNS)).astype(np.float32)


def _nan(m, n=COLUMNS, dtype=np.float32):
    return np.full((m, n), np.nan, dtype)


def _product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32).T


def _looped(flip, a, k):
    for _ in range(-(-k // 32)):
        a = flip(a + 1)
    return a


@dataclass(frozen=True)
class Case:
    """`arrays(rng, m, k)` are the arguments; `want(flip, *arrays)` gives what the last of them holds afterwards."""

    make: object
    arrays: object
    want: object
    has_product: bool = field(default=False)

    def __str__(self):
        return self.make.__name__


CASES = [
    Case(in_place, lambda rng, m, k: [_tile(rng, m)], lambda flip, c: flip(c) + 1),
    Case(through_scratch, lambda rng, m, k: [_tile(rng, m), _nan(m), _nan(m)], lambda flip, a, s, c: flip(a) * 2 - 1),
    Case(scattered, lambda rng, m, k: [_tile(rng, m), _nan(m), _nan(m)], lambda flip, a, s, c: flip(a) * 2 + 3),
    Case(
        a_product_read_back,
        lambda rng, m, k: [*_operands(rng, m, k), _nan(m), _nan(m)],
        lambda flip, a, b, s, c: _product(a, b) * 2,
        True,
    ),
    Case(
        a_factor_read_back,
        lambda rng, m, k: [*_operands(rng, m, k), _nan(m, k, np.float16), _nan(m)],
        lambda flip, a, b, s, c: _product(_upside_down(a + 1) if flip is _upside_down else a + 1, b),
        True,
    ),
    Case(
        in_a_loop,
        lambda rng, m, k: [_tile(rng, m), _operands(rng, m, k)[1], _nan(m), _nan(m)],
        lambda flip, a, b, s, c: _looped(flip, a, b.shape[1]),
    ),
    Case(
        written_twice,
        lambda rng, m, k: [*_operands(rng, m, k), _tile(rng, m), _nan(m)],
        lambda flip, a, b, d, c: _product(a, b),
        True,
    ),
]


def built(case, target, flip=COLUMN_WISE, m=64, k=64, waves=(2, 2), more=(), **options):
    kernel = case.make(cut(waves, *more), flip)
    return wave_compile(WaveCompileOptions(subs={M: m, N: COLUMNS, K: k}, target=target, **options), kernel)


def check(case, flip, m, k, run, seed=0):
    """Give `run` fresh arrays, and hold what it leaves in the last of them against numpy."""
    arrays = case.arrays(np.random.default_rng(seed), m, k)
    want = np.array(case.want(flip.flipped, *(x.copy() for x in arrays)))
    run(*arrays)
    np.testing.assert_array_equal(arrays[-1], want)
