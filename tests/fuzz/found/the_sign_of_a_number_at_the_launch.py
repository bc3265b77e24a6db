"""The workgroups go backwards: LLVM extends the sign of a number of the launch, and leaves open what it does not need."""

import numpy as np

from tilewave import *

N = sym.N


@wave([WorkgroupConstraint(N, 1, 1), ReorderingConstraint(N - 1 - WORKGROUP_1, 1)])
def kernel(a: Memory[N, GLOBAL_ADDRESS_SPACE, f32], c: Memory[N, GLOBAL_ADDRESS_SPACE, f32], unused: f8e5m2):
    write(read(a), c)


def check():
    for target in ("gfx942", "gfx950"):
        compiled = wave_compile(WaveCompileOptions(target=target), kernel)
        for size in (1, 5, 13):
            a, c = np.arange(size, dtype=np.float32), np.full(size, np.nan, np.float32)
            compiled.emulate(a, c, 0.5)
            np.testing.assert_array_equal(c, a)


if __name__ == "__main__":
    check()
