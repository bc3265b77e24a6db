"""A kernel's code object on an AMD GPU, by HIP's module interface.

It follows HIP's documentation and is tested with a fake of the driver that checks every call's arguments; it has never
run on a card. Numbers and layouts are those of hip_runtime_api.h, ROCm 6 and 7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import field, replace
from functools import cache
from math import prod
from pathlib import Path

from tilewave.errors import NOWHERE, CallError, TargetError, here
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView, Parameter
from tilewave.runtime.call_checks import check_call, device_number
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.driver import ANYWHERE, Driver, Vendor, as_text, of, open_library
from tilewave.runtime.foreign_arrays import stream_of
from tilewave.runtime.gpu_launch import Address, GpuLaunch, Shape3, Slot, Stride, SymbolArgument

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "hipInit": (c_uint,),
    "hipGetErrorName": (c_int,),
    "hipGetErrorString": (c_int,),
    "hipGetDeviceCount": (c_void_p,),
    "hipGetDevice": (c_void_p,),
    "hipSetDevice": (c_int,),
    # Without the suffix R0600, the library exports the function of ROCm 5, which fills another struct.
    "hipGetDevicePropertiesR0600": (c_void_p, c_int),
    "hipModuleLoadData": (c_void_p, c_void_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "hipModuleLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
}
_POISONED = "an earlier kernel broke this process's GPU state: restart it, and look at the kernels launched before"
_REMEDIES = {
    "hipErrorNoDevice": f"check rocminfo and HIP_VISIBLE_DEVICES; {ANYWHERE}",
    "hipErrorOutOfMemory": "free device memory: torch.cuda.empty_cache(), or smaller arrays",
    "hipErrorNoBinaryForGpu": "compile it for this GPU: WaveCompileOptions(target=…)",
    "hipErrorInvalidImage": "this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report",
    "hipErrorIllegalAddress": _POISONED,
    "hipErrorLaunchFailure": _POISONED,
}
AMD = Vendor(
    "AMD",
    ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "amdhip64_7.dll", "amdhip64_6.dll"),
    _SIGNATURES,
    _REMEDIES,
    {"hipGetDevicePropertiesR0600": "ROCm 6 or newer"},
    ("hipGetErrorName", "hipGetErrorString"),
)

PROPERTIES_BYTES, ARCH_OFFSET, TEXT_BYTES = 1472, 1160, 256
"""The size of hipDeviceProp_tR0600, the offset of its gcnArchName, and the longest gcnArchName or name."""
MOST_LANES = 1 << 32
"""The limit of lanes along each side of the grid (hipModuleLaunchKernel)."""
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3  # HIP_LAUNCH_PARAM_…
_NO_DEVICE = 100  # hipErrorNoDevice


@dataclass(frozen=True)
class HipDevice:
    number: int
    name: str
    arch: str
    """LLVM's name for it, without the suffix that HIP adds after a colon, `:sramecc+:xnack-`."""


class HipDriver(Driver):
    """HIP, initialised."""

    vendor = AMD

    def __init__(self, library: object) -> None:
        super().__init__(library)
        code = self.function("hipInit")(0)
        if code == _NO_DEVICE:
            what = "this machine has HIP, but no AMD GPU that it can use"
            raise TargetError(what, loc=here(), remedy=_REMEDIES["hipErrorNoDevice"])
        if code:
            raise self.failure("", "hipInit", code)

    def words(self, code: int) -> tuple[str, str]:
        name = as_text(self.function("hipGetErrorName")(code))
        text = as_text(self.function("hipGetErrorString")(code))
        return name or f"HIP error {code}", text or "no explanation"

    def device_count(self) -> int:
        count = c_int()
        self.call("", "hipGetDeviceCount", ctypes.byref(count))
        return count.value

    def device(self, number: int) -> HipDevice:
        properties = ctypes.create_string_buffer(PROPERTIES_BYTES)
        self.call("", "hipGetDevicePropertiesR0600", properties, number)
        name, arch = (_text(properties.raw[at : at + TEXT_BYTES]) for at in (0, ARCH_OFFSET))
        return HipDevice(number, name, arch.partition(":")[0])

    def require(self, kernel: str, number: int, arch: str) -> None:
        """Raise where code for `arch` does not run on the device."""
        device = self.device(number)
        if device.arch != arch:
            raise TargetError(
                f"{kernel}: it was compiled for {arch}, but rocm:{number} ({device.name}) is {device.arch}",
                loc=here(),
                remedy=f'compile it with target="{device.arch}" if there is one, or run it on another GPU; {ANYWHERE}',
            )

    @contextmanager
    def current(self, number: int) -> Iterator[None]:
        """Make a device current for this thread within the `with` block."""
        before = c_int()
        self.call("", "hipGetDevice", ctypes.byref(before))
        if before.value == number:
            yield
            return
        self.call("", "hipSetDevice", number)
        try:
            yield
        finally:
            self.call("", "hipSetDevice", before.value)


def _text(field_bytes: bytes) -> str:
    return field_bytes.partition(b"\0")[0].decode(errors="replace")


