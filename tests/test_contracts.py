"""Imports go one way: downwards, without circles, wherever they stand and however they are written."""

from pathlib import Path

import pytest
from import_graph import Import, circles, imports_in, imports_of, layers_in, modules_of, package_at, upward

ROOT = Path(__file__).parents[1]
LAYERS = layers_in(ROOT / ".importlinter")
PACKAGE = package_at(ROOT)
MODULES = modules_of(PACKAGE)


@pytest.fixture(scope="module")
def imports():
    return imports_of(PACKAGE)


def test_no_modules_import_each_other(imports):
    assert circles(imports) == []


def test_no_module_imports_from_above(imports):
    assert [str(one) for one in upward(imports, LAYERS)] == []


def test_every_module_has_a_layer(imports):
    first = {".".join(name.split(".")[:2]) for name in MODULES} - {"tilewave", "tilewave._version"}
    assert first == {".".join(name.split(".")[:2]) for name in LAYERS}


PLANTED = {
    "at the top": "from tilewave.cli.main import main",
    "of a module": "import tilewave.cli.main",
    "from its package": "from tilewave.cli import main",
    "inside a function": "def late():\n    from tilewave.cli.main import main",
    "for type checkers": "if TYPE_CHECKING:\n    from tilewave.cli.main import main",
    "by a string": 'import_module("tilewave.cli.main")',
}


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_an_import_from_above_is_found(source):
    (found,) = imports_in("tilewave.errors", source, MODULES)
    assert found.of == "tilewave.cli.main"
    assert upward([found], LAYERS) == [found]
    assert circles([found, Import("tilewave.errors", "tilewave.cli.main", 1)]) == [["tilewave.cli.main", found.by]]


def test_an_f_string_imports_from_the_package_that_it_begins_with():
    (found,) = imports_in("tilewave.errors", 'import_module(f"tilewave.cli.{name}")', MODULES)
    assert (found.of, found.is_string) == ("tilewave.cli", True)
    assert upward([found], LAYERS) == [found]


def test_a_string_imports_nothing_where_no_module_is_loaded_by_name():
    source = 'files("tilewave.cli"), frame.module == "tilewave.cli.main"'
    assert imports_in("tilewave.errors", source, MODULES) == []
    assert imports_in("tilewave.errors", f"importlib.import_module(name), {source}", MODULES)


def test_the_package_itself_is_above_all_and_neighbours_are_apart():
    assert upward([Import("tilewave", "tilewave.cli.run", 1)], LAYERS)
    assert upward([Import("tilewave.bench.gpu", "tilewave.view.axes", 1)], LAYERS)
    assert not upward([Import("tilewave.cli.main", "tilewave", 1)], LAYERS)
    assert not upward([Import("tilewave.ir.core", "tilewave.cli.run", 1)], LAYERS)
    assert not upward([Import("tilewave.ir.core", "tilewave.ir.types", 1)], LAYERS)
