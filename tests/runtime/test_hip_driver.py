"""Every call to HIP is as its documents require, and its failures are reported with the kernel's name."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_array_libraries import forget_guests, install_torch
from fake_drivers import AmdGpu, FakeHip
from kernels import G, M, N, compiled, gemm, sizes

from tilewave import *
from tilewave.backend import targets
from tilewave.errors import CallError, TargetError, TilewaveError
from tilewave.ir.types import F32
from tilewave.runtime import driver as driver_module
from tilewave.runtime import hip as hip_module
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.gpu_launch import Address, Cluster, GpuLaunch, Stride, SymbolArgument, Table
from tilewave.runtime.hip import HipCode, HipDevice, HipDriver, HipProgram, files_in_use, hip_driver

MI350 = AmdGpu("AMD Instinct MI350X", "gfx950:sramecc+:xnack-")
PARAMETERS = (Parameter("x", (8, 4), F32, False), Parameter("y", (8, 4), F32, True))
SLOTS = (Address(0), Address(1), Stride(0, 0), SymbolArgument(0), SymbolArgument(1))
FIELDS = ((0, 8), (8, 8), (16, 8), (24, 4), (28, 2))
LAUNCH = GpuLaunch(SLOTS, (3, 2, 1), (64, 4, 1), 4096)
SCALE = HipCode("scale", "gfx942", b"\x7fELF code", LAUNCH, PARAMETERS, FIELDS)


@pytest.fixture
def fake() -> Iterator[FakeHip]:
    fake = FakeHip(AmdGpu(), AmdGpu("AMD Instinct MI325X"), MI350)
    yield fake
    assert fake.faults == []
    assert fake.device == 0


@pytest.fixture
def driver(fake: FakeHip) -> HipDriver:
    return HipDriver(fake)


@pytest.fixture
def here_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Makes a library the HIP of this machine."""
    hip_module._opened.cache_clear()

    def install(library: Any) -> None:
        monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda file: library)

    yield install
    hip_module._opened.cache_clear()
    forget_guests()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, here_is: Any, fake: FakeHip) -> Any:
    here_is(fake)
    torch = install_torch(monkeypatch, hip="6.4")
    torch.streams[2] = 0
    return torch


