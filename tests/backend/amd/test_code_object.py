"""AMD code objects made without a linker: a loader finds in them what the ABI says, and so do LLVM's own tools."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tilewave.backend.amd.code_object import link
from tilewave.backend.amd.code_object_metadata import kernels, metadata, target
from tilewave.errors import TargetError

CHIPS = ("gfx942", "gfx950")
HEAD = """target triple = "amdgcn-amd-amdhsa"
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { nounwind "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-implicitarg-ptr" }
"""
SCALE = """
@shared = internal addrspace(3) global [256 x float] poison, align 16
define amdgpu_kernel void @scale(ptr addrspace(1) %x, ptr addrspace(1) %y, float %by, i32 %n) #0 {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %from = getelementptr float, ptr addrspace(1) %x, i32 %lane
  %to = getelementptr float, ptr addrspace(1) %y, i32 %lane
  %kept = getelementptr float, ptr addrspace(3) @shared, i32 %lane
  %value = load float, ptr addrspace(1) %from
  %scaled = fmul float %value, %by
  store volatile float %scaled, ptr addrspace(3) %kept
  %again = load volatile float, ptr addrspace(3) %kept
  store float %again, ptr addrspace(1) %to
  ret void
}
"""
LOOKUP = """
@table = {linkage} addrspace(4) constant [4 x i32] [i32 3, i32 1, i32 4, i32 1], align 16
define amdgpu_kernel void @lookup(ptr addrspace(1) %y, i32 %i) #0 {{
  %at = getelementptr [4 x i32], ptr addrspace(4) @table, i32 0, i32 %i
  %value = load i32, ptr addrspace(4) %at
  store i32 %value, ptr addrspace(1) %y
  ret void
}}
"""
ADDRESSES = """
@one = internal addrspace(4) constant [2 x i32] [i32 11, i32 12], align 4
@two = internal addrspace(4) constant [2 x i32] [i32 21, i32 22], align 4
@both = internal addrspace(4) constant [2 x ptr addrspace(4)] [
  ptr addrspace(4) @one, ptr addrspace(4) getelementptr (i8, ptr addrspace(4) @two, i64 4)], align 8
define amdgpu_kernel void @chase(ptr addrspace(1) %y, i32 %i) #0 {
  %at = getelementptr [2 x ptr addrspace(4)], ptr addrspace(4) @both, i32 0, i32 %i
  %there = load ptr addrspace(4), ptr addrspace(4) %at
  %value = load i32, ptr addrspace(4) %there
  store i32 %value, ptr addrspace(1) %y
  ret void
}
"""


@cache
def emitted(body: str, chip: str) -> bytes:
    """The relocatable object that LLVM makes of a kernel."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(HEAD + body)
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(
        cpu=chip, opt=3, reloc="pic", codemodel="default"
    )
    module.data_layout = str(machine.target_data)
    module.verify()
    return machine.emit_object(module)


# -- an independent reader -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


@dataclass(frozen=True)
class Row:
    name: str
    bind: int
    kind: int
    visibility: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Segment:
    type: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int
    align: int


