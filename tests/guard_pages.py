"""Arrays beside pages that must not be touched: an access right before or after one ends the process (Linux)."""

import ctypes
import mmap

import numpy as np


def before_a_guard(array):
    """Return a copy of an array that ends where memory ends that may be touched."""
    return _guarded(array, at_end=True)


def after_a_guard(array):
    """Return a copy of an array that begins where memory begins that may be touched."""
    return _guarded(array, at_end=False)


def _guarded(array, at_end):
    page, size = mmap.PAGESIZE, array.nbytes
    inner = -(-size // page) * page
    region = mmap.mmap(-1, inner + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for first in (begin, begin + page + inner):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(page), 0) == 0
    found = np.frombuffer(region, array.dtype, array.size, page + (inner - size if at_end else 0))
    found = found.reshape(array.shape)
    found[...] = array
    return found
