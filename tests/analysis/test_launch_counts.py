"""How many tiles a kernel has, and how many workgroups one launch starts: `compiled.workgroups`, and the resources."""

import pytest
from kernels import *

from tilewave.analysis.launch_counts import is_persistent, most_workgroups, tiles_of, workgroups_of
from tilewave.backend.nvidia.ptxas import read_log
from tilewave.backend.protocol import ASSEMBLED
from tilewave.ir.parse import parse

G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 256, 1), TilingConstraint(K, 64)])
def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total, f16), c)


@wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 32)])
def steps(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    @iterate(N, init_args=[])
    def doubled():
        write(read(x) * 2.0, y)


SIZES = {M: 4096, N: 4096, K: 4096}
LOG = "ptxas info    : Used 168 registers\n16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


@pytest.mark.parametrize(("target", "count"), [("sm_90a", 132), ("gfx942", 512), ("cpu", 512), ("numpy", 512)])
def test_a_launch_starts_so_many_workgroups(target, count):
    compiled = product.compile(target=target, subs=SIZES)
    assert compiled.workgroups == count and f": {count} workgroups, 32x16 tiles>" in repr(compiled)
    assert ("workgroups", count) in [*compiled.__rich_repr__()]
    assert tiles_of(compiled.kernel) == 512
    launched = compiled.build.lanes or compiled.kernel
    assert is_persistent(compiled.traced, launched) == (target == "sm_90a")


def test_code_from_the_cache_says_it_without_the_passes():
    assert product.compile(target="sm_90a", subs=SIZES).code_object
    again = wave_compile(WaveCompileOptions(subs=SIZES, target="sm_90a"), product)
    assert again.build.codes and again.workgroups == 132 and "passed" not in vars(again.build)


def test_a_saved_kernel_knows_what_a_launch_starts(tmp_path):
    product.compile(target="sm_90a", subs=SIZES).save(tmp_path / "product.tilewave")
    assert load(tmp_path / "product.tilewave").workgroups == 132


def test_dynamic_sizes_give_a_formula():
    compiled = product.compile(target="gfx942")
    assert compiled.workgroups == tiles_of(compiled.kernel) == "ceil(M / 128) * ceil(N / 256)"
    rows = product.compile(target="cpu", subs={M: 4096})
    assert rows.workgroups == tiles_of(rows.kernel) == "32 * ceil(N / 256)"


def test_the_launch_of_a_stream_k_kernel_is_bounded():
    compiled = product.compile(target="sm_90a")
    assert compiled.workgroups == "at most 132, computed at each launch from M, K, N"
    assert is_persistent(compiled.traced, compiled.build.lanes)


def test_a_loop_that_writes_tiles_makes_no_kernel_persistent():
    compiled = steps.compile(target="cpu", subs={M: 8, N: 96})
    assert (compiled.workgroups, tiles_of(compiled.kernel)) == (2, 6)
    assert not is_persistent(compiled.traced, compiled.kernel)


def test_an_author_s_grid_is_persistent():
    constraints = [WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 32, 1), GridConstraint(3)]

    @wave(constraints)
    def double(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        write(read(x) * 2.0, y)

    compiled = double.compile(target="cpu", subs={M: 16, N: 64})
    assert (compiled.workgroups, tiles_of(compiled.kernel)) == (3, 8)
    assert is_persistent(compiled.traced, compiled.kernel)


LAUNCH = """kernel @f {{workgroups = w}} (%a: memory<{{M}}xf32, global>, %M: index) {{
  %w = launch() : index do () {{
    %two = const() {{value = 2}} : index
    %three = const() {{value = 3}} : index
    {ops}
    yield([%end])
  }}
}}
"""


@pytest.mark.parametrize(
    ("ops", "formula", "most"),
    [
        (["%s = add(%M, %two)", "%end = floor_div(%s, %three)"], "ceil(M / 3)", ((1 << 30) + 2) // 3),
        (["%s = add(%M, %three)", "%end = floor_div(%s, %three)"], "(M + 3) // 3", ((1 << 30) + 3) // 3),
        (["%s = add(%M, %three)", "%end = mul(%s, %two)"], "(M + 3) * 2", 2 * ((1 << 30) + 3)),
        (["%s = max(%M, %two)", "%end = min(%s, %three)"], "min(max(M, 2), 3)", 3),
        (["%s = mod(%M, %three)", "%t = mul(%s, %two)", "%end = sub(%t, %two)"], "((M % 3) * 2) - 2", 0),
    ],
)
def test_formulas_are_in_python_s_signs(ops, formula, most):
    kernel = parse(LAUNCH.format(ops="\n    ".join(f"{op} : index" for op in ops)))
    assert workgroups_of(kernel) == formula and most_workgroups(kernel) == most


# -- resources


def test_gpus_have_the_same_attributes(monkeypatch):
    monkeypatch.setattr("tilewave.backend.nvidia.program.ptxas", lambda: "ptxas")
    monkeypatch.setattr("tilewave.backend.nvidia.program.assemble_ptx", lambda *given: read_log(LOG))
    found = {t: product.compile(target=t, subs=SIZES) for t in ("sm_90a", "gfx942", "gfx950")}
    for compiled in found.values():
        shown = compiled.build.metrics | compiled.build.assembled_metrics
        assert {name: shown[name] for name in ASSEMBLED} == {n: getattr(compiled.resources, n) for n in ASSEMBLED}
    hopper, amd = found["sm_90a"].resources, found["gfx942"].resources
    assert [getattr(hopper, name) for name in ASSEMBLED] == [168, 16, 12, 64, 0.1875]
    assert hopper.workgroups_per_sm == 1
    assert (amd.resident_waves, amd.most_resident_waves) == (4 * amd.waves_per_unit, 32)
    assert amd.occupancy == amd.waves_per_unit / 8 and amd.spilled_bytes == 4 * amd.spills
    assert [(r.role, r.warps, r.registers) for r in hopper.roles] == [("consumer", 8, 232), ("producer", 4, 40)]


def test_without_ptxas_what_it_counts_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("tilewave.backend.nvidia.program.ptxas", lambda: "")
    compiled = product.compile(target="sm_90a", subs=SIZES)
    compiled.save(tmp_path / "product.tilewave")
    for resources in (compiled.resources, load(tmp_path / "product.tilewave").resources):
        assert [getattr(resources, name) for name in ASSEMBLED] == [None, None, None, 64, None]
        assert resources.workgroups_per_sm is None and len(resources.roles) == 2


def test_a_kernel_without_tma_has_no_roles():
    assert steps.compile(target="sm_90a", subs={M: 8, N: 96}).resources.roles == ()
