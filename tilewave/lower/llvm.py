"""LLVM IR as text: modules, functions, loops. Building text is forty times faster than building objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from tilewave.errors import NOWHERE, Loc
from tilewave.records import dataclass

Typed = tuple[str, str]
"""An LLVM type and the name of a value of it."""


@dataclass
class Module:
    """Functions, the declarations they need and constant tables, each kept once."""

    functions: list[str] = field(default_factory=list)
    declarations: dict[str, None] = field(default_factory=dict)
    structures: dict[str, str] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    """Internal functions and tables by name, each emitted at its first use."""

    def declare(self, declaration: str) -> None:
        self.declarations[f"declare {declaration}"] = None

    def structure(self, kinds: Sequence[str]) -> str:
        """Return the name of a struct type, which is shorter than its fields where a line names it for each of them."""
        spelled = ", ".join(kinds)
        name = self.structures.setdefault(spelled, f"%struct.{len(self.structures)}")
        self.declarations[f"{name} = type {{ {spelled} }}"] = None
        return name

    def helper(self, name: str, write: Callable[[], str]) -> str:
        """Return `@name`; `write` emits it the first time."""
        if name not in self.helpers:
            self.helpers[name] = ""  # a helper may refer to itself while it is emitted
            self.helpers[name] = write()
        return f"@{name}"

    def __str__(self) -> str:
        return "\n".join([*self.declarations, *self.helpers.values(), *self.functions]) + "\n"


class LlvmFunction:
    """A function that is emitted block after block."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Typed], result: str = "void") -> None:
        self.module, self.name, self.parameters, self.result = module, name, list(parameters), result
        self.lines: list[str] = []
        self.count = 0
        self.label = ".entry"
        self.loc = NOWHERE
        """The source line of the instructions that are emitted next."""
        self.beginning: dict[str, str] = {}
        """Lines at the beginning of the function's entry block, each once."""

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        """Emit the instructions of a with-block for that source line."""
        before, self.loc = self.loc, loc
        yield
        self.loc = before

    def fresh(self, hint: str = "t") -> str:
        self.count += 1
        return f"%.{hint}{self.count}"

    def value(self, text: str) -> str:
        """Emit `text` and return the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def room(self, name: str, text: str) -> str:
        """Allocate stack memory once, in the entry block."""
        return self.at_first(name, text)

    def at_first(self, name: str, text: str) -> str:
        """Compute a value once, in the entry block."""
        self.beginning[name] = f"  {name} = {text}"
        return name

    def do_at_first(self, text: str) -> None:
        self.beginning[text] = f"  {text}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def call(self, result: str, function: str, arguments: Sequence[Typed], attributes: str = "") -> str:
        """Call a function and declare it for these types."""
        self.module.declare(f"{result} @{function}({', '.join(t for t, _ in arguments)})")
        given = ", ".join(f"{t} {v}" for t, v in arguments)
        return self.value(f"call {result} @{function}({given}) {attributes}".rstrip())

    def new_label(self, hint: str) -> str:
        self.count += 1
        return f".{hint}{self.count}"

    def start(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def when(self, condition: str, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Emit a branch to one block or the other."""
        first, second, after = (self.new_label(hint) for hint in ("then", "else", "after"))
        self.branch(condition, first, second)
        for label, write in ((first, yes), (second, no)):
            self.start(label)
            write()
            self.jump(after)
        self.start(after)

    def choose(self, condition: str, yes: Callable[[], list[Typed]], no: Callable[[], list[Typed]]) -> list[Typed]:
        """Emit a branch and return the values of the block that ran."""
        first, second, after = (self.new_label(hint) for hint in ("then", "else", "after"))
        self.branch(condition, first, second)
        arms = []
        for label, write in ((first, yes), (second, no)):
            self.start(label)
            arms.append((write(), self.label))
            self.jump(after)
        self.start(after)
        (yeses, yes_label), (noes, no_label) = arms
        return [
            (kind, self.value(f"phi {kind} [ {a}, %{yes_label} ], [ {b}, %{no_label} ]"))
            for (kind, a), (_, b) in zip(yeses, noes, strict=True)
        ]

    def loop(
        self, trips: str, init: Sequence[Typed], body: Callable[[str, list[Typed]], Sequence[Typed]]
    ) -> list[Typed]:
        """Emit `for i in range(trips): carried = body(i, carried)` and return the last carried values."""

        def holds(carried: list[Typed]) -> str:
            return self.value(f"icmp slt i64 {carried[0][1]}, {trips}")

        def step(carried: list[Typed]) -> list[Typed]:
            following = body(carried[0][1], carried[1:])
            count = self.value(f"add nuw nsw i64 {carried[0][1]}, 1")
            return [("i64", count), *following]

        return self.loop_while([("i64", "0"), *init], holds, step)[1:]

    def loop_while(
        self,
        init: Sequence[Typed],
        holds: Callable[[list[Typed]], str],
        body: Callable[[list[Typed]], Sequence[Typed]],
    ) -> list[Typed]:
        """Emit `while holds(carried): carried = body(carried)` and return the last carried values."""
        before = self.label
        head, inside, after = (self.new_label(hint) for hint in ("head", "body", "end"))
        carried = [(kind, self.fresh("c")) for kind, _ in init]
        self.jump(head)
        self.start(head)
        at = len(self.lines)
        condition = holds(carried)
        self.branch(condition, inside, after)
        self.start(inside)
        following = body(carried)
        latch = self.label
        self.jump(head)
        self.lines[at:at] = [
            f"  {name} = phi {kind} [ {first}, %{before} ], [ {later}, %{latch} ]"
            for (kind, name), (_, first), (_, later) in zip(carried, init, following, strict=True)
        ]
        self.start(after)
        return carried

    def finish(self, returned: str = "void", attributes: str = "nounwind", linkage: str = "") -> str:
        """Return the text of the function."""
        self.do(f"ret {returned}")
        parameters = ", ".join(f"{kind} {name}" for kind, name in self.parameters)
        head = f"define {linkage + ' ' if linkage else ''}{self.result} @{self.name}({parameters}) {attributes} {{"
        return "\n".join([head, ".entry:", *self.beginning.values(), *self.lines, "}"]) + "\n"


def vector(lanes: int, element: str) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def splat(f: LlvmFunction, kind: str, x: str, lanes: int) -> str:
    """Return a vector with one value in every lane."""
    if lanes == 1:
        return x
    one = f.value(f"insertelement <{lanes} x {kind}> poison, {kind} {x}, i64 0")
    whole = f"<{lanes} x {kind}>"
    return f.value(f"shufflevector {whole} {one}, {whole} poison, <{lanes} x i32> zeroinitializer")
