"""Kernels, blocks, ops and values: immutable, and with a text that `parse` reads back to an equal kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar

from tilewave.errors import NOWHERE, Loc
from tilewave.forks import cached_property
from tilewave.ir.remarks import Remark
from tilewave.ir.types import Type
from tilewave.ir.uses import Users, definitions, uses
from tilewave.records import dataclass

INDENT = "  "
BARE_WORD = re.compile(r"(?!(?:true|false|inf|nan)\Z)[A-Za-z_]\w*\Z", re.ASCII)
NO_WORD = re.compile(r"[^A-Za-z0-9_]")


def word(name: str) -> str:
    """Return a Python name as an identifier that every assembler accepts: ASCII letters, digits and _."""
    return NO_WORD.sub(lambda found: f"_{ord(found[0]):x}_", name)


@dataclass(frozen=True)
class Value:
    """A name bound once; the name is the identity, so the text loses nothing."""

    name: str
    type: Type

    def __eq__(self, other: object) -> bool:
        if self is other:  # fast path: most comparisons are of identical values
            return True
        return isinstance(other, Value) and self.name == other.name and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Block:
    """A region: its arguments, then its ops, the last of which may yield."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]

    @property
    def yielded(self) -> tuple[Value, ...]:
        """The values that the block yields; () where it ends without a `yield`."""
        return self.ops[-1].operands if self.ops and self.ops[-1].ends_blocks else ()

    @cached_property
    def all_ops(self) -> tuple[Op, ...]:
        """The ops of the block and of all regions inside it, outermost first, in program order."""
        if not any(op.blocks for op in self.ops):
            return self.ops
        return tuple([inner for op in self.ops for inner in (op, *(o for block in op.blocks for o in block.all_ops))])

    @cached_property
    def defs(self) -> Mapping[Value, Op]:
        """The op that defines each value, also inside regions; arguments of blocks have none."""
        return definitions(self.ops)

    @cached_property
    def users(self) -> Users[Value, Op]:
        """The ops that use each value, also inside regions; () for a value that no op uses."""
        return uses(self.ops)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the fields, and not the index, which is built again where it is asked for."""
        return {"args": self.args, "ops": self.ops}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        args = ", ".join(f"{v}: {v.type}" for v in self.args)
        return [f"({args}) {{", *(INDENT + line for op in self.ops for line in op.lines()), "}"]


Want = Callable[[bool, str], None]
"""`want(holds, why)` is called for each requirement; `why` is the message where it does not hold."""
Axis = tuple[Value, int]
"""One axis of an operand or a result."""
Places = Mapping[str, tuple[str, ...]]
"""For each field that holds a memory, the address spaces allowed; mbarriers and exchanges count as spaces too."""
NO_MEMORY: Places = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation: fields holding values are operands, fields holding blocks are regions, the rest are attributes.

    An op declares its properties next to its fields; verifier, passes and analyses read them instead of keeping lists
    of ops. An op that declares nothing is allowed on no level, is never moved, and is refused by name where more is
    needed.
    """

    levels: ClassVar[tuple[str, ...]] = ()
    """The levels on which the op is allowed: "tile", "lane"."""
    gives: ClassVar[int | None] = 0
    """How many results the op has; None: as many as its regions yield."""
    has_effect: ClassVar[bool] = True
    """Whether DCE keeps the op when its results are unused."""
    is_pure: ClassVar[bool] = False
    """Whether equal operands give equal results anywhere, at almost no cost: the op may be moved, merged by CSE, and
    rematerialized."""
    reads: ClassVar[Places] = NO_MEMORY
    writes: ClassVar[Places] = NO_MEMORY
    """The fields whose memories the op reads (`reads`) and writes. Memories in neither must be listed in `hands_on`."""
    hands_on: ClassVar[Places] = NO_MEMORY
    """The fields whose memories the op neither reads nor writes."""
    passes_lanes_by: ClassVar[bool] = False
    """Whether the hardware moves the data without using lanes' registers."""

    ends_blocks: ClassVar[bool] = False
    """Whether the op yields its block's values, and nothing may follow it."""

    waits: ClassVar[bool] = False
    """Whether the op waits for a pending operand, and gives it when it is complete."""

    results: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False, repr=False)

    def check(self, want: Want) -> None:
        """Check the operands, attributes and results against each other."""
        want(False, "does not say what it takes and gives, by a method check(want)")

    def check_cluster(self, members: int, want: Want) -> None:
        """Check the op against the size of a cluster, `members` workgroups; most ops need no check."""

    def check_wave(self, lanes: int, want: Want) -> None:
        """Check the op against the `lanes` of a wave; most ops need no check."""

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...] | None:
        """Return pairs of axes of operands and results that must be split together; the op then applies to each part.

        An axis in no pair can be split independently. None: not declared, and nothing may be split.
        """
        return None

    @property
    def contracted(self) -> tuple[Axis, ...]:
        """The axes of operands along which elements are combined, or depend on each other."""
        return ()

    @property
    def is_under_way(self) -> bool:
        """Whether the op only starts here and its result is complete later: only an op with `waits` may use that."""
        return False

    @property
    def goes_on_with(self) -> tuple[Value, ...]:
        """Operands that may still be pending, because this op executes after the ops that make them."""
        return ()

    @property
    def read(self) -> tuple[Value, ...]:
        """The memories that the op reads."""
        return tuple(getattr(self, name) for name in self.reads)

    @property
    def written(self) -> tuple[Value, ...]:
        """The memories that the op writes."""
        return tuple(getattr(self, name) for name in self.writes)

    def attributes(self) -> tuple[tuple[type, str], ...]:
        """Return the fields that are neither operands nor regions; 1, 1.0 and True differ here, unlike in Python."""
        return self._attributes

    @cached_property
    def _attributes(self) -> tuple[tuple[type, str], ...]:
        parts = [getattr(self, name) for name in _attribute_names(type(self))]
        return tuple([(type(part), repr(part)) for part in parts])

    def operand_parts(self) -> tuple[Any, ...]:
        """Return the operands field by field: values, and tuples of values."""
        return tuple([getattr(self, name) for name in operand_names(type(self))])

    @classmethod
    def word(cls) -> str:
        """Return the op's name in the text."""
        if cls not in _WORDS:
            _WORDS[cls] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
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
        groups = [part if isinstance(part, tuple) else (part,) for part in self.operand_parts()]
        return tuple([v for group in groups for v in group if isinstance(v, Value)])

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple([part for part in self._regions() if isinstance(part, Block)])

    def _regions(self) -> list[Any]:
        return [getattr(self, name) for name in block_names(type(self))]

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
"""The annotations, as text, of fields that hold operands."""


