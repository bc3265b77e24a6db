"""Results that leave Hopper's shared memory in whole rows, and how long they stay there."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hopper_kernels import biased, check_biased
from kernels import (
    BLOCK_B,
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    B,
    G,
    K,
    M,
    N,
    check_product,
    gemm,
    poisoned,
    random_array,
    sizes,
)
from lane_runs import ORDERS, operands
from sampled import some_of
from seeds import SEEDS

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import (
    Allocate,
    Barrier,
    ExtractSlice,
    Load,
    MakeMbarriers,
    Store,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    WaitTmaStores,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import verify


def compiled(kernel, subs):
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)


def count(made, kind):
    return sum(isinstance(op, kind) for op in walk(made.ir().body))


def direct_stores(made):
    return [op for op in walk(made.ir().body) if isinstance(op, Store) and is_in(op.memory, "global")]


def check(made, shape, out=f32):
    a, b = operands(shape)
    for order in some_of(ORDERS):
        c = poisoned(shape[:2], out)
        made.interpret(a, b, c, level="lane", order=order, seed=2)
        check_product(c, a, b, out)


TRANSPOSED = {
    "one chunk": ((40, 304, 136), (40, 64, 64), 1, (40, 64)),
    "chunks that divide the rows, of two groups": ((80, 256, 128), (80, 128, 64), 2 * 2, (40, 64)),
    "more than there are buffers, past both edges": ((300, 304, 136), (152, 128, 64), 2 * 19, (8, 64)),
    "three groups": ((88, 192, 128), (88, 192, 64), 3 * 11, (8, 64)),
    "several blocks of a group": ((70, 256, 128), (72, 256, 64), 2 * 2 * 3, (24, 64)),
    "small ones of a long tile": ((170, 128, 128), (160, 128, 64), 2 * 5, (32, 64)),
}


@pytest.mark.share(4)
@pytest.mark.parametrize(("shape", "tile", "chunks", "chunk"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_what_is_computed_transposed_leaves_in_chunks_of_the_result(shape, tile, chunks, chunk):
    """Each is as many columns wide as waves multiply rows at once."""
    made = compiled(gemm(out=f16, epilogue=lambda x: cast(x, f16)), sizes(*shape, *tile))
    assert count(made, TmaStore) == chunks and not direct_stores(made)
    assert {op.source.type.shape[-2:] for op in walk(made.ir().body) if isinstance(op, TmaStore)} == {chunk}
    blocks = sum(map(int, re.findall(r"stmatrix\.sync\.aligned\.m8n8\.x([24])\.trans", made.asm)))
    multiplying = made.resources.waves[0] - 4  # without the producer warps
    assert blocks * multiplying == tile[0] // 8 * tile[1] // 8
    check(made, shape, f16)


@pytest.mark.parametrize("rows", [152, 160])
def test_chunks_of_a_long_tile_leave_room_for_four_steps(rows):
    made = compiled(gemm(out=f16, epilogue=lambda x: cast(x, f16)), sizes(320, 512, 512, rows, 256, 64))
    (stages,) = {op.result.type.shape[0] for op in walk(made.build.lanes.body) if isinstance(op, MakeMbarriers)}
    assert stages == 4 and not direct_stores(made)


@pytest.mark.parametrize(("rows", "out"), [(32, f16), (80, f32)], ids=str)
def test_few_rows_or_wide_results_that_are_transposed_are_stored_by_lanes(rows, out):
    shape = (rows, 256, 128)
    made = compiled(gemm(out=out, epilogue=lambda x: cast(x, out)), sizes(*shape, rows, 64, 64))
    assert direct_stores(made) and not count(made, TmaStore)
    check(made, shape, out)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("tile", "chunks"),
    [((64, 64, 32), 2), ((64, 96, 32), 3), ((64, 8, 32), 1), ((128, 64, 32), 4), ((256, 32, 32), 4)],
    ids=str,
)
def test_a_tile_leaves_in_chunks(tile, chunks):
    shape = (300, 104, 72)
    made = compiled(gemm(), sizes(*shape, *tile))
    assert count(made, TmaStore) == chunks and not direct_stores(made)
    check(made, shape)


def test_every_group_has_buffers_of_its_own():
    made = compiled(gemm(out=f16, epilogue=lambda total: cast(total, f16)), sizes(256, 512, 256, 128, 256, 64))
    shared = [str(op.result.type) for op in walk(made.ir().body) if isinstance(op, Allocate)]
    assert shared == [
        "memory<2x2x64x64xf16, shared, xor(8, 8, 1)>",
        "memory<4x128x64xf16, shared, xor(8, 8, 1)>",
        "memory<4x256x64xf16, shared, xor(8, 8, 1)>",
    ]
    assert made.resources.shared_bytes == 4 * 48 * 1024 + 4 * 8 * 1024
    assert (count(made, TmaStore), count(made, ExtractSlice)) == (8, 4)
    check(made, (256, 512, 256), f16)


@pytest.mark.parametrize("out", [f16, bf16, f32], ids=str)
def test_outputs_of_any_width(out):
    shape = (70, 80, 64)
    check(compiled(gemm(out=out, epilogue=lambda total: cast(total, out)), sizes(*shape)), shape, out)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_computed_from_sums_leaves_in_chunks(order):
    shape = (140, 136, 64)
    made = compiled(biased, sizes(*shape, 128, 128, 32))
    assert count(made, TmaStore) == 4 and not direct_stores(made)
    check_biased(made, shape, order)


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_buffers_are_filled_again_for_the_next_tile(seed):
    shape = (192, 136, 96)
    more = {"num_ctas": 2} if "persistent" in repr(seed) else {}
    made = compiled(seed.kernel, seed.subs(*shape, block_m=64, block_n=64, block_k=32, **more))
    assert count(made, TmaStore) == 2
    check(made, shape)


ODD_ROWS = [
    (66, 2, (64, 64, 32)),
    (67, 1, (64, 64, 32)),
    (300, 4, (128, 96, 32)),
    (301, 1, (256, 32, 32)),
    (33, 1, (64, 16, 32)),
]
"""Columns of a result, how many of them a lane may store at once in f16, and a tile."""


def odd(columns, tile, depth=72):
    return compiled(gemm(out=f16, epilogue=lambda total: cast(total, f16)), sizes(200, columns, depth, *tile))


@pytest.mark.share(6)
@pytest.mark.parametrize(("columns", "width", "tile"), ODD_ROWS)
@pytest.mark.parametrize("depth", [72, 19], ids=["copied", "loaded"])
def test_rows_that_begin_off_16_bytes_are_stored_by_lanes_side_by_side(columns, width, tile, depth):
    made = odd(columns, tile, depth)
    assert bool(count(made, (TmaLoad, TmaLoadMulticast))) is (depth == 72) and not count(made, TmaStore)
    assert {(op.x.type.shape[-1], op.steps[-1]) for op in direct_stores(made)} == {(width, (0, 1))}
    check(made, (200, columns, depth), f16)


def test_what_is_brought_into_rows_is_its_waves_own():
    """No wave waits for another at a barrier; the two CTAs of a cluster synchronize at the start by other means."""
    barriers = [op for op in walk(odd(301, (128, 128, 32)).ir().body) if isinstance(op, Barrier)]
    assert barriers and {op.waves for op in barriers} == {1}


def test_lanes_of_a_wave_wait_for_what_others_of_it_store():
    """The interpreter runs them together, and would not miss it."""
    ops = [op for op in walk(odd(301, (128, 128, 32)).ir().body) if isinstance(op, (Load, Store, Barrier))]
    ops = [op for op in ops if isinstance(op, Barrier) or is_in(op.memory, "shared")]
    assert [type(op) for op in ops] == [Store, Barrier, Load, Barrier] * (len(ops) // 4)


def test_lanes_that_hold_many_sums_store_them_as_they_are():
    made = odd(301, (256, 192, 32))
    assert not any(op.waves == 1 for op in walk(made.ir().body) if isinstance(op, Barrier))
    assert {op.x.type.shape for op in direct_stores(made)} == {(2, 24, 2, 2)}


def test_rows_are_reached_one_from_the_other():
    """A loop over tiles would else keep the places of all rows that lanes store, and spill them."""
    kernel = next(seed for seed in SEEDS if repr(seed) == "persistent_gemm")
    made = compiled(kernel.kernel, kernel.subs(512, 1027, 64, block_m=128, block_n=128, block_k=32, num_ctas=2))
    (registers,) = re.findall(r"\.reg \.b64 \t%rd<(\d+)>", made.asm)
    stores = len(re.findall(r"st\.global", made.asm))
    assert int(registers) < 1.5 * stores


def test_batches():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, BLOCK_B, 2),
            TilingConstraint(K, BLOCK_K),
        ]
    )
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(4)
    a, b = random_array(rng, (3, 70, 48), f16), random_array(rng, (3, 40, 48), f16)
    made = compiled(batched, sizes(70, 40, 48, 64, 32, 32) | {B: 3, BLOCK_B: 1})
    assert count(made, (TmaLoad, TmaLoadMulticast)) == 2 and count(made, TmaStore) == 1
    for order in some_of(ORDERS):
        c = poisoned((3, 70, 40), f32)
        made.interpret(a, b, c, level="lane", order=order)
        check_product(c, a, b)


# -- every wait is needed

SHAPE = (128, 128, 32)


def whole():
    seed = SEEDS[2]
    return compiled(seed.kernel, seed.subs(*SHAPE, block_m=64, block_n=128, block_k=32, num_ctas=1)).build.lanes


def meetings(kernel):
    return [op for op in walk(kernel.body) if isinstance(op, Barrier) and op.waves == 4]


def test_every_meeting_of_a_group_is_needed():
    kernel = whole()
    assert len(meetings(kernel)) == 4  # two batches of two chunks
    a, b = operands(SHAPE)
    for gone in meetings(kernel):
        without = verify(rewrite(kernel, lambda op, gone=gone: [] if op is gone else None))
        for order in some_of(ORDERS):
            with pytest.raises(InterpreterError, match=r"no (barrier|wait) between|before the copy") as found:
                interpret_lanes(without, [a, b, poisoned(SHAPE[:2], f32)], {}, order, 1)
            assert "persistent_gemm.py" in str(found.value)


def test_every_wait_for_a_buffer_is_needed():
    kernel = whole()
    waits = [op for op in walk(kernel.body) if isinstance(op, WaitTmaStores)]
    a, b = operands(SHAPE)
    for late in waits[:-1]:  # the last one keeps shared memory until it was read: no wave looks at that
        loose = verify(rewrite(kernel, lambda op, late=late: [replace(op, pending=2)] if op is late else None))
        with pytest.raises(InterpreterError, match="no wait between"):
            interpret_lanes(loose, [a, b, poisoned(SHAPE[:2], f32)], {}, "in turn", 1)


def test_shared_memory_is_kept_until_it_was_read():
    consumer = next(op for op in whole().body.ops if op.blocks)
    assert consumer.body.ops[-1] == WaitTmaStores(0)
