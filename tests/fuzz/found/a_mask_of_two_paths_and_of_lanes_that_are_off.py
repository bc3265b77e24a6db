"""A mask that two paths join is unwritten for lanes that are off; active lanes have the right one."""

import numpy as np

from tilewave import *

B, M, N = sym.B, sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE
i, j, k = (IndexMapping.iterator(n) for n in range(3))


@wave(
    [WorkgroupConstraint(M, 2, 2), WorkgroupConstraint(B, 5, 1), WorkgroupConstraint(N, 17, 0), GridConstraint(4)],
)
def kernel(a: Memory[N, M, B, G, f32], c: Memory[B, N, M, G, i64], d: Memory[B, N, M, G, f8e4m3fnuz]):
    x = read(a, mapping=IndexMapping(3, inputs={N: (i + 1) % N, M: M - 1 - j, B: k}, outputs={N: i, M: j, B: k}))
    write(cast(x, i64), c)
    write(cast(x, f8e4m3fnuz), d)


def check():
    compiled = wave_compile(WaveCompileOptions(target="gfx950"), kernel)
    for sizes in ((1, 1, 1), (17, 2, 5), (18, 5, 7)):
        a = np.random.default_rng(0).integers(-8, 9, sizes).astype(np.float32)
        c = np.zeros((sizes[2], *sizes[:2]), np.int64)
        d = np.zeros(c.shape, f8e4m3fnuz.numpy)
        compiled.emulate(a, c, d)
        wanted = np.roll(a[:, ::-1], -1, 0).transpose(2, 0, 1)
        np.testing.assert_array_equal(c, wanted)
        np.testing.assert_array_equal(d.astype(np.float32), wanted)


if __name__ == "__main__":
    check()
