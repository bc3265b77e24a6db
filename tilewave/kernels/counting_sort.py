"""A stable counting sort of small integers, without atomics: tokens sorted by their expert, in four launches.

Numbers come in blocks of `BLOCK`. The place of number i of block b, of value v, is

    the numbers of values below v
    + the numbers equal to v in blocks before b
    + the numbers equal to v in block b before i

which are, in turn, a running sum over values, one over blocks for each value, and a count among the numbers of a block.
Each is a sum of integers, so places are the same at every run. Nothing comes to the host.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.ir.types import I32, INDEX, DType
from tilewave.kernels.indexed import T, V, array_of, want_indices
from tilewave.kernels.parameters import kernel_of
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, scalar, select, self_index
from tilewave.lang.symbols import sym
from tilewave.lang.types import RegisterType

B, J, ONE = sym.B, sym.J, sym.ONE
BLOCK = 512
"""The numbers of a block."""
COUNTED, COUNT_VALUES = 16, 128
"""The numbers of a step, and the values, of a workgroup that counts in a block: each lane has values of its own, so no
count goes from lane to lane."""
RUN_BLOCKS, RUN_VALUES = 128, 8
"""The blocks of a step, and the values, of a workgroup that adds up counts."""
PLACED, COMPARED = 128, 32
"""The numbers that a workgroup places, and those that it compares them with in a step."""


def blocks_of(count: int) -> int:
    """Return the number of blocks of so many numbers."""
    return -(-count // BLOCK)


@cache
def block_counts_kernel(dtype: DType, step: int = COUNTED, values: int = COUNT_VALUES) -> WaveKernel:
    """Return the kernel from x[T] to counts[B, V]: how often each value is in each block."""

    want_indices("block_counts", x=dtype)

    def count(to: Any) -> None:
        first = first_index(B) * BLOCK

        @iterate(J, init_args=[RegisterType((V,), I32)(0)])
        def total(so_far: Any) -> Any:
            at = first + self_index(J, INDEX)
            found = select(at < scalar(T, INDEX), cast(read(to.x, at={T: at}), INDEX), -1)
            return so_far + cast(found == self_index(V, INDEX), I32).sum(dim=J)

        write(total, to.counts)

    constraints = [WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(V, values, 1), TilingConstraint(J, step)]
    arrays = {"x": array_of(dtype, T), "counts": array_of(I32, B, V)}
    return kernel_of("block_counts", constraints, arrays, count, {J: BLOCK})


@cache
def running_counts_kernel() -> WaveKernel:
    """Return the kernel from counts[B, V] to before[B, V], their sums over earlier blocks, and totals[V]."""

    def add(to: Any) -> None:
        @iterate(B, init_args=[RegisterType((V,), I32)(0)])
        def total(so_far: Any) -> Any:
            counts = read(to.counts)
            write(counts.cumsum(dim=B) - counts + so_far, to.before)
            return counts.sum(dim=B, acc=so_far)

        write(total, to.totals)

    constraints = [WorkgroupConstraint(V, RUN_VALUES, 0), TilingConstraint(B, RUN_BLOCKS)]
    arrays = {"counts": array_of(I32, B, V), "before": array_of(I32, B, V), "totals": array_of(I32, V)}
    return kernel_of("running_counts", constraints, arrays, add)


@cache
def group_ends_kernel() -> WaveKernel:
    """Return the kernel from totals[V] to ends[V], the sums of all totals up to each."""

    def add(to: Any) -> None:
        write(read(to.totals).cumsum(dim=V), to.ends)

    arrays = {"totals": array_of(I32, V), "ends": array_of(I32, V)}
    return kernel_of("group_ends", [WorkgroupConstraint(ONE, 1, 0)], arrays, add, {ONE: 1})


@cache
def places_kernel(dtype: DType, placed: int = PLACED, step: int = COMPARED) -> WaveKernel:
    """Return the kernel from x[T], before[B, V], totals[V] and ends[V] to places[T]: where each number goes.

    A number that is no value goes nowhere: its place is -1.
    """

    want_indices("places", x=dtype)

    def place(to: Any) -> None:
        own, first = cast(read(to.x), INDEX), first_index(T)
        block = first // BLOCK

        @iterate(J, init_args=[RegisterType((T,), I32)(0)], stop=first - block * BLOCK + placed)
        def rank(so_far: Any) -> Any:
            at = block * BLOCK + self_index(J, INDEX)
            is_earlier = at < self_index(T, INDEX)
            is_equal = cast(read(to.x, at={T: at}), INDEX) == own
            return so_far + cast(is_equal & is_earlier, I32).sum(dim=J)

        start = read(to.ends, at={V: own}) - read(to.totals, at={V: own})
        found = rank + start + read(to.before, at={B: block, V: own})
        write(select((own >= 0) & (own < scalar(V, INDEX)), found, -1), to.places)

    arrays = {
        "x": array_of(dtype, T),
        "before": array_of(I32, B, V),
        "totals": array_of(I32, V),
        "ends": array_of(I32, V),
        "places": array_of(I32, T),
    }
    constraints = [WorkgroupConstraint(T, placed, 0), TilingConstraint(J, step)]
    return kernel_of("places", constraints, arrays, place, {J: BLOCK})
