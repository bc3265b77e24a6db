"""How long a launch takes on this machine's cores: packing, register blocks, tiles that threads share out."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewave.tune.fitted import HostTiming
from tilewave.tune.gpu import Prediction
from tilewave.tune.problem import CutProduct, CutWork

LATENCY_CYCLES = 4
"""Of a multiplication and addition: so many are under way before one is done."""
PANEL_BYTES = 4
"""Of an element in a panel."""


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

    @property
    def name(self) -> str:
        return f"{self.instruction_set}x{self.threads}"

    @property
    def units(self) -> int:
        return self.threads

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        match role:
            case "rows":
                return (1, 4, *(self.rows * n for n in (1, 4, 8, 16)))
            case "cols":
                return tuple(self.cols * n for n in (1, 4, 8))
            case "depth":
                return (64,)  # the loop over the depth is walked whole there
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
                return (1,) if self.reads_in_place and element_bytes >= PANEL_BYTES else ()  # others are converted once
            case "buffers":
                return ()
            case _:
                raise NotImplementedError(role)

    def refused(self, cut: CutWork) -> str:
        """A tile is in memory: any can be."""
        return ""

    def is_repeated(self, cut: CutWork) -> bool:
        return False

    def predict(self, cut: CutWork) -> Prediction:
        t = self.timing
        name = "products" if cut.products else "elements"
        parts = {
            name if cut.tasks >= self.threads else "too few tiles": self._computing(cut),
            "packing": self._packing(cut),
            "memory": cut.asked_bytes / (t.cache_bytes_per_second * min(self.threads, cut.tasks)),
        }
        limit = max(parts, key=lambda name: parts[name])
        return Prediction(t.call + sum(parts.values()), t.error, limit, t.fitted_on)

    def _computing(self, cut: CutWork) -> float:
        """Blocks outside are not computed; nobody is done before the longest task."""
        whole = sum(self._seconds(p, (p.rows, p.cols)) * p.inside for p in cut.products) * cut.tasks / self.threads
        longest = sum(self._seconds(p, p.largest) for p in cut.products)
        if not cut.products:
            longest = sum(t.elements * t.times for t in cut.transfers) / self.timing.elements_per_second
            whole = longest * cut.tasks / self.threads
        return -(-cut.tasks // self.threads) * self.timing.task + max(whole, longest)

    def block(self, p: CutProduct) -> tuple[int, int]:
        """Rows and columns of the register block: the largest that divide the tile."""
        return _largest_divisor(p.rows, self.rows), _largest_divisor(p.cols, self.cols)

    def _seconds(self, p: CutProduct, sides: tuple[int, int]) -> float:
        """Of one task's products over so many rows and columns."""
        rows, cols = self.block(p)
        vectors = -(-cols * PANEL_BYTES // self.vector_bytes)
        cycles = max(rows * vectors / 2, (rows + vectors) / 2, LATENCY_CYCLES)
        blocks = prod(-(-n // b) for n, b in zip(sides, (rows, cols), strict=True))
        return p.batch * blocks * p.depth * p.times * cycles / self.timing.clock_hz

    def _packing(self, cut: CutWork) -> float:
        """Both operands of every product, once a launch, by all threads; or, in place, as often as they are read."""
        if not cut.products:
            return 0.0
        t = self.timing
        if cut.in_place:  # every task turns what it reads, and nothing is written
            read_bytes = cut.tasks * sum(x.swept_bytes for x in cut.operands)
            return read_bytes / (t.in_place_bytes_per_second * min(self.threads, cut.tasks))
        return sum({x.memory: x.array_bytes for x in cut.operands}.values()) / (t.pack_bytes_per_second * self.threads)


def _largest_divisor(n: int, most: int) -> int:
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)
