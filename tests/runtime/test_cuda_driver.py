"""Every call to NVIDIA's driver is as its documents require, and its failures are reported with the kernel's name."""

from __future__ import annotations

import ctypes
import json
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_array_libraries import forget_guests, install_cupy, install_torch
from fake_cuda import FakeCuda, Gpu

from tilewave.errors import CallError, TargetError, TilewaveError
from tilewave.ir.host_program import Recorder
from tilewave.ir.types import BF16, DTYPES, F8E4M3FN, F16, F32, I8, I32, INDEX
from tilewave.runtime import cuda_driver as cuda_driver_module
from tilewave.runtime import driver as driver_module
from tilewave.runtime.array_layouts import apart, kinds_of, layout_of, placed_arrays
from tilewave.runtime.array_view import ArrayView, PlacedArray
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.call_class import CallLook, SeenCall
from tilewave.runtime.cuda import CudaCode, CudaProgram
from tilewave.runtime.cuda_calls import CudaCalls, GivenNumber
from tilewave.runtime.cuda_driver import CudaDevice, CudaDriver, DeviceMemory, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher, launch
from tilewave.runtime.gpu_launch import (
    Address,
    Cluster,
    DependentLaunchAttribute,
    GpuLaunch,
    LaunchForm,
    LaunchFormula,
    SameGrid,
    ScalarSlot,
    ScratchMemory,
    Stride,
    SymbolArgument,
    Table,
    TiledArray,
    packed,
    unpacked,
)
from tilewave.runtime.launch_template import LaunchCode
from tilewave.runtime.sizes import SizedCall
from tilewave.runtime.tensor_map import TensorMap

ADD = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
"""
TILED = b""".visible .entry gemm(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 c,
  .param .u64 stride, .param .u32 wgm, .param .u64 order, .param .u64 scratch) { ret; }
"""


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    fake = FakeCuda(Gpu(), Gpu("NVIDIA H100"))
    yield fake
    assert fake.faults == []
    assert fake.stack == []


@pytest.fixture
def driver(fake: FakeCuda) -> CudaDriver:
    return CudaDriver(fake)


@pytest.fixture
def here_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Makes a library the driver of this machine."""
    cuda_driver_module._opened.cache_clear()

    def install(library: Any) -> None:
        monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda file: library)

    yield install
    cuda_driver_module._opened.cache_clear()
    forget_guests()


