"""PTX and what its launch must provide, as the cache and files hold it; reading it needs no compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewave.errors import SavedKernelError
from tilewave.forks import cached_property
from tilewave.lower.launch_arguments import KernelArgument, MapArgument
from tilewave.runtime.cache import default_cache, key_of
from tilewave.runtime.launch_numbers import LaunchTable
from tilewave.runtime.records import Record, packed, restored, unpacked


@dataclass(frozen=True)
class Variant:
    """Code for arrays that lie alike."""

    is_plain: bool = False
    """Lanes load, because the copy engine cannot."""
    any_strides: tuple[str, ...] = ()
    """Arrays whose last axis has no neighbours in memory."""
    narrow: tuple[tuple[str, int], ...] = ()
    """Arrays whose address or rows are multiples of so many bytes only, and not of the widest load's."""
    off_lines: bool = False
    """Rows that are open do not begin on cache lines, and neighbours share copies."""
    vector_bytes: int = 0
    """Lanes hold rows in parts of so many bytes, at whose multiples those of the narrow arrays begin and end; 0: of as
    many as the widest load moves."""

    @property
    def arrays(self) -> str:
        """What it is for, in words."""
        if self.vector_bytes:
            return f"rows on {self.vector_bytes} bytes"
        if self.narrow or (self.is_plain and self.any_strides):
            return "any arrays"
        if self.is_plain:
            return "whole rows, by lanes"
        rows = "rows on 16 bytes" if self.off_lines else "rows on cache lines"
        return f"{rows}, but {', '.join(self.any_strides)} anywhere" if self.any_strides else rows

    def is_wider(self, other: Variant) -> bool:
        """Whether its code takes all arrays that the other's takes, by the same copies."""
        same = (self.is_plain, self.off_lines, self.narrow) == (other.is_plain, other.off_lines, other.narrow)
        return same and {*self.any_strides} >= {*other.any_strides}


@dataclass(frozen=True)
class NvidiaCode:
    """PTX, and what its launch must provide."""

    arguments: tuple[KernelArgument, ...]
    maps: tuple[MapArgument, ...]
    shared_bytes: int
    workgroup_size: int
    workgroups: int | str
    """Or the name of the number that a launch computes."""
    cluster: int
    """Workgroups that share copies."""
    starts_early: bool
    """While the kernel launched before still ends."""
    chunked: tuple[str, ...]
    """The arrays whose addresses and rows have to suit wide loads and stores, or copies."""
    launch: str
    """What is computed at each launch, where sizes are open."""
    ptx: str

    @cached_property
    def launches(self) -> LaunchTable:
        return LaunchTable(self.workgroups, self.launch)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The numbers that a launch passes: those of the call, and what is computed from them."""
        return tuple(a.name for a in self.arguments if a.kind == "symbol")

    @property
    def facts(self) -> dict[str, Any]:
        """All but the PTX, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "ptx"}

    @staticmethod
    def of(facts: Record, ptx: str) -> NvidiaCode:
        return restored(NvidiaCode, facts, ptx=ptx)


def kept(key: str, variant: Variant) -> NvidiaCode | None:
    """The code of a kernel of that key, where the cache has it whole."""
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
