"""What to write in place of Python's and numpy's own words, where an author has used them on a tile."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from tilewave.errors import Loc

RUNS_IN_PYTHON = "`if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate"
FUNCTIONS = "write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype"
BITS = "tiles have no operations on bits: write x % 16 for the last four, x // 16 to shift right, x * 16 to shift left"
PAIRS = {"max": "maximum", "min": "minimum"}
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum")
FROM_NUMPY = {
    "where": "write select(condition, x, y)",
    "dot": "write mma(x, y, acc)",
    "matmul": "write mma(x, y, acc)",
    "clip": "write minimum(maximum(x, low), high)",
    "transpose": "dims have names, and need no turning: leave it out",
    "amax": "write x.max(dim=…)",
    "amin": "write x.min(dim=…)",
    "mean": "write x.sum(dim=…) / n, where n is how many there are",
}
ATTRIBUTES = {
    "T": "dims have names, and need no turning: declare the memory that it is written to as Memory[N, M, …]",
    "astype": "write cast(x, f16)",
    "to": "write cast(x, f16)",
    "mean": FROM_NUMPY["mean"],
    "shape": "its sizes are those of the constraints; x.dims names them",
    "clip": FROM_NUMPY["clip"],
    "dot": FROM_NUMPY["dot"],
    "reshape": "dims have names and keep them; permute(x, target_shape=[…]) orders them",
}
ATTRIBUTES |= {"transpose": ATTRIBUTES["T"], "size": ATTRIBUTES["shape"], "half": ATTRIBUTES["to"]}


def in_place_of_a_truth(loc: Loc) -> str:
    """What an author should write who asked whether a tile is true, judged by how it was asked."""
    match _expression(loc):
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
    return RUNS_IN_PYTHON


def in_place_of_a_walk(loc: Loc, dims: Sequence[Any]) -> str:
    """What an author should write who walked the elements of a tile."""
    match _expression(loc):
        case ast.Call(func=ast.Name(id=name)) if name in REDUCTIONS:
            return reduction(name, dims)
    return RUNS_IN_PYTHON


def in_place_of_numpys(name: str, dims: Sequence[Any]) -> str:
    """What stands here for a function of numpy's."""
    return reduction(name, dims) if name in REDUCTIONS else FROM_NUMPY.get(name, FUNCTIONS)


def reduction(name: str, dims: Sequence[Any]) -> str:
    along = f"dim={dims[-1]}" if dims else "dim=…"
    return f"write x.{name}({along}): dims have names, and a star import leaves Python's own {name} alone"


def misused(error: TypeError) -> str:
    """What to write instead, where Python itself refused a word that tilewave has too; nothing for all else."""
    said = str(error)
    if found := re.search(r"(?:invalid|unexpected) keyword argument.*\b(sum|max|min|any|all)\(\)", said):
        return f"this is Python's own {found[1]}: write x.{found[1]}(dim=N), or tilewave.{found[1]}(x, dim=N)"
    if found := re.match(r"(sum|max|min|any|all)\(\) takes", said):
        return f"this is Python's own {found[1]}: write x.{found[1]}(dim=N), or tilewave.{found[1]}(x, dim=N)"
    return ""


def _expression(loc: Loc) -> ast.expr | None:
    """The expression that an author's place is; nothing where Python does not tell, or tells a piece of one."""
    try:
        return ast.parse(loc.text(), mode="eval").body
    except SyntaxError:
        return None
