"""A kernel on one NVIDIA GPU: its module, what the assembler made of it, and launches that cost little Python.

A launcher works out all that launches of arrays which lie alike need, but for their addresses and sizes; with these, a
frame holds everything that cuLaunchKernelEx reads. Nothing changes a frame that is kept, so the same call can be made
again, and by several threads at once, without writing a byte; one that is not kept is given back after its launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from itertools import count as count_from
from typing import Any, NamedTuple

from tilewave.errors import CallError, TargetError, here
from tilewave.forks import cached_property
from tilewave.ir.python_code import code_of, pattern
from tilewave.runtime.array_places import ArrayNames, ArrayPlaces
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
from tilewave.runtime.graph_memory import GraphMemory
from tilewave.runtime.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap, map_numbers

LOG_BYTES = 1 << 16
CONFIG_BYTES = 56
"""Of a CUlaunchConfig."""
_INFO_LOG, _INFO_BYTES, _ERROR_LOG, _ERROR_BYTES, _VERBOSE = 3, 4, 5, 6, 12
_SHARED, _CONST, _LOCAL, _REGISTERS, _MAX_DYNAMIC_SHARED = 1, 2, 3, 4, 8
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
        driver.call(function.name, "cuLaunchKernelEx", frame.config, function.handle, frame.parameters, None)


class FrameLayout:
    """Where a launch has what the driver reads.

    Tensor maps, the numbers that they are made of, a word for each parameter, its config, pointers to the parameters,
    and attributes. A CUlaunchConfig is the grid, the workgroup's lanes, shared bytes, a stream, and where its
    attributes are; a CUlaunchAttribute has its number and, 8 bytes on, a value of 64.
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
        ranks = [rank for _, rank in maps]
        numbers_at = [*accumulate((16 * rank for rank in ranks), initial=len(maps) * MAP_BYTES)]
        self._numbers_at, words_at = numbers_at[0], numbers_at[-1]
        self._packed = struct.Struct(f"@{2 * sum(ranks)}Q{count}q7IQQI0Q")
        self._config_at, self._pointers_at = words_at + 8 * count, words_at + 8 * count + CONFIG_BYTES
        self._config, self._attributes = (*block, shared_bytes), (len(attributes), spelled)
        self._count, self._attributes_at = count, self._pointers_at + 8 * count
        self._parameters = [*range(words_at, self._config_at, 8)]
        """Where each is."""
        for at, (parameter, _) in enumerate(maps):
            self._parameters[parameter] = at * MAP_BYTES
        places = zip(count_from(0, MAP_BYTES), numbers_at, ranks, strict=False)
        self._maps = [(at, numbers, numbers + 8 * rank) for at, numbers, rank in places]
        self._memory = ctypes.c_char * (self._attributes_at + len(spelled) + MAP_ALIGNMENT)
        self._free: list[LaunchFrame] = []

    def frame(self, words: Sequence[int], grid: Shape3, stream: int) -> LaunchFrame:
        """A launch, whose maps are yet to be encoded; nobody else has its memory until it is given back.

        `words` are the numbers that its maps are made of, then one for each parameter.
        """
        try:
            frame = self._free.pop()
        except IndexError:
            frame = self._new()
        config = *grid, *self._config, stream, frame.attributes, self._attributes[0]
        self._packed.pack_into(frame.memory, frame.words_at, *words, *config)
        return frame

    def _new(self) -> LaunchFrame:
        memory = self._memory()
        address = ctypes.addressof(memory)
        begin = -address % MAP_ALIGNMENT
        start = address + begin
        struct.pack_into(f"{self._count}Q", memory, begin + self._pointers_at, *map(start.__add__, self._parameters))
        spelled = self._attributes[1]
        ctypes.memmove(start + self._attributes_at, spelled, len(spelled))
        return LaunchFrame(
            memory,
            begin + self._numbers_at,
            start + self._attributes_at,
            byref(memory, begin + self._config_at),
            byref(memory, begin + self._pointers_at),
            [tuple([byref(memory, begin + at) for at in places]) for places in self._maps],
            self._free,
        )

    def with_words(self, frame: LaunchFrame, words: Mapping[int, int]) -> LaunchFrame:
        """The same launch, except for some of its parameters; all others are read where that frame has them."""
        own = (c_int64 * len(words))(*words.values())
        at = frame.words_at - self._numbers_at + self._pointers_at
        parameters = (c_size_t * self._count).from_buffer_copy(frame.memory, at)
        first = ctypes.addressof(own)
        for i, at in enumerate(words):
            parameters[at] = first + 8 * i
        return frame._replace(memory=(frame, own, parameters), parameters=byref(parameters))


