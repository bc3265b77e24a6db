"""The loadable AMD code object from the relocatable one that LLVM emits, without a linker.

    file offset 0      header, segments, note, dynamic symbols, constants     read        address = offset
    next 256 bytes     machine code                                           execute     address = offset + 4096
    next 8 bytes       data with addresses in it, the dynamic section         write       address = offset + 8192
    then               symbols and names that only people read                not loaded

Pages with different permissions are apart in memory and, as each is shifted by whole pages, adjacent in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

from tilewave.backend.amd import elf
from tilewave.backend.amd.elf import ElfFile, ElfSymbol, Relocation, Section
from tilewave.errors import TargetError
from tilewave.records import dataclass

AMDGPU, AMDGPU_HSA = 224, 64
PAGE = 0x1000
CODE_ALIGN = 256
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_PHDR, _PT_GNU_STACK = 1, 2, 4, 6, 0x6474E551
_READ, _EXECUTE, _WRITE = 4, 1, 2
_SEGMENTS = 7
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_RELAENT, _DT_STRSZ, _DT_SYMENT = 4, 5, 6, 7, 8, 9, 10, 11


class Kind(IntEnum):
    """The relocations of AMD's ABI."""

    ABS32_LO = 1
    ABS32_HI = 2
    ABS64 = 3
    REL32 = 4
    REL64 = 5
    ABS32 = 6
    GOTPCREL = 7
    GOTPCREL32_LO = 8
    GOTPCREL32_HI = 9
    REL32_LO = 10
    REL32_HI = 11
    RELATIVE64 = 13
    REL16 = 14


def link(relocatable: bytes) -> bytes:
    """Return a file that HIP loads from the object that LLVM emitted for one or more kernels."""
    source = _opened(relocatable)
    layout = _Layout(source)
    return layout.file()


def _opened(relocatable: bytes) -> ElfFile:
    try:
        source = elf.read(relocatable)
    except ValueError as error:
        raise _refused(f"what LLVM emitted is {error}") from None
    if (source.type, source.machine, source.ident[7]) != (elf.RELOCATABLE, AMDGPU, AMDGPU_HSA):
        raise _refused("what LLVM emitted is no relocatable object for amdgcn-amd-amdhsa")
    for section in source.sections:
        if section.allocated and section.type == elf.NOBITS and section.data:
            raise _refused(
                f"{section.name} has memory that begins as zeros", "pass such memory to the kernel as an array"
            )
    for symbol in source.symbols:
        if symbol.name and symbol.section == elf.UNDEFINED:
            raise _refused(f"{symbol.name} is used, but not defined", "define it in the same module, or inline it")
    return source


def _refused(what: str, remedy: str = "") -> TargetError:
    report = "this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report"
    return TargetError(f"no code object: {what}", remedy=remedy or report)


@dataclass
class _Placed:
    """A section of the new file."""

    name: str
    type: int
    flags: int
    align: int
    data: bytes
    offset: int
    address: int
    entry: int = 0
    link: int = 0
    info: int = 0


