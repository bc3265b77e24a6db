"""Writes in loops whose bounds are loaded, and to segments of rows between loaded offsets."""

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import AccessError, CoverageError

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
S, T, D, L, M = sym.S, sym.T, sym.D, sym.L, sym.M
TARGETS = ("tile", "cpu", "gfx942", "sm_90a")
EACH = [WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(D, 32, 1), TilingConstraint(T, 16)]
Rows = Memory[T, D, G, f32]
Offsets = Memory[L, G, i32, Indices(sorted=True)]


def bounds(offsets, further=1):
    first = first_index(S)
    return read(offsets, at={L: first}), read(offsets, at={L: first + further})


@wave(EACH)
def beginnings(lengths: Memory[S, G, i32], x: Memory[S, T, D, G, f32], y: Memory[S, T, D, G, f32]):
    @iterate(T, stop=read(lengths, at={S: first_index(S)}))
    def step():
        write(read(x) * 2.0, y)


@wave(EACH)
def middles(lengths: Memory[S, G, i32], x: Memory[S, T, D, G, f32], y: Memory[S, T, D, G, f32]):
    length = read(lengths, at={S: first_index(S)})

    @iterate(T, start=length - 20, stop=length)
    def step():
        write(read(x) * 2.0, y)


@wave(EACH)
def by_aligned_tiles(offsets: Offsets, scale: Memory[S, G, f32], x: Rows, y: Rows):
    begin, end = bounds(offsets)
    factor = read(scale)

    @iterate(T, start=begin, stop=end)
    def step():
        t = self_index(T, i32)
        write(read(x) * factor, y, at={T: select((t >= begin) & (t < end), t, -1)})


@wave(EACH)
def from_the_first_row(offsets: Offsets, scale: Memory[S, G, f32], x: Rows, y: Rows):
    begin, end = bounds(offsets)
    begin, end = maximum(begin, scalar(0, i32)), minimum(end, scalar(T, i32))
    factor = read(scale)

    @iterate(T, stop=end - begin)
    def step():
        t = self_index(T, i32)
        place = select(t < end - begin, begin + t, -1)
        write(read(x, at={T: place}) * factor, y, at={T: place})


@wave([WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(M, 8, 1), WorkgroupConstraint(D, 32, 2)])
def by_a_grid(
    offsets: Offsets, scale: Memory[S, G, f32], longest: Memory[M, G, f32], x: Rows, y: Rows
):  # M: the rows of the longest segment
    begin, end = bounds(offsets)
    m = self_index(M, i32)
    place = select(m < end - begin, m + begin, -1)
    write(read(x, at={T: place}) * read(scale) + 0.0 * read(longest), y, at={T: place})


