"""Machine code of CPUs for open sizes: compiled once, what is kept of calls, its loops, in a file, what passes say."""

import concurrent.futures
import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest
from kernels import *
from open_products import PRODUCTS

from tilewave import kernels as shipped
from tilewave.backend import assembler
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.backend.targets import TARGETS
from tilewave.errors import SavedKernelError
from tilewave.runtime import cpu, saved_file
from tilewave.runtime import sizes as kept_sizes
from tilewave.runtime.sizes import Sizes

i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)


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
    program, tiles = made.build.program, (np.ones((9, 5), np.float32), np.empty((4, 9), np.float32))
    for pitch in range(5, 205):
        made(np.ones((4, pitch), np.float32)[:, :5], *tiles)
        assert len(program._strides) <= cpu.KEPT_STRIDES + 1
    assert len(program._strides) > 1


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
    """Count each instruction in the loop with the most multiplications."""
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


@pytest.mark.share(6)
@pytest.mark.parametrize(("dtype", "instruction_set"), LOOPS, ids=str)
def test_the_loop_over_k_is_that_of_known_sizes(dtype, instruction_set):
    """The instructions are equal, except for how steps are counted, and how rows that are read in place are addressed:
    one by one, or each from the one before, which LLVM prefers where it knows how many there are."""
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
    addressed = fixed["vbroadcastss"] if (dtype, instruction_set) == (f32, "avx512") else 0
    assert abs(sum(fixed.values()) - sum(opened.values())) <= 1 + addressed


# -- in a file ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The facts and members of a file that holds a product's machine code."""
    monkeypatch.chdir(tmp_path)
    made = PRODUCTS["f32"].compiled()
    facts, members = TARGETS["cpu"].stored(made.build)
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
    "more words": (without("launch.ir", str, scratch_slot=40), "another kernel than kernel.ir"),
    "fewer operands": (without("launch.ir", str, packed_slots=[14]), "another kernel than kernel.ir"),
    "a size that nobody knows": (
        without("launch.ir", lambda text: text.replace("memory<{N_by_", "memory<{L_by_")),
        "is no index argument",
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


@wave([WorkgroupConstraint(M, 24, 0), WorkgroupConstraint(N, 40, 1)])
def scattered(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a), c, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: N - 1 - j}))


def test_a_tile_that_is_scattered_tells_that_its_size_should_be_known():
    (row,) = compiled(scattered, target="cpu").why()
    assert row.step == "split_tiles"
    assert row.remedy == "let the tile divide the size, and give the size in subs"
    assert not list(compiled(scattered, subs={M: 48, N: 80}, target="cpu").why())
    assert not list(PRODUCTS["f32"].compiled().why())
