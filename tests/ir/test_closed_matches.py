"""Every `match` over ops in the package handles the ops that it does not name.

A `match` over ops ends in `case _`, which raises, returns, or gives the reason for doing nothing in a comment; or what
is matched is declared as a union of just these ops, so that the type checker sees that none is forgotten.
"""

import ast
import re
from pathlib import Path

import pytest

import tilewave
from tilewave.ir import ops
from tilewave.ir.core import Op

PACKAGE = Path(tilewave.__file__).parent
ROOMS = ("ir", "interp", "analysis", "passes", "pipeline", "lower", "backend", "sim")
NAMES = {name for name, cls in vars(ops).items() if isinstance(cls, type) and issubclass(cls, Op)}


def name_of(node):
    """`Add` and `ir.Add` are both Add."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def classes_in(pattern):
    return {name_of(p.cls) for p in ast.walk(pattern) if isinstance(p, ast.MatchClass)}


def matches_in(path):
    """Every match over ops of a file, with the functions around it."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and any(classes_in(case.pattern) & NAMES for case in node.cases):
            yield node, [f for f in functions if f.lineno <= node.lineno <= f.end_lineno]


def is_closed(match, around, lines):
    last = match.cases[-1]
    if isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None:
        idle = all(isinstance(statement, ast.Pass) for statement in last.body)
        return not idle or "#" in lines[last.body[0].lineno - 1]
    return names_all(match, around)


def names_all(match, around):
    """Whether an argument is declared as the ops that are matched, and no case has a condition."""
    declared = {a.arg: a.annotation for f in around for a in f.args.args if a.annotation is not None}
    kinds = {name_of(n) for n in ast.walk(declared.get(name_of(match.subject), ast.Constant(0)))} & NAMES
    return bool(kinds) and kinds == set().union(*(classes_in(c.pattern) for c in match.cases if c.guard is None))


MATCH = re.compile(r"^ *match .*:$", re.MULTILINE)
FILES = sorted(p for room in ROOMS for p in (PACKAGE / room).rglob("*.py") if MATCH.search(p.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_match_over_ops_is_closed(path):
    lines = path.read_text().splitlines()
    opened = [match.lineno for match, around in matches_in(path) if not is_closed(match, around, lines)]
    assert not opened, f"{path}: {opened} say nothing of other ops"


def test_the_test_sees_matches():
    """The test fails for a match that is left open, or that ends in silence."""
    open_one = "def f(op):\n    match op:\n        case Add():\n            return 1\n"
    silent = open_one + "        case _:\n            pass\n"
    told = open_one + "        case _:\n            pass  # for a reason\n"
    whole = open_one.replace("op)", "op: Add | Sub)") + "        case Sub():\n            pass\n"
    found = []
    for text in (open_one, silent, told, whole, whole.replace("| Sub", "| Sub | Mul")):
        tree = ast.parse(text)
        (function,), (match,) = ([n for n in ast.walk(tree) if isinstance(n, k)] for k in (ast.FunctionDef, ast.Match))
        found.append(is_closed(match, [function], text.splitlines()))
    assert found == [False, False, True, True, False]
    assert sum(any(matches_in(path)) for path in FILES) > 20
