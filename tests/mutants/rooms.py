"""Which tests a module of the package is held by, those that name it first."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

# `tests/` mirrors the package; these are the modules and folders whose tests are elsewhere.
TESTS_OF = {
    "tilewave/analysis/wave_reductions.py": ("tests/passes",),
    "tilewave/api.py": ("tests/lang",),
    "tilewave/arguments.py": ("tests/lang", "tests/runtime"),
    "tilewave/__main__.py": ("tests/cli",),
    "tilewave/backend/nvidia/resources.py": ("tests/backend/nvidia", "tests/analysis"),
    "tilewave/call.py": ("tests/lang", "tests/runtime"),
    "tilewave/checked_call.py": ("tests/end_to_end",),
    "tilewave/compile.py": ("tests/lang", "tests/saved"),
    "tilewave/compiled.py": ("tests/lang", "tests/saved"),
    "tilewave/compiled_code.py": ("tests/lang", "tests/saved"),
    "tilewave/compiled_arguments.py": ("tests/lang", "tests/saved"),
    "tilewave/loading.py": ("tests/saved",),
    "tilewave/errors.py": ("tests/lang",),
    "tilewave/files.py": ("tests/tune", "tests/saved"),
    "tilewave/interpreted.py": ("tests/lang", "tests/interp"),
    "tilewave/lower/gpu": ("tests/backend",),
    "tilewave/lower": ("tests/lower", "tests/end_to_end"),
    "tilewave/mypy_plugin.py": ("tests/lang",),
    "tilewave/options.py": ("tests/lang",),
    "tilewave/ops": ("tests/ops", "tests/in_torch"),  # what gradients need is called from torch alone
    "tilewave/pipeline": ("tests/passes",),
    "tilewave/records.py": ("tests/test_package_records.py",),
    "tilewave/torch": ("tests/in_torch",),
    "tilewave/trace.py": ("tests/lang",),
}
CHECKED_AS_TEXT = "tilewave/passes"


def module_tests(root: Path, module: str) -> tuple[str, ...]:
    """Return the test files of a module: those that import it, wherever they are, and those
    of its folder: named after it, naming it, and the rest."""
    files = {path for folder in folders_of(root, module) for path in _test_files(root / folder)}
    files |= {path for path in _test_files(root / "tests") if _imports(path, module)}
    files |= set(_named_checks(root, module))
    ranked = sorted((_rank(path, module), path.relative_to(root).as_posix()) for path in files)
    return tuple(path for _, path in ranked)


def folders_of(root: Path, module: str) -> tuple[str, ...]:
    """Return the folders, or the one file, whose tests hold a module; none where there are none."""
    place = PurePosixPath(module)
    for above in (place, *place.parents):
        if str(above) in TESTS_OF:
            return TESTS_OF[str(above)]
    inner = place.parent.parts[1:]
    depths = range(len(inner), 0, -1)
    mirrored = [PurePosixPath("tests", *inner[:depth]) for depth in depths] or [
        PurePosixPath(f"tests/test_{place.name}")
    ]
    return tuple(str(folder) for folder in mirrored if (root / folder).exists())[:1]


def _test_files(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("test_*.py"))


def _named_checks(root: Path, module: str) -> list[Path]:
    """Return the check tests whose first line runs the pass that the module defines."""
    if not module.startswith(f"{CHECKED_AS_TEXT}/"):
        return []
    word = re.compile(rf"\b{re.escape(PurePosixPath(module).stem)}\b")
    return [p for p in (root / "tests/check").glob("*.ir") if word.search(p.read_text().partition("\n")[0])]


def _rank(test: Path, module: str) -> int:
    """Return how near a test file is to a module: the smaller, the sooner its tests kill a mutant."""
    stem = PurePosixPath(module).stem
    if test.suffix == ".ir" or _imports(test, module):
        return 0
    if stem in test.stem:
        return 1
    return 2 if re.search(rf"\b{re.escape(stem)}\b", test.read_text()) else 3


def _imports(test: Path, module: str) -> bool:
    """Return whether a test file names a module in full, or imports it from its package."""
    package, _, stem = module.removesuffix(".py").replace("/", ".").rpartition(".")
    names = rf"\b{re.escape(package)}\.{re.escape(stem)}\b|from {re.escape(package)} import [^\n]*\b{re.escape(stem)}\b"
    return re.search(names, test.read_text()) is not None
