"""What the emulator knows about each chip: a second opinion, deliberately not read from `tilewave.machine`.

The emulator checks machine code that was compiled from the records in `machine/`. A wrong number there must not be
wrong here too, so these numbers were written independently, from AMD's documents and from LLVM's;
`tests/emulator/test_two_opinions.py` compares both. A chip that is added to `machine/` can be compiled for; to emulate
its code, add a record here.

Sources: AMD, "CDNA3 / CDNA4 Instruction Set Architecture" (shared memory, number formats, m0); LLVM, "User Guide for
AMDGPU Backend" (ELF flags, granules) and its scheduling models (passes, wait states); the phases of 16-byte reads were
measured by the authors of Triton and of HipKittens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes

from tilewave.records import dataclass

ChipName = Literal["gfx942", "gfx950"]
Quads = tuple[tuple[int, ...], ...]
"""Groups of four lanes, among the first 32, that shared memory serves together."""
QUADS_OF_8_LANES: Quads = ((0, 5), (1, 4), (2, 7), (3, 6))

FITTED = "fitted to published launch times of AMD's GEMM kernels (aiter e4048607a5): "


@dataclass(frozen=True)
class Opinion:
    """One chip."""

    elf_machine: int
    """The lowest byte of a code object's flags."""
    shared_bytes: int
    shared_piece: int
    """Shared memory is given out in multiples of this."""
    read_bytes: int
    """Bytes that shared memory delivers per cycle, in accesses of 4 bytes and more."""
    read_banks: int
    quads: Quads
    """Groups of lanes that a 16-byte read serves together."""
    direct_reach: int
    """The bits of m0 that say where a load into shared memory writes."""
    float8: Mapping[str, Any]
    newer_matrix: bool
    """Whether the chip has the wider matrix instructions, and needs one more wait state after most of them."""
    load_latency_cycles: int
    """A usual latency of global loads in a matrix kernel, from issue to data."""
    load_latency_source: str


OPINIONS: dict[ChipName, Opinion] = {
    "gfx942": Opinion(
        elf_machine=0x4C,
        shared_bytes=65536,
        shared_piece=512,
        read_bytes=128,
        read_banks=32,
        quads=QUADS_OF_8_LANES,
        direct_reach=0xFFFF,
        float8={"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz},
        newer_matrix=False,
        load_latency_cycles=500,
        load_latency_source=FITTED + "400 to 600 cycles by its f8 and i8 kernels",
    ),
    "gfx950": Opinion(
        elf_machine=0x4F,
        shared_bytes=163840,
        shared_piece=1280,
        read_bytes=256,
        read_banks=64,
        quads=((0, 3, 5, 6), (1, 2, 4, 7)),
        direct_reach=0x3FFFF,
        float8={"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2},
        newer_matrix=True,
        load_latency_cycles=650,
        load_latency_source=FITTED + "600 to 700 cycles by its f8 kernels, 1200 by those of f4",
    ),
}
CHIP_NAMES: tuple[ChipName, ...] = tuple(OPINIONS)
UNITS = 4
"""SIMD units of a compute unit; wave w runs on unit w % 4. The constants below are the same on all of these chips."""
MOST_WAVES, REGISTERS, REGISTER_PIECE = 8, 512, 8
"""Limits of one SIMD unit: the most waves, the registers per lane for all of them, and the allocation granule."""
