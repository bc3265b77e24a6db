"""The machines that configs are chosen for: a chip's card, or this machine's cores, each with its cost model."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tilewave.backend.targets import target_named
from tilewave.cost.cdna import CdnaCost
from tilewave.cost.gpu import GpuCost
from tilewave.cost.host import HostCost
from tilewave.cost.parameters import CLOCKED, HOPPER, HOST
from tilewave.forks import IMPORTING
from tilewave.machine import Machine
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import CHIPS, Chip
from tilewave.machine.matrix import instructions_for
from tilewave.trace import NO_WORK, TileWork
from tilewave.tune.configs import BYTES, ON_HOSTS, OTHERS, VALUES, Roles, host_set, kernel_set

GROUP = 8
"""Rows of tiles that are swept together, where the author gives no order."""
HALF_BYTES = 2


class GpuTiles:
    """The configs that are worth a try on a chip and its card."""

    chip: Chip
    card: Machine

    @property
    def order(self) -> str:
        """The order of tiles where the author gives none."""
        xcds = self.card.xcds
        return f"grouped({GROUP})" if xcds == 1 else f"xcd_contiguous({xcds}) >> grouped({GROUP})"

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of tiles that an exhaustive search times."""
        return tuple(self.order.replace(f"({GROUP})", f"({group})") for group in (GROUP, GROUP // 2, 2 * GROUP))

    @property
    def stages_operands(self) -> bool:
        """Whether mma operands always go through shared memory, even if the kernel does not ask for it."""
        return self.chip.tma is not None

    def product_set(self, element_bytes: int, layout: tuple[str, str]) -> Sequence[Roles]:
        """Return the configs of a product that a loop adds up, by role, for the layout of its operands."""
        return kernel_set(self.chip.vendor, element_bytes, layout)

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        """Return the values of a role in other kernels."""
        of_bytes = tuple(n // element_bytes for n in BYTES[self.chip.vendor].get(role, ()))
        return of_bytes or VALUES[self.chip.vendor].get(role) or OTHERS[role]

    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return whether all matrix instructions for the dtypes have one depth: a tile is summed in steps of it.

        The out-of-bounds part of a boundary tile adds zeros, which do not change sums that start at zero.
        """
        names = {(self.chip.matrix, p.dtype.name, p.dtype.name, p.acc.name) for p in work.products}
        return len({i.depth for one in names for i in instructions_for(*one)}) == 1


class HopperTiles(GpuCost, GpuTiles):
    """The configs of a chip with TMA, by the cost model of its launches."""


class CdnaTiles(CdnaCost, GpuTiles):
    """The configs of a CDNA chip, by the cost model of launches whose clock is limited by power."""


class HostTiles(HostCost):
    """Cores of a CPU, with the configs that are worth a try: in any order of tiles, and with operands anywhere."""

    order, orders, stages_operands = "", (), False

    def product_set(self, element_bytes: int, layout: tuple[str, str]) -> Sequence[Roles]:
        """Return the configs of a product that a loop adds up, by role; the same for all layouts of its operands."""
        in_place = self.reads_in_place and element_bytes >= 2 * HALF_BYTES  # narrower operands are converted once
        return host_set(self.rows, self.cols, in_place)

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        """Return the values of a role in other kernels."""
        sides = {"rows": [1, 4, *(self.rows * n for n in (1, 4, 8, 16))], "cols": [self.cols * n for n in (1, 4, 8)]}
        return tuple(sides.get(role) or ON_HOSTS[role])

    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return False: how many sums are under way at once follows from the tile."""
        return False


TileMachine = HopperTiles | CdnaTiles | HostTiles


def machine_of(target: str, work: TileWork = NO_WORK) -> TileMachine:
    """Return what is known of a target's tiles: a chip's card, or this machine's cores; TargetError for another."""
    target_named(target)
    if chip := CHIPS.get(target):
        card, clocked = STANDING_FOR[target], CLOCKED.get(chip.matrix)
        return CdnaTiles(chip, card, clocked) if clocked else HopperTiles(chip, card, HOPPER)
    return _host_of({p.dtype.name for p in work.products})


def _host_of(dtypes: Set[str]) -> HostTiles:
    """Return the cores of this machine, with the instruction set for products of these dtypes."""
    with IMPORTING:
        from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here  # noqa: PLC0415  LLVM is heavy
    with IMPORTING:
        from tilewave.runtime.pool import default_threads  # noqa: PLC0415  GPUs need none

    able = (s for s in INSTRUCTION_SETS.values() if runs_here(s))
    s = next(s for s in able if not s.only or (dtypes and dtypes <= {*s.only}))
    facts = s.name, default_threads(), s.rows, s.cols, s.vector_bytes, HOST
    reads_in_place = not s.matrix_unit
    return HostTiles(*facts, reads_in_place, vector_registers=s.vector_registers, broadcasts=s.broadcasts)
