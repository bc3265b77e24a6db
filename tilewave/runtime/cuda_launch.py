"""A kernel on one NVIDIA GPU: its module, what the assembler made of it, and launches that cost little Python.

A launcher works out all that a launch of arrays of certain shapes needs, but for their addresses; with these, a frame
holds everything that cuLaunchKernelEx reads. Nothing changes a frame afterwards, so the same call can be made again,
and by several threads at once, without writing a byte.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

from tilewave.errors import CallError, TargetError, here
from tilewave.forks import cached_property
from tilewave.ir.launch import picked
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cuda_driver import CudaDevice, CudaDriver, DeviceMemory
from tilewave.runtime.driver import Function
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
from tilewave.runtime.tensor_map import MAP_ALIGNMENT, MAP_BYTES, MapEncoding, TensorMap

LOG_BYTES = 1 << 16
CONFIG_BYTES = 56
"""Of a CUlaunchConfig."""
_INFO_LOG, _INFO_BYTES, _ERROR_LOG, _ERROR_BYTES, _VERBOSE = 3, 4, 5, 6, 12
_SHARED, _CONST, _LOCAL, _REGISTERS, _MAX_DYNAMIC_SHARED = 1, 2, 3, 4, 8
RECORDED = -1
"""In place of a stream: launches that a graph records."""
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6


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
    frame = FrameLayout(len(arguments), (), block, shared_bytes, attributes).frame(arguments, grid, stream)
    driver = function.driver
    with driver.current(function.number):
        driver.call(function.name, "cuLaunchKernelEx", frame.at, function.handle, frame.parameters_at, None)


class FrameLayout:
    """Where a launch has what the driver reads: tensor maps, a word for each parameter, pointers to them, its config.

    A CUlaunchConfig is the grid, the workgroup's lanes, shared bytes, a stream, and where its attributes are; a
    CUlaunchAttribute has its number and, 8 bytes on, a value of 64. Last come the numbers that maps are made of.
    """

    def __init__(
        self,
        count: int,
        maps: Sequence[tuple[int, int]],
        block: Shape3,
        shared_bytes: int,
        attributes: Sequence[Attribute],
    ) -> None:
        """`maps` are the parameters that are tensor maps, and how many axes each has."""
        spelled = b"".join(map(_spelled, attributes))
        numbers = sum(2 * rank for _, rank in maps)
        self._packed = struct.Struct(f"@{count}q{count}Q7IQQI0Q{numbers}Q{len(spelled)}s")
        self._config, self._attributes = (*block, shared_bytes), (len(attributes), spelled)
        self._words_at = words_at = len(maps) * MAP_BYTES
        self._count = count
        self._parameters_at, self._config_at = words_at + 8 * count, words_at + 16 * count
        numbers_at = self._config_at + CONFIG_BYTES
        self.maps: list[tuple[int, int, int]] = []
        """Which parameter each is, where it is encoded, and what of."""
        for at, (parameter, rank) in enumerate(maps):
            self.maps.append((parameter, at * MAP_BYTES, numbers_at))
            numbers_at += 16 * rank
        self._attributes_at = numbers_at
        self._memory = ctypes.c_char * (words_at + self._packed.size + MAP_ALIGNMENT)

    def frame(self, words: Sequence[int], grid: Shape3, stream: int, numbers: Sequence[int] = ()) -> LaunchFrame:
        """A launch, whose maps are yet to be encoded."""
        memory = self._memory()
        address = ctypes.addressof(memory)
        start = -(-address // MAP_ALIGNMENT) * MAP_ALIGNMENT
        pointers = [*range(start + self._words_at, start + self._parameters_at, 8)]
        for parameter, at, _ in self.maps:
            pointers[parameter] = start + at
        count, spelled = self._attributes
        config = *grid, *self._config, stream, start + self._attributes_at, count
        at = start - address + self._words_at
        self._packed.pack_into(memory, at, *words, *pointers, *config, *numbers, spelled)
        return LaunchFrame(start + self._config_at, start + self._parameters_at, start, memory)

    def with_words(self, frame: LaunchFrame, words: Mapping[int, int]) -> LaunchFrame:
        """The same launch, except for some of its parameters; all others are read where that frame has them."""
        own = (c_int64 * len(words))(*words.values())
        parameters = (c_size_t * self._count).from_address(frame.parameters_at)
        parameters = type(parameters).from_buffer_copy(parameters)
        first = ctypes.addressof(own)
        for i, at in enumerate(words):
            parameters[at] = first + 8 * i
        return LaunchFrame(frame.at, ctypes.addressof(parameters), frame.start, (frame, own, parameters))


class LaunchFrame(NamedTuple):
    """What the driver reads of one launch."""

    at: int
    """The address of its config."""
    parameters_at: int
    start: int
    memory: object
    """What all these addresses are in."""


def _spelled(attribute: Attribute) -> bytes:
    match attribute:
        case Cluster(shape):
            number, value = _CLUSTER_DIMENSION, shape
        case EarlyStart():
            number, value = _PROGRAMMATIC_SERIALIZATION, (1, 0, 0)
        case _:
            raise NotImplementedError(f"no launch attribute for {attribute}")
    return struct.pack("@i4x3I52x", number, *value)


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
        slots = list(enumerate(description.slots))
        self._scratch = {
            (at, RECORDED): self._zeros(slot.bytes) for at, slot in slots if isinstance(slot, ScratchMemory)
        }
        self._scalars = [(at, slot.index) for at, slot in slots if isinstance(slot, ScalarSlot)]
        self._of_symbols = picked([slot.index if isinstance(slot, SymbolArgument) else -1 for _, slot in slots])
        """The numbers of a call, and a 0 behind them → words; those of other parameters are yet to be found."""
        self.addresses = tuple((at, slot.array) for at, slot in slots if isinstance(slot, Address))
        self._tiled = tuple(slot for _, slot in slots if isinstance(slot, TiledArray))
        self._strides = [(at, slot.array, slot.axis) for at, slot in slots if isinstance(slot, Stride)]
        known = SymbolArgument | Address | Stride | TiledArray
        self._others = [(at, slot) for at, slot in slots if not isinstance(slot, known)]
        maps = [(at, len(slot.axes)) for at, slot in slots if isinstance(slot, TiledArray)]
        shape = len(slots), maps, description.block, description.shared_bytes
        early = description.attributes
        late = [a for a in early if not isinstance(a, EarlyStart)]
        self._early, self._late = FrameLayout(*shape, early), FrameLayout(*shape, late)
        if description.shared_bytes:
            function.allow_shared(description.shared_bytes)

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int) -> None:
        """Launch it; the arrays have been checked, and nothing is waited for."""
        self.launch(self.prepare(views, numbers, stream).at([v.pointer for v in views]))

    def prepare(
        self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int, shape: LaunchShape | None = None
    ) -> LaunchTemplate:
        """All that a launch needs but where its arrays lie; `shape` where their sizes decide it."""
        grid = self.description.grid if shape is None else shape.grid
        layout = self._early if shape is None or shape.starts_early else self._late
        words = [*self._of_symbols((*numbers, 0))]
        for at, array, axis in self._strides:
            words[at] = views[array].strides[axis] // views[array].dtype.bytes
        for at, slot in self._others:
            words[at] = self._word(at, slot, numbers, stream)
        encodings, sides = [], []
        for tiled in self._tiled:
            found = self._map(tiled, views[tiled.array])
            encodings.append((tiled.array, found.encoding()))
            sides += found.numbers()
        return LaunchTemplate(self, layout, words, grid, stream, encodings, sides)

    def renumbered(self, frame: LaunchFrame, numbers: Sequence[int]) -> LaunchFrame:
        """The same launch with other numbers for the kernel's arithmetic; the old frame is left as it was."""
        return self._early.with_words(frame, {at: numbers[index] for at, index in self._scalars})

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
            raise self.failure("cuLaunchKernelEx", code)

    def failure(self, name: str, code: int) -> TargetError:
        return self._driver.failure(self.function.name, name, code)

    @cached_property
    def encode(self) -> Function:
        """What older drivers do not have, and kernels without tensor maps do not need."""
        return self._driver.function("cuTensorMapEncodeTiled", self.function.name)

    def _word(self, at: int, slot: Slot, numbers: Sequence[int], stream: int) -> int:
        match slot:
            case ScalarSlot(index):
                return c_int64(numbers[index]).value  # the bits of a float may look like a larger number
            case Table(index):
                return self._tables[index].address
            case ScratchMemory(size):
                return self._scratch_at(at, size, stream)
            case _:
                raise NotImplementedError(f"no parameter for {slot}")

    def _scratch_at(self, at: int, size: int, stream: int) -> int:
        if self._driver.capturing(self._number, stream):  # a graph may run anywhere, and beside this stream
            return self._scratch[at, RECORDED].address
        found = self._scratch.get((at, stream))
        if found is None:
            found = self._scratch.setdefault((at, stream), self._zeros(size))
        return found.address

    def _zeros(self, size: int) -> DeviceMemory:
        return DeviceMemory.zeroed(self._driver, self._number, size, self.function.name)

    def _map(self, slot: TiledArray, view: ArrayView) -> TensorMap:
        tiled = tensor_map(slot, view)
        problem = tiled.problem(view.pointer)
        if problem:
            name = self._names[slot.array] if self._names else f"array {slot.array}"
            raise CallError(
                f"{self.function.name}: {name} {problem}",
                loc=here(),
                remedy=f"pass a contiguous copy of {name} whose rows are multiples of 16 bytes long",
            )
        return tiled


