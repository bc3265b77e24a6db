"""What compiling does not do twice, or for nothing."""

from dataclasses import replace

from kernels import compiled, gemm, sizes

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WaveCompileOptions,
    WorkgroupConstraint,
    f32,
    read,
    sort,
    sym,
    wave,
    wave_compile,
    write,
)
from tilewave.analysis import ranges
from tilewave.ir import dead_code, verify
from tilewave.ir.ops import Store
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.layouts.reductions import holding
from tilewave.passes.lanes import slice_rows

M, N = sym.M, sym.N


@wave([WorkgroupConstraint(M, 4, 0)])
def sorted_rows(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    values, _ = sort(read(x), dim=N)
    write(values, y)


def counted(monkeypatch, of, name):
    calls, asked = [], getattr(of, name)
    monkeypatch.setattr(of, name, lambda *given: calls.append(given) or asked(*given))
    return calls


def test_rounds_of_a_sort_ask_little_of_each_store(monkeypatch):
    """Its stores to shared memory are not sliced, and all its tiles lie among lanes in a few ways."""
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    asked, before = counted(monkeypatch, slice_rows._Slicing, "made_for"), holding.cache_info().misses
    lanes = wave_compile(WaveCompileOptions(subs={M: 10, N: 64}, target="sm_90a"), sorted_rows).steps[-1].after
    stores = [op for op in walk(lanes.body) if isinstance(op, Store)]
    outside = [op for op in stores if is_in(op.memory, "global")]
    assert len(stores) > 5 * len(outside) and len(asked) <= 4 * len(outside)
    assert holding.cache_info().misses - before < len(stores) // 2


def test_a_kernel_without_dead_code_is_not_rewritten(monkeypatch):
    kernel = compiled(gemm(), subs=sizes(64, 64, 32)).steps[-1].after
    rewritten = counted(monkeypatch, dead_code, "rewrite")
    assert dead_code.eliminate_dead_code(kernel) is kernel and rewritten == []


def test_ranges_are_computed_for_those_who_ask(monkeypatch):
    kernel = compiled(gemm(), subs=sizes(64, 64, 32)).steps[-1].after
    learned = counted(monkeypatch, ranges, "at_launch")
    found = ranges.Ranges(kernel)
    assert learned == []
    index = next(v for op in walk(kernel.body) for v in op.results if v.type == INDEX_SCALAR)
    assert found.of(index) == found.of(index) and len(learned) == 1


def test_ops_are_checked_once_whatever_their_waves(monkeypatch):
    kernel = compiled(gemm(), subs=sizes(64, 64, 32)).steps[-1].after
    checked = counted(monkeypatch, verify, "_check")
    verify.verify(replace(kernel, waves=(2, 2), lanes=64))
    assert checked == []
