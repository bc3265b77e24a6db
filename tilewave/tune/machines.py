"""The machines that configs are chosen for: a chip's card, or this machine's cores, each with its cost model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.backend.targets import target_named
from tilewave.cost.cdna import CdnaCost
from tilewave.cost.gpu import GpuCost
from tilewave.cost.host import HostCost
from tilewave.cost.parameters import CLOCKED, HOPPER, HOST
from tilewave.cost.work import CutWork
from tilewave.ir.host_program import Number
from tilewave.machine import Machine
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import CHIPS, Chip
from tilewave.machine.matrix import instructions_for
from tilewave.runtime.pool import default_threads
from tilewave.trace import NO_WORK, TileWork
from tilewave.tune.choose import TileMachine
from tilewave.tune.configs import Roles, host_set, kernel_set

GROUP = 8
"""Rows of tiles that are swept together, where the author gives no order."""
HALF_BYTES = 2


@dataclass(frozen=True)
class GpuTiles(ABC):
    """A chip and its card, with the configs that are worth a try."""

    chip: Chip
    card: Machine

    @abstractmethod
    def picoseconds(self, work: CutWork) -> Number:
        """Return the time of a launch, whose sizes may be numbers of a program."""

    @property
    def order(self) -> str:
        xcds = self.card.xcds
        return f"grouped({GROUP})" if xcds == 1 else f"xcd_contiguous({xcds}) >> grouped({GROUP})"

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of tiles that an exhaustive search times."""
        return tuple(self.order.replace(f"({GROUP})", f"({group})") for group in (GROUP, GROUP // 2, 2 * GROUP))

    @property
    def stages_operands(self) -> bool:
        return self.chip.tma is not None

    def product_set(self, element_bytes: int) -> Sequence[Roles]:
        return kernel_set(self.chip.vendor, element_bytes)

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        match role:
            case "rows":
                return (64, 128, 192) if self.chip.tma else (16, 32, 64, 128, 256)
            case "cols":
                return (64, 128, 256) if self.chip.tma else (16, 32, 64, 128, 256)
            case "depth":
                lines = (128, 256) if self.chip.tma else (64, 128)  # without TMA, 256 bytes spill
                return tuple(n // element_bytes for n in lines)
            case "grid":
                return (1, 2, 4, 8, 16, 32, 64)
            case "walk":
                return tuple(n // element_bytes for n in (2048, 4096, 8192, 16384))
            case "waves":
                return (64, 32, 128)
            case "wave rows":
                return (1, 2, 4, 8)
            case "split":
                return (1, 2, 4, 8, 16, 32) if self.chip.tma else (1,)
            case _:
                raise NotImplementedError(role)

    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return whether all matrix instructions for the dtypes have one depth: a tile is summed in steps of it.

        The out-of-bounds part of a boundary tile adds zeros, which do not change sums that start at zero.
        """
        names = {(self.chip.matrix, p.dtype.name, p.dtype.name, p.acc.name) for p in work.products}
        return len({i.depth for one in names for i in instructions_for(*one)}) == 1


@dataclass(frozen=True)
class HopperTiles(GpuCost, GpuTiles):
    """The configs of a chip with TMA, by the cost model of its launches."""


@dataclass(frozen=True)
class CdnaTiles(CdnaCost, GpuTiles):
    """The configs of a CDNA chip, by the cost model of launches whose clock is limited by power."""


@dataclass(frozen=True)
class HostTiles(HostCost):
    """Cores of a CPU, with the configs that are worth a try."""

    @property
    def order(self) -> str:
        return ""

    @property
    def orders(self) -> tuple[str, ...]:
        return ()

    @property
    def stages_operands(self) -> bool:
        return False

    def product_set(self, element_bytes: int) -> Sequence[Roles]:
        in_place = self.reads_in_place and element_bytes >= 2 * HALF_BYTES  # narrower operands are converted once
        return host_set(self.rows, self.cols, in_place)

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        match role:
            case "rows":
                return (1, 4, *(self.rows * n for n in (1, 4, 8, 16)))
            case "cols":
                return tuple(self.cols * n for n in (1, 4, 8))
            case "depth":
                return (64,)
            case "grid":
                return (1, 4, 16, 64)
            case "walk":
                return (1024, 4096, 16384)
            case "waves":
                return (64,)
            case "wave rows" | "split":
                return (1,)  # a task has no waves there
            case _:
                raise NotImplementedError(role)

    def refused(self, work: CutWork) -> str:
        """Return an empty text: a tile is in memory, so any can be."""
        return ""

    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return False: how many sums are under way at once follows from the tile."""
        return False


def machine_of(target: str, work: TileWork = NO_WORK) -> TileMachine:
    """Return what is known of a target's tiles: a chip's card, or this machine's cores; TargetError for another."""
    target_named(target)
    if chip := CHIPS.get(target):
        card, clocked = STANDING_FOR[target], CLOCKED.get(chip.matrix)
        return CdnaTiles(chip, card, clocked) if clocked else HopperTiles(chip, card, HOPPER)
    dtypes = {p.dtype.name for p in work.products}
    able = (s for s in INSTRUCTION_SETS.values() if runs_here(s))
    s = next(s for s in able if not s.only or (dtypes and dtypes <= {*s.only}))
    facts = s.name, default_threads(), s.rows, s.cols, s.vector_bytes, HOST
    return HostTiles(*facts, reads_in_place=not s.matrix_unit, vector_registers=s.vector_registers)
