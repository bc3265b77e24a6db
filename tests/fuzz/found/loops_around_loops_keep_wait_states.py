"""gfx942 emulated: EmulationError: missing nops: # comes from a matrix instruction: # wait states must lie between, and # do

missing nops: v1 comes from a matrix instruction: 7 wait states must lie between, and 5 do
  <kernel 970373>:46
  wave 0 of workgroup (0, 0, 0), line 121: v_lshl_add_u32 v1, s34, 4, v7
  s_nop 1 is missing

With three loops around each other LLVM counts wait states along the longest way back. Run it with
    python THIS_FILE
"""

import ml_dtypes  # it names dtypes for numpy
import numpy as np

from tilewave import *
from tilewave.mapping import *

M, N, K, L = sym.M, sym.N, sym.K, sym.L
ROW, BATCH, TILE = sym.ROW, sym.BATCH, sym.TILE
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
rows = IndexMapping(2, inputs={M: i + BATCH, K: j}, outputs={M: i, K: j})
turned = IndexMapping(2, inputs={L: i, K: 63 - j}, outputs={L: i, K: j})
columns = IndexMapping(2, inputs={L: i, N: j + ROW}, outputs={L: i, N: j})
placed = IndexMapping(2, inputs={M: i, N: j}, outputs={M: i + BATCH, N: j + ROW})


@wave(
    [
        WorkgroupConstraint(M, 32, 2),
        WorkgroupConstraint(N, 16, 0),
        TilingConstraint(K, 32),
        TilingConstraint(L, 16),
        TilingConstraint(TILE),
        GridConstraint(3),
    ]
)
def kernel(
    a5: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16],
    a9: Memory[L, K, GLOBAL_ADDRESS_SPACE, f16],
    a16: Memory[L, N, GLOBAL_ADDRESS_SPACE, f16],
    s28: Memory[M, N, GLOBAL_ADDRESS_SPACE, f8e4m3fnuz],
):
    @iterate(TILE, start=scalar(WORKGROUP_0), condition=TILE < 1)
    def every_tile():
        tile = self_index(TILE)
        set_symbol(ROW, tile // 1 % 1 * 16)
        set_symbol(BATCH, tile // 1 % 1 * 32)
        nothing = Register[M, N, f32](0.0)

        @iterate(L, init_args=[nothing])
        def outer(sums):
            @iterate(K, init_args=[Register[M, L, f32](0.0)])
            def inner(sums):
                return mma(read(a5, mapping=rows), read(a9, mapping=turned), sums)

            return mma(cast(inner, f16), read(a16, mapping=columns), sums)

        small = outer < 0.1
        write(cast(select(select(small, small, True), nothing, outer), f8e4m3fnuz), s28, mapping=placed)
        set_symbol(TILE, tile + 3)


def check():
    rng = np.random.default_rng(970373)
    a5 = rng.integers(-4, 5, (1, 38)).astype(np.float16)[:, :37]
    a9, a16 = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((79, 37), (79, 1)))
    s28 = np.ones((1, 1), ml_dtypes.float8_e4m3fnuz)
    compiled = wave_compile(WaveCompileOptions(subs={M: 1, N: 1, K: 37, L: 79}, target="gfx942"), kernel)
    compiled.emulate(a5, a9, a16, s28)
    assert s28.astype(float) == 0


if __name__ == "__main__":
    check()