_WORDS: dict[type[Op], str] = {}
_FIELDS: dict[type[Op], dict[str, Field[Any]]] = {}
_FIELD_TYPES: dict[type[Op], dict[str, str]] = {}
_OPERAND_NAMES: dict[type[Op], tuple[str, ...]] = {}
_BLOCK_NAMES: dict[type[Op], tuple[str, ...]] = {}
_ATTRIBUTE_NAMES: dict[type[Op], tuple[str, ...]] = {}


def _fields(cls: type[Op]) -> dict[str, Field[Any]]:
    if cls not in _FIELDS:
        _FIELDS[cls] = {f.name: f for f in fields(cls) if f.name not in ("results", "loc")}
    return _FIELDS[cls]


def part_names(cls: type[Op]) -> tuple[str, ...]:
    """Return the fields of an op class in order, without `results` and `loc`."""
    return tuple(_fields(cls))


def operand_names(cls: type[Op]) -> tuple[str, ...]:
    """Return the fields of an op class that hold values, or tuples of values."""
    if cls not in _OPERAND_NAMES:
        _OPERAND_NAMES[cls] = tuple(name for name in _fields(cls) if field_type(cls, name) in OPERANDS)
    return _OPERAND_NAMES[cls]


def block_names(cls: type[Op]) -> tuple[str, ...]:
    """Return the fields of an op class that hold regions."""
    if cls not in _BLOCK_NAMES:
        _BLOCK_NAMES[cls] = tuple(name for name in _fields(cls) if field_type(cls, name) == "Block")
    return _BLOCK_NAMES[cls]


