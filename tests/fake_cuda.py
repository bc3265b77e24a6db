"""libcuda.so.1 with GPUs that are not here."""

from __future__ import annotations

import ctypes
import re
import threading
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fake_drivers import OUT_INT, OUT_POINTER, FakeLibrary, Wrong, must


class CUlaunchAttribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_char * 64))


class CUlaunchConfig(ctypes.Structure):
    _fields_ = (
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("attrs", POINTER(CUlaunchAttribute)),
        ("numAttrs", c_uint),
    )


assert ctypes.sizeof(CUlaunchAttribute) == 72
assert ctypes.sizeof(CUlaunchConfig) == 56

CUDA_ERRORS = {
    1: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    2: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    100: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    101: (b"CUDA_ERROR_INVALID_DEVICE", b"invalid device ordinal"),
    201: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    218: (b"CUDA_ERROR_INVALID_PTX", b"a PTX JIT compilation failed"),
    500: (b"CUDA_ERROR_NOT_FOUND", b"named symbol not found"),
    700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"),
    701: (b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", b"too many resources requested for launch"),
}
ELEMENT_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}
SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128}


@dataclass(frozen=True)
class Gpu:
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    shared_bytes: int = 232448
    l2_bytes: int = 62914560


@dataclass
class LoadedFunction:
    context: int
    name: str
    parameter_bytes: list[int]
    dynamic_shared_bytes: int = 49152


