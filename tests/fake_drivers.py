"""Drivers of GPUs that are not here: C functions that check what they are given as the vendors' documents ask.

Signatures, numbers and struct layouts are written out once more, from cuda.h and hip_runtime_api.h, and not taken from
what is tested. A call that breaks a rule is noted in `faults` and fails; tests end by looking there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

OUT_INT, OUT_POINTER = POINTER(c_int), POINTER(c_void_p)


class Wrong(Exception):
    """A rule of the interface is broken."""


def must(holds: object, rule: str) -> None:
    if not holds:
        raise Wrong(rule)


class FakeLibrary:
    """Methods named after C functions, as C functions: arguments pass through ctypes as they would to a driver."""

    PROTOTYPES: ClassVar[dict[str, tuple[Any, ...]]] = {}
    INVALID_VALUE = 1

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults: list[str] = []
        self.failing: dict[str, int] = {}
        """Functions whose next call fails, and with which code."""
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.PROTOTYPES:
            raise AttributeError(name)
        if name not in self._made:
            restype, *argtypes = self.PROTOTYPES[name]
            self._made[name] = ctypes.CFUNCTYPE(restype, *argtypes)(self._checked(name))
        return self._made[name]

    def _checked(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            try:
                if name in self.failing:
                    return self.failing.pop(name)
                return getattr(self, f"do_{name}")(*arguments) or 0
            except Exception as broken:
                self.faults.append(f"{name}: {broken}")
                return self.INVALID_VALUE

        return call


# HIP ------------------------------------------------------------------------------------------------------------------

HIP_ERRORS = {
    1: (b"hipErrorInvalidValue", b"invalid argument"),
    100: (b"hipErrorNoDevice", b"no ROCm-capable device is detected"),
    101: (b"hipErrorInvalidDevice", b"invalid device ordinal"),
    200: (b"hipErrorInvalidImage", b"device kernel image is invalid"),
    500: (b"hipErrorNotFound", b"named symbol not found"),
    719: (b"hipErrorLaunchFailure", b"unspecified launch failure"),
}


@dataclass(frozen=True)
class AmdGpu:
    name: str = "AMD Instinct MI300X"
    arch: str = "gfx942:sramecc+:xnack-"


@dataclass(frozen=True)
class HipLaunched:
    device: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    arguments: bytes


class FakeHip(FakeLibrary):
    """libamdhip64.so of ROCm 6 with some GPUs; a code object is an ELF file that names its kernels."""

    PROTOTYPES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hipInit": (c_int, c_uint),
        "hipGetErrorName": (c_void_p, c_int),
        "hipGetErrorString": (c_void_p, c_int),
        "hipGetDeviceCount": (c_int, OUT_INT),
        "hipGetDevice": (c_int, OUT_INT),
        "hipSetDevice": (c_int, c_int),
        "hipGetDevicePropertiesR0600": (c_int, c_void_p, c_int),
        "hipModuleLoadData": (c_int, OUT_POINTER, c_void_p),
        "hipModuleUnload": (c_int, c_void_p),
        "hipModuleGetFunction": (c_int, OUT_POINTER, c_void_p, c_char_p),
        "hipModuleLaunchKernel": (c_int, c_void_p, *[c_uint] * 7, c_void_p, OUT_POINTER, OUT_POINTER),
    }

    def __init__(self, *gpus: AmdGpu) -> None:
        super().__init__()
        self.gpus = gpus
        self.device = 0
        self.kernels = (b"scale",)
        self.modules: dict[int, int] = {}
        self.functions: dict[int, tuple[int, str]] = {}
        self.launches: list[HipLaunched] = []
        self._texts: list[Any] = []
        self._handles = iter(range(0x1000, 1 << 40, 0x10))

    def do_hipInit(self, flags: int) -> int:
        must(flags == 0, "flags are 0")
        return 0 if self.gpus else 100

    def do_hipGetErrorName(self, code: int) -> int:
        return self._text(HIP_ERRORS[code][0])

    def do_hipGetErrorString(self, code: int) -> int:
        return self._text(HIP_ERRORS[code][1])

    def _text(self, text: bytes) -> int:
        self._texts.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(self._texts[-1])

    def do_hipGetDeviceCount(self, out: Any) -> None:
        out[0] = len(self.gpus)

    def do_hipGetDevice(self, out: Any) -> None:
        out[0] = self.device

    def do_hipSetDevice(self, number: int) -> int:
        if not 0 <= number < len(self.gpus):
            return 101
        self.device = number
        return 0

    def do_hipGetDevicePropertiesR0600(self, out: int, number: int) -> int:
        if not 0 <= number < len(self.gpus):
            return 101
        gpu = self.gpus[number]
        filled = bytearray(b"\xcc" * 1472)
        filled[0 : len(gpu.name) + 1] = gpu.name.encode() + b"\0"
        filled[1160 : 1161 + len(gpu.arch)] = gpu.arch.encode() + b"\0"
        ctypes.memmove(out, bytes(filled), 1472)
        return 0

    def do_hipModuleLoadData(self, out: Any, image: int) -> int:
        if ctypes.string_at(image, 4) != b"\x7fELF":
            return 200
        out[0] = handle = next(self._handles)
        self.modules[handle] = self.device
        return 0

    def do_hipModuleUnload(self, module: int) -> None:
        del self.modules[module]

    def do_hipModuleGetFunction(self, out: Any, module: int, name: bytes) -> int:
        must(module in self.modules, f"no module {module}")
        if name not in self.kernels:
            return 500
        out[0] = handle = next(self._handles)
        self.functions[handle] = (self.modules[module], name.decode())
        return 0

    def do_hipModuleLaunchKernel(self, function: int, *rest: Any) -> None:
        *shape, stream, parameters, extra = rest
        must(function in self.functions, f"no function {function}")
        device, kernel = self.functions[function]
        must(device == self.device, "the function's device is current")
        must(min(shape[:6]) >= 1 and shape[3] * shape[4] * shape[5] <= 1024, "a launch has workgroups and lanes")
        must(all(g * b < 1 << 32 for g, b in zip(shape[:3], shape[3:6], strict=True)), "fewer than 2^32 work-items")
        must(not parameters, "arguments are passed one way")
        must([extra[i] for i in (0, 2, 4)] == [1, 2, 3], "extra is pointer, size, end")
        size = c_size_t.from_address(extra[3]).value
        arguments = ctypes.string_at(extra[1], size)
        self.launches.append(
            HipLaunched(device, kernel, tuple(shape[:3]), tuple(shape[3:6]), shape[6], stream or 0, arguments)
        )
