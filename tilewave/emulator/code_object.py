"""Reads a code object (ELF, versions 4 to 6): its kernels, their descriptors, and its metadata."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewave.emulator.assembly import Module, known_chip
from tilewave.emulator.disassembly import disassemble, read_disassembly
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import CODE_BASE
from tilewave.emulator.kernel import (
    USER_SCALARS,
    Descriptor,
    Kernel,
    arguments_of,
    by_name,
    read_msgpack,
    resources_of,
)

MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"}
AMDGPU, METADATA_NOTE = 224, 32
LOADED, NOTES = 1, 4
SYMBOL_TABLES = (2, 11)
AFTER_PRELOAD = 256
"""Kernels with preloaded arguments begin with code for firmware that cannot preload; others jump over it."""


def read_code_object(data: bytes) -> Module:
    """The module in a code object, decoded by llvm-objdump."""
    if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != AMDGPU:
        raise UnsupportedCode("this is no AMD code object", remedy="pass a .hsaco file, or assembly text in a .s file")
    elf = _Elf.of(data)
    machine = struct.unpack_from("<I", data, 48)[0] & 0xFF
    chip = known_chip(MACHINES.get(machine, f"machine {machine:#x}"))
    instructions = read_disassembly(disassemble(data, chip), CODE_BASE)
    positions = {i.address: at for at, i in enumerate(instructions)}
    metadata = by_name(elf.metadata)
    kernels = {}
    for name in sorted(symbol[:-3] for symbol in elf.symbols if symbol.endswith(".kd")):
        kernels[name] = _kernel(name, elf, metadata.get(name, {}), positions)
    segments = tuple((CODE_BASE + address, content) for address, content in elf.segments)
    return Module(chip, instructions, kernels, segments)


def _kernel(name: str, elf: _Elf, metadata: Mapping[str, Any], positions: Mapping[int, int]) -> Kernel:
    at = elf.symbols[f"{name}.kd"]
    raw = elf.read(at, 64)
    shared, private, arguments, _, entry = struct.unpack_from("<IIIIq", raw, 0)
    _, first, second = struct.unpack_from("<III", raw, 44)
    properties, preload = struct.unpack_from("<HH", raw, 56)
    descriptor = Descriptor(
        shared,
        private + (16384 if metadata.get(".uses_dynamic_stack") else 0),
        arguments,
        tuple(scalar for bit, (scalar, _) in enumerate(USER_SCALARS) if properties >> bit & 1),
        (second >> 1) & 31,
        preload & 0x7F,
        preload >> 7,
        (bool(second >> 7 & 1), bool(second >> 8 & 1), bool(second >> 9 & 1)),
        (first >> 12) & 0x7FFF,
        8 * ((first & 63) + 1),
    )
    start = CODE_BASE + at + entry + (AFTER_PRELOAD if descriptor.preloaded else 0)
    if start not in positions:
        raise UnsupportedCode(f"the code of {name} is not where its descriptor says")
    return Kernel(name, positions[start], descriptor, arguments_of(metadata), resources_of(metadata))


@dataclass(frozen=True)
class _Elf:
    """The parts of an ELF file that a launch needs."""

    segments: tuple[tuple[int, bytes], ...]
    symbols: Mapping[str, int]
    metadata: Mapping[str, Any]

    @staticmethod
    def of(data: bytes) -> _Elf:
        segments: list[tuple[int, bytes]] = []
        metadata: dict[str, Any] = {}
        for kind, offset, address, file_size, memory_size in _program_headers(data):
            if kind == LOADED:
                segments.append((address, data[offset : offset + file_size] + bytes(memory_size - file_size)))
            if kind == NOTES:
                metadata.update(_metadata(data, offset, offset + file_size))
        return _Elf(tuple(segments), dict(_symbols(data)), metadata)

    def read(self, address: int, size: int) -> bytes:
        for start, content in self.segments:
            if start <= address and address + size <= start + len(content):
                return content[address - start : address - start + size]
        raise UnsupportedCode(f"the code object does not load address {address:#x}")


def _program_headers(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    for index in range(count):
        kind, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", data, start + 56 * index)
        yield kind, offset, address, in_file, in_memory


def _metadata(data: bytes, at: int, end: int) -> Mapping[str, Any]:
    while at < end:
        name_size, size, kind = struct.unpack_from("<III", data, at)
        body = at + 12 + -(-name_size // 4) * 4
        if kind == METADATA_NOTE and data[at + 12 : at + 12 + name_size].rstrip(b"\0") == b"AMDGPU":
            found = read_msgpack(data[body : body + size])
            return found if isinstance(found, dict) else {}
        at = body + -(-size // 4) * 4
    return {}


def _symbols(data: bytes) -> Iterator[tuple[str, int]]:
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * index) for index in range(count)]
    for section in sections:
        if section[1] not in SYMBOL_TABLES:
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, defined, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if name and defined:
                yield data[names + name : data.index(b"\0", names + name)].decode(), value
