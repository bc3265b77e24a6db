"""Asynchronous ops at the lane level: mbarriers, copies, roles, and waves that wait forever."""

import numpy as np
import pytest
from lane_texts import ORDERS, line_of, run_text, text_of

from tilewave.errors import InterpreterError
from tilewave.interp.clocks import NOTHING
from tilewave.interp.mbarriers import Mbarrier

RING = """  %two = const() {value = 2} : index
  %s = allocate() : memory<2x8xf32, shared>
  %full = make_mbarriers() {arrivals = 1} : mbarriers<2> // made
  %empty = make_mbarriers() {arrivals = 1} : mbarriers<2>
  barrier() // seen
  role() {first = 0, last = 1} do () {
    %made = loop(%eight, [%zero]) : index do (%i: index, %x: index) {
      %stage = mod(%i, %two) : index
      %round = floor_div(%i, %two) : index
      %next = add(%round, %one) : index
      %p = mod(%next, %two) : index
      wait_mbarrier(%empty, %stage, %p) // room
      arrive(%full, %stage) {expect = 32} // expects
      tma_load(%a, [%i, %zero], %s, [%stage], %full, %stage) {axes = [1]} // copy
      yield([%x])
    }
  }
  role() {first = 1, last = 2} do () {
    %used = loop(%eight, [%zero]) : index do (%j: index, %x1: index) {
      %stage1 = mod(%j, %two) : index
      %round1 = floor_div(%j, %two) : index
      %p1 = mod(%round1, %two) : index
      wait_mbarrier(%full, %stage1, %p1) // here
      %y = load(%s, [%stage1, %zero], []) ROW : vector<8xf32> // read
      store(%y, %c, [%j, %zero], []) ROW
      arrive(%empty, %stage1, [%y]) // free
      yield([%x1])
    }
  }
"""


def without(body, mark):
    """The text with a blank line in place of the one that is marked."""
    text = text_of(body)
    lines = text.split("\n")
    lines[line_of(text, mark) - 1] = ""
    return "\n".join(lines)


def error_of(text, order="in turn", seed=0):
    with pytest.raises(InterpreterError) as raised:
        run_text(text, order, seed)
    return str(raised.value)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_ring_of_two_stages_carries_all_rows(order, seed):
    a, c = run_text(text_of(RING), order, seed)
    np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_read_before_the_copy_has_arrived_is_found(order, seed):
    text = without(RING, "here")
    early = f"wave 1 reads s[0, 0] before the copy of wave 0 has arrived\n  k.ir:{line_of(text, 'read')}\n"
    if order == "backwards":  # wave 1 is done, and has said so, before anything is copied
        assert (
            error_of(text, order, seed)
            == f"wave 1 reads s[0, 0], which was never written\n  k.ir:{line_of(text, 'read')}"
        )
    else:
        assert error_of(text, order, seed) == (
            f"{early}  the copy is at k.ir:{line_of(text, 'copy')}; "
            "a wait_mbarrier of its mbarrier must be between them"
        )


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_an_await_of_the_other_phase_passes_too_early_or_never(order, seed):
    text = text_of(RING.replace("%p1 = mod(%round1,", "%q1 = add(%round1, %one) : index %p1 = mod(%q1,"))
    first = error_of(text, order, seed).split("\n")[0]
    assert first.startswith("wave 1 reads s[0, 0]") or first == "no wave of workgroup 0 can go on"


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_copy_into_a_stage_that_is_still_in_use_is_found(order, seed):
    text = text_of(RING.replace(", [%y]", ""))
    lines = text.split("\n")
    freed = lines.pop(line_of(text, "free") - 1)
    lines.insert(line_of(text, "read") - 1, freed)
    text = "\n".join(lines)
    read, copy = line_of(text, "read"), line_of(text, "copy")
    assert error_of(text, order, seed) in [
        told
        for stage in ("s[0, 0]", "s[1, 0]")
        for told in (
            f"the copy of wave 0 writes {stage}, which wave 1 may still load\n  k.ir:{copy}\n"
            f"  the load is at k.ir:{read}; an arrival that names what it loads must be between them",
            f"wave 1 reads {stage} before the copy of wave 0 has arrived\n  k.ir:{read}\n"
            f"  the copy is at k.ir:{copy}; a wait_mbarrier of its mbarrier must be between them",
        )
    ]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_stage_released_before_what_lanes_load_is_there_is_found(order, seed):
    text = text_of(RING.replace(", [%y]", ""))
    read, copy = line_of(text, "read"), line_of(text, "copy")
    assert error_of(text, order, seed) in [
        f"the copy of wave 0 writes s[{stage}, 0], which wave 1 may still load\n  k.ir:{copy}\n"
        f"  the load is at k.ir:{read}; an arrival that names what it loads must be between them"
        for stage in (0, 1)
    ]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_bytes_that_nobody_expects_are_found(order, seed):
    told = error_of(text_of(RING.replace("{expect = 32}", "")), order, seed)
    assert "before the copy of wave 0 has arrived" in told or "told to expect 0 bytes, and 32 came" in told


