"""Machine code as bytes that run at any address, made from an object file of LLVM's.

The sections of the object file follow each other, with addresses among them filled in relative to each other; then
comes a table of the addresses that a process fills in: functions and objects of Python's C API.

    code | constants | unwinding tables | addresses
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tilewave.errors import SavedKernelError
from tilewave.runtime.records import packed, unpacked

_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_ELF64_LITTLE, _X86_64 = b"\x7fELF\x02\x01", 62
_SYMBOLS, _RELOCATIONS, _NOBITS = 2, 4, 8
_ALLOCATED, _UNDEFINED = 2, 0
_RELATIVE, _OF_TABLE = (2, 4), (9, 41, 42)
"""R_X86_64_PC32 and PLT32: the distance of a symbol; GOTPCREL and two relaxable forms: that of its address's word."""
_SECTION_ALIGN, _WORD_BYTES, _NO_FRAMES = 64, 8, -1
FRAMES = ".eh_frame"


class Image(NamedTuple):
    """Code that runs at any address which is a multiple of `_SECTION_ALIGN`."""

    code: bytes
    functions: Mapping[str, int]
    """The offsets of its functions."""
    addresses: Mapping[str, int]
    """The offsets of the words for addresses of this process, by the symbols' names."""
    frames: int
    """The offset of its unwinding tables, or -1."""

    def stored(self) -> bytes:
        """Return the image as bytes, for `restored`."""
        of = {"functions": self.functions, "addresses": self.addresses}
        about = {name: [*found] for name, found in of.items()} | {f"{n}_at": [*f.values()] for n, f in of.items()}
        return packed({**about, "frames": self.frames}, [self.code])

    @staticmethod
    def restored(data: bytes) -> Image | None:
        """Return the image that was stored; None for anything else."""
        try:
            about, (code,) = unpacked(data)
            of = [dict(zip(about.texts(n), about.numbers(f"{n}_at"), strict=True)) for n in ("functions", "addresses")]
            found = Image(code, of[0], of[1], about.axis("frames"))
        except (SavedKernelError, ValueError):
            return None
        starts = *found.functions.values(), *(at + _WORD_BYTES - 1 for at in found.addresses.values()), found.frames
        return found if all(at < len(code) for at in starts) else None


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_bytes: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


class _Unknown(Exception):
    """The object file has something that an image cannot have."""


def image_of(data: bytes) -> Image | None:
    """Return the image of an object file for x86-64; None for other formats and machines, and what it cannot have."""
    if data[:6] != _ELF64_LITTLE:
        return None
    try:
        return _Object(data).image()
    except _Unknown:
        return None


class _Object:
    """An ELF object file."""

    def __init__(self, data: bytes) -> None:
        _, _, machine, _, _, _, at, _, _, _, _, _, count, names = _HEADER.unpack_from(data)
        if machine != _X86_64:
            raise _Unknown
        self.data = data
        self.sections = [_Section(*_SECTION.unpack_from(data, at + i * _SECTION.size)) for i in range(count)]
        self.names = self.sections[names]
        (table,) = (s for s in self.sections if s.kind == _SYMBOLS)
        self.strings = self.sections[table.link]
        self.symbols = [_Symbol(*found) for found in _SYMBOL.iter_unpack(self._bytes(table))]

    def _bytes(self, section: _Section) -> bytes:
        return self.data[section.offset : section.offset + section.size]

    def _text(self, strings: _Section, at: int) -> str:
        start = strings.offset + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def image(self) -> Image:
        code, places = bytearray(), {}
        for i, section in enumerate(self.sections):
            if not section.flags & _ALLOCATED or not section.size:
                continue
            if section.kind == _NOBITS or section.align > _SECTION_ALIGN:
                raise _Unknown
            code += bytes(-len(code) % _SECTION_ALIGN)
            places[i] = len(code)
            code += self._bytes(section)
            if self._text(self.names, section.name) == FRAMES:
                code += bytes(_WORD_BYTES)  # ends the tables
        addresses = self._table(len(code) + -len(code) % _WORD_BYTES)
        code += bytes(-len(code) % _WORD_BYTES + _WORD_BYTES * len(addresses))
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in places:
                self._fill(code, section, places, addresses)
        frames = [places[i] for i, s in enumerate(self.sections) if i in places and self._is_frames(s)]
        return Image(bytes(code), dict(self._functions(places)), addresses, *(frames or [_NO_FRAMES]))

    def _is_frames(self, section: _Section) -> bool:
        return self._text(self.names, section.name) == FRAMES

    def _table(self, begin: int) -> dict[str, int]:
        """Return the offset of a word for each symbol that is defined elsewhere."""
        named = [self._text(self.strings, s.name) for s in self.symbols[1:] if s.section == _UNDEFINED]
        return {name: begin + _WORD_BYTES * i for i, name in enumerate(named)}

    def _functions(self, places: Mapping[int, int]) -> Iterator[tuple[str, int]]:
        for symbol in self.symbols:
            if symbol.section in places and symbol.name:
                yield self._text(self.strings, symbol.name), places[symbol.section] + symbol.value

    def _fill(
        self, code: bytearray, section: _Section, places: Mapping[int, int], addresses: Mapping[str, int]
    ) -> None:
        """Fill in the distances of a section's relocations."""
        for offset, kind, index, addend in _RELOCATION.iter_unpack(self._bytes(section)):
            symbol, at = self.symbols[index], places[section.info] + offset
            if kind in _RELATIVE and symbol.section in places:
                target = places[symbol.section] + symbol.value
            elif kind in _OF_TABLE and symbol.section == _UNDEFINED:
                target = addresses[self._text(self.strings, symbol.name)]
            else:
                raise _Unknown
            struct.pack_into("<i", code, at, target + addend - at)
