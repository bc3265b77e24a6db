"""No tile makes LLVM take minutes: what would be too long unrolled becomes loops."""

import resource

import numpy as np
import pytest

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.lower.cpu.kernel import LONGEST_UNROLLED

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


@pytest.mark.share(4)
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
        monkeypatch.setattr("tilewave.lower.cpu.kernel.LONGEST_UNROLLED", limit)
        o = np.full((64, 64), np.nan, np.float32)
        compiled(chain(*tile))(q, x, v, o)
        assert np.array_equal(o, wanted)
