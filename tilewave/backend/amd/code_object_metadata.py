"""The kernel metadata of a code object: arguments, registers, spills, shared bytes; from its MessagePack note."""

from __future__ import annotations

import struct
from typing import Any

from tilewave.backend.amd import elf
from tilewave.records import dataclass

_METADATA = 32
Metadata = dict[str, Any]


@dataclass(frozen=True)
class KernelMetadata:
    """The metadata of one kernel; counts are per lane or wave, bytes per workgroup."""

    name: str
    descriptor: str
    fields: tuple[tuple[int, int], ...]
    """Offset and size of each argument that a caller passes."""
    kernarg_bytes: int
    shared_bytes: int
    private_bytes: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    wave_lanes: int
    most_lanes: int


def kernels(code_object: bytes) -> tuple[KernelMetadata, ...]:
    """Return the kernels of a code object, relocatable or loadable."""
    return tuple(_kernel(k) for k in metadata(code_object)["amdhsa.kernels"])


def target(code_object: bytes) -> str:
    """Return the chip of a code object: `gfx942`."""
    return str(metadata(code_object)["amdhsa.target"]).rpartition("--")[2]


def _kernel(k: Metadata) -> KernelMetadata:
    passed = [a for a in k.get(".args", []) if not a[".value_kind"].startswith("hidden_")]
    return KernelMetadata(
        name=k[".name"],
        descriptor=k[".symbol"],
        fields=tuple((a[".offset"], a[".size"]) for a in passed),
        kernarg_bytes=k[".kernarg_segment_size"],
        shared_bytes=k[".group_segment_fixed_size"],
        private_bytes=k[".private_segment_fixed_size"],
        vgprs=k[".vgpr_count"],
        agprs=k.get(".agpr_count", 0),
        sgprs=k[".sgpr_count"],
        vgpr_spills=k.get(".vgpr_spill_count", 0),
        sgpr_spills=k.get(".sgpr_spill_count", 0),
        wave_lanes=k[".wavefront_size"],
        most_lanes=k[".max_flat_workgroup_size"],
    )


def metadata(code_object: bytes) -> Metadata:
    """Return the note's whole content; raise ValueError where there is none."""
    for section in elf.read(code_object).sections:
        if section.type == elf.NOTE:
            at = 0
            while at < len(section.data):
                name_bytes, size, kind = struct.unpack_from("<III", section.data, at)
                start = at + 12 + _up4(name_bytes)
                if kind == _METADATA and section.data[at + 12 : at + 18] == b"AMDGPU":
                    found: Metadata = _Unpacker(section.data[start : start + size]).value()
                    return found
                at = start + _up4(size)
    raise ValueError("no metadata of AMD's in it")


def _up4(value: int) -> int:
    return -(-value // 4) * 4


class _Unpacker:
    """A MessagePack reader for what LLVM writes: maps, lists, strings, integers, booleans."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self) -> Any:
        tag = self._take(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self._map(tag & 15)
        if tag < 0xA0:
            return self._list(tag & 15)
        if tag < 0xC0:
            return self._text(tag & 31)
        return self._wide(tag)

    def _wide(self, tag: int) -> Any:
        match tag:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return tag == 0xC3
            case 0xCC | 0xCD | 0xCE | 0xCF:
                return self._number(1 << (tag - 0xCC))
            case 0xD0 | 0xD1 | 0xD2 | 0xD3:
                return int.from_bytes(self._take(1 << (tag - 0xD0)), "big", signed=True)
            case 0xD9 | 0xDA | 0xDB:
                return self._text(self._number(1 << (tag - 0xD9)))
            case 0xDC | 0xDD:
                return self._list(self._number(2 << (tag - 0xDC)))
            case 0xDE | 0xDF:
                return self._map(self._number(2 << (tag - 0xDE)))
            case _:
                raise ValueError(f"MessagePack tag {tag:#x}")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("MessagePack ends too early")
        self._at += count
        return taken

    def _number(self, count: int) -> int:
        return int.from_bytes(self._take(count), "big")

    def _text(self, count: int) -> str:
        return self._take(count).decode()

    def _list(self, count: int) -> list[Any]:
        return [self.value() for _ in range(count)]

    def _map(self, count: int) -> Metadata:
        return {self.value(): self.value() for _ in range(count)}
