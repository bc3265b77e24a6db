"""What the model knows of a compute unit beyond `emulator/chips.py`: rates and latencies, each with its source.

Times are in slots of 4 cycles, the time of one pass of a matrix instruction, or in cycles where the name says so.
"""

from __future__ import annotations

from tilewave.emulator.chips import CHIP_NAMES, OPINIONS, ChipName
from tilewave.emulator.statistics import GLOBAL_BYTES, SHARED_WRITE_BYTES
from tilewave.machine.description import Source
from tilewave.records import dataclass

SLOT_CYCLES = 4
"""Cycles of a slot; in each, a SIMD issues at most one instruction of a wave and one of each kind."""


@dataclass(frozen=True)
class ComputeUnit:
    """The rates, queues and latencies of one compute unit."""

    chip: ChipName
    shared_read_bytes: float
    """Bytes per cycle that LDS delivers to all waves of the compute unit; the next field is for writes."""
    shared_write_bytes: float
    l1_bytes: float
    """Bytes per cycle that the vector L1 cache accepts requests for."""
    load_bytes: float
    """Bytes per cycle that global loads deliver to this compute unit."""
    load_latency_cycles: float
    """From the issue of a global load to its data."""
    shared_latency_cycles: float = 64
    shared_write_latency_cycles: float = 16
    store_latency_cycles: float = 200
    scalar_load_latency_cycles: float = 200
    transcendental_slots: int = 4
    branch_slots: int = 4
    matrix_to_vector_slots: int = 3
    """After the passes of a matrix instruction, until another instruction may read the result."""
    matrix_chain_slots: int = 0
    """After the passes, until a matrix instruction may accumulate onto the result."""
    shared_queue_slots: int = 16
    """How much work of LDS may be queued before no further access is issued."""
    global_queue_slots: int = 64
    sources: tuple[Source, ...] = ()


ASSUMED = "assumed; "


def _compute_unit(chip: ChipName) -> ComputeUnit:
    has = OPINIONS[chip]
    return ComputeUnit(
        chip,
        shared_read_bytes=has.read_bytes,
        shared_write_bytes=SHARED_WRITE_BYTES,
        l1_bytes=GLOBAL_BYTES,
        load_bytes=GLOBAL_BYTES,
        load_latency_cycles=has.load_latency_cycles,
        sources=(
            Source("shared_read_bytes", "emulator/chips.py"),
            Source("shared_write_bytes", "AMD CDNA 3 white paper (2023): 128 bytes per cycle"),
            Source("l1_bytes", "64 bytes per cycle: AMD CDNA 3 white paper (2023)"),
            Source("load_bytes", ASSUMED + "as fast as L1"),
            Source("load_latency_cycles", has.load_latency_source),
            Source("shared_latency_cycles", ASSUMED + "48 to 128 cycles change a GEMM's utilization by 0.06"),
            Source("shared_write_latency_cycles", ASSUMED + "barriers come later than this"),
            Source("store_latency_cycles", ASSUMED + "no loop here waits for a store"),
            Source("scalar_load_latency_cycles", ASSUMED + "few loops load scalars"),
            Source("transcendental_slots", ASSUMED + "a quarter of the rate of other instructions"),
            Source("branch_slots", ASSUMED + "an instruction buffer is filled again"),
            Source("matrix_to_vector_slots", "LLVM's wait states (GCNHazardRecognizer)"),
            Source("matrix_chain_slots", "LLVM's wait states: none for the same accumulator"),
            Source("shared_queue_slots", ASSUMED + "a few instructions"),
            Source("global_queue_slots", ASSUMED + "a few instructions"),
        ),
    )


COMPUTE_UNITS: dict[ChipName, ComputeUnit] = {chip: _compute_unit(chip) for chip in CHIP_NAMES}
