"""A kernel is called right for every size only where it is; all others are looked at once for each set of sizes."""

import random
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import examples

from tilewave import *
from tilewave.analysis import size_proofs as verdicts
from tilewave.analysis.every_size import every_size
from tilewave.analysis.reads import judged_schedule
from tilewave.analysis.size_classes import SeenSizes
from tilewave.errors import CallError, CoverageError
from tilewave.ir.launch import HostLaunch, bind, numbers_of
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.mapping import as_mapping, from_function, grouped
from tilewave.pipeline.runner import run
from tilewave.pipeline.tile_level import tile_level

M, N, K, B, P, WGM = sym.M, sym.N, sym.K, sym.B, sym.P, sym.WGM
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 8, 1), TilingConstraint(K, 4)]


def gemm(*extra, tiles=TILES):
    @wave([*tiles, *extra])
    def gemm(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    return gemm


def compiled(kernel, subs=(), target="numpy", **options):
    return wave_compile(WaveCompileOptions(subs=dict(subs), target=target, **options), kernel)


def arrays(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, np.float32)


def runs(kernel, sizes, **symbols):
    a, b, c = arrays(*sizes)
    kernel(a, b, c, **symbols)
    np.testing.assert_array_equal(c, a @ b.T)


# what is proved -----------------------------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (16, 8, 4), (17, 9, 5), (64, 64, 64), (37, 101, 13), (0, 5, 3), (5, 0, 3), (5, 7, 0), (300, 1, 2)]


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 8, 1)])
def in_place(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a) + read(c), c)


@wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(N, 8)])
def step_by_step(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    @iterate(N, init_args=[])
    def _step():
        write(read(a) * 2.0, c)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 8, 1), WorkgroupConstraint(B, 1, 2)])
def batched(a: Memory[B, M, N, G, f32], c: Memory[B, N, M, G, f32]):
    write(read(a), c)


H, U = sym.H, sym.U


@wave([WorkgroupConstraint(M, 16, 0), *(WorkgroupConstraint(dim, 1, at) for dim, at in ((H, 2), (B, 3), (U, 4)))])
def in_heads(a: Memory[B, H, M, G, f32], c: Memory[U, B, H, M, G, f32]):
    write(broadcast(read(a), (U, B, H, M)), c)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(U, 1, 2), TilingConstraint(K, 4)])
def in_parts(a: Memory[M, K, G, f32], c: Memory[U, M, G, f32], length: index):
    start = first_index(U) * length

    @iterate(K, init_args=[Register[M, f32](0.0)], start=start, stop=start + length)
    def total(acc):
        return acc + read(a).sum(dim=K)

    write(broadcast(total, (U, M)), c)


PROVED = {
    "linear": lambda: compiled(gemm()),
    "named": lambda: compiled(gemm(WorkgroupMapping("xcd_contiguous(8) >> grouped(3)"))),
    "curve": lambda: compiled(gemm(WorkgroupMapping("hilbert()"))),
    "persistent": lambda: compiled(gemm(GridConstraint(7), WorkgroupMapping("xcd_chunked(4, 2) >> snake(2)"))),
    "some sizes fixed": lambda: compiled(gemm(), {M: 40, K: 6}),
    "step by step": lambda: compiled(step_by_step),
    "in place": lambda: compiled(in_place),
    "batched": lambda: compiled(batched),
    "in heads": lambda: compiled(in_heads),
    "in parts": lambda: compiled(in_parts),
}


@cache
def proved(name):
    return PROVED[name]()


