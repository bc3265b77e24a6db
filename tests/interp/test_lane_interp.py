"""What one wave computes and touches at the lane level, against Python and float64."""

import numpy as np
import pytest
from lane_texts import ORDERS, line_of, run_text, text_of

from tilewave.errors import CallError, EndlessLoop, InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.wave import AT_ONCE, IN_STEPS
from tilewave.ir.ops import LEVELS, Elementwise, Launch, Scheduling, Yield
from tilewave.ir.parse import parse
from tilewave.ir.verify import VerifyError, verify
from tilewave.layouts.fragments import mfma


def test_every_op_of_the_lane_level_is_interpreted():
    """Except for launch ops: `bind` replaces them by numbers before a kernel is run."""
    named = {cls for cls in LEVELS["lane"] if not issubclass(cls, (Elementwise, Scheduling, Launch))}
    assert named == {*AT_ONCE, *IN_STEPS, Yield} - {Elementwise, Scheduling}


def fails(body, **kwargs):
    text = text_of(body, **kwargs)
    with pytest.raises(InterpreterError) as raised:
        run_text(text)
    return text, str(raised.value)


# -- numbers


def test_numbers_of_lanes_are_computed_as_python_does():
    body = """  %three = const() {value = 3} : index
  %five = const() {value = 5} : index
  %x0 = mul(%t, %three) : index
  %x1 = sub(%x0, %eight) : index
  %x2 = floor_div(%x1, %five) : index
  %x3 = mod(%x1, %five) : index
  %low = less(%x2, %x3) : bool
  %not_first = not_equal(%t, %zero) : bool
  %both = and(%low, %not_first) : bool
  %x4 = select(%both, %x2, %eight) : index
  %x5 = max(%x4, %x1) : index
  %x6 = cast(%x5) : i32
  %x7 = neg(%x6) : i32
  %x8 = cast(%x7) : f32
  %x9 = abs(%x8) : f32
  %x = sqrt(%x9) : f32
  %v = broadcast(%x) : vector<1xf32>
  store(%v, %c, [%t, %zero], []) {steps = [[0, 0]]}
"""

    def by_python(t):
        x1 = t * 3 - 8
        x2, x3 = x1 // 5, x1 % 5
        return np.sqrt(np.float32(abs(-max(x2 if x2 < x3 and t != 0 else 8, x1))))

    _, c = run_text(text_of(body))
    np.testing.assert_array_equal(c[:, 0], [by_python(t) for t in range(8)])
    assert np.isnan(c[:, 1:]).all()


def test_vectors_are_broadcast_permuted_and_chosen_lane_by_lane():
    body = """  %r = ramp() {steps = [10, 1]} : vector<2x4xi64>
  %back = permute(%r) {axes = [1, 0]} : vector<4x2xi64>
  %f = cast(%back) : vector<4x2xf32>
  %number = cast(%t) : f32
  %mine = broadcast(%number) : vector<4x2xf32>
  %two = const() {value = 2.0} : vector<2xf32>
  %twos = broadcast(%two) {axes = [1]} : vector<4x2xf32>
  %g = mul(%mine, %twos) : vector<4x2xf32>
  %one_a_lane = equal(%wave, %zero) : bool
  %x = select(%one_a_lane, %f, %g) : vector<4x2xf32>
  %y = select(%leads, %twos, %x) : vector<4x2xf32>
  store(%y, %c, [%t, %zero], []) {steps = [[0, 2], [0, 1]]}
"""
    _, c = run_text(text_of(body))
    for t in range(8):
        ramp = [10 * j + i for i in range(4) for j in range(2)]
        np.testing.assert_array_equal(c[t], [2.0] * 8 if t % 4 == 0 else ramp if t < 4 else [2.0 * t] * 8)


def test_the_workgroup_and_the_loops_are_those_of_the_wave():
    body = """  %trips = add(%wave, %one) : index
  %n = loop(%trips, [%zero]) : index do (%i: index, %sum: index) {
    %next = add(%sum, %i) : index
    yield([%next])
  }
  %m = while([%n]) : index do (%x: index) {
    %more = less(%x, %eight) : bool
    yield([%more])
  } do (%y: index) {
    %up = add(%y, %four) : index
    yield([%up])
  }
  %hundred = const() {value = 100} : index
  %big = mul(%w, %hundred) : index
  %both = add(%m, %big) : index
  %f = cast(%both) : f32
  %v = broadcast(%f) : vector<8xf32>
  %wide = mul(%w, %four) : index
  %r = add(%wide, %wave) : index
  store(%v, %c, [%r, %zero], [%leads]) ROW
"""
    _, c = run_text(text_of(body, workgroups=2))
    np.testing.assert_array_equal(c[[0, 1, 4, 5], 0], [8, 9, 108, 109])


