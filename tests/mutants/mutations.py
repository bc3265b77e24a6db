"""The single-operator mutants of a source file: which spans can be replaced, and by what.

    if n <= limit and not done:     the comparison   <= becomes <
                                    the conjunction  and becomes or
                                    the negation     not is removed
                                    the condition    n <= limit … becomes not (n <= limit …)

A mutant replaces one span of bytes; every other byte of the file stays. Spans come from `ast`, and those of operators,
which `ast` does not locate, from the one token between two operands.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "//": "%", "%": "//"}
CONNECTIVES = {"and": "or", "or": "and"}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}

# The negation of these comparisons is the operator's mutant, which need not be drawn twice.
NEGATED_BY_OPERATOR = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


@dataclass(frozen=True, order=True)
class Mutant:
    """One span of one file replaced: `source[start:end]` becomes `new`."""

    path: str
    start: int
    end: int
    new: bytes
    kind: str
    line: int

    def applied(self, source: bytes) -> bytes:
        """Return the file's bytes with the span replaced."""
        return source[: self.start] + self.new + source[self.end :]

    def difference(self, source: bytes) -> tuple[str, ...]:
        """Return the lines that the span touches, as they were (`- …`) and as they become (`+ …`), without indents."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        after = source[first : self.start] + self.new + source[self.end : last]
        return (*_marked("-", source[first:last]), *_marked("+", after))


def _marked(mark: str, text: bytes) -> list[str]:
    return [f"{mark} {line.strip()}" for line in text.decode().splitlines()]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a file, in the order of its text."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found)


def parses(source: bytes) -> bool:
    """Return whether Python can read the source: a mutant that it cannot read tests nothing."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class _Token:
    start: int
    end: int
    text: str


class _Finder(ast.NodeVisitor):
    """Collects mutants; what is only read by people or by type checkers is not visited."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutant]()
        self.lines = source.split(b"\n")
        self.begins = [0]
        for line in self.lines:
            self.begins.append(self.begins[-1] + len(line) + 1)
        self.tokens = list(self._tokens(source))
        self.starts = [token.start for token in self.tokens]

    def _tokens(self, source: bytes) -> Iterator[_Token]:
        """Yield operators and names with offsets in bytes: `tokenize` counts characters, `ast` bytes."""
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type in (tokenize.OP, tokenize.NAME) and token.string not in "()":
                row, column = token.start
                start = self.begins[row - 1] + len(self.lines[row - 1].decode()[:column].encode())
                yield _Token(start, start + len(token.string.encode()), token.string)

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self.begins[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.begins[node.end_lineno - 1] + node.end_col_offset

    def _add(self, kind: str, start: int, end: int, new: str, line: int) -> None:
        self.found.append(Mutant(self.path, start, end, new.encode(), kind, line))

    def _swap_between(self, kind: str, left: ast.expr, right: ast.expr, swaps: dict[str, str]) -> None:
        """Add the mutant of the operator between two operands; parentheses between them are no operator."""
        first = bisect_left(self.starts, self._end(left))
        tokens = self.tokens[first : bisect_left(self.starts, self._start(right))]
        operator = " ".join(token.text for token in tokens)
        if operator.removesuffix("=") in swaps and kind == "assignment":
            self._replace(kind, tokens, swaps[operator.removesuffix("=")] + "=")
        elif operator in swaps:
            self._replace(kind, tokens, swaps[operator])

    def _replace(self, kind: str, tokens: Sequence[_Token], new: str) -> None:
        line = bisect_left(self.begins, tokens[0].start + 1)
        self._add(kind, tokens[0].start, tokens[-1].end, new, line)

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # removing the `not` is the same
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], NEGATED_BY_OPERATOR):
            return
        start, end = self._start(test), self._end(test)
        text = self.source[start:end].decode()
        self._add("condition", start, end, f"not ({text})", test.lineno)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in pairwise((node.left, *node.comparators)):
            self._swap_between("comparison", left, right, COMPARISONS)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not _is_text(node):
            self._swap_between("arithmetic", node.left, node.right, ARITHMETIC)
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not _is_text(node.value):
            self._swap_between("assignment", node.target, node.value, ARITHMETIC)
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self._swap_between("connective", left, right, CONNECTIVES)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            after = self._start(node) + len("not")
            gap = self.source[after : self._end(node)]
            self._add("negation", self._start(node), after + len(gap) - len(gap.lstrip(b" ")), "", node.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:  # bool is a subclass of int
            for value in (node.value - 1, node.value + 1):
                self._add("constant", self._start(node), self._end(node), str(value), node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format" and _is_text(node.func.value):
            return
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in EXTREMES:
            end = self._end(function)
            self._add("extreme", end - len(name), end, EXTREMES[name], function.end_lineno or function.lineno)
        if name == "reshape":  # numpy takes any negative length for the rest: -2 is the same as -1
            node.args = [argument for argument in node.args if not _is_rest(argument)]
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if _named(node.test) == "TYPE_CHECKING":
            for statement in node.orelse:
                self.visit(statement)
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip the formatting of text."""

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_Assign(self, node: ast.Assign) -> None:
        if "__all__" not in map(_named, node.targets):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip the annotation of a parameter."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _named(node.value) != "Literal":
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef


def _named(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_rest(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression is text by its look: a literal, or one added to, repeated or filled in."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=left, right=right, op=ast.Add()):
            return _is_text(left) or _is_text(right)
        case ast.BinOp(left=left, op=ast.Mod() | ast.Mult()):
            return _is_text(left)
    return False
