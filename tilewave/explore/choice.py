"""What is asked of the explorer: texts from an address or a command line, of which nothing is run as code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tilewave.errors import TilewaveError
from tilewave.mapping import as_mapping
from tilewave.records import dataclass

LONGEST_TEXT = 400
"""The longest text of one field: a mapping of several steps, a dozen sizes."""


class ExplorerError(TilewaveError):
    """Something that the explorer cannot show, and what to ask instead."""


@dataclass(frozen=True)
class ExplorerChoice:
    """What is explored. Each field is a text, as in the page's address; an empty one means the default."""

    kernel: str = ""
    """The kernel's name, if a file is explored."""
    sizes: str = ""
    """The sizes, as for `--set`, if a file is explored."""
    shape: str = "4096x4096x4096"
    tile: str = "128x256x64"
    dtype: str = "f16"
    workgroups: str = ""
    map: str = ""
    """Empty: linear() for the GEMM, a kernel's own order."""
    beside: str = ""
    """Another order to compare with."""
    machine: str = "MI300X"
    target: str = ""
    """What passes and assembly are shown for; empty: the machine's chip."""

    def __post_init__(self) -> None:
        for name, text in self.texts.items():
            if not isinstance(text, str) or len(text) > LONGEST_TEXT or not text.isprintable():
                raise ExplorerError(f"{name} is a text of at most {LONGEST_TEXT} printable characters")
        for name in ("map", "beside"):
            if self.texts[name]:
                as_mapping(self.texts[name])

    @property
    def texts(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def asked(self, given: Mapping[str, str]) -> ExplorerChoice:
        """Return this choice with the fields of an address; an unknown name is an error."""
        known = self.texts
        for name in given:
            if name not in known:
                what = f"there is nothing to choose called {name[:40]!r}"
                raise ExplorerError(what, remedy=f"there are {', '.join(known)}")
        return replace(self, **given)

    @property
    def orders(self) -> tuple[str, ...]:
        """Return the order, and the one to compare with where there is one."""
        return (self.map, self.beside) if self.beside else (self.map,)
