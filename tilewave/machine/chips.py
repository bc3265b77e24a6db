"""The chips that kernels are compiled for: one record each, read by passes, backends and the cards of the simulator.

    chip (here)                gfx942     the compiler's view: waves, registers, shared memory, instructions
    card (`cards.py`)          MI300X     what is sold: clock, caches, memory, rates; it names its chip
    matrix instructions        f32_16x16x16_f16 (`matrix.py`): rows, which several chips share

A new chip of a known vendor is a record: `replace(GFX942, name=…)` with what differs, and a row in `CHIPS`. The
emulator does not read these: it checks code that was compiled from them, so it has separate numbers
(`emulator/chips.py`), and a test compares the two.

Shared memory serves a wave in phases: lanes of one phase that access different words of one bank conflict.
"""

from __future__ import annotations

from typing import Literal

from tilewave.machine.description import Source
from tilewave.machine.matrix import ALL, CDNA3, CDNA4, HOPPER
from tilewave.machine.tuning import CDNA_TUNING, HOPPER_TUNING, Tuning
from tilewave.records import dataclass

BANK_BYTES = 4
Phases = tuple[tuple[int, ...], ...]
"""Groups of lanes that are served together."""


def consecutive(bytes_at_once: int, sizes: tuple[int, ...], lanes: int = 64) -> dict[int, Phases]:
    """Return phases of neighbouring lanes, as many as get their words at once; smaller accesses take a word's time."""
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
    """Shared memory of one CU or SM, all of which one workgroup may have."""
    read_banks: int
    write_banks: int
    read_phases: dict[int, Phases]
    write_phases: dict[int, Phases]
    reserved_bytes: int = 0
    """Bytes that each workgroup takes besides those it declares."""

    def for_each_of(self, workgroups: int) -> int:
        """Return the bytes that each of `workgroups` resident on one CU or SM may declare."""
        return (self.bytes + self.reserved_bytes) // workgroups - self.reserved_bytes

    @property
    def widest_bytes(self) -> int:
        """The widest access of a lane."""
        return min(max(self.read_phases), max(self.write_phases))


@dataclass(frozen=True)
class TransposingRead:
    """A load in which `lanes` neighbouring lanes read `rows` rows of as many elements, and each gets a column.

    Each lane gives the address of `rows` neighbours of a row: a row is read by `lanes` / `rows` of them.
    """

    element_bytes: int
    lanes: int
    rows: int


@dataclass(frozen=True)
class Tma:
    """The limits of TMA, which moves boxes between global and shared memory."""

    grain_bytes: int
    """Row strides of an array are multiples of this, and so is the offset of a box in its rows: another offset raises
    an illegal instruction, as measured on an H200."""
    widest_row_bytes: int
    """The longest row of a box; its other sides have `longest_side` elements at most."""
    longest_side: int
    most_axes: int
    pattern_bytes: int
    """Eight of the widest rows, the period of the swizzle: tiles in shared memory are aligned to it."""
    clusters_of_four: int
    """Clusters of four workgroups, one per SM, that run at once: SMs come in GPCs, some of them incomplete."""


@dataclass(frozen=True)
class MatrixUnits:
    """The SIMD units (SM sub-partitions) of a processor, each with waves and registers; wave w runs on w % count."""

    count: int
    waves: int
    """Resident waves of one unit."""
    registers: int
    """32-bit registers of a unit for each lane, shared by all waves on it."""
    register_grain: int
    """The allocation granularity: a wave takes a multiple of this."""