class LaunchTemplate(NamedTuple):
    """A launch for all arrays of certain shapes and strides; their addresses are put in last."""

    launcher: Launcher
    layout: FrameLayout
    words: list[int]
    grid: Shape3
    stream: int
    maps: list[tuple[int, MapEncoding]]
    """Of which arrays there are tensor maps, and of what kind."""
    sides: list[int]
    """The numbers that these maps are made of, beside addresses."""

    def at(self, pointers: Sequence[int]) -> LaunchFrame:
        """The launch with arrays at these addresses; they have been checked."""
        words = self.words.copy()
        for at, array in self.launcher.addresses:
            # Lanes that must not touch an element look at their array's first one; an empty array has none.
            words[at] = pointers[array] or next(filter(None, pointers), 0)
        frame = self.layout.frame(words, self.grid, self.stream, self.sides)
        start = frame.start
        for (array, encoding), (_, at, numbers) in zip(self.maps, self.layout.maps, strict=True):
            code = encoding(self.launcher.encode, start + at, start + numbers, pointers[array])
            if code:
                raise self.launcher.failure("cuTensorMapEncodeTiled", code)
        return frame


def tensor_map(slot: TiledArray, view: ArrayView) -> TensorMap:
    """The tensor map of an array in a slot; `problem` of it says whether the copy engine takes the array."""
    sizes, strides = tuple([view.shape[a] for a in slot.axes]), tuple([view.strides[a] for a in slot.axes])
    return TensorMap(view.dtype, sizes, strides, slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes)
