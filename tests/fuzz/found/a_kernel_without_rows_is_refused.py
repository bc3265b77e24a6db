"""kernels.softmax numpy: raised AssertionError: every kernel has rows

every kernel has rows

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
    memory_0 = memory("eNpjYDhQDwACAwFA", 4)
    # y: [nan]
    y = np.ndarray((1,), np.dtype("float32"), memory_0, 0, (4,))
    before = [x.copy() for x in [memory_0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SlowCodeWarning)
        try:
            found = kernels.softmax(x=None, y=y)
        except TilewaveError:
            check_untouched([memory_0], before, [])
            return
    raise AssertionError("taken, though x is missing")


if __name__ == "__main__":
    check()

CALL = "Call(function='kernels.softmax', arguments=(('x', Said(text='None')), ('y', Laid(shape=(1,), dtype='f32', content='poison', layout=None, flaw=''))), library='numpy', other='', times=1, seed=392)"
