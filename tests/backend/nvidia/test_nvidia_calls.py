"""A kernel called with tensors on a GPU: which target it takes, what the launch passes, and what is refused."""

from __future__ import annotations

import struct

import kernels
import numpy as np
import pytest
from fake_array_libraries import install_torch
from fake_cuda import FakeCuda, Gpu
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G
from kernels import M as M_
from kernels import N as N_

from tilewave import *
from tilewave.backend import targets
from tilewave.backend.targets import target_here
from tilewave.errors import CallError, TargetError
from tilewave.runtime import cuda_driver as cuda_driver_module
from tilewave.runtime import driver as driver_module

FAST = [WorkgroupConstraint(M_, 64, 0), WorkgroupConstraint(N_, 64, 1)]


@pytest.fixture(autouse=True)
def _nobody_says_where(monkeypatch):
    """As on a user's machine: the target is detected, again for each test."""
    monkeypatch.delenv("TILEWAVE_TARGET")
    targets._found_here.cache_clear()
    yield
    targets._found_here.cache_clear()


def mixed():
    @wave(FAST)
    def mixed(x: f32, a: Memory[M_, N_, G, f32], on: bool, c: Memory[M_, N_, G, f32], n: i8, y: f16, z: f64):
        much = cast(y, f32) + cast(z, f32) + cast(n, f32)
        write(select(on, read(a) * x, much), c)

    return mixed


def pair(torch, shape=(128, 64), numbers=(0, 0)):
    return [torch.Tensor(0x10000 * (i + 1) * 16, shape, number=n) for i, n in enumerate(numbers)]


def test_tensors_on_a_gpu_run_there_and_numbers_are_passed_by_their_bits(fake, torch):
    a, c = pair(torch)
    kernel = mixed()
    kernel(-0.5, a, True, c, -3, y=1.5, z=-2.0)
    kernel(0.25, a, False, c, 7, y=-1.0, z=1e300 / 1e300)
    first, second = fake.launches
    assert first.function == "mixed" and first.grid == (2, 1, 1)
    for seen, want in ((first, (-0.5, 1, -3, 1.5, -2.0)), (second, (0.25, 0, 7, -1.0, 1.0))):
        x, on, n, y, z = (seen.arguments[i] for i in (0, 4, 8, 9, 10))
        found = struct.unpack("<f", x) + struct.unpack("<B", on) + struct.unpack("<b", n)
        assert found + struct.unpack("<e", y) + struct.unpack("<d", z) == want
    assert next(iter(kernel.kept["call"]._kernels))[0][0] == "sm_90a"


def test_another_number_is_no_other_call(fake, torch):
    """What was prepared for some arrays serves every number, and is not written to: another thread may be in it."""
    a, c = pair(torch)
    kernel = mixed()
    for x in (1.0, 2.0, 3.0, 1.0):
        kernel(x, a, True, c, 0, 0.0, 0.0)
    assert [struct.unpack("<f", seen.arguments[0])[0] for seen in fake.launches] == [1.0, 2.0, 3.0, 1.0]
    assert len({seen.arguments[1:] for seen in fake.launches}) == 1
    (compiled,) = kernel.kept["call"]._kernels.values()
    by_class = [key for key in compiled.build.program.calls.launches if isinstance(key, bytes)]
    assert len(by_class) == 1 and len(compiled.build.program.calls.launches) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda kernel, a, c: kernel(1.0, a, True, c, 0, 0.0, 0.0),
        lambda kernel, a, c: kernel(1.0, a, True, c, 0, y=0.0, z=-1.0),
        lambda kernel, a, c: kernel(x=1.0, a=a, on=True, c=c, n=0, y=0.0, z=-1.0),
        lambda kernel, a, c: next(iter(kernel.kept["call"]._kernels.values()))(1.0, a, True, c, 0, 0.0, z=0.0),
    ],
    ids=["in order", "by name", "all by name", "compiled"],
)
def test_however_arrays_and_numbers_are_given_machine_code_makes_the_call(fake, torch, call, monkeypatch):
    kernel = mixed()
    for _ in range(2):
        kernel(2.0, *pair(torch)[:1], True, pair(torch)[1], 0, 0.0, 0.0)
    monkeypatch.setattr("tilewave.runtime.cuda_calls.seen_arrays", None)  # Python asks nothing of these tensors
    call(kernel, *pair(torch))
    assert len(fake.launches) == 3


def test_a_gemm_runs_where_its_tensors_are(fake, torch):
    half = {BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64}
    gemm = wave(kernels.tiling(), subs=half)(kernels.gemm(f16, out=f16, epilogue=lambda x: cast(x, f16)).function)
    given = [
        torch.Tensor(0x100000 * (i + 1), s, "torch.float16") for i, s in enumerate(((256, 64), (512, 64), (256, 512)))
    ]
    gemm(*given)
    gemm(*given)
    gemm(a=given[0], c=given[2], b=given[1])
    assert [seen.function for seen in fake.launches] == ["gemm"] * 3
    for argument, again in zip(fake.launches[1].arguments, fake.launches[2].arguments, strict=True):
        assert argument == again or fake.map_of(argument) == fake.map_of(again)