@pytest.mark.parametrize("name", PROVED)
def test_what_the_language_deals_and_cuts_is_right_for_every_size(name):
    kernel = PROVED[name]()
    assert kernel.proof.holds and not kernel.proof.doubts
    assert str(kernel.proof).startswith("right for every size, because ")
    assert repr(kernel).endswith(", right for every size>")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([*PROVED]),
    st.fixed_dictionaries(
        {s: st.integers(0, 70) for s in "MNKB"} | {s: st.integers(0, 5) for s in ("H", "U", "length")}
    ),
)
def test_what_is_proved_is_what_looking_at_every_tile_finds(name, sizes):
    kernel = proved(name)
    values = {size: sizes[size] for size in (*kernel.open_sizes, *(v.name for v in kernel.numbers))}
    judged_schedule(bind(kernel.kernel, values), values)


@pytest.mark.parametrize("sizes", SHAPES)
def test_a_proved_kernel_is_never_looked_at(sizes):
    kernel = compiled(gemm(WorkgroupMapping("grouped(2)")))
    runs(kernel, sizes)
    assert kernel.verdicts.looked_at == 0


def test_the_symbols_of_a_named_mapping_and_of_the_launch_may_be_anything_from_1_on():
    kernel = compiled(gemm(GridConstraint(P), WorkgroupMapping(grouped(WGM))), dynamic_symbols=[P, WGM])
    assert kernel.proof.holds and kernel.proof.positive == ("WGM",)
    for p, group in ((1, 1), (3, 5), (1000, 70)):
        runs(kernel, (65, 33, 9), P=p, WGM=group)
    assert kernel.verdicts.looked_at == 0
    (written,) = kernel.proof.windows
    assert written.array == "c"
    holds_at = kernel.proof.holds_at
    assert holds_at([(65, 33)], [1], 4)
    assert not holds_at([(65, 33)], [0], 4)
    assert not holds_at([(65, 33)], [1], 0), "there are tiles, and nobody computes them"
    assert holds_at([(0, 33)], [1], 0)
    assert not holds_at([(1 << 30, 1 << 30)], [1], 4), "no tile has such a number"
    assert not holds_at([(65, 33)], [1], 1 << 31)


FIXED = {M: 40, N: 24, K: 6}


def test_a_kernel_whose_sizes_are_fixed_was_checked_when_it_was_compiled():
    formula = WorkgroupMapping(from_function(lambda w, grid: (w // grid.cols, w % grid.cols)))
    for extra, times in (((), 0), ((WorkgroupMapping("grouped(2)"), GridConstraint(4)), 0), ((formula,), 1)):
        kernel = compiled(gemm(*extra), FIXED)
        assert str(kernel.proof) == "checked when it was compiled, because its sizes are fixed"
        assert not kernel.proof.holds and kernel.verdicts.looked_at == times, "only a formula is followed tile by tile"
        runs(kernel, (40, 24, 6))
        assert kernel.verdicts.looked_at <= max(times, 1), "and whatever numpy runs, once"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([gemm(), gemm(WorkgroupMapping("grouped(3)")), gemm(GridConstraint(7)), in_place, step_by_step]),
    st.data(),
)
def test_what_is_right_unseen_is_what_looking_at_every_tile_finds(kernel, data):
    sizes = {size: data.draw(st.integers(1, 70)) for size in (M, N, K)}
    found = compiled(kernel, sizes)
    assert found.verdicts.looked_at == 0
    assert found.schedule == judged_schedule(found.kernel, {})


# why it is not proved -----------------------------------------------------------------------------------------------

i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
SHUFFLED = j % 2 * 4 + j // 2


@wave(TILES[:2])
def gathered_in_place(c: Memory[M, N, G, f32]):
    mapping = IndexMapping(num_iterators=2, inputs={M: i, N: SHUFFLED}, outputs={M: i, N: j})
    write(read(c, mapping=mapping), c)


@wave(TILES[:2])
def scattered(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    mapping = IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i, N: SHUFFLED})
    write(read(a), c, mapping=mapping)


@wave(TILES[:2])
def twice(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a), c)
    write(read(a) * 2.0, c)


@wave(TILES[:2])
def too_many_tiles(a: Memory[M, G, f32], d: Memory[N, G, f32], c: Memory[M, G, f32]):
    write(read(a), c)