class File:
    """An ELF file, read as the specification says."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        assert raw[:7] == b"\x7fELF\x02\x01\x01"
        self.osabi, self.abi_version = raw[7], raw[8]
        fields = struct.unpack_from("<HHIQQQIHHHHHH", raw, 16)
        self.type, self.machine, _, _, segments_at, sections_at, self.flags, *sizes = fields
        header, segment_bytes, segment_count, section_bytes, section_count, names = sizes
        assert (header, section_bytes) == (64, 64)
        assert segment_bytes == (56 if segment_count else 0)
        rows = [struct.unpack_from("<IIQQQQIIQQ", raw, sections_at + 64 * i) for i in range(section_count)]
        strings = rows[names][4]
        self.sections = [
            Header(self._text(strings + r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9]) for r in rows
        ]
        segments = [struct.unpack_from("<IIQQQQQQ", raw, segments_at + 56 * i) for i in range(segment_count)]
        assert all(s[3] == s[4] for s in segments)
        self.segments = [Segment(s[0], s[1], s[2], s[3], s[5], s[6], s[7]) for s in segments]

    def _text(self, at: int) -> str:
        return self.raw[at : self.raw.index(b"\0", at)].decode()

    def section(self, name: str) -> Header:
        return next(s for s in self.sections if s.name == name)

    def content(self, name: str) -> bytes:
        s = self.section(name)
        return self.raw[s.offset : s.offset + s.size]

    def symbols(self, table: str) -> list[Row]:
        s = self.section(table)
        strings = self.sections[s.link].offset
        rows = struct.iter_unpack("<IBBHQQ", self.content(table))
        return [Row(self._text(strings + r[0]), r[1] >> 4, r[1] & 15, r[2] & 3, r[3], r[4], r[5]) for r in rows]

    def symbol(self, name: str, table: str = ".symtab") -> Row:
        return next(s for s in self.symbols(table) if s.name == name)

    def relocations(self, name: str) -> list[tuple[int, int, int, int]]:
        """Offset, kind, symbol, addend."""
        return [(o, i & 0xFFFFFFFF, i >> 32, a) for o, i, a in struct.iter_unpack("<QQq", self.content(name))]

    def dynamic(self) -> dict[int, int]:
        s = next(s for s in self.segments if s.type == 2)
        return dict(struct.iter_unpack("<QQ", self.raw[s.offset : s.offset + s.file_bytes]))

    def loaded(self, base: int) -> bytearray:
        """Memory as the loader leaves it: segments in place, addresses made absolute."""
        loads = [s for s in self.segments if s.type == 1]
        memory = bytearray(max(s.address + s.memory_bytes for s in loads))
        for s in loads:
            memory[s.address : s.address + s.file_bytes] = self.raw[s.offset : s.offset + s.file_bytes]
        d = self.dynamic()
        for at in range(d.get(7, 0), d.get(7, 0) + d.get(8, 0), d.get(9, 24)):
            place, info, addend = struct.unpack_from("<QQq", memory, at)
            assert info == 13, "the loader knows RELATIVE64 alone"
            struct.pack_into("<Q", memory, place, base + addend)
        return memory


def linked(body: str, chip: str = "gfx942") -> File:
    return File(link(emitted(body, chip)))


# what a loader needs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_the_header_is_that_of_a_loadable_v5_code_object(chip):
    file, source = linked(SCALE, chip), File(emitted(SCALE, chip))
    assert (file.type, file.machine, file.osabi, file.abi_version) == (3, 224, 64, 3)
    assert file.flags == source.flags
    assert file.flags & 0xFF == {"gfx942": 0x4C, "gfx950": 0x4F}[chip]


@pytest.mark.parametrize("body", [SCALE, ADDRESSES], ids=["scale", "addresses"])
def test_pages_have_one_right_each_and_files_map_onto_them(body):
    file = linked(body)
    loads = [s for s in file.segments if s.type == 1]
    assert [s.flags for s in loads] == [4, 5, 6]
    pages = [set(range(s.address // 4096, -(-(s.address + s.memory_bytes) // 4096))) for s in loads]
    assert not pages[0] & pages[1] and not pages[1] & pages[2] and not pages[0] & pages[2]
    for s in loads:
        assert s.align == 4096
        assert s.address % 4096 == s.offset % 4096
        assert s.offset + s.file_bytes <= len(file.raw)
        assert s.memory_bytes >= s.file_bytes
    assert next(s for s in file.segments if s.type == 6).offset == 64


def test_every_loaded_section_lies_in_the_segment_of_its_rights():
    file = linked(ADDRESSES)
    loads = {s.flags: s for s in file.segments if s.type == 1}
    for section in file.sections:
        if section.flags & 2:
            segment = loads[{0: 4, 4: 5, 1: 6}[section.flags & 5]]
            assert segment.address <= section.address
            assert section.address + section.size <= segment.address + segment.file_bytes
            assert section.address - section.offset == segment.address - segment.offset
            assert section.address % section.align == 0
    assert file.section(".text").align == 256
    assert loads[5].address == file.section(".text").address
    assert file.section(".rodata").align >= 64


def test_sections_do_not_overlap():
    file = linked(ADDRESSES)
    ends = 64 + 56 * len(file.segments)
    for s in sorted((s for s in file.sections if s.size), key=lambda s: s.offset):
        assert s.offset >= ends, s.name
        ends = s.offset + s.size


@pytest.mark.parametrize("chip", CHIPS)
def test_a_kernel_and_its_descriptor_are_found_by_name(chip):
    file = linked(SCALE, chip)
    names = {s.name: s for s in file.symbols(".dynsym")}
    assert set(names) == {"", "scale", "scale.kd"}
    assert (names["scale"].bind, names["scale"].kind) == (1, 2)
    assert (names["scale.kd"].kind, names["scale.kd"].size) == (1, 64)
    assert file.sections[names["scale"].section].name == ".text"
    assert file.sections[names["scale.kd"].section].name == ".rodata"
    assert names["scale.kd"].value % 64 == 0
    assert names["scale"].value % 256 == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_the_descriptor_leads_to_the_code(chip):
    file = linked(SCALE, chip)
    memory = file.loaded(0)
    descriptor, code = file.symbol("scale.kd").value, file.symbol("scale").value
    (distance,) = struct.unpack_from("<q", memory, descriptor + 16)
    assert descriptor + distance == code
    source = File(emitted(SCALE, chip))
    assert memory[code : code + source.symbol("scale").size] == source.content(".text")[: source.symbol("scale").size]


def sysv(name: str) -> int:
    """As printed in the System V ABI."""
    h = 0
    for c in name.encode():
        h = ((h << 4) + c) & 0xFFFFFFFF
        g = h & 0xF0000000
        if g:
            h ^= g >> 24
        h &= ~g
    return h


def test_the_hash_table_finds_every_symbol():
    long = "".join(SCALE.replace("@scale", f"@scale_by_{n}").replace("@shared", f"@shared{n}") for n in range(9))
    file = linked(SCALE + LOOKUP.format(linkage="internal") + ADDRESSES + long)
    names = [s.name for s in file.symbols(".dynsym")]
    assert len(names) == 1 + 2 * 12
    words = struct.unpack(f"<{file.section('.hash').size // 4}I", file.content(".hash"))
    buckets, chain = words[2 : 2 + words[0]], words[2 + words[0] :]
    assert words[1] == len(names) == len(chain)
    for number, name in enumerate(names[1:], 1):
        at = buckets[sysv(name) % words[0]]
        while at != number:
            assert at != 0, name
            at = chain[at]


def test_the_dynamic_section_points_at_the_tables():
    file = linked(ADDRESSES)
    d = file.dynamic()
    assert d[6] == file.section(".dynsym").address
    assert d[5] == file.section(".dynstr").address
    assert d[10] == file.section(".dynstr").size
    assert d[4] == file.section(".hash").address
    assert (d[7], d[8], d[9]) == (file.section(".rela.dyn").address, 48, 24)
    assert 7 not in linked(SCALE).dynamic()


def test_local_symbols_come_first_and_hidden_ones_stay_inside():
    file = linked(LOOKUP.format(linkage="hidden"))
    table = file.section(".symtab")
    binds = [s.bind for s in file.symbols(".symtab")]
    assert binds[: table.info] == [0] * table.info
    assert all(binds[table.info :])
    assert file.symbol("table").bind == 0
    assert "table" not in [s.name for s in file.symbols(".dynsym")]
    assert file.section(".dynsym").info == 1


# relocations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("linkage", ["internal", "hidden"])
def test_code_finds_its_constants(chip, linkage):
    body = LOOKUP.format(linkage=linkage)
    source, file = File(emitted(body, chip)), linked(body, chip)
    wanted = source.relocations(".rela.text")
    assert {kind for _, kind, _, _ in wanted} == {10, 11}
    memory, text = file.loaded(0), file.section(".text").address
    places = {kind: text + offset for offset, kind, _, _ in wanted}
    low, high = (struct.unpack_from("<I", memory, places[kind])[0] for kind in (10, 11))
    # s_getpc_b64 gives the address of the s_add_u32 whose last four bytes are the lower half.
    found = (places[10] - 4 + (high << 32 | low)) % (1 << 64)
    assert memory[found : found + 16] == struct.pack("<4i", 3, 1, 4, 1)


def test_addresses_in_data_are_left_to_the_loader():
    source, file = File(emitted(ADDRESSES, "gfx942")), linked(ADDRESSES)
    assert [kind for _, kind, _, _ in source.relocations(".rela.data.rel.ro")] == [3, 3]
    assert [kind for _, kind, _, _ in file.relocations(".rela.dyn")] == [13, 13]
    base = 0x7F00_0000_0000
    memory = file.loaded(base)
    both = file.symbol("both").value
    first, second = struct.unpack_from("<QQ", memory, both)
    assert struct.unpack_from("<i", memory, first - base) == (11,)
    assert struct.unpack_from("<i", memory, second - base) == (22,)


def test_writable_data_keeps_its_content():
    body = """