@pytest.mark.parametrize("op", ["loop", "while"])
def test_lanes_that_do_not_agree_how_long_to_loop_are_found(op):
    body = {
        "loop": """  %n = loop(%t, [%zero]) : index do (%i: index, %x: index) { // here
    yield([%x])
  }
""",
        "while": """  %n = while([%t]) : index do (%i: index) { // here
    %yes = less(%i, %one) : bool
    yield([%yes])
  } do (%j: index) {
    yield([%eight])
  }
""",
    }[op]
    text, told = fails(body)
    said = {"loop": "0 and 1", "while": "True and False"}[op]
    assert told == f"{op}: lanes 0 and 1 of wave 0 say {said}, and must agree\n  k.ir:{line_of(text, 'here')}"


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr("tilewave.interp.tiles.MOST_ROUNDS", 50)
    body = """  %n = while([%zero]) : index do (%i: index) {
    %yes = less(%i, %four) : bool
    yield([%yes])
  } do (%j: index) {
    yield([%zero])
  }
"""
    with pytest.raises(EndlessLoop, match="wave 0 of workgroup 0 ran 50 iterations and is not done"):
        run_text(text_of(body))


# -- memory


def test_a_load_takes_registers_by_steps_from_matrices_of_any_strides():
    body = """  %x = load(%a, [%zero, %t], []) {steps = [[4, 0], [1, 0]]} : vector<2x4xf32>
  store(%x, %c, [%t, %zero], []) {steps = [[0, 4], [0, 1]]}
"""
    whole = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    a, c = whole[::2, ::3], np.full((8, 16), np.nan, np.float32)[:, ::2]
    run_text(text_of(body), arrays=[a, c])
    np.testing.assert_array_equal(c, a.T)


def test_lanes_read_rows_for_each_other():
    """Four lanes read two rows of four elements, each two neighbours; lane i gets element i of both rows."""
    body = """  %s = allocate() : memory<8x8xf32, shared, bits(2, 1, 2)>
  %all = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%all, %s, [%t, %zero], []) ROW
  barrier()
  %two = const() {value = 2} : index
  %row = floor_div(%lane, %two) : index
  %near = mod(%lane, %two) : index
  %column = mul(%near, %two) : index
  %from = add(%first, %column) : index
  %x = load_transposed(%s, [%row, %from]) {steps = [[1, 0]], lanes = 4, rows = 2} : vector<8xf32>
  store(%x, %c, [%zero, %t], []) {steps = [[1, 0]]}
"""
    a, c = run_text(text_of(body))
    np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ("lanes = 4, rows = 3", "lanes do not hold"),
        ("lanes = 8, rows = 2", "are not groups of 8"),
        ("lanes = 4, rows = 0", "lanes do not hold"),
    ],
)
def test_lanes_that_cannot_read_for_each_other_are_refused(attributes, why):
    body = f"""  %s = allocate() : memory<8x8xf32, shared>
  %x = load_transposed(%s, [%zero, %zero]) {{steps = [[1, 0]], {attributes}}} : vector<8xf32>
"""
    with pytest.raises(VerifyError, match=why):
        verify(parse(text_of(body)))


def test_what_hangs_over_a_guarded_edge_is_zero_and_not_stored():
    body = """  %up = sub(%t, %one) : index
  %x = load(%a, [%t, %four], []) {steps = [[0, 1]], guard = [1]} : vector<8xf32>
  store(%x, %c, [%up, %zero], []) {steps = [[0, 1]], guard = [0]}
"""
    a, c = run_text(text_of(body))
    np.testing.assert_array_equal(c[:7], np.pad(a[1:, 4:], ((0, 0), (0, 4))))
    assert np.isnan(c[7]).all()


def test_masked_lanes_take_zeros_and_store_nothing():
    body = """  %odd = less(%zero, %lane) : bool
  %x = load(%a, [%t, %zero], [%leads]) ROW : vector<8xf32>
  store(%x, %c, [%t, %zero], []) ROW
  %minus = sub(%zero, %four) : index
  %where = select(%leads, %minus, %t) : index
  store(%x, %c, [%where, %zero], [%odd]) ROW
"""
    a, c = run_text(text_of(body))
    np.testing.assert_array_equal(c, np.where(np.arange(8)[:, None] % 4 == 0, a, 0))


