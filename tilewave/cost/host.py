"""The cost model of a launch on CPU cores: packing, register blocks, and tiles distributed over threads.

Operands are packed once per launch, or read in place; in place, every task transposes operands that need it in each
step, and copies boundary tiles.
"""

from __future__ import annotations

from tilewave.cost.parameters import HostParameters
from tilewave.cost.prediction import Prediction
from tilewave.cost.work import CutProduct, CutTransfer, CutWork
from tilewave.machine.matrix import largest_divisor
from tilewave.machine.register_blocks import block_of, dots_of, runs_along_depth
from tilewave.records import dataclass

LATENCY_CYCLES = 4
"""The latency of a fused multiply-add."""
PANEL_BYTES = 4
"""The size of an element in a panel."""
TURN_CYCLES, EDGE_CYCLES = 3, 6
"""Cycles per vector that is transposed, or copied as part of a boundary tile."""
NEAR_BYTES = 170 << 10
"""The size of a transposed or copied tile at which each vector costs twice as much: it leaves the nearest cache."""
SHORT_ROW_BYTES = 550
"""The length of a tile's row whose start costs as much as reading it."""
CACHE_BYTES = 1 << 21
"""The size of a core's private caches."""
FAR_ROW_SECONDS = 1e-7
"""How long a product waits for a row of B at each depth, where no private cache holds it: nothing has fetched it ahead.
With fewer rows of A, a core sees as many more rows of B ahead. On a Xeon (avx512), 18 to 64 rows of A."""


