"""K loops of dynamic shapes take one step even where K is 0, if that step reads nothing but zeros.

    %steps = launch() { … floor_div(%K + 63, 64) }       %steps = launch() { … max(floor_div(%K + 63, 64), 1) }
    %sum = loop(%steps, [%zeros]) { read(%a, …) … }  →   %sum = loop(%steps, [%zeros]) { read(%a, …) {guard = [1]} … }

The sums are the same, and later passes can rely on a first step that writes them. A static K is never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.k_loops import Depths
from tilewave.analysis.ranges import ranges_of
from tilewave.analysis.tile_programs import only_adds_up
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op
from tilewave.ir.launch import at_launch, is_open
from tilewave.ir.ops import Loop
from tilewave.ir.rewrite import names, rewrite


def take_first_step(kernel: Kernel) -> Kernel:
    if not is_open(kernel):
        return kernel
    depths, ranges, builder = Depths(kernel), ranges_of(kernel), Builder(names(kernel))

    def at_least_one(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or not only_adds_up(op) or ranges.of(op.trips)[0] > 0:
            return None
        if not depths.end_in_zeros(op):
            return None
        with builder.region():
            builder.locate = lambda: op.loc
            trips = Number(builder, op.trips).larger(1).value
            return [*builder.ops, replace(op, trips=trips, body=depths.running_on(op))]

    return at_launch(rewrite(kernel, at_least_one))
