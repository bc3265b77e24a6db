"""sm_90a card: running raised AcceleratorError

CUDA error: an illegal instruction was encountered
CUDA error: an illegal instruction was encountered
Search for `cudaErrorIllegalInstruction' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.


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

M = sym.M
N = sym.N
K = sym.K
P5 = sym.P5
SPACE = sym.SPACE
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(M, 64, 2),
        WorkgroupConstraint(N, 16, 0),
        TilingConstraint(K, 32),
    ]
)
def kernel(
    a3: Memory[M, K, SHARED_ADDRESS_SPACE, i8],
    a6: Memory[N, P5, K, SPACE, i8],
    o14: Memory[M, N, GLOBAL_ADDRESS_SPACE, f64],
):
    x1 = Register[M, N, i32](0)
    
    @iterate(K, init_args=[x1])
    def loop10(p2):
        x4 = read(a3, mapping=IndexMapping(2, inputs={M: j, K: i}, outputs={K: i, M: j}))
        x7 = read(a6, mapping=IndexMapping(2, inputs={N: j, P5: 0, K: i + 17}, outputs={K: i, N: j}))
        x8 = mma(x4, x7, p2)
        return x8
    
    r9 = loop10
    
    x13 = cast(r9, f64)
    write(x13, o14, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: 0 - j}))


def laid_out(x, order, steps, before, after):
    """The same numbers in memory that lies as asked."""
    spans = [abs(s) * (n - 1) + 1 + b + a for n, s, b, a in zip(x.shape, steps, before, after)]
    memory = np.zeros([spans[n] for n in order], x.dtype).transpose(np.argsort(order))
    for axis, (n, s, b) in enumerate(zip(x.shape, steps, before)):
        last = b + abs(s) * (n - 1)
        part = slice(b, last + 1, s) if s > 0 else slice(last, b - 1 if b else None, s)
        memory = memory[(slice(None),) * axis + (part,)]
    memory[...] = x
    return memory


def check():
    a3 = np.array([[-4, 0, 2, 1, -1, 0, 2, 2, 0, -4, 3, 2, 1, 0, 1, 1, 1, -3, -3, -4, 4, -3, 3, 2, -3, -1, -3, 0, 4, -2, 4, 4, 0, 0, -2, 3, 2, 0, 0, -2, -3, -1, 4, 3, 1, -1, -2, -4, 2, 2, -1, 3, -2, -1, 3, -1, 4, 2, -2, 2, 4, -2, -4, 3]]).astype(np.dtype("int8"))
    a6 = np.array([[[-2, 1, 0, 4, 3, -1, 4, 3, -1, 3, -2, -3, 0, 2, -4, 3, 4, -2, -1, 4, 0, 3, -3, -3, 1, 1, -3, -3, 4, -1, 2, 4, 4, 3, 2, 1, 2, 0, 3, 1, -2, -1, 3, 0, 1, 4, -3, 4, -1, 0, 1, 4, 2, 1, 3, 1, -4, 4, -1, 0, 2, 0, 3, -4]]]).astype(np.dtype("int8"))
    o14 = laid_out(np.array([[float("nan")]]).astype(np.dtype("float64")), (0, 1), (1, 2), (0, 0), (0, 0))
    compiled = wave_compile(WaveCompileOptions(subs={M: 1, N: 1, K: 64, P5: 1, SPACE: SHARED_ADDRESS_SPACE}, target='sm_90a'), kernel)
    compiled(a3, a6, o14)
    np.testing.assert_array_equal(o14.astype(np.float64), np.array([[45.0]]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='M', size=1, tile=64, axis=2, wave=0), Dim(name='N', size=1, tile=16, axis=0, wave=0), Dim(name='K', size=64, tile=32, axis=None, wave=0), Dim(name='P5', size=1, tile=0, axis=None, wave=0)), arrays=(Array(name='a3', dims=('M', 'K'), dtype='i8', content='normal', space='SHARED_ADDRESS_SPACE', layout=None), Array(name='a6', dims=('N', 'P5', 'K'), dtype='i8', content='normal', space='SPACE', layout=None), Array(name='o14', dims=('M', 'N'), dtype='f64', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=Layout(order=(0, 1), steps=(1, 2), before=(0, 0), after=(0, 0)))), body=(Fill(name='x1', dims=('M', 'N'), dtype='i32', value=0), Loop(name='loop10', dim='K', init=('x1',), params=('p2',), body=(Read(name='x4', array='a3', mapping=Mapping(tile=('K', 'M'), places=(('K', Place(along='K', sign=1, offset=0, symbols=(), modulo=0)), ('M', Place(along='M', sign=1, offset=0, symbols=(), modulo=0)))), per_thread=0), Read(name='x7', array='a6', mapping=Mapping(tile=('K', 'N'), places=(('K', Place(along='K', sign=1, offset=17, symbols=(), modulo=0)), ('N', Place(along='N', sign=1, offset=0, symbols=(), modulo=0)), ('P5', Place(along=None, sign=1, offset=0, symbols=(), modulo=0)))), per_thread=0), Mma(name='x8', a='x4', b='x7', acc='p2')), returns=('x8',), results=('r9',), start=0, stop=0, step=0), Cast(name='x13', x='r9', dtype='f64'), Write(x='x13', array='o14', mapping=Mapping(tile=('M', 'N'), places=(('M', Place(along='M', sign=1, offset=0, symbols=(), modulo=0)), ('N', Place(along='N', sign=-1, offset=0, symbols=(), modulo=0)))), per_thread=0)), seed=100254, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