def told(kind: type[TilewaveError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return "\n".join([caught.value.what, *caught.value.remedy.splitlines()])


def array(pointer: int, shape: tuple[int, ...], dtype: Any = F16, strides: tuple[int, ...] | None = None) -> ArrayView:
    from tilewave.runtime.dlpack import row_major

    return ArrayView(pointer, shape, strides or row_major(shape, dtype.bytes), dtype, "cuda:0", False, None)


# the driver ---------------------------------------------------------------------------------------------------------


def test_every_function_is_declared_as_the_driver_has_it():
    ours = cuda_driver_module.NVIDIA.signatures
    assert set(ours) == set(FakeCuda.PROTOTYPES)
    for name, (_, *theirs) in FakeCuda.PROTOTYPES.items():
        assert [ctypes.sizeof(t) for t in ours[name]] == [ctypes.sizeof(t) for t in theirs], name


def test_devices_tell_what_they_are(driver):
    assert driver.device_count() == 2
    assert driver.version == (13, 0)
    assert driver.device(0) == CudaDevice(0, "NVIDIA H200", (9, 0), 132, 232448, 62914560)
    assert driver.device(1).name == "NVIDIA H100"
    assert driver.device(0).arch == "sm_90"


def test_a_device_is_asked_once(driver, fake):
    driver.device(0)
    asked = len(fake.calls)
    driver.device(0)
    assert len(fake.calls) == asked


@pytest.mark.parametrize(
    ("capability", "arch", "runs"),
    [
        ((9, 0), "sm_90a", True),
        ((8, 0), "sm_90a", False),
        ((10, 0), "sm_90a", False),
        ((9, 0), "sm_80", True),
        ((8, 9), "sm_80", True),
        ((7, 5), "sm_80", False),
        ((12, 0), "sm_100", True),
    ],
)
def test_code_runs_on_the_chip_it_was_made_for_and_plain_code_on_successors(capability, arch, runs):
    assert CudaDevice(0, "x", capability, 1, 1, 1).runs(arch) is runs


def test_an_older_gpu_is_named():
    driver = CudaDriver(FakeCuda(Gpu("NVIDIA A100", (8, 0))))
    assert told(TargetError, lambda: driver.require("gemm", 0, "sm_90a")) == (
        "gemm: it was compiled for sm_90a, but cuda:0 (NVIDIA A100) is sm_80\n"
        "compile it for this GPU if a target fits it, or run it on another; "
        "interpret(…) runs the kernel in numpy on any machine"
    )
    assert driver.require("gemm", 0, "sm_80").name == "NVIDIA A100"


def test_a_machine_without_a_driver(monkeypatch, here_is):
    def missing(file: str) -> Any:
        raise OSError(file)

    monkeypatch.setattr(driver_module.ctypes, "CDLL", missing)
    assert told(TargetError, lambda: cuda_driver("gemm")) == (
        "gemm: this machine has no NVIDIA driver (libcuda.so.1 or nvcuda.dll)\n"
        "run it on a machine with an NVIDIA GPU; interpret(…) runs the kernel in numpy on any machine"
    )


def test_a_driver_without_a_gpu(here_is):
    here_is(FakeCuda())
    assert told(TargetError, lambda: cuda_driver("gemm")) == (
        "gemm: this machine has an NVIDIA driver, but no GPU that it can use\n"
        "check nvidia-smi and CUDA_VISIBLE_DEVICES; interpret(…) runs the kernel in numpy on any machine"
    )


def test_a_driver_that_does_not_start(here_is, fake):
    here_is(fake)
    fake.failing["cuInit"] = 2
    assert told(TargetError, lambda: cuda_driver("gemm")).startswith(
        "gemm: cuInit failed with CUDA_ERROR_OUT_OF_MEMORY (out of memory)\n"
    )
    assert cuda_driver("gemm").device_count() == 2


def test_the_driver_is_opened_once(here_is, fake):
    here_is(fake)
    assert cuda_driver("a") is cuda_driver("b")
    assert fake.calls == ["cuInit"]


def test_an_old_driver_lacks_a_function(driver):
    driver._library = SimpleNamespace()
    assert told(TargetError, lambda: driver.call("gemm", "cuLaunchKernelEx")) == (
        "gemm: the NVIDIA driver of this machine is too old: it has no cuLaunchKernelEx\n"
        "install driver 520 or newer (CUDA 11.8)"
    )
    assert "driver 525" in told(TargetError, lambda: driver.call("gemm", "cuTensorMapEncodeTiled"))
    assert told(TargetError, lambda: driver.call("", "cuMemAlloc_v2")).endswith("install a newer driver")


def test_an_error_that_the_driver_cannot_name(driver, fake):
    fake.failing["cuDeviceGetCount"] = 4711
    assert told(TargetError, driver.device_count) == (
        "cuDeviceGetCount failed with CUDA error 4711 (no explanation)\n"
        "NVIDIA calls this error 4711; interpret(…) runs the kernel in numpy on any machine"
    )


def test_a_context_is_retained_once_and_the_threads_own_comes_back(driver, fake):
    with driver.current(0), driver.current(1):
        assert fake.stack == [fake.context_of(0), fake.context_of(1)]
    with pytest.raises(KeyError), driver.current(0):
        raise KeyError
    assert fake.stack == []
    assert fake.calls.count("cuDevicePrimaryCtxRetain") == 2


def test_the_device_of_an_address(driver, fake):
    fake.places = {range(0x10000, 0x20000): 1}
    assert driver.device_of(0x18000) == 1
    assert "cuPointerGetAttribute failed" in told(TargetError, lambda: driver.device_of(8))


def test_device_memory_is_zeroed_filled_waited_for_and_freed(driver, fake):
    zeros, table = DeviceMemory.zeroed(driver, 1, 64, "gemm"), DeviceMemory.holding(driver, 0, b"order", "gemm")
    assert fake.memory[zeros.address].content == bytes(64)
    assert fake.memory[zeros.address].device == 1
    assert fake.memory[table.address].content == b"order"
    assert fake.calls[-2:] == ["cuStreamSynchronize", "cuCtxPopCurrent_v2"]
    zeros.free()
    zeros.free()
    assert list(fake.memory) == [table.address]


# modules ------------------------------------------------------------------------------------------------------------


def test_ptx_becomes_a_module_with_the_assemblers_log(driver, fake):
    module = CudaModule(driver, 1, ADD, "add")
    assert module.log == "ptxas info    : Used 40 registers"
    assert fake.modules[module.handle] == (fake.context_of(1), ADD.decode())
    module.unload()
    module.unload()
    assert fake.modules == {}


def test_a_cubin_is_passed_whole(driver, fake):
    seen: list[bytes] = []
    load = fake.do_cuModuleLoadDataEx
    fake.do_cuModuleLoadDataEx = lambda out, image, *rest: (
        seen.append(ctypes.string_at(image, 9)),
        load(out, image, *rest),
    )[1]
    CudaModule(driver, 0, b"\x7fELF\0\0\1\0\2", "add")
    assert seen == [b"\x7fELF\0\0\1\0\2"]


def test_bad_ptx_gives_the_assemblers_log(driver):
    assert told(TargetError, lambda: CudaModule(driver, 0, b"garbage", "gemm")) == (
        "gemm: cuModuleLoadDataEx failed with CUDA_ERROR_INVALID_PTX (a PTX JIT compilation failed)\n"
        "ptxas application ptx input, line 3; fatal : Parsing error near 'garbage'\n"
        "this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report"
    )


def test_a_function_tells_its_registers_spills_and_shared_bytes(driver, fake):
    fake.registers, fake.local_bytes, fake.static_shared_bytes = 168, 24, 1024
    assert CudaModule(driver, 0, ADD, "add").function("add").resources == CudaResources(168, 24, 1024, 0)


def test_a_missing_entry_is_named(driver):
    module = CudaModule(driver, 0, ADD, "gemm")
    assert told(TargetError, lambda: module.function("mul")).startswith(
        "gemm: cuModuleGetFunction failed with CUDA_ERROR_NOT_FOUND (named symbol not found)"
    )


def test_too_much_shared_memory_is_refused_before_the_driver_sees_it(driver, fake):
    fake.static_shared_bytes = 1024
    function = CudaModule(driver, 0, ADD, "add").function("add")
    assert told(TargetError, lambda: function.allow_shared(232448 - 1023)) == (
        "add: a workgroup needs 232449 bytes of shared memory, but cuda:0 (NVIDIA H200) has 232448\n"
        "use smaller tiles or fewer stages"
    )
    assert "cuFuncSetAttribute" not in fake.calls
    function.allow_shared(232448 - 1024)
    assert fake.functions[function.handle].dynamic_shared_bytes == 231424


# launches -----------------------------------------------------------------------------------------------------------


def test_a_launch_with_plain_numbers(driver, fake):
    function = CudaModule(driver, 1, ADD, "add").function("add")
    function.allow_shared(100_000)
    attributes = (Cluster((2, 1, 1)), DependentLaunchAttribute())
    launch(function, (6, 2, 1), (128, 1, 1), 100_000, 0xBEEF, [0x1000, 0x2000, 0x3000, 77], attributes)
    (seen,) = fake.launches
    assert (seen.function, seen.grid, seen.block, seen.shared_bytes) == ("add", (6, 2, 1), (128, 1, 1), 100_000)
    assert (seen.stream, seen.words, seen.context) == (0xBEEF, (0x1000, 0x2000, 0x3000, 77), fake.context_of(1))
    assert [(number, value[:12]) for number, value in seen.attributes] == [
        (4, b"\2\0\0\0\1\0\0\0\1\0\0\0"),
        (6, b"\1" + bytes(11)),
    ]


def test_a_launch_that_fails_names_the_kernel(driver, fake):
    function = CudaModule(driver, 0, ADD, "add").function("add")
    fake.failing["cuLaunchKernelEx"] = 701
    assert told(TargetError, lambda: launch(function, (1, 1, 1), (1, 1, 1), 0, 0, [1, 2, 3, 4])) == (
        "add: cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (too many resources requested for "
        "launch)\nuse smaller tiles: a workgroup needs more registers than the GPU has"
    )


def adder(driver: CudaDriver, number: int = 0) -> Launcher:
    slots = (Address(0), Address(1), Address(2), SymbolArgument(0))
    description = GpuLaunch(slots, (4, 1, 1), (128, 1, 1))
    code = LaunchCode(description, [(1, F16)] * 3, 1, SameGrid(description.grid))
    return Launcher(CudaModule(driver, number, ADD, "add").function("add"), code)


def test_a_launcher_writes_addresses_numbers_and_the_stream(driver, fake):
    add = adder(driver)
    views = [array(0x1000 * i, (64,)) for i in (1, 2, 3)]
    add(views, [64], 0)
    add(views[::-1], [-1], 0x77)
    assert [(seen.words, seen.stream) for seen in fake.launches] == [
        ((0x1000, 0x2000, 0x3000, 64), 0),
        ((0x3000, 0x2000, 0x1000, -1), 0x77),
    ]


def test_a_launcher_uses_its_devices_context_and_leaves_the_threads_own(driver, fake):
    add = adder(driver, 1)
    views = [array(0x1000, (64,))] * 3
    add(views, [1], 0)
    with driver.current(0):
        add(views, [2], 0)
    with driver.current(1):
        pushed = fake.calls.count("cuCtxPushCurrent_v2")
        add(views, [3], 0)
        assert fake.calls.count("cuCtxPushCurrent_v2") == pushed
    assert [seen.context for seen in fake.launches] == [fake.context_of(1)] * 3


def test_a_launcher_that_fails_can_be_called_again(driver, fake):
    add = adder(driver)
    fake.failing["cuLaunchKernelEx"] = 700
    views = [array(0x1000, (64,))] * 3
    assert told(TargetError, lambda: add(views, [1], 0)).startswith(
        "add: cuLaunchKernelEx failed with CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)\n"
        "an earlier kernel broke this process's CUDA context"
    )
    add(views, [1], 0)
    assert len(fake.launches) == 1


SAME = SameGrid((132, 1, 1))


def tiled(driver: CudaDriver, formula: LaunchFormula = SAME) -> Launcher:
    slots = (
        TiledArray(0, (0, 1), (128, 64)),
        TiledArray(1, (1, 0), (256, 32), swizzle_bytes=64, l2_promotion_bytes=256),
        Address(2),
        Stride(2, 0),
        SymbolArgument(0),
        Table(0),
        ScratchMemory(256),
    )
    description = GpuLaunch(slots, (132, 1, 1), (384, 1, 1), 200_000, (DependentLaunchAttribute(),), (b"tile order",))
    code = LaunchCode(description, [(2, F16), (2, F16), (2, F32)], 1, formula)
    return Launcher(CudaModule(driver, 0, TILED, "gemm").function("gemm"), code, ("a", "b", "c"))


def placed(views: Sequence[ArrayView]) -> list[PlacedArray]:
    return [v.placed for v in views]


A = array(0x10000, (300, 512))
B = array(0x20000, (512, 192), strides=(2, 1040))
C = array(0x30000, (300, 192), F32)


def test_tensor_maps_tables_and_scratch_reach_the_kernel(driver, fake):
    tiled(driver)([A, B, C], [4], 0x55)
    (seen,) = fake.launches
    a, b = (fake.map_of(argument) for argument in seen.arguments[:2])
    assert (a.dtype, a.pointer, a.sizes, a.strides, a.box) == (6, 0x10000, (512, 300), (1024,), (64, 128))
    assert (a.swizzle, a.promotion) == (3, 2)
    assert (b.pointer, b.sizes, b.strides, b.box) == (0x20000, (512, 192), (1040,), (32, 256))
    assert (b.swizzle, b.promotion) == (2, 3)
    pointer, stride, wgm, order, scratch = seen.words[2:]
    assert (pointer, stride, wgm) == (0x30000, 192, 4)
    assert fake.memory[order].content == b"tile order"
    assert fake.memory[scratch].content == bytes(256)
    assert seen.shared_bytes == 200_000


def test_each_launch_has_the_maps_of_its_own_arrays(driver, fake):
    gemm = tiled(driver)
    launches = [
        gemm.template(views, 0).known(placed(views), [4]) for views in ([A, B, C], [array(0x50000, (300, 512)), B, C])
    ]
    for one in (*launches, launches[0]):
        assert one()
    assert [fake.map_of(seen.arguments[0]).pointer for seen in fake.launches] == [0x10000, 0x50000, 0x10000]


def test_one_template_serves_arrays_at_all_addresses(driver, fake):
    gemm = tiled(driver)
    template = gemm.template([A, B, C], 0)
    for at in ((0x10000, 0x20000, 0x30000), (0x50000, 0x60000, 0x70000)):
        assert template.launch([v.placed._replace(pointer=p) for v, p in zip((A, B, C), at, strict=True)], [4])
        seen = fake.launches[-1]
        assert [fake.map_of(argument).pointer for argument in seen.arguments[:2]] == list(at[:2])
        assert seen.words[2] == at[2]
    first, second = fake.launches
    assert first.words[3:] == second.words[3:] and first.attributes == second.attributes


def test_one_template_serves_arrays_of_all_sizes(driver, fake):
    gemm = tiled(driver, lambda x: LaunchForm(x, (x[0] + 2, 1, 1), (x[0] <= 5,), x[0] < 5))
    template = gemm.template([A, B, C], 0)
    others = [array(0x50000, (1, 512)), array(0x60000, (512, 64), strides=(2, 2048)), array(0x70000, (1, 64), F32)]
    assert not template.launch(placed(others), [6])
    assert template.launch(placed(others), [5])
    (seen,) = fake.launches
    a, b = (fake.map_of(argument) for argument in seen.arguments[:2])
    assert (a.sizes, a.strides, b.sizes, b.strides) == ((512, 1), (1024,), (512, 64), (2048,))
    assert seen.words[2:5] == (0x70000, 64, 5)
    assert seen.grid == (7, 1, 1) and not seen.attributes


def test_maps_that_are_kept_are_those_of_the_same_arrays(driver, fake):
    """More than are kept, in any order; some differ in one number alone."""
    gemm, rng = tiled(driver), random.Random(0)
    drawn = [(0x10000 * rng.randint(1, 9), rng.randint(1, 9), 1024 * rng.randint(1, 3)) for _ in range(150)]
    for pointer, rows, stride in rng.choices(drawn, k=1000):
        gemm([array(pointer, (rows, 512), strides=(stride, 2)), B, C], [4], 0)
        found = fake.map_of(fake.launches[-1].arguments[0])
        assert (found.pointer, found.sizes) == (pointer, (512, rows))
        assert found.strides == (stride if rows > 1 else 1024,)
    assert len({*drawn}) < len(fake.maps) < 2000, "some are kept, and some had to go"


def test_a_map_that_the_driver_refuses_is_not_kept(driver, fake):
    gemm = tiled(driver)
    for _ in range(2):
        fake.failing["cuTensorMapEncodeTiled"] = 1
        message = told(TargetError, lambda: gemm([A, B, C], [4], 0))
        assert message.startswith("gemm: cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID_VALUE")
    gemm([A, B, C], [4], 0)
    assert [seen.function for seen in fake.launches] == ["gemm"] and len(fake.maps) == 2


def test_an_array_of_other_strides_at_the_same_address_is_encoded_again(driver, fake):
    gemm = tiled(driver)
    gemm([A, B, C], [4], 0)
    gemm([array(0x10000, (300, 512), strides=(2048, 2)), B, C], [4], 0)
    assert [m.strides for m in fake.maps if m.box[0] == 64] == [(1024,), (2048,)]


def test_scratch_is_one_per_stream_and_tables_one_per_kernel(driver, fake):
    gemm = tiled(driver)
    for stream in (0x1, 0x2, 0x1):
        gemm([A, B, C], [4], stream)
    first, second, again = (seen.words[-1] for seen in fake.launches)
    assert first == again != second
    assert len(fake.memory) == 4


def test_a_graph_that_is_recorded_has_scratch_of_its_own(driver, fake):
    gemm = tiled(driver)
    fake.capturing = {0x2: 1}
    gemm([A, B, C], [4], 0x2)
    gemm([A, B, C], [4], 0x2)
    fake.capturing = {}
    gemm([A, B, C], [4], 0x2)
    recorded, again, run = (seen.words[-1] for seen in fake.launches)
    assert recorded == again != run
    assert fake.memory[recorded].content == bytes(256)


def test_two_graphs_of_one_kernel_may_run_side_by_side(driver, fake):
    """As may two branches of one graph: what they have in common is nothing."""
    gemm = tiled(driver)
    for stream, recording in ((0x2, 1), (0x2, 2), (0x3, 2), (0x2, 2)):
        fake.capturing = {stream: recording}
        gemm([A, B, C], [4], stream)
    first, second, branch, again = (seen.words[-1] for seen in fake.launches)
    assert second == again and len({first, second, branch}) == 3
    assert all(fake.memory[at].content == bytes(256) for at in (first, second, branch))
    assert not fake.own_streams and fake.capture_mode == 0


def test_the_memory_of_a_graph_that_is_gone_is_taken_by_the_next(driver, fake):
    gemm = tiled(driver)
    for recording in range(1, 5):
        fake.capturing = {0x2: recording}
        gemm([A, B, C], [4], 0x2)
        if recording == 2:
            fake.destroy_graph(1)
    first, second, third, fourth = (seen.words[-1] for seen in fake.launches)
    assert third == first and len({first, second, fourth}) == 3


def test_strides_are_written_again_when_they_change(driver, fake):
    gemm = tiled(driver)
    for c in (C, C, array(0x30000, (300, 192), F32, strides=(4096, 4)), C):
        gemm([A, B, c], [4], 0)
    assert [seen.words[3] for seen in fake.launches] == [192, 192, 1024, 192]


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (array(0x10008, (300, 512)), "begins at 0x10008, and TMA needs a multiple of 16 bytes"),
        (array(0x10000, (300, 509)), "has rows 1018 bytes apart, and TMA needs a multiple of 16"),
        (
            array(0x10000, (300, 512), strides=(-1024, 2)),
            "has a negative stride (-1024 bytes), and TMA takes none",
        ),
        (
            array(0x10000, (300, 512), strides=(2, 1024)),
            "steps 1024 bytes along its fastest axis, and TMA needs 2",
        ),
    ],
)
def test_what_the_copy_engine_cannot_do_is_refused_before_the_driver_sees_it(driver, fake, view, problem):
    gemm = tiled(driver)
    assert told(CallError, lambda: gemm([view, B, C], [4], 0)) == (
        f"gemm: a {problem}\npass a contiguous copy of a whose rows are multiples of 16 bytes long"
    )
    assert fake.launches == []
    assert "cuTensorMapEncodeTiled" not in fake.calls


