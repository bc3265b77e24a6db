"""Kernels for the CPU whose sizes are open: one binary for every shape, against float64; what it computes at a call."""

import concurrent.futures
import ctypes
import itertools
import json
import mmap
import re
from collections import Counter

import numpy as np
import pytest
import seeds
from kernels import *

from tilewave import kernels as shipped
from tilewave.backend import assembler
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.backend.targets import TARGETS
from tilewave.errors import CallError, SavedKernelError
from tilewave.mapping import grouped
from tilewave.runtime import cpu, saved_file
from tilewave.runtime import sizes as kept_sizes
from tilewave.runtime.sizes import Sizes

WGM, N_TILES, TOTAL_TILES, L = sym.WGM, sym.N_TILES, sym.TOTAL_TILES, sym.L
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)


class Product:
    """A kernel compiled once: a · bᵀ for arrays of any M, N and K."""

    def __init__(self, kernel, subs, dtype=f16, acc=f32, turned=(), dynamic=(), symbols=lambda m, n: {}):
        self.kernel, self.subs, self.dtype, self.acc, self.turned = kernel, subs, dtype, acc, turned
        self.dynamic, self.symbols, self.made = dynamic, symbols, {}

    def compiled(self, instruction_set=None):
        if instruction_set not in self.made:
            subs = {s: value for s, value in self.subs.items() if s not in (M, N, K, *self.dynamic)}
            options = {"dynamic_symbols": list(self.dynamic), "instruction_set": instruction_set}
            self.made[instruction_set] = compiled(self.kernel, subs=subs, target="cpu", **options)
        return self.made[instruction_set]

    def operands(self, m, n, k, seed=0):
        """a[m, k] and b[n, k], which a kernel may take turned; and a poisoned c."""
        rng = np.random.default_rng(seed)
        return random_array(rng, (m, k), self.dtype), random_array(rng, (n, k), self.dtype), poisoned((m, n), self.acc)

    def check(self, m, n, k, instruction_set=None, seed=0):
        self.check_arrays(*self.operands(m, n, k, seed), instruction_set)

    def check_arrays(self, a, b, c, instruction_set=None):
        given = [x.T if name in self.turned else x for name, x in (("a", a), ("b", b))]
        self.compiled(instruction_set)(*given, c, **self.symbols(*c.shape))
        if c.size:
            check_product(c, a, b, self.acc)


def of_document(number, **more):
    seed = seeds.SEEDS[number]
    return Product(seed.kernel, seed.subs(1, 1, 1, **more))


