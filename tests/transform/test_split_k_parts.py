"""Split-K for sizes that are known and for open ones: both add the same partial sums in the same order."""

import pytest
from kernels import K, check_product, gemm, poisoned, sizes
from lane_runs import operands
from tunings import SPLITS

from tilewave import *
from tilewave.analysis.shared_tiles import TileProgram
from tilewave.interp.tiles import interpret
from tilewave.ir.launch import bind
from tilewave.transform.split_k import SplitKBuilder

CASES = {
    "a workgroup for each part": ((128, 64, 104), 3, 132, 6, True),
    "all parts in one workgroup": ((192, 192, 104), 3, 4, 4, False),
    "a last part with fewer steps": ((64, 64, 56), 4, 132, 4, True),
}


def kernel_of(shape, parts):
    subs = {s: v for s, v in sizes(*shape, 64, 64, 8).items() if v}
    split = gemm(constraints=(SplitConstraint(K, parts),))
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), split).kernel


@pytest.mark.parametrize("case", CASES)
def test_open_sizes_are_added_up_as_known_ones(case):
    shape, parts, at_once, workgroups, is_shared = CASES[case]
    numbers, found = dict(zip("MNK", shape, strict=True)), []
    for kernel in (kernel_of(shape, parts), kernel_of((0, 0, 0), parts)):
        builder = SplitKBuilder(kernel, TileProgram.of(kernel), at_once, SPLITS)
        assert builder.shares is is_shared or not isinstance(kernel.workgroups, int)
        bound = bind(builder.kernel(), numbers)
        assert bound.workgroups == workgroups
        a, b = operands(shape)
        found.append(poisoned(shape[:2], f32))
        interpret(bound, [a, b, found[-1]], numbers)
        check_product(found[-1], a, b, f32)
    assert found[0].tobytes() == found[1].tobytes()