class LaunchFrame(NamedTuple):
    """What the driver reads of one launch; references are as C takes them."""

    memory: Any
    words_at: int
    """Where in it that begins which differs from launch to launch."""
    attributes: int
    """Their address."""
    config: Any
    parameters: Any
    maps: list[tuple[Any, ...]]
    """Where each tensor map is encoded, and where its sizes and strides are."""
    free: list[LaunchFrame]
    """Those that nobody has."""

    def give_back(self) -> None:
        """Let another launch have its memory: this one has been made, and is not kept."""
        self.free.append(self)


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
        self._handle = c_void_p(function.handle)
        self._launch = self._driver.unconverted("cuLaunchKernelEx", function.name)
        self._get_current = self._driver.unconverted("cuCtxGetCurrent", function.name)
        self._tables = [
            DeviceMemory.holding(self._driver, self._number, table, function.name) for table in description.tables
        ]
        slots = list(enumerate(description.slots))
        self._scratch: dict[tuple[int, int], DeviceMemory] = {}
        """By parameter and stream."""
        self._of_graphs = {at: self._recorded(slot.bytes) for at, slot in slots if isinstance(slot, ScratchMemory)}
        self._scalars = [(at, slot.index) for at, slot in slots if isinstance(slot, ScalarSlot)]
        self.has_scalars = bool(self._scalars)
        maps = [(at, len(slot.axes)) for at, slot in slots if isinstance(slot, TiledArray)]
        shape = len(slots), maps, description.block, description.shared_bytes
        late = [a for a in description.attributes if not isinstance(a, EarlyStart)]
        self.early, self.late = FrameLayout(*shape, description.attributes), FrameLayout(*shape, late)
        if description.shared_bytes:
            function.allow_shared(description.shared_bytes)

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int) -> None:
        """Launch it; the arrays have been checked, and nothing is waited for."""
        self.launch(self.template(views, stream).at(ArrayPlaces.of_views(views), numbers))

    def template(self, views: Sequence[ArrayView], stream: int) -> LaunchTemplate:
        """All that launches on a stream need with arrays that lie as these, which have been checked."""
        slots = self.description.slots
        maps = [self._map(slot, views[slot.array]) for slot in slots if isinstance(slot, TiledArray)]
        others = [(at, slot) for at, slot in enumerate(slots) if isinstance(slot, Table | ScratchMemory)]
        fixed = tuple([self._word(at, slot, stream) for at, slot in others])
        words = words_code(slots, tuple([(len(v.shape), v.dtype.bytes) for v in views]))
        return LaunchTemplate(self, words, fixed, tuple(maps), stream)

    def renumbered(self, frame: LaunchFrame, numbers: Mapping[int, int]) -> LaunchFrame:
        """The same launch with other numbers for the kernel's arithmetic; the old frame is left as it was."""
        return self.early.with_words(frame, {at: numbers[index] for at, index in self._scalars})

    def launch(self, frame: LaunchFrame) -> None:
        """Launch what was prepared."""
        current = c_void_p()
        self._get_current(byref(current))
        if current.value == self._context:
            code = self._launch(frame.config, self._handle, frame.parameters, None)
        else:
            with self._driver.current(self._number):
                code = self._launch(frame.config, self._handle, frame.parameters, None)
        if code:
            raise self.failure("cuLaunchKernelEx", code)

    def failure(self, name: str, code: int) -> TargetError:
        return self._driver.failure(self.function.name, name, code)

    @cached_property
    def encode(self) -> Function:
        """What older drivers do not have, and kernels without tensor maps do not need."""
        return self._driver.unconverted("cuTensorMapEncodeTiled", self.function.name)

    def _word(self, at: int, slot: Slot, stream: int) -> int:
        match slot:
            case Table(index):
                return self._tables[index].address
            case ScratchMemory(size):
                return self._scratch_at(at, size, stream)
            case _:
                raise NotImplementedError(f"no parameter for {slot}")

    def _scratch_at(self, at: int, size: int, stream: int) -> int:
        recording = self._driver.recording(self._number, stream)
        if recording is not None:  # a graph may run anywhere, and beside this stream
            return self._of_graphs[at].address(recording, stream)
        found = self._scratch.get((at, stream))
        if found is None:
            found = self._scratch.setdefault((at, stream), self._zeros(size))
        return found.address

    def _zeros(self, size: int) -> DeviceMemory:
        return DeviceMemory.zeroed(self._driver, self._number, size, self.function.name)

    def _recorded(self, size: int) -> GraphMemory:
        return GraphMemory(self._driver, self._number, size, self.function.name)

    def _map(self, slot: TiledArray, view: ArrayView) -> ArrayMap:
        tiled = tensor_map(slot, view)
        problem = tiled.problem(view.pointer)
        if problem:
            name = self._names[slot.array] if self._names else f"array {slot.array}"
            raise CallError(
                f"{self.function.name}: {name} {problem}",
                loc=here(),
                remedy=f"pass a contiguous copy of {name} whose rows are multiples of 16 bytes long",
            )
        return ArrayMap(slot.array, *tiled.encoding())


