"""The bits of numbers, and what else integers of every width and sign have: on every target, against numpy."""

import exact
import numpy as np
import pytest
from kernels import M, N
from one_op import CPU, EMULATED, INTEGER_NAMES, NAMES, WAYS, kernel_of, mistakes, run

from tilewave import *
from tilewave.errors import CallError, DTypeError
from tilewave.ir.types import DTYPES

G = GLOBAL_ADDRESS_SPACE
T, V, LEFT, RIGHT = sym.T, sym.V, sym.LEFT, sym.RIGHT
EVERYWHERE = ["tiles", "lanes of gfx942", "lanes of sm_90a", CPU[0], *EMULATED]


def any_bits(like, count, seed=0):
    """Numbers of a dtype whose bits are random."""
    return np.frombuffer(np.random.default_rng(seed).bytes(count * like.itemsize), like)


def random_integers(name, count, seed=0):
    """Small numbers and those of random bits."""
    x = any_bits(DTYPES[name].numpy, count, seed).copy()
    x[::3] = np.arange(len(x[::3])) % 11
    return x


# -- bitcast ----------------------------------------------------------------------------------------------------


@pytest.mark.share(8)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("way", WAYS)
def test_a_bitcast_keeps_every_bit(way, bits):
    names = [name for name in NAMES if DTYPES[name].bits == bits]
    for old in names:
        given, results = any_bits(DTYPES[old].numpy, 256), [DTYPES[new] for new in names]
        got = [np.zeros(256, dtype.numpy) for dtype in results]
        kernel = kernel_of([DTYPES[old]], [(d, lambda x, d=d: bitcast(x, d)) for d in results])
        run(way, kernel, [given.copy(), *got])
        assert [x.tobytes() == given.tobytes() for x in got] == [True] * len(names), f"{old} to {names}"


@pytest.mark.parametrize("way", EVERYWHERE)
def test_floats_are_computed_with_by_their_bits(way):
    """The sign and the exponent, as numpy takes them apart, also of a float that was just computed."""
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32) * 1e6
    results = [
        (u32, lambda x: bitcast(x + 1.0, u32) >> 31),
        (i32, lambda x: ((bitcast(x, i32) >> 23) & 0xFF) - 126),
        (f32, lambda x: bitcast(bitcast(x, u32) & 0x7FFFFFFF, f32)),
        (u16, lambda x: bitcast(cast(x, bf16), u16) ^ 0x8000),
    ]
    got = [np.zeros(100, d.numpy) for d, _ in results]
    run(way, kernel_of([f32], results, tile=64), [x, *got])
    brain = bf16.numpy.type
    wanted = [np.signbit(x + np.float32(1)), np.frexp(x)[1], abs(x), (-x).astype(brain).view(np.uint16)]
    for found, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(found, want)


# -- numbers, constants, indices --------------------------------------------------------------------------------


