"""Every elementwise op that is no function, on every dtype, at every level and on every target: exact."""

import exact
import numpy as np
import pytest
from one_op import CPU, FLOAT_NAMES, INTEGER_NAMES, INTERPRETED, WAYS, kernel_of, pairs_of, run, words_of, wrong_ops

from tilewave import *
from tilewave.ir.types import DTYPES
from tilewave.ir.verify import VerifyError

MOST = 1024
BYTES = (*(n for n in FLOAT_NAMES if DTYPES[n].bits == 8), "i8")
QUICK = [
    *(("tiles", name) for name in (*FLOAT_NAMES, *INTEGER_NAMES)),
    *((way, name) for way in INTERPRETED[1:] for name in INTEGER_NAMES),
    *((CPU[0], name) for name in (*INTEGER_NAMES, "f32")),
    *(("gfx942", name) for name in (*INTEGER_NAMES, "f64", "f32", "bf16", "f8e5m2fnuz")),
    *(("gfx950", name) for name in INTEGER_NAMES),
]


def operands(name, most):
    """All pairs of all values, or so many; of integers of 16 bits and more those of hard values."""
    like = DTYPES[name].numpy
    is_small = name in FLOAT_NAMES or like.itemsize == 1
    return pairs_of(exact.every_value(name, like) if is_small else exact.hard_integers(like), most)


@pytest.mark.share(8)
@pytest.mark.parametrize(("way", "name"), QUICK)
def test_ops_are_exact_on_many_pairs(way, name):
    assert wrong_ops(way, name, operands(name, MOST), words_of(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", (*FLOAT_NAMES, *INTEGER_NAMES))
@pytest.mark.parametrize("way", WAYS)
def test_ops_are_exact_on_every_pair_of_8_bits_and_on_hard_ones(way, name):
    assert wrong_ops(way, name, operands(name, 1 << 16), words_of(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("way", WAYS)
def test_ops_of_one_operand_are_exact_on_all_16_bits(way, name):
    assert wrong_ops(way, name, [exact.every_value(name, DTYPES[name].numpy)], ["neg", "abs"]) == []


# -- computed values: what was just computed is in registers, and compilers look through it ---------------------


@pytest.mark.parametrize(("chip", "name"), [*(("gfx942", n) for n in BYTES), ("gfx950", "f8e5m2fnuz")])
def test_ops_on_computed_bytes_keep_every_lane(chip, name):
    dtype = DTYPES[name]
    given = np.arange(-64, 64, dtype=np.int32) % 23 - 11
    as_bytes = exact.cast(given, "i32", name, dtype.numpy)
    computed = {
        "neg": lambda x: -x,
        "abs": lambda x: abs(x),
        "minimum": lambda x: minimum(x, -x),
        "maximum": lambda x: maximum(x, -x),
        "-": lambda x: -x - x,
        "select": lambda x: select(x < -x, x, -x),
    }
    minus = exact.computed("neg", [as_bytes], name)
    wanted = {
        "neg": minus,
        "abs": exact.computed("abs", [as_bytes], name),
        "minimum": exact.computed("minimum", [as_bytes, minus], name),
        "maximum": exact.computed("maximum", [as_bytes, minus], name),
        "-": exact.computed("-", [minus, as_bytes], name),
        "select": exact.computed("select", [as_bytes, minus], name),
    }
    for words in (["neg"], ["-"], list(computed)):  # one by one too: what is used twice is compiled in another way
        results = [(dtype, lambda x, word=word: computed[word](cast(x, dtype))) for word in words]
        got = [np.zeros(len(given), dtype.numpy) for _ in results]
        run(chip, kernel_of([i32], results, tile=128), [given, *got])
        for word, found in zip(words, got, strict=True):
            wrong = exact.differing(found, wanted[word])
            assert len(wrong) == 0, f"{word}: {found[wrong[:8]]} for {given[wrong[:8]]}"


@pytest.mark.parametrize(("chip", "name"), [*(("gfx942", n) for n in ("f16", "bf16", "f32", "f64")), ("gfx950", "f32")])
@pytest.mark.parametrize("minus", [lambda x: -x, lambda x: x * -1.0], ids=["neg", "times -1"])
def test_negated_choices_keep_every_lane(chip, name, minus):
    dtype = DTYPES[name]
    a, b = (exact.cast(np.arange(128, dtype=np.int32) % n - n // 2, "i32", name, dtype.numpy) for n in (5, 7))
    first = np.arange(128) % 3 == 0
    got = np.zeros(128, dtype.numpy)
    chosen = kernel_of([dtype, dtype, DTYPES["bool"]], [(dtype, lambda x, y, c: minus(select(c, x, y)))], tile=128)
    run(chip, chosen, [a, b, first, got])
    assert exact.differing(got, -np.where(first, a, b)).tolist() == []


# -- truth values -----------------------------------------------------------------------------------------------

TRUTHS = {
    "<": (lambda x, y: x < y, [0, 1, 0, 0]),
    "<=": (lambda x, y: x <= y, [1, 1, 0, 1]),
    "==": (lambda x, y: x == y, [1, 0, 0, 1]),
    "!=": (lambda x, y: x != y, [0, 1, 1, 0]),
    "&": (lambda x, y: x & y, [0, 0, 0, 1]),
    "|": (lambda x, y: x | y, [0, 1, 1, 1]),
    "^": (lambda x, y: x ^ y, [0, 1, 1, 0]),
    "~": (lambda x, y: ~x, [1, 1, 0, 0]),
    "select": (lambda x, y: select(x, y, ~y), [1, 0, 0, 1]),
}


@pytest.mark.parametrize("way", ["tiles", "lanes of gfx942", CPU[0], "gfx942"])
def test_what_does_not_hold_is_smaller_than_what_holds(way):
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    truth = DTYPES["bool"]
    got = [np.zeros(4, bool) for _ in TRUTHS]
    run(way, kernel_of([truth, truth], [(truth, op) for op, _ in TRUTHS.values()], tile=8), [a, b, *got])
    assert [x.astype(int).tolist() for x in got] == [want for _, want in TRUTHS.values()]


@pytest.mark.parametrize(
    "op", [lambda x: x + x, lambda x: x - x, lambda x: x * x, lambda x: minimum(x, x), lambda x: -x, abs]
)
def test_truth_values_are_no_numbers(op):
    truth = DTYPES["bool"]
    with pytest.raises(VerifyError, match="numbers, not tile<8xbool>"):
        run("tiles", kernel_of([truth], [(truth, op)], tile=8), [np.zeros(8, bool), np.zeros(8, bool)])
