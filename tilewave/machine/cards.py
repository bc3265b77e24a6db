"""The known cards, as data: one record each, every number with its source.

Facts of a card's chip (`chips.py`) are read there: CUs or SMs, shared memory, the f8 formats.

Another card is added by a TOML file (`docs/targets/machines.md`), read with `tilewave.machine.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from tilewave.machine.chips import GFX942, GFX950, ROCM_SPECS, SM_90A, Chip
from tilewave.machine.description import (
    L2,
    Hbm,
    LastLevel,
    Machine,
    MachineError,
    Merging,
    PowerLimit,
    Rate,
    Source,
    SustainedClock,
    UnitRun,
)

MIB = 1 << 20
GB, TB = 10**9, 1e12
TFLOPS = 1e12

CDNA3 = "AMD CDNA 3 white paper (2023)"
MI325X_SHEET = "AMD Instinct MI325X data sheet (2024)"
MI350_SHEET = "AMD Instinct MI350 series data sheets (2025)"
HOT_CHIPS = "AMD at Hot Chips 2025: MI350X up to 2.2 GHz, MI355X up to 2.4 GHz"
INFINITY_CACHE = "256 MiB: " + ROCM_SPECS + "; 17 TB/s peak: AMD's launch of MI300X (2023)"
MAF = 'AMD, "Measuring Max-Achievable FLOPs, part 2" (February 2025), 4096x4864x32896'
AITER = "launches of AMD's own kernels (aiter e4048607a5), by benchmarks/fit_amd.py"
ROUND_ROBIN = "workgroup w to XCD w % 8: Wave, Workgroup Reordering; rocRoller, Workgroup Mapping"
HOPPER = "NVIDIA H100 architecture white paper: 132 SMs, 50 MB L2, tensor rates at 1.83 GHz"
H200_SHEET = "NVIDIA H200 data sheet: 141 GB, 4.8 TB/s; the compute of H100 SXM"
H200_MERGING = "four: probes on one H200; of sixteen units: counted requests of launches of one tile a unit (2026-11)"
H200_PROBES = "read off one H200 with small probe kernels (2026-11)"


def _matrix_rates(chip: Chip, f16: float, f8: float, **others: float) -> tuple[Rate, ...]:
    """Return the rates of matrix products: f16 and bf16 have one rate, as have the chip's f8 formats and i8."""
    f8_names = [dtype for dtype in chip.multiplies if dtype.startswith("f8")]
    rates = {"f16": f16, "bf16": f16, **dict.fromkeys((*f8_names, "i8"), f8), **others}
    return tuple(Rate(dtype, tflops * TFLOPS) for dtype, tflops in rates.items())


ZEROS = 1.51
"""MI300X, by the same source as `MAF`: the clock on zeros, relative to that on random data."""


def _power_limit(**hz: float) -> PowerLimit:
    return PowerLimit(tuple(SustainedClock(dtype, clock) for dtype, clock in hz.items()), zeros=ZEROS)


def _sustained(tflops: float, hz: float, rate: float, rate_hz: float) -> float:
    """Return the clock with matrix units that never stop, from the speed of a product and the clock it ran at."""
    utilization = tflops / rate * rate_hz / hz
    return float(hz * utilization ** (1 / 3))


def _amd_sources(units: str, clock: str, rates: str, hbm: str, last_level: str, power: str) -> tuple[Source, ...]:
    return (
        *((Source("power", power),) if power else ()),
        Source("xcds", units),
        Source("units_per_xcd", units),
        Source("clock_hz", clock),
        Source("rates", rates),
        Source("l2", "4 MiB a XCD: " + ROCM_SPECS + "; 128-byte lines, 16 ways: " + CDNA3),
        Source("hbm", hbm),
        Source("last_level", last_level),
        Source("shared_bytes", "LDS of a compute unit: " + ROCM_SPECS),
        Source("dispatch_order", ROUND_ROBIN),
    )


XCDS = 8
AMD_L2 = L2(4 * MIB, line_bytes=GFX942.line_bytes, ways=16, holds_writes=False)