def told(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return caught.value.what, caught.value.remedy


def copy_kernel():
    @wave(FAST)
    def copy(a: Memory[M_, N_, G, f32], c: Memory[M_, N_, G, f32]):
        write(read(a), c)

    return copy


def test_arrays_on_two_devices_are_refused_with_both(fake, torch):
    a, c = pair(torch)
    there = np.empty((128, 64), np.float32)
    assert told(CallError, lambda: copy_kernel()(there, c)) == (
        "copy: a is on cpu, but c is on cuda:0",
        "pass a copy of a on cuda:0",
    )
    assert told(CallError, lambda: copy_kernel()(a, there))[0] == "copy: c is on cpu, but a is on cuda:0"
    a, c = pair(torch, numbers=(0, 1))
    assert told(CallError, lambda: copy_kernel()(a, c)) == (
        "copy: c is on cuda:1, but a is on cuda:0",
        'pass c.to("cuda:0")',
    )
    assert fake.launches == []


def gpus(monkeypatch, *found):
    fake = FakeCuda(*found)
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda file: fake)
    cuda_driver_module._opened.cache_clear()
    return fake


def test_a_gpu_that_no_target_is_for_is_told(fake, torch, monkeypatch):
    gpus(monkeypatch, Gpu("NVIDIA A100", (8, 0)))
    assert told(TargetError, lambda: copy_kernel()(*pair(torch))) == (
        "copy: its arrays are on cuda:0, NVIDIA A100 (sm_80), for which there is no target",
        "the targets on cuda are sm_90a; copy the arrays to the CPU, or there",
    )


def test_a_gpu_that_is_not_there_is_told(torch, monkeypatch):
    def nothing(file):
        raise OSError(file)

    monkeypatch.setattr(driver_module.ctypes, "CDLL", nothing)
    cuda_driver_module._opened.cache_clear()
    what, remedy = told(TargetError, lambda: copy_kernel()(*pair(torch)))
    assert what.startswith("copy: its arrays are on cuda:0, but this machine has no NVIDIA driver")
    assert "interpret(…) runs the kernel in numpy on any machine" in remedy


def test_without_arrays_the_gpu_that_is_here_is_taken(fake, monkeypatch):
    assert target_here() == "sm_90a"
    options = WaveCompileOptions(subs={M_: 128, N_: 64})
    assert set_default_run_config(options).target == "sm_90a"
    assert wave_compile(options, copy_kernel()).target == "sm_90a"
    assert copy_kernel().compile(subs={M_: 128, N_: 64}).target == "sm_90a"
    asked = fake.calls.count("cuDeviceGetCount")
    assert target_here() == "sm_90a" and fake.calls.count("cuDeviceGetCount") == asked


@pytest.mark.parametrize("found", [(), (Gpu("NVIDIA A100", (8, 0)),)])
def test_without_a_gpu_that_a_target_is_for_it_is_the_cpu(fake, found, monkeypatch):
    gpus(monkeypatch, *found)
    assert target_here() == "cpu"
    assert set_default_run_config(WaveCompileOptions()).target == "cpu"
    assert set_default_run_config(WaveCompileOptions(target="gfx942")).target == "gfx942"


def test_the_second_gpu_may_be_the_one_that_a_target_is_for(fake, torch, monkeypatch):
    fake = gpus(monkeypatch, Gpu("NVIDIA A100", (8, 0)), Gpu())
    assert target_here() == "sm_90a"
    copy_kernel()(*pair(torch, numbers=(1, 1)))
    assert fake.launches[0].context == fake.context_of(1)


def test_the_environment_names_another_default(fake, monkeypatch):
    monkeypatch.setenv("TILEWAVE_TARGET", "gfx942")
    assert target_here() == "gfx942"
    monkeypatch.setenv("TILEWAVE_TARGET", "gfx9")
    with pytest.raises(TargetError, match="unknown target 'gfx9': there is none for this chip"):
        copy_kernel().compile(subs={M_: 128, N_: 64})


def test_a_kernel_compiled_without_a_target_runs_where_its_arrays_are(fake, torch):
    compiled = copy_kernel().compile(subs={M_: 128, N_: 64})
    assert compiled.target == "sm_90a"
    compiled(*pair(torch))
    assert len(fake.launches) == 1
    a, c = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    compiled(a, c)
    np.testing.assert_array_equal(c, a)
    assert len(fake.launches) == 1


def test_a_kernel_compiled_for_a_target_stays_there(fake, torch):
    compiled = copy_kernel().compile(target="sm_90a", subs={M_: 128, N_: 64})
    a, c = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    what, remedy = told(CallError, lambda: compiled(a, c))
    assert what == "copy: a is on cpu, but the kernel runs on cuda"
    assert remedy.endswith('or compile with target="cpu"')


def test_no_tiles_launch_nothing_on_a_gpu(fake, torch):
    copy_kernel()(*pair(torch, shape=(0, 64)))
    assert fake.launches == []


def test_no_element_to_write_launches_nothing_on_a_gpu(fake, torch):
    """A whole row without columns is a tile all the same, and arrays without elements may have no address."""

    @wave([WorkgroupConstraint(M_, 8, 0)])
    def halved(x: Memory[M_, N_, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M_, N_, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x) * 0.5, y)

    for shape, launched in (((3, 0), 0), ((3, 4), 1), ((3, 0), 1), ((3, 4), 2)):
        address = 0x10000 if shape[1] else 0
        halved(*(torch.Tensor(address * (i + 1), shape) for i in range(2)))
        assert len(fake.launches) == launched


def test_tensors_of_a_torch_for_amd_are_not_nvidias(fake, monkeypatch):
    torch = install_torch(monkeypatch, hip="6.4")
    a, c = pair(torch)
    assert told(TilewaveError, lambda: copy_kernel()(a, c))[0].startswith("copy: its arrays are on rocm:0, but")
