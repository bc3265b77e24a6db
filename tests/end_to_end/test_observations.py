"""`assert_` and `debug_log`: checked and printed by interpreters, and absent from compiled code."""

import numpy as np
import pytest

import tilewave
from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interpreted import emulate_build, emulated_code, interpret_build
from tilewave.ir.parse import parse
from tilewave.transform.recorded_assertions import NONE

T, V, D, G = sym.T, sym.V, sym.D, GLOBAL_ADDRESS_SPACE
CONSTRAINTS = [WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 8, 1)]


def gathering(observe):
    """An embedding whose tile of indices is observed by a function."""

    @wave(CONSTRAINTS)
    def embedding(ids: Memory[T, G, i32], table: Memory[V, D, G, f32], out: Memory[T, D, G, f32]):
        rows = read(ids)
        observe(rows)
        write(read(table, at={V: rows}), out)

    return embedding


def in_range(rows):
    assert_(rows >= 0, "rows come from the tokenizer")


def arrays(ids):
    rng = np.random.default_rng(0)
    return np.asarray(ids, np.int32), rng.standard_normal((9, 12)).astype(np.float32), np.zeros((len(ids), 12), "f4")


IDS = [i % 9 for i in range(21)]
WRONG = [*IDS[:18], -4, 5, -2]


def compiled(observe, target="cpu"):
    return gathering(observe).compile(target=target, subs={T: 21, V: 9, D: 12})


def test_an_interpreter_names_the_first_element_and_the_line():
    ids, table, out = arrays(WRONG)
    with pytest.raises(InterpreterError, match="assert_ fails at T = 18 and 1 more of its tile: rows come") as error:
        compiled(in_range).interpret(ids, table, out)
    assert error.value.loc.file == __file__ and "assert_(rows" in str(error.value)
    assert not out.any()


@pytest.mark.parametrize("order", ["launch", "shuffled"])
def test_what_holds_changes_nothing(order):
    ids, table, out = arrays(IDS)
    compiled(in_range).interpret(ids, table, out, order=order)
    assert np.array_equal(out, table[ids])


def test_the_interpreter_as_a_target_checks_every_call():
    ids, table, out = arrays(WRONG)
    with pytest.raises(InterpreterError, match="T = 18"):
        compiled(in_range, "numpy")(ids, table, out)


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_compiled_code_is_that_without_observations(target):
    with_them = compiled(lambda rows: (in_range(rows), debug_log(rows)), target)
    assert with_them.asm == compiled(lambda rows: None, target).asm


def test_compiled_calls_check_where_the_environment_says_so(monkeypatch):
    ids, table, out = arrays(WRONG)
    kernel = compiled(in_range)
    for _ in range(3):  # replayed calls, too
        kernel(ids, table, out)
    assert np.array_equal(out[:18], table[ids[:18]])
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    out[:] = 7
    with pytest.raises(InterpreterError, match="T = 18"):
        kernel(ids, table, out)
    assert (out == 7).all()
    kernel(np.abs(ids), table, out)
    assert np.array_equal(out, table[np.abs(ids)])


def test_elements_that_a_condition_leaves_out_are_not_checked():
    def under(rows):
        @conditional(rows >= 0)
        def _():
            assert_(rows > -1)
            assert_(rows != 5, "five")

    ids, table, out = arrays(WRONG)
    with pytest.raises(InterpreterError, match="T = 5 and 1 more of its tile: five"):
        compiled(under).interpret(ids, table, out)


def test_each_step_of_a_loop_and_numbers_are_checked():
    K = sym.K

    @wave([WorkgroupConstraint(T, 4, 0), TilingConstraint(K, 4)])
    def sums(x: Memory[T, K, G, f32], out: Memory[T, G, f32]):
        @iterate(K, init_args=[Register[T, f32](0.0)])
        def total(acc):
            part = read(x)
            assert_(part < 100.0)
            assert_(first_index(K) < 8, "two steps")
            return tilewave.sum(part, acc, dim=K)

        write(total, out)

    x, out = np.ones((6, 7), np.float32), np.zeros(6, np.float32)
    sums.compile(target="cpu", subs={T: 6, K: 7}).interpret(x, out)
    assert (out == 7).all()
    x = np.ones((6, 9), np.float32)
    with pytest.raises(InterpreterError, match="assert_ fails in workgroup 0: two steps"):
        sums.compile(target="cpu", subs={T: 6, K: 9}).interpret(x, out)


def test_elements_in_bounds_are_printed(capsys):
    ids, table, out = arrays(IDS)
    compiled(lambda rows: debug_log(rows, "ids")).interpret(ids, table, out)
    printed = capsys.readouterr().out
    assert printed.count("ids, workgroup") == 4 and "ids, workgroup 1, T 16 to 20:\n[7 8 0 1 2]\n" in printed


def test_the_text_of_a_kernel_keeps_what_its_author_wrote():
    text = 'a "quoted" line\nand % {ö} = true'
    observed = compiled(lambda rows: (assert_(rows >= 0, text), debug_log(rows, "true"))).observed.kernel
    assert parse(str(observed)) == observed


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (lambda rows: assert_(rows), "assert_ needs a truth value, not rows"),
        (lambda rows: assert_(rows > 0, 3), "the message is a text, not 3"),
        (lambda rows: assert_(T > 100, "short"), "assert_ fails: short"),
        (lambda rows: debug_log("rows"), "prints tiles and numbers of the kernel, not 'rows'"),
    ],
)
def test_mistakes(observe, message):
    with pytest.raises(TilewaveError, match=message):
        compiled(observe)


# compiled code, where a call is checked


