"""Loops that load ahead compute the same for any number of steps, and no barrier of theirs is missing or needless."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from barrier_judge import Recorder, barriers, check, passed, races
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import examples
from seeds import SEEDS

from tilewave.analysis.residues import Residue, Residues
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Barrier, Loop
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.machine.chips import GFX942
from tilewave.passes.memory.coalesce_loads import CoalesceLoads
from tilewave.passes.memory.place_barriers import place_barriers
from tilewave.passes.memory.stage_shared import StageShared
from tilewave.passes.schedule.software_pipeline import SoftwarePipeline
from tilewave.passes.tile.fold_trivial_loops import fold_trivial_loops
from tilewave.passes.tile.select_mma import SelectMma
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline.runner import run

pytestmark = pytest.mark.share(6)

TRIPS = (0, 1, 2, 3, 7, 16)
NUM_STAGES = (1, 2, 3, 4)
AROUND = ("plain", "while", "loop")
BODY = """
    {trips_line}
    %zero = const() {{value = 0.0}} : tile<4x4xf32>
    %sum, %seen = loop(%trips, [%zero, %zero]) : tile<4x4xf32>, tile<4x4xf32>
      do (%i: index, %acc0: tile<4x4xf32>, %most: tile<4x4xf32>) {{
      %d = const() {{value = 4}} : index
      %k = mul(%i, %d) : index
      {stage}
      {use}
      %more = max(%most, %xs0) : tile<4x4xf32>
      yield([%acc{count}, %more])
    }}
    write(%sum, %c, [%m, %o]) {{axes = [0, 1]}}
    write(%seen, %e, [%m, %o]) {{axes = [0, 1]}}
"""
STAGE = """
      %x{j} = read(%a{j}, [%m, %k]) {{axes = [0, 1]}} : tile<4x4xf32>
      {between}
      write({what}{j}, %s{j}, [%o, %o]) {{axes = [0, 1]}}
"""
USE = """
      %xs{j} = read(%s{j}, [%o, %o]) {{axes = [0, 1]}} : tile<4x4xf32>
"""
PRODUCT = """
      %acc{after} = mma(%xs{j}, %xs{other}, %acc{j}) : tile<4x4xf32>
"""
TILES = {
    "plain": "%w = workgroup() : index\n  %m = mul(%w, %f) : index\n{body}",
    "loop": "loop(%tiles, []) do (%w: index) {{\n  %m = mul(%w, %f) : index\n{body}\n  yield([])\n}}",
    "while": """
  %end = while([%o]) : index do (%v: index) {{
    %goes = less(%v, %tiles) : bool
    yield([%goes])
  }} do (%w: index) {{
    %m = mul(%w, %f) : index
    {body}
    %v_next = add(%w, %one) : index
    yield([%v_next])
  }}""",
}
ROWS = 10
"""Three tiles of four rows, the last of which is a boundary tile."""


def staged(trips=None, operands=2, around="plain", depth=1, between="", tiles=None):
    """A loop that stages tiles, as text; `trips` and `tiles` are asked at the call where they are not given."""
    change = f"%y{{j}} = {between}(%x{{j}}) : tile<4x4xf32>" if between else ""
    what = "%y" if between else "%x"
    stage = "".join(STAGE.format(j=j, what=what, between=change.format(j=j)) for j in range(operands))
    use = "".join(USE.format(j=j) for j in range(operands))
    use += "".join(PRODUCT.format(j=j, after=j + 1, other=(j + 1) % operands) for j in range(operands))
    known = f"%trips = const() {{value = {trips}}} : index" if trips is not None else ""
    body = BODY.format(stage=stage, use=use, count=operands, trips_line=known)
    memories = [f"%a{j}: memory<{ROWS}x{depth}xf32, global>" for j in range(operands)]
    memories += [f"%{out}: memory<{ROWS}x4xf32, global>" for out in "ce"]
    numbers = ["%trips: index"] * (trips is None) + ["%tiles: index"] * (tiles is None)
    fixed = f"%tiles = const() {{value = {tiles}}} : index" if tiles is not None else ""
    allocates = "\n".join(f"%s{j} = allocate() : memory<4x4xf32, shared>" for j in range(operands))
    groups = 3 if around == "plain" else 1
    return verify(
        parse(f"""
