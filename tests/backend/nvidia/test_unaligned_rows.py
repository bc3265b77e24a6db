"""Rows that begin or end within 16 bytes: each lane takes single elements or pairs, neighbours of its neighbours'."""

import re

import numpy as np
import pytest

from tilewave import *
from tilewave import kernels as shipped
from tilewave.analysis.loads import moved_in_chunks
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.call import compiled_for, room_for
from tilewave.ir.ops import Load, LoadEach, Store
from tilewave.ir.rewrite import walk
from tilewave.kernels.ragged import unpermute_tile_for
from tilewave.kernels.rows import N, rows_for
from tilewave.runtime.arrays import view

MAKE = {
    "softmax": lambda rows, dtype: shipped.softmax_kernel(rows, dtype, dtype),
    "rms_norm": lambda rows, dtype: shipped.rms_norm_kernel(rows, dtype, dtype, dtype),
    "layer_norm": lambda rows, dtype: shipped.layer_norm_kernel(rows, dtype, dtype, dtype, dtype),
}


def compiled(name, columns, dtype):
    kernel = MAKE[name](rows_for("sm_90a", columns, dtype), dtype)
    return compiled_for(kernel, "sm_90a", {}, {N: room_for(columns)}, {})


def aligned(shape, dtype, seed=0, pitch=0):
    """Random numbers from a multiple of 16 bytes on, rows so many elements apart, dense where it is not said."""
    rows, columns = shape if len(shape) == 2 else (1, *shape)
    pitch = pitch or columns
    room = np.empty(rows * pitch * dtype.numpy.itemsize + 16, np.uint8)
    begin = -room.ctypes.data % 16
    whole = (
        room[begin : begin + rows * pitch * dtype.numpy.itemsize].view(dtype.numpy).reshape(rows, pitch)[:, :columns]
    )
    whole[...] = np.random.default_rng(seed).standard_normal((rows, columns))
    return whole if len(shape) == 2 else whole[0]


def variant(name, columns, dtype, **lies):
    made = compiled(name, columns, dtype)
    arrays = [aligned((5, columns), dtype, **lies) for _ in range(2)]
    return made.build.program.plans.key_for([view(x) for x in arrays])


@pytest.mark.parametrize(
    "columns, dtype, bytes_", [(257, f16, 2), (258, f16, 4), (260, f16, 8), (264, f16, 0), (257, f32, 4), (258, f32, 8)]
)
def test_lanes_move_as_much_as_rows_are_multiples_of(columns, dtype, bytes_):
    found = variant("softmax", columns, dtype)
    assert found.vector_bytes == bytes_ and not found.any_strides
    assert found.arrays == (f"rows on {bytes_} bytes" if bytes_ else "rows on cache lines")


def test_rows_apart_by_whole_loads_end_within_one():
    assert variant("softmax", 257, f16, pitch=264).vector_bytes == 2


def mixed(columns, chosen, dtype=bf16):
    """The kernel that adds up rows of each token, with arrays of so many columns and slots of a token."""
    kernel = shipped.unpermute_rows_kernel(unpermute_tile_for("sm_90a", columns, dtype), dtype, i32, dtype, f32)
    x, y = (aligned((5, columns), dtype, seed) for seed in (0, 1))
    slots, weights = aligned((5, chosen), i32), aligned((5, chosen), f32, 2)
    slots[...] = np.random.default_rng(3).integers(-1, 6, slots.shape)
    y[...] = np.nan
    return compiled_for(kernel, "sm_90a", {}, {}, {}), {"x": x, "slots": slots, "y": y, "weights": weights}