def test_calls_of_several_threads_do_not_mix(driver, fake):
    started, released = threading.Event(), threading.Event()
    real = fake.do_cuLaunchKernelEx

    def slow(*arguments: Any) -> Any:
        if not started.is_set():
            started.set()
            released.wait(10)
        return real(*arguments)

    fake.do_cuLaunchKernelEx = slow
    add = adder(driver)
    first = threading.Thread(target=add, args=([array(0x1000, (64,))] * 3, [1], 0x1))
    first.start()
    assert started.wait(10)
    add([array(0x2000, (64,))] * 3, [2], 0x2)
    released.set()
    first.join(10)
    assert [(seen.words[0], seen.words[3], seen.stream) for seen in fake.launches] == [
        (0x2000, 2, 0x2),
        (0x1000, 1, 0x1),
    ]


def test_clusters_divide_the_grid():
    with pytest.raises(AssertionError, match="do not divide"):
        GpuLaunch((), (3, 1, 1), (1, 1, 1), attributes=(Cluster((2, 1, 1)),))
    with pytest.raises(AssertionError, match="a launch of"):
        GpuLaunch((), (0, 1, 1), (1, 1, 1))


def test_a_launch_survives_json():
    slots = (
        Address(0),
        Stride(1, 0),
        SymbolArgument(2),
        Table(0),
        ScratchMemory(64),
        TiledArray(1, (1, 0), (8, 64), 32, 0),
    )
    attributes = (Cluster((2, 1, 1)), DependentLaunchAttribute())
    description = GpuLaunch(slots, (4, 2, 1), (128, 1, 1), 1000, attributes, (b"\x00order\xff",))
    assert unpacked(json.loads(json.dumps(packed(description)))) == description
    assert unpacked(packed(GpuLaunch((), (1, 1, 1), (1, 1, 1)))) == GpuLaunch((), (1, 1, 1), (1, 1, 1))


