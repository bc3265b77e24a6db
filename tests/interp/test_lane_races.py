"""Races between waves: found in every order, with both lines; and never where there is none."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_texts import ORDERS, line_of, run_text, text_of
from sampled import examples

from tilewave.errors import InterpreterError
from tilewave.interp.lane_order import LaneOrder, lane_bits
from tilewave.interp.memory import Ledger, WaveAccess
from tilewave.interp.tile_run import TrackedMemory
from tilewave.interp.workgroup import argument_memory
from tilewave.ir.core import Value
from tilewave.ir.ops import Barrier
from tilewave.ir.types import F32, Memory

STAGED = """  %s = allocate() : memory<8x8xf32, shared>
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %s, [%t, %zero], []) ROW // {0}
{1}
  %y = load(%s, [%other, %zero], []) ROW : vector<8xf32> // {2}
"""
FINISHED = "  store(%y, %c, [%t, %zero], []) ROW\n"
IN_LOOP = """  %s = allocate() : memory<8x8xf32, shared>
  %none = const() {value = 0.0} : vector<8xf32>
  %sum = loop(%four, [%none]) : vector<8xf32> do (%i: index, %acc: vector<8xf32>) {
    %k = add(%zero, %i) : index
    %x = load(%a, [%t, %k], []) {steps = [[0, 1]], guard = [1]} : vector<8xf32>
    store(%x, %s, [%t, %zero], []) ROW // second
    barrier()
    %y = load(%s, [%other, %zero], []) ROW : vector<8xf32> // first
    %z = add(%acc, %y) : vector<8xf32>
MISSING
    yield([%z])
  }
  store(%sum, %c, [%t, %zero], []) ROW
"""
RACES = {
    "a read of what another wave writes": (
        STAGED.format("first", "MISSING", "second") + FINISHED,
        "wave {} reads s{}, which wave {} wrote with no barrier between",
        "the write",
    ),
    "a write to what another wave reads": (
        STAGED.format("before", "  barrier()", "first")
        + "MISSING\n  %z = add(%x, %x) : vector<8xf32>\n  store(%z, %s, [%t, %zero], []) ROW // second\n"
        + FINISHED,
        "wave {} writes s{}, which wave {} read with no barrier between",
        "the read",
    ),
    "two writes to one element": (
        STAGED.format("first", "MISSING", "after").replace(
            "  %y", "  store(%x, %s, [%other, %zero], []) ROW // second\n  barrier()\n  %y"
        )
        + FINISHED,
        "wave {} writes s{}, which wave {} wrote with no barrier between",
        "the write",
    ),
    "a write to what another wave still reads in the round before": (
        IN_LOOP,
        "wave {} writes s{}, which wave {} read with no barrier between",
        "the read",
    ),
    "a read by lanes masked out of it, of the first element": (
        """  %s = allocate() : memory<8x8xf32, shared>
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %s, [%t, %zero], []) ROW // first
MISSING
  %low = less(%lane, %one) : bool
  %y = load(%s, [%t, %zero], [%low]) ROW : vector<8xf32> // second
  store(%y, %c, [%t, %zero], []) ROW
""",
        "wave {} reads s{}, which wave {} wrote with no barrier between",
        "the write",
    ),
    "a read of global memory that another wave writes": (
        """  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %c, [%t, %zero], []) ROW // first
MISSING
  %y = load(%c, [%other, %zero], []) ROW : vector<8xf32> // second
""",
        "wave {} reads c{}, which wave {} wrote with no barrier between",
        "the write",
    ),
    "two writes to one element of global memory": (
        """  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %c, [%t, %zero], []) ROW // first
MISSING
  store(%x, %c, [%other, %zero], []) ROW // second
