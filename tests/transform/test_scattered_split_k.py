"""Split-K with many parts of large tiles: slices of their columns are summed by workgroups that start after all
others."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased
from kernels import G, K, M, N, check_product, gemm, poisoned, product, sizes, tiling
from lane_runs import ORDERS, check_same_bits, operands
from tunings import SPLITS

from tilewave import *
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.shared_tiles import TileProgram
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import HandOver, MakeExchange, TakeOverAll, Write
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import VerifyError, verify
from tilewave.machine.chips import SM_90A
from tilewave.machine.tuning import SplitTuning
from tilewave.passes.grid.split_k import SplitK
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run
from tilewave.transform.scattered_split_k import slices_of

TILE = (64, 64, 16)


@pytest.fixture
def always(monkeypatch):
    """However little there is to take over."""
    monkeypatch.setattr(SplitTuning, "is_scattered", lambda self, parts, sums_bytes: True)


def in_parts(parts, kernel=None):
    made = kernel or gemm()
    return wave([*made.constraints, SplitConstraint(K, parts)])(made.function)


def tiles_of(shape, parts, tile=TILE, kernel=None):
    subs = sizes(*shape, *tile)
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), in_parts(parts, kernel)).kernel


def shared(kernel):
    return run(kernel, [SplitK(132, SPLITS), simplify])[0]


def lanes_of(kernel, stages=3):
    return run(kernel, lists.hopper(SM_90A, Places(), stages, 132))[0]


def slots(kernel):
    (found,) = (op.result.type.shape for op in walk(kernel.body) if isinstance(op, MakeExchange))
    return found


FORMS = {
    "four parts in four slices": ((64, 128, 128), 4, TILE, 2 * (4 + 4), (32, 64, 16)),
    "more parts than slices": ((64, 64, 112), 7, TILE, 7 + 4, (28, 64, 16)),
    "three parts in two slices": ((64, 64, 80), 3, TILE, 3 + 2, (6, 64, 32)),
    "parts without a step are none": ((64, 64, 96), 4, TILE, 3 + 2, (6, 64, 32)),
    "two groups of waves": ((128, 64, 96), 3, (128, 64, 16), 3 + 2, (6, 128, 32)),
    "edges": ((70, 100, 112), 4, TILE, 4 * (4 + 4), (64, 64, 16)),
}


@pytest.mark.parametrize("form", FORMS)
def test_whole_tiles_have_the_same_bits(form, always):
    shape, parts, tile, workgroups, slots_made = FORMS[form]
    tiles = tiles_of(shape, parts, tile)
    kernel = shared(tiles)
    assert (kernel.workgroups, slots(kernel)) == (workgroups, slots_made)
    assert checked_schedule(kernel, {}).workgroups == workgroups
    a, b = operands(shape)
    found = [poisoned(shape[:2], f32) for _ in range(2)]
    for c, each in zip(found, (tiles, kernel), strict=True):
        interpret(each, [a, b, c], {})
    check_product(found[0], a, b)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("form", FORMS)
def test_lanes_compute_the_same_to_the_last_bit_in_any_order(form, always):
    shape, parts, tile, *_ = FORMS[form]
    kernel = lanes_of(tiles_of(shape, parts, tile))
    assert any(isinstance(op, TakeOverAll) for op in walk(kernel.body))
    check_same_bits(kernel, shape)


@pytest.mark.parametrize("dtype", [bf16, f8e4m3fn, i8], ids=str)
def test_every_dtype(dtype, always):
    shape, out = (64, 64, 160), i32 if dtype is i8 else f32
    kernel = lanes_of(tiles_of(shape, 3, (64, 64, 32), gemm(dtype=dtype, acc=out)))
    a, b = operands(shape, dtype)
    c = poisoned(shape[:2], out)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b, out)


@pytest.mark.parametrize("shape", [(64, 128, 80), (70, 100, 72)], ids=str)
def test_an_epilogue_is_computed_slice_by_slice(shape, always):
    lanes = lanes_of(tiles_of(shape, 4, TILE, biased))
    assert any(isinstance(op, TakeOverAll) for op in walk(lanes.body))
    a, b = operands(shape)
    bias = np.random.default_rng(2).standard_normal(shape[1]).astype(np.float32)
    c = poisoned(shape[:2], f16)
    interpret_lanes(lanes, [a, b, bias, c], {}, "random")
    want, magnitude = product(a, b)
    assert (np.abs(c - np.maximum(want + bias, 0)) <= (magnitude + np.abs(bias)) * 2.0**-10).all()


def test_few_rows_are_turned_and_scattered(always):
    shape = (32, 128, 256)
    kernel = lanes_of(tiles_of(shape, 4, (32, 64, 64)))
    assert slots(kernel) == (2 * 4 * 2, 64, 16)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b)


def test_few_tiles_that_nobody_cut_are_scattered_too():
    kernel = wave_compile(WaveCompileOptions(subs=sizes(256, 256, 2048, 128, 128, 64), target="numpy"), gemm()).kernel
    parted = run(kernel, [StreamK(132, SPLITS), simplify])[0]
    (handed,) = (op for op in walk(parted.body) if isinstance(op, HandOver))
    assert handed.wide == 8
    a, b = (np.random.default_rng(i).integers(-3, 4, (256, 2048)).astype(np.float16) for i in range(2))
    c = poisoned((256, 256), f32)
    interpret(parted, [a, b, c], {})
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


# -- where one workgroup adds up all of it


def summed():
    @wave(tiling())
    def rows(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total.sum(dim=N), c)

    return rows


def unrelated():
    @wave(tiling())
    def another(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], x: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)
        write(Register[M, N, f32](1.0), x)

    return another


@pytest.mark.parametrize("kernel", [summed, unrelated])
def test_what_is_not_made_column_by_column_is_left_to_one(kernel, always):
    program = TileProgram.of(tiles_of((64, 64, 64), 4, TILE, kernel()))
    assert slices_of(program, 4, SPLITS) == 1


def test_small_sums_are_left_to_one():
    program = TileProgram.of(tiles_of((64, 64, 64), 4))
    assert [slices_of(program, parts, SPLITS) for parts in (2, 17, 18)] == [1, 1, 4]


# -- what must not go unnoticed


@cache
def whole():
    return lanes_of(tiles_of((64, 64, 128), 4), 2)


def found_in(kernel, order="random"):
    a, b = operands((64, 64, 128))
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(kernel, [a, b, poisoned((64, 64), f32)], {}, order, 1)
    return str(found.value)


@pytest.mark.parametrize("order", ORDERS)
def test_parts_that_are_not_handed_over_are_a_deadlock(order, always):
    told = found_in(rewrite(whole(), lambda op: [] if isinstance(op, HandOver) else None), order)
    assert "no wave of workgroup 4 can go on" in told
    assert "for exchange[0], which no earlier workgroup handed over" in told


def test_a_part_that_is_left_out_is_found(always):
    def fewer(op):
        return [replace(op, count=op.count - 1)] if isinstance(op, TakeOverAll) else None

    assert "hands over exchange[12], which is never taken over" in found_in(rewrite(whole(), fewer))


def test_slices_at_the_wrong_place_are_found(always):
    def off(op):
        return [replace(op, apart=op.slot)] if isinstance(op, TakeOverAll) else None

    assert found_in(rewrite(whole(), off))


EXCHANGE = """
kernel @k {workgroups = 1} (%a: memory<4x8xf32, global>, %c: memory<4x4xf32, global>) {
  %zero = const() {value = 0} : index
  %one = const() {value = 1} : index
  %x = read(%a, [%zero, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  %y = read(%c, [%zero, %zero]) {axes = [0, 1]} : tile<4x4xf32>
  %e = make_exchange() : exchange<2x4x4xf32>
  hand_over(%x, %e, %zero) {wide = WIDE}
  %z = take_over_all(%y, %e, %zero, %one) {count = COUNT} : tile<4x4xf32>
  write(%z, %c, [%zero, %zero]) {axes = [0, 1]}
}
"""


@pytest.mark.parametrize(("wide", "count", "why"), [(2, 2, ""), (1, 2, "is not what the slots"), (2, 0, "from 1 to")])
def test_what_fills_several_slots(wide, count, why):
    text = EXCHANGE.replace("WIDE", str(wide)).replace("COUNT", str(count))
    if why:
        with pytest.raises(VerifyError, match=why):
            verify(parse(text))
        return
    kernel = verify(parse(text))
    assert parse(str(kernel)) == kernel
    x, c = np.arange(32, dtype=np.float32).reshape(4, 8), np.ones((4, 4), np.float32)
    interpret(kernel, [x, c], {})
    np.testing.assert_array_equal(c, 1 + x[:, :4] + x[:, 4:])


def test_ptx_raises_all_flags_behind_one_fence_and_awaits_them_at_once():
    made = wave_compile(
        WaveCompileOptions(subs=sizes(512, 512, 4096, 128, 256, 64), target="sm_90a"), in_parts(16, gemm())
    )
    assert made.build.lanes.workgroups == 8 * (16 + 16)
    assert [made.asm.count(word) for word in ("fence.acq_rel.gpu", "st.release.gpu", "ld.acquire.gpu")] == [1, 1, 1]
    wait = made.asm.index("ld.acquire.gpu")
    assert "ld.global.v4" not in made.asm[:wait]
    assert made.asm[wait:].count("ld.global.v4") == 16 * 2
    stored = re.findall(r"st\.global\.v4\.b32\s+\[%rd\d+(?:\+(\d+))?\], \{([^}]*)\}", made.asm)
    slot_bytes, row_bytes = 128 * 16 * 4, 32 * 16
    places = [slice_ * slot_bytes + i * row_bytes for slice_ in range(16) for i in range(2)]
    assert [int(far or 0) for far, _ in stored] == places
    assert len({register for _, held in stored for register in held.split(", ")}) == 128
    (write,) = (op for op in walk(made.ir("split_k").body) if isinstance(op, Write))
    assert write.tile.type.shape == (128, 16)