def told(kind: type[TilewaveError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return "\n".join([caught.value.what, *caught.value.remedy.splitlines()])


def test_every_function_is_declared_as_hip_has_it():
    ours = hip_module.AMD.signatures
    assert set(ours) == set(FakeHip.PROTOTYPES)
    for name, (_, *theirs) in FakeHip.PROTOTYPES.items():
        assert [ctypes.sizeof(t) for t in ours[name]] == [ctypes.sizeof(t) for t in theirs], name


def test_devices_tell_their_chip_without_its_settings(driver):
    assert driver.device_count() == 3
    assert driver.device(0) == HipDevice(0, "AMD Instinct MI300X", "gfx942")
    assert driver.device(2).arch == "gfx950"
    assert told(TargetError, lambda: driver.device(7)).startswith(
        "hipGetDevicePropertiesR0600 failed with hipErrorInvalidDevice (invalid device ordinal)"
    )


def test_a_code_object_for_another_chip_is_named(torch, fake):
    tensors = [torch.Tensor(at, (8, 4), number=2) for at in (0x1000, 0x2000)]
    assert told(TargetError, lambda: HipProgram(SCALE)(tensors, [1, 2])) == (
        "scale: it was compiled for gfx942, but rocm:2 (AMD Instinct MI350X) is gfx950\n"
        'compile it with target="gfx950" if there is one, or run it on another GPU; '
        "interpret(…) runs the kernel in numpy on any machine"
    )
    assert fake.modules == {}


def test_a_machine_without_hip(monkeypatch, here_is):
    def missing(file: str) -> Any:
        raise OSError(file)

    monkeypatch.setattr(driver_module.ctypes, "CDLL", missing)
    assert told(TargetError, lambda: hip_driver("scale")).startswith(
        "scale: this machine has no AMD driver (libamdhip64.so or libamdhip64.so.7 or "
    )


def test_hip_without_a_gpu(here_is):
    here_is(FakeHip())
    assert told(TargetError, lambda: hip_driver("scale")) == (
        "scale: this machine has HIP, but no AMD GPU that it can use\n"
        "check rocminfo and HIP_VISIBLE_DEVICES; interpret(…) runs the kernel in numpy on any machine"
    )


def test_rocm_5_is_too_old(driver):
    driver._library = object()
    assert told(TargetError, lambda: driver.device(0)) == (
        "the AMD driver of this machine is too old: it has no hipGetDevicePropertiesR0600\ninstall ROCm 6 or newer"
    )


def test_the_copy_of_hip_that_torch_brought_is_used(tmp_path: Path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 12 /usr/lib/libc.so.6\n"
        "7f02-7f03 r--p 00000000 08:01 13 /opt/my torch/lib/libamdhip64.so.6\n"
        "7f03-7f04 r-xp 00001000 08:01 13 /opt/my torch/lib/libamdhip64.so.6\n"
        "7f05-7f06 rw-p 00000000 00:00 0\n"
    )
    assert files_in_use(maps) == ("/opt/my torch/lib/libamdhip64.so.6",)
    assert files_in_use(tmp_path / "none") == ()


def test_a_launch_lays_out_its_arguments(torch, fake):
    torch.streams[1] = 0xABC
    x = torch.Tensor(0x1000, (8, 4), number=1, strides=(16, 1))
    y = torch.Tensor(0x2000, (8, 4), number=1)
    HipProgram(SCALE)([x, y], [-3, 7])
    (seen,) = fake.launches
    assert (seen.device, seen.kernel, seen.stream) == (1, "scale", 0xABC)
    assert (seen.grid, seen.block, seen.shared_bytes) == ((3, 2, 1), (64, 4, 1), 4096)
    assert seen.arguments == struct.pack("<QQqih", 0x1000, 0x2000, 16, -3, 7)


def test_a_program_is_loaded_once_per_device_and_the_threads_device_comes_back(torch, fake):
    scale = HipProgram(SCALE)
    for number in (0, 1, 0, 1):
        scale([torch.Tensor(at, (8, 4), number=number) for at in (0x1000, 0x2000)], [1, 2])
        assert fake.device == 0
    assert fake.calls.count("hipModuleLoadData") == 2
    assert [seen.device for seen in fake.launches] == [0, 1, 0, 1]


def test_the_threads_device_comes_back_after_a_failure(torch, fake):
    fake.failing["hipModuleLaunchKernel"] = 719
    tensors = [torch.Tensor(at, (8, 4), number=1) for at in (0x1000, 0x2000)]
    assert told(TargetError, lambda: HipProgram(SCALE)(tensors, [1, 2])) == (
        "scale: hipModuleLaunchKernel failed with hipErrorLaunchFailure (unspecified launch failure)\n"
        "an earlier kernel broke this process's GPU state: restart it, and look at the kernels launched before"
    )


def test_a_bad_image_and_a_missing_kernel_are_named(torch, fake):
    tensors = [torch.Tensor(at, (8, 4)) for at in (0x1000, 0x2000)]
    bad = HipProgram(HipCode("scale", "gfx942", b"no ELF", LAUNCH, PARAMETERS, FIELDS))
    assert told(TargetError, lambda: bad(tensors, [1, 2])).startswith(
        "scale: hipModuleLoadData failed with hipErrorInvalidImage (device kernel image is invalid)\n"
        "this is a fault of tilewave's"
    )
    other = HipProgram(HipCode("other", "gfx942", b"\x7fELF", LAUNCH, PARAMETERS, FIELDS))
    assert told(TargetError, lambda: other(tensors, [1, 2])).startswith(
        "other: hipModuleGetFunction failed with hipErrorNotFound (named symbol not found)"
    )


def test_a_compiled_kernel_names_the_target_for_arrays_that_are_not_on_the_card(torch, fake):
    kernel = compiled(gemm(), target="gfx942", subs=sizes(64, 64, 32))
    given = [np.ones(p.shape, p.dtype.numpy) for p in kernel.parameters]
    with pytest.raises(CallError) as caught:
        kernel(*given)
    assert caught.value.loc.file == __file__
    assert caught.value.remedy == 'pass a copy of a on rocm, or compile with target="cpu"'


def test_arrays_that_do_not_fit_are_refused_with_the_call_site(torch, fake):
    scale = HipProgram(SCALE)
    with pytest.raises(CallError) as caught:
        scale([np.zeros((8, 4), np.float32)] * 2, [1, 2])
    assert caught.value.what == "scale: x is on cpu, but the kernel runs on rocm"
    assert caught.value.loc.file == __file__
    same = torch.Tensor(0x1000, (8, 4))
    assert "y overlaps x" in told(CallError, lambda: scale([same, same], [1, 2]))
    two = [torch.Tensor(0x1000, (8, 4)), torch.Tensor(0x2000, (8, 4), number=1)]
    assert told(CallError, lambda: scale(two, [1, 2])) == (
        'scale: y is on rocm:1, but x is on rocm:0\npass torch.empty((8, 4), dtype=torch.float32, device="cuda:0")'
    )
    assert fake.launches == []


def test_a_cuda_array_is_not_an_amd_array(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch, hip=None)
    tensors = [torch.Tensor(at, (8, 4)) for at in (0x1000, 0x2000)]
    assert told(CallError, lambda: HipProgram(SCALE)(tensors, [1, 2])).startswith(
        "scale: x is on cuda:0, but the kernel runs on rocm\n"
    )


def test_what_amd_does_not_have_is_a_fault_of_the_compilers(torch):
    with pytest.raises(AssertionError, match="a field for each parameter"):
        HipCode("scale", "gfx942", b"", LAUNCH, PARAMETERS, FIELDS[:2])
    clustered = GpuLaunch(SLOTS, (2, 2, 1), (64, 1, 1), attributes=(Cluster((2, 1, 1)),))
    with pytest.raises(AssertionError, match="AMD has no"):
        HipCode("scale", "gfx942", b"", clustered, PARAMETERS, FIELDS)
    code = HipCode("scale", "gfx942", b"\x7fELF", GpuLaunch((Table(0),), (1, 1, 1), (1, 1, 1)), PARAMETERS, ((0, 8),))
    with pytest.raises(NotImplementedError, match="no parameter for Table"):
        HipProgram(code)([torch.Tensor(at, (8, 4)) for at in (0x1000, 0x2000)], [])


def test_a_kernel_called_with_tensors_of_a_card_runs_there_with_its_numbers(torch, fake):
    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1)])
    def scaled(n: i8, a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], x: f64):
        write(read(a) * cast(x, f32) + cast(n, f32), c)

    fake.kernels = [*fake.kernels, b"scaled"]
    a, c = torch.Tensor(0x10000, (128, 64)), torch.Tensor(0x90000, (128, 64))
    scaled(-2, a, c, x=0.1)
    scaled(5, a, x=-0.5, c=torch.Tensor(0x90000, (128, 64)))
    layout = "<bxxxxxxxqqqqqqd"  # what the launch computes from the sizes follows
    first, second = (struct.unpack_from(layout, seen.arguments) for seen in fake.launches)
    assert first == (-2, 0x10000, 64, 1, 0x90000, 64, 1, 0.1)
    assert second == (5, *first[1:7], -0.5)
    assert fake.launches[0].grid == (2, 1, 1)
    elsewhere = torch.Tensor(0x10000, (128, 64), number=2), torch.Tensor(0x90000, (128, 64), number=2)
    scaled(1, *elsewhere, x=1.0)
    assert {target for (target, *_), *_ in scaled.kept["call"]._kernels} == {"gfx942", "gfx950"}


