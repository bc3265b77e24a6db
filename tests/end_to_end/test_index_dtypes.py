"""Indices of every integer dtype: what does not fit 31, 32 or 63 bits is out of bounds, and wraps to no other index."""

import numpy as np
import pytest
from kernels import K, M, N
from one_op import INTEGER_NAMES

from tilewave import *
from tilewave.errors import CoverageError
from tilewave.ir.types import DTYPES

pytestmark = pytest.mark.share(8)
G, S = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
T, V, D, X = sym.T, sym.V, sym.D, sym.X
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
ROWS = 50
EDGES = [1 << bits for bits in (7, 8, 15, 16, 31, 32, 33, 40, 60, 61, 62, 63, 64)]


def hostile(name):
    """Indices that are valid or at the edges of a dtype, and those that a narrower register takes for valid ones."""
    ends = np.iinfo(DTYPES[name].numpy)
    found = {0, 3, ROWS - 1, ROWS, *(sign * (edge + more) for edge in EDGES for more in (-1, 0, 3) for sign in (1, -1))}
    return np.array(sorted(x for x in found if ends.min <= x <= ends.max), ends.dtype)


def is_there(ids):
    return np.array([0 <= int(x) < ROWS for x in ids])


def run(kernel, target, subs, *arrays):
    made = kernel.compile(target="cpu" if target == "numpy" else target, subs=subs)
    if target == "cpu":
        made(*arrays)
    elif target in ("numpy", "sm_90a"):
        made.interpret(*arrays, **({"level": "lane"} if target == "sm_90a" else {}))
    else:
        made.emulate(*arrays)


@pytest.mark.parametrize("sizes", ["open", "known"])
@pytest.mark.parametrize("name", INTEGER_NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_read_and_stored_at_indices_of_any_dtype(target, name, sizes):
    dtype = DTYPES[name]

    @wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 32, 1)])
    def rows(
        ids: Memory[T, G, dtype, Indices(unique=True)],
        table: Memory[V, D, G, f32],
        out: Memory[T, D, G, f32],
        back: Memory[V, D, G, f32],
    ):
        found = read(ids)
        picked = read(table, at={V: found})
        write(picked, out)
        write(picked + 1.0, back, at={V: found})

    ids = hostile(name)
    table = np.random.default_rng(1).standard_normal((ROWS, 40)).astype(np.float32)
    out, back = np.full((len(ids), 40), 7, np.float32), np.zeros((ROWS, 40), np.float32)
    run(rows, target, {T: len(ids), V: ROWS, D: 40} if sizes == "known" else {}, ids, table, out, back)
    there = is_there(ids)
    wanted = np.zeros_like(out)
    wanted[there] = table[ids[there].astype(int)]
    stored = np.zeros_like(back)
    stored[ids[there].astype(int)] = wanted[there] + 1
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(back, stored)


@pytest.mark.parametrize("sizes", ["open", "known"])
@pytest.mark.parametrize("name", INTEGER_NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_any_dtype_picks_a_row(target, name, sizes):
    dtype = DTYPES[name]

    @wave([WorkgroupConstraint(T, 1, 0), WorkgroupConstraint(D, 32, 1)])
    def one_row(ids: Memory[T, G, dtype], table: Memory[V, D, G, f32], out: Memory[T, D, G, f32]):
        write(read(table, at={V: read(ids, at={T: first_index(T)})}), out)

    ids = hostile(name)
    table = np.random.default_rng(1).standard_normal((ROWS, 40)).astype(np.float32)
    out = np.full((len(ids), 40), 7, np.float32)
    run(one_row, target, {T: len(ids), V: ROWS, D: 40} if sizes == "known" else {}, ids, table, out)
    there = is_there(ids)
    wanted = np.zeros_like(out)
    wanted[there] = table[ids[there].astype(int)]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", [i8, u16, i32, f32])
def test_distinct_indices_that_are_cast_to_fewer_bits_may_collide(dtype):
    @wave([WorkgroupConstraint(T, 16, 0)])
    def narrowed(slots: Memory[T, G, i64, Indices(unique=True)], x: Memory[T, G, f32], out: Memory[V, G, f32]):
        write(read(x), out, at={V: cast(cast(read(slots), dtype), i64)})

    with pytest.raises(CoverageError, match="of which two may be equal"):
        narrowed.compile(target="cpu")


@pytest.mark.parametrize("dtype", [u64, i64])
def test_distinct_indices_stay_apart_in_as_many_bits(dtype):
    @wave([WorkgroupConstraint(T, 16, 0)])
    def widened(slots: Memory[T, G, u32, Indices(unique=True)], x: Memory[T, G, f32], out: Memory[V, G, f32]):
        write(read(x), out, at={V: cast(read(slots), dtype)})

    slots, out = np.array([4, 1 << 31, 2], np.uint32), np.zeros(5, np.float32)
    widened.compile(target="cpu")(slots, np.array([1, 2, 3], np.float32), out)
    assert out.tolist() == [0, 0, 3, 0, 1]


def expert_kernel(dtype):
    """The product of a matrix with one of several, of which memory says which."""
    tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)]

    @wave(tiles)
    def expert(
        which: Memory[T, G, dtype], a: Memory[M, K, S, f16], b: Memory[X, N, K, S, f16], c: Memory[M, N, G, f32]
    ):
        one = read(which, at={T: 0})

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b, at={X: one}), acc)

        write(total, c)

    return expert


@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_any_dtype_picks_a_matrix(target, name):
    dtype = DTYPES[name]
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 64), (2, 64, 64)))
    product = a.astype(np.float32) @ b[1].T.astype(np.float32)
    for x in (1, 1 << 31, (1 << 32) + 1, (1 << 33) + 1, (1 << 63) + 1, -1, -(1 << 32) + 1, -(1 << 63) + 1):
        if dtype.bounds[0] <= x <= dtype.bounds[1]:
            c = np.full((64, 64), 7, np.float32)
            run(expert_kernel(dtype), target, {M: 64, N: 64, K: 64, X: 2, T: 1}, np.array([x], dtype.numpy), a, b, c)
            np.testing.assert_array_equal(c, product if x == 1 else np.zeros_like(c), err_msg=f"index {x}")


@pytest.mark.parametrize(("name", "fits"), [("i16", True), ("i32", True), ("u32", False), ("i64", False)])
def test_a_coordinate_of_a_box_that_32_bits_do_not_hold_is_outside(name, fits):
    """TMA takes coordinates of 32 bits, and lanes are interpreted with numbers of 64."""
    made = expert_kernel(DTYPES[name]).compile(target="sm_90a", subs={M: 64, N: 64, K: 64, X: 2, T: 1})
    assert "cp.async.bulk.tensor.3d" in made.llvm_ir
    assert (f"i32 {-(1 << 31)}" in made.llvm_ir) == (not fits)
