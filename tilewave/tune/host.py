"""The cost model of a launch on CPU cores: packing, register blocks, and tiles distributed over threads.

Operands are packed once per launch, or read in place; in place, every task transposes operands that need it in each
step, and copies boundary tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewave.lower.cpu.products import block_of, dots_of, runs_along_depth
from tilewave.machine.matrix import largest_divisor
from tilewave.trace import TileWork
from tilewave.tune.fitted import HostTiming
from tilewave.tune.gpu import Prediction
from tilewave.tune.problem import CutProduct, CutTransfer, CutWork
from tilewave.tune.space import NO_COVERING, Covering

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
PACKED_DEPTH = 64
CACHE_BYTES = 1 << 21
"""The size of a core's private caches."""
MOST_IN_PLACE = 512
"""Uses of an element, beyond which operands are packed in any case."""


@dataclass(frozen=True)
class HostTiles:
    """Cores of a CPU: threads, and the largest register block of their instruction set."""

    instruction_set: str
    threads: int
    rows: int
    cols: int
    vector_bytes: int
    timing: HostTiming
    reads_in_place: bool = True
    """Whether products need no panels: those of a matrix unit do."""
    vector_registers: int = 32

    @property
    def name(self) -> str:
        return f"{self.instruction_set}x{self.threads}"

    @property
    def units(self) -> int:
        return self.threads

    @property
    def lanes(self) -> int:
        return self.vector_bytes // PANEL_BYTES

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        layouts = self.reads_in_place and element_bytes >= PANEL_BYTES  # others are converted once
        match role:
            case "rows":
                return (1, 4, *(self.rows * n for n in (1, 4, 8, 16)))
            case "cols":
                return (*(self.cols * n for n in (1, 4, 8)), *((64 * self.cols,) if layouts else ()))
            case "depth":
                return (
                    (PACKED_DEPTH, 1024) if layouts else (PACKED_DEPTH,)
                )  # packed loops ignore the step: `program_of`
            case "narrow depth":
                return ()
            case "grid":
                return (1, 4, 16, 64)
            case "walk":
                return (1024, 4096, 16384)
            case "waves":
                return (64,)
            case "wave rows":
                return (1,)  # a task has no waves there
            case "split":
                return (1,)
            case "in_place":
                return (1,) if layouts else ()
            case "num_stages":
                return ()
            case _:
                raise NotImplementedError(role)

    def grows_to(self, role: str) -> int:
        return 1

    def covers(self, role: str, is_across: bool) -> Covering:
        """Return a covering that does not cut short dimensions, so that they have no boundary tiles."""
        if not self.reads_in_place:
            return NO_COVERING
        most, grain = {"rows": (128, 4), "cols": (128, self.lanes), "depth": (256, 4)}.get(role, (0, 1))
        return Covering(most, (grain,), least=grain, is_enough=True)

    def refused(self, cut: CutWork) -> str:
        """A tile is in memory: any can be."""
        return ""

    def is_repeated(self, cut: CutWork) -> bool:
        """Return whether a config reads operands in place though packing would be negligible, or packs for tiles that
        are wide only to be read in place."""
        if cut.in_place:
            return min(self._uses(cut)) > MOST_IN_PLACE
        return len(cut.products) == 1 and cut.products[0].cols > 8 * self.cols

    @property
    def stages_operands(self) -> bool:
        return False

    def sums_in_same_order(self, work: TileWork) -> bool:
        """How many sums are under way at once follows from the tile."""
        return False

    def _uses(self, cut: CutWork) -> list[float]:
        """Return how often all tasks multiply an element, for each operand."""
        (p,) = cut.products
        products = cut.tasks * p.batch * p.rows * p.cols * p.depth * p.times * p.inside
        return [products * x.tile_bytes / (x.elements * x.array_bytes) for x in cut.operands]

    def program_of(self, cut: CutWork) -> tuple[int, int] | None:
        """Return the sides of a packed product's tile: its program does not depend on the step. None for others."""
        if cut.in_place or len(cut.products) != 1:
            return None
        (product,) = cut.products
        return product.rows, product.cols

    def traits(self, cut: CutWork) -> None:
        """What one point loses by, a lane that is left over or a cache, its neighbours need not."""

    def predict_all(self, cuts: Sequence[CutWork]) -> list[Prediction]:
        return [*map(self.predict, cuts)]

    def predict(self, cut: CutWork) -> Prediction:
        t = self.timing
        name = "products" if cut.products else "elements"
        sharing = min(self.threads, cut.tasks)
        parts = {
            name if cut.tasks >= self.threads else "too few tiles": self._computing(cut),
            "packing": 0.0 if cut.in_place else self._packing(cut),
            "turning": self._laying_out(cut) / sharing,
            "caches": sum(self._reading(x, cut) for x in cut.transfers) * cut.tasks / sharing,
            "memory": self._fetching(cut) / sharing,
        }
        limit = max(parts, key=lambda name: parts[name])
        return Prediction(t.call + sum(parts.values()), t.error, limit, t.fitted_on)

    def _reading(self, x: CutTransfer, cut: CutWork) -> float:
        """Return the seconds that one task reads; in place, short rows cost extra."""
        short = SHORT_ROW_BYTES / min(x.tile_row_bytes, x.row_bytes) if cut.in_place else 0.0
        return x.inside_bytes * x.times * (1 + short) / self.timing.cache_bytes_per_second

    def _fetching(self, cut: CutWork) -> float:
        """What no cache of a core holds, once."""
        return max(0.0, cut.distinct_bytes - CACHE_BYTES) / self.timing.memory_bytes_per_second

    def _computing(self, cut: CutWork) -> float:
        """Return the seconds that computing takes: at least the longest task."""
        whole = sum(self._seconds(p, cut, (p.rows, p.cols)) * p.inside for p in cut.products) * cut.tasks / self.threads
        longest = sum(self._seconds(p, cut, p.largest) for p in cut.products)
        if not cut.products:
            longest = sum(t.elements * t.times for t in cut.transfers) / self.timing.elements_per_second
            whole = longest * cut.tasks / self.threads
        return -(-cut.tasks // self.threads) * self.timing.task + max(whole, longest)

    def block(self, p: CutProduct) -> tuple[int, int]:
        """Rows and columns of the register block of panels: the largest that divide the tile."""
        return largest_divisor(p.rows, self.rows), largest_divisor(p.cols, self.cols)

    def _seconds(self, p: CutProduct, cut: CutWork, sides: tuple[int, int]) -> float:
        """Return the seconds of one task's products over these sides; in place, boundary tiles count as full ones."""
        if cut.in_place:
            return p.batch * p.depth * p.times * self._cycles_in_place(p, cut) / self.timing.clock_hz
        rows, cols = self.block(p)
        blocks = prod(-(-n // b) for n, b in zip(sides, (rows, cols), strict=True))
        return p.batch * blocks * p.depth * p.times * self._cycles(rows, -(-cols // self.lanes)) / self.timing.clock_hz

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
        """Both operands of every product, once a launch, by all threads."""
        packed = {x.memory: x.array_bytes for x in cut.operands} if cut.products else {}
        return sum(packed.values()) / (self.timing.pack_bytes_per_second * self.threads)

    def _laying_out(self, cut: CutWork) -> float:
        """What all tasks do to operands in place before they multiply them."""
        if not cut.in_place:
            return 0.0
        turns = not self._runs_along_depth(cut.products[0], cut) and not cut.operands[-1].is_across
        cycles = 0.0
        for x in cut.operands:
            each = TURN_CYCLES if turns and x is cut.operands[-1] else 0
            each += EDGE_CYCLES if x.inside_bytes < x.tile_bytes else 0
            far = 1 + x.tile_bytes / NEAR_BYTES
            cycles += each * far * x.tile_bytes * x.times / self.vector_bytes
        return cut.tasks * cycles / self.timing.clock_hz