@dataclass(frozen=True)
class Launched:
    """A launch as the GPU would see it."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    arguments: tuple[bytes, ...]
    attributes: tuple[tuple[int, bytes], ...]
    context: int

    @property
    def words(self) -> tuple[int, ...]:
        return tuple(int.from_bytes(a, "little", signed=True) for a in self.arguments)


@dataclass(frozen=True)
class EncodedMap:
    dtype: int
    pointer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int


@dataclass
class Memory:
    device: int
    content: bytearray = field(default_factory=bytearray)


class FakeCuda(FakeLibrary):
    """libcuda.so.1 with some GPUs."""

    PROTOTYPES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "cuInit": (c_int, c_uint),
        "cuDriverGetVersion": (c_int, OUT_INT),
        "cuGetErrorName": (c_int, c_int, POINTER(c_char_p)),
        "cuGetErrorString": (c_int, c_int, POINTER(c_char_p)),
        "cuDeviceGetCount": (c_int, OUT_INT),
        "cuDeviceGet": (c_int, OUT_INT, c_int),
        "cuDeviceGetName": (c_int, c_void_p, c_int, c_int),
        "cuDeviceGetAttribute": (c_int, OUT_INT, c_int, c_int),
        "cuDevicePrimaryCtxRetain": (c_int, OUT_POINTER, c_int),
        "cuCtxGetCurrent": (c_int, OUT_POINTER),
        "cuCtxPushCurrent_v2": (c_int, c_void_p),
        "cuCtxPopCurrent_v2": (c_int, OUT_POINTER),
        "cuPointerGetAttribute": (c_int, c_void_p, c_int, c_ulonglong),
        "cuModuleLoadDataEx": (c_int, OUT_POINTER, c_void_p, c_uint, OUT_INT, OUT_POINTER),
        "cuModuleUnload": (c_int, c_void_p),
        "cuModuleGetFunction": (c_int, OUT_POINTER, c_void_p, c_char_p),
        "cuFuncGetAttribute": (c_int, OUT_INT, c_int, c_void_p),
        "cuFuncSetAttribute": (c_int, c_void_p, c_int, c_int),
        "cuLaunchKernelEx": (c_int, POINTER(CUlaunchConfig), c_void_p, OUT_POINTER, OUT_POINTER),
        "cuTensorMapEncodeTiled": (
            *(c_int, c_void_p, c_int, c_uint32, c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
            *(POINTER(c_uint32), POINTER(c_uint32), c_int, c_int, c_int, c_int),
        ),
        "cuMemAlloc_v2": (c_int, POINTER(c_ulonglong), c_size_t),
        "cuMemFree_v2": (c_int, c_ulonglong),
        "cuMemcpyHtoD_v2": (c_int, c_ulonglong, c_void_p, c_size_t),
        "cuMemsetD8Async": (c_int, c_ulonglong, c_ubyte, c_size_t, c_void_p),
        "cuStreamCreate": (c_int, OUT_POINTER, c_uint),
        "cuStreamDestroy_v2": (c_int, c_void_p),
        "cuStreamSynchronize": (c_int, c_void_p),
        "cuStreamIsCapturing": (c_int, c_void_p, OUT_INT),
        "cuStreamGetCaptureInfo_v2": (c_int, c_void_p, OUT_INT, c_void_p, OUT_POINTER, c_void_p, c_void_p),
        "cuThreadExchangeStreamCaptureMode": (c_int, OUT_INT),
        "cuUserObjectCreate": (c_int, OUT_POINTER, c_void_p, c_void_p, c_uint, c_uint),
        "cuGraphRetainUserObject": (c_int, c_void_p, c_void_p, c_uint, c_uint),
    }

    def __init__(self, *gpus: Gpu) -> None:
        super().__init__()
        self.gpus = gpus
        self.contexts: set[int] = set()
        self.modules: dict[int, tuple[int, str]] = {}
        self.functions: dict[int, LoadedFunction] = {}
        self.launches: list[Launched] = []
        self.maps: list[EncodedMap] = []
        self.memory: dict[int, Memory] = {}
        self.places: dict[range, int] = {}
        """Addresses of arrays that somebody else allocated, and their devices."""
        self.capturing: dict[int, int] = {}
        """Streams whose launches are recorded into a graph, and the number of the recording."""
        self.capture_mode = 0
        self.own_streams: set[int] = set()
        self.user_objects: dict[int, Any] = {}
        """For each user object, the function and argument to call when its last reference is gone."""
        self.graphs: dict[int, list[int]] = {}
        """By the number of their recording, the objects that they hold."""
        self.registers, self.local_bytes, self.static_shared_bytes = 40, 0, 0
        self.info_log = "ptxas info    : Used 40 registers"
        self._stacks = threading.local()
        self._initialised = False
        self._handles = iter(range(0x1000, 1 << 40, 0x10))

    @property
    def stack(self) -> list[int]:
        if not hasattr(self._stacks, "contexts"):
            self._stacks.contexts = []
        return self._stacks.contexts

    def current(self) -> int:
        must(self.stack, "a context must be current")
        return self.stack[-1]

    def do_cuInit(self, flags: int) -> int:
        must(flags == 0, "flags are 0")
        self._initialised = True
        return 0 if self.gpus else 100

    def do_cuDriverGetVersion(self, out: Any) -> None:
        out[0] = 13000

    def do_cuGetErrorName(self, code: int, out: Any) -> int:
        return self._error(code, out, 0)

    def do_cuGetErrorString(self, code: int, out: Any) -> int:
        return self._error(code, out, 1)

    def _error(self, code: int, out: Any, which: int) -> int:
        if code not in CUDA_ERRORS:
            out[0] = None
            return 1
        out[0] = CUDA_ERRORS[code][which]
        return 0

    def do_cuDeviceGetCount(self, out: Any) -> None:
        must(self._initialised, "cuInit comes first")
        out[0] = len(self.gpus)

    def do_cuDeviceGet(self, out: Any, number: int) -> int:
        if not 0 <= number < len(self.gpus):
            return 101
        out[0] = number
        return 0

    def gpu(self, handle: int) -> Gpu:
        must(0 <= handle < len(self.gpus), f"no device {handle}")
        return self.gpus[handle]

    def do_cuDeviceGetName(self, out: int, size: int, handle: int) -> None:
        name = self.gpu(handle).name.encode() + b"\0"
        must(out and size >= len(name), "the name needs room")
        ctypes.memmove(out, name, len(name))

    def do_cuDeviceGetAttribute(self, out: Any, attribute: int, handle: int) -> None:
        gpu = self.gpu(handle)
        known = {16: gpu.multiprocessors, 38: gpu.l2_bytes, 75: gpu.capability[0], 76: gpu.capability[1]}
        out[0] = (known | {97: gpu.shared_bytes})[attribute]

    # -- contexts

    def do_cuDevicePrimaryCtxRetain(self, out: Any, handle: int) -> None:
        self.gpu(handle)
        self.contexts.add(self.context_of(handle))
        out[0] = self.context_of(handle)

    @staticmethod
    def context_of(number: int) -> int:
        return 0xC0000 + number

    def do_cuCtxGetCurrent(self, out: Any) -> None:
        out[0] = self.stack[-1] if self.stack else None

    def do_cuCtxPushCurrent_v2(self, context: int) -> None:
        must(context in self.contexts, f"no context {context}")
        self.stack.append(context)

    def do_cuCtxPopCurrent_v2(self, out: Any) -> None:
        out[0] = self.stack.pop()

    def do_cuPointerGetAttribute(self, out: int, attribute: int, pointer: int) -> int:
        must(out and attribute == 9, "only the device number is asked for")
        for addresses, device in self.places.items():
            if pointer in addresses:
                c_int.from_address(out).value = device
                return 0
        return 1

    # -- modules

    def do_cuModuleLoadDataEx(self, out: Any, image: int, count: int, options: Any, values: Any) -> int:
        context = self.current()
        given = {options[i]: values[i] for i in range(count)}
        for buffer, size in ((3, 4), (5, 6)):
            must(given[buffer] and given[size] >= 1024, "a log needs a buffer and its size")
        must(given[12] == 1, "the log is verbose")
        text = ctypes.string_at(image).decode(errors="replace")
        if "garbage" in text:
            said = b"ptxas application ptx input, line 3; fatal : Parsing error near 'garbage'\n"
            ctypes.memmove(given[5], said, len(said) + 1)
            return 218
        said = self.info_log.encode() + b"\n\0"
        ctypes.memmove(given[3], said, len(said))
        out[0] = handle = next(self._handles)
        self.modules[handle] = (context, text)
        return 0

    def do_cuModuleUnload(self, module: int) -> None:
        must(module in self.modules, f"no module {module}")
        del self.modules[module]

    def do_cuModuleGetFunction(self, out: Any, module: int, name: bytes) -> int:
        must(module in self.modules, f"no module {module}")
        context, text = self.modules[module]
        entry = re.search(rf"\.entry\s+{re.escape(name.decode())}\s*\((.*?)\)", text, re.DOTALL)
        if entry is None:
            return 500
        sizes = [_parameter_bytes(p) for p in entry.group(1).split(",") if p.strip()]
        out[0] = handle = next(self._handles)
        self.functions[handle] = LoadedFunction(context, name.decode(), sizes)
        return 0

    def do_cuFuncGetAttribute(self, out: Any, attribute: int, function: int) -> None:
        must(function in self.functions, f"no function {function}")
        out[0] = {1: self.static_shared_bytes, 2: 0, 3: self.local_bytes, 4: self.registers}[attribute]

    def do_cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        must(function in self.functions and attribute == 8, "only the dynamic shared bytes are set")
        device = self.functions[function].context - self.context_of(0)
        must(0 <= value <= self.gpu(device).shared_bytes - self.static_shared_bytes, "so much shared memory")
        self.functions[function].dynamic_shared_bytes = value

    # -- launches

    def do_cuLaunchKernelEx(self, config: Any, function: int, parameters: Any, extra: Any) -> None:
        c = config.contents
        must(function in self.functions, f"no function {function}")
        f = self.functions[function]
        must(self.current() == f.context, "the function's context is current")
        grid, block = (c.gridDimX, c.gridDimY, c.gridDimZ), (c.blockDimX, c.blockDimY, c.blockDimZ)
        must(min(grid + block) >= 1 and block[0] * block[1] * block[2] <= 1024, "a launch has workgroups and lanes")
        must(c.sharedMemBytes <= f.dynamic_shared_bytes, "shared memory beyond 48 KiB is asked for first")
        must(not extra, "parameters are passed one way")
        attributes = tuple(self._attribute(c.attrs[i], grid) for i in range(c.numAttrs))
        arguments = tuple(ctypes.string_at(parameters[i], size) for i, size in enumerate(f.parameter_bytes))
        stream = c.hStream or 0
        self.launches.append(Launched(f.name, grid, block, c.sharedMemBytes, stream, arguments, attributes, f.context))

    def _attribute(self, a: CUlaunchAttribute, grid: tuple[int, int, int]) -> tuple[int, bytes]:
        value = ctypes.string_at(ctypes.addressof(a) + 8, 64)
        words = tuple(int.from_bytes(value[i : i + 4], "little") for i in range(0, 64, 4))
        if a.id == 4:
            must(min(words[:3]) >= 1 and not any(words[3:]), "a cluster has three sizes")
            must(all(g % w == 0 for g, w in zip(grid, words, strict=False)), "clusters divide the grid")
        elif a.id == 6:
            must(words[0] in (0, 1) and not any(words[1:]), "early start is 0 or 1")
        else:
            raise Wrong(f"attribute {a.id}")
        return a.id, value

    # -- tensor maps

    def do_cuTensorMapEncodeTiled(
        self,
        out: int,
        dtype: int,
        rank: int,
        pointer: int,
        sizes: Any,
        strides: Any,
        box: Any,
        steps: Any,
        interleave: int,
        swizzle: int,
        promotion: int,
        fill: int,
    ) -> None:
        self.current()
        item = ELEMENT_BYTES[dtype]
        must(out and out % 64 == 0, "the descriptor is 64-byte aligned")
        must(1 <= rank <= 5, "1 to 5 axes")
        must(pointer and pointer % 16 == 0, "the address is 16-byte aligned")
        must(all(1 <= sizes[i] <= 1 << 32 for i in range(rank)), "sizes are 1 to 2^32")
        must(all(strides[i] % 16 == 0 and strides[i] < 1 << 40 for i in range(rank - 1)), "strides are 16-byte steps")
        must(all(1 <= box[i] <= 256 for i in range(rank)), "a box is 1 to 256 along each axis")
        must(all(steps[i] == 1 for i in range(rank)), "every element is taken")
        must(box[0] * item % 16 == 0, "a box's rows are 16-byte multiples")
        must(interleave == 0 and fill == 0 and promotion in (0, 1, 2, 3), "plain maps")
        must(swizzle == 0 or box[0] * item <= SWIZZLE_BYTES[swizzle], "a box's rows fit into the swizzle")
        made = EncodedMap(
            *(dtype, pointer, tuple(sizes[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), swizzle, promotion)
        )
        self.maps.append(made)
        ctypes.memmove(out, len(self.maps).to_bytes(8, "little") + b"\xee" * 120, 128)

    def map_of(self, argument: bytes) -> EncodedMap:
        """The map that a launch was given."""
        must(len(argument) == 128 and argument[8:] == b"\xee" * 120, "a whole descriptor")
        return self.maps[int.from_bytes(argument[:8], "little") - 1]

    # -- memory

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> int:
        must(size > 0, "memory has a size")
        must(not self.capturing or self.capture_mode == 2, "no memory while a graph is recorded")
        out[0] = address = 0x7F00_0000_0000 + (len(self.memory) << 32)
        self.memory[address] = Memory(self.current() - self.context_of(0), bytearray(b"\xaa" * size))
        return 0

    def do_cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def do_cuMemcpyHtoD_v2(self, address: int, source: int, size: int) -> None:
        must(size <= len(self.memory[address].content), "the copy fits")
        self.memory[address].content[:size] = ctypes.string_at(source, size)

    def do_cuStreamCreate(self, out: Any, flags: int) -> None:
        must(flags == 1, "a stream that waits for the default one would have a part in recordings")
        out[0] = stream = next(self._handles)
        self.own_streams.add(stream)

    def do_cuStreamDestroy_v2(self, stream: int) -> None:
        self.own_streams.remove(stream)

    def do_cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> None:
        must(stream in self.own_streams, "memory is cleared beside all other work")
        must(size <= len(self.memory[address].content), "the fill fits")
        self.memory[address].content[:size] = bytes([value]) * size

    def do_cuStreamSynchronize(self, stream: int | None) -> None:
        self.current()
        must(stream in self.own_streams or not self.capturing, "no waiting while a graph is recorded")

    # -- graphs

    def do_cuStreamIsCapturing(self, stream: int | None, status: Any) -> None:
        must(stream, "nobody captures the stream that is taken where none is named")
        status[0] = int(stream in self.capturing)

    def do_cuStreamGetCaptureInfo_v2(
        self, stream: int | None, status: Any, number: int, graph: Any, edges: int | None, count: int | None
    ) -> None:
        self.current()
        recording = self.capturing.get(stream or 0)
        status[0] = int(recording is not None)
        if recording is not None:
            c_uint64.from_address(number).value = recording
            graph[0] = self.GRAPHS + recording

    GRAPHS: ClassVar[int] = 0x6000_0000

    def do_cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        mode[0], self.capture_mode = self.capture_mode, mode[0]

    def do_cuUserObjectCreate(self, out: Any, told: int, function: int, references: int, flags: int) -> None:
        must(function and references == 1 and flags == 1, "one reference, and nobody waits for its end")
        out[0] = handle = next(self._handles)
        self.user_objects[handle] = (function, told)

    def do_cuGraphRetainUserObject(self, graph: int, handle: int, count: int, flags: int) -> None:
        must(graph - self.GRAPHS in self.capturing.values(), "a graph that is recorded")
        must(handle in self.user_objects and count == 1 and flags == 1, "the graph takes the reference over")
        self.graphs.setdefault(graph - self.GRAPHS, []).append(handle)

    def destroy_graph(self, recording: int) -> None:
        """What the driver does when a graph and all that was made of it are gone."""
        for handle in self.graphs.pop(recording):
            function, told = self.user_objects.pop(handle)
            ctypes.CFUNCTYPE(None, c_void_p)(function)(told)


def _parameter_bytes(declared: str) -> int:
    """`.param .u64 x` and `.param .align 64 .b8 map[128]`."""
    array = re.search(r"\.b8\s+\w+\[(\d+)\]", declared)
    if array:
        return int(array.group(1))
    scalar = re.search(r"\.param\s+\.[a-z](\d+)", declared)
    must(scalar, f"a parameter is declared: {declared}")
    assert scalar is not None
    return int(scalar.group(1)) // 8
