"""A kernel's metadata, as YAML in assembly text or as MessagePack in a code object; either may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.kernel import Argument, DeclaredResources

DEEPEST = 32
"""Deepest nesting of lists and mappings; compilers need five."""
MOST_ARGUMENT_BYTES = 1 << 16
"""The most bytes of a kernel's arguments; HIP passes 4096."""
LARGEST_NUMBER = 1 << 31


def damaged(what: str) -> UnsupportedCode:
    return UnsupportedCode(f"the kernel's metadata is damaged: {what}", remedy="build it again")


# -- what is asked of it -----------------------------------------------------------------------------------------------


def by_name(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The metadata of each kernel of a module."""
    return {_word(kernel, ".name"): kernel for kernel in _mappings(metadata, "amdhsa.kernels")}


def arguments_of(metadata: Mapping[str, Any]) -> tuple[Argument, ...]:
    arguments = []
    for a in _mappings(metadata, ".args"):
        name = _word(a, ".name") if ".name" in a else ""
        argument = Argument(name, _word(a, ".value_kind"), _number(a, ".offset"), _number(a, ".size"))
        if argument.offset + argument.size > MOST_ARGUMENT_BYTES or (argument.is_pointer and argument.size != 8):
            raise damaged(f"argument {name} has {argument.size} bytes at byte {argument.offset}")
        arguments.append(argument)
    return tuple(arguments)


def resources_of(metadata: Mapping[str, Any]) -> DeclaredResources:
    def number(name: str) -> int:
        return _number(metadata, name) if metadata.get(name) is not None else 0

    return DeclaredResources(
        number(".vgpr_count"),
        number(".agpr_count"),
        number(".sgpr_count"),
        number(".vgpr_spill_count"),
        number(".sgpr_spill_count"),
        number(".max_flat_workgroup_size"),
    )


def _mappings(metadata: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = metadata.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise damaged(f"{name} is no list of mappings")
    return found


def _word(metadata: Mapping[str, Any], name: str) -> str:
    if not isinstance(metadata.get(name), str | int):
        raise damaged(f"{name} is {metadata.get(name)!r}")
    return str(metadata[name])


def _number(metadata: Mapping[str, Any], name: str) -> int:
    found = metadata.get(name)
    if not isinstance(found, int) or not 0 <= found < LARGEST_NUMBER:
        raise damaged(f"{name} is {found!r}")
    return found


# -- YAML --------------------------------------------------------------------------------------------------------------


def read_yaml(text: str) -> dict[str, Any]:
    """The subset of YAML that LLVM writes: mappings, lists of `- `, plain scalars."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip() not in ("---", "...")]
    if not lines:
        return {}
    value, _ = _yaml_block([(len(line) - len(line.lstrip()), line.strip()) for line in lines], 0, 0)
    return value if isinstance(value, dict) else {}


def _yaml_block(lines: list[tuple[int, str]], at: int, depth: int) -> tuple[Any, int]:
    """Parse the mapping or list that begins at this line; return it and the line after it."""
    indent, text = lines[at]
    if depth > DEEPEST:
        raise damaged(f"more than {DEEPEST} nested mappings")
    if text.startswith("- ") or text == "-":
        return _yaml_list(lines, at, depth)
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent and not lines[at][1].startswith("- "):
        key, _, rest = lines[at][1].partition(":")
        at += 1
        if rest.strip():
            found[key.strip()] = _scalar(rest.strip())
        elif at < len(lines) and (lines[at][0] > indent or lines[at][1].startswith("- ")):
            found[key.strip()], at = _yaml_block(lines, at, depth + 1)
        else:
            found[key.strip()] = None
    return found, at


def _yaml_list(lines: list[tuple[int, str]], at: int, depth: int) -> tuple[list[Any], int]:
    indent, items = lines[at][0], []
    while at < len(lines) and lines[at][0] == indent and lines[at][1].startswith("-"):
        body = lines[at][1][1:].lstrip()
        inner = indent + len(lines[at][1]) - len(body)
        if ": " in body or body.endswith(":"):
            lines[at] = (inner, body)
            item, at = _yaml_block(lines, at, depth + 1)
        else:
            item, at = _scalar(body), at + 1
        items.append(item)
    return items, at


def _scalar(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        return [] if text == "[]" else text.strip("'\"")


# -- MessagePack -------------------------------------------------------------------------------------------------------


def read_msgpack(data: bytes) -> Any:
    """The subset of MessagePack that code objects hold."""
    return _Unpacker(data).value(0)


class _Unpacker:
    """Goes through the bytes, and says where they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise damaged(f"it ends after byte {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def text(self, size: int) -> str:
        return self.take(size).decode(errors="replace")

    def value(self, depth: int) -> Any:
        tag = self.number(1)
        match tag:
            case _ if tag < 0x80:
                return tag
            case _ if tag < 0x90:
                return self.mapping(tag & 15, depth)
            case _ if tag < 0xA0:
                return self.list(tag & 15, depth)
            case _ if tag < 0xC0:
                return self.text(tag & 31)
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return tag == 0xC3
            case 0xCC | 0xCD | 0xCE | 0xCF:
                return self.number(1 << (tag - 0xCC))
            case 0xD0 | 0xD1 | 0xD2 | 0xD3:
                return self.number(1 << (tag - 0xD0), signed=True)
            case 0xD9 | 0xDA | 0xDB:
                return self.text(self.number(1 << (tag - 0xD9)))
            case 0xDC | 0xDD:
                return self.list(self.number(2 << (tag - 0xDC)), depth)
            case 0xDE | 0xDF:
                return self.mapping(self.number(2 << (tag - 0xDE)), depth)
            case _ if tag >= 0xE0:
                return tag - 256
            case _:
                raise damaged(f"its byte {self.at - 1} is {tag:#x}")

    def list(self, count: int, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise damaged(f"more than {DEEPEST} nested lists")
        return [self.value(depth + 1) for _ in range(count)]

    def mapping(self, count: int, depth: int) -> dict[Any, Any]:
        items = self.list(2 * count, depth)
        if not all(isinstance(key, str) for key in items[::2]):
            raise damaged("a key is no text")
        return dict(zip(items[::2], items[1::2], strict=True))
