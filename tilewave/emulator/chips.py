"""What the emulator holds of each chip: a second opinion, on purpose not read from `tilewave.machine`.

The emulator judges machine code that was made from the records in `machine/`. A wrong number there must not be wrong
here too, so these were written down again, from AMD's documents and from LLVM's; `tests/emulator/test_two_opinions.py`
compares both. Whoever adds a chip to `machine/` can compile for it; to have its code judged, it gets a record here.

Sources: AMD, "CDNA3 / CDNA4 Instruction Set Architecture" (shared memory, number formats, m0); LLVM, "User Guide for
AMDGPU Backend" (ELF flags, granules) and its scheduling models (passes, wait states); the phases of 16-byte reads were
measured by the authors of Triton and of HipKittens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes

ChipName = Literal["gfx942", "gfx950"]
Quads = tuple[tuple[int, ...], ...]
"""Which fours of lanes, of the first 32, are served together."""
QUADS_OF_8_LANES: Quads = ((0, 5), (1, 4), (2, 7), (3, 6))


@dataclass(frozen=True)
class Opinion:
    """One chip."""

    elf_machine: int
    """The lowest byte of a code object's flags."""
    shared_bytes: int
    shared_piece: int
    """Shared memory is given out in multiples of this."""
    read_bytes: int
    """That shared memory delivers in a cycle, in accesses of 4 bytes and more."""
    read_banks: int
    quads: Quads
    """Of 16-byte reads."""
    direct_reach: int
    """The bits of m0 that say where a load into shared memory writes."""
    float8: Mapping[str, Any]
    newer_matrix: bool
    """Whether it has the wider instructions, and waits one state more behind most."""


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
    ),
}
CHIP_NAMES: tuple[ChipName, ...] = tuple(OPINIONS)
UNITS = 4
"""Of a processor; wave w runs on unit w % 4. What follows is the same on all of these chips."""
MOST_WAVES, REGISTERS, REGISTER_PIECE = 8, 512, 8
"""Of a unit: its waves; registers of each lane of all of them; how many are given out at once."""
