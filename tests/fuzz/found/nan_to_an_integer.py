"""gfx950 lanes: wrong numbers

1 of 1 elements of c9; c9[0, 0, 0] is -2147483648, not 2147483647

Run it with
    python THIS_FILE
"""

import base64
import zlib

import ml_dtypes  # it names dtypes for numpy
import numpy as np
import tilewave
from tilewave import *
from tilewave.mapping import *

B = sym.B
N = sym.N
M = sym.M
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(B, 1, 0),
        WorkgroupConstraint(N, 1, 2),
        WorkgroupConstraint(M, 1, 1),
    ]
)
def kernel(
    a1: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    c9: Memory[M, N, B, GLOBAL_ADDRESS_SPACE, i32],
):
    x2 = read(a1)
    x6 = cast(x2, i32)
    x7 = Register[B, N, M, i32](0)
    x8 = x7 + x6
    write(x8, c9)


def laid_out(x, order, steps, before, after):
    """Return x's numbers in memory with this layout."""
    spans = [abs(s) * (n - 1) + 1 + b + a for n, s, b, a in zip(x.shape, steps, before, after)]
    memory = np.zeros([spans[n] for n in order], x.dtype).transpose(np.argsort(order))
    for axis, (n, s, b) in enumerate(zip(x.shape, steps, before)):
        last = b + abs(s) * (n - 1)
        part = slice(b, last + 1, s) if s > 0 else slice(last, b - 1 if b else None, s)
        memory = memory[(slice(None),) * axis + (part,)]
    memory[...] = x
    return memory


def from_text(text, dtype, shape):
    """An array from its compressed bytes."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


def check():
    a1 = np.array([[10000000000.0]]).astype(np.dtype("float32"))
    c9 = np.array([[[77]]]).astype(np.dtype("int32"))
    compiled = wave_compile(WaveCompileOptions(subs={B: 1, N: 1, M: 1}, target='gfx950'), kernel)
    compiled.interpret(a1, c9, level="lane", order="random", seed=6)
    np.testing.assert_array_equal(c9, np.array([[[2147483647]]]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='B', size=1, tile=1, axis=0, wave=0), Dim(name='N', size=1, tile=1, axis=2, wave=0), Dim(name='M', size=1, tile=1, axis=1, wave=0)), arrays=(Array(name='a1', dims=('M', 'N'), dtype='f32', content='special', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='c9', dims=('M', 'N', 'B'), dtype='i32', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=None)), body=(Read(name='x2', array='a1', mapping=None, per_thread=0), Cast(name='x6', x='x2', dtype='i32'), Fill(name='x7', dims=('B', 'N', 'M'), dtype='i32', value=0), Compute(name='x8', op='+', args=('x7', 'x6')), Write(x='x8', array='c9', mapping=None, per_thread=0)), seed=6, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
