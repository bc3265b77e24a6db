"""The cache: neither a lane-level pass nor LLVM runs, launches are the same, and a damaged entry is rebuilt."""

from __future__ import annotations

import subprocess
import sys

import kernels
import pytest
from gemm_tensors import K, M, N, tensors
from ptx_code import half_gemm

from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.nvidia import code as nvidia_code
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.errors import TilewaveError
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import unnamed
from tilewave.runtime.cache import default_cache, key_of
from tilewave.runtime.records import packed

SIZES = kernels.sizes(M, N, K, block_m=128, block_n=128, block_k=64)
LAYOUTS = {"copied": (K, 1), "loaded": (K + 2, 1), "any_strides": (1, M)}


@pytest.fixture(autouse=True)
def _an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))


def gemm(**options):
    return wave_compile(WaveCompileOptions(subs=SIZES, target="sm_90a", **options), half_gemm())


def forbid(monkeypatch, *names):
    for name in names:
        monkeypatch.setattr(name, lambda *given: pytest.fail("it was compiled again"))


@pytest.mark.parametrize("strides", LAYOUTS.values(), ids=LAYOUTS)
def test_a_call_from_the_cache_launches_the_same_and_runs_no_pass(fake, torch, monkeypatch, strides):
    gemm()(*tensors(torch, a_strides=strides))
    forbid(
        monkeypatch,
        "tilewave.backend.nvidia.build.run",
        "tilewave.backend.nvidia.compiler.lower_lanes",
        "tilewave.backend.nvidia.compiler.assembled",
    )
    gemm()(*tensors(torch, a_strides=strides))
    first, second = fake.launches
    assert (first.grid, first.block, first.shared_bytes) == (second.grid, second.block, second.shared_bytes)
    assert first.words[:9] == second.words[:9]
    assert [len(x) for x in first.arguments] == [len(x) for x in second.arguments]
    assert len({(m.box, m.pointer) for m in fake.maps}) == (3 if strides == (K, 1) else 0)


def test_what_the_passes_did_is_told_when_somebody_asks(monkeypatch):
    cold = gemm()
    ptx = cold.asm
    again = gemm()
    assert again.build.codes and not cold.build.codes
    assert [(s.name, s.after) for s in again.steps] == [(s.name, s.after) for s in cold.steps]
    assert (again.resources, again.build.lanes, again.ir()) == (cold.resources, cold.build.lanes, cold.ir())
    assert (again.build.plain.lanes, again.llvm_ir, again.asm) == (cold.build.plain.lanes, cold.llvm_ir, ptx)


def test_every_option_has_code_of_its_own(monkeypatch):
    options = [
        {},
        {"num_stages": 2},
        {"schedule": SchedulingType.PREFETCH},
        {"schedule": SchedulingType.PREFETCH, "num_stages": 2},
    ]
    keys = {gemm(**given).build.key for given in options}
    assert len(keys) == len(options)
    assert gemm(num_stages=2).asm != gemm().asm
    assert gemm(num_stages=2).asm == gemm(num_stages=2).asm


def with_waves_of(rows):
    return kernels.gemm(f16, f32, constraints=[WaveConstraint(kernels.M, rows)])


def test_code_of_a_kernel_does_not_hide_that_another_is_refused():
    """Both cut 128 rows among two waves, so their tiles have the same text."""
    options = WaveCompileOptions(subs=SIZES, target="sm_90a")
    assert wave_compile(options, with_waves_of(64)).asm
    with pytest.raises(TilewaveError, match="waves of 96 do not divide"):
        wave_compile(options, with_waves_of(96))


def test_what_values_are_called_and_where_the_kernel_stands_makes_no_difference():
    options = WaveCompileOptions(subs=SIZES, target="sm_90a")
    first = wave_compile(options, with_waves_of(64))
    renamed = wave_compile(
        options,
        with_waves_of(64),
    )
    made = shipped.gemm((M, N, K), f16, f16, tile=(128, 128, 64))
    x = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    y = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    if sys.version_info >= (3, 11):  # older versions of Python do not report variables' names
        assert str(x.kernel) != str(y.kernel), "values of kernels that come with tilewave are called as the caller's"
    assert (first.build.key, x.build.key) == (renamed.build.key, y.build.key)


def test_parameters_keep_their_names_in_the_key():
    text = "kernel @k {{workgroups = 1}} (%{a}: memory<4xf32, global>) {{\n  %{x} = const() {{value = 0}} : index\n}}\n"
    one, same, other = (unnamed(parse(text.format(a=a, x=x))) for a, x in (("a", "x"), ("a", "y"), ("b", "x")))
    assert one == same != other


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b'{"bytes_of_parts": [1]}\nx',
        packed({"arguments": [], "maps": [], "shared_bytes": -1, "workgroup_size": 1, "workgroups": 1}, [b"x"]),
        packed({"arguments": [], "maps": [{}], "shared_bytes": 1, "workgroup_size": 1, "workgroups": 1}, [b"x"]),
        packed({"arguments": [], "maps": [], "shared_bytes": 1, "workgroup_size": 1, "workgroups": 1}, [b"\xff"]),
        packed({"arguments": [], "maps": [], "shared_bytes": 1, "workgroup_size": 1, "workgroups": 1}, []),
    ],
)
def test_an_entry_that_says_something_else_is_made_anew(payload):
    made = gemm()
    ptx = made.asm
    default_cache().put(key_of(made.build.key, repr(ALIGNED)), payload)
    again = gemm()
    assert not again.build.codes
    assert again.asm == ptx
    assert gemm().build.codes, "the next one finds it whole"


def test_an_error_is_not_forgotten():
    for _ in range(2):
        with pytest.raises(TilewaveError, match="shared memory"):
            gemm(num_stages=12)


ELSEWHERE = """
import sys
from tilewave import *
from tilewave.kernels import gemm
made = gemm((256, 256, 128), f16, {out}, tile=(128, 128, 64))
compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="{target}"), made.kernel)
compiled.code_object
heavy = ("tilewave.pipeline.lists", "tilewave.lower.gpu.kernel", "tilewave.emulator", "llvmlite.binding")
print([name for name in heavy if name in sys.modules])
print(len(compiled.steps) > 10)
"""


@pytest.mark.parametrize(("target", "out"), [("sm_90a", "f16"), ("gfx942", "f32")])
def test_a_new_process_imports_no_compiler(target, out):
    script = ELSEWHERE.format(target=target, out=out)
    first, second = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    )
    assert "tilewave.lower.gpu.kernel" in first[0] and "llvmlite.binding" not in first[0]
    assert second == ["[]", "True"]


def test_code_is_kept_as_it_was():
    made = gemm()
    code = made.build.program.code_for(ALIGNED)
    assert nvidia_code.kept(made.build.key, ALIGNED) == code
    assert nvidia_code.kept(made.build.key, Specialization(BY_LANES)) is None