def test_bytes_that_never_come_are_waited_for():
    text = text_of(RING.replace("expect = 32", "expect = 36"))
    assert error_of(text) == (
        "no wave of workgroup 0 can go on\n"
        f"  k.ir:{line_of(text, 'room')}\n"
        f"  wave 0 waits at k.ir:{line_of(text, 'room')} for empty[0] to complete phase 0, "
        "which has 0 of 1 arrivals and 0 of 0 bytes\n"
        f"  wave 1 waits at k.ir:{line_of(text, 'here')} for full[0] to complete phase 0, "
        "which has 1 of 1 arrivals and 32 of 36 bytes"
    )


def test_an_arrival_too_many_is_found():
    text = text_of(
        """  %full = make_mbarriers() {arrivals = 1} : mbarriers<1>
  barrier()
  role() {first = 1, last = 2} do () {
    arrive(%full, %zero) {expect = 4}
    arrive(%full, %zero) // here
  }
"""
    )
    assert error_of(text) == (
        f"wave 1 arrives on full[0], whose phase already has all 1 arrivals\n  k.ir:{line_of(text, 'here')}"
    )


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_signals_are_seen_behind_a_barrier_only(order, seed):
    text = without(RING, "seen")
    assert error_of(text, order, seed) == (
        "wave 1 uses full[0], which wave 0 made with no barrier between\n"
        f"  k.ir:{line_of(text, 'here')}\n"
        f"  it is made at k.ir:{line_of(text, 'made')}; a barrier must be between them"
    )


def test_a_signal_outside_is_named():
    text = text_of(
        "  %full = make_mbarriers() {arrivals = 2} : mbarriers<2>\n  barrier()\n  arrive(%full, %four) // here\n"
    )
    assert error_of(text) == f"wave 0 wants full[4], outside mbarriers<2>\n  k.ir:{line_of(text, 'here')}"


