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


T, C, D = sym.T, sym.C, sym.D


@wave([WorkgroupConstraint(T, 4, 0)])
def scaled_by_tables(
    x: Memory[T, D, GLOBAL_ADDRESS_SPACE, bf16],
    table: Memory[T, C, GLOBAL_ADDRESS_SPACE, f32],
    y: Memory[T, D, GLOBAL_ADDRESS_SPACE, bf16],
):
    write(cast(cast(read(x), f32) * read(table).sum(dim=C), bf16), y)


def mixed(columns, chosen):
    """A kernel with rows of two lengths, and its arrays."""
    x, y, table = aligned((5, columns), bf16), aligned((5, columns), bf16, 1), aligned((5, chosen), f32, 2)
    y[...] = np.nan
    return compiled_for(scaled_by_tables, "sm_90a", {}, {D: room_for(columns), C: room_for(chosen)}, {}), (x, table, y)


@pytest.mark.parametrize("columns, chosen, widths", [(264, 130, (16, 8)), (260, 128, (8, 16)), (257, 129, (2, 4))])
def test_rows_of_another_length_keep_their_vectors(columns, chosen, widths):
    made, arrays = mixed(columns, chosen)
    program = made.build.program
    found = program.plans.key_for([view(array) for array in arrays])
    rows, table = widths
    assert dict(found.widths) == {"x": rows, "y": rows, "table": table}
    lanes = program.kernel_for(found)
    loads = {op.memory.name: op.result.type.shape[-1] for op in walk(lanes.body) if isinstance(op, (Load, LoadEach))}
    assert (loads["x"], loads["table"]) == (rows // 2, table // 4)
    stored = {op.x.type.shape[-1] for op in walk(lanes.body) if isinstance(op, Store) and op.memory.name == "y"}
    assert stored == {rows // 2}


@pytest.mark.parametrize("columns, chosen", [(264, 130), (260, 128), (257, 129), (264, 3)])
def test_rows_of_several_alignments_are_computed_right(columns, chosen):
    made, (x, table, y) = mixed(columns, chosen)
    made.interpret(x, table, y, level="lane", order="random", seed=3)
    total, size = table.astype(float).sum(axis=1), np.abs(table.astype(float)).sum(axis=1)
    want = x.astype(float) * total[:, None]
    off = np.abs(x.astype(float)) * (2.0**-20 * size)[:, None]
    assert (np.abs(y.astype(float) - want) <= off + 2.0**-8 * (np.abs(want) + off)).all()


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
