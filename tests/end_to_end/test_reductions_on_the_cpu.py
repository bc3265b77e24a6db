"""Reductions in machine code: each against the interpreter bit for bit, and sums against exact ones."""

import math
import re

import kernels
import numpy as np
import pytest

import tilewave as tw
from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.ir.types import DTYPES
from tilewave.lang.reductions import SUMMED_IN
from tilewave.lower.cpu.kernel import fits_registers

pytestmark = pytest.mark.share(12)

L, M, N, Q = sym.L, sym.M, sym.N, sym.Q
BM, BN = sym.BM, sym.BN
G = GLOBAL_ADDRESS_SPACE
HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
ELSEWHERE = [s.name for s in INSTRUCTION_SETS.values() if not runs_here(s) and not s.matrix_unit]
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
INTEGERS = ("i8", "i32", "i64")
DTYPE_NAMES = (*FLOATS, *INTEGERS, "bool")
DIMS = [(M,), (N,), (M, N)], [(L,), (M,), (N,), (L, N), (M, N), (L, M, N)]
SHAPES = [(1, 1), (5, 37), (8, 64), (3, 1000), (33, 16), (2, 4096)], [(2, 3, 5), (3, 4, 32), (1, 7, 100), (2, 65, 24)]


def hows_of(dtype):
    return ("sum", "prod", "any", "all") if dtype == tw.bool else ("sum", "prod", "max", "min", "any", "all")


def result_of(how, dtype):
    if how in ("any", "all"):
        return tw.bool
    return dtype if how in ("max", "min") else SUMMED_IN.get(dtype, dtype)


def reducing(dims, along, dtype, more=""):
    """Return a kernel of one workgroup that writes each reduction of an array to a separate array."""
    kept, hows = tuple(d for d in dims if d not in along), hows_of(dtype)
    outs = [result_of(how, dtype) for how in hows]
    memories = ", ".join(f"y{i}: Memory[(*(kept or (Q,)), G, outs[{i}])]" for i in range(len(hows)))
    lines = [f"    write(shown(x.{how}(dim=along), outs[{i}]), y{i})" for i, how in enumerate(hows)]

    def shown(found, out):
        if kept:
            return found
        every = Register[Q, out](0) == Register[Q, out](0) if out == tw.bool else Register[Q, out](0)
        return every & found if out == tw.bool else found + every

    if more:
        memories += ", z: Memory[(*dims, G, result_of('sum', dtype))]"
        lines.append(f"    write({more}, z)")
    text = "\n".join([f"def reducing(a: Memory[(*dims, G, dtype)], {memories}):", "    x = read(a)", *lines])
    names = {**vars(tw), **locals(), "Q": Q, "N": N, "G": G, "result_of": result_of}
    exec(text, names)
    return wave([] if kept else [WorkgroupConstraint(Q, 1, 0)])(names["reducing"])


def numbers(rng, shape, dtype):
    """Numbers of either sign and near 1, so that products stay finite."""
    if dtype == tw.bool:
        return rng.random(shape) < 0.5
    if dtype.is_int:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    return (rng.choice([-1.0, 1.0], shape) * (1 + rng.random(shape) / 64)).astype(dtype.numpy)


def empty(shape, how, dtype):
    found = np.empty(shape, result_of(how, dtype).numpy)
    found.view(np.uint8)[...] = 1 if found.dtype == bool else 0xA5
    return found


def same(a, b):
    """Return whether two arrays are bit-equal, except that all NaNs are equal."""
    words = f"u{a.dtype.itemsize}"
    alike = a.view(words) == b.view(words)
    if a.dtype.kind in "fV" and a.dtype != bool:
        alike |= np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(alike.all())


def check_against_interpreter(dims, shape, along, dtype, more="", **options):
    """Runs it in machine code and in the interpreter; gives the array and the results by name."""
    rng = np.random.default_rng(hash((shape, dtype.name)) % 2**32)
    kernel, subs = reducing(dims, along, dtype, more), {**dict(zip(dims, shape, strict=True)), Q: 1}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="cpu", **options), kernel)
    a = numbers(rng, shape, dtype)
    left = tuple(n for d, n in zip(dims, shape, strict=True) if d not in along) or (1,)
    found, want = ([empty(left, how, dtype) for how in hows_of(dtype)] for _ in range(2))
    for run, results in ((compiled, found), (compiled.interpret, want)):
        run(a, *results, *([empty(shape, "sum", dtype)] if more else ()))
    if more:
        assert not fits_registers(compiled.ir())
    for how, x, y in zip(hows_of(dtype), found, want, strict=True):
        assert same(x, y), f"{how} of {dtype} {shape} along {along}: {x} is not {y}"
    return a, dict(zip(hows_of(dtype), found, strict=True))


