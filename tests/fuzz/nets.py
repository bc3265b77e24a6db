"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable

from . import arithmetic, arrays

Net = Callable[[int], "str | None"]

NETS: dict[str, Net] = {
    "arithmetic": arithmetic.case,
    "arrays": arrays.case,
}
