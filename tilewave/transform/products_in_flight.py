"""Products that are issued and waited for later: each wait says how many of those issued after it may still run."""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import WaitMma, Wgmma


class ProductsInFlight:
    """Products that are issued and not waited for, in order, by their results."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.begun: dict[Value, Value] = {}

    def __contains__(self, result: Value) -> bool:
        return result in self.begun

    def begin(self, product: Wgmma) -> Op:
        sums = self.builder.fresh(product.result.name, product.result.type)
        self.begun[product.result] = sums
        return replace(product, later=True, results=(sums,))  # type: ignore[call-arg]

    def wait(self, result: Value, after: Value, product: Wgmma) -> Op:
        """Return the wait for a product, and for all that were issued before it."""
        pending = list(self.begun)[::-1].index(result)
        return WaitMma(self.begun.pop(result), pending=pending, results=(after,), loc=product.loc)
