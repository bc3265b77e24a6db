"""From a caller's arguments to memory and registers as a kernel finds them when it starts."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from tilewave.emulator.assembly import MachineCode
from tilewave.emulator.findings import Findings, UnsupportedCode
from tilewave.emulator.instruction import EXEC, FLAT_SCRATCH, TRAP, XNACK_MASK
from tilewave.emulator.kernel import USER_SCALARS, Argument, LoadedKernel
from tilewave.emulator.machine import LANES, MachineState, Workgroup, lanes_of
from tilewave.emulator.memory import Buffer, GlobalMemory, spans
from tilewave.emulator.metadata import MOST_ARGUMENT_BYTES
from tilewave.emulator.numbers import MASK32, MASK64, U32, U64, Array
from tilewave.emulator.program import DecodedProgram
from tilewave.emulator.races import Races
from tilewave.emulator.shared_state import SharedState
from tilewave.emulator.step import SCALAR_ROWS
from tilewave.emulator.wait_counters import WaitCounters
from tilewave.errors import CallError
from tilewave.records import dataclass

Extent = tuple[int, int, int]
Given = Union[Array, np.generic, int, float, bytes]  # noqa: UP007  a name that mypy and Python 3.10 both take
FLOATS = {2: "<e", 4: "<f", 8: "<d"}
MOST_USER_SCALARS = 16
ARGUMENT_PADDING = 64
"""Argument buffers are allocated in pieces of this size, and compilers load whole pieces."""


@dataclass(frozen=True)
class EmulatedLaunch:
    """A kernel, its grid of workgroups, its arguments in memory."""

    module: MachineCode
    kernel: LoadedKernel
    grid: Extent
    block: Extent
    shared_bytes: int
    memory: GlobalMemory
    arguments: Buffer
    packet: Buffer

    @property
    def lanes_each(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def waves_each(self) -> int:
        return -(-self.lanes_each // LANES)

    def workgroups(self) -> list[Workgroup]:
        x, y, z = self.grid
        return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def prepare(
    module: MachineCode, kernel: LoadedKernel, grid: Extent, block: Extent, given: Sequence[Given], dynamic_shared: int,
    memory: GlobalMemory,
) -> EmulatedLaunch:  # fmt: skip
    """Lay out the arguments' arrays, the argument buffer and the dispatch packet."""
    arrays = [a for a in given if isinstance(a, np.ndarray)]
    buffers = []
    for start, end, writable in spans(arrays):
        buffers.append(memory.add(_name(kernel, given, start), end - start, writable=writable, host=start))
    shared = kernel.descriptor.shared_bytes + dynamic_shared
    raw = _argument_buffer(kernel, given, buffers, grid, block, shared)
    arguments = memory.add("the kernel's arguments", len(raw), writable=False)
    packet = memory.add("the dispatch packet", 64, writable=False)
    contents = {arguments.name: raw, packet.name: _packet(kernel, grid, block, shared, arguments)}
    for at, (address, content) in enumerate(module.segments):
        name = f"segment {at} of the code object"
        memory.add(name, len(content), writable=False, address=address)
        contents[name] = content
    memory.fill(contents)
    return EmulatedLaunch(module, kernel, grid, block, shared, memory, arguments, packet)


def _name(kernel: LoadedKernel, given: Sequence[Given], start: int) -> str:
    """Return the name of a buffer in findings: the arguments that are stored in it."""
    visible = [a for a in kernel.arguments if not a.is_hidden]
    for argument, value in zip(visible, given, strict=False):
        if isinstance(value, np.ndarray) and value.ctypes.data == start and argument.name:
            return f"argument {argument.name}"
    for at, value in enumerate(given):
        if isinstance(value, np.ndarray) and value.ctypes.data == start:
            return f"argument {at}"
    return f"the arguments at {start:#x}"


