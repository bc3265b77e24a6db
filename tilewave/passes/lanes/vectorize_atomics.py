"""Vectorize atomics: registers whose distances in memory are known are combined from one position, by steps.

    %row = add(broadcast(%r), ramp() {steps = [8]})        %first = add(%r, ‹row of the first register›)
    store_each(%x, %sums, [%row]) {combine = add}     →    store(%x, %sums, [%first], []) {steps = [[8]], combine = add}

A position may be any arithmetic on numbers that all registers share, on those of lane and wave, and on constants.
Quotients and remainders are computed for every lane: the distances are proved where they are the same in all of them.
Runs of neighbours are then one instruction, and others have their distance as a constant. Only the axes along which a
position may be out of bounds are compared with the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewave.analysis.register_distances import RegisterDistances, Spaced
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Store, StoreEach
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import RemarkKind
from tilewave.ir.rewrite import names, rewrite

SCATTERED = RemarkKind(
    "the distances of these elements in {memory} depend on the lane, so each is combined by an instruction of its own",
    "add to an array in whose rows a lane's elements have fixed distances",
)


def vectorize_atomics(kernel: Kernel) -> Kernel:
    builder = Builder(names(kernel))
    distances = RegisterDistances(kernel, builder)
    left: list[StoreEach] = []

    def combine(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, StoreEach) or not op.combine or not is_in(op.memory, "global"):
            return None
        with builder.region():
            builder.locate = lambda: op.loc
            places = [distances.of(v) for v in op.at]
            steps = _steps(op.x.type.shape, places)
            if steps is None:
                left.append(op)
                return None
            at = tuple(place.first(builder) for place in places if place is not None)
            guard = tuple(
                axis for axis, place in enumerate(places) if place is not None and _may_leave(op, axis, place)
            )
            return [
                *builder.ops,
                Store(op.x, op.memory, at, op.mask, steps, guard, combine=op.combine, loc=op.loc),
            ]

    made = rewrite(kernel, combine)
    return made.with_remarks(*(SCATTERED.at(op.loc, memory=op.memory.name) for op in left))


def _steps(shape: tuple[int, ...], places: Sequence[Spaced | None]) -> tuple[tuple[int, ...], ...] | None:
    """Return how far each axis of the registers goes along each axis of the memory, if that is all."""
    found = []
    for axis, extent in enumerate(shape):
        step = []
        for place in places:
            if place is None:
                return None
            along = np.moveaxis(np.broadcast_to(place.far, shape), axis, 0)
            step.append(int(np.ravel(along[1] - along[0])[0]) if extent > 1 else 0)
        found.append(tuple(step))
    each = np.indices(shape).reshape(len(shape), prod(shape))
    for i, place in enumerate(places):
        assert place is not None
        far = sum(step[i] * index for step, index in zip(found, each, strict=True))
        if not np.array_equal(far, np.broadcast_to(place.far, shape).ravel()):
            return None
    return tuple(found)


def _may_leave(op: StoreEach, axis: int, place: Spaced) -> bool:
    extent = op.memory.type.extents[axis]
    low, high = place.bounds
    return isinstance(extent, str) or low < 0 or high >= extent
