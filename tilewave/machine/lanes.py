"""What the lane level must know of a chip: waves, the widest load, and how shared memory serves lanes.

Shared memory answers a wave in phases: lanes of one phase that want different words of one bank wait for each other.

Sources: AMD, "CDNA3 / CDNA4 Instruction Set Architecture" (waves, sizes, banks). Phases of 16-byte reads are no part of
AMD's documents: they were measured by the authors of Triton (its pull request 11365) and of HipKittens; other widths
take consecutive lanes. LLVM, "AMDGPU DMA Operations" (what lanes load into shared memory directly). NVIDIA, "CUDA C++
Programming Guide" (waves, shared memory, banks, cache lines) and "PTX ISA" (tensor maps).
"""

from __future__ import annotations

from dataclasses import dataclass

BANK_BYTES = 4
Phases = tuple[tuple[int, ...], ...]
"""Groups of lanes that are served together."""


def consecutive(bytes_at_once: int, sizes: tuple[int, ...], lanes: int = 64) -> dict[int, Phases]:
    """Neighbouring lanes, as many as get their words at once; what is smaller than a word takes a word's time."""
    found = {}
    for size in sizes:
        together = min(lanes, bytes_at_once // max(size, BANK_BYTES))
        found[size] = tuple(tuple(range(first, first + together)) for first in range(0, lanes, together))
    return found


def _runs(*spans: tuple[int, int]) -> tuple[int, ...]:
    return tuple(lane for first, last in spans for lane in range(first, last + 1))


def _both_halves(*groups: tuple[int, ...]) -> Phases:
    return (*groups, *(tuple(lane + 32 for lane in group) for group in groups))


@dataclass(frozen=True)
class SharedMemory:
    """Banks of 4 bytes, and which lanes are served together, by the bytes of an access."""

    bytes: int
    read_banks: int
    write_banks: int
    read_phases: dict[int, Phases]
    write_phases: dict[int, Phases]


@dataclass(frozen=True)
class CopyEngine:
    """What moves boxes between global and shared memory by itself."""

    grain_bytes: int
    """Rows of an array begin a whole multiple of this apart, and a box at a multiple of it in its rows: a copy that
    begins elsewhere ends in an illegal instruction, as an H200 showed."""
    widest_row_bytes: int
    """Of a box; its other sides have `longest_side` elements at most."""
    longest_side: int
    most_axes: int
    line_bytes: int
    """Of the cache that it reads through; a row that begins elsewhere touches one line more."""


@dataclass(frozen=True)
class LaneMachine:
    """A chip, as one workgroup sees it."""

    name: str
    lanes: int
    most_waves: int
    widest_load_bytes: int
    shared: SharedMemory
    copy_engine: CopyEngine | None = None
    direct_load_bytes: tuple[int, ...] = ()
    """What a lane can load into shared memory without a register; lane l's bytes go behind those of lane l - 1."""


WRITE_PHASES = consecutive(128, (1, 2, 4, 8, 16))

GFX942 = LaneMachine(
    "gfx942",
    lanes=64,
    most_waves=16,
    widest_load_bytes=16,
    shared=SharedMemory(
        bytes=65536,
        read_banks=32,
        write_banks=32,
        read_phases={
            **consecutive(128, (1, 2, 4, 8)),
            16: _both_halves(
                _runs((0, 3), (20, 23)), _runs((4, 7), (16, 19)), _runs((8, 11), (28, 31)), _runs((12, 15), (24, 27))
            ),
        },
        write_phases=WRITE_PHASES,
    ),
    direct_load_bytes=(1, 2, 4),
)
GFX950 = LaneMachine(
    "gfx950",
    lanes=64,
    most_waves=16,
    widest_load_bytes=16,
    shared=SharedMemory(
        bytes=163840,
        read_banks=64,
        write_banks=32,
        read_phases={
            **consecutive(128, (1, 2)),
            **consecutive(256, (4, 8)),
            16: _both_halves(_runs((0, 3), (12, 15), (20, 27)), _runs((4, 11), (16, 19), (28, 31))),
        },
        write_phases=WRITE_PHASES,
    ),
    direct_load_bytes=(1, 2, 4, 12, 16),
)
SM_90A = LaneMachine(
    "sm_90a",
    lanes=32,
    most_waves=32,
    widest_load_bytes=16,
    shared=SharedMemory(
        bytes=232448,
        read_banks=32,
        write_banks=32,
        read_phases=consecutive(128, (1, 2, 4, 8, 16), lanes=32),
        write_phases=consecutive(128, (1, 2, 4, 8, 16), lanes=32),
    ),
    copy_engine=CopyEngine(grain_bytes=16, widest_row_bytes=128, longest_side=256, most_axes=5, line_bytes=128),
)
LANE_MACHINES = {machine.name: machine for machine in (GFX942, GFX950, SM_90A)}