def _argument_buffer(
    kernel: LoadedKernel, given: Sequence[Given], buffers: Sequence[Buffer], grid: Extent, block: Extent, shared: int
) -> bytes:
    visible = [a for a in kernel.arguments if not a.is_hidden]
    if len(visible) != len(given):
        names = ", ".join(f"{a.name or '?'} ({a.kind}, {a.size} bytes)" for a in visible) or "none"
        what = f"{kernel.name} takes {len(visible)} arguments, and {len(given)} were given"
        raise CallError(what, remedy=f"its metadata names: {names}")
    needed = max([kernel.descriptor.argument_bytes, *(a.offset + a.size for a in kernel.arguments)])
    if needed > MOST_ARGUMENT_BYTES:
        what = f"{kernel.name} asks for {needed} bytes of arguments"
        raise UnsupportedCode(what, remedy=f"the emulator passes up to {MOST_ARGUMENT_BYTES}")
    raw = bytearray(-(-max(needed, 1) // ARGUMENT_PADDING) * ARGUMENT_PADDING)
    for argument, value in zip(visible, given, strict=True):
        raw[argument.offset : argument.offset + argument.size] = _packed(kernel, argument, value, buffers)
    for argument in kernel.arguments:
        if argument.is_hidden:
            value = _hidden(argument.kind, grid, block, shared - kernel.descriptor.shared_bytes)
            raw[argument.offset : argument.offset + argument.size] = value.to_bytes(argument.size, "little")
    return bytes(raw)


def _packed(kernel: LoadedKernel, argument: Argument, value: Given, buffers: Sequence[Buffer]) -> bytes:
    """The bytes of an argument; the metadata gives its size, and Python's type what it means."""
    if isinstance(value, np.ndarray):
        raw = _address(value, buffers).to_bytes(8, "little")
    elif argument.is_pointer and not (isinstance(value, int) and value == 0):
        raise CallError(f"argument {argument.name} of {kernel.name} is a pointer", remedy="pass a numpy array")
    elif isinstance(value, np.generic):
        raw = value.tobytes()
    elif isinstance(value, float):
        raw = struct.pack(FLOATS.get(argument.size, "<d"), value)
    elif isinstance(value, bytes):
        raw = value
    else:
        raw = (int(value) & ((1 << 8 * argument.size) - 1)).to_bytes(argument.size, "little")
    if len(raw) != argument.size:
        what = f"argument {argument.name} of {kernel.name} has {argument.size} bytes, and {len(raw)} were given"
        raise CallError(what, remedy="pass a Python number, a numpy number of that size, or an array for a pointer")
    return raw


def _address(array: Array, buffers: Sequence[Buffer]) -> int:
    host = int(array.ctypes.data)
    for buffer in buffers:
        if buffer.host <= host < buffer.host + buffer.size:
            return buffer.address + host - buffer.host
    return 0  # an array without elements


def _hidden(kind: str, grid: Extent, block: Extent, dynamic: int) -> int:
    """What compilers add to the arguments for themselves."""
    for axis, letter in enumerate("xyz"):
        if kind == f"hidden_block_count_{letter}":
            return grid[axis]
        if kind == f"hidden_group_size_{letter}":
            return block[axis]
    match kind:
        case "hidden_grid_dims":
            return max(1, *(axis + 1 for axis in range(3) if grid[axis] * block[axis] > 1), 1)
        case "hidden_dynamic_lds_size":
            return dynamic
        case _:
            return 0


def _packet(kernel: LoadedKernel, grid: Extent, block: Extent, shared: int, arguments: Buffer) -> bytes:
    """A dispatch packet as the runtime would write it."""
    lanes = [g * b for g, b in zip(grid, block, strict=True)]
    private = kernel.descriptor.private_bytes
    return struct.pack("<HHHHHHIIIIIQQQQ", 0, 3, *block, 0, *lanes, private, shared, 0, arguments.address, 0, 0)


# -- registers ---------------------------------------------------------------------------------------------------------


def make_machine(
    launch: EmulatedLaunch,
    program: DecodedProgram,
    launched: Sequence[Workgroup],
    running: range,
    races: Races,
    findings: Findings,
) -> MachineState:
    """Return the initial state of the waves of the workgroups in `running`."""
    count = launch.waves_each * len(running)
    shared = SharedState(
        launch.shared_bytes,
        len(running),
        count,
        program.shared_granule(),
        WaitCounters(count),
        loads_directly=program.loads_directly(),
    )
    machine = MachineState(
        launched, running, launch.waves_each, program.vector_rows(), launch.memory, races, shared, findings,
        -(-launch.kernel.descriptor.private_bytes // 4) * 4,
    )  # fmt: skip
    machine.mode = launch.kernel.descriptor.mode
    _fill_lanes(launch, machine)
    for row, value in _scalars(launch, machine):
        machine.scalar[row] = value
    return machine


def _fill_lanes(launch: EmulatedLaunch, machine: MachineState) -> None:
    """Set v0 to the lane's coordinates in its workgroup, ten bits each; lanes after the last are off."""
    lane = machine.wave_of[:, None] * LANES + np.arange(LANES)
    x, y, _ = launch.block
    machine.vector[0] = (lane % x) | (lane // x % y) << 10 | (lane // (x * y)) << 20
    left = [min(LANES, launch.lanes_each - int(wave) * LANES) for wave in machine.wave_of]
    masks = np.array([MASK64 if n == LANES else (1 << n) - 1 for n in left], U64)
    machine.scalar[EXEC], machine.scalar[EXEC + 1] = masks.astype(U32), (masks >> U64(32)).astype(U32)
    machine.lanes[:] = lanes_of(masks)


def _scalars(launch: EmulatedLaunch, machine: MachineState) -> list[tuple[int, Any]]:
    """What the hardware writes into scalar registers, in its order."""
    descriptor = launch.kernel.descriptor
    rows: list[tuple[int, Any]] = []
    at = 0
    for name, words in USER_SCALARS:
        if name not in descriptor.user_scalars:
            continue
        value = {
            "dispatch_ptr": launch.packet.address,
            "kernarg_segment_ptr": launch.arguments.address,
            "private_segment_size": descriptor.private_bytes,
        }.get(name, 0)
        rows += [(at + word, (value >> 32 * word) & MASK32) for word in range(words)]
        at += words
    memory = launch.memory
    filled = max(at + descriptor.preloaded, descriptor.user_scalar_count)
    if filled > MOST_USER_SCALARS:
        what = f"{launch.kernel.name} asks for {filled} scalar registers to be filled before it starts"
        raise UnsupportedCode(what, remedy=f"the hardware fills {MOST_USER_SCALARS}")
    for word in range(descriptor.preloaded):
        offset, _, _ = memory.locate(
            np.array([launch.arguments.address + 4 * (descriptor.preload_offset + word)]), 4, stores=False
        )
        rows.append((at + word, int(memory.load_words(offset, 1)[0, 0])))
    asked = [axis for axis in range(3) if descriptor.workgroup_ids[axis]]
    for at, axis in enumerate(asked, filled):
        rows.append((at, np.array([machine.workgroups[w][axis] for w in machine.workgroup_of.tolist()], U32)))
    return rows


def known_at_start(launch: EmulatedLaunch, machine: MachineState) -> int:
    """One bit per register that holds something before the first instruction."""
    scalars = {row for row, _ in _scalars(launch, machine)}
    scalars |= {EXEC, EXEC + 1, FLAT_SCRATCH, FLAT_SCRATCH + 1, XNACK_MASK, XNACK_MASK + 1, *range(TRAP, TRAP + 16)}
    return 1 | sum(1 << (SCALAR_ROWS + row) for row in scalars)