PASSED_ON = """  %s = allocate() : memory<8xf32, shared>
  %done = make_mbarriers() {arrivals = 1} : mbarriers<1>
  barrier()
  role() {first = 0, last = 1} do () {
    %x = const() {value = 7.0} : vector<8xf32>
    store(%x, %s, [%zero], []) {steps = [[1]]} // first
    arrive(%done, %zero) // arrives
  }
  role() {first = 1, last = 2} do () {
    wait_mbarrier(%done, %zero, PARITY) // waits
    %y = load(%s, [%zero], []) {steps = [[1]]} : vector<8xf32> // second
    store(%y, %c, [%zero, %zero], []) ROW
  }
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_who_awaits_the_phase_sees_what_the_arriving_wave_did(order, seed):
    _, c = run_text(text_of(PASSED_ON.replace("PARITY", "%zero")), order, seed)
    np.testing.assert_array_equal(c[0], 7)


@pytest.mark.parametrize("order", ["in turn", "backwards"])
def test_the_wrong_parity_waits_for_ever_or_not_at_all(order):
    text = text_of(PASSED_ON.replace("PARITY", "%one"))
    early = (
        "wave 1 reads s[0], which wave 0 wrote with no barrier between\n"
        f"  k.ir:{line_of(text, 'second')}\n"
        f"  the write is at k.ir:{line_of(text, 'first')}; a barrier must be between them"
    )
    never = (
        "no wave of workgroup 0 can go on\n"
        f"  k.ir:{line_of(text, 'waits')}\n"
        "  wave 0 has ended\n"
        f"  wave 1 waits at k.ir:{line_of(text, 'waits')} for done[0] to complete phase 1, "
        "which has 0 of 1 arrivals and 0 of 0 bytes"
    )
    assert error_of(text, order) == {"in turn": never, "backwards": early}[order]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_what_a_wave_does_behind_its_arrival_is_not_seen(order, seed):
    store, arrive = PASSED_ON.split("\n")[5:7]
    text = text_of(PASSED_ON.replace(f"{store}\n{arrive}", f"{arrive}\n{store}").replace("PARITY", "%zero"))
    assert "wave 1 reads s[0], which wave 0 wrote with no barrier between" in error_of(text, order, seed)


JOINED = """  %s = allocate() : memory<8xf32, shared>
  %done = make_mbarriers() {arrivals = ARRIVALS} : mbarriers<1>
  barrier()
  role() {first = 0, last = 2} do () {
    %f = cast(VALUE) : f32
    %x = broadcast(%f) : vector<1xf32>
    store(%x, %s, [WHERE], []) {steps = [[1]]} // write
    role() {first = 0, last = ARRIVALS} do () {
      arrive(%done, %zero)
    }
  }
  role() {first = 2, last = 3} do () {
    wait_mbarrier(%done, %zero, %zero)
    %y = load(%s, [%zero], []) {steps = [[1]]} : vector<COUNTxf32> // read
    store(%y, %c, [%zero, %zero], []) ROW
  }
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_phase_ends_when_all_have_come_and_tells_of_all(order, seed):
    body = JOINED.replace("ARRIVALS", "2").replace("VALUE", "%wave").replace("WHERE", "%wave").replace("COUNT", "2")
    _, c = run_text(text_of(body, waves=3), order, seed)
    np.testing.assert_array_equal(c[0, :2], [0, 1])


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_reader_must_know_of_every_wave_that_wrote_the_same(order, seed):
    body = JOINED.replace("ARRIVALS", "1").replace("VALUE", "%eight").replace("WHERE", "%zero").replace("COUNT", "1")
    text = text_of(body, waves=3)
    assert error_of(text, order, seed) == (
        f"wave 2 reads s[0], which wave 1 wrote with no barrier between\n  k.ir:{line_of(text, 'read')}\n"
        f"  the write is at k.ir:{line_of(text, 'write')}; a barrier must be between them"
    )


def test_more_bytes_than_expected_are_noticed_when_all_have_come():
    mbarrier = Mbarrier(needed=1)
    mbarrier.land(3, 32)
    assert not mbarrier.is_overfull and mbarrier.phase == 0
    mbarrier.arrive(NOTHING, 16)
    assert mbarrier.is_overfull and mbarrier.phase == 0


# -- copies in and out at the edge, and the memory they read