def test_each_register_can_have_a_position_of_its_own():
    body = """  %r = ramp() {steps = [1]} : vector<8xi64>
  %t64 = cast(%t) : i64
  %row = broadcast(%t64) : vector<8xi64>
  %sum = add(%r, %row) : vector<8xi64>
  %before = const() {value = 3} : vector<8xi64>
  %shifted = sub(%r, %before) : vector<8xi64>
  %x = load_each(%a, [%sum, %r], []) : vector<8xf32>
  store_each(%x, %c, [%row, %shifted], [])
"""
    a, c = np.arange(64, dtype=np.float32).reshape(8, 8), np.full((8, 8), np.nan, np.float32)
    interpret_lanes(parse(text_of(body)), [a, c], {})
    for t in range(8):
        for column in range(5):
            row = t + column + 3
            assert c[t, column] == (a[row, column + 3] if row < 8 else 0)
    assert np.isnan(c[:, 5:]).all()


OUTSIDE = {
    "lane 0 of wave 1 reads a[8, 0]": """
  %x = load(%a, [%far, %zero], []) {steps = [[0, 1]], guard = [1]} : vector<8xf32> // here
""",
    "lane 0 of wave 0 writes c[4, 8]": """  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %c, [%far, %one], [%leads]) {steps = [[0, 1]], guard = [0]} // here
""",
    "lane 3 of wave 0 reads a[-1, 0]": """  %last = sub(%four, %one) : index
  %ends = equal(%t, %last) : bool
  %minus = sub(%zero, %one) : index
  %row = select(%ends, %minus, %t) : index
  %x = load(%a, [%row, %zero], []) ROW : vector<8xf32> // here
""",
}


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("where", OUTSIDE)
def test_a_lane_that_leaves_a_memory_is_named(where, order, seed):
    text = text_of(OUTSIDE[where])
    with pytest.raises(InterpreterError) as raised:
        run_text(text, order, seed)
    assert str(raised.value) == f"{where}, outside memory<8x8xf32, global>\n  k.ir:{line_of(text, 'here')}"


def test_shared_memories_are_not_guarded_where_nobody_says_so():
    body = """  %s = allocate() : memory<4x8xf32, shared>
  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %s, [%t, %zero], []) ROW // here
"""
    text, told = fails(body)
    assert told == f"lane 0 of wave 1 writes s[4, 0], outside memory<4x8xf32, shared>\n  k.ir:{line_of(text, 'here')}"


def test_two_lanes_that_write_one_element_are_found_where_they_differ():
    body = """  %f = cast(NUMBER) : f32
  %v = broadcast(%f) : vector<1xf32>
  store(%v, %c, [%wave, %zero], []) {steps = [[0, 0]]} // here
"""
    text, told = fails(body.replace("NUMBER", "%lane"))
    assert told == f"two lanes of wave 0 write different values to c[0, 0]\n  k.ir:{line_of(text, 'here')}"
    _, c = run_text(text_of(body.replace("NUMBER", "%wave")))
    np.testing.assert_array_equal(c[:2, 0], [0, 1])


# -- matrix instructions


@pytest.mark.parametrize("batches", [(), (2,), (2, 3)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "depth"), [(16, 16), (32, 8), (16, 32), (32, 16), (16, 4)])
def test_a_matrix_product_is_that_of_the_operands(rows, depth, turned, batches):
    """Two waves, one below the other, each with 2 x 3 blocks of sums over 2 blocks of depth."""
    fragment, waves = mfma(rows, depth), (2, 1)
    m, n, k = 2 * 2 * rows, 3 * rows, 2 * depth
    rng = np.random.default_rng(rows * depth)
    a, b = rng.standard_normal((*batches, m, k)), rng.standard_normal((*batches, n, k))
    acc = rng.standard_normal((*batches, m, n)).astype(np.float32)
    a, b, out = a.astype(np.float16), b.astype(np.float16), np.full(acc.shape, np.nan, np.float32)
    layouts = {
        "a": fragment.operand(a.shape, waves, 0),
        "b": fragment.operand(b.shape, waves, 1),
        "d": fragment.sums(acc.shape, waves, turned),
    }
    text = product_text(layouts, {"a": a, "b": b, "d": acc}, rows, depth, turned)
    interpret_lanes(verify(parse(text, "m.ir")), [a, b, acc, out], {})
    exact = acc + a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)
    size = np.abs(acc) + np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).swapaxes(-1, -2)
    assert (np.abs(out - exact) <= (k + 1) * 2.0**-24 * size).all()