MI300X = Machine(
    name="MI300X",
    target=GFX942.name,
    xcds=XCDS,
    units_per_xcd=GFX942.processors // XCDS,
    clock_hz=2.1e9,
    rates=_matrix_rates(GFX942, 1307.4, 2614.9, f32=163.4, f64=163.4),
    l2=AMD_L2,
    hbm=Hbm(192 * GB, 5.3 * TB),
    last_level=LastLevel(256 * MIB, 17.2 * TB),
    shared_bytes=GFX942.shared.bytes,
    power=_power_limit(
        f16=_sustained(654, 1.115e9, 1307.4, 2.1e9),
        bf16=_sustained(708, 1.207e9, 1307.4, 2.1e9),
    ),
    sources=_amd_sources(
        CDNA3, CDNA3, CDNA3, CDNA3, INFINITY_CACHE, f"654 TFLOP/s (f16) at 1115 MHz, 708 (bf16) at 1207: {MAF}"
    ),
)
MI308X_CLOCK, MI308X_CUS = 1.18e9, 80
MI308X_F16 = 2048 * MI308X_CUS * MI308X_CLOCK / TFLOPS
MI308X = Machine(
    name="MI308X",
    target=GFX942.name,
    xcds=4,
    units_per_xcd=MI308X_CUS // 4,
    clock_hz=MI308X_CLOCK,
    rates=_matrix_rates(GFX942, MI308X_F16, 2 * MI308X_F16),
    l2=AMD_L2,
    hbm=MI300X.hbm,
    last_level=MI300X.last_level,
    shared_bytes=GFX942.shared.bytes,
    sources=_amd_sources(
        "80 CUs: aiter's tuned launches; on 4 XCDs: assumed",
        f"fitted to {AITER}: one clock, whatever the load",
        "those of MI300X per cycle and CU (2048 and 4096), at 1.18 GHz",
        "assumed to be that of MI300X",
        "assumed to be that of MI300X",
        "",
    ),
)
MI325X = Machine(
    name="MI325X",
    target=GFX942.name,
    xcds=XCDS,
    units_per_xcd=GFX942.processors // XCDS,
    clock_hz=2.1e9,
    rates=_matrix_rates(GFX942, 1307.4, 2614.9, f32=163.4, f64=163.4),
    l2=AMD_L2,
    hbm=Hbm(256 * GB, 6.0 * TB),
    last_level=LastLevel(256 * MIB),
    shared_bytes=GFX942.shared.bytes,
    power=_power_limit(
        f16=_sustained(794, 1.354e9, 1307.4, 2.1e9),
        bf16=_sustained(843, 1.447e9, 1307.4, 2.1e9),
    ),
    sources=_amd_sources(
        ROCM_SPECS,
        MI325X_SHEET,
        MI325X_SHEET,
        MI325X_SHEET,
        ROCM_SPECS,
        f"794 TFLOP/s (f16) at 1354 MHz, 843 (bf16) at 1447: {MAF}",
    ),
)
MI355X_POWER = _power_limit(f16=1.5e9, bf16=1.5e9, f8e4m3fn=1.54e9, f8e5m2=1.54e9)
MI350X = Machine(
    name="MI350X",
    target=GFX950.name,
    xcds=XCDS,
    units_per_xcd=GFX950.processors // XCDS,
    clock_hz=2.2e9,
    rates=_matrix_rates(GFX950, 2306.9, 4613.7),
    l2=AMD_L2,
    hbm=Hbm(288 * GB, 8.0 * TB),
    last_level=LastLevel(256 * MIB),
    shared_bytes=GFX950.shared.bytes,
    power=MI355X_POWER,
    sources=_amd_sources(
        ROCM_SPECS,
        HOT_CHIPS,
        "those of MI355X a cycle (4096 and 8192 a unit), at 2.2 GHz",
        MI350_SHEET,
        ROCM_SPECS,
        "assumed to be those of MI355X",
    ),
)
MI355X = Machine(
    name="MI355X",
    target=GFX950.name,
    xcds=XCDS,
    units_per_xcd=GFX950.processors // XCDS,
    clock_hz=2.4e9,
    rates=_matrix_rates(GFX950, 2516.6, 5033.2),
    l2=AMD_L2,
    hbm=Hbm(288 * GB, 8.0 * TB),
    last_level=LastLevel(256 * MIB),
    shared_bytes=GFX950.shared.bytes,
    power=MI355X_POWER,
    sources=_amd_sources(ROCM_SPECS, HOT_CHIPS, MI350_SHEET, MI350_SHEET, ROCM_SPECS, f"fitted to {AITER}"),
)

