"""tiles: InterpreterError: floor_div: divides by zero

floor_div: divides by zero
  <kernel 13>:20
      x3 = x2 // x2
           ^^^^^^^^

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
        WorkgroupConstraint(B, 15, 2),
    ]
)
def kernel(
    a1: Memory[B, GLOBAL_ADDRESS_SPACE, i32],
    s8: Memory[B, GLOBAL_ADDRESS_SPACE, f32],
):
    x2 = read(a1, mapping=IndexMapping(1, inputs={B: (i + 18) % 32}, outputs={B: i}))
    x3 = x2 // x2
    x7 = cast(x3, f32)
    write(x7, s8)


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
    a1 = np.array([4, 2, -3, -2, 1, -1, 4, 4, -2, 2, -1, -1, -2, 2, -2]).astype(np.dtype("int32"))
    s8 = np.array([float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan")]).astype(np.dtype("float32"))
    compiled = wave_compile(WaveCompileOptions(subs={B: 15}, target='numpy'), kernel)
    compiled.interpret(a1, s8)
    np.testing.assert_array_equal(s8.astype(np.float64), np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='B', size=15, tile=15, axis=2, wave=0),), arrays=(Array(name='a1', dims=('B',), dtype='i32', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='s8', dims=('B',), dtype='f32', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=None)), body=(Read(name='x2', array='a1', mapping=Mapping(tile=('B',), places=(('B', Place(along='B', sign=1, offset=18, symbols=(), modulo=32)),)), per_thread=0), Compute(name='x3', op='//', args=('x2', 'x2')), Cast(name='x7', x='x3', dtype='f32'), Write(x='x7', array='s8', mapping=None, per_thread=0)), seed=13, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