THROUGH = """  %s = allocate() : memory<8x8xf32, shared>
  %full = make_mbarriers() {arrivals = 1} : mbarriers<1>
  barrier()
  %minus = sub(%zero, %four) : index
  role() {first = 0, last = 1} do () {
    arrive(%full, %zero) {expect = 256}
    tma_load(%a, [%four, %minus], %s, [], %full, %zero) {axes = [1, 0]}
    wait_mbarrier(%full, %zero, %zero)
    tma_store(%s, [], %c, [%minus, %four]) {axes = [0, 1]} // copy
    wait_tma_stores() {pending = 0} // here
    %x = const() {value = 7.0} : vector<1xf32>
    store(%x, %s, [%lane, %zero], []) {steps = [[0, 1]]} // write
  }
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_box_is_zero_outside_and_nothing_is_copied_out_there(order, seed):
    a, c = run_text(text_of(THROUGH), order, seed)
    box = np.zeros((8, 8), np.float32)
    box[4:, :4] = a[4:, :4].T
    np.testing.assert_array_equal(c[:4, 4:], box[4:, :4])
    assert np.isnan(c[4:]).all() and np.isnan(c[:, :4]).all()


def test_a_box_that_begins_off_the_grain_is_found():
    """TMA faults there, on the GPU only."""
    text = text_of(THROUGH.replace("tma_load(%a, [%four, %minus]", "tma_load(%a, [%four, %one]"))
    with pytest.raises(InterpreterError, match=r"copies from a\[4, 1\], not a multiple of 16 bytes"):
        run_text(text, "in turn", 0)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_write_to_what_a_copy_out_still_reads_is_found(order, seed):
    text = without(THROUGH, "here")
    assert error_of(text, order, seed) == (
        "wave 0 writes s[0, 0], which the copy of wave 0 read with no wait between\n"
        f"  k.ir:{line_of(text, 'write')}\n"
        f"  the copy is at k.ir:{line_of(text, 'copy')}; a wait must be between them"
    )


TWO_COPIES = """  %s = allocate() : memory<2x8xf32, shared>
  role() {first = 1, last = 2} do () {
    %x = const() {value = 7.0} : vector<2x8xf32>
    store(%x, %s, [%zero, %zero], []) {steps = [[1, 0], [0, 1]]}
    barrier() {waves = 1}
    tma_store(%s, [%zero], %c, [%zero, %zero]) {axes = [1]}
    tma_store(%s, [%one], %c, [%one, %zero]) {axes = [1]} // copy
    wait_tma_stores() {pending = 1}
    %y = const() {value = 8.0} : vector<8xf32>
    store(%y, %s, [STAGE, %zero], []) ROW // write
    wait_tma_stores() {pending = 0}
  }
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_copies_out_are_awaited_in_their_order(order, seed):
    _, c = run_text(text_of(TWO_COPIES.replace("STAGE", "%zero")), order, seed)
    np.testing.assert_array_equal(c[:2], 7)
    text = text_of(TWO_COPIES.replace("STAGE", "%one"))
    assert error_of(text, order, seed).startswith(
        "wave 1 writes s[1, 0], which the copy of wave 1 read with no wait between\n"
        f"  k.ir:{line_of(text, 'write')}\n  the copy is at k.ir:{line_of(text, 'copy')};"
    )


THREE_COPIES = """  %s = allocate() : memory<3x8xf32, shared>
  %two = const() {value = 2} : index
  role() {first = 1, last = 2} do () {
    %x = const() {value = 7.0} : vector<3x8xf32>
    store(%x, %s, [%zero, %zero], []) {steps = [[1, 0], [0, 1]]}
    barrier() {waves = 1}
    tma_store(%s, [%zero], %c, [%zero, %zero]) {axes = [1], more = true} // one
    tma_store(%s, [%one], %c, [%one, %zero]) {axes = [1]} // two
    tma_store(%s, [%two], %c, [%two, %zero]) {axes = [1], more = true} // three
    wait_tma_stores() {pending = PENDING}
    %y = const() {value = 8.0} : vector<8xf32>
    store(%y, %s, [STAGE, %zero], []) ROW // write
    tma_store(%s, [%two], %c, [%four, %zero]) {axes = [1]}
    wait_tma_stores() {pending = 0}
  }
"""