# A GPC is filled before the next; the first GPC that the dispatcher fills changes from launch to launch, and the sizes
# of GPCs from card to card. That changes bytes from memory by under 1 %, partition crossings by 2 %. Merge groups do
# not follow from this order, which is that of one launch, but from counters of many: sixteen units after sixteen.
HOPPER_DISPATCH_ORDER = (
    UnitRun(8, partition=0),
    UnitRun(18, partition=1),
    UnitRun(8, partition=0),
    UnitRun(16, partition=1),
    UnitRun(16, partition=1),
    UnitRun(16, partition=1),
    UnitRun(16, partition=0),
    UnitRun(16, partition=0),
    UnitRun(18, partition=0),
)


def _hopper(name: str, l2_bytes: int, hbm: Hbm, l2_source: str, memory_source: str) -> Machine:
    return Machine(
        name=name,
        target=SM_90A.name,
        xcds=1,
        units_per_xcd=SM_90A.processors,
        clock_hz=1.83e9,
        rates=_matrix_rates(SM_90A, 989.4, 1978.9, f64=66.9),
        l2=L2(l2_bytes, partitions=2, line_bytes=SM_90A.line_bytes),
        hbm=hbm,
        shared_bytes=SM_90A.shared.bytes,
        dispatch_order=HOPPER_DISPATCH_ORDER,
        merging=Merging(4, units=16),
        sources=(
            Source("xcds", HOPPER),
            Source("units_per_xcd", HOPPER),
            Source("clock_hz", HOPPER),
            Source("rates", HOPPER),
            Source("l2", l2_source),
            Source("hbm", memory_source),
            Source("shared_bytes", SM_90A.source("shared")),
            Source("dispatch_order", H200_PROBES),
            Source("merging", H200_MERGING),
        ),
    )


H100 = _hopper("H100", 50 * MIB, Hbm(80 * GB, 3.35 * TB), HOPPER, "NVIDIA H100 SXM data sheet: 80 GB, 3.35 TB/s")
H200 = _hopper(
    "H200", 60 * MIB, Hbm(141 * GB, 4.8 * TB), "as CUDA reports it on the card; two partitions: probes", H200_SHEET
)

MACHINES: dict[str, Machine] = {m.name: m for m in (MI300X, MI325X, MI350X, MI355X, MI308X, H100, H200)}
STANDING_FOR: dict[str, Machine] = {m.target: m for m in (MI300X, MI355X, H200)}
"""By chip: the card that predictions are for by default."""


def find(name: str) -> Machine:
    """Return a machine by its name, in any case."""
    return find_among(name, MACHINES, "; your own file is read with --machine chip.toml")


def find_among(name: str, machines: Mapping[str, Machine], besides: str = "") -> Machine:
    """Return a machine by its name, in any case; raise MachineError with the nearest name where there is none.

    For the name of a chip the error suggests its default card. `besides` says what else can be named.
    """
    word = str(name).strip().lower()
    for known, machine in machines.items():
        if known.lower() == word:
            return machine
    near = get_close_matches(word.upper(), machines, 1, 0.5)
    meant = STANDING_FOR[word].name if word in STANDING_FOR else near[0] if near else ""
    guess = f"; did you mean {meant!r}?" if meant else ""
    raise MachineError(f"unknown machine {name!r}{guess}", remedy=f"The machines are {', '.join(machines)}{besides}.")