kernel @staged {{workgroups = {groups}, waves = [2, 2], lanes = 64}} ({", ".join([*memories, *numbers])}) {{
  {allocates}
  %o = const() {{value = 0}} : index
  %one = const() {{value = 1}} : index
  %f = const() {{value = 4}} : index
  {fixed}
  {TILES[around].format(body=body)}
}}
""")
    )


def shape_of(trips):
    """A depth that needs this many steps, the last of them not a whole one."""
    return max(1, 4 * trips - 1)


def outcome(kernel, operands, depth, trips):
    rng = np.random.default_rng(depth)
    arrays = [rng.integers(-3, 4, (ROWS, depth)).astype(np.float32) for _ in range(operands)]
    c, e = (np.full((ROWS, 4), np.nan, np.float32) for _ in range(2))
    interpret(kernel, [*arrays, c, e], {"trips": trips, "tiles": 3})
    return arrays, c, e


def expected_sums(arrays, depth, trips):
    """Return the products of each tile's rows with those of the next operand, in float64."""
    padded = [np.zeros((12, depth)) for _ in arrays]
    for whole, array in zip(padded, arrays, strict=True):
        whole[:ROWS] = array
    turns = list(zip(padded, [*padded[1:], padded[0]], strict=True))
    blocks = [sum(x[m : m + 4] @ y[m : m + 4].T for x, y in turns) for m in (0, 4, 8)]
    return np.concatenate(blocks)[:ROWS] if trips else np.zeros((ROWS, 4))


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("trips", TRIPS)
def test_a_pipelined_loop_computes_the_same(trips, num_stages, around):
    depth = shape_of(trips)
    kernel = staged(None, 2, around, depth)
    after = verify(SoftwarePipeline(num_stages)(kernel))
    assert after != kernel
    arrays, c, e = outcome(kernel, 2, depth, trips)
    np.testing.assert_array_equal(c, expected_sums(arrays, depth, trips))  # small integers: exact in f32
    for now in (after, place_barriers(after)):
        _, c_now, e_now = outcome(now, 2, depth, trips)
        np.testing.assert_array_equal(c_now, c)
        np.testing.assert_array_equal(e_now, e)


@given(
    trips=st.sampled_from(TRIPS),
    num_stages=st.sampled_from(NUM_STAGES),
    around=st.sampled_from(AROUND),
    operands=st.integers(1, 3),
    between=st.sampled_from(["", "neg"]),
)
@settings(max_examples=examples(60))
def test_with_the_number_of_steps_written_the_loops_dissolve(trips, num_stages, around, operands, between):
    depth = shape_of(trips)
    kernel = staged(trips, operands, around, depth, between)
    pipelined = SoftwarePipeline(num_stages)(kernel)
    after = simplify(verify(fold_trivial_loops(pipelined)))
    verify(after)
    often = [op.trips for op in walk(after.body) if isinstance(op, Loop)]
    assert all(Residues(after).constant(v) not in (0, 1) for v in often)
    _, c, e = outcome(kernel, operands, depth, trips)
    _, c_now, e_now = outcome(after, operands, depth, trips)
    np.testing.assert_array_equal(c_now, c)
    np.testing.assert_array_equal(e_now, e)


def test_a_pipelined_loop_is_left_alone_the_second_time():
    for num_stages in NUM_STAGES:
        once = SoftwarePipeline(num_stages)(staged())
        assert SoftwarePipeline(num_stages)(once) == once


def test_every_op_of_a_pipelined_loop_has_a_place():
    for op in walk(place_barriers(SoftwarePipeline(3)(staged(around="while"))).body):
        assert op.loc.line, f"{op} comes from nowhere"


