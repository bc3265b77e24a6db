"""Exact numbers: the laws of the ring, what ops mean there, and that wrong passes are found and right ones are not."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from exact_corpus import attention
from hypothesis import given
from hypothesis import strategies as st
from kernels import compiled, gemm, poisoned, random_array, sizes

from tilewave import *
from tilewave.interp import exact
from tilewave.interp.exact import MINUS_INFINITY, NAN, ONE, PLUS_INFINITY, P, Q, elements
from tilewave.interp.exact_check import check_passes
from tilewave.interp.exact_numbers import EXACT_NUMBERS, LN_2, LOG2_E, literal
from tilewave.interp.tiles import interpret
from tilewave.ir.ops import VOCABULARY, Const, Exp2Flushed, Function, Loop, Matrix, Mma, Mul, OpaqueCopy, Select, Sub
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import F8E4M3FN, F16, F32
from tilewave.ir.verify import verify

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SPECIAL = elements(np.array([math.nan, math.inf, -math.inf, 0.0, 1.0, -2.5]))


def random_elements(count, seed=0):
    return elements(np.random.default_rng(seed).standard_normal(count))


def residues(x):
    return int(exact.high(x)), int(exact.low(x))


# -- the ring --------------------------------------------------------------------------------------------------------


@given(FLOATS)
def test_a_float_is_its_fraction_modulo_both_primes(x):
    exactly = Fraction(x)
    want = tuple(exactly.numerator * pow(exactly.denominator, -1, m) % m for m in (Q, P))
    assert residues(elements(x)) == want


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_whole_number_is_what_it_is_modulo_both_primes(n):
    assert residues(elements(np.int64(n))) == (n % Q, n % P)


def test_the_primes_have_a_homomorphism_from_sums_to_products():
    assert P == Q * 2**exact.COFACTOR_BITS + 1
    assert exact.G != 1 and pow(exact.G, Q, P) == 1
    assert all(n % d for n in (Q, P) for d in range(2, math.isqrt(n) + 1))


def test_sums_and_products_are_those_of_a_ring():
    x, y, z = (random_elements(500, seed) for seed in range(3))
    assert np.array_equal(exact.add(exact.add(x, y), z), exact.add(y, exact.add(z, x)))
    assert np.array_equal(exact.multiply(x, exact.add(y, z)), exact.add(exact.multiply(x, y), exact.multiply(z, x)))
    assert not exact.subtract(x, x).any()
    assert (exact.multiply(x, exact.reciprocal(x)) == ONE).all()
    assert np.array_equal(exact.add(elements(0.25), elements(3)), elements(3.25))


def test_powers_and_logarithms_turn_sums_into_products_and_back():
    x, y = random_elements(500), random_elements(500, 1)
    power, log = exact.power_of_two, exact.logarithm
    assert np.array_equal(power(exact.add(x, y)), exact.multiply(power(x), power(y)))
    assert np.array_equal(log(exact.multiply(x, y)), exact.add(log(x), log(y)))
    shifted = exact.add(y, log(power(x)))  # as a maximum is added to the logarithm of a sum
    assert np.array_equal(exact.high(shifted), exact.high(exact.add(y, x))) and exact.has(shifted, exact.OPEN).all()
    assert power(elements(0.0)) == ONE and power(elements(-math.inf)) == 0 and log(elements(0.0)) == MINUS_INFINITY
    assert len(np.unique(power(x))) == 500


def test_products_of_matrices_are_sums_of_products():
    rng = np.random.default_rng(0)
    a, b = (elements(rng.standard_normal(shape)) for shape in ((2, 5, 3000), (2, 7, 3000)))
    found = exact.matrix_product(a, b)
    each = exact.multiply(a[:, :, None], b[:, None])
    while each.shape[-1] > 1:
        if each.shape[-1] % 2:
            each = np.concatenate([each, np.zeros_like(each[..., :1])], axis=-1)
        each = exact.add(each[..., ::2], each[..., 1::2])
    assert np.array_equal(found, each[..., 0])
    a[0, 0, 0] = PLUS_INFINITY
    marked = exact.matrix_product(a, b)
    assert (marked[0, 0] == PLUS_INFINITY).all() and np.array_equal(marked[0, 1:], found[0, 1:])


def test_infinities_and_what_is_no_number_are_kept_apart():
    nan, up, down, zero, one, other = SPECIAL
    assert exact.add(up, down) == nan and exact.add(up, other) == up and exact.subtract(other, up) == down
    assert exact.multiply(zero, up) == nan and exact.multiply(one, down) == down and exact.multiply(down, down) == up
    assert exact.reciprocal(np.array(zero)) == up and exact.reciprocal(np.array(up)) == zero
    assert exact.negate(up) == down and exact.negate(nan) == nan and exact.add(nan, one) == NAN


def test_the_order_is_total_and_that_of_small_whole_numbers():
    small = np.arange(-300, 300)
    assert (np.diff(exact.rank(elements(small))) > 0).all()
    x = random_elements(500)
    assert np.array_equal(exact.rank(exact.negate(x)), -exact.rank(x)) and len(np.unique(exact.rank(x))) == 500
    assert exact.rank(MINUS_INFINITY) < exact.rank(x).min() and exact.rank(x).max() < exact.rank(PLUS_INFINITY)


def test_literals_stand_for_what_they_round():
    assert literal(math.log2(math.e), F32) == LOG2_E == literal(float(np.float32(math.log2(math.e))), F32)
    assert literal(math.log(2), F32) == LN_2 and exact.multiply(LN_2, LOG2_E) == ONE
    assert literal(-math.log(2), F16) == exact.negate(LN_2)
    assert literal(-448.0, F8E4M3FN) == MINUS_INFINITY and literal(-448.0, F16) == elements(-448.0)


# -- ops -------------------------------------------------------------------------------------------------------------


def run(body, x, out="f32", values=()):
    """One tile of eight floats through some ops: %x to %y."""
    text = f"""kernel @k {{workgroups = 1}} (%a: memory<8xf32, global>, %c: memory<8x{out}, global>) {{
  %zero = const() {{value = 0}} : index
  %x = read(%a, [%zero]) {{axes = [0]}} : tile<8xf32>
{body}
  write(%y, %c, [%zero]) {{axes = [0]}}
}}
"""
    c = np.zeros(8, exact.ELEMENT if out.startswith("f") else np.dtype(out.replace("i", "int")))
    interpret(verify(parse(text, "k.ir")), [x, c], {}, numbers=EXACT_NUMBERS)
    return c


def test_a_cast_to_a_narrower_float_changes_nothing():
    x = random_elements(8)
    assert np.array_equal(run("  %h = cast(%x) : tile<8xf16>\n  %y = cast(%h) : tile<8xf32>", x), x)


def test_whole_numbers_come_back_from_floats_and_others_become_some():
    whole = np.array([0, 1, -1, 5, -7, 100, -100, 127])
    assert np.array_equal(run("  %y = cast(%x) : tile<8xi32>", elements(whole), "i32"), whole)
    others = run("  %y = cast(%x) : tile<8xi32>", random_elements(8), "i32")
    assert len(set(others)) == 8


def test_functions_are_told_apart():
    x = random_elements(8)
    names = [name for name, cls in VOCABULARY.items() if issubclass(cls, Function) and cls is not Exp2Flushed]
    found = [run(f"  %y = {name}(%x) : tile<8xf32>", x) for name in names]
    assert len(np.unique(found)) == len(names) * 8
    inverse = run("  %r = rsqrt(%x) : tile<8xf32>\n  %s = sqrt(%x) : tile<8xf32>\n  %y = mul(%r, %s) : tile<8xf32>", x)
    assert (inverse == ONE).all()


# -- passes ----------------------------------------------------------------------------------------------------------


def product():
    rng = np.random.default_rng(0)
    made = compiled(gemm(), subs=sizes(70, 72, 136), target="gfx942")
    return made, {"a": random_array(rng, (70, 136), f16), "b": random_array(rng, (72, 136), f16),
                  "c": poisoned((70, 72), f32)}  # fmt: skip


def attending(kernel=attention.plain):
    """Keys enough for a maximum to grow in most rows, where no mask hides them."""
    rng = np.random.default_rng(0)
    made = compiled(kernel, subs=attention.subs(70, 136, 1, block_m=64), target="numpy")
    shapes = {"q": (1, 70, 64), "k": (1, 136, 64), "v": (1, 136, 64)}
    arrays = {name: random_array(rng, shape, f16) for name, shape in shapes.items()}
    return made, {**arrays, "c": poisoned((1, 70, 64), f16)}


def fault(kernel, wrong, arrays):
    """What is said of a pass that makes `wrong` of a kernel, between one that changes nothing and others."""
    found = check_passes(kernel, [("same", kernel), ("wrong", verify(wrong)), ("right", kernel)], arrays, {})
    assert not found and [p.name for p in found.passes] == ["wrong"]
    return str(found)


def changed(kernel, kind, change, which=0):
    """The kernel with one op of a kind changed."""
    op = [op for op in walk(kernel.body) if isinstance(op, kind)][which]
    return rewrite(kernel, lambda other: change(other) if other is op else None)


def test_a_lost_step_is_found():
    made, arrays = product()

    def shorter(loop):
        less = Const(1, results=(replace(loop.trips, name="one"),), loc=loop.loc)
        return [less, replace(loop, trips=less.result)]

    said = fault(made.traced, changed(made.traced, Loop, shorter), arrays)
    assert said == "wrong: 5,040 of 5,040 elements of c differ, the first at [0, 0]"


def test_a_product_that_is_added_twice_is_found():
    made, arrays = product()

    def twice(mma):
        once = replace(mma.result, name="once")
        return [replace(mma, results=(once,)), replace(mma, acc=once)]

    fault(made.traced, changed(made.traced, Mma, twice), arrays)


def test_a_product_that_one_of_many_matrix_instructions_leaves_out_is_found():
    made, arrays = product()
    lanes = made.ir()
    wrong = changed(lanes, Matrix, lambda op: [OpaqueCopy(op.acc, 0, results=op.results, loc=op.loc)], which=-1)
    fault(lanes, wrong, arrays)


def test_sums_that_are_not_rescaled_are_found():
    made, arrays = attending()
    (product,) = [op for op in walk(made.traced.body) if isinstance(op, Mma) and op.acc.name.startswith("mul")]
    rescaled = {op.result: op.a for op in walk(made.traced.body) if isinstance(op, Mul)}
    fault(made.traced, changed(made.traced, Mma, lambda op: [replace(op, acc=rescaled[product.acc])], 1), arrays)


def test_a_difference_the_other_way_round_is_found():
    made, arrays = attending()
    fault(made.traced, changed(made.traced, Sub, lambda op: [replace(op, a=op.b, b=op.a)]), arrays)


def test_a_lost_mask_is_found():
    made, arrays = attending(attention.causal)
    fault(made.traced, changed(made.traced, Select, lambda op: [replace(op, b=op.a)]), arrays)


def test_a_kernel_that_cannot_be_interpreted_is_found_with_its_place():
    made, arrays = product()
    barriers = [op for op in walk(made.ir().body) if op.name == "barrier"]
    said = fault(made.ir(), rewrite(made.ir(), lambda op: [] if op in barriers else None), arrays)
    assert "with no barrier between" in said


def test_an_order_of_sums_does_not_show():
    """Backwards over K: floats are rounded otherwise, elements are not."""
    text = """kernel @k {workgroups = 1} (%a: memory<8x4096xf32, global>, %c: memory<8xf32, global>) {
  %zero = const() {value = 0} : index
  %last = const() {value = 4095} : index
  %begin = const() {value = 0.0} : tile<8xf32>
  %trips = const() {value = 4096} : index
  %sum = loop(%trips, [%begin]) : tile<8xf32> do (%i: index, %acc: tile<8xf32>) {
    %k = sub(%last, %i) : index
    %x = read(%a, [%zero, %k]) {axes = [0]} : tile<8xf32>
    %y = add(%acc, %x) : tile<8xf32>
    yield([%y])
  }
  write(%sum, %c, [%zero]) {axes = [0]}
}
"""
    backwards = verify(parse(text, "k.ir"))
    forwards = verify(parse(text.replace("sub(%last, %i)", "add(%zero, %i)"), "k.ir"))
    a = np.random.default_rng(0).standard_normal((8, 4096)).astype(np.float32)
    one, other = np.zeros(8, np.float32), np.zeros(8, np.float32)
    interpret(backwards, [a, one], {})
    interpret(forwards, [a, other], {})
    assert (one != other).any()
    assert check_passes(backwards, [("forwards", forwards)], {"a": a, "c": one}, {})


def test_the_passes_of_a_compiled_kernel_are_checked_and_its_arrays_left_alone():
    made, arrays = product()
    found = made.check_passes(*arrays.values())
    assert found and found.wrong is None and np.isnan(arrays["c"]).all()
    names = [p.name for p in found.passes]
    assert names == [step.name for step in made.steps if step.changed]
    assert str(found).splitlines()[0] == f"{names[0]}: bit-equal"


def test_elements_that_are_no_numbers_are_counted_and_said():
    made, arrays = product()
    arrays["a"][3] = np.nan
    found = made.check_passes(*arrays.values())
    assert found and found.undecided == arrays["c"].shape[1]
    assert str(found).splitlines()[-1] == f"{found.undecided:,} elements of the results are NaN or open"


def test_unsigned_integers_of_64_bits_are_no_elements():
    """Elements are stored as uint64, too."""
    text = """kernel @k {workgroups = 1} (%a: memory<8xu64, global>, %c: memory<1xu64, global>) {
  %zero = const() {value = 0} : index
  %x = read(%a, [%zero]) {axes = [0]} : tile<8xu64>
  %sum = reduce(%x) {axes = [0], how = sum} : u64
  %y = broadcast(%sum) {axes = []} : tile<1xu64>
  write(%y, %c, [%zero]) {axes = [0]}
}
"""
    x, c = np.arange(8, dtype=np.uint64) << np.uint64(61), np.zeros(1, np.uint64)
    interpret(verify(parse(text, "k.ir")), [x, c], {}, numbers=EXACT_NUMBERS)
    assert c[0] == x.sum()
