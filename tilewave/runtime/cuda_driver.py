"""NVIDIA's driver by ctypes: its functions and structs, its devices, their contexts, and memory on them.

It uses the primary context, as torch and cupy do, and every call leaves the thread's current context as it was. Nothing
here waits for a GPU except what says so. Numbers and layouts are those of cuda.h 12.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint8, c_uint64, c_void_p
from functools import cache

from tilewave.errors import TargetError, here
from tilewave.records import dataclass
from tilewave.runtime.driver import ANYWHERE, Driver, Vendor, as_text, of, open_library

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxGetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuModuleLoadDataEx": (c_void_p, c_void_p, c_uint, c_void_p, c_void_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuFuncGetAttribute": (c_void_p, c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, *[c_void_p] * 5, c_int, c_int, c_int, c_int),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemsetD8Async": (c_uint64, c_uint8, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, c_void_p),
    "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (c_void_p,),
    "cuUserObjectCreate": (c_void_p, c_void_p, c_void_p, c_uint, c_uint),
    "cuGraphRetainUserObject": (c_void_p, c_void_p, c_uint, c_uint),
}

_POISONED = "an earlier kernel broke this process's CUDA context: restart it, and look at the kernels launched before"
_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": f"check nvidia-smi and CUDA_VISIBLE_DEVICES; {ANYWHERE}",
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory: torch.cuda.empty_cache(), or smaller arrays",
    "CUDA_ERROR_INVALID_PTX": "this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "install a newer NVIDIA driver",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "compile it for this GPU: WaveCompileOptions(target=…)",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "install the driver's PTX compiler, libnvidia-ptxjitcompiler",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use smaller tiles: a workgroup needs more registers than the GPU has",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver and its kernel module differ in version: reboot after an update",
    "CUDA_ERROR_ILLEGAL_ADDRESS": _POISONED,
    "CUDA_ERROR_LAUNCH_FAILED": _POISONED,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": _POISONED,
    "CUDA_ERROR_MISALIGNED_ADDRESS": _POISONED,
    "CUDA_ERROR_LAUNCH_TIMEOUT": _POISONED,
}

NVIDIA = Vendor(
    "NVIDIA",
    ("libcuda.so.1", "nvcuda.dll"),
    _SIGNATURES,
    _REMEDIES,
    {"cuLaunchKernelEx": "driver 520 or newer (CUDA 11.8)", "cuTensorMapEncodeTiled": "driver 525 or newer (CUDA 12)"},
)

_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR, _SHARED_OPT_IN = 16, 38, 75, 76, 97
_POINTER_DEVICE = 9
_RECORDING, _RELAXED, _NON_BLOCKING = 1, 2, 1
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class CudaDevice:
    """The attributes of a GPU."""

    number: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """The most shared memory of one CTA."""
    l2_bytes: int

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def runs(self, arch: str) -> bool:
        """Return whether code for `arch` runs here: `sm_XYa` on that chip alone, `sm_XY` on its successors too."""
        wanted = arch.removeprefix("sm_")
        if wanted.endswith("a"):
            return wanted[:-1] == self.arch.removeprefix("sm_")
        return (int(wanted[:-1]), int(wanted[-1])) <= self.capability


@dataclass(frozen=True)
class Recording:
    """A CUDA graph that is capturing a stream."""

    number: int
    """A number that no other capture of this process has."""
    graph: int


LEGACY_STREAMS = (0, 1)
"""The default stream, as CUDA numbers it."""


class CudaDriver(Driver):
    """NVIDIA's driver, initialised."""

    vendor = NVIDIA

    def __init__(self, library: object) -> None:
        super().__init__(library)
        self._contexts: dict[int, int] = {}
        self._devices: dict[int, CudaDevice] = {}
        code = self.function("cuInit")(0)
        if code == NO_DEVICE:
            raise TargetError(
                "this machine has an NVIDIA driver, but no GPU that it can use",
                loc=here(),
                remedy=_REMEDIES["CUDA_ERROR_NO_DEVICE"],
            )
        if code:
            raise self.failure("", "cuInit", code)

    def words(self, code: int) -> tuple[str, str]:
        name, text = c_char_p(), c_char_p()
        self.function("cuGetErrorName")(code, ctypes.byref(name))
        self.function("cuGetErrorString")(code, ctypes.byref(text))
        return as_text(name.value) or f"CUDA error {code}", as_text(text.value) or "no explanation"

    @property
    def version(self) -> tuple[int, int]:
        """The newest CUDA version that this driver supports."""
        number = c_int()
        self.call("", "cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    # -- devices

    def device_count(self) -> int:
        count = c_int()
        self.call("", "cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def attribute(self, number: int, attribute: int) -> int:
        """Return a device attribute by its number in cuda.h."""
        value = c_int()
        self.call("", "cuDeviceGetAttribute", ctypes.byref(value), attribute, self._handle(number))
        return value.value

    def device(self, number: int) -> CudaDevice:
        found = self._devices.get(number)
        if found is None:
            found = self._devices[number] = self._ask(number)
        return found

    def _ask(self, number: int) -> CudaDevice:
        handle, name = self._handle(number), ctypes.create_string_buffer(256)
        self.call("", "cuDeviceGetName", name, len(name), handle)
        return CudaDevice(
            number=number,
            name=name.value.decode(errors="replace"),
            capability=(self.attribute(number, _MAJOR), self.attribute(number, _MINOR)),
            multiprocessors=self.attribute(number, _MULTIPROCESSORS),
            shared_bytes=self.attribute(number, _SHARED_OPT_IN),
            l2_bytes=self.attribute(number, _L2_BYTES),
        )

    def _handle(self, number: int) -> int:
        handle = c_int()
        self.call("", "cuDeviceGet", ctypes.byref(handle), number)
        return handle.value

    def device_of(self, pointer: int) -> int:
        """Return the number of the device that an address belongs to."""
        number = c_int()
        self.call("", "cuPointerGetAttribute", ctypes.byref(number), _POINTER_DEVICE, pointer)
        return number.value

    def require(self, kernel: str, number: int, arch: str) -> CudaDevice:
        """Return the device; an error where code for `arch` does not run on it."""
        device = self.device(number)
        if not device.runs(arch):
            raise TargetError(
                f"{kernel}: it was compiled for {arch}, but cuda:{number} ({device.name}) is {device.arch}",
                loc=here(),
                remedy=f"compile it for this GPU if a target fits it, or run it on another; {ANYWHERE}",
            )
        return device

    # -- contexts

    def context(self, number: int) -> int:
        """Return the device's primary context, which stays retained."""
        found = self._contexts.get(number)
        if found is None:
            handle = c_void_p()
            self.call("", "cuDevicePrimaryCtxRetain", ctypes.byref(handle), self._handle(number))
            found = self._contexts[number] = handle.value or 0
        return found

    @contextmanager
    def current(self, number: int) -> Iterator[None]:
        """Make a device current for this thread within the `with` block."""
        self.call("", "cuCtxPushCurrent_v2", self.context(number))
        try:
            yield
        finally:
            popped = c_void_p()
            self.call("", "cuCtxPopCurrent_v2", ctypes.byref(popped))

    def recording(self, number: int, stream: int) -> Recording | None:
        """Return the graph that captures the stream; None where its launches run."""
        if stream in LEGACY_STREAMS:  # CUDA does not capture the default stream
            return None
        status, recording, graph = c_int(), c_uint64(), c_void_p()
        found = ctypes.byref(status), ctypes.byref(recording), ctypes.byref(graph)
        with self.current(number):
            self.call("", "cuStreamGetCaptureInfo_v2", stream, *found, None, None)
        return Recording(recording.value, graph.value or 0) if status.value == _RECORDING else None

    @contextmanager
    def beside_recordings(self) -> Iterator[None]:
        """Let this thread allocate memory within the `with` block while a graph is captured, outside the graph."""
        mode = c_int(_RELAXED)
        self.call("", "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.call("", "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def synchronize(self, number: int, stream: int) -> None:
        """Wait until everything on the stream is done."""
        with self.current(number):
            self.call("", "cuStreamSynchronize", stream or None)


class DeviceMemory:
    """Memory of a device, filled and ready for any stream, until it is freed: a table, or zeroed scratch."""

    def __init__(self, driver: CudaDriver, number: int, size: int, content: bytes, kernel: str) -> None:
        self._driver, self._number = driver, number
        self.bytes = size
        address = c_uint64()
        with driver.current(number):
            driver.call(kernel, "cuMemAlloc_v2", ctypes.byref(address), size)
            self.address = address.value
            self._clear(kernel)
            if content:
                driver.call(kernel, "cuMemcpyHtoD_v2", self.address, content, len(content))
                driver.call(kernel, "cuStreamSynchronize", None)  # other streams do not wait for the one that filled it

    def _clear(self, kernel: str) -> None:
        """Zero the memory on a private stream, which no graph captures, and wait: other streams do not wait for it."""
        driver, stream = self._driver, c_void_p()
        driver.call(kernel, "cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        driver.call(kernel, "cuMemsetD8Async", self.address, 0, self.bytes, stream)
        driver.call(kernel, "cuStreamSynchronize", stream)
        driver.call(kernel, "cuStreamDestroy_v2", stream)

    @staticmethod
    def zeroed(driver: CudaDriver, number: int, size: int, kernel: str) -> DeviceMemory:
        return DeviceMemory(driver, number, size, b"", kernel)

    @staticmethod
    def holding(driver: CudaDriver, number: int, content: bytes, kernel: str) -> DeviceMemory:
        return DeviceMemory(driver, number, len(content), content, kernel)

    def free(self) -> None:
        """Free the memory; kernels that use it must have finished."""
        address, self.address = self.address, 0
        if address:
            with self._driver.current(self._number):
                self._driver.call("", "cuMemFree_v2", address)


@cache
def _opened() -> CudaDriver:
    return CudaDriver(open_library(NVIDIA))


def cuda_driver(kernel: str = "") -> CudaDriver:
    """Return this machine's driver, loaded at the first use; a TargetError where there is none."""
    try:
        return _opened()
    except TargetError as error:
        raise TargetError(of(kernel) + error.what, loc=here(), remedy=error.remedy) from None
