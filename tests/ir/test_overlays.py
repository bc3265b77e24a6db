"""Memories in the bytes of others: what is written to one is lost to the other, and waves that touch both must meet."""

import numpy as np
import pytest
from lane_texts import ORDERS, run_text, text_of

from tilewave.errors import InterpreterError
from tilewave.interp.memory import Race
from tilewave.interp.tiles import interpret
from tilewave.ir.overlays import NONE, meeting
from tilewave.ir.parse import parse
from tilewave.ir.types import F16, F32, Memory, Padded, Swizzled
from tilewave.ir.verify import VerifyError, verify


def test_an_element_meets_those_in_its_bytes():
    wide, narrow = Memory((2, 2), F32, "shared"), Memory((2, 4), F16, "shared")
    assert meeting(wide, narrow)[3].tolist() == [6, 6, 7, 7]
    assert meeting(narrow, wide)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_element_meets_nobody_in_bytes_that_are_not_used():
    padded, plain = Memory((2, 2), F16, "shared", Padded(2)), Memory((2, 4), F16, "shared")
    assert meeting(plain, padded)[:, 0].tolist() == [0, 1, NONE, NONE, 2, 3, NONE, NONE]


def test_an_element_meets_those_that_changed_places():
    swizzled, plain = Memory((2, 4), F16, "shared", Swizzled(2, 2, 1)), Memory((2, 4), F16, "shared")
    assert meeting(plain, swizzled)[:, 0].tolist() == [0, 1, 2, 3, 6, 7, 4, 5]


EXCHANGE = """  %s = allocate() : memory<8x8xf32, shared>
  %over = overlay(%s) : memory<8x8xf32, shared>
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %s, [%t, %zero], []) ROW
  barrier()
  %y = load(%s, [%other, %zero], []) ROW : vector<8xf32>
BETWEEN
  %z = add(%y, %y) : vector<8xf32>
  store(%z, %over, [%t, %zero], []) ROW
  barrier() {waves = 1}
  %back = load(%READ, [%t, %zero], []) ROW : vector<8xf32>
  store(%back, %c, [%t, %zero], []) ROW
"""


def exchange(between, read):
    return text_of(EXCHANGE.replace("BETWEEN", between).replace("READ", read))


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_write_over_what_another_wave_reads_is_a_race(order, seed):
    with pytest.raises(Race, match=r"wave \d writes s\[\d, 0\], which wave \d read with no barrier between"):
        run_text(exchange("", "over"), order, seed)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_behind_a_barrier_the_bytes_are_free(order, seed):
    a, c = run_text(exchange("  barrier()", "over"), order, seed)
    np.testing.assert_array_equal(c, 2 * np.roll(a, 4, axis=0))


def test_what_lies_below_is_lost():
    _, c = run_text(exchange("  barrier()", "s"))
    assert np.isnan(c).all()


def test_an_overlay_is_no_longer_than_what_it_lies_over():
    text = text_of("  %s = allocate() : memory<8x8xf16, shared>\n  %over = overlay(%s) : memory<8x8xf32, shared>\n")
    with pytest.raises(VerifyError, match="memory<8x8xf32, shared> is longer than memory<8x8xf16, shared>"):
        verify(parse(text))


def test_an_overlay_lies_in_shared_memory():
    with pytest.raises(VerifyError, match="lays a shared memory over another"):
        verify(parse(text_of("  %over = overlay(%a) : memory<8x8xf32, shared>\n")))


THROUGH = """
kernel @k {workgroups = 1, waves = [2, 2], lanes = 64} (%c: memory<4x4xf32, global>, %d: memory<4x4xf32, global>) {
  %s = allocate() : memory<4x4xf32, shared>
  %over = overlay(%s) : memory<4x2x2xf32, shared>
  %o = const() {value = 0} : index
  %x = const() {value = 1.0} : tile<4x4xf32>
  write(%x, %s, [%o, %o]) {axes = [0, 1]}
  write_through(%x, %c, [%o, %o], %over) {axes = [0, 1]}
  %y = read(%s, [%o, %o]) {axes = [0, 1]} : tile<4x4xf32>
  write(%y, %d, [%o, %o]) {axes = [0, 1]}
}
"""


def test_whole_tiles_are_lost_too():
    with pytest.raises(InterpreterError, match=r"reads s\[0, 0\], which was never written"):
        interpret(verify(parse(THROUGH)), [np.zeros((4, 4), np.float32) for _ in range(2)], {})
