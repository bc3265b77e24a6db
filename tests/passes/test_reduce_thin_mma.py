"""Products with one row or column: computed by reductions, for all layouts, with boundary tiles and epilogues."""

import re
from dataclasses import replace

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array
from lane_runs import ORDERS, some_of

from tilewave import *
from tilewave.ir.ops import HandOver, Load, Loop, Mma, Reduce
from tilewave.ir.rewrite import walk
from tilewave.kernels.linear import BATCH, ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.lang.constraints import SplitConstraint
from tilewave.lower.gpu.exchanges import exchange_bytes, slot_bytes
from tilewave.machine.chips import CHIPS
from tilewave.passes.tile.reduce_thin_mma import ReduceThinMma
from tilewave.runtime.arrays import view

reduce_thin_mma = ReduceThinMma(CHIPS["sm_90a"])
LAYOUTS = {"NT": ((M, K), (N, K)), "NN": ((M, K), (K, N)), "TT": ((K, M), (N, K)), "TN": ((K, M), (K, N))}


def thin(layout, tile, dtype=f16, target="sm_90a", split=1, **form):
    a, b = LAYOUTS[layout]
    kernel = product_kernel(ProductForm(dtype, f32 if dtype.is_float else i32, a, b, **form))
    if split > 1:
        kernel = replace(kernel, constraints=(*kernel.constraints, SplitConstraint(K, split)), kept={})
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    return wave_compile(WaveCompileOptions(subs=subs, target=target), kernel)


def check(made, layout, shape, dtype=f16, seed=3):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    for order in some_of(ORDERS, 1):
        c = poisoned((m, n), f32 if dtype.is_float else i32)
        given = (
            np.ascontiguousarray(a.T) if layout[0] == "T" else a,
            b if layout[1] == "T" else np.ascontiguousarray(b.T),
        )
        made.interpret(*given, c, level="lane", order=order, seed=seed)
        check_product(c, a, b, f32 if dtype.is_float else i32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        ((4, 1, 64), (6, 3, 150)),
        ((1, 8, 128), (2, 13, 77)),
        ((8, 1, 32), (8, 1, 1)),
        ((4, 8, 512), (3, 13, 1101)),
        ((8, 4, 512), (13, 3, 700)),
        ((4, 128, 32), (5, 131, 71)),
        ((128, 4, 32), (131, 5, 71)),
        ((4, 4, 96), (5, 6, 97)),
    ],
)
def test_a_thin_product_is_right_and_needs_no_matrix_unit(layout, tile, shape):
    made = thin(layout, tile)
    assert not any(isinstance(op, Mma) for op in walk(made.ir("reduce_thin_mma").body))
    assert "wgmma" not in made.asm
    assert "mma.sync" not in made.asm
    check(made, layout, shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "shape"), [((4, 1, 256), (3, 5, 900)), ((1, 4, 512), (2, 7, 1901)), ((4, 8, 128), (3, 13, 901))]
)
def test_workgroups_share_a_thin_product(layout, tile, shape):
    made = thin(layout, tile, split=4)
    assert any(isinstance(op, HandOver) for op in walk(made.ir("reduce_thin_mma").body))
    assert not any(isinstance(op, Mma) for op in walk(made.ir("reduce_thin_mma").body))
    check(made, layout, shape)


def test_many_thin_tiles_are_computed_whole():
    """Each workgroup computes all parts of several tiles: there are fewer slots than parts."""
    check(thin("NN", (4, 1, 32), split=4), "NN", (5, 181, 130))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", [(1, 64, 256), (64, 1, 256), (4, 8, 512), (8, 4, 1024), (1, 4, 1024)])