@dataclass(frozen=True)
class Chip:
    """A chip, as the compiler sees it."""

    name: str
    """The name of the target."""
    vendor: Literal["amd", "nvidia"]
    """The vendor, which selects the backend."""
    cpu: str
    """The name that LLVM and the driver use."""
    matrix: str
    """The family of its matrix instructions: those in `matrix.py` that list it."""
    processors: int
    """CUs or SMs of the known cards with this chip; persistent kernels are sized for them."""
    lanes: int
    """Lanes of a wave."""
    most_waves: int
    """The most waves of a workgroup."""
    matrix_units: MatrixUnits
    widest_load_bytes: int
    """The widest load of a lane from global memory."""
    line_bytes: int
    """Cache line of global memory; an unaligned row touches one line more."""
    shared: SharedMemory
    tuning: Tuning
    """The measured thresholds of its family."""
    barriers: int = 1
    """Hardware barriers of a workgroup, each for some of its waves."""
    tma: Tma | None = None
    direct_load_bytes: tuple[int, ...] = ()
    """Sizes that a lane can load directly into shared memory; the bytes of lane l follow those of lane l - 1."""
    transposing_reads: tuple[TransposingRead, ...] = ()
    """Transposing loads from shared memory."""
    converts: tuple[str, ...] = ()
    """8-bit floats with instructions that convert from f32 and back, rounding to nearest even."""
    swaps_rows: bool = False
    """Whether two registers can swap halves of their lanes, or every second 16 of them."""
    nan_extremes: bool = True
    """Whether instructions for the minimum and the maximum of f32 give NaN where an operand is NaN."""
    features: str = ""
    """LLVM features besides those of `cpu`."""
    sources: tuple[Source, ...] = ()

    @property
    def resident_waves(self) -> int:
        """The most resident waves of a CU or SM."""
        return self.matrix_units.count * self.matrix_units.waves

    def workgroups_together(self, waves: int, registers: int, shared_bytes: int) -> int:
        """Return the workgroups resident on a CU or SM, limited by waves, registers per lane and shared memory."""
        units, shared = self.matrix_units, self.shared
        taken = -(-registers // units.register_grain) * units.register_grain * waves
        by_registers = units.count * units.registers // max(1, taken)
        by_shared = (shared.bytes + shared.reserved_bytes) // max(1, shared_bytes + shared.reserved_bytes)
        return min(self.resident_waves // waves, by_registers, by_shared)

    @property
    def register_bytes(self) -> int:
        """Register file of a CU or SM, all of which one workgroup may have."""
        return self.matrix_units.count * self.matrix_units.registers * self.lanes * 4

    @property
    def multiplies(self) -> tuple[str, ...]:
        """The dtypes of matrix operands."""
        rows = (i.dtypes(self.matrix)[:2] for i in ALL if self.matrix in i.chips)
        return tuple(dict.fromkeys(dtype for pair in rows for dtype in pair))

    def source(self, field: str) -> str:
        """Return the source of a number."""
        return next((s.text for s in self.sources if s.field == field), "")


CDNA_ISA = 'AMD, "CDNA3 / CDNA4 Instruction Set Architecture"'
ROCM_SPECS = "AMD GPU specifications, rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
PHASES = "16-byte reads: measured by the authors of Triton (pull request 11365) and of HipKittens; others: consecutive"
CUDA_GUIDE = 'NVIDIA, "CUDA C++ Programming Guide", compute capability 9.0'
PTX_ISA = 'NVIDIA, "PTX ISA"'
HOPPER_PAPER = 'NVIDIA, "H100 Tensor Core GPU Architecture"'

WRITE_PHASES = consecutive(128, (1, 2, 4, 8, 16))
CDNA_UNITS = MatrixUnits(count=4, waves=8, registers=512, register_grain=8)
CDNA_SOURCES = (
    Source("matrix", CDNA_ISA),
    Source("processors", "compute units of the MI300X and MI350X series: " + ROCM_SPECS),
    Source("lanes", CDNA_ISA),
    Source("most_waves", CDNA_ISA),
    Source("matrix_units", CDNA_ISA),
    Source("widest_load_bytes", CDNA_ISA),
    Source("line_bytes", "AMD CDNA 3 white paper (2023)"),
    Source("shared", f"bytes, banks: {CDNA_ISA}; phases of {PHASES}"),
    Source("barriers", CDNA_ISA),
    Source("converts", CDNA_ISA + ", V_CVT_PK_FP8_F32 and its like"),
    Source("direct_load_bytes", 'LLVM, "AMDGPU DMA Operations"'),
    Source("swaps_rows", CDNA_ISA + ", V_PERMLANE16_SWAP_B32 and V_PERMLANE32_SWAP_B32"),
    Source("nan_extremes", CDNA_ISA + ", V_MAX_F32 and V_MAXIMUM3_F32"),
)

ALIGNED = "-unaligned-access-mode"
"""Without this LLVM merges accesses of neighbouring bytes at any alignment, which is right only where the driver has
enabled it on the chip, and slow in shared memory."""

GFX942 = Chip(
    "gfx942",
    vendor="amd",
    cpu="gfx942",
    matrix=CDNA3,
    processors=304,
    lanes=64,
    most_waves=16,
    matrix_units=CDNA_UNITS,
    widest_load_bytes=16,
    line_bytes=128,
    shared=SharedMemory(
        bytes=64 << 10,
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
    tuning=CDNA_TUNING,
    direct_load_bytes=(1, 2, 4),
    nan_extremes=False,
    features=ALIGNED,
    converts=("f8e4m3fnuz", "f8e5m2fnuz"),
    sources=CDNA_SOURCES,
)
GFX950 = Chip(
    "gfx950",
    vendor="amd",
    cpu="gfx950",
    matrix=CDNA4,
    processors=256,
    lanes=64,
    most_waves=16,
    matrix_units=CDNA_UNITS,
    widest_load_bytes=16,
    line_bytes=128,
    shared=SharedMemory(
        bytes=160 << 10,
        read_banks=64,
        write_banks=32,
        read_phases={
            **consecutive(128, (1, 2)),
            **consecutive(256, (4, 8)),
            16: _both_halves(_runs((0, 3), (12, 15), (20, 27)), _runs((4, 11), (16, 19), (28, 31))),
        },
        write_phases=WRITE_PHASES,
    ),
    tuning=CDNA_TUNING,
    direct_load_bytes=(1, 2, 4, 12, 16),
    transposing_reads=(TransposingRead(element_bytes=2, lanes=16, rows=4),),
    swaps_rows=True,
    features=ALIGNED,
    converts=("f8e4m3fn", "f8e5m2"),
    sources=(*CDNA_SOURCES, Source("transposing_reads", CDNA_ISA + ", DS_READ_B64_TR_B16")),
)

NVIDIA_LANES = 32
"""Lanes of a wave (warp) on every NVIDIA chip."""
TENSOR_MAPS = Tma(
    grain_bytes=16,
    widest_row_bytes=128,
    longest_side=256,
    most_axes=5,
    pattern_bytes=1024,
    clusters_of_four=30,
)
"""The TMA limits that tensor maps are checked against."""
SM_90A = Chip(
    "sm_90a",
    vendor="nvidia",
    cpu="sm_90a",
    features="+ptx81",  # which adds vectors to memory
    matrix=HOPPER,
    processors=132,
    lanes=NVIDIA_LANES,
    most_waves=32,
    matrix_units=MatrixUnits(count=4, waves=16, registers=512, register_grain=8),
    widest_load_bytes=16,
    line_bytes=128,
    shared=SharedMemory(
        bytes=227 << 10,
        read_banks=32,
        write_banks=32,
        read_phases=consecutive(128, (1, 2, 4, 8, 16), NVIDIA_LANES),
        write_phases=consecutive(128, (1, 2, 4, 8, 16), NVIDIA_LANES),
        reserved_bytes=1 << 10,
    ),
    tuning=HOPPER_TUNING,
    barriers=16,
    tma=TENSOR_MAPS,
    sources=(
        Source("matrix", PTX_ISA + ", wgmma"),
        Source("processors", "of H100 and H200 in their SXM form: " + HOPPER_PAPER),
        Source("lanes", CUDA_GUIDE),
        Source("most_waves", CUDA_GUIDE),
        Source("matrix_units", f"64 warps, 65,536 registers an SM: {CUDA_GUIDE}; four sub-partitions: {HOPPER_PAPER}"),
        Source("widest_load_bytes", PTX_ISA),
        Source("line_bytes", CUDA_GUIDE),
        Source("shared", CUDA_GUIDE),
        Source("barriers", PTX_ISA + ", bar.sync"),
        Source("swaps_rows", PTX_ISA + ": its lanes exchange words by shfl.sync alone"),
        Source("nan_extremes", PTX_ISA + ", max.NaN.f32"),
        Source("tma", f"{PTX_ISA}, tensor maps; clusters: cudaOccupancyMaxActiveClusters on an H200"),
    ),
)
CHIPS = {machine.name: machine for machine in (GFX942, GFX950, SM_90A)}
