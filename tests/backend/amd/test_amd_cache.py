"""The cache: neither a lane-level pass nor LLVM runs, the code is the same, and a damaged entry is rebuilt."""

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array

import tilewave.backend.amd.compiler  # noqa: F401  so that it can be forbidden
from tilewave import *
from tilewave.kernels import gemm
from tilewave.runtime.cache import default_cache, key_of

MADE = gemm((40, 50, 24), f16, tile=(32, 32, 16), mapping="grouped(2)")


@pytest.fixture(autouse=True)
def _an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))


def compiled(made=MADE, **options):
    return wave_compile(WaveCompileOptions(subs=made.subs, target="gfx942", **options), made.kernel)


@pytest.mark.parametrize("lay", [np.ascontiguousarray, np.asfortranarray])
def test_code_from_the_cache_computes_the_same_and_no_pass_runs(monkeypatch, lay):
    rng = np.random.default_rng(0)
    a, b = lay(random_array(rng, (40, 24), f16)), random_array(rng, (50, 24), f16)
    compiled().emulate(a, b, poisoned((40, 50), f32))
    for name in (
        "tilewave.backend.amd.build.run",
        "tilewave.backend.amd.compiler.lower_lanes",
        "tilewave.backend.amd.compiler.assembled",
    ):
        monkeypatch.setattr(name, lambda *given: pytest.fail("it was compiled again"))
    c = poisoned((40, 50), f32)
    compiled().emulate(a, b, c)
    check_product(c, a, b)


def test_what_the_passes_did_is_told_when_somebody_asks():
    cold = compiled()
    asm = cold.asm
    again = compiled()
    assert again.build.codes and not cold.build.codes
    assert (again.asm, again.code_object) == (asm, cold.code_object)
    assert [(s.name, s.after) for s in again.steps] == [(s.name, s.after) for s in cold.steps]
    assert (again.resources, again.build.lanes, again.llvm_ir) == (cold.resources, cold.build.lanes, cold.llvm_ir)


def test_options_and_the_author_s_lines_have_code_of_their_own():
    """Findings name lines, which are therefore part of the code."""
    prefetching = [compiled(schedule=SchedulingType.PREFETCH, num_stages=n).build.key for n in (None, 1, 2)]
    plain = compiled(schedule=SchedulingType.NONE).build.key
    elsewhere = gemm((40, 50, 24), f16, tile=(32, 32, 16), mapping="grouped(2)")
    assert prefetching[0] == prefetching[1] == compiled().build.key
    assert len({plain, compiled(elsewhere).build.key, *prefetching}) == 4
    assert compiled().build.key == compiled().build.key


@pytest.mark.parametrize("payload", [b"", b"{}\n", b'{"bytes_of_parts": [1, 1]}\nxy', b'{"bytes_of_parts": []}\n'])
def test_an_entry_that_says_something_else_is_made_anew(payload):
    made = compiled()
    code = made.code_object
    default_cache().put(key_of(made.build.key), payload)
    again = compiled()
    assert not again.build.codes
    assert again.code_object == code
