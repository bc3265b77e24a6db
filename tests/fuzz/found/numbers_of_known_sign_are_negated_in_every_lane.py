"""gfx942 emulated: wrong numbers

1 of 1 elements of o10; o10[0, 0] is 1.0, not -1.0

The sign is known, so the number is a choice of NaN, and of such LLVM negates the last of each pair alone. Run it with
    python THIS_FILE
"""

import ml_dtypes
import numpy as np

import tilewave
from tilewave import *
from tilewave.mapping import *

N = sym.N
B = sym.B


@wave(
    [
        WorkgroupConstraint(N, 4, 2),
        WorkgroupConstraint(B, 64, 1),
    ]
)
def kernel(
    a1: Memory[B, N, GLOBAL_ADDRESS_SPACE, tilewave.bool],
    s5: Memory[N, B, GLOBAL_ADDRESS_SPACE, f8e4m3fn],
    o10: Memory[N, B, GLOBAL_ADDRESS_SPACE, f32],
):
    x2 = read(a1)
    x3 = cast(x2, f32)
    x4 = cast(x3, f8e4m3fn)
    write(x4, s5)
    x7 = x4 * -1.0
    x9 = cast(x7, f32)
    write(x9, o10)


def check():
    a1 = np.array([[True]]).astype(bool)
    s5 = np.array([[-4.0]]).astype(ml_dtypes.float8_e4m3fn)
    o10 = np.array([[float("nan")]]).astype(np.float32)
    compiled = wave_compile(WaveCompileOptions(subs={N: 1, B: 1}, target="gfx942"), kernel)
    compiled.emulate(a1, s5, o10)
    np.testing.assert_array_equal(s5.astype(np.float64), np.array([[1.0]]))
    np.testing.assert_array_equal(o10.astype(np.float64), np.array([[-1.0]]))


if __name__ == "__main__":
    check()
