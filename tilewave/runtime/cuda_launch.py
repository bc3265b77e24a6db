"""A kernel on one NVIDIA GPU: its module, the assembler's report, and launches that cost little Python.

A `Launcher` computes what launches with the same layout key share: all but addresses and sizes. For each launch,
machine code fills a frame on its own stack with everything that cuLaunchKernelEx reads, so several threads may launch
at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_void_p

from tilewave.errors import CallError, TargetError, here
from tilewave.forks import cached_property
from tilewave.records import dataclass
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.cuda_driver import CudaDevice, CudaDriver, DeviceMemory
from tilewave.runtime.gpu_launch import (
    Attribute,
    GpuLaunch,
    SameGrid,
    ScratchMemory,
    Shape3,
    Slot,
    SymbolArgument,
    Table,
    TiledArray,
)
from tilewave.runtime.graph_memory import GraphMemory
from tilewave.runtime.launch_template import LaunchCode, LaunchTemplate, tensor_map
from tilewave.runtime.native.records import UNKNOWN, NativeRecord

LOG_BYTES = 1 << 16
# CUjit_option and CUfunction_attribute, as cuda.h numbers them.
_INFO_LOG, _INFO_BYTES, _ERROR_LOG, _ERROR_BYTES, _VERBOSE = 3, 4, 5, 6, 12
_SHARED, _CONST, _LOCAL, _REGISTERS, _MAX_DYNAMIC_SHARED = 1, 2, 3, 4, 8


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
        """The assembler's log; empty where the driver had the kernel in its cache."""

    def function(self, name: str) -> CudaFunction:
        handle = c_void_p()
        with self.driver.current(self.number):
            self.driver.call(self.kernel, "cuModuleGetFunction", byref(handle), self.handle, name.encode())
        return CudaFunction(self, name, handle.value or 0)

    def unload(self) -> None:
        """Unload the code; none of its kernels may be running."""
        handle, self.handle = self.handle, 0
        if handle:
            with self.driver.current(self.number):
                self.driver.call(self.kernel, "cuModuleUnload", handle)


class _Logs:
    """Two buffers for the assembler's log, and the options that name them."""

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
    """The resources of one lane or workgroup, as the driver reports them."""

    registers: int
    local_bytes: int
    """Per lane: spilled registers and stack."""
    shared_bytes: int
    """Static shared memory; a launch adds its dynamic shared memory."""
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
        """Return a function attribute by its number in cuda.h."""
        value = c_int()
        with self.driver.current(self.number):
            self.driver.call(self.name, "cuFuncGetAttribute", byref(value), attribute, self.handle)
        return value.value

    @property
    def resources(self) -> CudaResources:
        return CudaResources(*map(self.attribute, (_REGISTERS, _LOCAL, _SHARED, _CONST)))

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Allow launches with this much dynamic shared memory; an error where the device has less."""
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
    """Launch once with plain numbers and addresses; kernels that are called often use a `Launcher`."""
    slots = tuple(SymbolArgument(i) for i in range(len(arguments)))
    description = GpuLaunch(slots, grid, block, shared_bytes, tuple(attributes))
    Launcher(function, LaunchCode(description, (), len(arguments), SameGrid(grid)))((), arguments, stream)


class Launcher:
    """A kernel ready to be called with arrays, on one device."""

    def __init__(self, function: CudaFunction, code: LaunchCode, names: Sequence[str] = ()) -> None:
        """`names` are the arrays' names, for error messages."""
        self.function, self.code = function, code
        self._names, self._slots = names, code.description.slots
        self._driver, self._number = function.driver, function.number
        tables = code.description.tables
        self._tables = [DeviceMemory.holding(self._driver, self._number, table, function.name) for table in tables]
        slots = list(enumerate(self._slots))
        self._scratch: dict[tuple[int, int], DeviceMemory] = {}
        """Scratch memory by parameter and stream."""
        self._of_graphs = {at: self._recorded(slot.bytes) for at, slot in slots if isinstance(slot, ScratchMemory)}
        self._records: dict[tuple[int, ...], NativeRecord] = {}
        """Launch records by the addresses of tables and scratch memory. Kept as long as the launcher: one thread may
        launch a record while another evicts its call."""
        if code.description.shared_bytes:
            function.allow_shared(code.description.shared_bytes)

    def __call__(self, views: Sequence[ArrayView], numbers: Sequence[int], stream: int) -> None:
        """Launch checked arrays, without waiting."""
        launched = self.template(views, stream).launch([v.placed for v in views], numbers)
        assert launched, "this launch refuses nothing"

    def template(self, views: Sequence[ArrayView], stream: int) -> LaunchTemplate:
        """Return the launch record on a stream for arrays with the layout of these, which have been checked."""
        for slot in self._slots:
            if isinstance(slot, TiledArray):
                self._want_copied(slot, views[slot.array])
        others = [(at, slot) for at, slot in enumerate(self._slots) if isinstance(slot, Table | ScratchMemory)]
        fixed = tuple([self._word(at, slot, stream) for at, slot in others])
        record = self._records.get(fixed)
        if record is None:
            record = self._records.setdefault(fixed, self.code.record(self._driver_words, fixed))
        return LaunchTemplate(record.address, self, record, stream)

    @cached_property
    def _driver_words(self) -> dict[str, int]:
        """The driver's fields of a record of `LAUNCH`."""
        encodes = any(isinstance(slot, TiledArray) for slot in self._slots)
        return {
            "function": self.function.handle,
            "context": self._driver.context(self._number),
            "launch": self._address("cuLaunchKernelEx"),
            "get_current": self._address("cuCtxGetCurrent"),
            "push": self._address("cuCtxPushCurrent_v2"),
            "pop": self._address("cuCtxPopCurrent_v2"),
            # Older drivers do not have it, and kernels without tensor maps do not need it.
            "encode": self._address("cuTensorMapEncodeTiled") if encodes else 0,
        }

    def _address(self, name: str) -> int:
        return self._driver.address(name, self.function.name)

    def want_launched(self, said: int) -> None:
        """Raise where machine code says that the driver failed."""
        raise_failure(self._driver, self.function.name, said)

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
        if recording is not None:  # a graph may run on any stream, at the same time as this one
            return self._of_graphs[at].address(recording, stream)
        found = self._scratch.get((at, stream))
        if found is None:
            found = self._scratch.setdefault((at, stream), self._zeros(size))
        return found.address

    def _zeros(self, size: int) -> DeviceMemory:
        return DeviceMemory.zeroed(self._driver, self._number, size, self.function.name)

    def _recorded(self, size: int) -> GraphMemory:
        return GraphMemory(self._driver, self._number, size, self.function.name)

    def _want_copied(self, slot: TiledArray, view: ArrayView) -> None:
        """Refuse an array that TMA cannot load."""
        problem = tensor_map(slot, view).problem(view.pointer)
        if problem:
            name = self._names[slot.array] if self._names else f"array {slot.array}"
            raise CallError(
                f"{self.function.name}: {name} {problem}",
                loc=here(),
                remedy=f"pass a contiguous copy of {name} whose rows are multiples of 16 bytes long",
            )


def raise_failure(driver: CudaDriver, kernel: str, said: int) -> None:
    """Raise the error of the driver's function that machine code reports as failed."""
    if said > 0:
        raise driver.failure(kernel, "cuLaunchKernelEx", said)
    if said < UNKNOWN:
        raise driver.failure(kernel, "cuTensorMapEncodeTiled", UNKNOWN - said)
