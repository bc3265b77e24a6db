"""Barriers that order shared memory, and those that order what an earlier iteration of a loop stored."""

import pytest
from lane_texts import text_of

from tilewave.analysis.barriers import Handovers
from tilewave.ir.ops import Barrier
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify

STORE = "store(%x, %s, [%t], []) {steps = [[1]]}"
LOOP, INNER, END = "loop(%four, []) do (%i: index) {", "loop(%four, []) do (%j: index) {", "yield([])\n}"
WHILE = (
    "%n = while([%zero]) : index do (%y: index) {\n%more = less(%y, %four) : bool\nyield([%more])\n} do (%z: index) {"
)
NEXT = "%next = add(%z, %one) : index\nyield([%next])\n}"


def handed_over(*ops):
    """Return for every barrier in turn "" where it orders nothing, or the line of the store that it orders."""
    shared = ["%s = allocate() : memory<8xf32, shared>", "%x = const() {value = 1.0} : vector<1xf32>"]
    kernel = verify(parse(text_of("\n".join([*shared, *ops]) + "\n")))
    found = Handovers(kernel)
    barriers = [op for op in walk(kernel.body) if isinstance(op, Barrier)]
    assert all(op in found for op in barriers if found.around_a_loop(op))
    return ["around" if found.around_a_loop(op) else "ahead" if op in found else "" for op in barriers]


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((STORE, "barrier()", "barrier()"), ["ahead", ""]),
        ((STORE, "barrier() {waves = 1}", "barrier()"), ["", "ahead"]),
        ((LOOP, STORE, "barrier()", END, "barrier()"), ["ahead", ""]),
        ((LOOP, "barrier()", STORE, END, "barrier()"), ["around", "ahead"]),
        ((STORE, LOOP, "barrier()", END, "barrier()"), ["ahead", "ahead"]),
        ((STORE, LOOP, "barrier()", "barrier()", STORE, END, "barrier()"), ["around", "", "ahead"]),
        ((LOOP, STORE, END, "barrier()"), ["around"]),
        ((LOOP, INNER, STORE, "barrier()", END, "barrier()", STORE, END), ["around", "around"]),
        ((LOOP, "barrier()", INNER, "barrier()", STORE, END, END), ["around", "around"]),
        ((WHILE, "barrier()", STORE, NEXT, "barrier()"), ["around", "around"]),
        ((WHILE, STORE, "barrier()", NEXT, "barrier()"), ["ahead", ""]),
    ],
)
def test_a_barrier_hands_over_what_was_stored_since_the_one_before(ops, expected):
    assert handed_over(*ops) == expected
