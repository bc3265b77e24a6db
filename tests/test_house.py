"""`benchmarks/house.py` counts what a checkout has, on a package that is small enough to count by hand."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".importlinter": "[importlinter:contract:layers]\nlayers =\n    tilewave.cli\n    tilewave.passes\n"
    "    tilewave.ir\n",
    "tilewave/__init__.py": "",
    "tilewave/cli.py": "import tilewave.ir.core\n",
    "tilewave/ir/__init__.py": "",
    "tilewave/ir/core.py": 'from tilewave.ir import types\n\nimport_module("tilewave.cli")  # noqa: F401\n',
    "tilewave/ir/types.py": "def late():\n    from tilewave.ir import core\n    return core\n",
    "tilewave/passes/__init__.py": "from tilewave.cli import x\n",
    "tilewave/passes/grid/__init__.py": "",
    "tilewave/passes/grid/split.py": '"""Splits."""\n\nUNITS = 132  # of an H200\n',
    "tilewave/passes/tile/__init__.py": "",
    "tilewave/passes/tile/pad.py": '"""Of a tile, its padding."""\n\n\nclass Large:\n'
    + "".join(f"    def m{i}(self): ...\n" for i in range(26)),
    "tilewave/pipeline.py": "",
    "tilewave/pipeline/lists.py": "def one() -> tuple[Pass, ...]:\n    return (pad, split)\n\n\n"
    "def two(more) -> tuple[Pass, ...]:\n    return (split, *one(), *more)\n",
    "tilewave/tune/fitted.py": "TIMES = Times(a=1, b=-2.0, c=3, d=4, e=5, f=6, g='here')\n",
    "tilewave/tune/data/neighbours.csv": "1\n2\n",
    "tilewave/tune/data/other.csv": "345\n",
}
COUNTED = {
    "package lines": 48,
    "files > 400": 0,
    "import circles": 1,
    "upward imports": 1,
    "upward imports by strings": 1,
    "passes": 2,
    "passes in grid": 1,
    "passes in tile": 1,
    "passes listed in one": 2,
    "passes listed in two": 3,
    "function p99": 3,
    "longest function": 3,
    "classes > 25 methods": 1,
    "lines that name a card in passes, analysis, ir": 1,
    "constants of the time model": 6,
    "rows of the time model": 2,
    "bytes of data in the wheel": 8,
    "docstrings that cannot be read alone": 1,
    "comments": 1,
    "lines per comment": 48.0,
}


@pytest.fixture
def house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkout_is_counted(house, tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert house.measured(tmp_path) == COUNTED