@counter = internal addrspace(1) global i32 7
define amdgpu_kernel void @count() #0 {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 1 monotonic
  ret void
}
"""
    file = linked(body)
    assert file.section(".data").flags & 7 == 3
    assert struct.unpack_from("<i", file.loaded(0), file.symbol("counter").value) == (7,)


def patched(body: str, kind: int) -> bytes:
    """The object of a kernel whose first relocation of .text is of another kind."""
    raw = bytearray(emitted(body, "gfx942"))
    at = File(bytes(raw)).section(".rela.text").offset
    struct.pack_into("<I", raw, at + 8, kind)
    return bytes(raw)


def refusal(raw: bytes) -> str:
    with pytest.raises(TargetError) as caught:
        link(raw)
    return f"{caught.value.what}\n{caught.value.remedy}"


def test_an_unknown_relocation_is_named():
    text = refusal(patched(LOOKUP.format(linkage="internal"), 77))
    assert re.match(
        r"no code object: \.text\+0x[0-9a-f]+ needs relocation 77 of \.rodata: tilewave does not know this relocation\n"
        r"this is a fault of tilewave's",
        text,
    )


def test_half_an_absolute_address_is_refused():
    text = refusal(patched(LOOKUP.format(linkage="internal"), 1))
    assert "needs R_AMDGPU_ABS32_LO of .rodata: half an address is not known before the code is loaded" in text


@pytest.mark.parametrize("kind", [4, 14])
def test_a_short_relocation_is_written_or_too_far(kind):
    body = LOOKUP.format(linkage="internal")
    raw = patched(body, kind)
    file = File(link(raw))
    offset, _, symbol, addend = File(raw).relocations(".rela.text")[0]
    place = file.section(".text").address + offset
    distance = file.section(".rodata").address + File(raw).symbols(".symtab")[symbol].value + addend - place
    if kind == 4:
        assert struct.unpack_from("<i", file.loaded(0), place) == (distance,)
    else:
        assert struct.unpack_from("<h", file.loaded(0), place) == ((distance - 4) // 4,)
    far = bytearray(raw)
    struct.pack_into("<q", far, File(raw).section(".rela.text").offset + 16, 1 << 40)
    assert "bytes away" in refusal(bytes(far))


def test_a_symbol_that_others_could_replace_needs_a_table_that_is_not_there():
    body = LOOKUP.format(linkage="")
    kinds = {kind for _, kind, _, _ in File(emitted(body, "gfx942")).relocations(".rela.text")}
    assert kinds == {8, 9}
    text = refusal(emitted(body, "gfx942"))
    assert "needs R_AMDGPU_GOTPCREL32_LO of table: there is no table of addresses" in text
    assert text.endswith("make the symbol internal or hidden")


def test_an_undefined_symbol_is_named():
    body = """
