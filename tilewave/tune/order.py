"""The order of tiles: where a launch has more of them than run at once, which of a few reads least again from memory,
by the simulator; else the one in which neighbours want the same tiles of the larger operand."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.l2_residency import streams
from tilewave.machine import Machine
from tilewave.sim import Gemm, simulate
from tilewave.tune.gpu import GpuTiles
from tilewave.tune.problem import CutWork

GROUPS = (4, 8, 16)
"""Rows of tiles that are swept together."""
ROUNDS = 6
"""The number of waves that are simulated: further ones repeat the pattern."""


def order_for(cut: CutWork, machine: object, orders: Sequence[str] = ()) -> str:
    """`grouped(8)`, the best of these, or of a few; nothing where every order is the same.

    Nor where nothing is known of the machine's caches; of orders that somebody named, it is then the first.
    """
    if len(orders) == 1:
        return orders[0]
    if not isinstance(machine, GpuTiles) or len(cut.products) != 1 or len(cut.grid) < 2:
        return next(iter(orders), "")
    card = machine.card
    if min(cut.grid[:2]) < 2 or card.flops(cut.products[0].dtype.name) is None:
        return next(iter(orders), "")
    if cut.tasks <= card.units:
        return next(iter(orders), "grouped(1)" if _streams_rows(cut, card) else "")
    found = {order: simulate(_excerpt(cut, card), card, order) for order in orders or orders_on(card)}
    return min(found, key=lambda order: (found[order].seconds, found[order].hbm_read_bytes))


def orders_on(card: Machine) -> list[str]:
    """Return the orders of tiles that are tried on a card."""
    if card.xcds == 1:
        return [f"grouped({size})" for size in GROUPS]
    return [f"xcd_contiguous({card.xcds}) >> grouped({size})" for size in GROUPS]


def _streams_rows(cut: CutWork, card: Machine) -> bool:
    """Whether of two operands the one of rows is the larger, and L2 cannot keep it: `analysis/l2_residency.py`."""
    if len(cut.operands) != 2:
        return False
    rows, columns = (t.array_bytes for t in cut.operands)
    return rows > columns and streams(rows, card)


def _excerpt(cut: CutWork, card: Machine) -> Gemm:
    """Return the first waves of a launch as a plain GEMM."""
    p = cut.products[0]
    rows, cols = cut.grid[:2]
    most = ROUNDS * card.units
    if rows * cols > most:
        rows = max(2, min(rows, max(GROUPS) * 2, most // 2))
        cols = max(2, min(cols, most // rows))
    persistent = card.units if card.xcds == 1 else None
    sizes = rows * p.rows, cols * p.cols, p.depth * p.times
    return Gemm(*sizes, (p.rows, p.cols, p.depth), p.dtype.name, "f32", workgroups=persistent)
