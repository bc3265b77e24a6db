"""PTX and the needs of its launch, as stored in the cache and in files; reading it needs no compiler."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewave.errors import SavedKernelError
from tilewave.forks import cached_property
from tilewave.ir.host_program import LINE
from tilewave.lower.launch_arguments import KernelArgument, MapArgument
from tilewave.machine.chips import TENSOR_MAPS
from tilewave.records import dataclass
from tilewave.runtime.cache import default_cache, key_of
from tilewave.runtime.launch_scalars import LaunchTable
from tilewave.runtime.records import Record, packed, restored, unpacked

CACHE_LINE, BY_LANES = LINE, 0
"""Alignments of rows in a specialization key: the usual one, and none."""


@dataclass(frozen=True)
class Specialization:
    """The key of machine code: what it relies on in the layout of its arrays. Calls with equal keys share code."""

    rows: int = CACHE_LINE
    """The alignment in bytes of the rows that the lane-level kernel was built for. `CACHE_LINE`: what every kernel is
    built for first. TMA's 16 bytes: neighbouring workgroups use multicast. Fewer: lanes hold rows in vectors of so many
    bytes, or as many as `widths` has for an array. `BY_LANES`: lanes load, because TMA cannot."""
    widths: tuple[tuple[str, int], ...] = ()
    """The alignment in bytes of each array that the code may not access by the widest loads; 0: any strides. Where
    lanes hold rows in vectors, of each array that is moved in chunks."""

    @property
    def is_by_lanes(self) -> bool:
        return self.rows == BY_LANES

    @property
    def vector_bytes(self) -> int:
        """The bytes of the narrowest vectors in which lanes hold rows; 0: those of the widest load."""
        return self.rows if self.rows < TENSOR_MAPS.grain_bytes else 0

    @property
    def any_strides(self) -> tuple[str, ...]:
        """The arrays whose last axis need not be contiguous."""
        return tuple(name for name, width in self.widths if not width)

    @property
    def narrow(self) -> tuple[tuple[str, int], ...]:
        """The contiguous arrays of `widths`, and the bytes that they are aligned to."""
        return tuple((name, width) for name, width in self.widths if width)

    @property
    def arrays(self) -> str:
        """The arrays that the code takes, in words."""
        if self.vector_bytes:
            return f"rows on {self.vector_bytes} bytes"
        if self.narrow:
            return "contiguous rows, but any arrays" if self.any_strides else "contiguous rows"
        if self.is_by_lanes:
            return "any arrays" if self.any_strides else "whole rows, by lanes"
        rows = "rows on cache lines" if self.rows == CACHE_LINE else f"rows on {self.rows} bytes"
        return f"{rows}, but {', '.join(self.any_strides)} anywhere" if self.any_strides else rows

    def is_wider(self, other: Specialization) -> bool:
        """Return whether its code takes all arrays of another key, with the same TMA loads."""
        same = (self.rows, self.narrow) == (other.rows, other.narrow)
        return same and {*self.any_strides} >= {*other.any_strides}


ALIGNED = Specialization()
"""The key of the code for aligned arrays, which is compiled first."""


@dataclass(frozen=True)
class NvidiaCode:
    """PTX, and the needs of its launch."""

    arguments: tuple[KernelArgument, ...]
    maps: tuple[MapArgument, ...]
    shared_bytes: int
    workgroup_size: int
    workgroups: int | str
    """The number of workgroups, or the name of the launch value that gives it."""
    cluster: int
    """Workgroups of a cluster, which share multicast loads."""
    uses_pdl: bool
    """Whether the kernel starts before the previous launch ends (PDL)."""
    chunked: tuple[str, ...]
    """The arrays that must be aligned for wide loads and stores, or for TMA."""
    launch: str
    """The text of the ops computed at each launch, for dynamic shapes."""
    ptx: str

    @cached_property
    def launches(self) -> LaunchTable:
        return LaunchTable(self.workgroups, self.launch)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The scalars that a launch passes: arguments of the call, and values computed from them."""
        return tuple(a.name for a in self.arguments if a.kind == "symbol")

    @property
    def facts(self) -> dict[str, Any]:
        """All fields but the PTX, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "ptx"}

    @staticmethod
    def of(facts: Record, ptx: str) -> NvidiaCode:
        return restored(NvidiaCode, facts, ptx=ptx)


def kept(key: str, wanted: Specialization) -> NvidiaCode | None:
    """Return the code of a kernel with that key from the cache; None where it is incomplete."""
    data = default_cache().get(key_of(key, repr(wanted)))
    if data is None:
        return None
    try:
        facts, (ptx,) = unpacked(data)
        return NvidiaCode.of(facts, ptx.decode())
    except (SavedKernelError, ValueError):
        return None


def keep(key: str, wanted: Specialization, code: NvidiaCode) -> None:
    default_cache().put(key_of(key, repr(wanted)), packed(code.facts, [code.ptx.encode()]))