class _Layout:
    """The file offsets and addresses of all sections; everything else follows from them."""

    def __init__(self, source: ElfFile) -> None:
        self.source = source
        self.placed: list[_Placed] = []
        self.number: dict[int, int] = {}
        """The new number of each section that is kept."""
        self._end = elf.HEADER_BYTES + _SEGMENTS * elf.SEGMENT_BYTES
        self._shift = 0
        self.exported = [s for s in source.symbols if s.exported]
        self._place_constants()
        self.constants_end = self._end
        self.code_start = self._begin(PAGE, CODE_ALIGN)
        self._place_kept(elf.EXECUTE)
        self.code_end = self._end
        self.data_start = self._begin(2 * PAGE, 8)
        self._place_kept(elf.WRITE)
        self.dynamic = self._place(".dynamic", elf.DYNAMIC, elf.ALLOC | elf.WRITE, 8, bytes(16 * 9), entry=16)
        self.data_end = self._end

    # -- placing

    def _begin(self, shift: int, align: int) -> int:
        self._end = _up(self._end, align)
        self._shift = shift
        return self._end

    def _place(self, name: str, kind: int, flags: int, align: int, data: bytes, entry: int = 0) -> _Placed:
        at = _up(self._end, align)
        address = at + self._shift if flags & elf.ALLOC else 0
        placed = _Placed(name, kind, flags, align, data, at, address, entry)
        self.placed.append(placed)
        self._end = at + len(data)
        return placed

    def _place_constants(self) -> None:
        notes = [i for i in self._kept(0) if self.source.sections[i].type == elf.NOTE]
        self._copy(notes)
        # Sizes first: the contents depend on addresses that are not known yet.
        strings = elf.Strings()
        self._names = [strings.add(s.name) for s in self.exported]
        self.dynsym = self._place(".dynsym", elf.DYNSYM, elf.ALLOC, 8, bytes(24 * (len(self.exported) + 1)), entry=24)
        table = elf.hash_table([s.name for s in self.exported])
        self.hash = self._place(".hash", elf.HASH, elf.ALLOC, 4, table, entry=4)
        self.dynstr = self._place(".dynstr", elf.STRTAB, elf.ALLOC, 1, strings.data)
        self.rela = self._place(".rela.dyn", elf.RELA, elf.ALLOC, 8, bytes(24 * len(self._loaders_work())), entry=24)
        self._copy(i for i in self._kept(0) if i not in notes)

    def _place_kept(self, right: int) -> None:
        self._copy(self._kept(right))

    def _kept(self, right: int) -> list[int]:
        """Return the sections with exactly this permission, by their old number; 0 is read-only."""
        rights = elf.WRITE | elf.EXECUTE
        sections = enumerate(self.source.sections)
        return [i for i, s in sections if s.allocated and s.data and s.flags & rights == right]

    def _copy(self, numbers: Iterable[int]) -> None:
        for i in numbers:
            s: Section = self.source.sections[i]
            self._place(s.name, s.type, s.flags & (elf.WRITE | elf.ALLOC | elf.EXECUTE), s.align, s.data)
            self.number[i] = len(self.placed)

    # -- addresses

    def _address(self, symbol: ElfSymbol) -> int:
        if symbol.section in self.number:
            return self.placed[self.number[symbol.section] - 1].address + symbol.value
        if symbol.section == elf.ABSOLUTE:
            return symbol.value
        raise _refused(f"{symbol.name} is in a section that is not loaded")

    def _relocations(self) -> list[Relocation]:
        """Return the relocations of sections that are loaded, without those of debug information."""
        return [r for r in self.source.relocations if self.source.sections[r.section].allocated]

    def _loaders_work(self) -> list[Relocation]:
        """Return the relocations with an absolute address, which only the loader knows."""
        return [r for r in self._relocations() if r.kind == Kind.ABS64 and self._moves(r)]

    def _moves(self, r: Relocation) -> bool:
        return self.source.symbols[r.symbol].section != elf.ABSOLUTE

    def _resolve(self, file: bytearray) -> None:
        left = []
        for r in self._relocations():
            section = self.placed[self.number[r.section] - 1]
            symbol = self.source.symbols[r.symbol]
            place, value = section.address + r.offset, self._address(symbol) + r.addend
            at = section.offset + r.offset
            if r.kind == Kind.ABS64 and self._moves(r):
                left.append(elf.pack_relocation(place, Kind.RELATIVE64, 0, value))
            elif r.kind in (Kind.ABS32, Kind.ABS32_LO, Kind.ABS32_HI) and self._moves(r):
                raise self._impossible(r, "half an address is not known before the code is loaded")
            else:
                self._write(file, at, r, value, place)
        self.rela.data = b"".join(left)

    def _write(self, file: bytearray, at: int, r: Relocation, value: int, place: int) -> None:
        distance = value - place
        match r.kind:
            case Kind.ABS64:
                struct.pack_into("<Q", file, at, value & 0xFFFFFFFF_FFFFFFFF)
            case Kind.REL64:
                struct.pack_into("<q", file, at, distance)
            case Kind.ABS32_LO | Kind.ABS32:
                struct.pack_into("<I", file, at, value & 0xFFFFFFFF)
            case Kind.ABS32_HI:
                struct.pack_into("<I", file, at, value >> 32 & 0xFFFFFFFF)
            case Kind.REL32_LO:
                struct.pack_into("<I", file, at, distance & 0xFFFFFFFF)
            case Kind.REL32_HI:
                struct.pack_into("<i", file, at, distance >> 32)
            case Kind.REL32 if -(1 << 31) <= distance < 1 << 31:
                struct.pack_into("<i", file, at, distance)
            case Kind.REL16 if distance % 4 == 0 and -(1 << 15) <= (distance - 4) // 4 < 1 << 15:
                struct.pack_into("<h", file, at, (distance - 4) // 4)
            case Kind.REL32 | Kind.REL16:
                raise self._impossible(r, f"it is {distance} bytes away")
            case Kind.GOTPCREL | Kind.GOTPCREL32_LO | Kind.GOTPCREL32_HI:
                raise self._impossible(r, "there is no table of addresses", "make the symbol internal or hidden")
            case _:
                raise self._impossible(r, "tilewave does not know this relocation")

    def _impossible(self, r: Relocation, why: str, remedy: str = "") -> TargetError:
        known = {kind.value: f"R_AMDGPU_{kind.name}" for kind in Kind}
        kind = known.get(r.kind, f"relocation {r.kind}")
        where = f"{self.source.sections[r.section].name}+{r.offset:#x}"
        symbol = self.source.symbols[r.symbol]
        name = symbol.name or self.source.sections[symbol.section].name
        return _refused(f"{where} needs {kind} of {name}: {why}", remedy)

    # -- writing

    def file(self) -> bytes:
        """Return the whole file."""
        self._fill_tables()
        self._place_names()
        file = bytearray(_up(self._end, 8))
        for p in self.placed:
            file[p.offset : p.offset + len(p.data)] = p.data
        self._resolve(file)
        file[self.rela.offset : self.rela.offset + len(self.rela.data)] = self.rela.data
        table = len(file)
        file += bytes(elf.SECTION_BYTES) + b"".join(map(self._section_header, self.placed))
        head = elf.pack_header(self.source, _SEGMENTS, len(self.placed) + 1, table) + self._segments()
        file[: len(head)] = head
        return bytes(file)

    def _number_of(self, placed: _Placed) -> int:
        return self.placed.index(placed) + 1

    def _fill_tables(self) -> None:
        packed = (self._packed(name, s) for name, s in zip(self._names, self.exported, strict=True))
        self.dynsym.data = bytes(24) + b"".join(packed)
        self.dynsym.link = self.dynamic.link = self._number_of(self.dynstr)
        self.dynsym.info = 1
        self.hash.link = self.rela.link = self._number_of(self.dynsym)
        entries = [
            (_DT_SYMTAB, self.dynsym.address),
            (_DT_SYMENT, 24),
            (_DT_STRTAB, self.dynstr.address),
            (_DT_STRSZ, len(self.dynstr.data)),
            (_DT_HASH, self.hash.address),
        ]
        if self.rela.data:
            entries += [(_DT_RELA, self.rela.address), (_DT_RELASZ, len(self.rela.data)), (_DT_RELAENT, 24)]
        words = [word for entry in entries for word in entry]
        self.dynamic.data = struct.pack(f"<{len(words)}Q", *words).ljust(len(self.dynamic.data), b"\0")

    def _packed(self, name: int, s: ElfSymbol) -> bytes:
        return elf.pack_symbol(name, s, self.number.get(s.section, elf.ABSOLUTE), self._address(s))

    def _place_names(self) -> None:
        """Place the tables that only people read: every symbol, local ones first, and the sections' names."""
        strings = elf.Strings()
        hidden = [s for s in self.source.symbols if s.name and not s.exported and self._has_address(s)]
        local = [ElfSymbol(s.name, s.info & 15, s.other, s.section, s.value, s.size) for s in hidden]
        rows = [self._packed(strings.add(s.name), s) for s in (*local, *self.exported)]
        symtab = self._place(".symtab", elf.SYMTAB, 0, 8, bytes(24) + b"".join(rows), entry=24)
        strtab = self._place(".strtab", elf.STRTAB, 0, 1, strings.data)
        symtab.link, symtab.info = self._number_of(strtab), len(local) + 1
        names = elf.Strings()
        self._section_names = [names.add(p.name) for p in self.placed]
        self._section_names.append(names.add(".shstrtab"))
        self._place(".shstrtab", elf.STRTAB, 0, 1, names.data)

    def _has_address(self, s: ElfSymbol) -> bool:
        return s.section in self.number or s.section == elf.ABSOLUTE

    def _section_header(self, p: _Placed) -> bytes:
        name = self._section_names[self.placed.index(p)]
        size = len(p.data)
        return elf.pack_section(name, p.type, p.flags, p.address, p.offset, size, p.link, p.info, p.align, p.entry)

    def _segments(self) -> bytes:
        heads = elf.HEADER_BYTES, _SEGMENTS * elf.SEGMENT_BYTES
        code, data = self.code_end - self.code_start, self.data_end - self.data_start
        d, notes = self.dynamic, [p for p in self.placed if p.type == elf.NOTE]
        # The loader sets permissions by pages, so the last page belongs to this segment to its end.
        memory = _up(self.data_end + 2 * PAGE, PAGE) - (self.data_start + 2 * PAGE)
        note_at, note_bytes = (notes[0].offset, _span(notes)) if notes else (0, 0)
        rows = (
            (_PT_PHDR, _READ, heads[0], heads[0], heads[1], heads[1], 8),
            (_PT_LOAD, _READ, 0, 0, self.constants_end, self.constants_end, PAGE),
            (_PT_LOAD, _READ | _EXECUTE, self.code_start, self.code_start + PAGE, code, code, PAGE),
            (_PT_LOAD, _READ | _WRITE, self.data_start, self.data_start + 2 * PAGE, data, memory, PAGE),
            (_PT_DYNAMIC, _READ | _WRITE, d.offset, d.address, len(d.data), len(d.data), 8),
            (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0),
            (_PT_NOTE, _READ, note_at, note_at, note_bytes, note_bytes, 4),
        )
        return b"".join(elf.pack_segment(*row) for row in rows)


def _span(notes: list[_Placed]) -> int:
    return notes[-1].offset + len(notes[-1].data) - notes[0].offset


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
