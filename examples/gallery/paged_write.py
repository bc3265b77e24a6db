"""New keys go to their places in a paged cache: a slot is a page and a place in it, by quotient and remainder.

Slots that are distinct stay distinct that way, so their contract is enough.
"""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Indices, Memory, WorkgroupConstraint, f16, i32, read, sym, wave, write

T, PAGE, SLOT, H, D = sym.T, sym.PAGE, sym.SLOT, sym.H, sym.D  # tokens, pages, places of a page, heads, elements
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(H, 1, 1), WorkgroupConstraint(D, 128, 2)])
def paged_write(
    slots: Memory[T, G, i32, Indices(unique=True)],
    keys: Memory[T, H, D, G, f16],
    cache: Memory[PAGE, SLOT, H, D, G, f16],
):
    slot = read(slots)
    write(read(keys), cache, at={PAGE: slot // SLOT, SLOT: slot % SLOT})


def paged(slots, keys, places=16):
    cache = np.empty((len(slots) // places, places, *keys.shape[1:]), keys.dtype)
    cache.reshape(keys.shape)[slots.astype(int)] = keys
    return cache


def case(pages=6, places=16, heads=4, size=128):
    rng = np.random.default_rng(20)
    slots = rng.permutation(pages * places).astype(np.int32)
    keys = rng.standard_normal((len(slots), heads, size)).astype(np.float16)
    return Case(paged_write, (slots, keys), (np.empty((pages, places, heads, size), np.float16),), paged, paged)


if __name__ == "__main__":
    present(case(), paged_write.name)
