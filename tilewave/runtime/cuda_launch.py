"""A kernel on one NVIDIA GPU: its module, what the assembler made of it, and launches that cost little Python.

A launcher lays out everything that cuLaunchKernelEx reads in a frame; nothing changes a frame afterwards, so the same
call can be made again, and by several threads at once, without writing a byte.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_uint, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from tilewave.errors import CallError, TargetError, here
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cuda_driver import CudaDevice, CudaDriver, DeviceMemory
from tilewave.runtime.gpu_launch import (
    Address,
    Attribute,
    Cluster,
    EarlyStart,
    GpuLaunch,
    LaunchShape,
    ScalarSlot,
    ScratchMemory,
    Shape3,
    Slot,
    Stride,
    SymbolArgument,
    Table,
    TiledArray,
)
from tilewave.runtime.tensor_map import TensorMap, TensorMapBytes

LOG_BYTES = 1 << 16
KEPT_MAPS = 1024
"""Descriptors that a launcher remembers; more arrays than that in turn, and it starts afresh."""

_INFO_LOG, _INFO_BYTES, _ERROR_LOG, _ERROR_BYTES, _VERBOSE = 3, 4, 5, 6, 12
_SHARED, _CONST, _LOCAL, _REGISTERS, _MAX_DYNAMIC_SHARED = 1, 2, 3, 4, 8
_RECORDED = -1
"""In place of a stream: launches that a graph records."""
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: the value begins 8 bytes in and takes 64."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


# modules ------------------------------------------------------------------------------------------------------------


class CudaModule:
    """Code on one device, from PTX text, which the driver assembles, or from a cubin."""

    def __init__(self, driver: CudaDriver, number: int, code: bytes, kernel: str) -> None:
        self.driver, self.number, self.kernel = driver, number, kernel
        handle, logs = c_void_p(), _Logs()
        # Only text needs the zero at its end; a cubin knows its length.
        image = ctypes.create_string_buffer(code, len(code) + 1)
        with driver.current(number):
            load = driver.function("cuModuleLoadDataEx", kernel)
            failed = load(byref(handle), image, len(logs.options), logs.options, logs.values)
        if failed:
            raise driver.failure(kernel, "cuModuleLoadDataEx", failed, logs.errors or logs.info)
        self.handle = handle.value or 0
        self.log = logs.info
        """What the assembler said; empty where the driver had the kernel in its own cache."""

    def function(self, name: str) -> CudaFunction:
        handle = c_void_p()
        with self.driver.current(self.number):
            self.driver.call(self.kernel, "cuModuleGetFunction", byref(handle), self.handle, name.encode())
        return CudaFunction(self, name, handle.value or 0)

    def unload(self) -> None:
        """Give the code back; no kernel of it may be running."""
        handle, self.handle = self.handle, 0
        if handle:
            with self.driver.current(self.number):
                self.driver.call(self.kernel, "cuModuleUnload", handle)


class _Logs:
    """Two buffers for the assembler's words, and the options that name them."""

    def __init__(self) -> None:
        self._info = ctypes.create_string_buffer(LOG_BYTES)
        self._errors = ctypes.create_string_buffer(LOG_BYTES)
        self.options = (c_int * 5)(_INFO_LOG, _INFO_BYTES, _ERROR_LOG, _ERROR_BYTES, _VERBOSE)
        # The driver takes sizes and numbers as if they were pointers.
        info, errors = ctypes.addressof(self._info), ctypes.addressof(self._errors)
        self.values = (c_size_t * 5)(info, LOG_BYTES, errors, LOG_BYTES, 1)

    @property
    def info(self) -> str:
        return self._info.value.decode(errors="replace").strip()

    @property
    def errors(self) -> str:
        return self._errors.value.decode(errors="replace").strip()


@dataclass(frozen=True)
class CudaResources:
    """What one lane or workgroup takes, as the driver counts it."""

    registers: int
    local_bytes: int
    """Per lane: spilled registers and stack."""
    shared_bytes: int
    """Declared by the kernel; what a launch adds comes on top."""
    const_bytes: int


