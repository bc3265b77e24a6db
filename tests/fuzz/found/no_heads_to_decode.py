"""`attention_decode` of q without heads raised ZeroDivisionError.

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
    assert found.shape == wanted.shape, f"{name} is {found.shape}, not {wanted.shape}"
    assert (same | (abs(found - wanted) <= bound)).all(), f"{name} is {found}, not {wanted}"


DEVICE = "cpu"


HELD = {}


def tensor(array, buffer):
    """The same memory as a tensor of torch's; on a GPU a copy of the whole buffer."""
    import torch

    first = (array.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]) // array.itemsize
    _, whole = HELD.setdefault(id(buffer), (buffer, torch.from_numpy(buffer).to(DEVICE)))
    found = whole.view(getattr(torch, array.dtype.name))
    return found.as_strided(array.shape, [s // array.itemsize for s in array.strides], first)


def bring_back():
    for buffer, whole in HELD.values():
        buffer[...] = whole.cpu().numpy()


def check():
    memory_0 = memory("eNoDAAAAAAE=", 0)
    memory_1 = memory("eNpjYGg4AAABxAFB", 4)
    memory_2 = memory("eNpjYGg4AAABxAFB", 4)
    memory_3 = memory("eNpjYDhQDwACAwFA", 4)
    # q: [[]]
    q = np.ndarray((1, 0, 1, 1), np.dtype("float32"), memory_0, 0, (0, 0, 0, 0))
    q_ = tensor(q, memory_0)
    # k: [[[[-4.0]]]]
    k = np.ndarray((1, 1, 1, 1), np.dtype("float32"), memory_1, 0, (4, 4, 4, 4))
    k_ = tensor(k, memory_1)
    # v: [[[[-4.0]]]]
    v = np.ndarray((1, 1, 1, 1), np.dtype("float32"), memory_2, 0, (4, 4, 4, 4))
    v_ = tensor(v, memory_2)
    # y: [[[[nan]]]]
    y = np.ndarray((1, 1, 1, 1), np.dtype("float32"), memory_3, 0, (4, 4, 4, 4))
    y_ = tensor(y, memory_3)
    before = [x.copy() for x in [memory_0, memory_1, memory_2, memory_3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SlowCodeWarning)
        try:
            found = kernels.attention_decode(q=q_, k=k_, v=v_, y=y_)
        except TilewaveError:
            bring_back()
            check_untouched([memory_0, memory_1, memory_2, memory_3], before, [])
            return
    raise AssertionError("taken, though y has another shape than the result")


if __name__ == "__main__":
    check()

CALL = "Call(function='kernels.attention_decode', arguments=(('q', Laid(shape=(1, 0, 1, 1), dtype='f32', content='small', layout=None, flaw='')), ('k', Laid(shape=(1, 1, 1, 1), dtype='f32', content='small', layout=None, flaw='')), ('v', Laid(shape=(1, 1, 1, 1), dtype='f32', content='small', layout=None, flaw='')), ('y', Laid(shape=(1, 1, 1, 1), dtype='f32', content='poison', layout=None, flaw=''))), library='torch', other='', times=1, seed=518090)"