def tiles_of(m, n):
    columns = -(-n // 32)
    return {"N_TILES": columns, "TOTAL_TILES": -(-m // 48) * columns}


def of_shipped(dtype, tile=(64, 96, 32)):
    made = shipped.gemm((1, 1, 1), dtype, tile=tile)
    return Product(made.kernel, made.subs, dtype, shipped.accumulator(dtype))


def of_tests(*turned, dtype=f32, acc=f32, constraints=(), block=(32, 48, 24), **more):
    dims = {"a_dims": (K, M) if "a" in turned else (M, K), "b_dims": (K, N) if "b" in turned else (N, K)}
    kernel = gemm(dtype, acc, constraints=constraints, **dims)
    return Product(kernel, sizes(1, 1, 1, *block), dtype, acc, turned, **more)


PERSISTENT = seeds.SEEDS[2]
PRODUCTS = {
    "plain": of_document(0),
    "reordered": of_document(1, block_m=32, block_n=48, block_k=32, group_size_m=3),
    "persistent": Product(
        PERSISTENT.kernel,
        PERSISTENT.subs(1, 1, 1, block_m=48, block_n=32, block_k=32, num_ctas=5),
        dynamic=(N_TILES, TOTAL_TILES),
        symbols=tiles_of,
    ),
    "f32": of_shipped(f32),
    "f16": of_shipped(f16),
    "bf16": of_shipped(bf16, (64, 64, 64)),
    "i8": of_shipped(i8, (64, 64, 64)),
    "f64": of_tests(dtype=f64, acc=f64),
    "columns of a": of_tests("a"),
    "columns of b": of_tests("b", dtype=f16),
    "columns of both": of_tests("a", "b", dtype=i8, acc=i32),
    "a grid of three": of_tests(constraints=[GridConstraint(3)]),
    "a mapping": of_tests(constraints=[WorkgroupMapping("xcd_contiguous(2) >> grouped(3)")]),
    "a symbol besides": of_tests(
        constraints=[WorkgroupMapping(grouped(WGM))], dynamic=(WGM,), symbols=lambda m, n: {"WGM": 2}
    ),
    "a step of one": of_tests(block=(16, 8, 1)),
    "steps of five": of_tests(block=(16, 8, 5)),
}
HERE = [name for name, s in INSTRUCTION_SETS.items() if runs_here(s)]
TESTED = [(128, 128, 64), (1, 300, 40), (300, 1, 7), (70, 90, 1), (129, 257, 65), (300, 500, 70), (200, 300, 70)]
TESTED += [(20, 17, 11), (40, 30, 50), (24, 24, 16), (29, 23, 17), (5, 30, 3), (64, 32, 32), (35, 31, 21), (40, 36, 20)]
SMALL = [(1, 1, 1), (2, 3, 5), (31, 37, 41), (127, 131, 67), (7, 211, 2), (33, 1, 1), (1, 49, 97), (64, 96, 32)]
NOTHING = [(0, 5, 7), (5, 0, 3), (6, 7, 0), (0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_one_binary_multiplies_every_shape(name):
    for shape in (*TESTED, *SMALL):
        PRODUCTS[name].check(*shape)


@pytest.mark.parametrize("name", [name for name, p in PRODUCTS.items() if p.symbols(0, 0).get("N_TILES") != 0])
def test_sizes_of_nothing(name):
    """Without K all sums are 0; without M or N nothing runs."""
    for shape in NOTHING:
        PRODUCTS[name].check(*shape)
    a, b, c = PRODUCTS[name].operands(6, 7, 0)
    PRODUCTS[name].check_arrays(a, b, c)
    assert not np.asarray(c, np.float64).any()


@pytest.mark.share(10)
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", PRODUCTS)
def test_three_hundred_random_shapes(name, seed):
    rng = np.random.default_rng(seed)
    for shape in np.exp(rng.uniform(0, np.log(400), (10, 3))).astype(int).tolist():
        PRODUCTS[name].check(*shape, seed=seed)


@pytest.mark.parametrize("instruction_set", HERE)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "f64", "columns of both", "reordered"])
def test_every_instruction_set_of_this_machine(name, instruction_set):
    made, only = PRODUCTS[name], INSTRUCTION_SETS[instruction_set].only
    if only and (made.dtype.name not in only or name == "columns of both"):
        pytest.skip(f"{instruction_set} multiplies {' and '.join(only)}, in tiles of whole registers")
    for shape in ((129, 257, 65), (1, 1, 1), (64, 64, 64), (31, 300, 7), (6, 7, 0), (0, 3, 5)):
        made.check(*shape, instruction_set)


@pytest.mark.parametrize("name", [name for name in INSTRUCTION_SETS if name not in HERE])
def test_other_machines_get_code_for_every_size(name):
    build = PRODUCTS["f32"].compiled(name).build
    assert build.code.startswith(b"\x7fELF")
    assert "workgroup:" in build.asm


# -- how arrays lie -------------------------------------------------------------------------------------------------


def strided(x):
    """The same numbers, every second of a larger array's columns and every third of its rows."""
    around = np.full((3 * x.shape[0] + 1, 2 * x.shape[1] + 1), 99, x.dtype)
    around[1::3, 1::2] = x
    return around[1::3, 1::2]


WAYS = {"turned": np.asfortranarray, "strided": strided, "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "columns of a", "persistent"])
def test_arrays_that_lie_in_any_way(name, way):
    for shape in ((70, 90, 33), (129, 31, 65), (3, 5, 2), (128, 96, 64)):
        a, b, c = (WAYS[way](x) for x in PRODUCTS[name].operands(*shape))
        PRODUCTS[name].check_arrays(a, b, c)


def between_guards(x, at_end):
    """The same array in memory of its own, with nothing readable right before or right behind it."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    room = -(-max(x.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (begin, begin + page + room):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    first = page + (room - x.nbytes if at_end else 0)
    inside = np.frombuffer(memory, x.dtype, x.size, first).reshape(x.shape)
    inside[...] = x
    return inside


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "columns of both"])
def test_nothing_outside_an_array_is_touched(name, at_end):
    for shape in ((70, 90, 33), (13, 97, 65), (1, 1, 1), (128, 96, 64), (64, 32, 0)):
        arrays = PRODUCTS[name].operands(*shape)
        if name == "columns of both":  # they are taken turned
            arrays = arrays[0].T.copy(), arrays[1].T.copy(), arrays[2]
        a, b, c = (between_guards(x, at_end) for x in arrays)
        a, b = (a.T, b.T) if name == "columns of both" else (a, b)
        PRODUCTS[name].check_arrays(a, b, c)


@pytest.mark.parametrize("threads", ["1", "2", "7"])
@pytest.mark.parametrize("name", ["f32", "i8", "persistent", "a grid of three"])
def test_any_number_of_threads(name, threads, monkeypatch):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", threads)
    for shape in ((300, 500, 70), (1, 1, 1), (65, 97, 300), (5, 6, 0)):
        PRODUCTS[name].check(*shape)


def test_results_are_those_of_fixed_sizes_to_the_bit():
    """A sum's order is that of its depth, whoever knows the sizes."""
    for shape in ((129, 257, 65), (64, 96, 32), (1, 1, 1), (31, 37, 100)):
        a, b, c = PRODUCTS["f32"].operands(*shape)
        made = shipped.gemm(shape, f32, tile=(64, 96, 32))
        fixed = poisoned(c.shape, f32)
        compiled(made.kernel, subs=made.subs, target="cpu")(a, b, fixed)
        PRODUCTS["f32"].compiled()(a, b, c)
        np.testing.assert_array_equal(c, fixed)


# -- kernels without products ---------------------------------------------------------------------------------------

TWO = [WorkgroupConstraint(M, 24, 0), WorkgroupConstraint(N, 40, 1)]


@wave(TWO)
def scaled(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a) * 2.0 + 1.0, c)


@wave(TWO)
def in_place(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a) * 2.0, c)
    write(read(c) + 1.0, c)


@wave(TWO)
def read_again(a: Memory[M, N, G, f32], c: Memory[N, M, G, f32]):
    write(read(a), c)
    write(read(c) * 2.0 + 1.0, c)


@wave(TWO)
def upside_down(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a, mapping=IndexMapping(2, inputs={M: M - 1 - i, N: j}, outputs={M: i, N: j})), c)


@wave(TWO)
def scattered(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a), c, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: N - 1 - j}))


