"""gfx950 emulated: EmulationError: global-memory race: reads byte # of argument #, written by wave # with no barrier between them

global-memory race: reads byte 8 of argument s6, written by wave 1 with no barrier between them
  <kernel 880301>:28
  wave 0 of workgroup (0, 0, 0), line 79: buffer_load_sbyte v1, v4, s[8:11], 0 offen
  let s_waitcnt vmcnt(0) and s_barrier stand between them

Run it with
    python THIS_FILE
"""

import base64
import importlib.util
import zlib

import ml_dtypes  # it names dtypes for numpy
import numpy as np
import tilewave
from tilewave import *
from tilewave.mapping import *

N = sym.N
M = sym.M
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(N, 8, 1),
        WorkgroupConstraint(M, 16, 0),
        WaveConstraint(M, 4),
    ]
)
def kernel(
    a1: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    s6: Memory[N, M, GLOBAL_ADDRESS_SPACE, i8],
    o11: Memory[N, M, GLOBAL_ADDRESS_SPACE, f32],
):
    x2 = read(a1)
    x4 = cast(x2, tilewave.bool)
    x5 = cast(x4, i8)
    x7 = read(s6)
    write(x5, s6)
    x10 = cast(x7, f32)
    write(x10, o11)


def check():
    a1 = np.array([[-1.0], [-3.0], [0.0], [-3.0], [2.0], [0.0], [2.0], [-2.0], [-1.0]]).astype(np.dtype("float32"))
    s6 = np.array([[2, -2, 0, -3, 4, 2, -4, -2, 4]]).astype(np.dtype("int8"))
    o11 = np.array([[float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan")]]).astype(np.dtype("float32"))
    compiled = wave_compile(WaveCompileOptions(subs={N: 1, M: 9}, target='gfx950'), kernel)
    compiled.emulate(a1, s6, o11)
    np.testing.assert_array_equal(s6, np.array([[1, 1, 0, 1, 1, 0, 1, 1, 1]]))
    np.testing.assert_array_equal(o11.astype(np.float64), np.array([[2.0, -2.0, 0.0, -3.0, 4.0, 2.0, -4.0, -2.0, 4.0]]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='N', size=1, tile=8, axis=1, wave=0), Dim(name='M', size=9, tile=16, axis=0, wave=4)), arrays=(Array(name='a1', dims=('M', 'N'), dtype='f32', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='s6', dims=('N', 'M'), dtype='i8', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='o11', dims=('N', 'M'), dtype='f32', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=None)), body=(Read(name='x2', array='a1', mapping=None, per_thread=0), Cast(name='x4', x='x2', dtype='bool'), Cast(name='x5', x='x4', dtype='i8'), Read(name='x7', array='s6', mapping=None, per_thread=0), Write(x='x5', array='s6', mapping=None, per_thread=0), Cast(name='x10', x='x7', dtype='f32'), Write(x='x10', array='o11', mapping=None, per_thread=0)), seed=880301, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
