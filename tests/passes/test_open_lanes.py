"""Lanes of kernels with dynamic shapes, on a machine whose warpgroups multiply operands in shared memory."""

import pytest
from kernels import gemm
from open_kernels import blocks, check_call

from tilewave import *
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.launch import bind
from tilewave.ir.ops import Load, Loop, Select
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import CHIPS
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

SHAPES = ((65, 63, 33), (64, 64, 64), (1, 1, 1), (70, 130, 100), (5, 5, 0))


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_groups_of_waves_multiply_for_every_size(ahead):
    tiles = wave_compile(WaveCompileOptions(subs=blocks(64, 64, 32), target="numpy"), gemm()).kernel
    pipelining = lists.prefetch(ahead, CHIPS["sm_90a"]) if ahead else ()
    lanes, _ = run(tiles, lists.hopper_plain(CHIPS["sm_90a"], Places(), pipelining))

    def call(*arrays):
        interpret_lanes(bind(lanes, values), arrays, values, "random", 1)

    for shape in SHAPES:
        values = dict(zip("MNK", shape, strict=True))
        check_call(call, shape)


def test_rows_as_long_as_they_may_be_are_not_masked():
    """The only check at launch is whether a row, or a step of one, is in bounds."""
    for constraints, length in (([], {sym.N: 512}), ([TilingConstraint(sym.N, 512)], {})):
        kernel = wave_compile(WaveCompileOptions(target="sm_90a", max_sizes=length), _softmax(constraints)).ir()
        inside, behind = (op for op in walk(kernel.body) if isinstance(op, Loop) and _masks(op) is not None)
        assert (_masks(inside), _masks(behind)) == (0, 2)  # one for the largest, one for the sum


def _softmax(constraints):
    @wave([WorkgroupConstraint(sym.M, 1, 0), *constraints])
    def softmax(x: Memory[sym.M, sym.N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[sym.M, sym.N, GLOBAL_ADDRESS_SPACE, f32]):
        def of_rows():
            power = exp(read(x) - read(x).max(dim=sym.N))
            write(power / power.sum(dim=sym.N), y)

        iterate(sym.N)(of_rows) if constraints else of_rows()

    return softmax


def _masks(loop):
    """How often something is chosen in a loop that reads rows."""
    ops = loop.body.ops
    reads = any(isinstance(op, Load) and op.memory.type.space == "global" for op in ops)
    return sum(isinstance(op, Select) for op in ops) if reads else None