def three(pending, stage):
    return text_of(THREE_COPIES.replace("PENDING", str(pending)).replace("STAGE", stage))


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_copies_that_go_together_are_awaited_as_one(order, seed):
    for stage in ("%zero", "%one"):
        _, c = run_text(three(0, stage), order, seed)
        np.testing.assert_array_equal(c[:2], 7)
    for stage, mark in (("%zero", "one"), ("%one", "two")):
        text = three(1, stage)  # the two of them are the one that may be left
        assert f"the copy is at k.ir:{line_of(text, mark)}" in error_of(text, order, seed)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_copy_that_more_are_to_go_with_is_not_awaited_without_them(order, seed):
    text = three(0, "%two")
    assert f"the copy is at k.ir:{line_of(text, 'three')}" in error_of(text, order, seed)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_copy_out_of_what_another_wave_writes_is_found(order, seed):
    body = """  %s = allocate() : memory<8x8xf32, shared>
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %s, [%t, %zero], []) ROW // write
  barrier() {waves = 1}
  barrier() // here
  role() {first = 0, last = 1} do () {
    tma_store(%s, [], %c, [%zero, %zero]) {axes = [0, 1]} // copy
    wait_tma_stores() {pending = 0}
  }
"""
    a, c = run_text(text_of(body), order, seed)
    np.testing.assert_array_equal(c, a)
    text = without(body, "here")
    told = error_of(text, order, seed)
    assert "s[4, 0]" in told and "wave 1" in told and "the copy of wave 0" in told
    assert f"k.ir:{line_of(text, 'write')}" in told and f"k.ir:{line_of(text, 'copy')}" in told


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_write_of_the_very_bytes_that_a_copy_brings_is_a_race(order, seed):
    body = """  %s = allocate() : memory<1xf32, shared>
  %full = make_mbarriers() {arrivals = 1} : mbarriers<1>
  barrier()
  role() {first = 0, last = 1} do () {
    tma_load(%a, [%zero, %zero], %s, [], %full, %zero) {axes = [1]} // copy
  }
  role() {first = 1, last = 2} do () {
    %x = const() {value = VALUE} : vector<1xf32>
    store(%x, %s, [%zero], []) {steps = [[1]]} // write
    %y = load(%s, [%zero], []) {steps = [[1]]} : vector<1xf32>
  }
"""
    for value in ("0.0", "nan"):  # the copied value, and the value before it arrives
        told = error_of(text_of(body.replace("VALUE", value)), order, seed)
        assert told.startswith(
            ("wave 1 writes s[0], which the copy of wave 0", "the copy of wave 0 writes s[0], which")
        )


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_what_a_copy_out_writes_cannot_be_read_in_the_same_kernel(order, seed):
    body = TWO_COPIES.replace("STAGE", "%zero").replace("// write\n", "// write\n    %z = READ // read\n")
    text = text_of(body.replace("READ", "load(%c, [%zero, %zero], []) ROW : vector<8xf32>"))
    assert error_of(text, order, seed).startswith(
        f"wave 1 reads c[0, 0] before the copy of wave 1 has arrived\n  k.ir:{line_of(text, 'read')}\n"
        f"  the copy is at k.ir:{line_of(text, 'copy') - 1}; no wait covers it"
    )


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_wave_that_ends_before_its_copies_out_is_found(order, seed):
    text = text_of(TWO_COPIES.replace("STAGE", "%zero").replace("wait_tma_stores() {pending = 0}", ""))
    assert error_of(text, order, seed) == (
        f"wave 1 ends while its TMA store may still read shared memory\n  k.ir:{line_of(text, 'copy')}\n"
        "  a wait_tma_stores must be between the store and the end"
    )


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_workgroup_that_ends_before_a_copy_has_arrived_is_found(order, seed):
    body = """  %s = allocate() : memory<8xf32, shared>
  %full = make_mbarriers() {arrivals = 1} : mbarriers<1>
  barrier()
  role() {first = 0, last = 1} do () {
    arrive(%full, %zero) {expect = 32}
    tma_load(%a, [%zero, %zero], %s, [], %full, %zero) {axes = [1]} // copy
  }
  role() {first = 1, last = 2} do () {
    wait_mbarrier(%full, %zero, %zero) // here
    %y = load(%s, [%zero], []) {steps = [[1]]} : vector<8xf32>
    store(%y, %c, [%zero, %zero], []) ROW
  }
"""
    a, c = run_text(text_of(body), order, seed)
    np.testing.assert_array_equal(c[0], a[0])
    gone = body.replace("    %y", "//").replace("    store", "//").replace("    wait_mbarrier", "//")
    text = text_of(gone)
    assert error_of(text, order, seed) == (
        "workgroup 0 may have ended when the copy of wave 0 arrives in its shared memory\n"
        f"  k.ir:{line_of(text, 'copy')}\n  a wait_mbarrier of its mbarrier must be after it"
    )


