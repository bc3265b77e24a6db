"""Parse a kernel's text. All ops share one syntax, so a new op needs no new grammar."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from tilewave.ir.core import OPERANDS, Block, Kernel, Op, Value, field_type, has_default, is_operand_list, part_names
from tilewave.ir.ops import VOCABULARY
from tilewave.ir.tokens import DEEPEST, LONGEST_LIST, ParseError, Token, Tokens
from tilewave.ir.types import (
    DTYPES,
    SPACES,
    Accumulator,
    Columns,
    DType,
    Exchange,
    Mbarriers,
    Memory,
    Padded,
    Panels,
    Placement,
    Scalar,
    Swizzled,
    SwizzledByBits,
    Tile,
    Type,
    Vector,
)
from tilewave.renamed import IR

__all__ = ["ParseError", "parse"]
T = TypeVar("T")

SHAPED = re.compile(r"([0-9]+|\{\w+\})((?:x[0-9]+|x\{\w+\})*)(?:x([a-z][a-z0-9]*))?", re.ASCII)
EXTENT = re.compile(r"[0-9]+|\{(\w+)\}", re.ASCII)
PLACED = re.compile(r"(pad|columns|xor|bits|panels)\(([0-9]+(?:, [0-9]+)*)\)", re.ASCII)
HELD: dict[str, Callable[[tuple[int, ...], DType], Type]] = {
    "tile": Tile,
    "accumulator": Accumulator,
    "vector": Vector,
    "mbarriers": Mbarriers,
    "exchange": Exchange,
}
PLACEMENTS: dict[str, tuple[Callable[..., Placement], Container[int]]] = {
    "pad": (Padded, (1,)),
    "columns": (Columns, (1,)),
    "xor": (Swizzled, (3,)),
    "bits": (lambda chunk, *moves: SwizzledByBits(chunk, moves), range(2, 32)),
    "panels": (Panels, (4,)),
}
"""Placements by name, with the number of their parameters."""


def parse(text: str, file: str = "<text>") -> Kernel:
    return _Parser(text, file).kernel()


def number(text: str) -> int | float:
    if text.removeprefix("-").isdigit():
        return int(text)
    return math.nan if text.endswith("nan") else float(text)  # the one nan, so that equal texts are equal kernels


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.tokens = Tokens(text, file)
        self.fail = self.tokens.fail
        self.scope: dict[str, Value] = {}
        self.types: dict[str, Type] = {}
        self.depth = 0

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.named("@", "a kernel's name")
        at = self.tokens.now.at
        attributes = self.attributes()
        known = set(Kernel.attribute_names())
        if wrong := sorted(attributes.keys() - known):
            self.fail(f"a kernel has no attribute {wrong[0]!r}; it has {', '.join(sorted(known))}", at)
        if "workgroups" not in attributes:
            self.fail("a kernel says how many workgroups run it: {workgroups = 1}", at)
        kernel = Kernel(name, self.block(), **attributes)
        if self.tokens.now.kind != "end":
            self.fail(f"expected the end, found {self.tokens.now}", self.tokens.now.at)
        return kernel

    def block(self) -> Block:
        self.expect("(")
        args = self.listed(")", self.binding)
        self.expect("{")
        ops = []
        with self.deeper("blocks"):
            while not self.accept("}"):
                ops.append(self.op())
        return Block(args, tuple(ops))

    def op(self) -> Op:
        at = self.tokens.now.at
        loc = self.tokens.loc(at)
        names = self.result_names()
        word = self.tokens.take()
        cls = VOCABULARY.get(IR.get(word.text, word.text)) if word.kind == "word" else None
        if cls is None:
            if word.kind == "end":
                self.fail("expected an op or '}', found the end", word.at)
            self.fail(f"no op is called {word}; the ops are {', '.join(sorted(VOCABULARY))}", word.at)
        self.expect("(")
        operands = list(self.listed(")", self.operand))
        attributes = self.attributes()
        types = [self.type() for _ in names if self.accept(":") or self.accept(",")]
        if len(types) != len(names):
            self.fail(f"{cls.word()} has {len(names)} results and {len(types)} types", at)
        blocks = [self.block() for _ in iter(lambda: self.accept("do"), False)]
        results = tuple(self.define(n, t) for n, t in zip(names, types, strict=True))
        parts = self.assemble(cls, operands, attributes, blocks, at)
        build: Callable[..., Op] = cls
        return build(**parts, results=results, loc=loc)

    def assemble(
        self, cls: type[Op], operands: list[Any], attributes: dict[str, Any], blocks: list[Block], at: int
    ) -> dict[str, Any]:
        """Return the op with each field set from the text."""
        parts: dict[str, Any] = {}
        for name in part_names(cls):
            kind = field_type(cls, name)
            if kind == "Block":
                parts |= {name: blocks.pop(0)} if blocks else {}
            elif kind not in OPERANDS:
                parts |= {name: attributes.pop(name)} if name in attributes else {}
            elif operands and isinstance(operands[0], tuple) == is_operand_list(cls, name):
                parts[name] = operands.pop(0)
            if name not in parts and not has_default(cls, name):
                self.fail(f"{cls.word()} needs {name}", at)
        if operands or attributes or blocks:
            left = [*attributes, *map(str, operands), *("a block" for _ in blocks)]
            self.fail(f"{cls.word()} does not take {left[0]}", at)
        return parts

    def result_names(self) -> list[str]:
        names: list[str] = []
        while self.tokens.now.text.startswith("%"):
            names.append(self.tokens.take().text[1:])
            self.limit(names)
            if not self.accept(","):
                self.expect("=")
                break
        return names

    def operand(self) -> Value | tuple[Value, ...]:
        return self.listed("]", self.use) if self.accept("[") else self.use()

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for at, key, value in self.listed("}", self.attribute) if self.accept("{") else ():
            if key in found:
                self.fail(f"{key} is given twice", at)
            found[key] = value
        return found

    def attribute(self) -> tuple[int, str, Any]:
        key = self.tokens.take()
        if key.kind != "word":
            self.fail(f"expected the name of an attribute, found {key}", key.at)
        self.expect("=")
        return key.at, key.text, self.literal()

    def literal(self) -> Any:
        if self.accept("["):
            with self.deeper("lists"):
                return self.listed("]", self.literal)
        token = self.tokens.take()
        is_word = token.kind == "word" and "<" not in token.text
        if not is_word and token.kind not in ("quoted", "number"):
            self.fail(f"expected a number, a word or a list, found {token}", token.at)
        if token.kind == "number":
            return number(token.text)
        return token.text == "true" if is_word and token.text in ("true", "false") else token.text

    def type(self) -> Type:
        token = self.tokens.take()
        found = self.types.get(token.text)  # cached, because a text repeats few types many times
        if found is None:
            found = self.types[token.text] = self.new_type(token)
        return found

    def new_type(self, token: Token) -> Type:
        kind, _, rest = token.text.partition("<")
        kind = IR.get(kind, kind)
        if not rest:
            return Scalar(self.dtype(token.text, token.at))
        if kind not in HELD and kind != "memory":
            self.fail(f"no type is called {kind!r}; the types are {', '.join([*HELD, 'memory'])}", token.at)
        inner, _, where = rest[:-1].partition(", ")
        found = SHAPED.fullmatch(inner)
        if not found:
            self.fail(f"{token.text} has no shape", token.at)
        if kind == "mbarriers" and found[3]:
            self.fail(f"mbarriers count arrivals and bytes, and hold no {found[3]}", token.at)
        extents = tuple(one[1] or int(one[0]) for one in EXTENT.finditer(found[1] + found[2]))
        dtype = self.dtype(found[3] or ("i64" if kind == "mbarriers" else ""), token.at)
        if kind in HELD:
            if where:
                self.fail(f"a {kind} is nowhere: {where} belongs to a memory", token.at)
            shape = tuple(extent for extent in extents if isinstance(extent, int))
            if len(shape) < len(extents):
                self.fail(f"the sizes of a {kind} are numbers; only a memory's are known at the launch", token.at)
            return HELD[kind](shape, dtype)
        space, _, placed = where.partition(", ")
        if space not in SPACES:
            self.fail(f"a memory is in one of {', '.join(SPACES)}, not in {space!r}", token.at)
        return Memory(extents, dtype, space, self.placement(placed, token.at) if placed else None)

    def placement(self, word: str, at: int) -> Placement:
        found = PLACED.fullmatch(word)
        kind, counts = PLACEMENTS[found[1]] if found else (Padded, ())
        numbers = tuple(map(int, found[2].split(", "))) if found else ()
        if len(numbers) not in counts or not found:
            known = (
                "pad(elements), columns(elements), xor(chunk, period, every), bits(chunk, moves…) or "
                "panels(width, chunk, period, every)"
            )
            self.fail(f"a placement is {known}, not {word!r}", at)
        return kind(*numbers)

    def dtype(self, word: str, at: int) -> DType:
        if word not in DTYPES:
            self.fail(f"no dtype is called {word!r}; the dtypes are {', '.join(DTYPES)}", at)
        return DTYPES[word]

    def binding(self) -> Value:
        name = self.named("%", "a value's name")
        self.expect(":")
        return self.define(name, self.type())

    def define(self, name: str, type: Type) -> Value:
        self.scope[name] = Value(name, type)
        return self.scope[name]

    def use(self) -> Value:
        name = self.named("%", "a value's name")
        if name not in self.scope:
            self.fail(f"%{name} is used before it is defined", self.tokens.before.at)
        return self.scope[name]

    def named(self, sign: str, what: str) -> str:
        token = self.tokens.take()
        if not token.text.startswith(sign) or token.kind != "value":
            self.fail(f"{what} begins with {sign}, not {token}", token.at)
        return token.text[1:]

    # -- tokens

    def listed(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        items: list[T] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
            self.limit(items)
        return tuple(items)

    def limit(self, items: Sized) -> None:
        if len(items) > LONGEST_LIST:
            self.fail(f"a list has more than {LONGEST_LIST} items", self.tokens.before.at)

    @contextmanager
    def deeper(self, what: str) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"more than {DEEPEST} nested {what} here", self.tokens.before.at)
        yield
        self.depth -= 1

    def accept(self, want: str) -> bool:
        found = self.tokens.now.text == want and self.tokens.now.kind != "quoted"
        if found:
            self.tokens.take()
        return found

    def expect(self, want: str) -> None:
        if not self.accept(want):
            self.fail(f"expected {want!r}, found {self.tokens.now}", self.tokens.now.at)
