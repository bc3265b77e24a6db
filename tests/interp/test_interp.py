"""What the interpreter finds that a GPU would hide, with its exact text; and the state after a failed run."""

import numpy as np
import pytest

from tilewave.errors import EndlessLoop, InterpreterError
from tilewave.interp.arithmetic import MEANING, elementwise
from tilewave.interp.tiles import MEANINGS, interpret
from tilewave.ir.launch import MEANINGS as ON_THE_HOST
from tilewave.ir.ops import LEVELS, Bitcast, Cast, Elementwise, Launch, Yield
from tilewave.ir.ops.launch import LaunchOnly
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify

HEAD = "kernel @k {workgroups = 2} (%a: memory<8x8xf32, global>, %c: memory<8x8xf32, global>) {\n"
START = """  %w = workgroup() : index
  %zero = const() {value = 0} : index
  %four = const() {value = 4} : index
  %row = mul(%w, %four) : index
"""


def run(body, order=None):
    kernel = verify(parse(HEAD + START + body + "}\n", "k.ir"))
    a, c = np.arange(64, dtype=np.float32).reshape(8, 8), np.full((8, 8), np.nan, np.float32)
    before = a.copy(), c.copy()
    try:
        interpret(kernel, [a, c], {}, order)
    except (InterpreterError, EndlessLoop):
        for now, then in zip((a, c), before, strict=True):
            np.testing.assert_array_equal(now, then, "a failed run changed an array")
        raise
    return a, c


FINDINGS = {
    "two workgroups write one element": (
        """  %x = read(%a, [%zero, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%zero, %zero]) {axes = [0, 1]}
""",
        "workgroup 1 writes c[0, 0], which workgroup 0 wrote: the order decides the result\n  k.ir:7",
    ),
    "a workgroup reads what another wrote": (
        """  %x = read(%c, [%zero, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
""",
        "workgroup 1 reads c[0, 0], which workgroup 0 wrote: the order decides the result\n  k.ir:6",
    ),
    "a workgroup writes what another read": (
        """  %three = const() {value = 3} : index
  %seven = sub(%three, %w) : index
  %last = mul(%seven, %four) : index
  %r = mod(%last, %four) : index
  %x = read(%c, [%four, %r]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
""",
        "workgroup 1 writes c[4, 0], which another workgroup reads: the order decides the result\n  k.ir:11",
    ),
    "a write outside a buffer": (
        """  %x = read(%a, [%row, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  %far = add(%row, %four) : index
  write(%x, %c, [%far, %zero]) {axes = [0, 1]}
""",
        "workgroup 1 touches c[8, 0], all of it outside memory<8x8xf32, global>\n  k.ir:8",
    ),
    "a read outside a workgroup's own memory": (
        """  %s = allocate() : memory<4x8xf32, shared>
  %x = read(%s, [%four, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
""",
        "workgroup 0 touches s[4, 0], all of it outside memory<4x8xf32, shared>\n  k.ir:7",
    ),
    "a read of memory nobody wrote": (
        """  %s = allocate() : memory<4x8xf32, shared>
  %x = read(%a, [%row, %zero]) {axes = [0, 1]} : tile<4x4xf32>
  write(%x, %s, [%zero, %zero]) {axes = [0, 1]}
  %y = read(%s, [%zero, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  write(%y, %c, [%row, %zero]) {axes = [0, 1]}
""",
        "workgroup 0 reads s[0, 4], which was never written\n  k.ir:9",
    ),
    "a tile that stores twice in one place": (
        """  %x = read(%a, [%row, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  scatter(%x, %c) do (%i: index, %j: index) {
    %r = add(%i, %row) : index
    %j2 = floor_div(%j, %four) : index
    yield([%r, %j2])
  }
""",
        "workgroup 0 stores two elements of one tile at c[0, 0]\n  k.ir:7",
    ),
    "an index that overflows": (
        """  %big = const() {value = 4611686018427387904} : index
  %x = add(%big, %big) : index
""",
        "add: 9223372036854775808 does not fit into index\n  k.ir:7",
    ),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_it_finds(case):
    body, text = FINDINGS[case]
    with pytest.raises(InterpreterError) as raised:
        run(body)
    assert str(raised.value) == text


def test_an_order_of_workgroups_can_be_given():
    body = FINDINGS["two workgroups write one element"][0]
    with pytest.raises(InterpreterError, match="workgroup 0 writes c\\[0, 0\\], which workgroup 1 wrote"):
        run(body, order=[1, 0])


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr("tilewave.interp.tiles.MOST_ROUNDS", 1000)
    with pytest.raises(EndlessLoop, match="workgroup 0 ran 1,000 iterations and is not done"):
        run("""  %n = while([%zero]) : index do (%i: index) {
    %yes = less(%i, %four) : bool
    yield([%yes])
  } do (%j: index) {
    yield([%zero])
  }
""")


def test_a_workgroup_may_read_and_rewrite_its_own_tile():
    _, c = run("""  %x = read(%a, [%row, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
  %y = read(%c, [%row, %zero]) {axes = [0, 1]} : tile<4x8xf32>
  %z = add(%y, %y) : tile<4x8xf32>
  write(%z, %c, [%row, %zero]) {axes = [0, 1]}
""")
    np.testing.assert_array_equal(c, 2 * np.arange(64).reshape(8, 8))


def test_a_tile_over_the_edge_reads_zeros_and_writes_nothing_there():
    a, c = run("""  %six = const() {value = 6} : index
  %x = read(%a, [%row, %six]) {axes = [0, 1]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
""")
    np.testing.assert_array_equal(c[:, :2], a[:, 6:])
    assert (c[:, 2:] == 0).all()


def test_every_elementwise_op_has_a_meaning():
    words = {cls for level in LEVELS.values() for cls in level if issubclass(cls, Elementwise) and not cls.reads}
    assert {cls for cls in words if not issubclass(cls, LaunchOnly)} - {Cast, Bitcast} == set(MEANING)
    assert {cls for cls in words if issubclass(cls, LaunchOnly)} <= set(ON_THE_HOST)


def test_a_read_can_turn_a_tile():
    a, c = run("""  %x = read(%a, [%zero, %row]) {axes = [1, 0]} : tile<4x8xf32>
  write(%x, %c, [%row, %zero]) {axes = [0, 1]}
""")
    np.testing.assert_array_equal(c, a.T)


@pytest.mark.parametrize("name", ["mod", "floor_div"])
def test_integers_are_divided_as_python_does(name):
    kernel = parse(f"kernel @k {{workgroups = 1}} (%a: index, %b: index) {{ %x = {name}(%a, %b) : index }}")
    python = {"mod": lambda a, b: a % b, "floor_div": lambda a, b: a // b}[name]
    for a in range(-7, 8):
        for b in (-3, -2, 2, 3):
            assert elementwise(kernel.body.ops[0], [a, b]) == python(a, b)
            assert elementwise(kernel.body.ops[0], [np.array([a]), b])[0] == python(a, b)


def test_every_op_of_the_tile_level_is_interpreted():
    """Each op has a row in the table, or is elementwise, or closes a block; `bind` does away with launches."""
    named = {cls for cls in LEVELS["tile"] if cls.reads or not issubclass(cls, (Elementwise, Launch))}
    assert named == set(MEANINGS) - {Elementwise} | {Yield}
