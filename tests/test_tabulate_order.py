"""The order of tiles as lists: they say what the arithmetic gave, for every workgroup and turn."""

import re

import numpy as np
import pytest
from kernels import check_product, gemm, poisoned, sizes
from test_lanes import operands
from test_split_last_round import lanes_of, split, tiles_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.ir.interp import interpret
from tilewave.ir.lane_interp import interpret_lanes
from tilewave.ir.ops import FloorDiv, Lookup, Mod, Read, Write
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.schedule import checked_schedule
from tilewave.ir.verify import VerifyError, verify
from tilewave.ir.visits import visits
from tilewave.passes.make_persistent import MakePersistent
from tilewave.passes.runner import run
from tilewave.passes.simplify import simplify
from tilewave.passes.tabulate_order import tabulate_order

GROUPED = (WorkgroupMapping("grouped(3)"),)
"""Four rows of tiles: a group of three, and one of a single row, so that the arithmetic divides by what varies."""
SHAPE = (256, 192, 80)


def rounds(workgroups, kind):
    tiles = tiles_of(SHAPE, kernel=gemm(constraints=GROUPED))
    return split(tiles, workgroups) if kind == "split" else run(tiles, [MakePersistent(workgroups), simplify])[0]


def where(kernel):
    """Every read and write: who, where, in order."""
    return [
        (v.op.memory.name, v.workgroups.tolist(), [x.tolist() for x in v.at]) for v in visits(kernel, {}, (Read, Write))
    ]


@pytest.mark.parametrize("kind", ["split", "whole"])
@pytest.mark.parametrize("workgroups", [5, 7, 8])
def test_lists_say_what_the_arithmetic_gave(workgroups, kind):
    before = rounds(workgroups, kind)
    after, _ = run(before, [tabulate_order, simplify])
    lists = [op.numbers for op in walk(after.body) if isinstance(op, Lookup)]
    assert len(lists) == 2  # rows and columns
    assert where(after) == where(before)
    assert checked_schedule(after, {}) == checked_schedule(before, {})
    assert parse(str(after)) == after


def test_no_division_is_left_in_the_loop():
    after, _ = run(rounds(5, "whole"), [tabulate_order, simplify])
    (loop,) = (op for op in after.body.ops if op.blocks)
    assert not any(isinstance(op, (FloorDiv, Mod)) for op in walk(loop.body))


@pytest.mark.parametrize("order", ["in turn", "random"])
def test_lanes_find_their_tiles(order):
    kernel = lanes_of(tiles_of(SHAPE, kernel=gemm(constraints=GROUPED)), 5)
    assert any(isinstance(op, Lookup) for op in walk(kernel.body))
    a, b = operands(SHAPE)
    c = poisoned(SHAPE[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, order)
    check_product(c, a, b)


def test_a_kernel_without_rounds_stays():
    kernel = tiles_of(SHAPE)
    assert tabulate_order(kernel) is kernel


def test_long_lists_are_not_made(monkeypatch):
    monkeypatch.setattr("tilewave.passes.tabulate_order.MOST_PLACES", 14)
    kernel = rounds(5, "whole")
    assert tabulate_order(kernel) is kernel


def test_the_pass_has_nothing_left_to_do_the_second_time():
    once, _ = run(rounds(5, "whole"), [tabulate_order, simplify])
    assert tabulate_order(once) == once


LOOKUP = """
kernel @k {workgroups = 3} (%a: memory<9xf32, global>) {
  %w = workgroup() : index
  %p = lookup(PLACE) {numbers = NUMBERS} : index
  %x = const() {value = 1.0} : tile<1xf32>
  write(%x, %a, [%p]) {axes = [0]}
}
"""


def looking(place="%w", numbers="[8, 0, 4]"):
    return verify(parse(LOOKUP.replace("PLACE", place).replace("NUMBERS", numbers)))


def test_a_list_is_read_at_its_place():
    a = np.zeros(9, np.float32)
    interpret(looking(), [a], {})
    assert np.flatnonzero(a).tolist() == [0, 4, 8]


def test_a_place_outside_the_list_is_found():
    with pytest.raises(InterpreterError, match="looks up place 2 of 2 numbers"):
        interpret(looking(numbers="[8, 0]"), [np.zeros(9, np.float32)], {})


def test_an_empty_list_is_refused():
    with pytest.raises(VerifyError, match="takes a place in a list"):
        looking(numbers="[]")


def test_lists_stand_in_the_code_once_for_both_roles():
    subs = sizes(4864, 4096, 4160, 128, 256, 64)
    mapped = gemm(out=f16, epilogue=lambda x: cast(x, f16), constraints=(WorkgroupMapping("grouped(12)"),))
    asm = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), mapped).asm
    assert len(re.findall(r"\.b8 gemm\S*numbers\S*\[3168\]", asm)) == 2  # six turns, 132 workgroups, 4 bytes
    assert "div." not in asm
