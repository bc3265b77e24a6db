"""What the lowering of lanes asks of a machine that copies and multiplies beside its waves.

Addresses in shared memory are numbers of 32 bits here. Whatever one wave asks for, one of its lanes does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewave.lower.llvm import LlvmFunction


@dataclass(frozen=True)
class SharedRows:
    """An operand in shared memory: rows behind each other whose 16-byte chunks change places within `row_bytes`.

    They run along the depth; those of one that `is_turned`, along what a product has rows of, with one for every step
    of the depth. Where they are longer than `row_bytes`, they go on in the next panel, `panel_bytes` later.
    """

    address: str
    row_bytes: int
    dtype: str
    panel_bytes: int
    is_turned: bool


@dataclass(frozen=True)
class SharedProduct:
    """Sums + a · bᵀ; `sums` are one register each, 64 rows of all columns after the other."""

    a: SharedRows | tuple[str, ...]
    """In shared memory; or held by lanes as they hold sums, 64 rows after the other, two neighbours in a register."""
    b: SharedRows
    rows: int
    columns: int
    depth: int
    sums: tuple[str, ...]
    ignored_bits: int
    """The last ones of each operand, which count as 0."""
    adds: str = ""
    """A number that is 0 where the sums hold nothing yet and count as zeros."""
    later: bool = False
    """It is only begun: `await_products` tells when the sums are there."""


@dataclass(frozen=True)
class Box:
    """A part of an array that has a map, from the slowest axis to the fastest, and where it lies in shared memory."""

    map: str
    at: tuple[str, ...]
    address: str


@dataclass(frozen=True)
class SharedCopy:
    """A part of a box for some workgroups of a cluster where `together`, else that part and the others for this one."""

    mine: Box
    others: tuple[Box, ...]
    signal: str
    rank: str
    """Which workgroup of the cluster this is."""
    sharers: str
    """A bit for each of those workgroups."""
    together: str
    """A truth value, the same in all lanes."""


@dataclass(frozen=True)
class Gathering:
    """Waves that wait for each other: `waves` neighbours; `number` tells barriers apart."""

    number: str
    waves: int
    is_read_later: bool
    """What they stored in shared memory is read by copies, or by products that the machine makes from there."""


class AsynchronousTarget(Protocol):
    @property
    def map_parameter(self) -> str:
        """The LLVM type of a map that a launch passes."""
        ...

    @property
    def tile_alignment(self) -> int:
        """Bytes that a shared memory's address is a multiple of, where copies or products reach it."""
        ...

    @property
    def most_barriers(self) -> int: ...

    def barrier(self, f: LlvmFunction, gathering: Gathering) -> None: ...

    def agree(self, f: LlvmFunction, gathering: Gathering, mine: str) -> str:
        """A truth value: whether `mine` is one in every lane of those who meet."""
        ...

    def share_registers(
        self, f: LlvmFunction, waves: int, of: int, fewest: int, resident: int
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """What `waves` that multiply do first, and what the rest `of` all of them do, which keep `fewest` registers;
        `resident` workgroups share a processor."""
        ...

    def multiply(self, f: LlvmFunction, product: SharedProduct) -> list[str]:
        """The sums when all products are added; of one that is only begun, what becomes of them."""
        ...

    def await_older_products(self, f: LlvmFunction, pending: int) -> None:
        """Go on when at most the last `pending` products are under way."""
        ...

    def await_products(
        self, f: LlvmFunction, pending: int, kind: str, sums: Sequence[str], meanwhile: Sequence[str]
    ) -> list[str]:
        """Sums that are under way, when at most the last `pending` products are; numbers computed meanwhile are floats
        that some arithmetic gave."""
        ...

    def store_fragments(self, f: LlvmFunction, address: str, words: list[str], is_turned: bool) -> None:
        """A block of 8 x 8 elements of 16 bits for each word, spread as sums are, and transposed on their way if asked
        for; lane i says where row i of all of them begins."""
        ...

    def make_signals(self, f: LlvmFunction, wave: int, addresses: list[str], arrivals: int) -> None:
        """That wave makes them, for all."""
        ...

    def after(self, f: LlvmFunction, signal: str, words: Sequence[str]) -> str:
        """The address of a signal, known only once these words are in registers."""
        ...

    def arrive(self, f: LlvmFunction, signal: str, expect: int) -> None: ...

    def arrive_everywhere(self, f: LlvmFunction, signal: str, members: int) -> None:
        """At this signal and at the same one of each of the cluster's workgroups, of which there are `members`."""
        ...

    def cluster_rank(self, f: LlvmFunction) -> str:
        """Which workgroup of its cluster this is."""
        ...

    def cluster_barrier(self, f: LlvmFunction) -> None: ...

    def copy_async_cluster(self, f: LlvmFunction, copy: SharedCopy) -> None: ...

    def await_phase(self, f: LlvmFunction, signal: str, parity: str) -> None: ...

    def expect_map(self, f: LlvmFunction, map_: str) -> None:
        """CopyAsync a map near when the kernel begins, so that the first copy does not wait for it."""
        ...

    def copy_async_signal(self, f: LlvmFunction, box: Box, signal: str) -> None: ...

    def copy_now(self, f: LlvmFunction, boxes: Sequence[Box], signal: str, bytes_: int) -> None:
        """Wave 0 copies, and goes on when it is done; nothing is known of the signal."""
        ...

    def copy_async_out(self, f: LlvmFunction, box: Box, more: bool) -> None:
        """`more`: the next one is awaited together with it."""
        ...

    def await_async_out(self, f: LlvmFunction, pending: int) -> None: ...

    def await_earlier(self, f: LlvmFunction) -> None:
        """Kernels launched before have ended, and what they wrote is seen."""
        ...

    def let_next_start(self, f: LlvmFunction) -> None: ...

    def fill(self, f: LlvmFunction, flag: str) -> None:
        """What this wave stored is seen by whoever finds the flag, an address in global memory, raised."""
        ...

    def fill_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        """The same with a flag for each lane of which `has_one` is 1."""
        ...

    def empty_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        """This wave waits until all flags are raised, one for each lane; those of which `has_one` is 1 lower theirs."""
        ...

    def empty(self, f: LlvmFunction, flag: str) -> None:
        """This wave waits until the flag is raised, sees what was stored before, and lowers it."""
        ...
