"""GEMM with operands contiguous along M or N: loaded by TMA, in panels, and multiplied in place."""

import re

import numpy as np
import pytest
from hopper_kernels import changed, ops
from kernels import check_product, poisoned
from lane_runs import ORDERS, operands

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Arrive, TmaLoad, TmaLoadMulticast, WaitMbarrier, WgmmaShared
from tilewave.ir.rewrite import walk
from tilewave.kernels import gemm
from tilewave.kernels.products import LAYOUTS
from tilewave.machine.matrix import GROUP_INSTRUCTIONS

pytestmark = pytest.mark.share(6)

TRANSPOSED = {"nt": (), "nn": (1,), "tt": (0,), "tn": (0, 1)}


def compiled(layout, shape, tile, dtype=f16, is_open=False, mapping="grouped(4)", **more):
    made = gemm(shape, dtype, f32, tile=tile, mapping=mapping, layout=layout)
    subs = {s: n for s, n in made.subs.items() if not is_open or s.name.startswith("BLOCK")}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", **more), made.kernel)


def laid(layout, a, b):
    """The arrays as a kernel of that layout takes them."""
    return (
        a if layout[0] == "n" else np.ascontiguousarray(a.T),
        b if layout[1] == "t" else np.ascontiguousarray(b.T),
    )


def check(made, layout, shape, dtype=f16, order="random"):
    a, b = operands(shape, dtype=dtype)
    c = poisoned(shape[:2], f32)
    made.interpret(*laid(layout, a, b), c, level="lane", order=order)
    check_product(c, a, b)


@pytest.mark.share(12)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((64, 64, 64), (64, 64, 64)),
        ((200, 264, 136), (128, 128, 64)),  # boundary tiles along all three
        ((72, 104, 200), (64, 32, 128)),  # panels of 64 bytes, two slices of the depth
        ((136, 48, 40), (64, 16, 32)),  # panels of 32 bytes
        ((72, 96, 72), (64, 96, 64)),  # three panels
    ],
)
def test_every_layout_goes_through_the_copy_engine(layout, shape, tile, is_open):
    made = compiled(layout, shape, tile, is_open=is_open)
    copies = [op for op in walk(made.build.lanes.body) if isinstance(op, (TmaLoad, TmaLoadMulticast))]
    products = [op for op in walk(made.build.lanes.body) if isinstance(op, WgmmaShared)]
    assert {op.memory.name for op in copies} == {"a", "b"}
    assert {op.transposed for op in products} == {TRANSPOSED[layout]}
    check(made, layout, shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_in_every_order_of_waves(layout, order):
    check(compiled(layout, (136, 136, 200), (64, 64, 64), bf16), layout, (136, 136, 200), bf16, order)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_rows_lie_on_no_cache_lines_neighbours_share_copies(layout):
    shape = (776, 520, 200)
    made = compiled(layout, shape, (128, 128, 64))
    check(made, layout, shape)


@pytest.mark.parametrize("lost", [WaitMbarrier, Arrive])
def test_every_wait_and_arrival_is_needed(lost):
    shape = (72, 72, 360)
    lanes = compiled("tn", shape, (64, 64, 64), num_stages=2).build.lanes
    arrays = laid("tn", *operands(shape))
    for number in range(len(ops(lanes, lost))):
        without = changed(lanes, lost, number, lambda op: [])
        with pytest.raises(InterpreterError):
            for seed in range(8):
                interpret_lanes(without, [*arrays, poisoned(shape[:2], f32)], {}, "random", seed)


@pytest.mark.parametrize("layout", ["nn", "tt", "tn"])
@pytest.mark.parametrize("dtype", [f8e4m3fn, i8])
def test_bytes_lie_along_the_depth_only(layout, dtype):
    """The instruction takes no others, so that lanes load them, and transpose them on the way."""
    shape = (64, 64, 64)
    made = gemm(shape, dtype, None, tile=(64, 64, 64), layout=layout)
    made = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    assert not any(op.transposed for op in walk(made.build.lanes.body) if isinstance(op, WgmmaShared))


def test_only_what_is_transposed_by_the_instruction_is_said_to_turn():
    assert {i.a for i in GROUP_INSTRUCTIONS if i.turns} == {"f16", "bf16"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_instruction_is_told_which_operands_are_turned(layout):
    made = compiled(layout, (256, 512, 256), (128, 256, 64))
    told = re.findall(r"wgmma\.mma_async[^;]*, ([01]), ([01]);", made.asm)
    assert set(told) == {(str(int(0 in TRANSPOSED[layout])), str(int(1 in TRANSPOSED[layout])))}


def test_an_operand_in_panels_is_one_copy_for_each():
    """A tile of 256 columns has four panels of 64, and each is a TMA box with its own bounds check."""
    made = compiled("nn", (256, 512, 256), (128, 256, 64))
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global", made.asm)) == 1 + 4
