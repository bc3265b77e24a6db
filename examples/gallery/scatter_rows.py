"""Rows stored where a table says: tokens sorted by expert go back to their places, and each is there once.

The contract `unique` promises the last part; without it, the kernel is refused.
"""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Indices, Memory, WorkgroupConstraint, f32, i32, read, sym, wave, write

T, P, D = sym.T, sym.P, sym.D  # rows, places, elements of a row
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 256, 1)])
def scatter_rows(
    places: Memory[T, G, i32, Indices(into=P, unique=True)], x: Memory[T, D, G, f32], out: Memory[P, D, G, f32]
):
    write(read(x), out, at={P: read(places)})


def stored(places, x):
    out = np.empty_like(x)
    out[places.astype(int)] = x
    return out


def case(rows=100, size=300):
    rng = np.random.default_rng(19)
    places, x = rng.permutation(rows).astype(np.int32), rng.standard_normal((rows, size), np.float32)
    return Case(scatter_rows, (places, x), (np.empty_like(x),), stored, stored)


if __name__ == "__main__":
    present(case(), scatter_rows.name)
