"""PTX and the needs of its launch, as stored in the cache and in files; reading it needs no compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewave.errors import SavedKernelError
from tilewave.forks import cached_property
from tilewave.lower.launch_arguments import KernelArgument, MapArgument
from tilewave.runtime.cache import default_cache, key_of
from tilewave.runtime.launch_scalars import LaunchTable
from tilewave.runtime.records import Record, packed, restored, unpacked


@dataclass(frozen=True)
class Variant:
    """A class of array layouts that share code."""

    is_plain: bool = False
    """Whether lanes load, because TMA cannot."""
    any_strides: tuple[str, ...] = ()
    """Arrays whose last axis is not contiguous."""
    narrow: tuple[tuple[str, int], ...] = ()
    """Arrays aligned to so many bytes only, fewer than the widest load."""
    unaligned_lines: bool = False
    """Whether dynamic rows do not begin on cache lines, so that neighbouring workgroups use multicast."""
    vector_bytes: int = 0
    """Bytes of the vectors in which lanes hold rows, to whose multiples the rows of narrow arrays are aligned; 0: those
    of the widest load."""

    @property
    def arrays(self) -> str:
        """The arrays of the variant, in words."""
        if self.vector_bytes:
            return f"rows on {self.vector_bytes} bytes"
        if self.narrow or (self.is_plain and self.any_strides):
            return "any arrays"
        if self.is_plain:
            return "whole rows, by lanes"
        rows = "rows on 16 bytes" if self.unaligned_lines else "rows on cache lines"
        return f"{rows}, but {', '.join(self.any_strides)} anywhere" if self.any_strides else rows

    def is_wider(self, other: Variant) -> bool:
        """Return whether its code takes all arrays of another variant, with the same TMA loads."""
        same = (self.is_plain, self.unaligned_lines, self.narrow) == (
            other.is_plain,
            other.unaligned_lines,
            other.narrow,
        )
        return same and {*self.any_strides} >= {*other.any_strides}


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


def kept(key: str, variant: Variant) -> NvidiaCode | None:
    """Return the code of a kernel with that key from the cache; None where it is incomplete."""
    data = default_cache().get(key_of(key, repr(variant)))
    if data is None:
        return None
    try:
        facts, (ptx,) = unpacked(data)
        return NvidiaCode.of(facts, ptx.decode())
    except (SavedKernelError, ValueError):
        return None


def keep(key: str, variant: Variant, code: NvidiaCode) -> None:
    default_cache().put(key_of(key, repr(variant)), packed(code.facts, [code.ptx.encode()]))
