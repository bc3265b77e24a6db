"""The blocks of A and B that the workgroups of one XCD read under a mapping; no machine is modelled.

A tile in row r and column c of C = A·Bᵀ reads `k_blocks` blocks of A, those of row r, and as many of B, those of column
c. An XCD that computes several tiles of a row reads its blocks of A once if its L2 still holds them. Both extremes are
counted: a wave of concurrent workgroups reuses everything in L2 (`reads`), or nothing at all (`without_reuse`). The
lower bound for any order is `compulsory`.

In a ragged grid the rows of a tile belong to a group, whose B is another one; a tile without rows reads nothing.
"""

from __future__ import annotations

import numpy as np

from tilewave.mapping.coverage import Array, Coverage, count_of
from tilewave.mapping.grid import Grid, MappingError, deal_of
from tilewave.mapping.text import as_mapping
from tilewave.records import dataclass


@dataclass(frozen=True)
class XcdShare:
    """The tiles that one XCD computes, in one wave or in all, and the number of distinct rows and columns of these."""

    tiles: int
    rows: int
    cols: int

    def blocks(self, k_blocks: int) -> int:
        """Blocks of A and B read if each is read once."""
        return (self.rows + self.cols) * k_blocks


@dataclass(frozen=True)
class XcdReads:
    """One XCD: its whole share, its share in each round, and the blocks of A and B that this means."""

    xcd: int
    whole: XcdShare
    rounds: tuple[XcdShare, ...]
    k_blocks: int

    @property
    def a_blocks(self) -> int:
        """Different blocks of A."""
        return self.whole.rows * self.k_blocks

    @property
    def b_blocks(self) -> int:
        """Different blocks of B."""
        return self.whole.cols * self.k_blocks

    @property
    def blocks(self) -> int:
        """Different blocks of A and B: what is read if its cache holds everything."""
        return self.a_blocks + self.b_blocks

    @property
    def reads(self) -> int:
        """Blocks read if its cache holds one round, and nothing from the round before."""
        return sum(share.blocks(self.k_blocks) for share in self.rounds)


@dataclass(frozen=True)
class Locality:
    """How well a mapping keeps together what shares data; all reads count blocks of A and B."""

    mapping: str
    grid: Grid
    xcds: tuple[XcdReads, ...]
    k_blocks: int
    concurrent: int
    whole: XcdShare
    """The tiles of all XCDs together."""

    @property
    def rounds(self) -> int:
        """The number of waves of concurrent workgroups."""
        return len(self.xcds[0].rounds)

    @property
    def compulsory(self) -> int:
        """Every block of A and B once: no order reads less."""
        return self.whole.blocks(self.k_blocks)

    @property
    def reads(self) -> int:
        """The blocks that all XCDs read if each L2 holds one wave."""
        return sum(xcd.reads for xcd in self.xcds)

    @property
    def without_reuse(self) -> int:
        """What they read if nothing is ever held."""
        return 2 * self.whole.tiles * self.k_blocks

    def __str__(self) -> str:
        head = f"{self.mapping} on {self.grid}, {count_of(len(self.xcds), 'XCD')}, {count_of(self.k_blocks, 'k-block')}"
        rounds = f"{count_of(self.rounds, 'wave')} of {self.concurrent}"
        lines = [f"{head}, {rounds}", "  XCD  tiles  rows  cols  A blocks  B blocks  A + B  read in waves"]
        for x in self.xcds:
            share = f"{x.whole.tiles:5}  {x.whole.rows:4}  {x.whole.cols:4}"
            lines.append(f"  {x.xcd:3}  {share}  {x.a_blocks:8}  {x.b_blocks:8}  {x.blocks:5}  {x.reads:14}")
        lines.append(
            f"  reads {self.reads}: {self.reads / self.compulsory:.2f} × the compulsory {self.compulsory}, "
            f"{self.reads / self.without_reuse:.2f} × the {self.without_reuse} without reuse"
        )
        return "\n".join(lines)


def locality(
    mapping: object,
    grid: Grid,
    xcds: int,
    k_blocks: int = 1,
    concurrent: int | None = None,
    workgroups: int | None = None,
    groups: Array | None = None,
) -> Locality:
    """The report for one launch; `concurrent` workgroups run at a time, without it all (or all `workgroups`).

    `groups` are those of the rows of tiles of a ragged grid, -1 for a row of tiles that have none.
    """
    coverage = mapping if isinstance(mapping, Coverage) else as_mapping(mapping)
    for name, value in (("xcds", xcds), ("k_blocks", k_blocks), ("concurrent", concurrent)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise MappingError(f"{name} is a whole number of at least 1, not {value!r}")
    launched = min(deal_of(grid, workgroups).workgroups, grid.size)
    together = min(concurrent or launched, grid.size)
    visits = list(coverage.visits(grid, workgroups))
    w, batch, row, col = (
        np.concatenate([getattr(v, part) for v in visits]).astype(np.int64)
        for part in ("workgroup", "batch", "row", "col")
    )
    turn = np.arange(len(w), dtype=np.int64) // together
    group = np.zeros_like(row) if groups is None else groups[row]
    of_all = group * grid.batches + batch
    count, kept = int(turn[-1]) + 1, group >= 0
    xcd, turn, rows, cols = (x[kept] for x in (w % xcds, turn, batch * grid.rows + row, of_all * grid.cols + col))
    per_round = _shares(xcd * count + turn, rows, cols, xcds * count)
    whole = _shares(xcd, rows, cols, xcds)
    reads = (XcdReads(x, whole[x], tuple(per_round[x * count : (x + 1) * count]), k_blocks) for x in range(xcds))
    return Locality(str(coverage), grid, tuple(reads), k_blocks, together, _shares(0 * xcd, rows, cols, 1)[0])


def _shares(owner: Array, rows: Array, cols: Array, owners: int) -> list[XcdShare]:
    """For each owner: its tiles, and its different rows and columns."""
    tiles = np.bincount(owner, minlength=owners)
    different = [_different(owner, lines, owners) for lines in (rows, cols)]
    return [XcdShare(*map(int, three)) for three in zip(tiles, *different, strict=True)]


def _different(owner: Array, lines: Array, owners: int) -> Array:
    span = int(lines.max(initial=0)) + 1
    pairs = np.unique(owner * span + lines)
    return np.bincount(pairs // span, minlength=owners)