def check_against_exact(a, results, axes):
    """Sums within a rounding for each level of the tree, products within one for each factor."""
    count = math.prod(a.shape[axis] for axis in axes)
    wide = a.astype(np.longdouble)
    for how, power in (("sum", math.ceil(math.log2(count)) + len(axes)), ("prod", count)):
        found = results[how]
        unit = np.finfo(found.dtype).eps / 2
        assert power * unit < 1, "the bound below holds for few roundings"
        size = np.sum(np.abs(wide), axes) if how == "sum" else np.abs(np.prod(wide, axes))
        bound = size * (power * unit / (1 - power * unit))
        off = np.abs(found.reshape(size.shape) - getattr(np, how)(wide, axes))
        assert (off <= bound).all(), f"{how} of {a.dtype} {a.shape} along {axes} is off by {off.max()}"


def cases(every):
    """Axes and shapes for a dtype: all of them, or some of each."""
    for dims, alongs, shapes in zip(((M, N), (L, M, N)), DIMS, SHAPES, strict=True):
        for number, along in enumerate(alongs):
            for place, shape in enumerate(shapes):
                if every or (place + 2 * number) % 5 == 0:
                    yield dims, shape, along


def check_dtype(name, every, **options):
    for dims, shape, along in cases(every):
        a, results = check_against_interpreter(dims, shape, along, DTYPES[name], **options)
        if name in FLOATS:
            check_against_exact(a, results, tuple(dims.index(d) for d in along))


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_reduction_along_every_axis(name):
    check_dtype(name, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPE_NAMES)
@pytest.mark.parametrize("instruction_set", HERE)
def test_every_shape_and_instruction_set(instruction_set, name):
    check_dtype(name, every=True, instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", HERE)
def test_the_order_of_a_sum_is_the_same_with_every_instruction_set(instruction_set):
    for dims, shape, along in ((M, N), (5, 37), (N,)), ((M, N), (2, 4096), (N,)), ((M, N), (33, 16), (M,)):
        check_against_interpreter(dims, shape, along, f32, instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", ELSEWHERE)
def test_machines_elsewhere_add_pairs(instruction_set):
    """Neither contracted nor reordered: the LLVM IR has no fast-math flags that would allow it."""
    options = WaveCompileOptions(subs={M: 8, N: 64}, target="cpu", instruction_set=instruction_set)
    compiled = wave_compile(options, reducing((M, N), (N,), f32))
    sums = [line for line in compiled.llvm_ir.splitlines() if " fadd " in line]
    assert sums and all(" fadd <" in line or " fadd float" in line for line in sums)
    assert "reassoc" not in compiled.llvm_ir
    assert re.search(r"\bv?(fadd|addps|addss)\b", compiled.asm)


IN_MEMORY = [((M, N), (3, 1500), (N,)), ((M, N), (33, 1100), (M,)), ((M, N), (2, 1040), (M, N))]
IN_MEMORY += [((L, M, N), (2, 3, 1056), (L, N)), ((L, M, N), (3, 5, 1029), (M,))]


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "f8e4m3fn", "i8", "i64", "bool"])
def test_tiles_that_stay_whole_are_reduced_in_memory(name):
    """A running sum along the row needs all of it at once."""
    for number, (dims, shape, along) in enumerate(IN_MEMORY):
        if name == "f32" or number % 3 == len(name) % 3:
            check_against_interpreter(dims, shape, along, DTYPES[name], "x.cumsum(dim=N)")


@pytest.mark.parametrize("instruction_set", HERE)
def test_tiles_in_memory_with_every_instruction_set(instruction_set):
    dims, shape, along = IN_MEMORY[3]
    check_against_interpreter(dims, shape, along, f32, "x.cumsum(dim=N)", instruction_set=instruction_set)


SPECIAL = np.array([[-0.0, -0.0, -0.0], [-0.0, 0.0, -0.0], [1, np.nan, 2], [np.inf, 5, -np.inf], [-np.inf] * 3])