@pytest.mark.parametrize("columns, chosen, widths", [(264, 10, (16, 8)), (260, 8, (8, 16)), (257, 3, (2, 4))])
def test_rows_of_another_length_keep_their_vectors(columns, chosen, widths):
    made, arrays = mixed(columns, chosen)
    program = made.build.program
    found = program.plans.key_for([view(arrays[name]) for name in program.accesses.names])
    rows, table = widths
    assert dict(found.widths) == {"x": rows, "y": rows, "slots": table, "weights": table}
    lanes = program.kernel_for(found)
    loads = {op.memory.name: op.run for op in walk(lanes.body) if isinstance(op, LoadEach)}
    assert loads == {"x": rows // 2}
    assert {op.x.type.shape[-1] for op in walk(lanes.body) if isinstance(op, Store)} == {rows // 2}


@pytest.mark.parametrize("columns, chosen", [(264, 10), (260, 8), (257, 3), (264, 8)])
def test_rows_of_several_alignments_are_added_right(columns, chosen):
    made, arrays = mixed(columns, chosen)
    x, slots, y, weights = arrays.values()
    made.interpret(x, slots, y, weights, level="lane", order="random", seed=3)
    rows = np.vstack([x.astype(float), np.zeros((1, columns))])[np.where((slots < 0) | (slots > 4), 5, slots)]
    want = (rows * weights.astype(float)[..., None]).sum(axis=1)
    size = np.abs(rows * weights.astype(float)[..., None]).sum(axis=1)
    assert (np.abs(y.astype(float) - want) <= 2.0**-8 * np.abs(want) + 2.0**-20 * size + 2.0**-25).all()


def test_columns_that_are_no_neighbours_are_moved_one_by_one():
    made = compiled("softmax", 257, f16)
    x = np.zeros((5, 514), np.float16)[:, ::2]
    found = made.build.program.plans.key_for([view(x), view(np.zeros((5, 257), np.float16))])
    assert found == made.build.program.accesses.fallback


@pytest.mark.parametrize("columns", [1, 37, 257, 258, 260, 511, 769])
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.share(12)
def test_unaligned_rows_are_computed_right(name, columns, dtype):
    x, weight, bias = (aligned(shape, dtype, seed) for seed, shape in enumerate(((5, columns), (columns,), (columns,))))
    y = aligned((5, columns), dtype)
    y[...] = np.nan
    beside = {"softmax": (), "rms_norm": (weight,), "layer_norm": (weight, bias)}[name]
    eps = () if name == "softmax" else (1e-5,)
    compiled(name, columns, dtype).interpret(x, *beside, y, *eps, level="lane", order="random", seed=3)
    want, size = wanted(name, x.astype(float), weight.astype(float), bias.astype(float))
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 0.0}[dtype.name]
    off = size * 2.0**-24 * (columns.bit_length() + 24)  # roundings of a sum in a tree, and of what is made of it
    assert (np.abs(y.astype(float) - want) <= off + unit * (np.abs(want) + off) + 2.0**-25).all()


def wanted(name, x, weight, bias):
    """In float64, and how large what is rounded on the way is."""
    if name == "softmax":
        e = np.exp(x - x.max(axis=1, keepdims=True))
        found = e / e.sum(axis=1, keepdims=True)
        return found, found * (2 + np.ptp(x, axis=1, keepdims=True))
    d = x - x.mean(axis=1, keepdims=True) if name == "layer_norm" else x
    scale = 1 / np.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5)
    found = d * scale * weight + (bias if name == "layer_norm" else 0)
    return found, np.abs(found) + (np.abs(x).mean(axis=1, keepdims=True) + np.abs(d)) * scale * abs(weight) + abs(bias)


def test_neighbouring_lanes_take_neighbours():
    """A lane's registers are 32 columns apart, and no two of them are adjacent."""
    made = compiled("softmax", 257, f16)
    lanes = made.build.program.kernel_for(variant("softmax", 257, f16))
    moved = [op for op in walk(lanes.body) if isinstance(op, (Load, Store))]
    assert len(moved) == 4  # of rows that are as long as the tile, and of others
    assert moved_in_chunks(lanes) == () and all((0, 32) in op.steps for op in moved)


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize("columns", [257, 769])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.share(6)
def test_nothing_is_spilled_and_no_load_waits_for_another(name, columns, dtype):
    made = compiled(name, columns, dtype)
    program = made.build.program
    names = {"softmax": 2, "rms_norm": 3, "layer_norm": 4}[name]
    views = [view(aligned((5, columns) if i in (0, names - 1) else (columns,), dtype)) for i in range(names)]
    ptx = program.code_for(program.plans.key_for(views)).ptx
    assert assemble_ptx(ptx, "sm_90a").spilled_bytes == 0
    loads = [m.end() for m in re.finditer(r"@p ld\.global\.nc\.\S+", ptx)]
    row = room_for(columns) // (
        32 * (made.build.lanes.waves[0] if rows_for("sm_90a", columns, dtype).together == 1 else 1)
    )
    assert len(loads) >= row
    assert "cvt.f32" not in ptx[loads[0] : loads[row - 1]], "what one load brings is wanted before the next one is made"