class ArrayMap(NamedTuple):
    """The tensor map that a launch has of one of its arrays."""

    array: int
    kind: tuple[int, int]
    how: tuple[Any, ...]


class LaunchTemplate(NamedTuple):
    """A launch for all arrays that lie alike: where they are, and how long, is put in last."""

    launcher: Launcher
    words: Callable[..., tuple[int, ...]]
    """As `words_code` makes it."""
    fixed: tuple[int, ...]
    maps: tuple[ArrayMap, ...]
    stream: int

    def at(self, places: ArrayPlaces, numbers: Sequence[int], shape: LaunchShape | None = None) -> LaunchFrame:
        """The launch of arrays that have been checked; `shape` is what their sizes decide."""
        launcher, (pointers, shapes, strides) = self.launcher, places
        grid, early = (launcher.description.grid, True) if shape is None else shape
        if 0 in pointers:
            # Lanes that must not touch an element look at their array's first one; an empty array has none.
            there = next(filter(None, pointers), 0)
            pointers = [pointer or there for pointer in pointers]
        if launcher.has_scalars:  # the bits of a float may look like a larger number
            numbers = [n if n < 1 << 63 else n - (1 << 64) for n in numbers]
        words = self.words(pointers, shapes, strides, numbers, self.fixed)
        frame = (launcher.early if early else launcher.late).frame(words, grid, self.stream)
        for (array, kind, how), (at, sizes, sides) in zip(self.maps, frame.maps):  # noqa: B905  as many
            code = launcher.encode(at, *kind, c_void_p(pointers[array]), sizes, sides, *how)
            if code:
                raise launcher.failure("cuTensorMapEncodeTiled", code)
        return frame


@lru_cache(maxsize=256)
def words_code(slots: tuple[Slot, ...], arrays: tuple[tuple[int, int], ...]) -> Callable[..., tuple[int, ...]]:
    """The numbers of all tensor maps, then a word for each parameter, as a function of Python.

    It takes addresses, shapes and strides of arrays, the numbers of the launch, and those words that are fixed.
    `arrays` are how many axes each has, and of how many bytes its elements are.
    """
    of = ArrayNames([rank for rank, _ in arrays])
    sides, words, fixed = [], [], 0
    for slot in slots:
        match slot:
            case Address(array):
                words.append(of.pointers[array])
            case Stride(array, axis):
                words.append(of.steps[array][axis])
            case SymbolArgument(index) | ScalarSlot(index):
                words.append(f"numbers[{index}]")
            case TiledArray(array, axes):
                lengths, steps = ([names[array][axis] for axis in reversed(axes)] for names in (of.lengths, of.steps))
                sides += map_numbers(lengths, steps, arrays[array][1])
                words.append("0")  # it has its bytes elsewhere
            case _:
                words.append(f"fixed[{fixed}]")
                fixed += 1
    arguments = "pointers, shapes, strides, numbers, fixed"
    return code_of(arguments, [*of.taken(), f"return {pattern([*sides, *words])}"])


def tensor_map(slot: TiledArray, view: ArrayView) -> TensorMap:
    """The tensor map of an array in a slot; `problem` of it says whether the copy engine takes the array."""
    sizes, strides = tuple([view.shape[a] for a in slot.axes]), tuple([view.strides[a] for a in slot.axes])
    return TensorMap(view.dtype, sizes, strides, slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes)