def test_what_was_copied_keeps_its_line():
    kernel = staged()
    lines = {op.result.name: op.loc.line for op in walk(kernel.body) if op.name == "read"}
    copies = [op for op in walk(SoftwarePipeline(2)(kernel).body) if op.name == "read"]
    assert len(copies) == 8
    for op in copies:
        original = op.result.name.removesuffix("_first").removesuffix("_next").removesuffix("_last")
        assert op.loc.line == lines[original]


@pytest.mark.parametrize("num_stages", (0, 1, 2, 3))
@pytest.mark.parametrize("shape", [(129, 257, 65), (64, 64, 32), (70, 300, 200)], ids=str)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_the_kernels_of_the_documents(seed, shape, num_stages):
    """All on whole tiles: products exact, and each barrier needed in some workgroup."""
    m, n, k = shape
    kernel = seed.compile(m, n, k, block_m=64, block_n=64, block_k=32).kernel
    staging = [SelectMma(GFX942, Places()), StageShared(GFX942), CoalesceLoads(16)]
    kernel, _ = run(
        kernel, [*staging, *([SoftwarePipeline(num_stages)] if num_stages else []), fold_trivial_loops, place_barriers]
    )
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    interpret(kernel, [a, b, c], {})
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
    check(kernel, [{}])


# -- barriers ---------------------------------------------------------------------------------------------------------


@given(
    num_stages=st.sampled_from((0, *NUM_STAGES)),
    around=st.sampled_from(AROUND),
    operands=st.integers(1, 3),
    between=st.sampled_from(["", "neg"]),
    dissolved=st.booleans(),
)
@settings(max_examples=examples(60))
def test_barriers_are_enough_and_none_is_needless(num_stages, around, operands, between, dissolved):
    kernel = staged(None, operands, around, between=between)
    kernel = SoftwarePipeline(num_stages)(kernel) if num_stages else kernel
    kernel = simplify(fold_trivial_loops(kernel)) if dissolved else kernel
    after = verify(place_barriers(kernel))
    check(after, [{"trips": trips, "tiles": tiles} for trips in range(7) for tiles in (1, 2, 3)])
    assert place_barriers(after) == after


@pytest.mark.share(8)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("num_stages", (0, *NUM_STAGES))
@pytest.mark.parametrize("trips", (*range(7), 11, 12, 13))
def test_barriers_where_the_number_of_steps_is_written(trips, num_stages, around):
    kernel = SoftwarePipeline(num_stages)(staged(trips, 2, around)) if num_stages else staged(trips, 2, around)
    for form in (kernel, fold_trivial_loops(kernel), simplify(fold_trivial_loops(kernel))):
        check(verify(place_barriers(form)), [{"tiles": tiles} for tiles in (1, 2, 3)])


@pytest.mark.parametrize("around", ("while", "loop"))
@pytest.mark.parametrize("num_stages", (0, *NUM_STAGES))
@pytest.mark.parametrize("tiles", (1, 2, 9))
def test_barriers_where_the_number_of_tiles_is_written(tiles, num_stages, around):
    """One tile has none before it to wait for."""
    kernel = staged(None, 2, around, tiles=tiles)
    after = verify(place_barriers(SoftwarePipeline(num_stages)(kernel) if num_stages else kernel))
    check(after, [{"trips": trips} for trips in range(7)])


def test_a_tile_that_depends_on_the_workgroup_is_the_only_one_where_there_are_enough_workgroups():
    text = str(SoftwarePipeline(1)(staged(None, 1, "while", tiles=4)))
    text = text.replace(
        "%one = const() {value = 1} : index", "%w0 = workgroup() : index\n%one = const() {value = 4} : index"
    )
    text = text.replace("while([%o])", "while([%w0])")
    each, few = (parse(text.replace("workgroups = 1", f"workgroups = {n}")) for n in (4, 3))
    one_tile_each = place_barriers(each)
    fewer_workgroups = place_barriers(parse(str(few).replace("{value = 4} : index", "{value = 3} : index", 1)))
    assert (barriers(one_tile_each), barriers(fewer_workgroups)) == (3, 4)


