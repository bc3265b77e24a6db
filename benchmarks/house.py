"""Measure the source of a checkout: its size, its imports, its passes, its functions, and how its text reads.

    python benchmarks/house.py                    this checkout
    python benchmarks/house.py ../other --json    another one

Nothing of the checkout is imported, so that it may be of any age. Lengths are in lines. The length of a list of passes
counts the passes of the lists that it includes, and of a parameter none.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # what tests check, and what is counted here, is defined there

from import_graph import circles, imports_of, layers_in, package_at, upward  # noqa: E402
from test_words import ALONE, docstrings  # noqa: E402

LONG_FILE, MANY_METHODS = 400, 25
CARD = re.compile(r"\b(GH200|[HB][12]00|H20|A100|L40S?|MI\d{3}[AX]?|RTX ?\d{4}|GB\d{3})\b")
ON_NO_CARD = ("passes", "analysis", "ir")
"""The folders that name no card."""
OF_TIME = ("tune", "cost")
"""The folders of the time model."""
FEWEST_PARAMETERS = 6
"""A record at the top of a module with this many numbers is one of fitted parameters."""
PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|pragma)")


class Checkout:
    """The source of a package, each file read and parsed once."""

    def __init__(self, root):
        self.root, self.package = Path(root), package_at(root)
        self.texts = {path: path.read_text(encoding="utf-8") for path in sorted(self.package.rglob("*.py"))}
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}

    def within(self, *folders):
        """Return the texts of the files in some folders of the package."""
        rooms = [self.package / folder for folder in folders]
        return {path: text for path, text in self.texts.items() if any(room in path.parents for room in rooms)}

    def nodes(self, *kinds):
        return [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, kinds)]


def size(checkout):
    lines = {path: text.count("\n") for path, text in checkout.texts.items()}
    return {"package lines": sum(lines.values()), f"files > {LONG_FILE}": sum(n > LONG_FILE for n in lines.values())}


def imports(checkout):
    found = imports_of(checkout.package)
    arrows = upward(found, layers_in(checkout.root / ".importlinter"))
    strings = [one for one in arrows if one.is_string]
    counts = len(circles(found)), len(arrows) - len(strings), len(strings)
    return dict(zip(("import circles", "upward imports", "upward imports by strings"), counts, strict=True))


def passes(checkout):
    files = [p.relative_to(checkout.package / "passes") for p in checkout.within("passes") if p.name != "__init__.py"]
    rooms = Counter(str(file.parent) for file in files)
    return {"passes": len(files), **{f"passes in {room}": rooms[room] for room in sorted(rooms) if len(rooms) > 1}}


def pipelines(checkout):
    """Return the length of each list of passes."""
    functions = [
        node
        for path in checkout.within("pipeline")
        for node in ast.walk(checkout.trees[path])
        if isinstance(node, ast.FunctionDef)
    ]
    lists = {f.name: _returned(f) for f in functions if f.returns and ast.unparse(f.returns) == "tuple[Pass, ...]"}
    lists = {name: found for name, found in lists.items() if isinstance(found, ast.Tuple)}
    return {f"passes listed in {name}": _length(found, lists) for name, found in lists.items()}


def _returned(function):
    return next((node.value for node in reversed(function.body) if isinstance(node, ast.Return)), None)


def _length(listed, lists):
    found = 0
    for item in listed.elts:
        if not isinstance(item, ast.Starred):
            found += 1
        elif isinstance(item.value, ast.Call) and (inner := lists.get(getattr(item.value.func, "id", ""))):
            found += _length(inner, lists)
    return found


def functions(checkout):
    found = checkout.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = sorted(node.end_lineno - node.lineno + 1 for node in found)
    return {"function p99": lengths[len(lengths) * 99 // 100], "longest function": lengths[-1]} if lengths else {}


def classes(checkout):
    methods = (sum(isinstance(x, ast.FunctionDef) for x in node.body) for node in checkout.nodes(ast.ClassDef))
    return {f"classes > {MANY_METHODS} methods": sum(count > MANY_METHODS for count in methods)}


def cards(checkout):
    lines = (line for text in checkout.within(*ON_NO_CARD).values() for line in text.splitlines())
    return {f"lines that name a card in {', '.join(ON_NO_CARD)}": sum(bool(CARD.search(line)) for line in lines)}


def time_model(checkout):
    """Return the numbers in the largest record of fitted parameters, the rows of neighbours, and the bytes of data."""
    trees = [checkout.trees[path] for path in checkout.within(*OF_TIME)]
    calls = [node.value for tree in trees for node in tree.body if isinstance(getattr(node, "value", None), ast.Call)]
    numbers = [sum(_is_number(word.value) for word in call.keywords) for call in calls]
    data = [p for folder in OF_TIME for p in (checkout.package / folder).rglob("*") if _is_data(p)]
    rows = sum(p.read_text(encoding="utf-8").count("\n") for p in data if "neighbours" in p.name)
    return {
        "constants of the time model": max((n for n in numbers if n >= FEWEST_PARAMETERS), default=0),
        "rows of the time model": rows,
        "bytes of data in the wheel": sum(p.stat().st_size for p in data),
    }


def _is_number(value):
    value = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _is_data(path):
    return path.is_file() and path.suffix not in (".py", ".pyc")


def text(checkout):
    dependent = sum(bool(ALONE.match(found)) for tree in checkout.trees.values() for found in docstrings(tree))
    comments = sum(_comments(source) for source in checkout.texts.values())
    lines = size(checkout)["package lines"]
    return {
        "docstrings that cannot be read alone": dependent,
        "comments": comments,
        "lines per comment": round(lines / max(comments, 1), 1),
    }


def _comments(source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT and not PRAGMA.match(token.string) for token in tokens)


MEASURES = (size, imports, passes, pipelines, functions, classes, cards, time_model, text)


def measured(root):
    """Return every figure of a checkout, by what it counts."""
    checkout = Checkout(root)
    return {what: figure for measure in MEASURES for what, figure in measure(checkout).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=ROOT, type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    found = measured(asked.checkout)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for what, figure in found.items():
        print(f"{what:<52}{figure:>12,}")


if __name__ == "__main__":
    main()
