"""kernels.attention_decode numpy: refused, though it fits: the tile is #

the tile is 0
  tests/fuzz/call_judge.py:36
      returned = _function(call.function)(**arguments)
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  a tile is at least 1

Run it with
    python THIS_FILE
"""

import base64
import warnings
import zlib

import ml_dtypes  # it names dtypes for numpy
import numpy as np

from tilewave import kernels, ops
from tilewave.errors import SlowCodeWarning, TilewaveError


def memory(text, size):
    """The bytes of a buffer."""
    return np.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), np.uint8)[:size]


def numbers(text, dtype, shape):
    return memory(text, None).view(dtype).reshape(shape)


def places(array, buffer):
    """The bytes of the buffer that are elements of the array."""
    at = np.full(array.shape, array.__array_interface__["data"][0] - buffer.__array_interface__["data"][0])
    for axis, stride in enumerate(array.strides):
        at = at + np.arange(array.shape[axis]).reshape([-1 if n == axis else 1 for n in range(array.ndim)]) * stride
    return (at.reshape(-1, 1) + np.arange(array.itemsize)).reshape(-1)


def check_untouched(buffers, before, written):
    for buffer, was in zip(buffers, before):
        own = np.zeros(buffer.shape, bool)
        for array, inside in written:
            own[places(array, inside) if inside is buffer else []] = True
        assert not ((buffer != was) & ~own).any(), "memory changed that is no element of a result"


def check_numbers(name, found, wanted, bound):
    found = np.asarray(found).astype(wanted.dtype)
    same = (found == wanted) | ((found != found) & (wanted != wanted)) | (bound == np.inf)
    assert found.shape == wanted.shape and (same | (abs(found - wanted) <= bound)).all(), f"{name} is {found}, not {wanted}"


def check():
    memory_0 = memory("eNoDAAAAAAE=", 0)
    memory_1 = memory("eNrbAwAAvQC9", 1)
    memory_2 = memory("eNpjYGg4AAABxAFB", 4)
    memory_3 = memory("eNoDAAAAAAE=", 0)
    # q: [[[]]]
    q = np.ndarray((1, 1, 0, 1), np.dtype("float8_e5m2"), memory_0, 0, (0, 0, 0, 0))
    # k: [[[[-1.0]]]]
    k = np.ndarray((1, 1, 1, 1), np.dtype("float8_e5m2"), memory_1, 0, (1, 1, 1, 1))
    # v: [[[[-4.0]]]]
    v = np.ndarray((1, 1, 1, 1), np.dtype("float32"), memory_2, 0, (4, 4, 4, 4))
    # y: [[[]]]
    y = np.ndarray((1, 1, 0, 1), np.dtype("float32"), memory_3, 0, (0, 0, 0, 0))
    before = [x.copy() for x in [memory_0, memory_1, memory_2, memory_3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SlowCodeWarning)
        try:
            found = kernels.attention_decode(q=q, k=k, v=v, y=y)
        except TilewaveError:
            check_untouched([memory_0, memory_1, memory_2, memory_3], before, [])
            raise
    check_untouched([memory_0, memory_1, memory_2, memory_3], before, [(y, memory_3)])
    check_numbers("y", y, numbers("eNoDAAAAAAE=", "float64", (1, 1, 0, 1)), numbers("eNoDAAAAAAE=", "float64", (1, 1, 0, 1)))


if __name__ == "__main__":
    check()

CALL = "Call(function='kernels.attention_decode', arguments=(('q', Laid(shape=(1, 1, 0, 1), dtype='f8e5m2', content='small', layout=None, flaw='')), ('k', Laid(shape=(1, 1, 1, 1), dtype='f8e5m2', content='small', layout=None, flaw='')), ('v', Laid(shape=(1, 1, 1, 1), dtype='f32', content='small', layout=None, flaw='')), ('y', Laid(shape=(1, 1, 0, 1), dtype='f32', content='poison', layout=None, flaw=''))), library='numpy', other='', times=1, seed=963)"