def product_text(layouts, arrays, rows, depth, turned):
    """Load both operands and the sums by their layouts, multiply, and store the sums as they came."""
    kinds = {"a": "f16", "b": "f16", "d": "f32"}
    shapes = {name: "x".join(map(str, (*x.shape, kinds[name]))) for name, x in arrays.items()}
    vectors = {name: "x".join(map(str, (*x.registers, kinds[name]))) for name, x in layouts.items()}
    lines = ["%lane = lane() : index", "%wave = wave() : index", "%zero = const() {value = 0} : index"]
    ats = {}
    for name, layout in layouts.items():
        ats[name] = ", ".join(position(lines, f"{name}{axis}", terms) for axis, terms in enumerate(layout.axes))
        steps = [list(step) for step in layout.steps]
        lines.append(f"%{name}v = load(%{name}, [{ats[name]}], []) {{steps = {steps}}} : vector<{vectors[name]}>")
    name = {(16, 4): "f32_16x16x4_f32", (32, 8): "f32_32x32x8_f16", (32, 16): "f32_32x32x8_f16"}
    taken = name.get((rows, depth), "f32_16x16x16_f16")  # two of them where the depth is twice the instruction's
    shape = f"shape = [{rows}, {rows}, {depth}], instruction = {taken}, transposed = {str(turned).lower()}"
    lines.append(f"%z = matrix(%av, %bv, %dv) {{{shape}}} : vector<{vectors['d']}>")
    lines.append(f"store(%z, %out, [{ats['d']}], []) {{steps = {[list(s) for s in layouts['d'].steps]}}}")
    memories = [f"%{name}: memory<{shapes[name]}, global>" for name in "abd"] + [f"%out: memory<{shapes['d']}, global>"]
    body = "\n".join(lines)
    return (
        f"kernel @m {{workgroups = 1, level = lane, waves = [2, 1], lanes = 64}} ({', '.join(memories)}) {{\n{body}\n}}"
    )


def position(lines, name, terms):
    """The name of Σ terms, after the ops that compute it."""

    def emit(op, x, number, to):
        lines.append(f"%{to}n = const() {{value = {number}}} : index")
        lines.append(f"%{to} = {op}({x}, %{to}n) : index")
        return f"%{to}"

    total = "%zero"
    for i, term in enumerate(terms):
        x = emit("floor_div", f"%{term.of}", term.divisor, f"{name}q{i}")
        x = emit("mod", x, term.modulus or 1 << 20, f"{name}r{i}")
        x = emit("mul", x, term.factor, f"{name}f{i}")
        lines.append(f"%{name}s{i} = add({total}, {x}) : index")
        total = f"%{name}s{i}"
    return total


# -- calls


def test_an_order_that_does_not_exist_is_refused():
    with pytest.raises(CallError, match="no order of waves is called 'sideways'; the orders are in turn, backwards"):
        run_text(text_of(""), "sideways")


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_only_the_workgroups_asked_for_run(order, seed):
    body = """  %x = load(%a, [%t, %w], []) {steps = [[0, 1]]} : vector<1xf32>
  store(%x, %c, [%t, %w], []) {steps = [[0, 1]]}
"""
    a, c = run_text(text_of(body, workgroups=8), order, seed, workgroups=[5, 2])
    np.testing.assert_array_equal(c[:, [2, 5]], a[:, [2, 5]])
    assert np.isnan(np.delete(c, [2, 5], axis=1)).all()


def test_a_workgroup_that_reads_what_another_wrote_is_found():
    body = """  %next = add(%w, %one) : index
  %x = load(%c, [%zero, %w], []) {steps = [[0, 1]]} : vector<1xf32> // here
  store(%x, %c, [%zero, %next], []) {steps = [[0, 1]]}
"""
    text, told = fails(body, workgroups=2, waves=1)
    assert told == (
        "workgroup 1 reads c[0, 1], which workgroup 0 wrote: the order decides the result\n"
        f"  k.ir:{line_of(text, 'here')}"
    )


def test_two_workgroups_that_write_one_element_are_found():
    body = """  %x = load(%a, [%t, %zero], []) ROW : vector<8xf32>
  store(%x, %c, [%t, %zero], []) ROW // here
"""
    text, told = fails(body, workgroups=2)
    assert told == (
        "workgroup 1 writes c[0, 0], which workgroup 0 wrote: the order decides the result\n"
        f"  k.ir:{line_of(text, 'here')}"
    )
