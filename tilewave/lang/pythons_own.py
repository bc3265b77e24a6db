"""Remedies for Python's and numpy's functions used on a tile: what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from traceback import walk_tb
from types import FrameType
from typing import Any

from tilewave.errors import Loc

RUNS_IN_PYTHON = "`if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate"
FUNCTIONS = "write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype"
PAIRS = {"max": "maximum", "min": "minimum"}
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum")
FROM_NUMPY = {
    "where": "write select(condition, x, y)",
    "dot": "write mma(x, y, acc)",
    "matmul": "write mma(x, y, acc)",
    "clip": "write minimum(maximum(x, low), high)",
    "transpose": "dims have names, and need no transposing: leave it out",
    "amax": "write x.max(dim=…)",
    "amin": "write x.min(dim=…)",
    "mean": "write x.sum(dim=N) / cast(N, f32)",
}
ATTRIBUTES = {
    "T": "dims have names, and need no transposing: write mma(read(a), read(b), acc) for a product; declare a memory "
    "that the transpose is written to as Memory[N, M, …]",
    "astype": "write cast(x, f16)",
    "to": "write cast(x, f16)",
    "clip": FROM_NUMPY["clip"],
    "dot": FROM_NUMPY["dot"],
    "reshape": "dims have names and keep them; permute(x, target_shape=[…]) orders them",
}
ATTRIBUTES |= {"transpose": ATTRIBUTES["T"], "half": ATTRIBUTES["to"]}


def of_attribute(name: str, dims: Sequence[Any], otherwise: str = FUNCTIONS) -> str:
    """Return what to write for an attribute that arrays have, of a tile or memory with these dims."""
    last = dims[-1] if dims else "N"
    if name in ("shape", "size"):
        sizes = f"its sizes are {', '.join(map(str, dims))}: " if dims else ""
        return f"{sizes}write cast({last}, f32) to compute with a size, {last} in an index expression"
    return _mean(dims) if name == "mean" else ATTRIBUTES.get(name, otherwise)


def _mean(dims: Sequence[Any]) -> str:
    return FROM_NUMPY["mean"].replace("N", str(dims[-1])) if dims else FROM_NUMPY["mean"]


def in_place_of_a_truth(loc: Loc) -> str:
    """Return what to write where a tile was used as a truth value, judged by the author's expression."""
    return next(filter(None, map(_of_a_truth, _asked(loc))), RUNS_IN_PYTHON)


def _of_a_truth(asked: ast.AST) -> str:
    match asked:
        case ast.Call(func=ast.Name(id=("max" | "min") as name)):
            return f"Python's own {name} compares before there is data: write {PAIRS[name]}(a, b)"
        case ast.BoolOp(op=ast.And()):
            return "`and` asks Python before there is data: write (a) & (b), with the parentheses"
        case ast.BoolOp(op=ast.Or()):
            return "`or` asks Python before there is data: write (a) | (b), with the parentheses"
        case ast.UnaryOp(op=ast.Not()):
            return "`not` asks Python before there is data: write ~(a), with the parentheses"
        case ast.Compare(ops=[_, _, *_]):
            return "a < x < b asks Python before there is data: write (a < x) & (x < b)"
    return ""


def in_place_of_a_walk(loc: Loc, dims: Sequence[Any]) -> str:
    """Return what to write where the elements of a tile were iterated over."""
    for asked in _asked(loc):
        match asked:
            case ast.Call(func=ast.Name(id=name)) if name in REDUCTIONS:
                return reduction(name, dims)
    return RUNS_IN_PYTHON


def in_place_of_numpys(name: str, dims: Sequence[Any]) -> str:
    """Return tilewave's counterpart of a numpy function."""
    if name == "mean":
        return _mean(dims)
    return reduction(name, dims) if name in REDUCTIONS else FROM_NUMPY.get(name, FUNCTIONS)


def reduction(name: str, dims: Sequence[Any]) -> str:
    along = f"dim={dims[-1]}" if dims else "dim=…"
    return f"write x.{name}({along}): dims have names, and a star import leaves Python's own {name} alone"


def assigned_inside(error: UnboundLocalError) -> tuple[str, str]:
    """Return the problem and the remedy where the function of a loop or condition assigns to an outer variable that it
    reads; else empty texts."""
    *callers, inner = (frame for frame, _ in walk_tb(error.__traceback__))
    found = re.search(r"'(\w+)'", str(error))
    by = _module_of(callers[-1]) if callers else ""
    if found is None or by not in CARRIED_BY:
        return "", ""
    name, function = found[1], inner.f_code.co_name
    authors = [frame for frame in callers if not _module_of(frame).startswith("tilewave.")]
    if not any(name in frame.f_locals for frame in authors):
        return "", ""
    what = f"{function} assigns to {name}, so {name} is a variable of {function}, without a value at first"
    return what, CARRIED_BY[by].format(name=name, function=function)


def _module_of(frame: FrameType) -> str:
    """Return the module of a running function; that of its object's class for a method."""
    owner = type(frame.f_locals["self"]).__module__ if "self" in frame.f_locals else frame.f_globals.get("__name__")
    return str(owner)


CARRIED_BY = {
    "tilewave.lang.loops": "let the loop carry it: write init_args=[{name}] and def {function}({name}), and return its "
    "next value; after the loop, {function} is its last value",
    "tilewave.lang.conditions": "let the function take it: write else_return=[{name}] and def {function}({name}), and "
    "return its new value; afterwards, {function} is its value",
}
"""What to write for a variable that a function assigns to, by the module that calls the function."""


def misused(error: TypeError) -> tuple[str, str]:
    """Return the problem and the remedy where Python's own function of a tilewave name was called; else empty texts."""
    said = str(error)
    found = re.search(r"(?:^|for )(sum|max|min|any|all)\(\)", said)
    if found is None or not re.search(r"keyword argument|takes", said):
        return "", ""
    name = found[1]
    return f"Python's own {name} takes no dim", f"write x.{name}(dim=N), or tilewave.{name}(x, dim=N)"


def _asked(loc: Loc) -> Iterator[ast.AST]:
    """Yield the nodes of the author's expression; those of its line on Python 3.10, which gives no columns."""
    line = loc.excerpt()[:1] if loc.column < 0 else [loc.text()]
    try:
        tree = ast.parse("".join(line))
    except SyntaxError:  # a piece of a statement over several lines, or `if …:`
        return
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    yield from expressions[:1] if loc.column >= 0 else expressions
