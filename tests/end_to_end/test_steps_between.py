"""`iterate(dim, start=…, stop=…)`: only the steps that contain something between the two are taken."""

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import DimensionError, ShapeError

M, N, BLOCK = sym.M, sym.N, sym.BLOCK
SIZES = [(1, 1), (7, 30), (33, 20), (40, 64)]


def kernel(start, stop):
    """Sums of x[m, n] over the steps that are taken, and how many there are."""

    @wave([WorkgroupConstraint(M, 8, 0), TilingConstraint(N, BLOCK)])
    def sums(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        @iterate(N, init_args=[Register[M, f32](0.0)], start=start and start(), stop=stop and stop())
        def total(so_far):
            return so_far + read(x).sum(dim=N) + 1000.0

        write(total, y)

    return sums


def wanted(x, block, start, stop):
    rows, columns = x.shape
    found = np.zeros(rows)
    for m in range(rows):
        first = m // 8 * 8
        begin = max(0, start(first)) // block if start else 0
        end = min(-(-columns // block), -(-max(0, stop(first)) // block)) if stop else -(-columns // block)
        for step in range(begin, end):
            found[m] += x[m, step * block : (step + 1) * block].sum() + 1000
    return found


ENDS = [
    (None, lambda: first_index(M) + 8, None, lambda m: m + 8),
    (lambda: first_index(M) - 3, None, lambda m: m - 3, None),
    (lambda: first_index(M) - 10, lambda: first_index(M) + 8, lambda m: m - 10, lambda m: m + 8),
    (lambda: 5, lambda: scalar(N) - 4, lambda m: 5, None),
    (lambda: first_index(M) + 100, lambda: 3, lambda m: m + 100, lambda m: 3),
]


@pytest.mark.share(10)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("ends", range(len(ENDS)))
@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_the_steps_between_are_taken_and_no_others(target, ends, fixed):
    start, stop, starts, stops = ENDS[ends]
    for m, n in SIZES:
        x = np.arange(m * n, dtype=np.float32).reshape(m, n) % 7
        y = np.full(m, np.nan, np.float32)
        sizes = {M: m, N: n} if fixed else {}
        compiled = wave_compile(WaveCompileOptions(subs={**sizes, BLOCK: 8}, target=target), kernel(start, stop))
        if target in ("numpy", "cpu"):
            compiled(x, y)
        else:
            compiled.interpret(x, y, level="lane")
        known = stops if ends != 3 else lambda _, n=n: n - 4
        np.testing.assert_array_equal(y, wanted(x, 8, starts, known))


def test_a_tile_is_no_end():
    with pytest.raises(ShapeError, match="iterate needs one number, not a tile"):
        wave_compile(
            WaveCompileOptions(subs={M: 8, N: 8, BLOCK: 8}, target="numpy"), kernel(None, lambda: self_index(M))
        )


def test_a_condition_is_for_loops_of_their_own():
    @wave([WorkgroupConstraint(M, 8, 0), TilingConstraint(N, BLOCK)])
    def sums(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        @iterate(N, condition=N < 4)
        def total():
            pass

    with pytest.raises(DimensionError, match="N is tiled, so its steps are counted"):
        wave_compile(WaveCompileOptions(subs={M: 8, N: 8, BLOCK: 8}, target="numpy"), sums)
