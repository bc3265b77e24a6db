"""Indices and atomics on shared memory of the workgroup: on every target, with hostile tables, without a barrier."""

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import CoverageError, InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier
from tilewave.ir.rewrite import rewrite, walk

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, V, D = sym.T, sym.V, sym.D
TARGETS = ("tile", "cpu", "gfx942", "gfx950", "sm_90a")
BINS = 40
HOSTILE = (-1, -(2**31), 2**31 - 1, BINS)
TOKENS = WorkgroupConstraint(T, 64, 0)


def many_waves(*constraints):
    return [*constraints, HardwareConstraint(threads_per_wave=64, waves_per_block=(4, 1, 1))]


@wave([WorkgroupConstraint(D, 1, 0), TilingConstraint(T, 512)])
def histograms(x: Memory[D, T, G, i32], out: Memory[V, G, i32]):
    """Each workgroup counts a row in its shared memory, and adds the counts to those of the others."""
    own = allocate((V,), (BINS,), i32)
    write(Register[V, i32](0), own)

    @iterate(T)
    def count():
        values = read(x)
        atomic_add(values * 0 + 1, own, at={V: values})

    atomic_add(read(own), out)


@wave([TOKENS])
def looked_up(ids: Memory[T, G, i32], a: Memory[V, G, f32], b: Memory[V, G, f32], out: Memory[T, G, f32]):
    """What a table holds at the time: the second write stands between two equal reads."""
    table, at = allocate((V,), (BINS,), f32), read(ids)
    write(read(a), table)
    first = read(table, at={V: at})
    write(read(b), table)
    write(first - 3.0 * read(table, at={V: at}), out)


@wave([TOKENS, WorkgroupConstraint(D, 32, 1)])
def sorted_rows(places: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], y: Memory[T, D, G, f16]):
    """Rows of a tile stored at places in shared memory; one that is out of bounds leaves its row 0."""
    own = allocate((T, D), (64, 32), f16)
    write(read(x) * 0.0, own)
    write(read(x), own, at={T: read(places)})
    write(read(own), y)


@wave([TOKENS])
def one_number(which: Memory[V, G, i32], x: Memory[T, G, f32], y: Memory[T, G, f32]):
    own = allocate((T,), (64,), f32)
    write(read(x), own)
    write(read(x) + read(own, at={T: read(which, at={V: 0})}), y)


def run(kernel, target, subs, *arrays):
    made = kernel.compile(target="gfx942" if target == "tile" else target, subs=subs)
    if target == "cpu":
        made(*arrays)
    elif target in ("tile", "sm_90a"):
        made.interpret(*arrays, level="tile" if target == "tile" else "lane")
    else:
        for order in ("in turn", "random"):
            copies = [a.copy() for a in arrays]
            made.interpret(*copies, level="lane", order=order)
        made.emulate(*arrays)
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_a_histogram_in_shared_memory(target):
    rng = np.random.default_rng(1)
    x = rng.integers(-3, BINS + 3, (3, 1100)).astype(np.int32)
    x[0, : len(HOSTILE)] = HOSTILE
    out = np.zeros(BINS, np.int32)
    run(histograms, target, {V: BINS}, x, out)
    np.testing.assert_array_equal(out, np.bincount(x[(x >= 0) & (x < BINS)], minlength=BINS))


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_in_shared_memory_is_read_as_it_is_at_the_time(target):
    rng = np.random.default_rng(2)
    ids = rng.integers(0, BINS, 150).astype(np.int32)
    ids[: len(HOSTILE)] = HOSTILE
    a, b = (rng.standard_normal(BINS).astype(np.float32) for _ in range(2))
    out = np.full(150, np.nan, np.float32)
    run(looked_up, target, {V: BINS}, ids, a, b, out)
    inside = (ids >= 0) & (ids < BINS)
    wanted = np.zeros(150)
    wanted[inside] = a[ids[inside]].astype(float) - 3.0 * b[ids[inside]].astype(float)
    assert np.abs(out - wanted).max() <= 2**-22 * 20


