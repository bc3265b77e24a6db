"""Copies of ops under new names."""

from __future__ import annotations

from tilewave.ir.build import Builder
from tilewave.ir.core import Value
from tilewave.ir.rewrite import Rewriter


class Copier(Rewriter):
    """Copies ops under new names; later copies use the values of earlier ones."""

    def __init__(self, builder: Builder, suffix: str = "") -> None:
        super().__init__()
        self.builder, self.suffix = builder, f"_{suffix}" if suffix else ""

    def value(self, v: Value) -> Value:
        """Return a fresh value for `v`, which later copies use."""
        self.new[v] = self.builder.fresh(f"{v.name}{self.suffix}", v.type)
        return self.new[v]
