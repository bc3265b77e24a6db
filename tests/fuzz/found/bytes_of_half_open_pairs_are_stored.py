"""gfx942 emulated: EmulationError: unwritten register: uses #, computed from #, which nobody has written

unwritten register: uses v4, computed from v3, which nobody has written
  wave 0 of workgroup (0, 0, 0), line 52: buffer_store_byte v4, v1, s[0:3], 0 offen
  write it first

LLVM shifts pairs of registers to store one byte of the lower half. Run it with
    python THIS_FILE
"""

import ml_dtypes
import numpy as np

from tilewave import *
from tilewave.mapping import *

M = sym.M
N = sym.N


@wave(
    [
        WorkgroupConstraint(M, 8, 1),
        WorkgroupConstraint(N, 64, 0),
    ]
)
def kernel(
    o15: Memory[N, M, GLOBAL_ADDRESS_SPACE, f8e5m2fnuz],
):
    x1 = Register[N, M, f32](0.0)
    x14 = cast(x1, f8e5m2fnuz)
    write(x14, o15)


def check():
    o15 = np.array([[float("nan")]]).astype(ml_dtypes.float8_e5m2fnuz)
    compiled = wave_compile(WaveCompileOptions(subs={M: 1, N: 1}, target="gfx942"), kernel)
    compiled.emulate(o15)
    np.testing.assert_array_equal(o15.astype(np.float64), np.array([[0.0]]))


if __name__ == "__main__":
    check()
