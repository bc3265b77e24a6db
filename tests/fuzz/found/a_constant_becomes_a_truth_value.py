"""A number that the author wrote, cast to a truth value: a constant of Python's, not of numpy's."""

import numpy as np

import tilewave
from tilewave import *

N, GLOBAL = sym.N, GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(N, 1, 0)])
def kernel(a: Memory[N, GLOBAL, tilewave.bool], o: Memory[N, GLOBAL, i32]):
    x = read(a)
    write(cast(select(x, x, cast(scalar(100, i32), tilewave.bool)), i32), o)


def check():
    for target in ("numpy", "cpu", "gfx942", "sm_90a"):
        compiled, o = wave_compile(WaveCompileOptions(subs={N: 1}, target=target), kernel), np.zeros(1, np.int32)
        compiled.interpret(np.zeros(1, bool), o)
        assert o[0] == 1, target


if __name__ == "__main__":
    check()