# tensor maps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "number"), [(F16, 6), (BF16, 9), (F32, 7), (F8E4M3FN, 0), (I8, 0), (I32, 3)], ids=str
)
def test_every_dtype_has_its_number(driver, fake, dtype, number):
    columns = 128 // dtype.bytes
    with driver.current(0):
        TensorMap(dtype, (8, columns), (128, dtype.bytes), (8, columns)).encode(driver, 0x1000, "gemm")
    assert fake.maps[0].dtype == number


def test_every_array_dtype_has_a_map():
    for dtype in DTYPES.values():
        if dtype.name not in ("index", "i16"):
            TensorMap(dtype, (8, 16), (256, dtype.bytes), (8, 16)).encoding()


def test_batches_and_rows_of_length_1(driver, fake):
    batched = TensorMap(F16, (5, 1, 64), (1 << 20, 3, 2), (1, 1, 64))
    assert batched.problem(0x1000) == ""
    with driver.current(0):
        bytes_ = bytes(batched.encode(driver, 0x1000, "gemm"))
    assert len(bytes_) == 128
    assert (fake.maps[0].sizes, fake.maps[0].strides) == ((64, 1, 5), (128, 1 << 20))
    vector = TensorMap(F32, (4096,), (4,), (256,), swizzle_bytes=0)
    assert vector.problem(0x1000) == ""
    with driver.current(0):
        vector.encode(driver, 0x1000, "gemm")
    assert fake.maps[1].strides == ()


