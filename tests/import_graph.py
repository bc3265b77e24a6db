"""The imports of a package, from its source: at the top, inside functions, for type checkers, and by strings."""

import ast
import re
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"\w+(\.\w+)+\.?")
"""A module's name as a string; where an f-string begins with it, it ends with a dot."""


LOADERS = ("import_module", "__import__", "resolve_name", "run_module")


@dataclass(frozen=True)
class Import:
    """An import of one module of the package by another."""

    of: str
    by: str
    line: int
    is_string: bool = False

    def __str__(self):
        return f"{self.by}:{self.line} imports {self.of}{' by a string' if self.is_string else ''}"


def modules_of(package):
    """Return the files of a package's modules, by their names; a folder without `__init__.py` holds data."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        if not (path.parent / "__init__.py").exists():
            continue
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(package):
    """Return all imports among the modules of a package."""
    modules = modules_of(package)
    return [one for name, path in modules.items() for one in imports_in(name, path.read_text(), modules)]


def imports_in(module, source, modules):
    """Return the imports of the modules in one module's source."""
    found, tree = [], ast.parse(source)
    loads = any(name in source for name in LOADERS) and _loads_by_name(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(_known(alias.name, modules), module, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, modules)
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [Import(_known(n if n in modules else base, modules), module, node.lineno) for n in names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and loads:
            found.append(Import(_named(node.value, modules), module, node.lineno, is_string=True))
    return [one for one in dict.fromkeys(found) if one.of not in ("", module)]


def _base(node, module, modules):
    """Return the package that a `from` import begins with, relative ones included."""
    if not node.level:
        return node.module
    parts = module.split(".")
    is_package = modules[module].name == "__init__.py"
    above = parts[: len(parts) - node.level + is_package]
    return ".".join([*above, node.module] if node.module else above)


def _known(name, modules):
    return name if name in modules else ""


def _named(text, modules):
    """Return the module that a string names, or the package that an f-string begins with."""
    return _known(text.rstrip("."), modules) if NAME.fullmatch(text) else ""


def _loads_by_name(tree):
    """Return whether a module loads others by their names; elsewhere, strings that name modules import nothing."""
    named = {getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree)}
    return not named.isdisjoint(LOADERS)


def circles(imports):
    """Return the sets of modules that import each other, each sorted."""
    graph = {}
    for one in imports:
        graph.setdefault(one.by, []).append(one.of)
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return sorted(found)


def layers_in(path):
    """Return the position of each layer in an .importlinter file, the top one 0, and the name of its sibling group."""
    config = ConfigParser()
    config.read(path)
    lines = config["importlinter:contract:layers"]["layers"].split("\n")
    rows = [line.split("|") for line in lines if line.strip()]
    return {name.strip(): at for at, row in enumerate(rows) for name in row}


def layer_of(module, layers):
    """Return the layer that a module belongs to; None for the package itself and its version."""
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in layers), None)


def upward(imports, layers):
    """Return the imports of a module in a higher layer, or in another one of the same height."""
    found = []
    for one in imports:
        by, of = layer_of(one.by, layers), layer_of(one.of, layers)
        from_top = by is None or "." not in one.by
        is_up = "." not in one.of or (of is not None and by is not None and by != of and layers[of] <= layers[by])
        if is_up and not from_top:
            found.append(one)
    return found


def package_at(checkout):
    """Return the package's folder of a checkout."""
    return Path(checkout) / "tilewave"
