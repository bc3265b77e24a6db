"""What a kernel asks of a launch: its arguments, its memories, and what stands in its registers at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

USER_SCALARS = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
"""In the order in which the hardware fills scalar registers; so are the bits of a descriptor's properties."""


@dataclass(frozen=True)
class Argument:
    """A place in the argument buffer; `kind` is the metadata's value_kind."""

    name: str
    kind: str
    offset: int
    size: int

    @property
    def is_pointer(self) -> bool:
        return self.kind in ("global_buffer", "dynamic_shared_pointer")

    @property
    def is_hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Resources:
    """What the compiler says that a kernel needs; `vector_registers` counts accumulation registers too."""

    vector_registers: int
    accumulation_registers: int
    scalar_registers: int
    spills: int
    largest_workgroup: int


@dataclass(frozen=True)
class Descriptor:
    """How the hardware starts a wave."""

    shared_bytes: int
    private_bytes: int
    argument_bytes: int
    user_scalars: tuple[str, ...]
    user_scalar_count: int
    preloaded: int
    preload_offset: int
    workgroup_ids: tuple[bool, bool, bool]
    mode: int
    allocated_registers: int
    """Vector registers that the hardware sets aside for a wave."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be launched; `entry` is the position of its first instruction."""

    name: str
    entry: int
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    resources: Resources


def arguments_of(metadata: Mapping[str, Any]) -> tuple[Argument, ...]:
    return tuple(
        Argument(str(a.get(".name", "")), str(a[".value_kind"]), int(a[".offset"]), int(a[".size"]))
        for a in metadata.get(".args", ())
    )


def resources_of(metadata: Mapping[str, Any]) -> Resources:
    def number(name: str) -> int:
        return int(metadata.get(name, 0) or 0)

    return Resources(
        number(".vgpr_count"),
        number(".agpr_count"),
        number(".sgpr_count"),
        number(".vgpr_spill_count") + number(".sgpr_spill_count"),
        number(".max_flat_workgroup_size"),
    )


def by_name(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The metadata of each kernel of a module."""
    kernels: Sequence[Mapping[str, Any]] = metadata.get("amdhsa.kernels", ())
    return {str(kernel[".name"]): kernel for kernel in kernels}


# -- the two forms of metadata -----------------------------------------------------------------------------------------


def read_yaml(text: str) -> dict[str, Any]:
    """The subset of YAML that LLVM writes: mappings, lists of `- `, plain scalars."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip() not in ("---", "...")]
    value, _ = _yaml_block([(len(line) - len(line.lstrip()), line.strip()) for line in lines], 0)
    return value if isinstance(value, dict) else {}


def _yaml_block(lines: list[tuple[int, str]], at: int) -> tuple[Any, int]:
    """The mapping or list that begins at this line, and the line behind it."""
    indent, text = lines[at]
    if text.startswith("- ") or text == "-":
        items = []
        while at < len(lines) and lines[at][0] == indent and lines[at][1].startswith("-"):
            body = lines[at][1][1:].lstrip()
            inner = indent + len(lines[at][1]) - len(body)
            if ": " in body or body.endswith(":"):
                lines[at] = (inner, body)
                item, at = _yaml_block(lines, at)
            else:
                item, at = _scalar(body), at + 1
            items.append(item)
        return items, at
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent and not lines[at][1].startswith("- "):
        key, _, rest = lines[at][1].partition(":")
        at += 1
        if rest.strip():
            found[key.strip()] = _scalar(rest.strip())
        elif at < len(lines) and (lines[at][0] > indent or lines[at][1].startswith("- ")):
            found[key.strip()], at = _yaml_block(lines, at)
        else:
            found[key.strip()] = None
    return found, at


def _scalar(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        return [] if text == "[]" else text.strip("'\"")


def read_msgpack(data: bytes) -> Any:
    """The subset of MessagePack that code objects hold."""
    value, _ = _msgpack(data, 0)
    return value


def _msgpack(data: bytes, at: int) -> tuple[Any, int]:
    tag, at = data[at], at + 1

    def number(size: int, *, signed: bool = False) -> int:
        return int.from_bytes(data[at : at + size], "big", signed=signed)

    match tag:
        case _ if tag < 0x80:
            return tag, at
        case _ if tag < 0x90:
            return _msgpack_map(data, at, tag & 15)
        case _ if tag < 0xA0:
            return _msgpack_list(data, at, tag & 15)
        case _ if tag < 0xC0:
            return data[at : at + (tag & 31)].decode(), at + (tag & 31)
        case 0xC0:
            return None, at
        case 0xC2 | 0xC3:
            return tag == 0xC3, at
        case 0xCC | 0xCD | 0xCE | 0xCF:
            return number(1 << (tag - 0xCC)), at + (1 << (tag - 0xCC))
        case 0xD0 | 0xD1 | 0xD2 | 0xD3:
            return number(1 << (tag - 0xD0), signed=True), at + (1 << (tag - 0xD0))
        case 0xD9 | 0xDA | 0xDB:
            size = 1 << (tag - 0xD9)
            end = at + size + number(size)
            return data[at + size : end].decode(), end
        case 0xDC | 0xDD:
            size = 2 << (tag - 0xDC)
            return _msgpack_list(data, at + size, number(size))
        case 0xDE | 0xDF:
            size = 2 << (tag - 0xDE)
            return _msgpack_map(data, at + size, number(size))
        case _ if tag >= 0xE0:
            return tag - 256, at
        case _:
            raise ValueError(f"MessagePack byte {tag:#x}")


def _msgpack_list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _msgpack(data, at)
        items.append(item)
    return items, at


def _msgpack_map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items, at = _msgpack_list(data, at, 2 * count)
    return dict(zip(items[::2], items[1::2], strict=True)), at
