"""What compiling does not do twice, or for nothing."""

from dataclasses import replace

from kernels import compiled, gemm, sizes

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WaveCompileOptions,
    WorkgroupConstraint,
    f16,
    f32,
    read,
    sort,
    sym,
    wave,
    wave_compile,
    write,
)
from tilewave.analysis import ranges
from tilewave.analysis.positions import scalars_of
from tilewave.backend.nvidia import build
from tilewave.ir import dead_code, verify
from tilewave.ir.ops import Store
from tilewave.ir.parse import parse
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.kernels import gemm as product_of
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


DEAD = """
kernel @dead {workgroups = 4} (%c: memory<64xf32, global>, %x: index, %t: tile<16xf32>) {
  %a = add(%x, %x) : index
  %b = mul(%a, %x) : index
LOOP
  write(%t, %c, [%x]) {axes = [0]}
}
"""
LOOP = """
  %r, %s = loop(%x, [%x, %x]) : index, index do (%i: index, %p: index, %q: index) {
    %n = add(%p, %b) : index
    yield([%n, %q])
  }
  %u = add(%r, %s) : index
"""


def test_dead_ops_are_dropped_in_one_round(monkeypatch):
    rewritten = counted(monkeypatch, dead_code, "rewrite")
    smaller = dead_code.eliminate_dead_code(parse(DEAD.replace("LOOP", "")))
    assert [op.name for op in smaller.body.ops] == ["write"] and len(rewritten) == 1


def test_what_only_a_dead_loop_uses_is_dropped_with_it():
    smaller = dead_code.eliminate_dead_code(parse(DEAD.replace("LOOP", LOOP)))
    assert [op.name for op in smaller.body.ops] == ["write"]


def test_a_kernel_is_printed_once_for_its_key(monkeypatch):
    printed = counted(monkeypatch, build, "unnamed")
    product = product_of((4096, 4096, 4096), f16, f16, tile=(128, 256, 64))
    wave_compile(WaveCompileOptions(subs=product.subs, target="sm_90a"), product.kernel)
    assert [kernel.level for (kernel,) in printed] == ["tile"]


def test_passes_share_what_is_known_of_scalars():
    kernel = compiled(gemm(), subs=sizes(64, 64, 32)).steps[-1].after
    assert scalars_of(kernel.body) is scalars_of(replace(kernel, name="other").body)


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
