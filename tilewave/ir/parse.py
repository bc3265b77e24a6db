"""Read a kernel back from its text. One form serves every op, so a new op needs no new grammar."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from tilewave.errors import Loc, TilewaveError
from tilewave.ir.core import Block, Kernel, Op, Value, field_type, has_default, is_operand_list, part_names
from tilewave.ir.ops import VOCABULARY
from tilewave.ir.types import (
    DTYPES,
    SPACES,
    Accumulator,
    DType,
    Exchange,
    Memory,
    Padded,
    Placement,
    Scalar,
    Signals,
    Swizzled,
    Tile,
    Type,
    Vector,
)

T = TypeVar("T")

TOKEN = re.compile(
    r"""\s*(?://[^\n]*\s*)*                                   # blanks and comments
    (%\w+|@\w+                                                # values and kernels
    |"(?:[^"\\\n]|\\.)*"                                      # quoted words
    |-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b|nan\b)  # numbers
    |(?:tile|memory|accumulator|vector|signals|exchange)<[^>\n]*>|\w+                    # types and words
    |[(){}\[\],:=])""",
    re.VERBOSE,
)
HELD: dict[str, Callable[[tuple[int, ...], DType], Type]] = {
    "tile": Tile,
    "accumulator": Accumulator,
    "vector": Vector,
    "signals": Signals,
    "exchange": Exchange,
}
NUMBER = re.compile(r"-?(\d|inf$|nan$)")


class ParseError(TilewaveError):
    """The text is no kernel."""


def parse(text: str, file: str = "<text>") -> Kernel:
    return _Parser(text, file).kernel()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.tokens: list[tuple[str, int]] = []
        self.next = 0
        self.scope: dict[str, Value] = {}
        at = 0
        while found := TOKEN.match(text, at):
            self.tokens.append((found[1], found.start(1)))
            at = found.end()
        rest = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text[at:])
        if rest.strip():
            at += len(rest) - len(rest.lstrip())
            self.fail(f"{text[at]!r} begins nothing that a kernel may hold", at)

    def kernel(self) -> Kernel:
        self.take("kernel")
        name = self.take()
        if not name.startswith("@"):
            self.fail(f"a kernel's name begins with @, not {name!r}", self.here(-1))
        at = self.here()
        attributes = dict(self.until("}", self.attribute)) if self.accept("{") else {}
        known = {f.name for f in fields(Kernel)} - {"name", "body"}
        if wrong := sorted(attributes.keys() - known):
            self.fail(f"a kernel has no attribute {wrong[0]!r}; it has {', '.join(sorted(known))}", at)
        if "workgroups" not in attributes:
            self.fail("a kernel says how many workgroups run it: {workgroups = 1}", at)
        kernel = Kernel(name[1:], self.block(), **attributes)
        if self.peek():
            self.fail(f"expected the end, found {self.peek()!r}", self.here())
        return kernel

    def block(self) -> Block:
        self.take("(")
        args = self.until(")", self.binding)
        self.take("{")
        return Block(args, self.until("}", self.op))

    def op(self) -> Op:
        at = self.here()
        names = self.result_names()
        word = self.take()
        if word not in VOCABULARY:
            self.fail(f"no op is called {word!r}; the ops are {', '.join(sorted(VOCABULARY))}", self.here(-1))
        self.take("(")
        operands = list(self.until(")", self.operand))
        attributes = dict(self.until("}", self.attribute)) if self.accept("{") else {}
        types = [self.type() for _ in names if self.accept(":") or self.accept(",")]
        if len(types) != len(names):
            self.fail(f"{word} has {len(names)} results and {len(types)} types", at)
        blocks = [self.block() for _ in iter(lambda: self.accept("do"), False)]
        results = tuple(self.define(n, t) for n, t in zip(names, types, strict=True))
        parts = self.assemble(VOCABULARY[word], operands, attributes, blocks, at)
        build: Callable[..., Op] = VOCABULARY[word]
        return build(**parts, results=results, loc=self.loc(at))

    def assemble(
        self, cls: type[Op], operands: list[Any], attributes: dict[str, Any], blocks: list[Block], at: int
    ) -> dict[str, Any]:
        """Give each field of an op what the text holds for it."""
        parts: dict[str, Any] = {}
        for name in part_names(cls):
            is_list = is_operand_list(cls, name)
            if field_type(cls, name) == "Block" and blocks:
                parts[name] = blocks.pop(0)
            elif name in attributes:
                parts[name] = attributes.pop(name)
            elif (
                (is_list or field_type(cls, name) == "Value") and operands and isinstance(operands[0], tuple) == is_list
            ):
                parts[name] = operands.pop(0)
            elif not has_default(cls, name):
                self.fail(f"{cls.word()} needs {name}", at)
        if operands or attributes or blocks:
            left = [*attributes, *map(str, operands), *("a block" for _ in blocks)]
            self.fail(f"{cls.word()} does not take {left[0]}", at)
        return parts

    def result_names(self) -> list[str]:
        names: list[str] = []
        while self.peek().startswith("%"):
            names.append(self.take()[1:])
            if not self.accept(","):
                self.take("=")
        return names

    def operand(self) -> Value | tuple[Value, ...]:
        return self.until("]", self.use) if self.accept("[") else self.use()

    def attribute(self) -> tuple[str, Any]:
        key = self.take()
        self.take("=")
        return key, self.literal()

    def literal(self) -> Any:
        if self.accept("["):
            return self.until("]", self.literal)
        raw = self.take()
        if raw in ("true", "false"):
            return raw == "true"
        if raw.startswith('"'):
            return json.loads(raw)
        if raw == "nan":
            return math.nan  # the one object, so that equal texts are equal kernels
        if NUMBER.match(raw):
            return int(raw) if re.fullmatch(r"-?\d+", raw) else float(raw)
        return raw

    def type(self) -> Type:
        at = self.here()
        word = self.take()
        kind, _, rest = word.partition("<")
        if not rest:
            return Scalar(self.dtype(word, at))
        inner, _, where = rest[:-1].partition(", ")
        found = re.fullmatch(r"(\d+(?:x\d+)*)(?:x([a-z]\w*))?", inner)
        if not found:
            self.fail(f"{word} has no shape", at)
        extents, dtype = tuple(map(int, found[1].split("x"))), found[2] or ("i64" if kind == "signals" else "")
        if kind in HELD:
            return HELD[kind](extents, self.dtype(dtype, at))
        space, _, placed = where.partition(", ")
        if space not in SPACES:
            self.fail(f"a memory is in one of {', '.join(SPACES)}, not in {space!r}", at)
        return Memory(extents, self.dtype(dtype, at), space, self.placement(placed, at) if placed else None)

    def placement(self, word: str, at: int) -> Placement:
        numbers = tuple(map(int, re.findall(r"\d+", word)))
        if re.fullmatch(r"pad\(\d+\)", word):
            return Padded(*numbers)
        if not re.fullmatch(r"xor\(\d+, \d+, \d+\)", word):
            self.fail(f"rows lie as pad(elements) or xor(chunk, period, every), not as {word!r}", at)
        return Swizzled(*numbers)

    def dtype(self, word: str, at: int) -> DType:
        if word not in DTYPES:
            self.fail(f"no dtype is called {word!r}; the dtypes are {', '.join(DTYPES)}", at)
        return DTYPES[word]

    def binding(self) -> Value:
        name = self.take()
        if not name.startswith("%"):
            self.fail(f"a value's name begins with %, not {name!r}", self.here(-1))
        self.take(":")
        return self.define(name[1:], self.type())

    def define(self, name: str, type: Type) -> Value:
        self.scope[name] = Value(name, type)
        return self.scope[name]

    def use(self) -> Value:
        name = self.take()
        if name[1:] not in self.scope or not name.startswith("%"):
            self.fail(f"{name} is used before it is defined", self.here(-1))
        return self.scope[name[1:]]

    # -- tokens

    def until(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        items = []
        while not self.accept(close):
            items.append(item())
            self.accept(",")
        return tuple(items)

    def peek(self) -> str:
        return self.tokens[self.next][0] if self.next < len(self.tokens) else ""

    def accept(self, want: str) -> bool:
        found = self.peek() == want
        self.next += found
        return found

    def take(self, want: str = "") -> str:
        got = self.peek()
        if not got or (want and got != want):
            self.fail(f"expected {want or 'more'!r}, found {got or 'the end'!r}", self.here())
        self.next += 1
        return got

    def here(self, offset: int = 0) -> int:
        at = self.next + offset
        return self.tokens[at][1] if at < len(self.tokens) else len(self.text)

    def loc(self, at: int) -> Loc:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1)
        return Loc(self.file, line, column, column + 1)

    def fail(self, why: str, at: int) -> NoReturn:
        loc = self.loc(at)
        line = self.text.split("\n")[loc.line - 1]
        raise ParseError(f"{why}\n  {self.file}:{loc.line}\n      {line}\n      {' ' * loc.column}^")
