"""Kernels, blocks, ops and values: immutable, and with a text that `parse` reads back to an equal kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from tilewave.errors import NOWHERE, Loc
from tilewave.forks import cached_property
from tilewave.ir.reasons import Declined
from tilewave.ir.types import Type

INDENT = "  "
BARE_WORD = re.compile(r"(?!(?:true|false|inf|nan)\Z)[A-Za-z_]\w*\Z", re.ASCII)


def word(name: str) -> str:
    """A Python name as a word that every assembler takes: letters, digits and _ of ASCII."""
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"_{ord(found[0]):x}_", name)


@dataclass(frozen=True)
class Value:
    """A name bound once; the name is the identity, so the text loses nothing."""

    name: str
    type: Type

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Block:
    """A region: its arguments, then its ops, the last of which may yield."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        args = ", ".join(f"{v}: {v.type}" for v in self.args)
        return [f"({args}) {{", *(INDENT + line for op in self.ops for line in op.lines()), "}"]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One step: fields holding values are operands, fields holding blocks are regions, the rest are attributes."""

    results: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False, repr=False)

    @classmethod
    def word(cls) -> str:
        """How the text spells this op."""
        if cls not in _WORDS:
            _WORDS[cls] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return _WORDS[cls]

    @property
    def name(self) -> str:
        return self.word()

    @property
    def result(self) -> Value:
        (only,) = self.results
        return only

    def parts(self) -> Iterator[tuple[str, object]]:
        return ((name, getattr(self, name)) for name in part_names(type(self)))

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        groups = (part if isinstance(part, tuple) else (part,) for _, part in self.parts())
        return tuple(v for group in groups for v in group if isinstance(v, Value))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(part for _, part in self.parts() if isinstance(part, Block))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        lines = [self._head()]
        for block in self.blocks:
            first, *rest = block.lines()
            lines[-1] += f" do {first}"
            lines += rest
        return lines

    def _head(self) -> str:
        args, attributes = [], []
        for name, part in self.parts():
            if isinstance(part, Value):
                args.append(str(part))
            elif is_operand_list(type(self), name) and (part or not has_default(type(self), name)):
                args.append(f"[{', '.join(map(str, part))}]")  # type: ignore[call-overload]
            elif not isinstance(part, Block) and part != default_of(type(self), name):
                attributes.append(f"{name} = {attribute_text(part)}")
        text = f"{self.name}({', '.join(args)})" + (f" {{{', '.join(attributes)}}}" if attributes else "")
        if self.results:
            names = ", ".join(map(str, self.results))
            types = ", ".join(str(v.type) for v in self.results)
            text = f"{names} = {text} : {types}"
        return text


OPERANDS = ("Value", "tuple[Value, ...]")
"""The types of fields, as `ops.py` spells them, that hold operands."""


_WORDS: dict[type[Op], str] = {}
_FIELDS: dict[type[Op], dict[str, Field[Any]]] = {}


def _fields(cls: type[Op]) -> dict[str, Field[Any]]:
    if cls not in _FIELDS:
        _FIELDS[cls] = {f.name: f for f in fields(cls) if f.name not in ("results", "loc")}
    return _FIELDS[cls]


def part_names(cls: type[Op]) -> tuple[str, ...]:
    """The fields of an op beside `results` and `loc`, in order."""
    return tuple(_fields(cls))


def is_operand_list(cls: type[Op], name: str) -> bool:
    return field_type(cls, name) == "tuple[Value, ...]"


def field_type(cls: type[Op], name: str) -> str:
    """The type of a field as `ops.py` spells it; it decides how the text is read back."""
    return str(_fields(cls)[name].type)


def default_of(cls: type[Op], name: str) -> object:
    return _fields(cls)[name].default


def has_default(cls: type[Op], name: str) -> bool:
    return default_of(cls, name) is not MISSING


def attribute_text(part: object) -> str:
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, str):
        return part if BARE_WORD.match(part) else json.dumps(part)
    if isinstance(part, tuple):
        return f"[{', '.join(map(attribute_text, part))}]"
    assert isinstance(part, (int, float)), f"an attribute is a number, a word or a list, not {part!r}"
    return repr(part)


@dataclass(frozen=True)
class Kernel:
    """What one workgroup does, and how many there are; the body's arguments are given at the call."""

    name: str
    body: Block
    workgroups: int
    level: str = "tile"
    waves: tuple[int, ...] = ()
    lanes: int = 0
    matrix: str = ""
    cluster: int = 1
    """Neighbouring workgroups that run side by side and see each other's shared memory."""
    declined: tuple[Declined, ...] = field(default=(), compare=False)
    """What the pass that made it left as it was, and why: like locations no part of its text."""

    def declining(self, *reasons: Declined) -> Kernel:
        """The same kernel, from a pass that left these as they were; each is said once."""
        return replace(self, declined=tuple(dict.fromkeys((*self.declined, *reasons)))) if reasons else self

    @staticmethod
    def attribute_names() -> tuple[str, ...]:
        """What stands in braces behind a kernel's name."""
        return tuple(f.name for f in fields(Kernel) if f.compare and f.name not in ("name", "body"))

    def __str__(self) -> str:
        defaults = {f.name: f.default for f in fields(self)}
        attributes = ", ".join(
            f"{name} = {attribute_text(getattr(self, name))}"
            for name in self.attribute_names()
            if getattr(self, name) != defaults[name]
        )
        return f"kernel @{self.name} {{{attributes}}} {self.body}\n"

    __repr__ = __str__