@pytest.mark.parametrize("name", FLOATS)
def test_no_number_and_minus_zero(name):
    dtype = DTYPES[name]
    for axis, dims in enumerate(((N, M), (M, N))):
        compiled = wave_compile(WaveCompileOptions(subs={M: 5, N: 3}, target="cpu"), reducing(dims, (N,), dtype))
        a = np.ascontiguousarray(SPECIAL if axis else SPECIAL.T).astype(dtype.numpy)
        found, want = ([empty(5, how, dtype) for how in hows_of(dtype)] for _ in range(2))
        compiled(a, *found)
        compiled.interpret(a, *want)
        assert all(same(x, y) for x, y in zip(found, want, strict=True))


@pytest.mark.parametrize("name", FLOATS)
def test_past_the_end_of_a_dim_nothing_counts(name):
    """Some 8-bit floats have no infinity to use as padding."""
    dtype = DTYPES[name]

    @wave([WorkgroupConstraint(M, 2, 0), TilingConstraint(N, 8)])
    def ends(x: Memory[M, N, G, dtype], y: Memory[M, G, dtype], z: Memory[M, G, dtype]):
        @iterate(N, init_args=[Register[M, dtype](-4.0), Register[M, dtype](4.0)])
        def step(largest, smallest):
            return read(x).max(acc=largest, dim=N), read(x).min(acc=smallest, dim=N)

        largest, smallest = step
        write(largest, y)
        write(smallest, z)

    x = np.array([[-3, -2, -1], [1, 2, 3]]).astype(dtype.numpy)
    compiled = wave_compile(WaveCompileOptions(subs={M: 2, N: 3}, target="cpu"), ends)
    for run in (compiled, compiled.interpret):
        y, z = (np.zeros(2, dtype.numpy) for _ in range(2))
        run(x, y, z)
        assert y.astype(float).tolist() == [-1, 3]
        assert z.astype(float).tolist() == [-3, 1]


@wave([WorkgroupConstraint(M, BM, 0)])
def centred(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], z: Memory[M, G, i32]):
    r = read(x)
    mean = r.sum(dim=N) / 3.0
    write((r - mean) * r.max(dim=N), y)
    write(r.argmax(dim=N) - r.argmin(dim=N), z)


@pytest.mark.parametrize("shape, rows", [((5, 37), 2), ((7, 64), 4), ((3, 1000), 1), ((65, 24), 64), ((4, 4096), 4)])
@pytest.mark.parametrize("instruction_set", HERE)
def test_results_beside_tiles_that_have_the_dim(instruction_set, shape, rows):
    options = WaveCompileOptions(
        subs={M: shape[0], N: shape[1], BM: rows}, target="cpu", instruction_set=instruction_set
    )
    check_rows(wave_compile(options, centred), shape)


def check_rows(compiled, shape, outputs=((f32, 2), (i32, 1))):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found, want = ([kernels.poisoned(shape[:rank], dtype) for dtype, rank in outputs] for _ in range(2))
    compiled(x, *found)
    compiled.interpret(x, *want)
    assert all(same(a, b) for a, b in zip(found, want, strict=True))


@wave([WorkgroupConstraint(M, BM, 0), TilingConstraint(N, BN)])
def walked(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], z: Memory[M, G, f32]):
    @iterate(N, init_args=[Register[M, f32](-float("inf")), Register[M, f32](0.0)])
    def step(largest, total):
        r = read(x)
        return r.max(acc=largest, dim=N), r.sum(acc=total, dim=N)

    largest, total = step
    write(total, z)

    @iterate(N, init_args=[])
    def again():
        write(read(x) * largest, y)


@pytest.mark.parametrize(
    "shape, tile", [((5, 37), (2, 8)), ((7, 300), (4, 128)), ((3, 1000), (1, 512)), ((9, 5), (3, 5))]
)
def test_sums_carried_through_a_loop(shape, tile):
    subs = dict(zip((M, N, BM, BN), (*shape, *tile), strict=True))
    check_rows(wave_compile(WaveCompileOptions(subs=subs, target="cpu"), walked), shape, ((f32, 2), (f32, 1)))


def test_sums_carried_through_a_loop_of_an_open_size():
    compiled = wave_compile(WaveCompileOptions(subs={BM: 4, BN: 128}, target="cpu"), walked)
    for shape in ((7, 300), (1, 1), (4, 128), (9, 129)):
        check_rows(compiled, shape, ((f32, 2), (f32, 1)))


@wave([WorkgroupConstraint(M, BM, 0)])
def running(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x).cumsum(dim=N), y)


@wave([WorkgroupConstraint(N, BN, 0)])
def running_down(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x).cumsum(dim=M), y)