def _attribute_names(cls: type[Op]) -> tuple[str, ...]:
    if cls not in _ATTRIBUTE_NAMES:
        names = (name for name in _fields(cls) if field_type(cls, name) not in (*OPERANDS, "Block"))
        _ATTRIBUTE_NAMES[cls] = tuple(names)
    return _ATTRIBUTE_NAMES[cls]


def is_operand_list(cls: type[Op], name: str) -> bool:
    return field_type(cls, name) == "tuple[Value, ...]"


def field_type(cls: type[Op], name: str) -> str:
    """Return the annotation of a field as text; it decides how the field is parsed."""
    if cls not in _FIELD_TYPES:
        _FIELD_TYPES[cls] = {f.name: _spelled(f.type) for f in _fields(cls).values()}
    return _FIELD_TYPES[cls][name]


def _spelled(kind: Any) -> str:
    """Return an annotation's text, whether or not the module has `from __future__ import annotations`."""
    if isinstance(kind, str):
        return kind
    whole = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return re.sub(r"(?:\w+\.)+(\w)", r"\1", whole)


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


BATCH_INVARIANT = "one_order"


@dataclass(frozen=True)
class Kernel:
    """The program of one workgroup, and the number of workgroups; the body's arguments are given at the call."""

    name: str
    body: Block
    workgroups: int | str
    """A number, or the name of an index that is known at the launch."""
    level: str = "tile"
    waves: tuple[int, ...] = ()
    lanes: int = 0
    matrix: str = ""
    cluster: int = 1
    """Neighbouring workgroups that run concurrently and access each other's shared memory."""
    resident: int = 1
    """The workgroups that an SM or CU should hold at once (occupancy); it limits the registers of a lane."""
    vector_bytes: int = 16
    """The widest load or store of a lane, in bytes, where it is not staged; rows begin and end at multiples of it."""
    wide_rows: tuple[tuple[str, int], ...] = ()
    """The memories whose rows begin and end at multiples of more bytes, and of how many: their widest access."""
    limits: tuple[tuple[str, int, int], ...] = ()
    """The least and the largest value of each dynamic size that is limited."""
    contracts: tuple[tuple[str, ...], ...] = ()
    """What the author promises of arrays of indices: a name, what they are indices into, and `unique`, `sorted`."""
    sums: str = ""
    """`one_order`: deterministic; the order of each sum depends on K, the tile and the dtype alone."""
    remarks: tuple[Remark, ...] = field(default=(), compare=False)
    """Remarks: what the last pass did not do, and why; like locations, not part of the text."""

    @property
    def defs(self) -> Mapping[Value, Op]:
        """The op that defines each value; arguments have none."""
        return self.body.defs

    @property
    def users(self) -> Mapping[Value, tuple[Op, ...]]:
        """The ops that use each value, `yield` included; () for a value that no op uses."""
        return self.body.users

    @property
    def workgroup_count(self) -> int:
        """The number of workgroups, where it is static."""
        if isinstance(self.workgroups, str):
            raise NotImplementedError(f"{self.name}: how many workgroups run it is known only at the launch")
        return self.workgroups

    def vector_bytes_of(self, memory: Value) -> int:
        """Return the widest load or store of a lane in a memory."""
        return dict(self.wide_rows).get(memory.name, self.vector_bytes)

    def with_remarks(self, *reasons: Remark) -> Kernel:
        """Return the kernel with further remarks, each of them once."""
        return replace(self, remarks=tuple(dict.fromkeys((*self.remarks, *reasons)))) if reasons else self

    @staticmethod
    def attribute_names() -> tuple[str, ...]:
        """Return the names of the attributes printed in braces after a kernel's name."""
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