def files_in_use(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Return the HIP libraries that this process has loaded: handles of torch's copy are invalid in any other copy."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:  # not on Linux
        return ()
    paths = (line.split(maxsplit=5)[-1] for line in lines if "libamdhip64.so" in line)
    return tuple(dict.fromkeys(paths))


@cache
def _opened() -> HipDriver:
    return HipDriver(open_library(replace(AMD, files=files_in_use() + AMD.files)))


def hip_driver(kernel: str = "") -> HipDriver:
    """Return this machine's HIP, loaded at the first use; a TargetError where there is none."""
    try:
        return _opened()
    except TargetError as error:
        raise TargetError(of(kernel) + error.what, loc=here(), remedy=error.remedy) from None


# programs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HipCode:
    """A kernel's compiled code: a code object for a chip, and how to launch it."""

    kernel: str
    """The kernel's name, which is also that of its entry point."""
    arch: str
    code: bytes
    launch: GpuLaunch
    parameters: tuple[Parameter, ...]
    fields: tuple[tuple[int, int], ...]
    """The offset and size of each parameter among the kernel's arguments, from the code object's metadata."""

    def __post_init__(self) -> None:
        assert len(self.fields) == len(self.launch.slots), f"{self.kernel}: a field for each parameter is needed"
        assert not self.launch.attributes, f"{self.kernel}: AMD has no {self.launch.attributes}"


@dataclass(frozen=True)
class _Loaded:
    module: int
    function: int


@dataclass
class HipProgram:
    """A kernel's code, callable; HIP is loaded at the first call."""

    code: HipCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)

    def sized(self, grid: Shape3, parameters: tuple[Parameter, ...]) -> HipProgram:
        """Return a program with this code for arrays of other shapes."""
        code = self.code
        if (grid, parameters) == (code.launch.grid, code.parameters):
            return self
        return HipProgram(replace(code, launch=replace(code.launch, grid=grid), parameters=parameters), self._loaded)

    def __call__(self, arrays: Sequence[object], numbers: Sequence[int]) -> None:
        """Launch the kernel on the arrays' device and stream, without copies and without waiting."""
        kernel = self.code.kernel
        driver = hip_driver(kernel)
        try:
            views = check_call(kernel, self.code.parameters, arrays, "rocm", NOWHERE)
            number = device_number(views)
            stream = stream_of(arrays, [p.name for p in self.code.parameters], number)
        except CallError as error:  # looking up the author's line costs more than a launch
            raise error.at(here()) from None
        except Refused as refused:
            raise CallError(f"{kernel}: {refused.what}", loc=here(), remedy=refused.remedy) from None
        with driver.current(number):
            loaded = self._loaded.get(number) or self._load(driver, number)
            self._launch(driver, loaded.function, self._arguments(views, numbers), stream)

    def _load(self, driver: HipDriver, number: int) -> _Loaded:
        kernel, module, function = self.code.kernel, c_void_p(), c_void_p()
        driver.require(kernel, number, self.code.arch)
        driver.call(kernel, "hipModuleLoadData", ctypes.byref(module), self.code.code)
        driver.call(kernel, "hipModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return self._loaded.setdefault(number, _Loaded(module.value or 0, function.value or 0))

    def _arguments(self, views: Sequence[ArrayView], numbers: Sequence[int]) -> bytes:
        """Return the kernel's arguments as one packed buffer."""
        laid_out = bytearray(max((at + size for at, size in self.code.fields), default=0))
        for slot, (at, size) in zip(self.code.launch.slots, self.code.fields, strict=True):
            value = _value(slot, views, numbers)
            laid_out[at : at + size] = value.to_bytes(8, "little", signed=value < 0)[:size]
        return bytes(laid_out)

    def _launch(self, driver: HipDriver, function: int, arguments: bytes, stream: int) -> None:
        launch = self.code.launch
        if any(count * lanes >= MOST_LANES for count, lanes in zip(launch.grid, launch.block, strict=True)):
            what = f"{prod(launch.grid):,} workgroups of {prod(launch.block)} lanes are more than HIP launches"
            remedy = f"it launches fewer than {MOST_LANES:,} lanes along a side: cut the arrays into larger tiles"
            raise CallError(f"{self.code.kernel}: {what}", loc=here(), remedy=remedy)
        buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), c_size_t(len(arguments))
        at = ctypes.addressof(buffer), ctypes.addressof(size)
        extra = (c_size_t * 5)(_BUFFER_POINTER, at[0], _BUFFER_SIZE, at[1], _END)
        shape = (*launch.grid, *launch.block, launch.shared_bytes)
        driver.call(self.code.kernel, "hipModuleLaunchKernel", function, *shape, stream or None, None, extra)


def _value(slot: Slot, views: Sequence[ArrayView], numbers: Sequence[int]) -> int:
    match slot:
        case Address(array):
            return views[array].pointer
        case Stride(array, axis):
            return views[array].strides[axis] // views[array].dtype.bytes
        case SymbolArgument(index):
            return numbers[index]
        case _:
            raise NotImplementedError(f"no parameter for {slot} on AMD")
