"""Generate the API reference: every public name with its signature and its docstring, as Markdown."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin

import tilewave
from tilewave.ir.types import DType


@dataclass(frozen=True)
class Page:
    """One page of the reference: a module, its title, and its public names."""

    module: str
    title: str
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"reference/{self.module}.md"


MODULES = {
    "tilewave": "Language and compiler",
    "tilewave.mapping": "Mappings",
    "tilewave.kernels": "Built-in kernels",
    "tilewave.ops": "Operations",
    "tilewave.torch": "PyTorch",
    "tilewave.sim": "Simulator",
    "tilewave.machine": "Machines",
    "tilewave.emulator": "Emulator",
    "tilewave.cycles": "Cycles of K loops",
    "tilewave.view": "Pictures",
}
OPERATIONS = (
    "attention",
    "bincount",
    "cross_entropy",
    "cumsum",
    "dropout",
    "embedding",
    "index_add",
    "index_select",
    "layer_norm",
    "linear",
    "matmul",
    "rms_norm",
    "softmax",
)
METHODS = ("Compiled", "IndexMapping", "Mapping", "Schedule", "WaveKernel")
"""Classes whose methods are listed; for other classes, the fields are enough."""


def pages() -> list[Page]:
    return [
        Page(module, title, tuple(sorted(public_names(module), key=str.lower))) for module, title in MODULES.items()
    ]


def public_names(module: str) -> list[str]:
    """Return `__all__`, or the public names that the source of the module imports; torch is not imported for it."""
    if module == "tilewave":
        return [name for name in (*tilewave.__all__, *tilewave.PYTHONS_OWN) if name not in ("__version__", "mapping")]
    if module == "tilewave.ops":
        return list(OPERATIONS)
    tree = ast.parse(source_of(module))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    imported = [a for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names]
    return [alias.asname for alias in imported if alias.asname and not alias.asname.startswith("_")]


def source_of(module: str) -> str:
    return (Path(tilewave.__file__).parents[1] / module.replace(".", "/") / "__init__.py").read_text()


def index() -> str:
    """Return the first page: every module with its names."""
    about = "Every public name with its signature and docstring, generated from the package. The guide explains them."
    lines = ["# API reference", "", about, ""]
    for page in pages():
        links = ", ".join(f"[`{name}`]({page.module}.md#{name})" for name in page.names)
        lines += [f"## [{page.title}]({page.module}.md)", "", f"`{page.module}`: {links}", ""]
    return "\n".join(lines)


def text_of(page: Page) -> str:
    """Return one page: the docstring of the module, then its names."""
    doc = ast.get_docstring(ast.parse(source_of(page.module))) or ""
    lines = [f"# {page.title}", "", f"`import {page.module}`", "", doc.partition("\n\n")[0], ""]
    for name in page.names:
        lines += [f"## {name} {{: #{name} }}", "", *entry(page.module, name), ""]  # Hilbert is not hilbert
    return "\n".join(lines)


def entry(module: str, name: str) -> Iterator[str]:
    """Yield the lines of one name: its signature, its docstring, its fields or values, its methods."""
    found = object_named(module, name)
    if found is None:
        yield from from_source(module, name)
        return
    if get_origin(found) is not None:
        yield f"A type: `{found}`."
    else:
        yield from (described_callable(name, found) if callable(found) else described_value(name, found))


def object_named(module: str, name: str) -> Any:
    """Return the object, or None where its module needs a package that is not installed."""
    try:
        return getattr(import_module(module), name)
    except ImportError:
        return None


def from_source(module: str, name: str) -> Iterator[str]:
    """Yield the lines of a name whose module cannot be imported here, from the source of the module."""
    tree = ast.parse(source_of(module))
    home = next(n.module for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.name == name)
    path = Path(tilewave.__file__).parents[1] / (str(home).replace(".", "/") + ".py")
    node = next(n for n in ast.parse(path.read_text()).body if getattr(n, "name", "") == name)
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    if isinstance(node, ast.FunctionDef):
        yield from fenced(f"{name}({ast.unparse(node.args)})")
    yield ast.get_docstring(node) or ""


def described_value(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, DType):
        kind = {"float": "Floats", "int": "Whole numbers", "bool": "Truth values"}[value.kind]
        yield f"{kind} of {value.bits} bit{'s' * (value.bits > 1)}; numpy's `{value.numpy.name}`."
    else:
        yield f"`{value!r}`" if not inspect.getdoc(type(value)) else first_paragraph(type(value))


def described_callable(name: str, found: Any) -> Iterator[str]:
    inner = getattr(found, "function", found) if not inspect.isclass(found) else found
    yield from fenced(signature(name, inner))
    yield inspect.getdoc(inner) or first_paragraph(type(found))
    if inspect.isclass(found):
        yield from of_class(found)


def of_class(cls: type) -> Iterator[str]:
    if issubclass(cls, enum.Enum):
        yield ""
        yield ", ".join(f"`{member.name}`" for member in cls)
        return
    if cls.__name__ not in METHODS and not dataclasses.is_dataclass(cls):
        return
    for name, member in sorted(vars(cls).items()):
        function = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        call = name if not inspect.isfunction(member) else signature(name, function)
        yield ""
        yield f"- `.{call}`: {' '.join(first_paragraph(function).split())}"


def signature(name: str, found: Any) -> str:
    """Return `name(a, b=1)`, without annotations, which docstrings describe."""
    try:
        given = inspect.signature(found)
    except (TypeError, ValueError):
        return name
    kept = [p.replace(annotation=p.empty) for p in given.parameters.values() if p.name not in ("self", "cls")]
    return re.sub(r"<(\w+)[^>]*>", r"\1", f"{name}{given.replace(parameters=kept, return_annotation=given.empty)}")


def fenced(code: str) -> Iterator[str]:
    yield "```python"
    yield textwrap.fill(code, 100, subsequent_indent=" " * 4, break_long_words=False)
    yield "```"
    yield ""


def first_paragraph(found: Any) -> str:
    return (inspect.getdoc(found) or "").partition("\n\n")[0]
