"""cpu x86-64: wrong numbers

2 of 28 elements of o5; o5[0, 1] is 1.0, not 1.0009765625

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

N = sym.N
M = sym.M
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(N, 1, 1),
        WorkgroupConstraint(M, 1, 2),
    ]
)
def kernel(
    a1: Memory[N, M, GLOBAL_ADDRESS_SPACE, f64],
    o5: Memory[N, M, GLOBAL_ADDRESS_SPACE, f32],
):
    x2 = read(a1)
    x3 = cast(x2, f16)
    x4 = cast(x3, f32)
    write(x4, o5)


def check():
    a1 = np.array([[-7.25, 1.0004882812509095, 0.23452958494277987, 1.0284211219044106, -19.961430584980263, 0.5, 0.23497660079149252, 99.70652085191372, 3.0, -85.64157528544074, -0.0, -0.05078125, -0.0, -0.07577088642733618], [-0.020027526617518155, 1.7836580732864014, -23.906250953675226, 78.24999976158142, 2.8959502446183287, 1.0004882812509095, -float("inf"), -0.24801803631791566, 25.16745617464732, 0.0, -74.93381935567918, -0.014423370361313914, 100.0, float("nan")]]).astype(np.dtype("float64"))
    o5 = np.array([[float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan")], [float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan"), float("nan")]]).astype(np.dtype("float32"))
    compiled = wave_compile(WaveCompileOptions(subs={N: 2, M: 14}, target='cpu', instruction_set='x86-64'), kernel)
    compiled(a1, o5)
    np.testing.assert_array_equal(o5.astype(np.float64), np.array([[-7.25, 1.0009765625, 0.2344970703125, 1.0283203125, -19.96875, 0.5, 0.2349853515625, 99.6875, 3.0, -85.625, -0.0, -0.05078125, -0.0, -0.07574462890625], [-0.0200347900390625, 1.783203125, -23.90625, 78.25, 2.896484375, 1.0009765625, -float("inf"), -0.248046875, 25.171875, 0.0, -74.9375, -0.0144195556640625, 100.0, float("nan")]]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='N', size=2, tile=1, axis=1, wave=0), Dim(name='M', size=14, tile=1, axis=2, wave=0)), arrays=(Array(name='a1', dims=('N', 'M'), dtype='f64', content='special', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='o5', dims=('N', 'M'), dtype='f32', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=None)), body=(Read(name='x2', array='a1', mapping=None, per_thread=0), Cast(name='x3', x='x2', dtype='f16'), Cast(name='x4', x='x3', dtype='f32'), Write(x='x4', array='o5', mapping=None, per_thread=0)), seed=1244, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