SHIFTS = [0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", INTEGER_NAMES)
@pytest.mark.parametrize("way", ["tiles", "lanes of sm_90a", *CPU[:1], *EMULATED[:1]])
def test_shifts_by_constants(way, name):
    dtype = DTYPES[name]
    x, far = random_integers(name, 256), [n for n in SHIFTS if n <= dtype.bounds[1]]
    results = [(dtype, lambda x, n=n: x << n) for n in far] + [(dtype, lambda x, n=n: x >> n) for n in far]
    got = [np.zeros(256, dtype.numpy) for _ in results]
    run(way, kernel_of([dtype], results), [x, *got])
    by = [np.full(256, n, dtype.numpy) for n in far]
    wanted = [exact.computed(word, [x, n], name) for word in ("<<", ">>") for n in by]
    assert mistakes([f"by {n}" for n in far * 2], [x], got, wanted) == []
    for found, want in zip(got, [np.left_shift(x, n) for n in by] + [np.right_shift(x, n) for n in by], strict=True):
        np.testing.assert_array_equal(found, want)  # as numpy says too


WORDS = {
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
    "~": lambda x, _: ~x,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<": lambda x, y: cast(x < y, i32),
    "maximum": maximum,
}


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942"])
def test_the_bits_of_numbers_are_those_of_tiles(target):
    shift = 200

    def of(name, op):
        x, y = (cast(scalar(s) - shift, DTYPES[name]) for s in (LEFT, RIGHT))
        return Register[M, i64](0) + cast(op(x, y), i64)

    pairs = [(name, word) for name in (*INTEGER_NAMES, "index") for word in WORDS]
    kernel = kernel_of([f32], [(i64, lambda _, n=n, w=w: of(n, WORDS[w])) for n, w in pairs], tile=4)
    compiled = wave_compile(WaveCompileOptions(subs={M: 3}, target=target, dynamic_symbols=[LEFT, RIGHT]), kernel)
    runs = {"numpy": compiled.interpret, "cpu": compiled}.get(target) or compiled.emulate
    for x, y in ((7, 2), (-7, 2), (12345678901, 3), (-1, 33), (-5, 70), (100, -1)):
        got = [np.full(3, 77, np.int64) for _ in pairs]
        runs(np.zeros(3, np.float32), *got, LEFT=x + shift, RIGHT=y + shift)
        for (name, word), found in zip(pairs, got, strict=True):
            like = DTYPES[name].numpy
            given = [exact.wrapped(np.array([n], object), like) for n in (x, y)][: 1 if word == "~" else 2]
            want = exact.computed(word, given, name).astype(np.int64)
            assert (found == want).all(), f"{x} {word} {y} as {name}: {found[0]}, not {want[0]}"


@pytest.mark.parametrize("way", EVERYWHERE)
def test_indices_have_bits_too(way):
    results = [
        (i64, lambda _: cast((self_index(M) >> 3) & 5, i64)),
        (i64, lambda _: cast((self_index(M) << 4) | 9, i64)),
        (i64, lambda _: cast(~self_index(M) ^ 6, i64)),
        (i64, lambda _: cast(1 << (self_index(M) & 63), i64)),
    ]
    got, at = [np.zeros(100, np.int64) for _ in results], np.arange(100)
    run(way, kernel_of([f32], results, tile=64), [np.zeros(100, np.float32), *got])
    wanted = [at >> 3 & 5, at << 4 | 9, ~at ^ 6, np.left_shift(np.int64(1), at & 63)]
    for found, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_a_shift_by_a_constant_within_the_width_costs_nothing():
    def text(op, target):
        kernel = kernel_of([u32], [(u32, op)], tile=64)
        return wave_compile(WaveCompileOptions(subs={M: 64}, target=target), kernel).llvm_ir

    for target in ("cpu", "gfx942", "sm_90a"):
        known, unknown = text(lambda x: x << 5, target), text(lambda x: x << x, target)
        assert "shl" in known and "shl" in unknown
        assert known.count("icmp ult") < unknown.count("icmp ult")


# -- reductions -------------------------------------------------------------------------------------------------

REDUCED = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "cumsum": np.cumsum,
}
WIDER = {"i8": i32, "i16": i32, "u8": u32, "u16": u32}


def reducing(name):
    """A kernel of all reductions of rows."""
    dtype = DTYPES[name]
    total = WIDER.get(name, dtype)
    kinds = {"max": dtype, "min": dtype, "argmax": i32, "argmin": i32}
    d = {how: kinds.get(how, total) for how in REDUCED}

    @wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 128, 1)])
    def reduced(
        x: Memory[M, N, G, dtype],
        a: Memory[M, G, d["sum"]],
        b: Memory[M, G, d["prod"]],
        c: Memory[M, G, d["max"]],
        e: Memory[M, G, d["min"]],
        f: Memory[M, G, d["argmax"]],
        g: Memory[M, G, d["argmin"]],
        h: Memory[M, N, G, d["cumsum"]],
    ):
        tile = read(x)
        for how, out in zip(REDUCED, (a, b, c, e, f, g, h), strict=True):
            write(getattr(tile, how)(dim=N), out)

    return reduced, d


@pytest.mark.share(6)
@pytest.mark.parametrize("name", INTEGER_NAMES)
@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"])
def test_rows_of_every_integer_are_reduced(target, name):
    kernel, dtypes = reducing(name)
    x = random_integers(name, 13 * 99).reshape(13, 99) | DTYPES[name].numpy.type(1)  # odd, so that products are not 0
    got = [np.zeros(x.shape if how == "cumsum" else 13, d.numpy) for how, d in dtypes.items()]
    compiled = kernel.compile(target=target, subs={M: 13, N: 99})
    if target == "cpu":
        compiled(x, *got)
    elif target == "numpy" or target == "sm_90a":
        compiled.interpret(x, *got, **({"level": "lane"} if target == "sm_90a" else {}))
    else:
        compiled.emulate(x, *got)
    for (how, dtype), found in zip(dtypes.items(), got, strict=True):
        like = {"dtype": dtype.numpy} if how in ("sum", "prod", "cumsum") else {}
        np.testing.assert_array_equal(found, REDUCED[how](x, axis=1, **like), err_msg=how)


# -- atomics ----------------------------------------------------------------------------------------------------

ATOMIC = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}


