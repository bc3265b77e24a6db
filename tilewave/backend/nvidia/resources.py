"""The resources of a kernel on an NVIDIA chip: registers, shared memory, warps, and what they leave room for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Protocol

from tilewave.analysis.loads import LaneLoads
from tilewave.backend.protocol import occupancy_of
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Role
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

if TYPE_CHECKING:
    from tilewave.backend.nvidia.ptxas import Assembled


class AssembledBuild(Protocol):
    """The part of a build that its resources are read from."""

    @property
    def chip(self) -> Chip: ...
    @property
    def lanes(self) -> Kernel: ...
    @property
    def asm(self) -> str: ...
    @property
    def assembled(self) -> Assembled | None:
        """Registers, spills and messages of ptxas; None where this machine has no ptxas."""


@dataclass(frozen=True)
class WarpRole:
    """What the warps of one role of a warp-specialized kernel have: `consumer` warpgroups, or the `producer`'s."""

    role: str
    warps: int
    registers: int | None
    """Registers of a lane after setmaxnreg; None where the code leaves them as they are at the launch."""


@dataclass(frozen=True)
class NvidiaResources:
    """The resources of a workgroup, and the loads of each lane per step."""

    machine: str
    waves: tuple[int, ...]
    """The waves used, which may differ from those requested: wgmma takes warpgroups of four."""
    lanes: int
    """Lanes of one wave."""
    instructions: tuple[str, ...]
    shared_bytes: int
    loads: tuple[LaneLoads, ...]
    built: Callable[[], AssembledBuild] = field(repr=False, compare=False)
    """Returns the build, whose code ptxas assembles on demand."""
    not_as_asked: tuple[str, ...] = ()
    """Requests that were not met, and why."""

    @property
    def assembled(self) -> Assembled | None:
        """Registers, spills and messages of ptxas; None where this machine has no ptxas."""
        return self.built().assembled

    @property
    def registers(self) -> int | None:
        """Registers of one lane at the launch; None without ptxas. `roles` has those after setmaxnreg."""
        return self.assembled.registers if self.assembled else None

    @property
    def spilled_bytes(self) -> int | None:
        """Bytes of one lane that do not fit in registers; None without ptxas."""
        return self.assembled.spilled_bytes if self.assembled else None

    @property
    def workgroups_per_sm(self) -> int | None:
        """CTAs that share an SM; None without ptxas."""
        if self.registers is None:
            return None
        return self.built().chip.workgroups_together(prod(self.waves), self.registers, self.shared_bytes)

    @property
    def resident_waves(self) -> int | None:
        """Warps of the kernel that share an SM; None without ptxas."""
        return None if self.workgroups_per_sm is None else self.workgroups_per_sm * prod(self.waves)

    @property
    def most_resident_waves(self) -> int:
        """Warps that an SM has room for."""
        return self.built().chip.resident_waves

    @property
    def occupancy(self) -> float | None:
        """`resident_waves` as a fraction of `most_resident_waves`; None without ptxas."""
        return occupancy_of(self.resident_waves, self.most_resident_waves)

    @property
    def roles(self) -> tuple[WarpRole, ...]:
        """The warps and registers of each role; empty for a kernel that is not warp-specialized."""
        consumers = next((op.last for op in walk(self.built().lanes.body) if isinstance(op, Role)), 0)
        if prod(self.waves) == consumers or not consumers:
            return ()
        more, fewer = (_set_registers(self.built().asm, how) for how in ("inc", "dec"))
        return WarpRole("consumer", consumers, more), WarpRole("producer", prod(self.waves) - consumers, fewer)


def _set_registers(ptx: str, how: str) -> int | None:
    """Return the registers that the PTX sets by setmaxnreg."""
    found = re.search(rf"setmaxnreg\.{how}\.sync\.aligned\.u32\s+(\d+)", ptx)
    return int(found[1]) if found else None