""",
        "wave {} writes c{}, which wave {} wrote with no barrier between",
        "the write",
    ),
}


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("case", RACES)
def test_a_race_is_found_with_both_lines(case, order, seed):
    body, what, noun = RACES[case]
    text = text_of(body.replace("MISSING", ""))
    with pytest.raises(InterpreterError) as raised:
        run_text(text, order, seed)
    told, where, remedy = str(raised.value).split("\n")
    pattern = re.escape(what).replace(r"\{\}", "{}").format("([01])", r"\[\d, \d\]", "([01])")
    assert (found := re.fullmatch(pattern, told)) and found[1] != found[2], told
    assert where == f"  k.ir:{line_of(text, 'second')}"
    barrier = "a barrier over global memory" if "global" in case else "a barrier"
    assert remedy == f"  {noun} is at k.ir:{line_of(text, 'first')}; {barrier} must be between them"


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("case", RACES)
def test_a_barrier_removes_it(case, order, seed):
    run_text(text_of(RACES[case][0].replace("MISSING", "  barrier() {over = global}")), order, seed)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("case", RACES)
def test_a_barrier_over_shared_memory_hands_no_global_memory_over(case, order, seed):
    text = text_of(RACES[case][0].replace("MISSING", "  barrier()"))
    if "global" not in case:
        run_text(text, order, seed)
        return
    with pytest.raises(InterpreterError, match="a barrier over global memory must be between them"):
        run_text(text, order, seed)


def test_the_whole_message_is():
    text = text_of(RACES["a read of what another wave writes"][0].replace("MISSING", ""))
    with pytest.raises(InterpreterError) as raised:
        run_text(text)
    assert str(raised.value) == (
        "wave 0 reads s[4, 0], which wave 1 wrote with no barrier between\n"
        "  k.ir:18\n"
        "  the write is at k.ir:16; a barrier must be between them"
    )


SAME_ELEMENT = """  %s = allocate() : memory<8xf32, shared>
  %f = cast(NUMBER) : f32
  %v = broadcast(%f) : vector<1xf32>
  store(%v, %s, [%zero], [%leads]) {steps = [[1]]} // first
  barrier()
  %y = load(%s, [%zero], []) {steps = [[1]]} : vector<1xf32>
  store(%y, %c, [%wave, %zero], []) {steps = [[0, 1]]}
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_waves_that_write_equal_values_do_not_race(order, seed):
    _, c = run_text(text_of(SAME_ELEMENT.replace("NUMBER", "%eight"), waves=4), order, seed)
    np.testing.assert_array_equal(c[:4, 0], 8)
    text = text_of(SAME_ELEMENT.replace("NUMBER", "%wave"), waves=4)
    with pytest.raises(InterpreterError, match=r"wave \d writes s\[0\], which wave \d wrote") as raised:
        run_text(text, order, seed)
    here = line_of(text, "first")
    assert raised.value.loc.line == here and f"the write is at k.ir:{here};" in raised.value.remedy


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_write_that_its_own_wave_covers_again_still_counts(order, seed):
    """Wave 0 writes 1 and then 2, wave 1 writes 2: the last bytes agree, but 1 may come last."""
    body = """  %s = allocate() : memory<1xf32, shared>
  %x = const() {value = 1.0} : vector<1xf32>
  %z = const() {value = 2.0} : vector<1xf32>
  role() {first = 0, last = 1} do () {
    store(%x, %s, [%zero], []) {steps = [[1]]} // first
  }
  store(%z, %s, [%zero], []) {steps = [[1]]} // second
  barrier()
  %y = load(%s, [%zero], []) {steps = [[1]]} : vector<1xf32>
"""
    text = text_of(body)
    with pytest.raises(InterpreterError, match="wave 1 writes s\\[0\\], which wave 0 wrote") as raised:
        run_text(text, order, seed)
    assert raised.value.loc.line == line_of(text, "second")
    assert f"the write is at k.ir:{line_of(text, 'first')};" in raised.value.remedy