@pytest.mark.share(8)
@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("how", ATOMIC)
@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"])
def test_integers_are_combined_atomically(target, how, name):
    dtype, op = DTYPES[name], globals()[f"atomic_{how}"]

    @wave([WorkgroupConstraint(T, 64, 0)])
    def combined(slots: Memory[T, G, i32], x: Memory[T, G, dtype], out: Memory[V, G, dtype]):
        op(read(x), out, at={V: read(slots)})

    slots = np.random.default_rng(5).integers(-1, 12, 150).astype(np.int32)
    x, out = any_bits(dtype.numpy, 150, 6), any_bits(dtype.numpy, 11, 7).copy()
    wanted, there = out.copy(), (slots >= 0) & (slots < 11)
    ATOMIC[how].at(wanted, slots[there], x[there])
    compiled = combined.compile(target=target)
    if target == "cpu":
        compiled(slots, x.copy(), out)
    elif target == "numpy" or target == "sm_90a":
        compiled.interpret(slots, x.copy(), out, **({"level": "lane"} if target == "sm_90a" else {}))
    else:
        compiled.emulate(slots, x.copy(), out)
    np.testing.assert_array_equal(out, wanted)
    if target == "sm_90a":  # lanes combine in numpy; what LLVM gets is named
        unsigned = "u" if how in ("min", "max") and name.startswith("u") else ""
        assert f"atomicrmw {unsigned}{how} " in compiled.llvm_ir


# -- scalar arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_scalar_arguments_of_every_integer(target):
    @wave([WorkgroupConstraint(M, 64, 0)])
    def added(out: Memory[M, G, u64], a: u8, b: u16, c: u32, d: u64, e: i16):
        write(Register[M, u64](0) + cast(a, u64) + cast(b, u64) + cast(c, u64) + (d >> 1) + cast(e, u64), out)

    compiled, given = (
        added.compile(target=target),
        {"a": 255, "b": 65535, "c": (1 << 32) - 1, "d": (1 << 64) - 1, "e": -2},
    )
    out = np.zeros(70, np.uint64)
    runs = {"cpu": compiled, "gfx942": compiled.emulate if target == "gfx942" else None}.get(target, compiled.interpret)
    runs(out, **given, **({"level": "lane"} if target == "sm_90a" else {}))
    assert set(out.tolist()) == {255 + 65535 + (1 << 32) - 1 + (1 << 63) - 1 - 2}
    with pytest.raises(CallError, match="c is -1, which is no u32") as caught:
        runs(out, **{**given, "c": -1}, **({"level": "lane"} if target == "sm_90a" else {}))
    assert "u32 goes from 0 to 4294967295, or declare c: i64" in str(caught.value)


# -- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["&", "|", "^", "<<", ">>", "~"])
def test_floats_have_no_bits_of_their_own(sign):
    with pytest.raises(DTypeError) as caught:
        kernel_of([f16], [(f16, lambda x: WORDS[sign](x, x))], tile=8).compile(target="numpy", subs={M: 8})
    text = str(caught.value)
    assert f"{sign} is for integers and truth values, not a tile [M] (8 f16)" in text
    assert "write bitcast(x, u16) for the bits of the floats, cast(x, i32) for whole numbers" in text
    assert "^^\n" in text and "test_bits.py" in text


@pytest.mark.parametrize(
    ("dtype", "op", "what", "remedy"),
    [
        (f32, lambda x: bitcast(x, u16), "u16 has 16 bits, and a tile [M] (8 f32) has 32", "i32 or u32; cast(x, u16)"),
        (i64, lambda x: bitcast(x, index), "index has no bits of its own", "cast(x, i64)"),
        (f32, lambda x: bitcast(x > 0, i8), "bool has no bits of its own", "cast(x, i8)"),
        (f32, lambda x: bitcast(1.5, i32) + x, "not 1.5", "scalar(x, i32)"),
        (u8, lambda x: x + 256, "256 is no u8", "u8 has the numbers from 0 to 255"),
        (u32, lambda x: x & -1, "-1 is no u32", "from 0 to 4294967295"),
        (i8, lambda x: (x > 0) << (x > 1), "<< shifts integers", "cast(x, i32)"),
        (u64, lambda x: x + x.max() * cast(x.min(), i32), "a number (u64) and a number (i32)", "cast(x, u64)"),
    ],
)
def test_what_has_no_such_bits_is_refused(dtype, op, what, remedy):
    with pytest.raises(DTypeError) as caught:
        kernel_of([dtype], [(dtype, op)], tile=8).compile(target="numpy", subs={M: 8})
    assert what in str(caught.value)
    assert remedy in str(caught.value)
