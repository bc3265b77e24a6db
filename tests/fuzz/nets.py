"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable

from . import arithmetic, arrays, cache_files, code_objects, machine_files, passes, saved_files, texts
from .kernels import KERNELS

Net = Callable[[int], "str | None"]

NETS: dict[str, Net] = {
    **{name: net.case for name, net in KERNELS.items()},
    "passes": passes.case,
    "arithmetic": arithmetic.case,
    "arrays": arrays.case,
    "texts": texts.case,
    "saved_files": saved_files.case,
    "cache_files": cache_files.case,
    "machine_files": machine_files.case,
    "code_objects": code_objects.case,
}
