"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable

from . import code_objects

Net = Callable[[int], "str | None"]

NETS: dict[str, Net] = {"code objects": code_objects.case}
