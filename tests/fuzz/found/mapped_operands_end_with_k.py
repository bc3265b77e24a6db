"""Both operands are read through mappings along K: elements beyond the end of K are still not counted."""

import numpy as np

from tilewave import *

M, N, K, GLOBAL = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
down = IndexMapping(2, inputs={M: i, K: j - 3}, outputs={M: i, K: j})
around = IndexMapping(2, inputs={N: i, K: (j + 1) % 5}, outputs={N: i, K: j})


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, 4)])
def kernel(a: Memory[M, K, GLOBAL, f32], b: Memory[N, K, GLOBAL, f32], c: Memory[M, N, GLOBAL, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a, mapping=down), read(b, mapping=around), acc)

    write(total, c)


def check():
    a, b = np.arange(1, 6, dtype=np.float32)[None], np.arange(10, 15, dtype=np.float32)[None]
    wanted = sum(a[0, k - 3] * b[0, (k + 1) % 5] for k in range(3, 5))
    for target in ("numpy", "cpu", "gfx942"):
        c = np.zeros((1, 1), np.float32)
        compiled = wave_compile(WaveCompileOptions(subs={M: 1, N: 1, K: 5}, target=target), kernel)
        (compiled.emulate if target == "gfx942" else compiled)(a, b, c)
        assert c[0, 0] == wanted, target


if __name__ == "__main__":
    check()