@wave(TILES)
def repeated(a: Memory[M, N, G, f32], d: Memory[K, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[])
    def _step():
        write(read(a), c)


DOUBTED = {
    "reordered": (
        lambda: compiled(gemm(ReorderingConstraint(WORKGROUP_1, 0), ReorderingConstraint(WORKGROUP_0, 1))),
        "the order of tiles is the author's own formula for WORKGROUP_0 and WORKGROUP_1",
    ),
    "a function": (
        lambda: compiled(gemm(WorkgroupMapping(from_function(lambda w, grid: (w // grid.cols, w % grid.cols))))),
        "is not made of named mappings alone",
    ),
    "a computed parameter": (
        lambda: compiled(gemm(WorkgroupMapping(grouped(WGM - 1))), dynamic_symbols=[WGM]),
        "a parameter of the order of tiles is computed, WGM - 1",
    ),
    "gathered": (lambda: compiled(gathered_in_place), "c is read and written"),
    "scattered": (lambda: compiled(scattered), "c is written through an index mapping"),
    "twice": (lambda: compiled(twice), "c is written at 2 places"),
    "a column for each": (lambda: compiled(too_many_tiles), "c is written for tiles or steps that are no part of it"),
    "repeated": (lambda: compiled(repeated), "c is written for tiles or steps that are no part of it"),
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_may_fail_on_some_sizes_is_looked_at_and_says_why(name):
    make, reason = DOUBTED[name]
    kernel = make()
    assert not kernel.proof.holds
    assert str(kernel.proof).startswith("checked once for each new set of sizes, because ")
    assert reason in str(kernel.proof)
    assert kernel.proof.windows == ()


OWN_LOOP = """
kernel @own {workgroups = P} (%c: memory<{M}xf32, global>, %M: index, %P: index) {
  %w = workgroup() : index
  %x = const() {value = 1.0} : tile<16xf32>
  %end = while([%w]) : index do (%t: index) {
    %c16 = const() {value = 16} : index
    %at = mul(%t, %c16) : index
    %more = less(%at, %M) : bool
    yield([%more])
  } do (%t_1: index) {
    %c16_1 = const() {value = 16} : index
    %at_1 = mul(%t_1, %c16_1) : index
    write(%x, %c, [%at_1]) {axes = [0]}
    %next = add(%t_1, %P) : index
    yield([%next])
  }
}
"""


def known(text, doubt=""):
    return every_size(verify(parse(text)), "linear()", doubt, ())


def test_a_loop_of_the_authors_own_is_looked_at():
    assert known(OWN_LOOP).doubts == ("its own while loop decides which tiles it computes (<text>:5)",)


# sabotage -----------------------------------------------------------------------------------------------------------

PLAIN, PERSISTENT = (str(compiled(gemm(*more)).ir("trace")) for more in ((), (GridConstraint(5),)))
WRONG = {
    "too few rows": (PLAIN, "const() {value = 15}", "const() {value = 14}"),
    "too many rows": (PLAIN, "const() {value = 15}", "const() {value = 16}"),
    "rows of another height": (PLAIN, "const() {value = 16}", "const() {value = 8}"),
    "rows for columns": (PLAIN, "write(%total_end, %c, [%mul_1, %mul_2])", "write(%total_end, %c, [%mul_2, %mul_1])"),
    "one row for all": (PLAIN, "write(%total_end, %c, [%mul_1,", "write(%total_end, %c, [%mul_2,"),
    "another memory": (PLAIN, "%c: memory<{M}x{N}xf32", "%c: memory<{N}x{M}xf32"),
    "a longer memory": (PLAIN, "%c: memory<{M}x{N}xf32", "%c: memory<{M}x{K}xf32"),
    "a memory of any length": (PLAIN, "%c: memory<{M}x{N}xf32", "%c: memory<{M}x900xf32"),
    "fewer workgroups": (PLAIN, "workgroups = mul", "workgroups = M_tiles"),
    "a fixed number of workgroups": (PLAIN, "workgroups = mul", "workgroups = 4"),
    "another tile": (PLAIN, "tile_of(%workgroup,", "tile_of(%M_tiles,"),
    "another grid": (PLAIN, "tile_of(%workgroup, [%M_tiles, %N_tiles,", "tile_of(%workgroup, [%N_tiles, %M_tiles,"),
    "no grid": (PLAIN, "batches = 1", "batches = 2"),
    "too few rounds": (PERSISTENT, "%c1_at_launch = const() {value = 1}", "%c1_at_launch = const() {value = 2}"),
    "rounds of another length": (PERSISTENT, "const() {value = 5}", "const() {value = 6}"),
    "dealt to others": (PERSISTENT, "workgroups = 5}", "workgroups = 6}"),
    "launched by others": (PERSISTENT, "{workgroups = 5, lanes", "{workgroups = 6, lanes"),
    "the first round only": (PERSISTENT, "tile_of(%add_3,", "tile_of(%workgroup,"),
}


ROWS = """
kernel @rows {workgroups = tiles} (
  %a: memory<{M}x8xf32, global>, %b: memory<9xf32, global>, %c: memory<{M}x8xf32, global>, %M: index
) {
  %tiles = launch() : index do () {
    %c15 = const() {value = 15} : index
    %sum = add(%M, %c15) : index
    %c16 = const() {value = 16} : index
    %rows = floor_div(%sum, %c16) : index
    yield([%rows])
  }
  %w = workgroup() : index
  %batch, %row, %column = tile_of(%w, [%tiles, %tiles])
    {rows = 0, cols = 1, batches = 1, workgroups = 0} : index, index, index
  %c16_1 = const() {value = 16} : index
  %at = mul(%row, %c16_1) : index
  %back = const() {value = 15} : index
  %before = sub(%at, %back) : index
  %zero = const() {value = 0} : index
  %first = const() {value = 0} : index
  %x = read(%a, [%before, %first]) {axes = [0, 1]} : tile<16x8xf32>
  %three = const() {value = 3} : index
  loop(%three, []) do (%i: index) {
    %four = const() {value = 4} : index
    %there = mul(%i, %four) : index
    %y = read(%b, [%there]) {axes = [0]} : tile<4xf32>
    yield([])
  }
  write(%x, %c, [%at, %zero]) {axes = [0, 1]}
}
"""
WRONG |= {
    "a row of workgroups for all": (
        PLAIN.replace("%N_tiles, %mul]", "%N_tiles, %M_tiles]"),
        "workgroups = mul",
        "workgroups = M_tiles",
    ),
    "what it writes, read elsewhere": (PLAIN, "read(%a, [%mul_1, %mul_3])", "read(%c, [%mul_1, %mul_2])"),
    "longer rows than it writes": (ROWS, "%c: memory<{M}x8xf32", "%c: memory<{M}x9xf32"),
}


READ_ELSEWHERE = {
    "too many steps": (PLAIN, "const() {value = 3}", "const() {value = 4}"),
    "longer steps": (PLAIN, "mul(%k_step, %c4_1)", "mul(%k_step, %K_steps)"),
    "steps past the end": (PLAIN, "%mul_3 = mul(%k_step, %c4_1)", "%mul_3 = add(%k_step, %K)"),
    "another read": (PLAIN, "read(%a, [%mul_1, %mul_3])", "read(%a, [%mul_3, %mul_1])"),
    "rows too far back": (ROWS, "%back = const() {value = 15}", "%back = const() {value = 16}"),
    "rows too far on": (ROWS, "sub(%at, %back)", "add(%at, %back)"),
    "columns too far on": (ROWS, "%first = const() {value = 0}", "%first = const() {value = 8}"),
    "columns too far back": (ROWS, "%first = const() {value = 0}", "%first = const() {value = -8}"),
    "steps past a fixed end": (ROWS, "%b: memory<9xf32", "%b: memory<8xf32"),
    "a step too many": (ROWS, "%three = const() {value = 3}", "%three = const() {value = 4}"),
}
"""The read element is elsewhere, and out of bounds for some sizes: zeros."""
HEADS, PARTS = (str(compiled(kernel).ir("trace")) for kernel in (in_heads, in_parts))
WRONG |= {
    "heads counted as batches": (HEADS, "mod(%tile_b, %H_tiles)", "mod(%tile_b, %B_tiles)"),
    "batches of as many heads as there are batches": (
        HEADS,
        "floor_div(%tile_b, %H_tiles)",
        "floor_div(%tile_b, %B_tiles)",
    ),
    "parts behind the last": (HEADS, "mod(%floor_div_3, %U_tiles)", "add(%floor_div_3, %U_tiles)"),
    "parts of one head": (HEADS, "floor_div(%tile_b, %mul)", "floor_div(%tile_b, %H_tiles)"),
    "heads for batches": (HEADS, "%c, [%mul_7, %mul_6, %mul_5, %mul_4]", "%c, [%mul_7, %mul_5, %mul_6, %mul_4]"),
    "one batch for all": (HEADS, "%c, [%mul_7, %mul_6, %mul_5, %mul_4]", "%c, [%mul_7, %mul_5, %mul_5, %mul_4]"),
}
READ_ELSEWHERE |= {
    "a part before the begin": (PARTS, "%max = max(%start, %c0_1)", "%max = min(%start, %c0_1)"),
    "a part past the end": (PARTS, "min(%floor_div_3, %K_steps)", "max(%floor_div_3, %K_steps)"),
    "another part's steps": (PARTS, "add(%k_step, %floor_div_2)", "add(%k_step, %floor_div_3)"),
    "as many steps as before its end": (PARTS, "sub(%min, %floor_div_2)", "sub(%min, %c0_1)"),
    "a part with a step too many": (
        PARTS,
        "%c3_at_launch = const() {value = 3}",
        "%c3_at_launch = const() {value = 4}",
    ),
}


def test_the_kernels_below_are_right_before_they_are_spoiled():
    assert known(PLAIN).holds and known(PERSISTENT).holds and known(ROWS).holds
    assert known(HEADS).holds and known(PARTS).holds
    assert not known(PLAIN, "the order is doubtful").holds


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_was_spoiled_is_not_called_right(name):
    text, old, new = WRONG[name]
    assert old in text, text
    assert known(text.replace(old, new)).doubts


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_is_only_read_may_lie_anywhere(name):
    text, old, new = READ_ELSEWHERE[name]
    assert old in text, text
    assert known(text.replace(old, new)).holds


INDICES = re.compile(r"%(?:M|N|K|\w+_tiles|K_steps|tile_[bmn]|mul(?:_\d)?|workgroup|k_step|add_3|sub(?:_1)?|round)\b")


def spoiled(rng, text):
    """With another number, or another index in the place of one."""
    places = list(INDICES.finditer(text)) + list(re.finditer(r"(?<=value = )\d+(?=\} : index)", text))
    place = rng.choice(places)
    found = place[0]
    new = rng.choice(INDICES.findall(text)) if found.startswith("%") else str(int(found) + rng.choice((-2, -1, 1, 2)))
    return text[: place.start()] + new + text[place.end() :]


@pytest.mark.parametrize("text", [PLAIN, PERSISTENT], ids=["plain", "persistent"])
def test_what_is_called_right_after_a_change_is_right(text):
    rng, right = random.Random(0), 0
    for _ in range(200):
        try:
            kernel = verify(parse(spoiled(rng, text)))
        except TilewaveError:
            continue
        if not every_size(kernel, "linear()", "", ()).holds:
            continue
        right += 1
        final, _ = run(kernel, tile_level(as_mapping("linear()")))
        for m, n, k in ((1, 1, 1), (16, 8, 4), (33, 50, 9), (100, 3, 0), (0, 9, 9), (47, 65, 64)):
            values = {"M": m, "N": n, "K": k}
            judged_schedule(bind(final, values), values)
    assert right > 10, "what makes no difference leaves it right"


# looked at once for each set of sizes -------------------------------------------------------------------------------

FOURS = ReorderingConstraint(WORKGROUP_0 // 4 * 4 + (WORKGROUP_0 + 1) % 4, 0)
"""Right where the rows of tiles are a multiple of 4."""


@pytest.mark.parametrize(("target", "how"), [("numpy", "__call__"), ("numpy", "interpret"), ("cpu", "__call__")])
def test_a_formula_is_refused_on_exactly_the_sizes_on_which_it_is_wrong(target, how):
    kernel = compiled(gemm(FOURS), target=target)
    for rows in range(1, 13):
        a, b, c = arrays(16 * rows - 3, 9, 5)
        if rows % 4 == 0:
            getattr(kernel, how)(a, b, c)
            np.testing.assert_array_equal(c, a @ b.T)
            continue
        with pytest.raises(CoverageError, match=rf"^with M = {16 * rows - 3}, K = 5, N = 9, workgroup"):
            getattr(kernel, how)(a, b, c)
        assert np.isnan(c).all(), "no array is touched"


def test_what_was_looked_at_is_kept():
    kernel = compiled(gemm(FOURS))
    for _ in range(3):
        for m in (64, 128, 192):
            runs(kernel, (m, 9, 5))
    assert kernel.verdicts.looked_at == 3


def test_what_looks_alike_is_looked_at_once():
    """Tiles are 16 x 8, and steps 4: the formula sees rows and columns of tiles, and of K whether it is 0."""
    kernel = compiled(gemm(FOURS))
    for m, n, k in ((64, 9, 5), (63, 16, 5), (49, 10, 8), (50, 15, 64), (64, 9, 1)):
        runs(kernel, (m, n, k))
    assert kernel.verdicts.looked_at == 1
    runs(kernel, (64, 8, 5))
    assert kernel.verdicts.looked_at == 2, "a column less"
    runs(kernel, (64, 9, 0))
    assert kernel.verdicts.looked_at == 3, "a loop that does not run reads nothing"
    with pytest.raises(CoverageError):
        runs(kernel, (48, 9, 5))


def outcome(kernel, values):
    """What judging a kernel comes to, but for the numbers in its message."""
    try:
        found = judged_schedule(bind(kernel, values), values)
    except TilewaveError as error:
        return type(error)
    return found


@pytest.mark.parametrize("text", [PLAIN, PERSISTENT, ROWS, OWN_LOOP], ids=["plain", "persistent", "rows", "own loop"])
def test_whatever_looks_alike_is_judged_alike(text):
    """Kernels mutated at random, most of which are wrong for some sizes."""
    rng, alike, wrong, kernels = random.Random(text), 0, 0, examples(60)
    for _ in range(kernels):
        try:
            final, _ = run(verify(parse(spoiled(rng, text))), tile_level(as_mapping("linear()")))
        except TilewaveError:
            continue
        names = [v.name for v in numbers_of(final)]
        seen, found = SeenSizes(final), {}
        for _ in range(30):
            values = {name: rng.choice((0, 1, 3, 4, 5, 8, 15, 16, 17, 31, 33, rng.randrange(70))) for name in names}
            key = seen.key(*HostLaunch(final)([values[name] for name in names]))
            came_to = outcome(final, values)
            alike += key in found
            wrong += isinstance(came_to, type)
            assert found.setdefault(key, came_to) == came_to, (values, str(final))
    assert alike > kernels and wrong > kernels


def test_what_is_kept_does_not_grow(monkeypatch):
    monkeypatch.setattr(verdicts, "KEPT_VERDICTS", 4)
    kernel = compiled(gemm(FOURS))
    for n in range(1, 200, 5):
        runs(kernel, (64, n, 5))
        assert len(kernel.verdicts._right) <= 4
        assert len(kernel.verdicts._schedules) <= verdicts.KEPT_SCHEDULES
    with pytest.raises(CoverageError):
        runs(kernel, (16, 9, 5))


def test_a_wrong_set_of_sizes_stays_wrong():
    kernel = compiled(gemm(FOURS))
    for _ in range(2):
        with pytest.raises(CoverageError):
            runs(kernel, (16, 9, 5))


def test_reads_of_what_nobody_writes_are_right_for_every_size_wherever_they_lie():
    @wave([WorkgroupConstraint(M, 16, 0)])
    def second(a: Memory[M, G, f32], b: Memory[M, G, f32], c: Memory[M, G, f32]):
        further = read(a, mapping=IndexMapping(1, inputs={M: i + 16}, outputs={M: i}))
        write(further + read(b, mapping=IndexMapping(1, inputs={M: M - 1 - i}, outputs={M: i})), c)

    kernel = compiled(second)
    assert kernel.proof.holds
    for m in (1, 16, 17, 40):
        a, b = np.arange(1.0, m + 1, dtype=np.float32), np.arange(5.0, m + 5, dtype=np.float32)
        c = np.full(m, np.nan, np.float32)
        kernel(a, b, c)
        np.testing.assert_array_equal(c, np.pad(a, (0, 16))[16:] + b[::-1])


@pytest.mark.parametrize("formula", [i, M - 1 - i], ids=["as it is", "reversed"])
def test_an_output_that_no_tile_writes_is_refused(formula):
    """There are no columns, so that no workgroup writes the ends of the rows."""

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 8, 1)])
    def ends(a: Memory[M, N, G, f32], last: Memory[M, G, f32]):
        write(Register[M, f32](1.0), last, mapping=IndexMapping(1, inputs={M: i}, outputs={M: formula}))

    kernel = compiled(ends)
    for m, n in ((1, 1), (40, 8), (0, 0), (0, 5)):
        last = np.zeros(m, np.float32)
        kernel(np.ones((m, n), np.float32), last)
        assert last.all()
    last = np.zeros(40, np.float32)
    with pytest.raises(CoverageError, match=r"^with M = 40, N = 0, (tile|element) .0,. is computed by none"):
        kernel(np.ones((40, 0), np.float32), last)
    assert not last.any()


def test_a_symbol_of_the_call_may_be_0_where_no_order_of_tiles_needs_it():
    rounds = sym.ROUNDS

    @wave([*TILES, TilingConstraint(B), WorkgroupMapping(grouped(WGM))])
    def repeated(a: Memory[M, N, G, i32], c: Memory[M, N, G, i32]):
        @iterate(B, start=0, condition=rounds > B, init_args=[Register[M, N, i32](0)])
        def total(acc):
            set_symbol(B, self_index(B) + 1)
            return acc + read(a)

        write(total + scalar(M, i32) // scalar(rounds, i32), c)

    kernel = compiled(repeated, {K: 1}, dynamic_symbols=[rounds, WGM])
    a, c = np.full((20, 9), 3, np.int32), np.full((20, 9), -1, np.int32)
    for count in (0, 1, 4):
        kernel(a, c, ROUNDS=count, WGM=2)
        assert (c == 3 * count + (20 // count if count else 0)).all()
    with pytest.raises(CallError, match="repeated: WGM is 0, no whole number of at least 1"):
        kernel(a, c, ROUNDS=1, WGM=0)
    with pytest.raises(CallError, match="repeated: ROUNDS is -1, no whole number of at least 0"):
        kernel(a, c, ROUNDS=-1, WGM=1)


def test_more_workgroups_than_a_launch_numbers_are_refused():
    @wave([WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, 1, 1)])
    def ones(a: Memory[M, G, f32], b: Memory[N, G, f32], c: Memory[M, N, G, f32]):
        write(Register[M, N, f32](1.0), c)

    kernel = compiled(ones)
    assert kernel.proof.holds
    with pytest.raises(CallError, match="10,000,000,000 workgroups would compute it"):
        kernel.schedule_for(M=100_000, N=100_000)
    with pytest.raises(CallError, match="10,000,000,000 workgroups would compute it"):
        kernel.bound(M=100_000, N=100_000)
    line = np.zeros(100_000, np.float32)
    wide = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (100_000, 100_000), (0, 0))
    with pytest.raises(CallError, match="10,000,000,000 workgroups would compute it"):
        kernel(line, line, wide)


def test_a_number_of_the_call_that_decides_nothing_needs_no_second_look():
    @wave([*TILES, FOURS])
    def scaled(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32], alpha: f32):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total * alpha, c)

    kernel = compiled(scaled)
    for alpha in (0.5, 2.0, -1.0):
        a, b, c = arrays(64, 9, 5)
        kernel(a, b, c, alpha=alpha)
        np.testing.assert_array_equal(c, a @ b.T * alpha)
    assert kernel.verdicts.looked_at == 1
    assert kernel.schedule_for(M=64, N=9, K=5).grid == (4, 2)
    assert kernel.bound(M=64, N=9, K=5).workgroups == 8


# looking at it ------------------------------------------------------------------------------------------------------


def told(error, call):
    with pytest.raises(error) as caught:
        call()
    return f"{caught.value.what}\n{caught.value.remedy}".strip()


def test_what_needs_sizes_asks_for_them_by_name():
    kernel = compiled(gemm(GridConstraint(P)), dynamic_symbols=[P])
    said = "gemm: the order depends on M, K, N\nwrite schedule_for(P=…, M=…, K=…, N=…)"
    assert told(CallError, lambda: kernel.schedule) == said
    assert kernel.schedule_for(P=3, M=40, K=5, N=20).grid == (3, 3)
    said = "gemm needs a value for K\ngive all of them by name: P=…, M=…, K=…, N=…"
    assert told(CallError, lambda: kernel.schedule_for(M=40, N=20, P=1)) == said
    assert told(CallError, lambda: kernel.bound(M=40, K=5, N=20)).startswith("gemm needs a value for P\n")
    assert told(CallError, lambda: kernel.bound(M=40, K=5, N=20, P=2, Q=1)).startswith("gemm takes no symbol Q\n")
    assert told(CallError, lambda: kernel.schedule_for(M=-1, K=5, N=20, P=2)) == (
        "gemm: M is -1, no whole number of at least 0"
    )
    said = "gemm: the sizes of its arrays depend on M, K, N\nany that agree will do; compile it with subs={M: …, …} to"
    assert told(CallError, lambda: kernel.parameters).startswith(said)


def test_an_open_kernel_shows_every_step():
    kernel = compiled(gemm())
    assert [step.name for step in kernel.steps] == [
        "map_workgroups",
        "fold_permutes",
        "simplify",
        "skip_masked_blocks",
        "hoist_to_launch",
    ]
    assert kernel.ir() == kernel.kernel and "{M}x{N}xf32" in str(kernel.ir("trace"))
    assert str(kernel.why()) == str(compiled(gemm(), {M: 40, N: 20, K: 5}).why())
    bound = kernel.bound(M=40, N=20, K=5)
    assert bound.workgroups == 9 and [v.type.extents for v in bound.body.args] == [(40, 5), (20, 5), (40, 20)]
    fixed = compiled(gemm(), {M: 40, N: 20, K: 5})
    assert kernel.schedule_for(M=40, N=20, K=5) == fixed.schedule