@wave(TWO)
def halves(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a, mapping=IndexMapping(2, inputs={M: i // 2, N: j}, outputs={M: i, N: j})), c)


MOVED = {
    scaled: lambda a: a * 2 + 1,
    in_place: lambda a: a * 2 + 1,
    read_again: lambda a: (a * 2 + 1).T,
    upside_down: lambda a: a[::-1],
    scattered: lambda a: a[:, ::-1],
    halves: lambda a: np.repeat(a, 2, 0)[: len(a)],
}


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("kernel", MOVED, ids=lambda k: k.name)
def test_kernels_that_move_numbers_of_any_shape(kernel, at_end):
    made, rng = compiled(kernel, target="cpu"), np.random.default_rng(0)
    for shape in ((24, 40), (48, 80), (1, 1), (25, 41), (23, 39), (100, 7), (3, 211), (0, 5), (5, 0)):
        a = between_guards(rng.integers(-9, 10, shape).astype(np.float32), at_end)
        want = MOVED[kernel](a)
        c = between_guards(poisoned(want.shape, f32), at_end)
        made(a, c)
        np.testing.assert_array_equal(c, want)


@wave(TWO)
def last_rows(a: Memory[L, N, G, i8], c: Memory[M, N, G, i8]):
    write(read(a, mapping=IndexMapping(2, inputs={L: L - 1 - i, N: j}, outputs={M: i, N: j})), c)


def test_arrays_of_more_elements_than_32_bits_count():
    """Nearly all of it is never touched, and takes no memory."""
    made = compiled(last_rows, target="cpu")
    a = np.zeros((70_000, 65_537), np.int8)
    a[-3:] = np.arange(65_537) % 100 + np.arange(3)[:, None]
    c = poisoned((3, 65_537), i8)
    made(a, c)
    np.testing.assert_array_equal(c, a[:-4:-1])


@wave([*TWO, TilingConstraint(K, 16)])
def two_sums(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
    """One product is packed, the other's operand is computed."""

    @iterate(K, init_args=[Register[M, N, f32](0.0), Register[M, N, f32](0.0)])
    def sums(plain, shifted):
        return mma(read(a), read(b), plain), mma(read(a) + 1.0, read(b), shifted)

    write(sums[0], c)
    write(sums[1], d)


def test_a_packed_product_beside_one_that_is_not():
    """The loop keeps the author's steps, and the last of them reads beyond K."""
    made, rng = compiled(two_sums, target="cpu"), np.random.default_rng(0)
    for m, n, k in ((24, 40, 16), (25, 41, 17), (1, 1, 1), (50, 7, 3), (9, 8, 0), (7, 5, 50)):
        a, b = (rng.integers(-8, 9, s).astype(np.float32) for s in ((m, k), (n, k)))
        c, d = poisoned((m, n), f32), poisoned((m, n), f32)
        made(a, b, c, d)
        np.testing.assert_array_equal(c, a @ b.T)
        np.testing.assert_array_equal(d, (a + 1) @ b.T)


@wave([*TWO, WorkgroupConstraint(B, 1, 2), TilingConstraint(K, 16)])
def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@wave([*TWO, TilingConstraint(K, 16)])
def biased(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], bias: Memory[N, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[read(c)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total + read(bias), c)


def test_batches_are_open_too():
    made, rng = compiled(batched, target="cpu"), np.random.default_rng(0)
    assert str(made.ir()).count("prepack(") == 2
    for count, m, n, k in ((1, 24, 40, 16), (3, 25, 41, 17), (2, 1, 1, 1), (5, 50, 7, 3), (0, 3, 4, 5), (2, 3, 4, 0)):
        a, b = random_array(rng, (count, m, k), f16), random_array(rng, (count, n, k), f16)
        c = poisoned((count, m, n), f32)
        made(a, b, c)
        if c.size:
            check_product(c, a, b)


def test_a_product_that_is_added_to_what_was_there():
    made, rng = compiled(biased, target="cpu"), np.random.default_rng(0)
    for m, n, k in ((24, 40, 16), (25, 41, 17), (1, 1, 1), (50, 7, 3), (9, 8, 0)):
        a, b, bias, c = (rng.integers(-8, 9, s).astype(np.float32) for s in ((m, k), (n, k), (n,), (m, n)))
        want = c + a @ b.T + bias
        made(a, b, bias, c)
        np.testing.assert_array_equal(c, want)


def test_some_sizes_may_be_fixed():
    """What subs say is folded, and an array that does not agree is refused."""
    for fixed in ({M: 70}, {N: 90}, {K: 33}, {N: 90, K: 33}):
        subs = {BLOCK_M: 32, BLOCK_N: 48, BLOCK_K: 16, **fixed}
        made = compiled(gemm(f32), subs=subs, target="cpu")
        assert not set(made.open_sizes) & {str(s) for s in fixed}
        for m, n, k in ((70, 90, 33), (fixed.get(M, 1), fixed.get(N, 7), fixed.get(K, 50))):
            a, b, c = PRODUCTS["f32"].operands(m, n, k)
            made(a, b, c)
            check_product(c, a, b)
        with pytest.raises(CallError):
            made(*PRODUCTS["f32"].operands(71, 91, 34))


# -- one binary, and little kept ------------------------------------------------------------------------------------


@pytest.fixture
def compiles(monkeypatch):
    """How often LLVM was asked."""
    asked, ask = [], assembler.assemble
    monkeypatch.setattr(assembler, "assemble", lambda *given: asked.append(1) or ask(*given))
    return asked


def test_a_thousand_sizes_compile_once(compiles, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    made = compiled(gemm(f32), subs={BLOCK_M: 32, BLOCK_N: 32, BLOCK_K: 16}, target="cpu")
    b, rng = np.ones((9, 5), np.float32), np.random.default_rng(0)
    for m in range(1, 1001):
        a, c = rng.integers(-9, 10, (m, 5)).astype(np.float32), poisoned((m, 9), f32)
        made(a, b, c)
        np.testing.assert_array_equal(c, np.repeat(a.sum(1, keepdims=True), 9, 1))
    assert len(compiles) == 1


def test_what_is_kept_of_calls_is_bounded(monkeypatch):
    for module in (cpu, kept_sizes):
        monkeypatch.setattr(module, "KEPT_CALLS", 50)
    made = compiled(gemm(f32), subs={BLOCK_M: 32, BLOCK_N: 32, BLOCK_K: 16}, target="cpu")

    def call(m):
        made(np.ones((m, 5), np.float32), np.ones((9, 5), np.float32), np.empty((m, 9), np.float32))

    call(1)
    opening = made.build.program._opening
    for m in range(1, 301):
        call(m)
        assert len(opening._kept) <= 50
        assert len(made.sizes._kept) <= 50
    assert len(made.build.program._frames) == 1


def test_machine_code_with_open_sizes_comes_from_the_cache(compiles, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    subs = {BLOCK_M: 32, BLOCK_N: 48, BLOCK_K: 16}
    first = compiled(gemm(f32), subs=subs, target="cpu")
    again = compiled(gemm(f32), subs=subs, target="cpu")
    assert len(compiles) == 1
    assert again.build.launch == first.build.launch
    a, b, c = PRODUCTS["f32"].operands(33, 50, 20)
    again(a, b, c)
    check_product(c, a, b)


def test_calls_with_other_sizes_at_once():
    """Each has its own memory for what it packs, and its own words."""
    rng, jobs = np.random.default_rng(0), []
    for m, n, k in rng.integers(1, 90, (60, 3)).tolist():
        jobs.append(PRODUCTS["f32"].operands(m, n, k, seed=m))
    made = PRODUCTS["f32"].compiled()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda arrays: made(*arrays), jobs))
    for a, b, c in jobs:
        check_product(c, a, b)


# -- as quick as known sizes ----------------------------------------------------------------------------------------

PRODUCTS_OF_MACHINES = ("fmadd", "pmadd", "tdp", "fmla", "sdot", "mulps", "mla")


def k_loop(asm):
    """How often each instruction stands in the loop that multiplies most."""
    lines = [re.split("#|//", line)[0].strip() for line in asm.split("\nworkgroup:")[1].splitlines()]
    lines = [line for line in lines if line]
    loops = []
    for first, line in enumerate(lines):
        if not (line.startswith(".L") and line.endswith(":")):
            continue
        inside = list(itertools.takewhile(lambda x: not x.endswith(":"), lines[first + 1 :]))
        back = [at for at, x in enumerate(inside) if x.split()[-1] == line[:-1]]
        if back:
            loops.append([x.split()[0] for x in inside[: back[0] + 1] if not x.startswith(".")])
    return Counter(max(loops, key=lambda loop: sum(any(p in x for p in PRODUCTS_OF_MACHINES) for x in loop)))


LOOPS = [(f32, name) for name in INSTRUCTION_SETS if not INSTRUCTION_SETS[name].only]
LOOPS += [(dtype, name) for dtype in (bf16, i8) for name in ("amx", "avx512", "neon-dot")]


@pytest.mark.parametrize(("dtype", "instruction_set"), LOOPS, ids=str)
def test_the_loop_over_k_is_that_of_known_sizes(dtype, instruction_set):
    """The same instructions, but for how steps are counted."""
    made = shipped.gemm((2047, 2049, 2051), dtype)
    subs = {s: value for s, value in made.subs.items() if s not in (M, N, K)}
    fixed, opened = (
        k_loop(compiled(made.kernel, subs=given, target="cpu", instruction_set=instruction_set).asm)
        for given in (made.subs, subs)
    )
    counting = {"cmpq", "cmp", "decq", "incq", "addq", "add", "subs", "leaq"}
    assert sum(fixed.values()) >= 14
    assert {x: n for x, n in fixed.items() if x not in counting} == {
        x: n for x, n in opened.items() if x not in counting
    }
    assert abs(sum(fixed.values()) - sum(opened.values())) <= 1


# -- in a file ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The facts and members of a file that holds a product's machine code."""
    monkeypatch.chdir(tmp_path)
    made = PRODUCTS["f32"].compiled()
    facts, members = made.build.stored()
    return made.kernel, json.loads(json.dumps(facts)), members


def loaded(kernel, facts, members):
    saved_file.write("gemm.tilewave", facts, members)
    return TARGETS["cpu"].load(saved_file.read("gemm.tilewave"), kernel)


def test_a_saved_product_takes_every_size(saved):
    build = loaded(*saved)
    for shape in ((129, 257, 65), (1, 1, 1), (6, 7, 0)):
        a, b, c = PRODUCTS["f32"].operands(*shape)
        build.run((a, b, c), *numbers_of(saved[0], a, b, c))
        check_product(c, a, b)


def numbers_of(kernel, *arrays):
    call = Sizes(kernel, {kernel.body.args[2]}).of_call(arrays, {})
    return call.numbers, call.parameters


def without(member, text, **facts):
    def change(saved):
        kernel, about, members = saved
        about["launch"].update(facts)
        return kernel, about, {**members, member: text(members[member].decode()).encode()}

    return change


DAMAGED = {
    "no text": (without("launch.ir", lambda text: text[: len(text) // 2]), "launch.ir is no kernel: "),
    "another name": (
        without("launch.ir", lambda text: text.replace("@gemm", "@other")),
        "another kernel than launch.ir",
    ),
    "another array": (
        without("launch.ir", lambda text: text.replace("%a: memory<{M}x{K}xf32", "%a: memory<{M}x{K}xf16")),
        "another kernel than launch.ir",
    ),
    "more words": (without("launch.ir", str, scratch_slot=40), "another kernel than launch.ir"),
    "fewer operands": (without("launch.ir", str, packed_slots=[14]), "another kernel than launch.ir"),
    "a size that nobody knows": (
        without("launch.ir", lambda text: text.replace("memory<{M_by_", "memory<{L_by_")),
        "is no index of the call",
    ),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_launch_is_refused(saved, how):
    change, said = DAMAGED[how]
    with pytest.raises(SavedKernelError, match=said):
        loaded(*change(saved))


def test_a_file_without_its_launch_is_refused(saved):
    kernel, about, members = saved
    with pytest.raises(SavedKernelError, match=r"gemm.tilewave holds no launch.ir"):
        loaded(kernel, about, {name: data for name, data in members.items() if name != "launch.ir"})


# -- what passes say ------------------------------------------------------------------------------------------------


def test_a_tile_that_is_scattered_tells_that_its_size_should_be_known():
    (row,) = compiled(scattered, target="cpu").why()
    assert row.step == "split_tiles"
    assert row.remedy == "let the tile divide the size, and give that in subs"
    assert not list(compiled(scattered, subs={M: 48, N: 80}, target="cpu").why())
    assert not list(PRODUCTS["f32"].compiled().why())
