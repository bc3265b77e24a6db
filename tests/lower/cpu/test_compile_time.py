"""No tile makes LLVM take minutes: what would be too long unrolled becomes loops."""

import resource

import numpy as np
import pytest
from quick_code import compile_here

from tilewave import *
from tilewave.backend.amd.spelling import Amdgcn
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.backend.llvm_child import MOST_PRODUCTS, REDUCES_STRENGTH, Llvm, most_products
from tilewave.lower.cpu.kernel import LONGEST_UNROLLED
from tilewave.machine.chips import CHIPS

M, N, K, L, G = sym.M, sym.N, sym.K, sym.L, GLOBAL_ADDRESS_SPACE
SUBS = {M: 64, N: 64, K: 33, L: 64}
SETS = [name for name, s in INSTRUCTION_SETS.items() if not s.matrix_unit]


def chain(m, n, k, steps, dtype=f16):
    tiles = [
        WorkgroupConstraint(M, m, 0),
        WorkgroupConstraint(N, n, 1),
        TilingConstraint(K, k),
        TilingConstraint(L, steps),
    ]

    @wave(tiles)
    def chain(q: Memory[M, K, G, dtype], x: Memory[L, K, G, dtype], v: Memory[N, L, G, dtype], o: Memory[M, N, G, f32]):
        @iterate(L, init_args=[Register[M, N, f32](0.0)])
        def outer(acc):
            @iterate(K, init_args=[Register[M, L, f32](0.0)])
            def inner(s):
                return mma(read(q), read(x), s)

            return mma(cast(inner, dtype), read(v), acc)

        write(outer, o)

    return chain


def compiled(kernel, instruction_set=None):
    return wave_compile(WaveCompileOptions(subs=SUBS, target="cpu", instruction_set=instruction_set), kernel)


@pytest.fixture(autouse=True)
def _nothing_from_the_cache(monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")


@pytest.mark.llvm_child
@pytest.mark.parametrize("instruction_set", SETS)
def test_a_chain_of_products_takes_seconds_of_the_processor(instruction_set):
    """Up to 2 s here, where all unrolled they took up to 47; the processor's time does not depend on its load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    compiled(chain(32, 32, 16, 32), instruction_set)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10


@pytest.mark.share(8)
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("tile", [(8, 64, 16, 16), (32, 32, 32, 32), (64, 16, 33, 16), (32, 32, 1, 31)])
def test_what_llvm_gets_has_a_limit(monkeypatch, instruction_set, tile):
    given = []

    class Enough(Exception):
        pass

    def look(kernel, target, llvm_ir, machine):
        given.append(llvm_ir)
        raise Enough

    monkeypatch.setattr("tilewave.backend.cpu.build.assembled", look)
    with pytest.raises(Enough):
        compiled(chain(*tile), instruction_set)
    runtime = INSTRUCTION_SETS[instruction_set].runtime
    assert given[0].count("\n") <= LONGEST_UNROLLED + runtime.count("\n")


@pytest.mark.parametrize("tile", [(16, 16, 16, 16), (8, 32, 16, 8), (32, 32, 16, 32)])
def test_loops_give_what_unrolled_code_gives(monkeypatch, tile):
    choose = np.random.default_rng(0)
    shapes = (64, 33), (64, 33), (64, 64)
    q, x, v = (choose.integers(-2, 3, shape).astype(np.float16) for shape in shapes)  # exact, also where f16 holds sums
    wanted = (q.astype(np.float64) @ x.T).astype(np.float16).astype(np.float64) @ v.T
    for limit in (0, 10**9):
        for bound in ("LONGEST_UNROLLED", "LONGEST_BLOCK"):
            monkeypatch.setattr(f"tilewave.lower.cpu.kernel.{bound}", limit)
        o = np.full((64, 64), np.nan, np.float32)
        compiled(chain(*tile))(q, x, v, o)
        assert np.array_equal(o, wanted)


def elementwise(dtype):
    """256 elements a lane: one wave has a tile of 128x128."""
    cut = [WaveConstraint(M, 128), WaveConstraint(N, 128)]
    tiles = [WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 128, 1), *cut]

    @wave(tiles)
    def add(a: Memory[M, N, G, dtype], b: Memory[M, N, G, dtype], c: Memory[M, N, G, dtype]):
        write(read(a) + read(b), c)

    return add


def machine_code(chip, kernel, subs):
    """What LLVM gets, and how much assembly it makes of it."""
    made = wave_compile(WaveCompileOptions(subs=subs, target=chip), kernel)
    return made.llvm_ir, made.asm.count("\n")


@pytest.mark.parametrize(("chip", "dtype"), [("gfx942", f8e4m3fnuz), ("gfx950", f8e4m3fn), ("gfx950", f8e5m2)])
def test_a_large_elementwise_tile_of_8_bit_floats_is_short(chip, dtype):
    """Two conversions an instruction: in arithmetic alone these were 8,000 lines, which LLVM ordered for seconds."""
    llvm_ir, lines = machine_code(chip, elementwise(dtype), {M: 128, N: 128})
    assert llvm_ir.count("call <2 x float> @llvm.amdgcn.cvt.pk.f32") == 2 * 128
    assert lines < 1500


@pytest.mark.parametrize("dtype", [f32, bf16, i8], ids=str)
def test_strength_reduction_is_left_out_where_a_block_multiplies_much(monkeypatch, dtype):
    asked = []
    monkeypatch.setattr(Llvm, "set_option", lambda llvm, name, option: asked.append(option))
    lanes = wave_compile(WaveCompileOptions(subs={M: 128, N: 128}, target="gfx950"), elementwise(dtype)).build.program
    compile_here(lanes.llvm_ir, Amdgcn(CHIPS["gfx950"]).machine)
    small = wave_compile(WaveCompileOptions(subs=SUBS, target="gfx950"), gemm_of(64))
    compile_here(small.llvm_ir, Amdgcn(CHIPS["gfx950"]).machine)
    assert asked == [f"{REDUCES_STRENGTH}=0", f"{REDUCES_STRENGTH}=1"]


def gemm_of(tile):
    @wave([WorkgroupConstraint(M, tile, 0), WorkgroupConstraint(N, tile, 1), TilingConstraint(K, 32)])
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    return gemm


@pytest.mark.parametrize("tile", [64, 128])
def test_a_gemm_keeps_all_of_llvms_passes(tile):
    """A GEMM multiplies few positions, even where one wave has the whole tile."""
    llvm_ir, _ = machine_code("gfx942", gemm_of(tile), {M: 1000, N: 1000, K: 256})
    assert 0 < most_products(llvm_ir) <= MOST_PRODUCTS


def test_products_are_counted_by_block():
    assert most_products("") == 0
    text = "a:\n  %x = mul i32 %p, %q\n  %y = mul nuw nsw i64 %x, %q\n  %z = mul i32 %y, 4\nb:\n  %w = mul i32 %z, %z\n"
    assert most_products(text) == 2