def test_stamps_of_a_global_memory_are_gone_after_a_workgroup():
    memory = argument_memory(
        TrackedMemory(Value("c", Memory((4,), F32, "global")), np.zeros(4, np.float32), np.zeros(4)), 2
    )
    ledger, flat = Ledger(2), np.array([1, 3])
    memory.note_write(ledger, WaveAccess(Barrier(), 0, (0,), 1, "write"), flat, np.ones(2, np.float32))
    memory.note_read(ledger, WaveAccess(Barrier(), 0, (1,), 1, "read"), flat)
    assert all(table.any() for table in memory.tables.values()) and set(memory.tables) == {"writer", "readers"}
    memory.forget()
    assert not any(table.any() for table in memory.tables.values())


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_memory_that_nobody_wrote_is_not_read(order, seed):
    body = STAGED.format("first", "  barrier()", "second").replace("%s, [%t, %zero], []", "%s, [%t, %zero], [%leads]")
    text = text_of(body + FINISHED)
    with pytest.raises(InterpreterError, match=r"wave \d reads s\[[15], 0\], which was never written") as raised:
        run_text(text, order, seed)
    assert raised.value.loc.line == line_of(text, "second")


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_memory_written_too_late_is_a_race_only_where_no_barrier_orders_it(order, seed):
    body = """  %s = allocate() : memory<8x8xf32, shared>
  %y = load(%s, [%other, %zero], []) ROW : vector<8xf32> // first
MISSING
  store(%y, %s, [%t, %zero], []) ROW // second
"""
    text = text_of(body.replace("MISSING", "  barrier()"))
    with pytest.raises(InterpreterError, match=r"reads s\[[04], 0\], which was never written") as raised:
        run_text(text, order, seed)
    assert raised.value.loc.line == line_of(text, "first")
    with pytest.raises(InterpreterError, match=r"writes s\[\d, \d\], which wave \d read") as raised:
        run_text(text_of(body.replace("MISSING", "")), order, seed)
    assert raised.value.loc.line == line_of(text, "second")


def test_what_follows_from_unwritten_memory_does_not_hide_it():
    """Positions read from it are far out of bounds: the message names the cause."""
    body = """  %s = allocate() : memory<8xi64, shared>
  %y = load(%s, [%t], []) {steps = [[1]]} : vector<1xi64> // here
  %v = const() {value = 0.0} : vector<1xf32>
  barrier()
  store(%v, %c, [%eight, %zero], []) {steps = [[0, 1]]}
"""
    text = text_of(body)
    with pytest.raises(InterpreterError, match=r"wave 0 reads s\[0\], which was never written") as raised:
        run_text(text)
    assert raised.value.loc.line == line_of(text, "here")


def test_a_staging_that_nobody_reads_is_found():
    body = STAGED.format("here", "", "nothing")
    body = body[: body.index("  %y")] + "  store(%x, %c, [%t, %zero], []) ROW\n"
    text = text_of(body)
    with pytest.raises(InterpreterError) as raised:
        run_text(text)
    assert str(raised.value) == (
        "workgroup 0 writes s and never reads it\n"
        f"  k.ir:{line_of(text, 'here')}\n"
        "  leave the write out, or read what it stores"
    )


@pytest.mark.parametrize("rounds", ["zero", "four"])
def test_a_staging_for_a_loop_that_takes_no_round_is_no_mistake(rounds):
    """Only the sizes of a call say whether it does: what it would have read was not written for nothing."""
    body = STAGED.format("here", "  barrier()", "nothing")
    body = body[: body.index("  %y")] + (
        "  %none = const() {value = 0.0} : vector<8xf32>\n"
        f"  %y = loop(%{rounds}, [%none]) : vector<8xf32> do (%i: index, %acc: vector<8xf32>) {{\n"
        "    %z = load(%s, [%other, %zero], []) ROW : vector<8xf32>\n"
        "    yield([%z])\n"
        "  }\n"
    )
    run_text(text_of(body + FINISHED))


# -- against a judge that knows all pairs of accesses

SIZE, WAVES = 6, 3
NUMBERS = st.integers(0, SIZE - 1)
ACTS = st.tuples(st.sampled_from(["read", "write", "barrier"]), NUMBERS, NUMBERS, st.integers(0, 1), NUMBERS)
"""What is done, at (wave · p + q) % SIZE, with the value wave · r + v."""


