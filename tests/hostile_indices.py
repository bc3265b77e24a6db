"""Arrays of indices, some of them far out of bounds, and how a compiled kernel is run on each target."""

import numpy as np

from tilewave import sym

HOSTILE = (-1, -(2**31), 2**31 - 1)
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")


def run(kernel, target, *arrays, **subs):
    """Run a kernel, of dynamic sizes but for `subs`: on the CPU, in the interpreter, on a GPU's lanes, or emulated."""
    sizes = {getattr(sym, name): size for name, size in subs.items()}
    made = kernel.compile(target=target, subs=sizes)
    if target == "cpu":
        made(*arrays)
    elif target == "numpy":
        made.interpret(*arrays)
    elif target == "sm_90a":
        made.interpret(*arrays, level="lane")
    else:
        made.emulate(*arrays)
    return made


def table_of(rng, shape, end, dtype=np.int32):
    """Return indices below `end`, with duplicates, some of them out of bounds."""
    found = rng.integers(-3, end + 3, shape).astype(dtype)
    found.reshape(-1)[: len(HOSTILE)] = HOSTILE[: found.size]
    return found


def distinct(rng, shape, end, dtype=np.int32):
    """Return indices below `end` of which no two are equal, some of them out of bounds."""
    found = rng.permutation(end)[: np.prod(shape)].astype(dtype)
    found[3 : 3 + len(HOSTILE)] = HOSTILE
    return found.reshape(shape)


def inside(ids, end):
    return (ids >= 0) & (ids < end)


def picked(table, ids):
    """Return the rows of a table, 0 for those that it has not."""
    rows = table[np.clip(ids, 0, len(table) - 1)]
    there = inside(ids, len(table)).reshape(ids.shape + (1,) * (table.ndim - 1))
    return np.where(there, rows, np.zeros((), table.dtype))
