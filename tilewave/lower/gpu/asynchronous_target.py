"""Protocol of targets with asynchronous copies and products: TMA, mbarriers, wgmma.

Addresses in shared memory are 32-bit integers. An operation of a wave is issued by one of its lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


@dataclass(frozen=True)
class SharedRows:
    """An operand in shared memory: consecutive rows whose 16-byte chunks are swizzled within `row_bytes`.

    Rows run along the depth of the product; with `is_transposed` they run along its rows or columns, one row for each
    step of the depth. A row longer than `row_bytes` continues in the next panel, `panel_bytes` further.
    """

    address: str
    row_bytes: int
    dtype: str
    panel_bytes: int
    is_transposed: bool


@dataclass(frozen=True)
class SharedProduct:
    """The product sums + a · bᵀ; `sums` has one register each, all columns of 64 rows after the other."""

    a: SharedRows | tuple[str, ...]
    """In shared memory; or in registers with the layout of the sums, 64 rows after the other, two elements in each."""
    b: SharedRows
    rows: int
    columns: int
    depth: int
    sums: tuple[str, ...]
    ignored_bits: int
    """The low bits of each operand's elements that count as 0."""
    adds: str = ""
    """A number that is 0 where the sums are not initialized and count as zeros."""
    later: bool = False
    """Whether the product is only issued: the sums are complete after `wait_mma`."""
    columns_used: str = ""
    """The number of first columns whose sums are used, if that is not all."""


@dataclass(frozen=True)
class Box:
    """A box of a tensor map, its position from the slowest axis to the fastest, and its address in shared memory."""

    map: str
    at: tuple[str, ...]
    address: str


@dataclass(frozen=True)
class BoxParts:
    """Boxes one below the other, of which the first `used` are loaded; `rows` and `bytes` are those of one."""

    first: Box
    count: int
    rows: int
    bytes: int
    used: str


@dataclass(frozen=True)
class SharedCopy:
    """A TMA load: multicast of `mine` to some workgroups of a cluster if `together`, else of all boxes for this one."""

    mine: Box
    others: tuple[Box, ...]
    mbarrier: str
    rank: str
    """The rank of this workgroup in its cluster."""
    peers: str
    """The multicast mask: a bit for each receiving workgroup."""
    together: str
    """A condition, the same in all lanes."""


@dataclass(frozen=True)
class Gathering:
    """A barrier of `waves` neighbouring waves; `number` is its hardware barrier."""

    number: str
    waves: int
    is_read_later: bool
    """Whether shared memory stored before the barrier is read by TMA or wgmma, so that a proxy fence is needed."""


class MbarrierTarget(Protocol):
    """The mbarriers of a target."""

    def make(self, f: LlvmFunction, wave: int, addresses: list[str], arrivals: int) -> None:
        """Initialize mbarriers for the workgroup, by one wave."""
        ...

    def after(self, f: LlvmFunction, mbarrier: str, words: Sequence[str]) -> str:
        """Return the address of an mbarrier, which depends on `words`: an arrival there waits for these loads."""
        ...

    def arrive(self, f: LlvmFunction, mbarrier: str, expect: int, stored: bool) -> None: ...

    def arrive_everywhere(self, f: LlvmFunction, mbarrier: str, members: int) -> None:
        """Arrive at this mbarrier in each of the cluster's `members` workgroups."""
        ...

    def wait(self, f: LlvmFunction, mbarrier: str, parity: str) -> None: ...


class FlagTarget(Protocol):
    """The flags in global memory by which workgroups hand over tiles."""

    def fill(self, f: LlvmFunction, flag: str) -> None:
        """Release this wave's stores and raise the flag, an address in global memory."""
        ...

    def fill_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        """Release this wave's stores and raise a flag for each lane where `has_one` is 1."""
        ...

    def empty_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        """Wait until the flags of all lanes are raised; lanes where `has_one` is 1 clear theirs."""
        ...

    def empty(self, f: LlvmFunction, flag: str) -> None:
        """Wait until the flag is raised, acquire the stores before it, and clear it."""
        ...


class AsynchronousTarget(Protocol):
    @property
    def map_parameter(self) -> str:
        """The LLVM type of a tensor map parameter."""
        ...

    @property
    def tile_alignment(self) -> int:
        """The alignment in bytes of shared memory that TMA or wgmma accesses."""
        ...

    @property
    def most_barriers(self) -> int: ...

    @property
    def mbarriers(self) -> MbarrierTarget: ...

    @property
    def flags(self) -> FlagTarget: ...

    def barrier(self, f: LlvmFunction, gathering: Gathering) -> None: ...

    def agree(self, f: LlvmFunction, gathering: Gathering, mine: str) -> str:
        """Wait at a barrier and return whether `mine` is 1 in every lane of its waves."""
        ...

    def share_registers(
        self, f: LlvmFunction, waves: int, of: int, fewest: int, resident: int
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what the first `waves` (consumers) and the rest `of` all waves (producers) emit to share registers:
        producers keep `fewest`; `resident` workgroups run on one SM."""
        ...

    def multiply(self, f: LlvmFunction, product: SharedProduct) -> list[str]:
        """Return the sums after the product is added; for one that is only issued, the registers in flight."""
        ...

    def wait_older_mma(self, f: LlvmFunction, pending: int) -> None:
        """Wait until at most the last `pending` products are in flight."""
        ...

    def wait_mma(
        self, f: LlvmFunction, pending: int, kind: str, sums: Sequence[str], meanwhile: Sequence[str]
    ) -> list[str]:
        """Wait until at most the last `pending` products are in flight and return the sums; `meanwhile` has floats that
        must be computed before the wait."""
        ...

    def store_fragments(self, f: LlvmFunction, address: str, words: list[str], is_transposed: bool) -> None:
        """Store an 8 x 8 block of 16-bit elements for each word, distributed as sums are.

        Lane i gives the address of row i; blocks are transposed if `is_transposed`.
        """
        ...

    def cluster_rank(self, f: LlvmFunction) -> str:
        """Return the rank of this workgroup in its cluster."""
        ...

    def cluster_barrier(self, f: LlvmFunction) -> None: ...

    def tma_load_multicast(self, f: LlvmFunction, copy: SharedCopy) -> None: ...

    def expect_map(self, f: LlvmFunction, map_: str) -> None:
        """Prefetch a tensor map when the kernel begins, so that the first copy does not wait for it."""
        ...

    def tma_load(self, f: LlvmFunction, box: Box, mbarrier: str) -> None: ...

    def tma_load_parts(self, f: LlvmFunction, parts: BoxParts, mbarrier: str) -> None:
        """Load some of the parts, and complete the bytes of the others."""
        ...

    def copy_now(self, f: LlvmFunction, boxes: Sequence[Box], mbarrier: str, bytes_: int) -> None:
        """Load boxes by wave 0 and wait for them; the mbarrier is initialized here."""
        ...

    def tma_store(self, f: LlvmFunction, box: Box, more: bool) -> None:
        """Store a box by TMA; with `more`, in one group with the next store."""
        ...

    def wait_tma_stores(self, f: LlvmFunction, pending: int) -> None: ...

    def wait_prior_launch(self, f: LlvmFunction) -> None:
        """Wait until kernels launched earlier have ended and their stores are visible (PDL)."""
        ...

    def launch_dependents(self, f: LlvmFunction) -> None: ...
