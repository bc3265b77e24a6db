"""cpu avx2: wrong numbers

1 of 1 elements of s7; s7[0] is 3.0, not 0.0

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
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(B, 1, 1),
    ]
)
def kernel(
    a1: Memory[B, GLOBAL_ADDRESS_SPACE, i32],
    s7: Memory[B, GLOBAL_ADDRESS_SPACE, f32],
):
    x2 = read(a1)
    x3 = x2 // 0
    x6 = cast(x3, f32)
    write(x6, s7)


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
    a1 = np.array([3]).astype(np.dtype("int32"))
    s7 = np.array([3.0]).astype(np.dtype("float32"))
    compiled = wave_compile(WaveCompileOptions(subs={B: 1}, target='cpu', instruction_set='avx2'), kernel)
    compiled(a1, s7)
    np.testing.assert_array_equal(s7.astype(np.float64), np.array([0.0]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='B', size=1, tile=1, axis=1, wave=0),), arrays=(Array(name='a1', dims=('B',), dtype='i32', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='s7', dims=('B',), dtype='f32', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None)), body=(Read(name='x2', array='a1', mapping=None, per_thread=0), Compute(name='x3', op='//', args=('x2', 0)), Cast(name='x6', x='x3', dtype='f32'), Write(x='x6', array='s7', mapping=None, per_thread=0)), seed=22, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
