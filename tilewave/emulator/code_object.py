"""Reads a code object (ELF, versions 4 to 6): its kernels, their descriptors, and its metadata."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tilewave.emulator.assembly import MachineCode, known_chip
from tilewave.emulator.chips import OPINIONS
from tilewave.emulator.disassembly import disassemble, read_disassembly
from tilewave.emulator.elf import Elf
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import CODE_BASE
from tilewave.emulator.kernel import USER_SCALARS, KernelDescriptor, LoadedKernel, mode_register
from tilewave.emulator.metadata import arguments_of, by_name, resources_of

MACHINES = {0x3F: "gfx90a", **{has.elf_machine: chip for chip, has in OPINIONS.items()}}
AFTER_PRELOAD = 256
"""Kernels with preloaded arguments begin with code for firmware that cannot preload; others jump over it."""


def read_code_object(data: bytes) -> MachineCode:
    """The module in a code object, decoded by llvm-objdump."""
    elf = Elf.of(data)
    chip = known_chip(MACHINES.get(elf.machine, f"machine {elf.machine:#x}"))
    instructions = read_disassembly(disassemble(data, chip), CODE_BASE)
    positions = {i.address: at for at, i in enumerate(instructions)}
    metadata = by_name(elf.metadata)
    kernels = {}
    for name in sorted(symbol[:-3] for symbol in elf.symbols if symbol.endswith(".kd")):
        kernels[name] = _kernel(name, elf, metadata.get(name, {}), positions)
    segments = tuple((CODE_BASE + address, content) for address, content in elf.segments)
    return MachineCode(chip, instructions, kernels, segments)


def _kernel(name: str, elf: Elf, metadata: Mapping[str, Any], positions: Mapping[int, int]) -> LoadedKernel:
    at = elf.symbols[f"{name}.kd"]
    raw = elf.read(at, 64)
    shared, private, arguments, _, entry = struct.unpack_from("<IIIIq", raw, 0)
    _, first, second = struct.unpack_from("<III", raw, 44)
    properties, preload = struct.unpack_from("<HH", raw, 56)
    descriptor = KernelDescriptor(
        shared,
        private + (16384 if metadata.get(".uses_dynamic_stack") else 0),
        arguments,
        tuple(scalar for bit, (scalar, _) in enumerate(USER_SCALARS) if properties >> bit & 1),
        (second >> 1) & 31,
        preload & 0x7F,
        preload >> 7,
        (bool(second >> 7 & 1), bool(second >> 8 & 1), bool(second >> 9 & 1)),
        mode_at_start(first),
        8 * ((first & 63) + 1),
    )
    start = CODE_BASE + at + entry + (AFTER_PRELOAD if descriptor.preloaded else 0)
    if start not in positions:
        raise UnsupportedCode(f"the code of {name} is not where its descriptor says", remedy="build it again")
    return LoadedKernel(name, positions[start], descriptor, arguments_of(metadata), resources_of(metadata))


def mode_at_start(resources: int) -> int:
    """The mode that the first word of resources in a kernel's descriptor asks for."""
    return mode_register(resources >> 12 & 0xFF, resources >> 21 & 1, resources >> 23 & 1, resources >> 26 & 1)
