"""A stable counting sort of small integers: where each number goes, and where those of each value end."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewave.errors import CallError, here
from tilewave.ir.types import I32
from tilewave.kernels.counting_sort import (
    block_counts_kernel,
    blocks_of,
    group_ends_kernel,
    places_kernel,
    running_counts_kernel,
)
from tilewave.kernels.indexed import fill_kernel, scatter_tile_for
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, folded, target_of
from tilewave.ops.indexed import want_indices
from tilewave.ops.plans import CallWork, KernelLaunch, Operated

MOST_SORTED = 2**31 - 1


class CountingSort(NamedTuple):
    """The launches of a sort, in order, and the arrays that they share."""

    launches: tuple[KernelLaunch, ...]
    scratch: dict[str, Array]


def counting_sort_of(lib: ArrayLibrary, name: str, x: Array, places: tuple[str, Array], ends: Array) -> CountingSort:
    """Return the sort of the array of that name, at least one number; `places` has the name of the places' array."""
    count, values, at = prod(x.shape), ends.shape[0], places[1]
    if count > MOST_SORTED:
        what = f"counting_sort: {count:,} numbers, and places are numbers of 32 bits"
        raise CallError(what, loc=here(), remedy="sort them in parts")
    blocks, dtype, flat = blocks_of(count), lib.dtype("counting_sort", name, x), folded(x, 0)
    shapes = {"counts": (blocks, values), "before": (blocks, values), "totals": (values,)}
    scratch = {of: lib.empty(shape, I32, x) for of, shape in shapes.items()}
    every = {**scratch, name: flat, "ends": ends, places[0]: folded(at, 0)}

    def launch(kernel: WaveKernel, *names: str) -> KernelLaunch:
        return KernelLaunch(kernel, {of: every[of] for of in names})

    launches = (
        launch(block_counts_kernel(dtype), name, "counts"),
        launch(running_counts_kernel(), "counts", "before", "totals"),
        launch(group_ends_kernel(), "totals", "ends"),
        launch(places_kernel(dtype), name, "before", "totals", "ends", places[0]),
    )
    return CountingSort(launches, scratch)


def _counting_sort(lib: ArrayLibrary, x: Array, length: int) -> CallWork:
    want_indices("counting_sort", lib, x=x)
    places, ends = lib.empty(tuple(x.shape), I32, x), lib.empty((length,), I32, x)
    results = {"places": places, "ends": ends}
    if not length:
        raise CallError("counting_sort: there are no values", loc=here(), remedy="pass a length of 1 or more")
    if not prod(x.shape):
        fill = fill_kernel(scatter_tile_for(target_of("counting_sort", lib.device(x)), length, I32), I32)
        return CallWork(results, KernelLaunch(fill, {"ends": ends.reshape(1, length)}))
    found = counting_sort_of(lib, "x", x, ("places", places), ends)
    return CallWork(results, found.launches[0], found.launches[1:], found.scratch)


counting_sort = Operated("counting_sort", ("x",), _counting_sort)
"""The place of each number, and the end of the numbers of each value below a length, a further argument."""
