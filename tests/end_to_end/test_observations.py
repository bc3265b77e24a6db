"""`assert_` and `debug_log`: checked and printed by interpreters, and absent from compiled code."""

import numpy as np
import pytest

import tilewave
from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.ir.parse import parse

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
    observed = compiled(lambda rows: (assert_(rows >= 0, text), debug_log(rows, "true"))).observed
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