@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_sorted_in_shared_memory(target):
    rng = np.random.default_rng(3)
    places = rng.permutation(64).astype(np.int32)
    x, y = rng.standard_normal((64, 40)).astype(np.float16), np.full((64, 40), np.nan, np.float16)
    wanted = np.zeros_like(x)
    wanted[places] = x
    for row, lost in ((5, 300), (17, -2), (63, 2**31 - 1), (40, 64)):
        wanted[places[row]], places[row] = 0, lost
    run(sorted_rows, target, {}, places, x, y)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("which", [7, -1, 64, 2**31 - 1])
@pytest.mark.parametrize("target", TARGETS)
def test_one_number_of_shared_memory(target, which):
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    run(one_number, target, {}, np.array([which], np.int32), x, y)
    np.testing.assert_array_equal(y, x + (x[which] if 0 <= which < 64 else 0))


def test_a_scatter_in_shared_memory_without_a_contract_is_refused():
    @wave([TOKENS])
    def unpromised(places: Memory[T, G, i32], x: Memory[T, G, f32], y: Memory[T, G, f32]):
        own = allocate((T,), (64,), f32)
        write(read(x), own)
        write(read(x), own, at={T: read(places)})
        write(read(own), y)

    with pytest.raises(CoverageError, match="writes own at indices from places, of which two may be equal"):
        unpromised.compile(target="cpu")


def without(kernel, number):
    """Return a kernel without one of its barriers."""
    barriers = [op for op in walk(kernel.body) if isinstance(op, Barrier)]
    return rewrite(kernel, lambda op: [] if op is barriers[number] else None)


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_atomics_need_a_barrier_after_writes_and_before_reads_but_none_among_them(target):
    x, out = np.zeros((1, 2048), np.int32), np.zeros(BINS, np.int32)
    kernel = histograms.compile(target=target, subs={V: BINS, D: 1, T: 2048}).ir()
    inside = [op for op in walk(kernel.body) if isinstance(op, Barrier)]
    assert len(inside) == 2, "after the first write and before the last read, none in the loop"
    interpret_lanes(kernel, [x, out], {}, "in turn", 0)
    assert out.tolist() == [2048] + [0] * (BINS - 1)
    for number, said in enumerate(("changes own", "reads own")):
        with pytest.raises(InterpreterError, match=said):
            interpret_lanes(without(kernel, number), [x, np.zeros(BINS, np.int32)], {}, "in turn", 0)


def test_memory_that_was_never_written_is_not_changed():
    @wave([TOKENS])
    def forgotten(x: Memory[T, G, i32], out: Memory[V, G, i32]):
        own = allocate((V,), (BINS,), i32)
        atomic_add(read(x), own, at={V: read(x)})
        atomic_add(read(own), out)

    made = forgotten.compile(target="gfx942", subs={V: BINS})
    for level in ("tile", "lane"):
        with pytest.raises(InterpreterError, match=r"own.* which was never written"):
            made.interpret(np.ones(64, np.int32), np.zeros(BINS, np.int32), level=level)


@pytest.mark.parametrize("length", [3, 5, 40])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_are_reduced_and_stored_end_where_their_memory_does(target, length):
    """A reduced row is padded to what lanes share evenly; in shared memory there is no room for the padding."""

    @wave([WorkgroupConstraint(T, 16, 0)])
    def moved_up(x: Memory[T, D, G, f32], y: Memory[T, D, G, f32], z: Memory[T, G, f32]):
        own, tile = allocate((T, D), (16, length), f32), read(x)
        write(tile, own)
        write(read(own, at={D: self_index(D, i32) + 1}), y)
        write(tile.sum(dim=D), z)

    rng = np.random.default_rng(8)
    x = rng.integers(-9, 10, (37, length)).astype(np.float32)
    y, z = np.full_like(x, 7), np.full(37, 7, np.float32)
    run(moved_up, target, {D: length}, x, y, z)
    np.testing.assert_array_equal(y, np.concatenate([x[:, 1:], np.zeros((37, 1), np.float32)], axis=1))
    np.testing.assert_array_equal(z, x.sum(axis=1))