def test_problems_of_size_and_rank():
    assert TensorMap(F16, (1,) * 6, (2,) * 6, (1,) * 6).problem(16).startswith("has 6 axes")
    assert TensorMap(F16, (0, 8), (16, 2), (1, 8)).problem(16).startswith("has sizes (0, 8)")
    assert TensorMap(F16, (8, 8), (1 << 40, 2), (1, 8)).problem(16).startswith("has rows")
    assert TensorMap(F16, (8, 8), (16, 2), (1, 8)).problem(0).startswith("begins at 0x0")
    assert TensorMap(F16, (8, 8), (0, 2), (1, 8)).problem(16) == ""


@pytest.mark.parametrize(
    ("box", "swizzle", "promotion", "said"),
    [
        ((300, 64), 128, 128, "1 to 256"),
        ((0, 64), 128, 128, "1 to 256"),
        ((64, 4), 128, 128, "multiples of 16"),
        ((64, 128), 128, 128, "a swizzle over 128"),
        ((64, 64), 48, 128, "no swizzle of 48"),
        ((64, 64), 128, 32, "no promotion to 32"),
        ((64,), 128, 128, "for sizes"),
    ],
)
def test_a_box_that_the_compiler_got_wrong(driver, fake, box, swizzle, promotion, said):
    with pytest.raises(AssertionError, match=said):
        TensorMap(F16, (512, 512), (1024, 2), box, swizzle, promotion).encode(driver, 0x1000, "gemm")
    assert fake.maps == []


# programs -----------------------------------------------------------------------------------------------------------

PARAMETERS = tuple(Parameter(name, (64,), F32, name == "c") for name in "abc")


def launch_code(*slots: Any) -> LaunchCode:
    """How code with three arrays and these further parameters is launched."""
    description = GpuLaunch((Address(0), Address(1), Address(2), *slots), (1, 1, 1), (64, 1, 1))
    return LaunchCode(description, [(1, F32)] * 3, int(takes_number(slots)), SameGrid(description.grid))


def takes_number(slots: Iterable[Any]) -> bool:
    return any(isinstance(slot, SymbolArgument | ScalarSlot) for slot in slots)


ADD_CODE = CudaCode("add", "sm_90", ADD, launch_code(SymbolArgument(0)), ("a", "b", "c"))


class Calls(CudaCalls):
    """The calls of code that serves all arrays."""

    def __init__(self, code: CudaCode, given: tuple[GivenNumber, ...] = ()) -> None:
        has_scratch = any(isinstance(slot, ScratchMemory) for slot in code.launch.description.slots)
        super().__init__(code.kernel, PARAMETERS, given, has_scratch)
        self.program = CudaProgram(code)

    def new_launch(self, views: Any, numbers: Any, on: Any, parameters: Any) -> Any:
        return self.program.template(views, on)