def test_neighbouring_lanes_load_neighbours_of_the_longer_operand(layout, tile):
    side = int(tile[1] > tile[0])
    made = thin(layout, tile).build
    plan = made.program.plans.plan_for([view(x) for x in operands(layout, (201, 203, 777))])
    lanes = made.for_key(plan.key).lanes
    loads = [op for op in walk(lanes.body) if isinstance(op, Load) and op.memory.name == "ab"[side]]
    assert loads and all("lane" in defined(lanes, op.at[-1]) for op in loads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_waves_share_the_depth_and_not_the_sides(layout):
    """Each element is then loaded once by a workgroup, and not by every wave."""
    made = thin(layout, (4, 8, 512)).build
    plan = made.program.plans.plan_for([view(x) for x in operands(layout, (7, 203, 777))])
    lanes = made.for_key(plan.key).lanes
    depth = {"a": int(layout[0] == "N"), "b": int(layout[1] == "T")}
    loads = [op for op in walk(lanes.body) if isinstance(op, Load) and op.memory.name in depth]
    for op in loads:
        of_waves = ["wave" in defined(lanes, x, 6) for x in op.at]
        assert of_waves == [axis == depth[op.memory.name] for axis in (0, 1)]


def operands(layout, shape):
    m, n, k = shape
    a, b = (k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n)
    return [np.zeros(x, np.float16) for x in (a, b)] + [np.zeros((m, n), np.float32)]


def defined(kernel, v, depth=4):
    """The names of the ops that a position is computed from."""
    op = kernel.defs.get(v)
    if op is None or not depth:
        return []
    return [op.name, *(name for x in op.operands for name in defined(kernel, x, depth - 1))]


def test_slices_of_a_step_are_loaded_before_any_is_used():
    """A lane waits once for each step, and not for each slice."""
    made = thin("NT", (1, 4, 1024)).build
    plan = made.program.plans.plan_for([view(x) for x in operands("NT", (3, 201, 4097))])
    body = next(op for op in walk(made.for_key(plan.key).lanes.body) if isinstance(op, Loop)).body
    assert sum(isinstance(op, Load) for op in body.ops) >= 2 * 4
    text = made.program.code_for(plan.key).ptx
    loop = max(re.findall(r"\$L__BB[^:]*:\n(.*?)bra", text, re.DOTALL), key=lambda block: block.count("ld.global"))
    first = loop.index("fma.rn.f32")
    assert loop[:first].count("ld.global") > 0.9 * loop.count("ld.global") > 20


def test_unaligned_elements_are_loaded_under_predicates_and_after_the_launch_before():
    """Lanes out of bounds that load another element instead would take three instructions for each load."""
    made = thin("NT", (1, 4, 1024)).build
    plan = made.program.plans.plan_for([view(x) for x in operands("NT", (3, 201, 4097))])
    text = made.program.code_for(plan.key).ptx
    assert "@p ld.global.b16" in text and "ld.global.nc" not in text
    assert text.index("griddepcontrol.wait") < text.index("ld.global.b16")
    assert not re.search(r"ld\.global\.b16[^;]*;\s*selp", text)


@pytest.mark.parametrize("tile", [(4, 1, 4096), (1, 4, 1024), (4, 8, 128)])
def test_slots_have_room_for_the_copies_of_all_lanes(tile):
    made = thin("NT", tile, split=4).build.plain
    lanes = made.lanes
    (exchange,) = {op.exchange for op in walk(lanes.body) if isinstance(op, HandOver)}
    (held,) = {op.tile.type.shape for op in walk(lanes.body) if isinstance(op, HandOver)}
    of_lanes = 4 * np.prod(held) * lanes.lanes * np.prod(lanes.waves)
    assert slot_bytes(exchange, lanes) >= max(of_lanes, 4 * tile[0] * tile[1])
    assert exchange_bytes(exchange, lanes) > exchange.type.shape[0] * slot_bytes(exchange, lanes)


@pytest.mark.parametrize("dtype", [bf16, f32, i8, f8e4m3fn], ids=str)
@pytest.mark.parametrize(("tile", "shape"), [((4, 1, 64), (5, 2, 100)), ((4, 8, 256), (6, 9, 517))])
def test_terms_are_added_in_the_dtype_of_the_sums(dtype, tile, shape):
    check(thin("NT", tile, dtype), "NT", shape, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stack_of_products_is_right(layout):
    made = thin(layout, (4, 8, 256), batch=BATCH[:1])
    rng, (m, n, k) = np.random.default_rng(11), (3, 11, 301)
    a, b = (rng.standard_normal((3, side, k)).astype(np.float16) for side in (m, n))
    c = np.full((3, m, n), np.nan, np.float32)
    given = (
        x if is_along else np.ascontiguousarray(x.swapaxes(1, 2))
        for x, is_along in zip((a, b), along(layout), strict=True)
    )
    made.interpret(*given, c, level="lane", order="backwards", seed=2)
    for i in range(3):
        check_product(c[i], a[i], b[i], f32)


def along(layout):
    """Whether each operand is contiguous along the depth."""
    return layout[0] == "N", layout[1] == "T"


def test_lanes_meet_once_after_the_loop():
    body = thin("NT", (4, 1, 64)).ir("reduce_thin_mma").body
    loops = [op for op in walk(body) if isinstance(op, Loop)]
    assert loops
    assert not any(isinstance(inner, Reduce) for loop in loops for inner in walk(loop.body))
    assert sum(isinstance(op, Reduce) for op in walk(body)) == 1


@pytest.mark.parametrize("tile", [(8, 8, 64), (64, 64, 32)])
def test_a_product_with_more_rows_and_columns_stays(tile):
    kernel = thin("NT", tile, target="numpy").kernel
    assert reduce_thin_mma(kernel) is kernel


def test_a_product_whose_instruction_is_named_stays():
    a, b = LAYOUTS["NT"]
    kernel = product_kernel(ProductForm(f16, f32, a, b), MMAType.F32_16x16x16_F16)
    made = wave_compile(WaveCompileOptions(subs={BLOCK_M: 16, BLOCK_N: 1, BLOCK_K: 32}, target="numpy"), kernel).kernel
    assert reduce_thin_mma(made) is made


def test_a_bias_and_an_activation_follow_the_sum():
    made = thin("NT", (4, 1, 64), bias=f32, activation="relu")
    rng = np.random.default_rng(5)
    a, b, bias = random_array(rng, (5, 70), f16), random_array(rng, (3, 70), f16), random_array(rng, (3,), f32)
    c = poisoned((5, 3), f32)
    made.interpret(a, b, bias, c, level="lane", order="backwards", seed=1)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    np.testing.assert_allclose(c, wanted, atol=70 * 2.0**-22)


def test_an_operand_that_is_computed_is_not_sliced():
    """What is computed of it is not repeated for each slice."""

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1), TilingConstraint(K, 256)])
    def doubled(
        a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16],
        b: Memory[K, N, GLOBAL_ADDRESS_SPACE, f16],
        c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sums):
            return mma(read(a) + read(a), read(b), sums)

        write(total, c)

    made = wave_compile(WaveCompileOptions(target="sm_90a", subs={M: 5, N: 11, K: 512}), doubled)
    assert not any(isinstance(op, Mma) for op in walk(made.ir("reduce_thin_mma").body))
    rng = np.random.default_rng(7)
    a, b = random_array(rng, (5, 512), f16), random_array(rng, (11, 512), f16)
    c = poisoned((5, 11), f32)
    made.interpret(a, np.ascontiguousarray(b.T), c, level="lane", order="backwards", seed=1)
    check_product(c, a * np.float16(2), b, f32)