def run(kernel, target, *arrays, **sizes):
    made = kernel.compile(
        target="gfx942" if target == "tile" else target, subs={getattr(sym, name): size for name, size in sizes.items()}
    )
    if target == "cpu":
        made(*arrays)
    elif target == "gfx942":
        made.emulate(*arrays)
    else:
        made.interpret(*arrays, level="tile" if target == "tile" else "lane")
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [beginnings, middles], ids=lambda k: k.name)
@pytest.mark.parametrize("sizes", [{}, {"S": 6, "T": 50, "D": 40}], ids=["open", "known"])
def test_a_loop_with_loaded_bounds_writes_the_steps_that_it_takes(kernel, target, sizes):
    rng = np.random.default_rng(1)
    lengths = np.array([0, 5, 40, 100, -3, 2**31 - 1], np.int32)
    x, y = rng.standard_normal((6, 50, 40)).astype(np.float32), np.full((6, 50, 40), -7, np.float32)
    run(kernel, target, lengths, x, y, **sizes)
    for n, before, after in zip(lengths.tolist(), x, y, strict=True):
        first = 0 if kernel is beginnings else max(n - 20, 0) // 16 * 16
        taken = np.zeros(50, bool)
        taken[min(first, 50) : -(-max(n, 0) // 16) * 16] = True
        np.testing.assert_array_equal(after, np.where(taken[:, None], 2 * before, -7))


CASES = {
    "ragged": [0, 3, 3, 20, 57, 60],
    "one has all": [0, 0, 0, 60, 60, 60],
    "outside": [-9, 4, 5, 30, 70, 2**31 - 1],
    "gaps": [7, 9, 16, 17, 33, 40],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [by_aligned_tiles, from_the_first_row, by_a_grid], ids=lambda k: k.name)
def test_segments_are_written_by_their_workgroups(kernel, target, case):
    rng = np.random.default_rng(2)
    offsets = np.array(CASES[case], np.int32)
    scale, x = rng.standard_normal(5).astype(np.float32), rng.standard_normal((60, 40)).astype(np.float32)
    y = np.full((60, 40), -7, np.float32)
    wanted = y.copy()
    for s, (begin, end) in enumerate(zip(offsets.tolist(), offsets[1:].tolist(), strict=False)):
        rows = slice(max(begin, 0), min(end, 60))
        wanted[rows] = x[rows] * scale[s]
    more = [np.zeros(60, np.float32)] if kernel is by_a_grid else []
    made = run(kernel, target, offsets, scale, *more, x, y)
    np.testing.assert_array_equal(y, wanted)
    assert "by the contract of offsets" in str(made.proof)


def test_what_is_not_shown_to_be_apart_is_refused():
    @wave(EACH)
    def unmasked(offsets: Offsets, scale: Memory[S, G, f32], x: Rows, y: Rows):
        begin, end = bounds(offsets)

        @iterate(T, start=begin, stop=end)
        def step():
            write(read(x) * read(scale), y)

    with pytest.raises(CoverageError, match="both compute"):
        unmasked.compile(target="cpu", subs={S: 3, L: 4, T: 40, D: 32})


WRONG = {
    "no contract": lambda t, begin, end: (t >= begin) & (t < end),
    "two offsets on": lambda t, begin, end: (t >= begin) & (t < end),
    "one row more": lambda t, begin, end: (t >= begin) & (t <= end),
    "no first row": lambda t, begin, end: t < end,
    "no last row": lambda t, begin, end: t >= begin,
    "either": lambda t, begin, end: (t >= begin) | (t < end),
}


@pytest.mark.parametrize("how", WRONG)
def test_conditions_that_do_not_keep_segments_apart_are_refused(how):
    kind = Memory[L, G, i32] if how == "no contract" else Offsets

    @wave(EACH)
    def wrong(offsets: kind, scale: Memory[S, G, f32], x: Rows, y: Rows):
        begin, end = bounds(offsets, 2 if how == "two offsets on" else 1)

        @iterate(T, start=begin, stop=end)
        def step():
            t = self_index(T, i32)
            inside = WRONG[how](t, begin, end)
            write(read(x) * read(scale), y, at={T: select(inside, t, -1)})

    with pytest.raises(CoverageError, match=r"both compute|of which two may be equal") as error:
        wrong.compile(target="cpu", subs={S: 3, L: 5, T: 40, D: 32})
    assert how != "no contract" or "say that segments do not overlap" in str(error.value)


def test_offsets_that_are_not_sorted_are_found():
    x, y, scale = np.ones((60, 40), np.float32), np.zeros((60, 40), np.float32), np.ones(2, np.float32)
    with pytest.raises(AccessError, match=r"offsets\[2\] is less than the one before"):
        run(by_aligned_tiles, "tile", np.array([0, 30, 10], np.int32), scale, x, y)


# starts and lengths


def cut_off(counted):
    """Segments with lengths of their own, each of which ends where the next begins at the latest."""

    def written(
        starts: Memory[L, G, i32, Indices(sorted=True)], lengths: Memory[S, G, i32], x: Memory[S, M, D, G, f32], y: Rows
    ):
        begin, after = bounds(starts)
        m = self_index(M, i32)
        length = read(lengths, at={S: first_index(S)})
        write(read(x), y, at={T: select(m < counted(begin, after, length), begin + m, -1)})

    return wave([WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(M, 8, 1), WorkgroupConstraint(D, 32, 2)])(written)


COUNTED = {
    "the end": lambda begin, after, length: minimum(begin + length, after) - begin,
    "the length": lambda begin, after, length: minimum(length, after - begin),
    "the least of three": lambda begin, after, length: minimum(minimum(after - begin, scalar(100, i32)), length),
}


@pytest.mark.parametrize("how", COUNTED)
@pytest.mark.parametrize("target", TARGETS)
def test_segments_with_starts_and_lengths(target, how):
    starts, lengths = np.array([2, 9, 9, 30, 60], np.int32), np.array([4, 5, 30, 17], np.int32)
    x = np.random.default_rng(3).standard_normal((4, 20, 40)).astype(np.float32)
    y = np.full((60, 40), -7, np.float32)
    wanted = y.copy()
    for s, (begin, after, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        count = min(after - begin, length, 20)
        wanted[begin : begin + count] = x[s, :count]
    made = run(cut_off(COUNTED[how]), target, starts, lengths, x, y)
    np.testing.assert_array_equal(y, wanted)
    assert "by the contract of starts" in str(made.proof)


@pytest.mark.parametrize("contract", [None, Indices(sorted=True), Indices(unique=True)], ids=str)
def test_starts_and_lengths_alone_are_refused(contract):
    """The remedy is what `test_segments_with_starts_and_lengths` does."""

    @wave([WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(M, 8, 1), WorkgroupConstraint(D, 32, 2)])
    def written(starts: Memory[S, G, i32], lengths: Memory[S, G, i32], x: Memory[S, M, D, G, f32], y: Rows):
        begin, length = (read(a, at={S: first_index(S)}) for a in (starts, lengths))
        m = self_index(M, i32)
        write(read(x), y, at={T: select(m < length, begin + m, -1)})

    kernel = written.with_memories(starts=contract) if contract else written
    with pytest.raises(
        CoverageError, match="written writes y at indices from starts, of which two may be equal"
    ) as error:
        kernel.compile(target="cpu")
    assert "no contract says that rows from starts on end before others begin" in error.value.remedy
    assert "minimum(begin + length, read(starts, at={…: s + 1}))" in error.value.remedy


def test_a_loop_over_starts_and_lengths_is_refused_with_what_is_missing():
    @wave(EACH)
    def scaled(starts: Memory[S, G, i32], lengths: Memory[S, G, i32], x: Rows, y: Rows):
        begin, length = (read(a, at={S: first_index(S)}) for a in (starts, lengths))

        @iterate(T, start=begin, stop=begin + length)
        def step():
            t = self_index(T, i32)
            write(read(x), y, at={T: select((begin <= t) & (t < begin + length), t, -1)})

    with pytest.raises(CoverageError, match="workgroups 0 and 1 both compute") as error:
        scaled.compile(target="cpu", subs={S: 2, T: 40, D: 64})
    assert "let each end where the next begins, at the offsets of an array Memory[…, Indices(sorted=True)]" in str(
        error.value.remedy
    )


B, P, V, SLOT = sym.B, sym.P, sym.V, sym.SLOT
OF_PAGES = [WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(M, 16, 1), WorkgroupConstraint(D, 32, 2)]


def test_rows_of_pages_of_a_table_are_refused_unless_slots_are_unique():
    """Starts, a page for each 16 rows, and the row in it: which pages collide is known to nobody but the caller."""

    @wave(OF_PAGES)
    def paged(
        pages: Memory[B, P, G, i32, Indices(unique=True)],
        starts: Memory[B, G, i32],
        x: Memory[B, M, D, G, f32],
        cache: Memory[V, SLOT, D, G, f32],
    ):
        b = first_index(B)
        row = read(starts, at={B: b}) + self_index(M, i32)
        write(read(x), cache, at={V: read(pages, at={B: b, P: row // 16}), SLOT: row % 16})

    with pytest.raises(CoverageError, match="writes cache at indices from starts, of which two may be equal") as error:
        paged.compile(target="cpu")
    assert "slots: Memory[…, i32, Indices(unique=True)]" in error.value.remedy
    assert "at={…: slots // n, …: slots % n}" in error.value.remedy


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_pages_at_unique_slots(target):
    @wave(OF_PAGES)
    def paged(
        slots: Memory[B, M, G, i32, Indices(unique=True)], x: Memory[B, M, D, G, f32], cache: Memory[V, SLOT, D, G, f32]
    ):
        slot = read(slots)
        write(read(x), cache, at={V: slot // 16, SLOT: slot % 16})

    rng = np.random.default_rng(4)
    slots = rng.permutation(9 * 16)[:60].reshape(3, 20).astype(np.int32)
    slots[1, 7:] = -1
    x, cache = rng.standard_normal((3, 20, 40)).astype(np.float32), np.zeros((9, 16, 40), np.float32)
    wanted = cache.copy()
    wanted.reshape(144, 40)[slots[slots >= 0]] = x[slots >= 0]
    run(paged, target, slots, x, cache)
    np.testing.assert_array_equal(cache, wanted)


def test_a_formula_of_the_tile_may_collide():
    """No array is to blame: the position along an axis is not understood."""

    @wave(OF_PAGES)
    def paged(
        pages: Memory[B, P, G, i32, Indices(unique=True)], x: Memory[B, M, D, G, f32], cache: Memory[V, SLOT, D, G, f32]
    ):
        page = read(pages, at={B: first_index(B), P: first_index(M) // 16})
        write(read(x), cache, at={V: page, SLOT: self_index(M, i32) % 16})

    with pytest.raises(CoverageError, match="paged writes cache at indices of which two may be equal"):
        paged.compile(target="cpu")
