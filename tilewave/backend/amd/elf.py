"""The parts of ELF that GPU code objects need: records read from bytes, and packed into bytes."""

from __future__ import annotations

import struct

from tilewave.records import dataclass

HEADER_BYTES, SEGMENT_BYTES, SECTION_BYTES, SYMBOL_BYTES, RELOCATION_BYTES = 64, 56, 64, 24, 24
RELOCATABLE, LOADABLE = 1, 3
PROGBITS, SYMTAB, STRTAB, RELA, HASH, DYNAMIC, NOTE, NOBITS, REL, DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11
WRITE, ALLOC, EXECUTE = 1, 2, 4
UNDEFINED, ABSOLUTE, FIRST_RESERVED = 0, 0xFFF1, 0xFF00
LOCAL = 0
HIDDEN = (1, 2)
"""Visibilities of symbols that are not visible outside the file."""

_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    flags: int
    align: int
    link: int
    info: int
    data: bytes

    @property
    def allocated(self) -> bool:
        """Whether the section is loaded into memory."""
        return bool(self.flags & ALLOC)


@dataclass(frozen=True)
class ElfSymbol:
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def binding(self) -> int:
        return self.info >> 4

    @property
    def exported(self) -> bool:
        inside = self.section != UNDEFINED and self.section < FIRST_RESERVED
        return inside and self.binding != LOCAL and self.other & 3 not in HIDDEN


@dataclass(frozen=True)
class Relocation:
    """A place in a section that needs an address, and how to compute it."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ElfFile:
    """A file's header and the contents of its sections."""

    ident: bytes
    type: int
    machine: int
    flags: int
    sections: tuple[Section, ...]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[Relocation, ...]


def read(file: bytes) -> ElfFile:
    """Parse a file; raise ValueError where it is not of the expected kind."""
    if file[:6] != b"\x7fELF\x02\x01" or len(file) < HEADER_BYTES:
        raise ValueError("no ELF file of 64 bits, little-endian")
    ident, kind, machine, _, _, _, table, flags, _, _, _, _, count, names = _HEADER.unpack_from(file)
    headers = [_SECTION.unpack_from(file, table + i * SECTION_BYTES) for i in range(count)]
    contents = [b"" if h[1] == NOBITS else file[h[4] : h[4] + h[5]] for h in headers]
    sections = tuple(
        Section(
            text(contents[names], h[0]), h[1], h[2], max(1, h[8]), h[6], h[7], data or bytes(h[5] * (h[1] == NOBITS))
        )
        for h, data in zip(headers, contents, strict=True)
    )
    return ElfFile(ident, kind, machine, flags, sections, _symbols(sections), _relocations(sections))


def _symbols(sections: tuple[Section, ...]) -> tuple[ElfSymbol, ...]:
    table = next((s for s in sections if s.type == SYMTAB), None)
    if table is None:
        return ()
    strings = sections[table.link].data
    return tuple(ElfSymbol(text(strings, name), *rest) for name, *rest in _SYMBOL.iter_unpack(table.data))


def _relocations(sections: tuple[Section, ...]) -> tuple[Relocation, ...]:
    return tuple(
        Relocation(section.info, offset, info & 0xFFFFFFFF, info >> 32, addend)
        for section in sections
        if section.type == RELA
        for offset, info, addend in _RELOCATION.iter_unpack(section.data)
    )


def text(strings: bytes, at: int) -> str:
    """Return the string at an offset of a string table."""
    return strings[at : strings.index(b"\0", at)].decode()


class Strings:
    """A string table that grows."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, string: str) -> int:
        at = len(self.data)
        self.data += string.encode() + b"\0"
        return at


def pack_symbol(name: int, symbol: ElfSymbol, section: int, address: int) -> bytes:
    return _SYMBOL.pack(name, symbol.info, symbol.other, section, address, symbol.size)


def pack_relocation(address: int, kind: int, symbol: int, addend: int) -> bytes:
    return _RELOCATION.pack(address, symbol << 32 | kind, addend)


def pack_segment(kind: int, flags: int, offset: int, address: int, size: int, memory: int, align: int) -> bytes:
    return _SEGMENT.pack(kind, flags, offset, address, address, size, memory, align)


def pack_section(
    name: int, kind: int, flags: int, address: int, offset: int, size: int, link: int, info: int, align: int, entry: int
) -> bytes:
    return _SECTION.pack(name, kind, flags, address, offset, size, link, info, align, entry)


def pack_header(source: ElfFile, segments: int, sections: int, section_table: int) -> bytes:
    """Return the header of a loadable file; segments follow it, and the last section has the sections' names."""
    sizes = (HEADER_BYTES, SEGMENT_BYTES, segments, SECTION_BYTES, sections, sections - 1)
    where = (0, HEADER_BYTES, section_table)
    return _HEADER.pack(source.ident, LOADABLE, source.machine, 1, *where, source.flags, *sizes)


def hash_table(names: list[str]) -> bytes:
    """Return the dynamic linker's hash table of symbols 1, 2, …"""
    buckets, chain = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chain[number], buckets[bucket] = buckets[bucket], number
    words = [len(buckets), len(chain), *buckets, *chain]
    return struct.pack(f"<{len(words)}I", *words)


def _hash(name: str) -> int:
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ high >> 24) & ~high & 0xFFFFFFFF
    return h