@pytest.mark.parametrize("kernel", [running, running_down])
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (8, 64), (3, 1000)])
def test_running_sums(kernel, shape):
    subs = {M: shape[0], N: shape[1], BM: 2, BN: 3}
    check_rows(wave_compile(WaveCompileOptions(subs=subs, target="cpu"), kernel), shape, ((f32, 2),))


@wave([WorkgroupConstraint(M, BM, 0)])
def in_place(x: Memory[M, N, G, f32]):
    r = read(x)
    write((r - r.sum(dim=N)) * r.max(dim=N), x)


@wave([])
def along_both(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    r = read(x)
    write(r - r.sum(dim=M) - r.sum(dim=N) + r.max(), y)


@wave([WorkgroupConstraint(L, 1, 0), WorkgroupConstraint(M, BM, 1)])
def normed(x: Memory[L, M, N, G, f32], y: Memory[L, M, N, G, f32], z: Memory[L, M, G, f32]):
    r = read(x)
    away = r - r.sum(dim=N) * 0.125
    size = (away * away).sum(dim=N)
    write(away / size + select(away > 0.0, r - r.min(dim=N), size), y)
    write(size, z)


@pytest.mark.parametrize("shape, rows", [((3, 300), 2), ((5, 1000), 4), ((2, 4096), 1), ((9, 129), 4)])
def test_a_row_that_is_overwritten(shape, rows):
    compiled = wave_compile(WaveCompileOptions(subs={M: shape[0], N: shape[1], BM: rows}, target="cpu"), in_place)
    found = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    want = found.copy()
    compiled(found)
    compiled.interpret(want)
    assert same(found, want)


@pytest.mark.parametrize("shape", [(3, 5), (40, 300), (129, 65), (2, 2000)])
@pytest.mark.parametrize("instruction_set", HERE)
def test_sums_along_both_axes_beside_the_tile(instruction_set, shape):
    options = WaveCompileOptions(subs={M: shape[0], N: shape[1]}, target="cpu", instruction_set=instruction_set)
    check_rows(wave_compile(options, along_both), shape, ((f32, 2),))


@pytest.mark.parametrize("shape, rows", [((2, 3, 300), 2), ((1, 9, 1000), 4), ((3, 2, 37), 2), ((2, 7, 257), 4)])
def test_three_phases_of_ragged_rows(shape, rows):
    subs = {**dict(zip((L, M, N), shape, strict=True)), BM: rows}
    check_rows(wave_compile(WaveCompileOptions(subs=subs, target="cpu"), normed), shape, ((f32, 3), (f32, 2)))


K = sym.K


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
def product_and_rows(a: Memory[M, K, G, bf16], b: Memory[N, K, G, bf16], c: Memory[M, N, G, f32], s: Memory[M, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total - total.max(dim=N), c)
    write(total.sum(dim=N), s)


@pytest.mark.parametrize("instruction_set", [name for name, s in INSTRUCTION_SETS.items() if runs_here(s)])
def test_rows_of_a_product(instruction_set):
    """Small whole numbers, whose products and sums are exact in any order."""
    options = WaveCompileOptions(subs={M: 100, N: 64, K: 96}, target="cpu", instruction_set=instruction_set)
    compiled = wave_compile(options, product_and_rows)
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-2, 3, shape).astype(bf16.numpy) for shape in ((100, 96), (64, 96)))
    found, want = ([kernels.poisoned((100, 64), f32), kernels.poisoned((100,), f32)] for _ in range(2))
    compiled(a, b, *found)
    compiled.interpret(a, b, *want)
    assert all(same(x, y) for x, y in zip(found, want, strict=True))


def test_a_mask_whose_dims_stand_the_other_way_round_is_turned():
    @wave([WorkgroupConstraint(M, 1, 0)])
    def picked(
        x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
        t: Memory[M, GLOBAL_ADDRESS_SPACE, i32],
        y: Memory[M, GLOBAL_ADDRESS_SPACE, f32],
    ):
        write(select(self_index(N, i32) == read(t), read(x), 0.0).sum(dim=N), y)

    for n in (64, 1000, 2048):
        x, t, y = (
            np.arange(1, 2 * n + 1, dtype=np.float32).reshape(2, n),
            np.array([n // 3, n - 5], np.int32),
            np.zeros(2, np.float32),
        )
        wave_compile(WaveCompileOptions(target="cpu", subs={M: 2, N: n}), picked)(x, t, y)
        assert np.array_equal(y, x[[0, 1], t])