def test_more_lanes_than_a_launch_has_are_told_and_not_launched(torch, fake):
    many = replace(SCALE, launch=replace(LAUNCH, grid=(1 << 26, 1, 1)))
    given = [torch.Tensor(0x1000, (8, 4)), torch.Tensor(0x2000, (8, 4))]
    assert told(CallError, lambda: HipProgram(many)(given, [1, 2])) == (
        "scale: 67,108,864 workgroups of 256 lanes are more than HIP launches\n"
        "it launches fewer than 4,294,967,296 lanes along a side: cut the arrays into larger tiles"
    )
    assert fake.launches == []
    HipProgram(replace(many, launch=replace(LAUNCH, grid=((1 << 26) - 1, 1, 1))))(given, [1, 2])
    assert len(fake.launches) == 1


def test_without_arrays_the_card_that_is_here_is_taken(torch, fake, monkeypatch):
    monkeypatch.delenv("TILEWAVE_TARGET")
    targets._found_here.cache_clear()
    try:
        assert set_default_run_config(WaveCompileOptions()).target == "gfx942"
    finally:
        targets._found_here.cache_clear()


def test_one_code_object_is_launched_for_arrays_of_any_sizes(torch, fake):
    fake.kernels = (b"gemm",)
    kernel = compiled(gemm(), target="gfx942", subs={s: n for s, n in sizes(1, 1, 1).items() if str(s) not in "MNK"})
    for m, n, k in ((100, 136, 40), (0, 64, 32), (8, 8, 0), (100, 136, 40), (64, 64, 32)):
        a, b = torch.Tensor(0x10000, (m, k), torch.float16), torch.Tensor(0x20000, (n, k), torch.float16)
        kernel(a, b, torch.Tensor(0x80000, (m, n)))
    assert [seen.grid for seen in fake.launches] == [(6, 1, 1), (1, 1, 1), (6, 1, 1), (1, 1, 1)]
    assert fake.calls.count("hipModuleLoadData") == 1
    first, _, third, _ = fake.launches
    assert first.arguments == third.arguments
    words = struct.unpack(f"<{len(first.arguments) // 8}q", first.arguments)
    assert words[:12] == (0x10000, 40, 1, 0x20000, 40, 1, 0x80000, 136, 1, 100, 40, 136)
