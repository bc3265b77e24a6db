"""Predicted times as tables: a changed term of a cost model shows as changed lines.

The other tests of this folder say what the times must do; these tables say where a change of the model has an effect.
"""

from dataclasses import replace

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from test_cost_gpu import problem
from test_cost_host import host
from test_cost_host import problem as host_problem

from tilewave.cost.gpu import GpuCost
from tilewave.tune.machines import machine_of
from tilewave.tune.space import NUM_STAGES, SPLIT

SHAPES = [(1, 4096, 4096), (64, 4096, 14336), (304, 401, 517), (4096, 4096, 4096), (2056, 3000, 1024), (130, 70, 8000)]
TILES = [(128, 256, 64), (64, 128, 64), (8, 64, 128), (48, 16, 64), (64, 64, 128)]
PIPELINES = {"sm_90a": [(0, 1), (3, 1), (2, 4)], "gfx942": [(0, 1)], "gfx950": [(0, 1)]}


def held(machine, work):
    """What a unit holds, where the model of the chip depends on it."""
    if not isinstance(machine, GpuCost):
        return ""
    return f"{machine.stages(work)} stages, {machine.resident(work)} resident, "


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("target", PIPELINES)
def test_of_gpus(target, layout, golden):
    machine, lines = machine_of(target), []
    for shape in SHAPES:
        sized = problem(layout, target).sized(dict(zip((M, N, K), shape, strict=True)))
        for tile in TILES:
            for stages, split in PIPELINES[target]:
                values = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)) | {NUM_STAGES: stages, SPLIT: split}
                work = sized.cut(values)
                found = machine.predict(work)
                times = f"{machine.picoseconds(work)} ps, {found.limit}, {held(machine, work)}"
                times += machine.refused(work) or "legal"
                lines.append(f"{shape} by {tile}, {stages} stages, split {split}: {times}\n")
    golden("".join(lines))


def test_of_cpus(golden):
    lines = []
    for shape in SHAPES:
        for tile in ((112, 128, 64), (4, 1, 64), (8, 64, 128), (64, 64, 64)):
            for threads, in_place in ((1, 0), (2, 1), (16, 0)):
                work = host_problem(shape).cut(dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)))
                found = host(threads).predict(replace(work, in_place=in_place))
                said = f"{found.seconds * 1e6:.4f} us, {found.limit}"
                lines.append(f"{shape} by {tile}, {threads} threads, in place {in_place}: {said}\n")
    golden("".join(lines))