@settings(max_examples=examples(60))
@given(st.lists(ACTS, max_size=8))
def test_a_race_is_found_exactly_where_there_is_one_in_every_order(acts):
    text = text_of(program(acts), waves=WAVES)
    for order, seed in ORDERS:
        if has_race(acts):
            with pytest.raises(InterpreterError, match="with no barrier between"):
                run_text(text, order, seed)
        else:
            run_text(text, order, seed)


def program(acts):
    """Write all, then act; a last read keeps the memory alive."""
    lines = [
        f"  %s = allocate() : memory<{SIZE}xf32, shared>",
        f"  %size = const() {{value = {SIZE}}} : index",
        f"  %start = const() {{value = -1.0}} : vector<{SIZE}xf32>",
        "  store(%start, %s, [%zero], []) {steps = [[1]]}",
        "  barrier()",
    ]
    for i, (act, p, q, r, v) in enumerate(acts):
        if act == "barrier":
            lines.append("  barrier()")
            continue
        for name, factor, plus in (("at", p, q), ("value", r, v)):
            lines += [
                f"  %{name}f{i} = const() {{value = {factor}}} : index",
                f"  %{name}p{i} = const() {{value = {plus}}} : index",
                f"  %{name}m{i} = mul(%wave, %{name}f{i}) : index",
                f"  %{name}s{i} = add(%{name}m{i}, %{name}p{i}) : index",
            ]
        lines.append(f"  %at{i} = mod(%ats{i}, %size) : index")
        if act == "read":
            lines.append(f"  %x{i} = load(%s, [%at{i}], []) {{steps = [[1]]}} : vector<1xf32>")
        else:
            lines.append(f"  %number{i} = cast(%values{i}) : f32")
            lines.append(f"  %x{i} = broadcast(%number{i}) : vector<1xf32>")
            lines.append(f"  store(%x{i}, %s, [%at{i}], []) {{steps = [[1]]}}")
    lines += ["  barrier()", "  %last = load(%s, [%zero], []) {steps = [[1]]} : vector<1xf32>"]
    return "\n".join(lines) + "\n"


def has_race(acts):
    """Between two barriers: a wave reads what another writes, or two write one element and not all writes agree."""
    touched = {}
    for act, p, q, r, v in [*acts, ("barrier", 0, 0, 0, 0)]:
        if act == "barrier":
            for reads, writes in touched.values():
                writers = {wave for wave, _ in writes}
                if any(writers - {reader} for reader in reads):
                    return True
                if len(writers) > 1 and len({value for _, value in writes}) > 1:
                    return True
            touched = {}
            continue
        for wave in range(WAVES):
            reads, writes = touched.setdefault((wave * p + q) % SIZE, (set(), set()))
            if act == "read":
                reads.add(wave)
            else:
                writes.add((wave, wave * r + v))
    return False


@pytest.mark.parametrize("lanes", [32, 64])
def test_what_every_lane_writes_each_lane_may_read(lanes):
    """An access at one address for all lanes counts as one of each lane, and of no other."""
    order, one, each = LaneOrder(4), np.array([2]), np.full((lanes, 1), 2)
    order.note_write(one, 0, lane_bits(one.reshape(1, 1), None, lanes))
    assert not np.any(order.note_read(each.reshape(-1), 0, lane_bits(each, None, lanes)))
    assert not np.any(order.note_write(one, 0, lane_bits(one.reshape(1, 1), None, lanes)))


def test_atomic_operations_of_lanes_are_ordered_with_other_accesses_alone():
    order, flat, first, second = LaneOrder(4), np.array([2]), np.array([1], np.uint64), np.array([2], np.uint64)
    assert not np.any(order.note_change(flat, 0, first)) and not np.any(order.note_change(flat, 0, second))
    assert [x.tolist() for x in order.note_read(flat, 0, first)] == [[False], [True]]
    assert [x.tolist() for x in order.note_change(flat, 0, second)] == [[False], [True]]
    assert [x.tolist() for x in order.note_write(flat, 0, second)] == [[False], [True], [True]]
    assert [x.tolist() for x in order.note_change(flat, 0, first)] == [[True], [False]]
    assert not np.any(order.note_change(flat, 1, first)), "a barrier later"