def recorded(kernel, target, sizes, *arrays):
    """The least workgroup in which each assertion is false, by the code that a checked call launches first."""
    made = kernel.compile(target=target, subs=sizes)
    assertions = made.observed.assertions
    failed = np.full(len(assertions.recorded.assertions), NONE, np.int32)
    before = [x.copy() for x in arrays]
    if target == "cpu":
        assertions.record(arrays, {}, failed)
        for x, was in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(x, was)
    elif target == "sm_90a":
        for order in ("in turn", "random"):
            given = (*(x.copy() for x in arrays), failed)
            interpret_build(assertions.called, assertions.build, target, given, {}, order, 1)
    else:
        code = emulated_code(made.name, assertions.build, target)
        report = emulate_build(assertions.called, code, (*arrays, failed), {}, "random", 1, "strict", None)
        assert not report.findings
    return [None if w == NONE else int(w) for w in failed]


ON_EACH = pytest.mark.parametrize("target", ["cpu", "sm_90a", "gfx942"])


@ON_EACH
@pytest.mark.parametrize("open_sizes", [False, True])
def test_compiled_code_finds_the_first_workgroup_that_breaks_an_assertion(target, open_sizes):
    def observe(rows):
        assert_(rows < 9)
        in_range(rows)
        assert_(first_index(T) < 16, "two tiles of rows")

    sizes = {} if open_sizes else {T: 37, V: 9, D: 12}
    ids, table, out = arrays([*IDS[:18], -4, 5, -2, *IDS[:16]])
    assert recorded(gathering(observe), target, sizes, ids, table, out) == [None, 1, 1]
    assert recorded(gathering(observe), target, {**sizes, T: 21} if sizes else {}, *arrays(IDS)) == [None, None, 1]


@ON_EACH
def test_compiled_code_checks_accumulators_and_each_step(target):
    M, N, K = sym.M, sym.N, sym.K

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            a_tile = read(a)
            assert_(a_tile < 5.0)
            assert_(first_index(K) < 64)
            return mma(a_tile, read(b), acc)

        assert_(total < 60.0, "small sums")
        write(total, c)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1, 2, (rows, 72)).astype(np.float16) for rows in (130, 70))
    c = np.full((130, 70), np.nan, np.float32)
    sizes = {M: 130, N: 70, K: 72}
    assert recorded(product, target, sizes, a, b, c) == [None, 0, None]
    a[129] = b[69] = 1
    a[70, 71] = 5
    assert recorded(product, target, sizes, a, b, c) == [1, 0, 5]


@ON_EACH
def test_compiled_code_checks_what_a_kernel_reads_and_writes_in_place(target):
    @wave([WorkgroupConstraint(T, 16, 0)])
    def twice(x: Memory[T, G, f32]):
        write(read(x) + 1.0, x)
        assert_(read(x) < 5.0)

    x = np.arange(40, dtype=np.float32) % 4
    assert recorded(twice, target, {T: 40}, x.copy()) == [None]
    x[33] = 4
    assert recorded(twice, target, {T: 40}, x.copy()) == [2]


@ON_EACH
def test_compiled_code_checks_elements_that_a_condition_keeps(target):
    def under(rows):
        @conditional(rows >= 0)
        def _():
            assert_(rows != 5, "five")

        @conditional(first_index(T) > 0)
        def _():
            assert_(rows >= 0)

    assert recorded(gathering(under), target, {T: 21, V: 9, D: 12}, *arrays([-1, *[3] * 20])) == [None, None]
    assert recorded(gathering(under), target, {T: 21, V: 9, D: 12}, *arrays([-1, *[3] * 18, -1, 5])) == [1, 1]


@pytest.mark.parametrize("how", ["the kernel", "compiled", "by name"])
def test_a_call_that_asks_for_it_is_checked(how):
    ids, table, out = arrays(WRONG)
    kernel = gathering(in_range)
    made = kernel.compile(target="cpu")
    calls = {
        "the kernel": lambda **check: kernel(ids, table, out, **check),
        "compiled": lambda **check: made(ids, table, out, **check),
        "by name": lambda **check: kernel(table=table, out=out, ids=ids, **check),
    }
    for _ in range(2):
        with pytest.raises(InterpreterError, match="T = 18 and 1 more of its tile: rows come"):
            calls[how](check=True)
        assert not out.any()
    calls[how]()
    calls[how](check=False)
    assert np.array_equal(out[:18], table[ids[:18]])


def test_a_checked_call_prints_what_is_logged(capsys):
    ids, table, out = arrays(IDS)
    gathering(lambda rows: (in_range(rows), debug_log(rows, "ids")))(ids, table, out, check=True)
    assert "ids, workgroup 1, T 16 to 20:\n[7 8 0 1 2]\n" in capsys.readouterr().out
    assert np.array_equal(out, table[ids])


def test_a_failure_that_the_interpreter_does_not_see_is_raised(monkeypatch):
    """Code for a target may round differently."""
    monkeypatch.setattr("tilewave.checked_call.interpret_tiles", lambda *_: None)
    ids, table, out = arrays(WRONG)
    with pytest.raises(InterpreterError, match="assert_ fails in workgroup 1: rows come from the tokenizer") as error:
        compiled(in_range)(ids, table, out, check=True)
    assert error.value.loc.file == __file__ and "in the interpreter it holds" in error.value.remedy


def test_a_parameter_may_be_named_check():
    @wave([WorkgroupConstraint(T, 16, 0)])
    def scaled(x: Memory[T, G, f32], check: f32, y: Memory[T, G, f32]):
        write(read(x) * check, y)

    x, y = np.arange(9, dtype=np.float32), np.empty(9, np.float32)
    scaled(x, y=y, check=2.0)
    assert np.array_equal(y, 2 * x)