def test_torch_tensors_run_on_torchs_current_stream(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    torch.streams[0] = 0xABC
    add = Calls(ADD_CODE)
    add([torch.Tensor(at, (64,)) for at in (0x1000, 0x2000, 0x3000)], [64])
    (seen,) = fake.launches
    assert (seen.words, seen.stream, seen.context) == ((0x1000, 0x2000, 0x3000, 64), 0xABC, fake.context_of(0))
    assert set(torch.asked) == {"raw"}
    assert add.program.resources().registers == 40
    assert add.program.log() == "ptxas info    : Used 40 registers"


def test_an_older_torch_is_asked_for_its_stream_in_public(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch, raw_stream=False)
    torch.streams[0] = 0xDEF
    Calls(ADD_CODE)([torch.Tensor(at, (64,)) for at in (0x1000, 0x2000, 0x3000)], [64])
    assert (fake.launches[0].stream, set(torch.asked)) == (0xDEF, {"current"})


def test_a_program_is_loaded_once_per_device(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    add = Calls(ADD_CODE)
    for number in (0, 1, 0, 1):
        add([torch.Tensor(at, (64,), number=number) for at in (0x1000, 0x2000, 0x3000)], [64])
    assert fake.calls.count("cuModuleLoadDataEx") == 2
    assert [seen.context - fake.context_of(0) for seen in fake.launches] == [0, 1, 0, 1]


def test_cupy_arrays_run_on_cupys_current_stream(monkeypatch, here_is, fake):
    here_is(fake)
    cupy = install_cupy(monkeypatch)
    cupy.stream = 0x123
    Calls(ADD_CODE)([cupy.ndarray(at, (64,), number=1) for at in (0x1000, 0x2000, 0x3000)], [64])
    assert (fake.launches[0].stream, fake.launches[0].context) == (0x123, fake.context_of(1))


class Numba:
    def __init__(self, at: int, stream: int | None = None) -> None:
        interface = {"shape": (64,), "typestr": "<f4", "data": (at, False), "version": 3}
        self.__cuda_array_interface__ = interface | ({} if stream is None else {"stream": stream})


def test_other_arrays_run_on_the_stream_they_name_and_on_the_device_of_their_address(here_is, fake):
    here_is(fake)
    fake.places = {range(0x1000, 0x9000): 1}
    add = Calls(ADD_CODE)
    add([Numba(0x1000), Numba(0x2000, 2), Numba(0x3000, 2)], [64])
    add([Numba(0x1000), Numba(0x2000), Numba(0x3000)], [64])
    assert [(seen.stream, seen.context - fake.context_of(0)) for seen in fake.launches] == [(2, 1), (0, 1)]


def test_arrays_that_name_different_streams_are_refused(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    torch.streams[0] = 0x9
    fake.places = {range(0x1000, 0x9000): 0}
    add = Calls(ADD_CODE)
    assert told(CallError, lambda: add([Numba(0x1000, 5), Numba(0x2000), Numba(0x3000, 6)], [64])) == (
        "add: a is used on stream 0x5, but c on stream 0x6\n"
        "make one of them the current stream of both, or synchronise the other and pass its array without it"
    )
    mixed = [torch.Tensor(0x1000, (64,)), Numba(0x2000, 5), torch.Tensor(0x3000, (64,))]
    assert told(CallError, lambda: add(mixed, [64])).startswith("add: a is used on stream 0x9, but b on stream 0x5")
    torch.streams[0] = 5
    add(mixed, [64])
    assert [seen.stream for seen in fake.launches] == [5]


def test_arrays_on_two_devices_are_refused(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    add = Calls(ADD_CODE)
    tensors = [torch.Tensor(0x1000 * (i + 1), (64,), number=i // 2) for i in range(3)]
    assert told(CallError, lambda: add(tensors, [64])) == (
        'add: c is on cuda:1, but a is on cuda:0\npass torch.empty((64,), dtype=torch.float32, device="cuda:0")'
    )
    fake.places = {range(0x1000, 0x2000): 0, range(0x2000, 0x9000): 1}
    assert told(CallError, lambda: add([Numba(0x1000), Numba(0x2000), Numba(0x3000)], [64])) == (
        "add: b is on cuda:1, but a is on cuda:0\npass a copy of b on cuda:0"
    )
    assert fake.launches == []


def test_an_array_on_the_cpu_is_refused_with_the_call_site(here_is, fake):
    here_is(fake)
    arrays = [np.full(64, 7.0, np.float32) for _ in range(3)]
    with pytest.raises(CallError) as caught:
        Calls(ADD_CODE)(arrays, [64])
    assert caught.value.what == "add: a is on cpu, but the kernel runs on cuda"
    assert (caught.value.remedy, caught.value.device) == ("pass a copy of a on cuda", "cpu")
    assert caught.value.loc.file == __file__
    assert all((a == 7).all() for a in arrays)


def test_a_program_for_another_chip_is_not_loaded(monkeypatch, here_is):
    fake = FakeCuda(Gpu("NVIDIA A100", (8, 0)))
    here_is(fake)
    torch = install_torch(monkeypatch)
    tensors = [torch.Tensor(at, (64,)) for at in (0x1000, 0x2000, 0x3000)]
    assert told(TargetError, lambda: Calls(ADD_CODE)(tensors, [64])).startswith(
        "add: it was compiled for sm_90, but cuda:0 (NVIDIA A100) is sm_80"
    )
    assert fake.modules == {}


def test_an_output_that_overlaps_an_input_is_refused(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    tensors = [torch.Tensor(at, (64,)) for at in (0x1000, 0x2000, 0x20FC)]
    assert told(CallError, lambda: Calls(ADD_CODE)(tensors, [64])) == (
        'add: c overlaps b, but the kernel writes c\npass torch.empty((64,), dtype=torch.float32, device="cuda:0") as c'
    )
    assert fake.launches == []


def test_without_a_gpu_that_is_said_first(here_is):
    here_is(FakeCuda())
    arrays = [np.zeros(64, np.float32)] * 3
    assert told(TargetError, lambda: Calls(ADD_CODE)(arrays, [64])).startswith(
        "add: this machine has an NVIDIA driver, but no GPU that it can use"
    )


def test_nothing_is_copied_or_waited_for(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    add = Calls(ADD_CODE)
    tensors = [torch.Tensor(at, (64,)) for at in (0x1000, 0x2000, 0x3000)]
    add(tensors, [64])
    before = len(fake.calls)
    add(tensors, [64])
    assert set(fake.calls[before:]) <= {
        *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuLaunchKernelEx", "cuCtxPopCurrent_v2")
    }


def test_the_default_stream_has_two_names(monkeypatch, here_is, fake):
    here_is(fake)
    torch = install_torch(monkeypatch)
    fake.places = {range(0x1000, 0x9000): 0}
    Calls(ADD_CODE)([torch.Tensor(0x1000, (64,)), Numba(0x2000, 1), torch.Tensor(0x3000, (64,))], [64])
    assert fake.launches[0].stream == 0


def test_torch_and_cupy_must_agree_on_the_stream(monkeypatch, here_is, fake):
    here_is(fake)
    torch, cupy = install_torch(monkeypatch), install_cupy(monkeypatch)
    mixed = [cupy.ndarray(0x1000, (64,)), torch.Tensor(0x2000, (64,)), torch.Tensor(0x3000, (64,))]
    add = Calls(ADD_CODE)
    add(mixed, [64])
    cupy.stream = 0x44
    assert told(CallError, lambda: add(mixed, [64])).startswith("add: a is used on stream 0x44, but b on stream 0x0")
    torch.streams[0] = 0x44
    add(mixed, [64])
    assert [seen.stream for seen in fake.launches] == [0, 0x44]


# remembering --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["by C functions", "by attributes"])
def torch(monkeypatch: pytest.MonkeyPatch, here_is: Any, fake: FakeCuda, request: pytest.FixtureRequest) -> Any:
    """A torch whose tensors machine code can read, or only Python."""
    here_is(fake)
    return install_torch(monkeypatch, has_table=request.param)


class Lengths:
    """The sizes of calls of a program whose arrays' shapes are known."""

    def __init__(self, calls: CudaCalls) -> None:
        self.parameters = calls.parameters
        ranks, count = [len(p.shape) for p in self.parameters], len(calls.given)
        recorder = Recorder(sum(1 + 2 * rank for rank in ranks) + count)
        arrays, numbers = placed_arrays(recorder.given, ranks), recorder.given[len(recorder.given) - count :]
        for parameter, one in zip(self.parameters, arrays, strict=True):
            recorder.want(*(length == n for length, n in zip(one.lengths, parameter.shape, strict=True)))
        recorder.want(*apart(arrays, kinds_of(self.parameters)))
        made, results = recorder.finished(layout_of(arrays), [], numbers, [1, *numbers])
        self.look = CallLook(ranks, count, made, *results)

    def __call__(self, arrays: Any, given: Any) -> SizedCall:
        return SizedCall(given, tuple(given.values()), self.parameters)

    def knows(self, seen: SeenCall, places: Any) -> bool:
        return True


def calling(code: CudaCode) -> Callable[..., None]:
    """What calls code with arrays, and a number where it takes one."""
    given = (GivenNumber(0, "n", INDEX),) if takes_number(code.launch.description.slots) else ()
    calls = Calls(code, given)
    lengths = Lengths(calls)

    def call(arrays: Any, numbers: Any = ()) -> None:
        calls.call(tuple(arrays), dict(zip("n", numbers, strict=False)), lengths)

    call.calls = calls
    return call


def tensors(torch: Any, *at: int) -> list[Any]:
    return [torch.Tensor(pointer, (64,)) for pointer in at]


CHANGES = {
    "pointer": lambda t, torch: setattr(t[1], "pointer", 0x9000),
    "shape": lambda t, torch: setattr(t[1], "shape", (63,)),
    "strides": lambda t, torch: setattr(t[1], "strides", (2,)),
    "dtype": lambda t, torch: setattr(t[1], "dtype", torch.float16),
    "grad": lambda t, torch: setattr(t[1], "requires_grad", True),
    "sign": lambda t, torch: setattr(t[1], "negated", True),
    "device": lambda t, torch: setattr(t[1], "number", 1),
    "place": lambda t, torch: (setattr(t[1], "number", -1), setattr(t[1], "is_cuda", False)),
    "first": lambda t, torch: (setattr(t[0], "number", -1), setattr(t[0], "is_cuda", False)),
    "stream": lambda t, torch: torch.streams.update({0: 7}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_that_change_between_calls_are_seen(torch, fake, change):
    add, given = calling(ADD_CODE), tensors(torch, 0x1000, 0x2000, 0x3000)
    for _ in range(3):
        add(given, [64])
    CHANGES[change](given, torch)
    if change in ("pointer", "stream", "strides"):
        add(given, [64])
        assert fake.launches[3] != fake.launches[2] or change == "strides"
    else:
        told(CallError, lambda: add(given, [64]))
        assert len(fake.launches) == 3


ELSEWHERE = (0x11000, 0x12000, 0x13000)
"""As aligned as the addresses of the call before."""
REFUSED = {name: change for name, change in CHANGES.items() if name not in ("pointer", "stream", "strides")} | {
    "alignment": lambda t, torch: setattr(t[1], "pointer", 0x12002),
    "overlap": lambda t, torch: setattr(t[2], "pointer", 0x12000),
    "repeats": lambda t, torch: setattr(t[2], "strides", (0,)),
}


def test_arrays_that_lie_as_others_did_are_not_looked_at_closely(torch, fake, monkeypatch):
    add = calling(ADD_CODE)
    add(tensors(torch, 0x1000, 0x2000, 0x3000), [64])

    def looked(*_):
        raise AssertionError("they were looked at")

    monkeypatch.setattr("tilewave.runtime.cuda_calls.check_call", looked)
    del torch.asked[:]
    add(tensors(torch, *ELSEWHERE), [64])
    assert torch.asked == (["look"] * 3 + ["stream"] if hasattr(torch, "table") else ["raw"])
    assert fake.launches[1].words == (*ELSEWHERE, 64)
    assert replace(fake.launches[1], arguments=()) == replace(fake.launches[0], arguments=())


@pytest.mark.parametrize("change", REFUSED)
def test_arrays_elsewhere_that_differ_in_anything_are_looked_at_closely(torch, fake, change):
    add, given = calling(ADD_CODE), tensors(torch, *ELSEWHERE)
    add(tensors(torch, 0x1000, 0x2000, 0x3000), [64])
    REFUSED[change](given, torch)
    assert told(CallError, lambda: add(given, [64])) == told(CallError, lambda: calling(ADD_CODE)(given, [64]))
    assert len(fake.launches) == 1


def test_arrays_elsewhere_run_on_the_stream_of_their_own_call(torch, fake):
    add = calling(ADD_CODE)
    add(tensors(torch, 0x1000, 0x2000, 0x3000), [64])
    torch.streams[0] = 7
    add(tensors(torch, *ELSEWHERE), [64])
    assert [seen.stream for seen in fake.launches] == [0, 7]


def adding(*slots: Any) -> Callable[..., None]:
    """A program whose last parameter is another."""
    return calling(replace(ADD_CODE, launch=launch_code(*slots), code=ADD.replace(b".u32 n", b".u64 n")))


def test_arrays_elsewhere_have_their_own_strides(torch, fake):
    add, given = adding(Stride(1, 0)), tensors(torch, *ELSEWHERE)
    add(tensors(torch, 0x1000, 0x2000, 0x3000))
    given[1].strides = (2,)
    add(given)
    assert [seen.words[3] for seen in fake.launches] == [1, 2]


@pytest.mark.parametrize("slot", [SymbolArgument(0), ScalarSlot(0)], ids=["symbol", "scalar"])
def test_arrays_elsewhere_come_with_their_own_numbers(torch, fake, slot):
    add = adding(slot)
    for at, number in (((0x1000, 0x2000, 0x3000), 64), (ELSEWHERE, 32), (ELSEWHERE, -1), (ELSEWHERE, 64)):
        add(tensors(torch, *at), [number])
    assert [seen.words[3] for seen in fake.launches] == [64, 32, -1, 64]


def test_arrays_elsewhere_in_a_graph_have_scratch_memory_of_their_own(torch, fake):
    add = adding(ScratchMemory(256))
    torch.streams[0] = 7
    add(tensors(torch, 0x1000, 0x2000, 0x3000))
    fake.capturing = {7: 1}
    add(tensors(torch, *ELSEWHERE))
    fake.capturing = {}
    add(tensors(torch, 0x21000, 0x22000, 0x23000))
    run, recorded, again = (seen.words[3] for seen in fake.launches)
    assert run == again != recorded


def test_a_program_forgets_before_its_kinds_of_calls_pile_up(torch, fake, monkeypatch):
    monkeypatch.setattr("tilewave.runtime.cuda_calls.KEPT_CALLS", 3)
    add = calling(ADD_CODE)
    for stream in (*range(10), *range(10)):
        torch.streams[0] = 0x100 + stream
        add(tensors(torch, 0x1000, 0x2000, 0x3000), [stream])
        assert len(add.calls.launches) <= 3
    assert [(seen.words[3], seen.stream - 0x100) for seen in fake.launches] == [(i, i) for i in range(10)] * 2


def test_other_numbers_are_another_call(torch, fake):
    add, given = calling(ADD_CODE), tensors(torch, 0x1000, 0x2000, 0x3000)
    for number in (64, 32, 64):
        add(given, [number])
    assert [seen.words[3] for seen in fake.launches] == [64, 32, 64]


def test_a_graph_is_recorded_with_arrays_seen_before(torch, fake):
    """Machine code knows the launch, and not the memory of the graph."""
    add = adding(ScratchMemory(256))
    torch.streams[0] = 7
    for recording in (0, 0, 1, 1, 2, 0):
        fake.capturing = {7: recording} if recording else {}
        add(tensors(torch, 0x1000, 0x2000, 0x3000))
    run, again, first, same, second, after = (seen.words[3] for seen in fake.launches)
    assert run == again == after and first == same and len({run, first, second}) == 3


@pytest.mark.parametrize("what", ["cuLaunchKernelEx", "cuCtxPushCurrent_v2"])
def test_a_call_seen_before_that_fails_says_so_and_can_be_made_again(torch, fake, what):
    add, given = calling(ADD_CODE), tensors(torch, 0x1000, 0x2000, 0x3000)
    for _ in range(2):
        add(given, [64])
    fake.failing[what] = 700
    with pytest.raises(TargetError, match="add: cuLaunchKernelEx failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        add(given, [64])
    add(given, [64])
    assert len(fake.launches) == 3


def test_threads_that_call_one_program_launch_their_own_arrays(torch, fake):
    add = calling(ADD_CODE)
    torch.streams.update(dict.fromkeys(range(2), 0))

    def calls(number: int) -> None:
        for _ in range(40):
            add(tensors(torch, *(0x100000 * number + 0x1000 * i for i in (1, 2, 3))), [number])

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted(seen.words for seen in fake.launches)
    assert found == sorted([(*(0x100000 * n + 0x1000 * i for i in (1, 2, 3)), n) for n in range(1, 5)] * 40)


def test_a_launch_that_fails_leaves_nothing_that_another_could_take(torch, fake):
    add, given = calling(ADD_CODE), tensors(torch, 0x1000, 0x2000, 0x3000)
    add(given, [64])
    fake.failing["cuLaunchKernelEx"] = 700
    with pytest.raises(TargetError, match="cuLaunchKernelEx failed"):
        add(tensors(torch, *ELSEWHERE), [64])
    add(given, [64])
    assert [seen.words for seen in fake.launches] == [(0x1000, 0x2000, 0x3000, 64)] * 2


OURS = str(Path(cuda_driver_module.__file__).parents[1])


def test_a_call_that_was_made_before_costs_few_calls_of_python(torch, fake):
    """Calls are counted and not timed, so that a busy machine changes nothing."""
    add, given = calling(ADD_CODE), tensors(torch, 0x1000, 0x2000, 0x3000)
    for _ in range(2):
        add(given, [64])
    counted: list[str] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and OURS in frame.f_code.co_filename:
            counted.append(frame.f_code.co_name)

    sys.setprofile(count)
    add(given, [64])
    sys.setprofile(None)
    if hasattr(torch, "table"):
        assert {*counted} <= {"call", "<listcomp>", "__get__"}, counted
    else:
        assert len(counted) <= 40, counted