@elsewhere = external hidden addrspace(4) constant i32
define amdgpu_kernel void @reach(ptr addrspace(1) %y) #0 {
  %value = load i32, ptr addrspace(4) @elsewhere
  store i32 %value, ptr addrspace(1) %y
  ret void
}
"""
    assert refusal(emitted(body, "gfx942")) == (
        "no code object: elsewhere is used, but not defined\ndefine it in the same module, or inline it"
    )


def test_zeroed_globals_are_refused():
    body = """
@zeros = internal addrspace(1) global [4 x i32] zeroinitializer
define amdgpu_kernel void @fill() #0 {
  store volatile i32 1, ptr addrspace(1) @zeros
  ret void
}
"""
    assert refusal(emitted(body, "gfx942")) == (
        "no code object: .bss has memory that begins as zeros\npass such memory to the kernel as an array"
    )


def test_what_is_no_object_is_refused():
    assert refusal(b"hello").startswith("no code object: what LLVM emitted is no ELF file of 64 bits, little-endian\n")
    finished = link(emitted(SCALE, "gfx942"))
    assert "no relocatable object for amdgcn-amd-amdhsa" in refusal(finished)


def test_linking_twice_gives_the_same_bytes():
    assert link(emitted(ADDRESSES, "gfx950")) == link(emitted(ADDRESSES, "gfx950"))


# metadata -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_the_metadata_tells_arguments_registers_and_shared_bytes(chip):
    code = link(emitted(SCALE, chip))
    (kernel,) = kernels(code)
    assert (kernel.name, kernel.descriptor) == ("scale", "scale.kd")
    assert kernel.fields == ((0, 8), (8, 8), (16, 4), (20, 4))
    assert (kernel.kernarg_bytes, kernel.shared_bytes, kernel.private_bytes) == (24, 1024, 0)
    assert (kernel.wave_lanes, kernel.most_lanes) == (64, 64)
    assert (kernel.vgpr_spills, kernel.sgpr_spills, kernel.agprs) == (0, 0, 0)
    assert 1 <= kernel.vgprs <= 16 and 1 <= kernel.sgprs <= 32
    assert target(code) == chip
    assert metadata(code)["amdhsa.version"] == [1, 2]
    assert kernels(emitted(SCALE, chip)) == kernels(code)


def test_arguments_that_the_runtime_passes_are_not_the_callers():
    body = (
        SCALE.replace("#0", "#1 ")
        + """
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
define amdgpu_kernel void @asks(ptr addrspace(1) %y) {
  %there = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %value = load i32, ptr addrspace(4) %there
  store i32 %value, ptr addrspace(1) %y
  ret void
}
attributes #1 = { nounwind "amdgpu-no-implicitarg-ptr" }
"""
    )
    scale, asks = kernels(link(emitted(body, "gfx942")))
    assert len(scale.fields) == 4
    assert asks.fields == ((0, 8),)
    assert asks.kernarg_bytes > 8


def test_two_kernels_have_their_own_metadata():
    code = link(emitted(SCALE + LOOKUP.format(linkage="internal"), "gfx942"))
    assert [k.name for k in kernels(code)] == ["scale", "lookup"]


def test_a_file_without_metadata():
    bare = bytearray(link(emitted(SCALE, "gfx942")))
    at = File(bytes(bare)).section(".note").offset
    bare[at + 8 : at + 12] = struct.pack("<I", 31)
    with pytest.raises(ValueError, match="no metadata"):
        metadata(bytes(bare))


# LLVM's own tools ---------------------------------------------------------------------------------------------------


def tool(name: str) -> str:
    """One of LLVM's tools, new enough for gfx950."""
    for version in range(30, 19, -1):
        if found := shutil.which(f"{name}-{version}"):
            return found
    pytest.skip(f"{name} of LLVM 20 or newer is an optional guest; Debian has it in llvm-22")


def said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("chip", CHIPS)
def test_llvm_disassembles_it(chip, tmp_path: Path):
    path = tmp_path / "scale.hsaco"
    path.write_bytes(link(emitted(SCALE, chip)))
    text = said([tool("llvm-objdump"), "-d", str(path)])
    assert "file format elf64-amdgpu" in text
    assert "<scale>:" in text
    assert "s_endpgm" in text
    assert "<unknown>" not in text


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("body", [SCALE, ADDRESSES], ids=["scale", "addresses"])
def test_llvm_reads_its_headers_symbols_and_notes(chip, body, tmp_path: Path):
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(link(emitted(body, chip)))
    text = said([tool("llvm-readelf"), "-a", str(path)])
    name = "scale" if body is SCALE else "chase"
    assert re.search(rf"FUNC +GLOBAL PROTECTED +\d+ {name}\n", text)
    assert f"amdhsa.target:   amdgcn-amd-amdhsa--{chip}" in text.replace("'", "")
    assert f".symbol:         {name}.kd" in text
    assert "AMDGPU - HSA" in text
    assert "warning" not in text
    assert ("R_AMDGPU_RELATIVE64" in text) == (body is ADDRESSES)
