"""Integers wrap and their divisions always have an answer: tiles and numbers, padding included, on every target."""

import exact
import numpy as np
import pytest
from one_op import CPU, EMULATED, SIGNED_NAMES, UNSIGNED_NAMES, WAYS, M, kernel_of, run

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.errors import DTypeError, InterpreterError
from tilewave.ir.types import DTYPES

K, N = sym.K, sym.N
GLOBAL = GLOBAL_ADDRESS_SPACE
SMALLEST = {name: int(np.iinfo(DTYPES[name].numpy).min) for name in SIGNED_NAMES}
DIVISIONS = {"//": lambda x, y: x // y, "%": lambda x, y: x % y}


@pytest.mark.parametrize(("way", "tile"), [*((way, 4) for way in WAYS), (CPU[0], 2048)])
def test_a_division_in_a_ragged_tile_has_an_answer_everywhere(way, tile):
    """Padding is zeros divided by zeros; tiles of 2048 are stored in memory on the CPU."""
    inputs, outputs, wanted = [], [], []
    for name in SIGNED_NAMES:
        least = SMALLEST[name]
        a, b = np.array([7, 9, 5, least, -9], DTYPES[name].numpy), np.array([2, -1, 0, -1, -4])
        inputs += [a, b.astype(a.dtype)]
        outputs += [np.full(5, 77, a.dtype) for _ in DIVISIONS]
        wanted += [[3, -9, 0, least, 2], [1, 0, 0, 0, -1]]
    results = [
        (DTYPES[name], lambda *x, at=2 * i, op=op: op(x[at], x[at + 1]))
        for i, name in enumerate(SIGNED_NAMES)
        for op in DIVISIONS.values()
    ]
    run(way, kernel_of([DTYPES[n] for n in SIGNED_NAMES for _ in "ab"], results, tile=tile), [*inputs, *outputs])
    assert [x.tolist() for x in outputs] == wanted


@pytest.mark.parametrize(("way", "tile"), [*((way, 4) for way in WAYS), (CPU[0], 2048)])
def test_an_unsigned_division_in_a_ragged_tile_has_an_answer_everywhere(way, tile):
    names = UNSIGNED_NAMES
    inputs, outputs, wanted = [], [], []
    for name in names:
        most = DTYPES[name].bounds[1]
        inputs += [np.array(x, DTYPES[name].numpy) for x in ([7, most, 5, most, most - 1], [2, 1, 0, most, 3])]
        outputs += [np.full(5, 77, DTYPES[name].numpy) for _ in DIVISIONS]
        wanted += [[3, most, 0, 1, (most - 1) // 3], [1, 0, 0, 0, (most - 1) % 3]]
    results = [
        (DTYPES[name], lambda *x, at=2 * i, op=op: op(x[at], x[at + 1]))
        for i, name in enumerate(names)
        for op in DIVISIONS.values()
    ]
    run(way, kernel_of([DTYPES[n] for n in names for _ in "ab"], results, tile=tile), [*inputs, *outputs])
    assert [x.tolist() for x in outputs] == wanted


@pytest.mark.parametrize("way", ["tiles", "lanes of sm_90a", *CPU[:1], *EMULATED[:1]])
def test_indices_are_divided_as_other_integers_are(way):
    a = np.array([7, -7, 5, 9, -9], np.int64)
    b = np.array([2, 2, 0, -1, -4], np.int64)
    results = [(i64, lambda x, y, op=op: cast(op(cast(x, index), cast(y, index)), i64)) for op in DIVISIONS.values()]
    got = [np.full(5, 77, np.int64) for _ in DIVISIONS]
    run(way, kernel_of([i64, i64], results, tile=4), [a, b, *got])
    assert [x.tolist() for x in got] == [[3, -4, 0, -9, 2], [1, 1, 0, 0, -1]]


LEFT, RIGHT = sym.LEFT, sym.RIGHT


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942"])
def test_numbers_are_divided_as_tiles_are(target):
    shift = 200

    def of(name, op):
        x, y = (cast(scalar(s) - shift, DTYPES[name]) for s in (LEFT, RIGHT))
        return Register[M, i64](0) + cast(op(x, y), i64)

    pairs = [(name, word) for name in ("i8", "i32", "i64", "index") for word in DIVISIONS]
    kernel = kernel_of([f32], [(i64, lambda _, n=n, w=w: of(n, DIVISIONS[w])) for n, w in pairs], tile=4)
    compiled = wave_compile(WaveCompileOptions(subs={M: 3}, target=target, dynamic_symbols=[LEFT, RIGHT]), kernel)
    runs = {"numpy": compiled.interpret, "cpu": compiled}.get(target) or compiled.emulate
    for x, y in ((7, 2), (-7, 2), (5, 0), (0, 0), (-128, -1), (-9, -4)):
        got = [np.full(3, 77, np.int64) for _ in pairs]
        runs(np.zeros(3, np.float32), *got, LEFT=x + shift, RIGHT=y + shift)
        for (name, word), found in zip(pairs, got, strict=True):
            like = DTYPES[name].numpy
            want = exact.computed(word, [np.array([x], like), np.array([y], like)], name)
            assert (found == want).all(), f"{x} {word} {y} as {name}: {found[0]}, not {want[0]}"


LARGE = [2**53 + 1, -(2**53) - 1, 2**62 - 1, 2**62 + 1, 6364136223846793005, 2**63 - 1, -(2**63), -(2**63) + 1]


@pytest.mark.parametrize("way", ["tiles", "lanes of gfx942", "lanes of sm_90a", *CPU[:1], *EMULATED])
def test_literals_of_64_bits_keep_every_bit(way):
    """Literals of Python and of numpy; a float holds 53 bits."""
    forms = [
        lambda x, c: x * c,
        lambda x, c: c + x * 0,
        lambda x, c: select(x == c, x - x, x * np.int64(c)),
        lambda x, c: Register[M, i64](c) + (x - 1),
    ]
    results = [(i64, lambda x, c=c, form=form: form(x, c)) for c in LARGE for form in forms]
    got = [np.zeros(5, np.int64) for _ in results]
    run(way, kernel_of([i64], results, tile=4), [np.ones(5, np.int64), *got])
    assert [x.tolist() for x in got] == [[c] * 5 for c in LARGE for _ in forms]


@pytest.mark.parametrize("given", [0.5, float("inf"), float("nan"), np.float32(1.5)])
def test_a_literal_that_is_not_whole_is_refused_beside_integers(given):
    with pytest.raises(DTypeError, match="is no i64") as caught:
        kernel_of([i64], [(i64, lambda x: x * given)], tile=4).compile(target="numpy", subs={M: 5})
    assert "write a whole number" in str(caught.value)


@pytest.mark.parametrize("way", ["tiles", "lanes of gfx942", CPU[0], "gfx942"])
def test_integers_wrap_beside_constants_too(way):
    given = np.arange(-128, 128).astype(np.int8)
    cubes = [
        lambda x: (x + 1) // 2,
        lambda x: (x - 100) % 7,
        lambda x: x * 3 // 2,
        lambda x: -x // 3,
        lambda x: abs(x) // 3,
        lambda x: x**3,
        lambda x: (x + x) * 5 - 1,
        lambda x: cast(cast(x, i32) * 70000 * 70000, i8),
    ]
    got = [np.zeros(256, np.int8) for _ in cubes]
    run(way, kernel_of([i8], [(i8, op) for op in cubes], tile=64), [given, *got])

    def wrapped(x):
        return (x + 128) % 256 - 128

    def meant(x):
        return [
            wrapped(x + 1) // 2,
            wrapped(x - 100) % 7,
            wrapped(x * 3) // 2,
            wrapped(-x) // 3,
            wrapped(abs(x)) // 3,
            wrapped(x**3),
            wrapped(x * 10 - 1),
            wrapped(x * 70000 * 70000),
        ]

    assert [x.tolist() for x in got] == [list(column) for column in zip(*map(meant, range(-128, 128)), strict=True)]


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942"])
def test_numbers_wrap_as_tiles_do(target):
    def of(name):
        x = cast(scalar(LEFT), DTYPES[name])
        return lambda _: Register[M, i64](0) + cast((x * 3 + 100) // 2 - abs(-x), i64)

    names = ("i8", "i32")
    kernel = kernel_of([f32], [(i64, lambda t, n=n: of(n)(t)) for n in names], tile=4)
    compiled = wave_compile(WaveCompileOptions(subs={M: 3}, target=target, dynamic_symbols=[LEFT]), kernel)
    runs = {"numpy": compiled.interpret, "cpu": compiled}.get(target) or compiled.emulate
    for n in (1, 100, 127, 128, 255, 2000000000, (1 << 31) - 1, (1 << 31)):
        got = [np.zeros(3, np.int64) for _ in names]
        runs(np.zeros(3, np.float32), *got, LEFT=n)
        for name, found in zip(names, got, strict=True):
            half = 1 << (DTYPES[name].bits - 1)

            def wrapped(x, half=half):
                return (x + half) % (2 * half) - half

            x = wrapped(n)
            want = wrapped(wrapped(wrapped(x * 3) + 100) // 2 - wrapped(abs(wrapped(-x))))
            assert (found == want).all(), f"{n} as {name}: {found[0]}, not {want}"


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_the_bounds_of_an_integer_know_that_it_wraps(target):
    """Comparisons, minima and remainders are decided by bounds where these suffice."""

    def of(_):
        large, small = cast(scalar(WORKGROUP_0), i32) * 2000000000, cast(scalar(WORKGROUP_0) * 100, i8)
        both = select(large < 0, 1, 0) + select(small < 0, 2, 0)
        return Register[M, i32](0) + both + minimum(large, 0) % 1000 * 4

    options = WaveCompileOptions(subs={M: 12}, target=target)
    compiled, got = wave_compile(options, kernel_of([f32], [(i32, of)], tile=4)), np.zeros(12, np.int32)
    level = {"level": "lane"} if target == "sm_90a" else {}
    runs = {"cpu": compiled, "gfx942": compiled.emulate}[target] if target in ("cpu", "gfx942") else compiled.interpret
    runs(np.zeros(12, np.float32), got, **level)
    assert got.tolist() == [0] * 4 + [0] * 4 + [3 + 4 * (-294967296 % 1000)] * 4


def test_an_index_that_overflows_is_found_in_a_tile():
    kernel = kernel_of([i64], [(i64, lambda x: cast(cast(x, index) * 3, i64))], tile=4)
    fine, huge = np.array([(1 << 61) + 1], np.int64), np.array([1 << 62], np.int64)
    run("tiles", kernel, [fine, np.zeros(1, np.int64)])
    with pytest.raises(InterpreterError, match="mul: 13835058055282163712 does not fit into index"):
        run("tiles", kernel, [huge, np.zeros(1, np.int64)])


def test_a_multiple_and_its_rest_are_no_whole_where_the_divisor_is_zero():
    """x // c * c + x % c is x, but for c = 0."""

    def of(_):
        x, c = scalar(LEFT), scalar(RIGHT) - 1
        return Register[M, i64](0) + cast(x // c * c + x % c, i64)

    kernel = kernel_of([f32], [(i64, of)], tile=4)
    for target in ("numpy", "cpu"):
        compiled = wave_compile(WaveCompileOptions(subs={M: 3}, target=target, dynamic_symbols=[LEFT, RIGHT]), kernel)
        runs = compiled if target == "cpu" else compiled.interpret
        for x, c, want in ((17, 5, 17), (17, 0, 0)):
            got = np.full(3, 77, np.int64)
            runs(np.zeros(3, np.float32), got, LEFT=x, RIGHT=c + 1)
            assert (got == want).all()


# -- what is known to be harmless stays as it is ----------------------------------------------------------------


def llvm_of(op, target="cpu", **options):
    kernel = kernel_of([i32], [(i32, op)], tile=16)
    return wave_compile(WaveCompileOptions(subs={M: 16}, target=target, **options), kernel).llvm_ir


def asks(text):
    """Whether anything is compared with -1, as a divisor is."""
    return any("icmp eq" in line and "-1" in line.partition("!dbg")[0] for line in text.splitlines())


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_a_divisor_that_cannot_be_zero_costs_nothing(target):
    for harmless in (lambda x: x // 3, lambda x: x % -7, lambda x: cast(cast(x, index) // (self_index(M) + 1), i32)):
        text = llvm_of(harmless, target)
        assert "sdiv" in text or "srem" in text
        assert not asks(text)
    for unknown in (lambda x: x // x, lambda x: x % (x + 1), lambda x: x // -1):
        assert asks(llvm_of(unknown, target))


@pytest.mark.parametrize("instruction_set", ["neon", "neon-dot"])
def test_arm_divides_by_what_is_not_zero(instruction_set):
    text = llvm_of(lambda x: x // x, instruction_set=instruction_set)
    assert text.count("sdiv") and text.count("select")


def test_a_division_behind_a_product_on_the_matrix_unit():
    if not runs_here(INSTRUCTION_SETS["amx"]):
        pytest.skip("this machine has no amx")

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, 64)])
    def divided(a: Memory[M, K, GLOBAL, i8], b: Memory[N, K, GLOBAL, i8], c: Memory[M, N, GLOBAL, i32]):
        @iterate(K, init_args=[Register[M, N, i32](0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total // (total % 3), c)

    rng = np.random.default_rng(5)
    a, b = (rng.integers(-9, 9, (20, 64)).astype(np.int8) for _ in "ab")
    c = np.full((20, 20), 77, np.int32)
    options = WaveCompileOptions(subs={M: 20, N: 20, K: 64}, target="cpu", instruction_set="amx")
    wave_compile(options, divided)(a, b, c)
    sums = a.astype(np.int32) @ b.astype(np.int32).T
    want = exact.computed("//", [sums, sums % 3], "i32")
    assert (c == want).all() and (sums % 3 == 0).any()
