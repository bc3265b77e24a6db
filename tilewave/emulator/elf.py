"""Read ELF files as AMD's compilers write them; no number in a file is trusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.metadata import read_msgpack
from tilewave.records import dataclass

AMDGPU, METADATA_NOTE = 224, 32
LOADED, NOTES = 1, 4
SYMBOL_TABLES = (2, 11)
SYMBOL_BYTES = 24
MOST_LOADED = 1 << 28
"""The most bytes that a code object may load: it includes its own variables, not the caller's arrays."""


HIGHEST = 1 << 40
"""Far below the arguments' addresses when it is added to the code's."""


class Content:
    """The bytes of a file, with an error for accesses outside them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def fields(self, layout: str, at: int) -> tuple[Any, ...]:
        return struct.unpack(layout, self.piece(at, struct.calcsize(layout)))

    def piece(self, at: int, size: int) -> bytes:
        if at + size > len(self.data):
            what = f"the code object is damaged: it refers to bytes {at} to {at + size}"
            raise UnsupportedCode(what, remedy=f"it has {len(self.data)}; build it again")
        return self.data[at : at + size]

    def text(self, at: int) -> str:
        """Up to the next zero."""
        end = self.data.find(b"\0", at)
        if at >= len(self.data) or end < 0:
            raise UnsupportedCode(f"the code object is damaged: no text ends after byte {at}", remedy="build it again")
        return self.data[at:end].decode(errors="replace")


@dataclass(frozen=True)
class Elf:
    """The parts of an ELF file that a launch needs."""

    segments: tuple[tuple[int, bytes], ...]
    symbols: Mapping[str, int]
    metadata: Mapping[str, Any]
    machine: int

    @staticmethod
    def of(data: bytes) -> Elf:
        content = Content(data)
        if data[:4] != b"\x7fELF" or content.fields("<H", 18)[0] != AMDGPU:
            remedy = "pass a .hsaco file, or assembly text in a .s file"
            raise UnsupportedCode("this is no AMD code object", remedy=remedy)
        segments: list[tuple[int, bytes]] = []
        metadata: dict[str, Any] = {}
        left = MOST_LOADED
        for kind, offset, address, file_size, memory_size in _program_headers(content):
            if kind == LOADED:
                segments.append((address, _loaded(content, offset, address, file_size, memory_size, left)))
                left -= memory_size
            if kind == NOTES:
                metadata.update(_metadata(content, offset, offset + file_size))
        machine = content.fields("<I", 48)[0] & 0xFF
        return Elf(tuple(segments), dict(_symbols(content)), metadata, machine)

    def read(self, address: int, size: int) -> bytes:
        for start, content in self.segments:
            if start <= address and address + size <= start + len(content):
                return content[address - start : address - start + size]
        raise UnsupportedCode(f"the code object does not load address {address:#x}", remedy="build it again")


def _loaded(content: Content, offset: int, address: int, file_size: int, memory_size: int, left: int) -> bytes:
    if not file_size <= memory_size <= left or address + memory_size > HIGHEST:
        what = f"the code object asks for {memory_size} bytes at {address:#x} and holds {file_size}"
        raise UnsupportedCode(what, remedy=f"the emulator loads {MOST_LOADED} bytes in all, below {HIGHEST:#x}")
    return content.piece(offset, file_size) + bytes(memory_size - file_size)


def _program_headers(content: Content) -> Iterator[tuple[int, int, int, int, int]]:
    start, count = content.fields("<Q", 32)[0], content.fields("<H", 56)[0]
    for index in range(count):
        kind, _, offset, address, _, in_file, in_memory, _ = content.fields("<IIQQQQQQ", start + 56 * index)
        yield kind, offset, address, in_file, in_memory


def _metadata(content: Content, at: int, end: int) -> Mapping[str, Any]:
    while at < end:
        name_size, size, kind = content.fields("<III", at)
        body = at + 12 + -(-name_size // 4) * 4
        if kind == METADATA_NOTE and content.piece(at + 12, name_size).rstrip(b"\0") == b"AMDGPU":
            found = read_msgpack(content.piece(body, size))
            return found if isinstance(found, dict) else {}
        at = body + -(-size // 4) * 4
    return {}


def _symbols(content: Content) -> Iterator[tuple[str, int]]:
    start, count = content.fields("<Q", 40)[0], content.fields("<H", 60)[0]
    sections = [content.fields("<IIQQQQIIQQ", start + 64 * index) for index in range(count)]
    for section in sections:
        if section[1] not in SYMBOL_TABLES:
            continue
        first, size, names = section[4], section[5], section[6]
        if names >= len(sections):
            raise UnsupportedCode(f"the code object is damaged: it has no section {names}", remedy="build it again")
        content.piece(first, size)  # before it is gone through
        for at in range(first, first + size - SYMBOL_BYTES + 1, SYMBOL_BYTES):
            name, _, _, defined, value, _ = content.fields("<IBBHQQ", at)
            if name and defined:
                yield content.text(sections[names][4] + name), value