@dataclass(frozen=True)
class HostCost:
    """Cores of a CPU: threads, and the largest register block of their instruction set."""

    instruction_set: str
    threads: int
    rows: int
    cols: int
    vector_bytes: int
    parameters: HostParameters
    reads_in_place: bool = True
    """Whether products need no panels: those of a matrix unit do."""
    vector_registers: int = 32
    broadcasts: bool = True
    """Whether products that pack the right operand read the left one in place, where its rows go along the depth."""

    @property
    def name(self) -> str:
        return f"{self.instruction_set}x{self.threads}"

    @property
    def units(self) -> int:
        return self.threads

    @property
    def lanes(self) -> int:
        return self.vector_bytes // PANEL_BYTES

    def refused(self, cut: CutWork) -> str:
        """Return an empty text: a tile is in memory, so any can be."""
        return ""

    def predict(self, cut: CutWork) -> Prediction:
        t = self.parameters
        name = "compute" if cut.products else "elementwise"
        sharing = min(self.threads, cut.tasks)
        parts = {
            name if cut.tasks >= self.threads else "small grid": self._computing(cut),
            "packing": 0.0 if cut.in_place else self._packing(cut),
            "transposing": self._laying_out(cut) / sharing,
            "caches": sum(self._reading(x, cut) for x in cut.transfers) / sharing,
            "memory": self._fetching(cut) / sharing,
        }
        limit = max(parts, key=lambda name: parts[name])
        return Prediction(t.call + sum(parts.values()), t.error, limit, t.fitted_on)

    def _reading(self, x: CutTransfer, cut: CutWork) -> float:
        """Return the seconds that one thread would read for all tasks; in place, starts of rows cost extra."""
        rows = x.swept_bytes / min(x.tile_row_bytes, x.row_bytes) if cut.in_place else 0.0
        read = (x.swept_bytes + rows * SHORT_ROW_BYTES) / self.parameters.cache_bytes_per_second
        return float(read + rows * self._waiting(x, cut))

    def _waiting(self, x: CutTransfer, cut: CutWork) -> float:
        """Return the seconds that each row of a tile is waited for."""
        if not x.is_across or x.tile_row_bytes >= x.row_bytes or not cut.products:
            return 0.0
        far = max(0.0, 1 - CACHE_BYTES / x.array_bytes)
        return float(FAR_ROW_SECONDS * far * min(1.0, cut.products[0].rows / self.rows))

    def _fetching(self, cut: CutWork) -> float:
        """What no cache of a core holds, once."""
        return float(max(0.0, cut.distinct_bytes - CACHE_BYTES) / self.parameters.memory_bytes_per_second)

    def _computing(self, cut: CutWork) -> float:
        """Return the seconds that computing takes: at least the longest task."""
        products = [(p, self._seconds(p, cut, p.largest)) for p in cut.products]
        whole = sum(each * _inside(p, cut) for p, each in products) * cut.tasks / self.threads
        longest = sum(each for _, each in products)
        if not cut.products:
            longest = sum(t.elements * t.times for t in cut.transfers) / self.parameters.elements_per_second
            whole = longest * cut.tasks / self.threads
        return float(-(-cut.tasks // self.threads) * self.parameters.task + max(whole, longest))

    def block(self, p: CutProduct) -> tuple[int, int]:
        """Rows and columns of the register block of panels: the largest that divide the tile."""
        return largest_divisor(p.rows, self.rows), largest_divisor(p.cols, self.cols)

    def _seconds(self, p: CutProduct, cut: CutWork, sides: tuple[int, int]) -> float:
        """Return the seconds of one task's products over these sides; in place, boundary tiles count as full ones."""
        if cut.in_place:
            return float(p.batch * p.depth * p.times * self._cycles_in_place(p, cut) / self.parameters.clock_hz)
        (rows, cols), (height, width) = self.block(p), sides
        whole, rest = divmod(width, cols)
        cycles = whole * self._cycles(rows, -(-cols // self.lanes))
        if rest:  # a narrower block, where a tile has several
            cycles += self._cycles(rows, -(-(rest if p.cols > cols else cols) // self.lanes))
        return float(p.batch * p.depth * p.times * -(-height // rows) * cycles / self.parameters.clock_hz)

    def _cycles(self, rows: int, vectors: int) -> float:
        """For a step of a block: products, reads, or what the next step waits for."""
        return max(rows * vectors / 2, (rows + vectors) / 2, LATENCY_CYCLES)

    def _cycles_in_place(self, p: CutProduct, cut: CutWork) -> float:
        """For each step along the depth."""
        if self._runs_along_depth(p, cut):
            high, wide = dots_of(p.rows, p.cols)
            return p.rows * p.cols / (high * wide) * self._cycles(high, wide) / self.lanes
        vectors = -(-p.cols // self.lanes)
        high, wide = block_of(self.vector_registers, p.rows, vectors)
        return p.rows * vectors / (high * wide) * self._cycles(high, wide)

    def _runs_along_depth(self, p: CutProduct, cut: CutWork) -> bool:
        return runs_along_depth(self.lanes, p.rows, p.cols, cut.operands[-1].is_across)

    def _packing(self, cut: CutWork) -> float:
        """The operands of every product, once a launch, by all threads."""
        packed = {x.memory: x.array_bytes for x in cut.operands if not self._stays(x, cut)} if cut.products else {}
        return float(sum(packed.values()) / (self.parameters.pack_bytes_per_second * self.threads))

    def _stays(self, x: CutTransfer, cut: CutWork) -> bool:
        """Return whether an operand is not packed though others are, as `read_rows_in_place` decides."""
        p = cut.products[0]
        return self.broadcasts and x is cut.operands[0] and not x.is_across and p.dtype == p.acc

    def _laying_out(self, cut: CutWork) -> float:
        """What all tasks do to operands in place before they multiply them."""
        if not cut.in_place:
            return 0.0
        turns = not self._runs_along_depth(cut.products[0], cut) and not cut.operands[-1].is_across
        cycles = 0.0
        for x in cut.operands:
            each = TURN_CYCLES if turns and x is cut.operands[-1] else 0
            each += EDGE_CYCLES if x.swept_bytes < x.tile_bytes * x.times * cut.tasks else 0
            far = 1 + x.tile_bytes / NEAR_BYTES
            cycles += each * far * x.tile_bytes * x.times / self.vector_bytes
        return float(cut.tasks * cycles / self.parameters.clock_hz)


def _inside(p: CutProduct, cut: CutWork) -> float:
    """Return the share of a product's tiles that is computed, were all of them as large as the largest: its in-bounds
    part, or in place the full tile."""
    elements = p.elements if cut.in_place else p.batch * p.largest[0] * p.largest[1]
    return float(min(1.0, p.all / (cut.tasks * elements * p.depth * p.times)))