LANES_OF_A_WAVE = """  %s = allocate() : memory<32xf32, shared>
  role() {first = 0, last = 1} do () {
    %i = lane() : index
    %three = sub(%four, %one) : index
    %j = sub(%three, %i) : index
    %x = load(%a, [%zero, %i], []) {steps = [[0, 1]]} : vector<1xf32>
    store(%x, %s, [%i], []) {steps = [[1]]} // first
    barrier() {waves = 1} // stored
    %y = load(%s, [%j], []) {steps = [[1]]} : vector<1xf32> // other
    barrier() {waves = 1} // loaded
    store(%y, %s, [%i], []) {steps = [[1]]} // second
    %z = load(%s, [%i], []) {steps = [[1]]} : vector<1xf32>
    store(%z, %c, [%zero, %i], []) {steps = [[0, 1]]}
  }
"""


@pytest.mark.parametrize(
    ("mark", "later", "told"),
    [
        ("stored", "other", "reads s[{}], which another lane of it wrote with no barrier between"),
        ("loaded", "second", "writes s[{}], which another lane of it read with no barrier between"),
    ],
)
def test_lanes_of_one_wave_meet_between_the_accesses_of_two_lanes(mark, later, told):
    _, c = run_text(text_of(LANES_OF_A_WAVE))
    assert not np.isnan(c[0, :4]).any()
    text = without(LANES_OF_A_WAVE, mark)
    first = error_of(text).split("\n")
    assert first[0] in [f"wave 0 {told.format(at)}" for at in range(4)]
    assert first[1] == f"  k.ir:{line_of(text, later)}"
    assert first[2].endswith("a barrier, of one wave at least, must be between them")


def test_a_box_behind_an_index_outside_is_named():
    text = text_of(TWO_COPIES.replace("tma_store(%s, [%one]", "tma_store(%s, [%four]").replace("STAGE", "%zero"))
    assert error_of(text) == f"wave 1 copies s[4], which is outside the memory\n  k.ir:{line_of(text, 'copy')}"


# -- waiting for ever


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_barrier_that_only_some_waves_reach_is_a_deadlock(order, seed):
    text = text_of("  role() {first = 1, last = 4} do () {\n    barrier() // here\n  }\n", waves=5)
    here = line_of(text, "here")
    assert error_of(text, order, seed) == (
        "no wave of workgroup 0 can go on\n"
        f"  k.ir:{here}\n"
        "  wave 0 has ended\n"
        f"  waves 1 to 3 wait at the barrier of k.ir:{here}\n"
        "  wave 4 has ended"
    )


def test_waves_at_two_barriers_do_not_meet():
    text = text_of("""  role() {first = 0, last = 1} do () {
    barrier() // here
  }
  role() {first = 1, last = 2} do () {
    barrier() // there
  }
""")
    assert error_of(text).split("\n")[2:] == [
        f"  wave 0 waits at the barrier of k.ir:{line_of(text, 'here')}",
        f"  wave 1 waits at the barrier of k.ir:{line_of(text, 'there')}",
    ]


def test_only_the_waves_of_a_role_run_it():
    body = """  role() {first = 1, last = 3} do () {
    %x = load(%a, [%wave, %zero], []) ROW : vector<8xf32>
    store(%x, %c, [%wave, %zero], []) ROW
  }
"""
    a, c = run_text(text_of(body, waves=4))
    np.testing.assert_array_equal(c[1:3], a[1:3])
    assert np.isnan(c[[0, *range(3, 8)]]).all()