class CudaFunction:
    """A kernel of a module."""

    def __init__(self, module: CudaModule, name: str, handle: int) -> None:
        self.module, self.name, self.handle = module, name, handle
        self.driver, self.number = module.driver, module.number

    @property
    def device(self) -> CudaDevice:
        return self.driver.device(self.number)

    def attribute(self, attribute: int) -> int:
        """A function attribute by its number in cuda.h."""
        value = c_int()
        with self.driver.current(self.number):
            self.driver.call(self.name, "cuFuncGetAttribute", byref(value), attribute, self.handle)
        return value.value

    @property
    def resources(self) -> CudaResources:
        return CudaResources(*map(self.attribute, (_REGISTERS, _LOCAL, _SHARED, _CONST)))

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Let launches add so much shared memory; an error where the device has less."""
        declared = self.attribute(_SHARED)
        if dynamic_bytes + declared > self.device.shared_bytes:
            raise TargetError(
                f"{self.name}: a workgroup needs {dynamic_bytes + declared} bytes of shared memory, "
                f"but cuda:{self.number} ({self.device.name}) has {self.device.shared_bytes}",
                loc=here(),
                remedy="use smaller tiles or fewer stages",
            )
        with self.driver.current(self.number):
            arguments = (self.handle, _MAX_DYNAMIC_SHARED, dynamic_bytes)
            self.driver.call(self.name, "cuFuncSetAttribute", *arguments)


# launches -----------------------------------------------------------------------------------------------------------


def launch(
    function: CudaFunction,
    grid: Shape3,
    block: Shape3,
    shared_bytes: int,
    stream: int,
    arguments: Sequence[int],
    attributes: Sequence[Attribute] = (),
) -> None:
    """Launch once with plain numbers and addresses; kernels that are called often have a Launcher."""
    frame = LaunchFrame(len(arguments), grid, block, shared_bytes, attributes, stream)
    frame.words[:] = list(arguments)
    driver = function.driver
    with driver.current(function.number):
        driver.call(function.name, "cuLaunchKernelEx", frame.at, function.handle, frame.parameters, None)


class LaunchFrame:
    """What the driver reads of one launch: config, attributes, and a pointer to each parameter."""

    __slots__ = ("_attributes", "_config", "at", "kept", "parameters", "parameters_at", "words")

    def __init__(
        self,
        count: int,
        grid: Shape3,
        block: Shape3,
        shared_bytes: int,
        attributes: Sequence[Attribute],
        stream: int,
    ) -> None:
        self._attributes = (LaunchAttribute * len(attributes))(*map(_spelled, attributes))
        attributes_at = ctypes.addressof(self._attributes)
        self._config = LaunchConfig(grid, block, shared_bytes, stream or None, attributes_at, len(attributes))
        self.words = (c_int64 * count)()
        first = ctypes.addressof(self.words)
        self.parameters = (c_size_t * count)(*range(first, first + 8 * count, 8))
        self.at = ctypes.addressof(self._config)
        self.parameters_at = ctypes.addressof(self.parameters)
        self.kept: list[TensorMapBytes | LaunchFrame] = []

    def with_words(self, words: Mapping[int, int]) -> LaunchFrame:
        """The same launch, except for some of its parameters; all others are read where this frame has them."""
        other = LaunchFrame.__new__(LaunchFrame)
        other._attributes, other._config, other.at = self._attributes, self._config, self.at
        other.words = (c_int64 * len(words))(*words.values())
        other.parameters = type(self.parameters).from_buffer_copy(self.parameters)
        first = ctypes.addressof(other.words)
        for i, at in enumerate(words):
            other.parameters[at] = first + 8 * i
        other.parameters_at = ctypes.addressof(other.parameters)
        other.kept = [self]
        return other


def _spelled(attribute: Attribute) -> LaunchAttribute:
    match attribute:
        case Cluster(shape):
            return LaunchAttribute(_CLUSTER_DIMENSION, 0, (c_uint32 * 16)(*shape))
        case EarlyStart():
            return LaunchAttribute(_PROGRAMMATIC_SERIALIZATION, 0, (c_uint32 * 16)(1))
        case _:
            raise NotImplementedError(f"no launch attribute for {attribute}")


class Launcher:
    """A kernel ready to be called with arrays, on one device."""

    def __init__(self, function: CudaFunction, description: GpuLaunch, names: Sequence[str] = ()) -> None:
        """`names` are the arrays', for messages."""
        self.function, self.description = function, description
        self._names = names
        self._driver, self._number = function.driver, function.number
        self._context = self._driver.context(self._number)
        self._handle = function.handle
        self._launch = self._driver.function("cuLaunchKernelEx", function.name)
        self._get_current = self._driver.function("cuCtxGetCurrent", function.name)
        self._tables = [
            DeviceMemory.holding(self._driver, self._number, table, function.name) for table in description.tables
        ]
        scratch = [(at, slot) for at, slot in enumerate(description.slots) if isinstance(slot, ScratchMemory)]
        self._scratch = {(at, _RECORDED): self._zeros(slot.bytes) for at, slot in scratch}
        self._maps: dict[_MapKey, TensorMapBytes] = {}
        slots = enumerate(description.slots)
        self._scalars = [(at, slot.index) for at, slot in slots if isinstance(slot, ScalarSlot)]
        if description.shared_bytes:
            function.allow_shared(description.shared_bytes)

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int) -> None:
        """Launch it; the arrays have been checked, and nothing is waited for."""
        self.launch(self.prepare(views, numbers, stream))

    def prepare(
        self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int, shape: LaunchShape | None = None
    ) -> LaunchFrame:
        """All that a launch needs, for as many launches as the arrays live; `shape` where their sizes decide it."""
        d = self.description
        grid, attributes = d.grid, d.attributes
        if shape is not None:
            grid = shape.grid
            attributes = tuple(a for a in attributes if shape.starts_early or not isinstance(a, EarlyStart))
        frame = LaunchFrame(len(d.slots), grid, d.block, d.shared_bytes, attributes, stream)
        words: list[Any] = [0] * len(d.slots)
        for at, slot in enumerate(d.slots):
            if type(slot) is SymbolArgument:  # most are
                words[at] = numbers[slot.index]
            elif isinstance(slot, TiledArray):
                descriptor = self._descriptor(slot, views[slot.array])
                frame.parameters[at] = descriptor.address
                frame.kept.append(descriptor)
            else:
                words[at] = self._word(at, slot, views, numbers, stream)
        frame.words[:] = words
        return frame

    def renumbered(self, frame: LaunchFrame, numbers: Sequence[int]) -> LaunchFrame:
        """The same launch with other numbers for the kernel's arithmetic; the old frame is left as it was."""
        return frame.with_words({at: numbers[index] for at, index in self._scalars})

    def launch(self, frame: LaunchFrame) -> None:
        """Launch what was prepared."""
        current = c_void_p()
        self._get_current(byref(current))
        if current.value == self._context:
            code = self._launch(frame.at, self._handle, frame.parameters_at, None)
        else:
            with self._driver.current(self._number):
                code = self._launch(frame.at, self._handle, frame.parameters_at, None)
        if code:
            raise self._driver.failure(self.function.name, "cuLaunchKernelEx", code)

    def _word(self, at: int, slot: Slot, views: Sequence[ArrayView], numbers: Sequence[int], stream: int) -> int:
        match slot:
            case Address(array):
                # Lanes that must not touch an element look at their array's first one; an empty array has none.
                return views[array].pointer or next((v.pointer for v in views if v.pointer), 0)
            case Stride(array, axis):
                return views[array].strides[axis] // views[array].dtype.bytes
            case SymbolArgument(index) | ScalarSlot(index):
                return numbers[index]
            case Table(index):
                return self._tables[index].address
            case ScratchMemory(size):
                return self._scratch_at(at, size, stream)
            case _:
                raise NotImplementedError(f"no parameter for {slot}")

    def _scratch_at(self, at: int, size: int, stream: int) -> int:
        if self._driver.capturing(self._number, stream):  # a graph may run anywhere, and beside this stream
            return self._scratch[at, _RECORDED].address
        found = self._scratch.get((at, stream))
        if found is None:
            found = self._scratch.setdefault((at, stream), self._zeros(size))
        return found.address

    def _zeros(self, size: int) -> DeviceMemory:
        return DeviceMemory.zeroed(self._driver, self._number, size, self.function.name)

    def _descriptor(self, slot: TiledArray, view: ArrayView) -> TensorMapBytes:
        key = (slot, view.pointer, view.shape, view.strides)
        found = self._maps.get(key)
        if found is None:
            if len(self._maps) >= KEPT_MAPS:
                self._maps.clear()
            found = self._maps[key] = self._encode(slot, view)
        return found

    def _encode(self, slot: TiledArray, view: ArrayView) -> TensorMapBytes:
        tiled = tensor_map(slot, view)
        problem = tiled.problem(view.pointer)
        if problem:
            name = self._names[slot.array] if self._names else f"array {slot.array}"
            raise CallError(
                f"{self.function.name}: {name} {problem}",
                loc=here(),
                remedy=f"pass a contiguous copy of {name} whose rows are multiples of 16 bytes long",
            )
        return tiled.encode(self._driver, view.pointer, self.function.name)


_MapKey = tuple[TiledArray, int, tuple[int, ...], tuple[int, ...]]


def tensor_map(slot: TiledArray, view: ArrayView) -> TensorMap:
    """The tensor map of an array in a slot; `problem` of it says whether the copy engine takes the array."""
    sizes, strides = tuple(view.shape[a] for a in slot.axes), tuple(view.strides[a] for a in slot.axes)
    return TensorMap(view.dtype, sizes, strides, slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes)
