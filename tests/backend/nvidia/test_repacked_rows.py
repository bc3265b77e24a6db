"""Copies of rows that begin anywhere: what their machine code does, on this machine, and what the lanes say."""

import numpy as np
import pytest
from host_lanes import run_on_host
from ptx_code import assembled_well, needs_ptxas

from tilewave.backend.nvidia.packing import PACK, TRANSPOSE, UNPACK, RowCopy, Unaligned, packed_copies
from tilewave.backend.nvidia.row_copies import RowCopies
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.launch import bind, numbers_of
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A
from tilewave.runtime.arrays import ArrayView, view

pytestmark = pytest.mark.share(4)

TYPES = {1: np.int8, 2: np.float16, 4: np.int32}
SHAPES = [(5, 1), (7, 5), (3, 8), (9, 63), (4, 64), (2, 257), (1, 31), (3, 4, 21), (40,)]
LINE = 128


def placed(shape, size, begin, gap, filled=True):
    """Return rows that begin `begin` bytes after a line, with gaps of `gap` elements, inside a larger allocation."""
    rng = np.random.default_rng(begin + gap)
    pitch = shape[-1] + gap
    count = int(np.prod(shape[:-1])) * pitch
    memory = rng.integers(1, 100, count * size + 4 * LINE, dtype=np.uint8)
    first = -memory.ctypes.data % LINE + LINE + begin
    rows = memory[first : first + count * size].view(TYPES[size]).reshape(*shape[:-1], pitch)[..., : shape[-1]]
    return memory, rows


def copy_of(rows, is_back):
    return RowCopy(UNPACK if is_back else PACK, rows.itemsize, rows.ndim)


def padded_of(rows, copy):
    v = view(rows)
    (r,) = packed_copies([v], [unaligned(v, copy)])
    memory = np.full(r.bytes(v) + LINE, 0xEE, np.uint8)
    (_, padded), _ = copy.bound(v, r, memory.ctypes.data + -memory.ctypes.data % LINE)
    return memory, padded._replace(owner=memory).numpy()


def unaligned(v, copy):
    axes = tuple(range(len(v.shape)))
    return Unaligned(0, "rows", "", copy.is_back, (*axes[:-2], *axes[:-3:-1]) if copy.kind == TRANSPOSE else axes)


def numbers(rows, copy):
    v = view(rows)
    (r,) = packed_copies([v], [unaligned(v, copy)])
    return copy.bound(v, r, 0)[1]


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_code_of_a_copy_moves_every_element_and_touches_own_blocks_only(shape, size, gap):
    for begin in range(0, 16, size):
        _, rows = placed(shape, size, begin, gap)
        copy = copy_of(rows, is_back=False)
        _, padded = padded_of(rows, copy)
        looked = run_on_host(copy.kernel, [rows, padded], numbers(rows, copy))
        np.testing.assert_array_equal(padded[..., : shape[-1]], rows)
        assert not padded[..., shape[-1] :].any(), "behind the end of a row there are zeros"
        assert set(np.unique(looked // 16)) <= own_blocks(rows)


@pytest.mark.parametrize("is_back", [False, True])
def test_one_launch_copies_several_arrays(is_back):
    both = [placed(shape, 2, begin, 1)[1] for shape, begin in (((9, 63), 6), ((17, 130), 10))]
    copy = RowCopy(UNPACK if is_back else PACK, 2, 2, 2)
    padded = [padded_of(rows, copy)[1] for rows in both]
    if is_back:
        for i, x in enumerate(padded):
            x[...] = i + 1
    given = [n for rows in both for n in numbers(rows, copy)]
    run_on_host(copy.kernel, [x for pair in zip(both, padded, strict=True) for x in pair], given)
    for rows, x in zip(both, padded, strict=True):
        np.testing.assert_array_equal(rows, x[:, : rows.shape[1]])
    verify(copy.kernel)


def own_blocks(rows):
    """The aligned 16 bytes that hold an element."""
    offsets = np.zeros(rows.shape, np.int64)
    for axis, stride in enumerate(rows.strides):
        offsets += (np.arange(rows.shape[axis]) * stride).reshape([-1 if a == axis else 1 for a in range(rows.ndim)])
    first = offsets + rows.ctypes.data
    return set(np.unique(np.concatenate([first, first + rows.itemsize - 1]) // 16))


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_code_of_a_copy_back_writes_rows_and_nothing_beside_them(shape, size, gap):
    for begin in range(0, 16, size):
        memory, rows = placed(shape, size, begin, gap)
        copy = copy_of(rows, is_back=True)
        _, padded = padded_of(rows, copy)
        padded[...] = np.random.default_rng(3).integers(-100, 0, padded.shape)
        before = memory.copy()
        looked = run_on_host(copy.kernel, [rows, padded], numbers(rows, copy))
        np.testing.assert_array_equal(rows, padded)
        rows[...] = before_of(before, memory, rows)
        np.testing.assert_array_equal(memory, before)
        assert set(np.unique(looked // 16)) <= own_blocks(padded)


def before_of(before, memory, rows):
    """What rows held in a copy of their memory."""
    at = rows.ctypes.data - memory.ctypes.data
    return ArrayView(before.ctypes.data + at, rows.shape, rows.strides, view(rows).dtype, "cpu", True, before).numpy()


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("order", ["in turn", "random"])
@pytest.mark.parametrize("shape", SHAPES)
def test_lanes_copy_rows(shape, order, is_back):
    _, rows = placed(shape, 2, 6, 1)
    copy = copy_of(rows, is_back)
    _, padded = padded_of(rows, copy)
    kernel = verify(copy.kernel)
    assert parse(str(kernel)) == kernel
    values = dict(zip([v.name for v in numbers_of(kernel)], numbers(rows, copy), strict=True))
    if is_back:
        padded[...] = 7
    wanted = padded.copy() if is_back else rows.copy()
    interpret_lanes(bind(kernel, values), [rows, padded], values, order)
    np.testing.assert_array_equal(rows if is_back else padded[..., : shape[-1]], wanted)


@pytest.mark.parametrize("order", ["backwards", "random"])
@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (33, 45), (130, 259), (64, 256), (2, 35, 67), (3, 2, 17, 18)])
def test_lanes_transpose(shape, size, order):
    _, rows = placed(shape, size, 12, 1)
    copy = RowCopy(TRANSPOSE, size, rows.ndim)
    _, padded = padded_of(rows, copy)
    kernel = verify(copy.kernel)
    assert parse(str(kernel)) == kernel
    values = dict(zip([v.name for v in numbers_of(kernel)], numbers(rows, copy), strict=True))
    interpret_lanes(bind(kernel, values), [rows, padded], values, order)
    high = shape[-2]
    np.testing.assert_array_equal(padded[..., :high], np.swapaxes(rows, -1, -2))
    assert not padded[..., high:].any()


@needs_ptxas
@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("kind", [PACK, UNPACK, TRANSPOSE])
def test_copies_leave_room_for_many_lanes(kind, size):
    """Nothing is spilled, and a processor holds half of its lanes at least."""
    ptx = RowCopies("copies", SM_90A).code(RowCopy(kind, size, 2)).ptx
    assert assembled_well(ptx) <= 64