@pytest.mark.parametrize("num_stages, before, each", [(0, 0, 2), (1, 1, 2), (2, 1, 1), (3, 1, 1), (4, 1, 1)])
def test_how_many_barriers_a_wave_passes(num_stages, before, each):
    """Two in every step with one stage, one with more; and one before the last steps."""
    kernel = place_barriers(SoftwarePipeline(num_stages)(staged()) if num_stages else staged())
    ahead = max(1, num_stages - 1) if num_stages else 0
    for trips in (4, 5, 9):
        assert passed(kernel, trips=trips, tiles=1) == before + each * (trips - ahead)


def test_a_ring_of_two_needs_nothing_between_tiles_of_an_even_number_of_steps():
    """The last step of a tile read slot 1, and the next tile begins with slot 0."""
    even, odd = (place_barriers(SoftwarePipeline(2)(staged(trips, 2, "while"))) for trips in (12, 13))
    assert (barriers(even), barriers(odd)) == (2, 3)


def test_one_wave_waits_for_nobody_but_keeps_its_order():
    alone = place_barriers(replace(staged(), waves=(1, 1)))
    found = [op for op in walk(alone.body) if isinstance(op, Barrier)]
    assert found and {op.waves for op in found} == {1}


def test_the_judge_finds_a_missing_and_a_needless_barrier():
    kernel = staged()
    with pytest.raises(AssertionError, match="race"):
        check(kernel, [{"trips": 2, "tiles": 1}])
    first, *_ = (op for op in kernel.body.ops if op.name == "const")
    from tilewave.ir.rewrite import rewrite

    more = rewrite(place_barriers(kernel), lambda op: [Barrier(), op] if op == first else None)
    with pytest.raises(AssertionError, match="not needed"):
        check(more, [{"trips": 2, "tiles": 1}])
    assert races(Recorder(kernel, {"trips": 1, "tiles": 1}).events)


def test_the_passes_are_quick():
    kernel = staged(None, 2, "while")
    pipelined = SoftwarePipeline(3)(kernel)
    for call in (
        lambda: SoftwarePipeline(3)(kernel),
        lambda: place_barriers(pipelined),
        lambda: fold_trivial_loops(pipelined),
    ):
        seconds = []
        for _ in range(10):
            start = time.process_time()
            call()
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.02  # several times what a slow core takes


# -- remainders -------------------------------------------------------------------------------------------------------


def test_slots_of_one_step_differ_and_those_a_round_apart_are_the_same():
    here, ahead = Residue.of({"i": 1}, 0, 3), Residue.of({"i": 1}, 2, 3)
    assert here.differs(ahead)
    step_before = partial(Residue.of, {"i": 1}, -1)
    assert not here.replaced("i", step_before).differs(ahead)  # read one step ago is what is written now
    assert ahead.replaced("i", step_before).differs(ahead)


@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4), st.integers(2, 5))
def test_remainders_are_those_of_the_numbers(numbers, modulus):
    i, p, q, r = numbers
    kernel = parse(f"""
kernel @k {{workgroups = 1}} (%i: index) {{
  %p = const() {{value = {p}}} : index
  %q = const() {{value = {q}}} : index
  %r = const() {{value = {r}}} : index
  %n = const() {{value = {modulus * 2}}} : index
  %a = add(%i, %p) : index
  %b = mul(%a, %q) : index
  %c = sub(%r, %b) : index
  %d = mod(%c, %n) : index
  %e = mul(%r, %d) : index
}}
""")
    found = Residues(kernel).of(kernel.body.ops[-1].result, modulus)
    known = found.replaced("i", lambda n: Residue.of({}, i, n))
    assert known == Residue.of({}, r * ((r - (i + p) * q) % (modulus * 2)), modulus)


def test_a_remainder_by_another_number_says_nothing():
    kernel = parse("""
kernel @k {workgroups = 1} (%i: index) {
  %n = const() {value = 3} : index
  %d = mod(%i, %n) : index
}
""")
    assert Residues(kernel).of(kernel.body.ops[-1].result, 2) == Residue.of({"d": 1}, 0, 2)
