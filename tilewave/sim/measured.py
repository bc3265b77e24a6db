"""The measured rows that come with tilewave, as records; `data/README.md` says where each file comes from."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from tilewave.machine import find
from tilewave.records import dataclass
from tilewave.sim.problem import Gemm

SECTOR_BYTES = 32
H200_WORKGROUPS = find("H200").units
WRITES_SEEN = 1.5
"""Sectors that an H200's L2 counts as written for each that a kernel writes: half have their home elsewhere."""


@dataclass(frozen=True)
class ProfilerCounters:
    """One launch under the H200's profiler."""

    gemm: Gemm
    group_m: int
    requests_bytes: int
    l2_hit: float
    hbm_read_bytes: int
    seconds: float
    fitted: bool
    """Whether the model was made with a look at this shape."""

    @property
    def mapping(self) -> str:
        return f"grouped({self.group_m})"

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.gemm.m, self.gemm.n, self.gemm.k

    @property
    def persistent(self) -> bool:
        return self.gemm.workgroups is not None


@dataclass(frozen=True)
class OwnKernel:
    """One launch of tilewave's own kernel under the H200's profiler."""

    gemm: Gemm
    mapping: str
    requests_bytes: int
    l2_hit: float
    hbm_read_bytes: int


@dataclass(frozen=True)
class Rates:
    """Published hit rates and speed of one order on MI355X."""

    gemm: Gemm
    mapping: str
    l2_hit: float
    llc_hit: float
    tflops: float


@dataclass(frozen=True)
class ReorderedSpeeds:
    """Speeds that Wave's document gives for MI300X, in launch order and reordered."""

    gemm: Gemm
    mapping: str
    linear_tflops: float
    reordered_tflops: float


@dataclass(frozen=True)
class Baseline:
    """Speeds of a persistent Triton kernel on H200: the best of four groups, groups of one, columns."""

    gemm: Gemm
    best_tflops: float
    group1_tflops: float
    column_tflops: float


@cache
def counters() -> tuple[ProfilerCounters, ...]:
    """All rows of h200_l2_counters.csv."""
    return tuple(
        _counters(row, _launched(row), float(row["l2_hit_rate_pct"]) / 100, True)
        for row in _rows("h200_l2_counters.csv")
    )


@cache
def unseen_counters() -> tuple[ProfilerCounters, ...]:
    """All rows of h200_unseen_counters.csv."""
    return _counted_reads("h200_unseen_counters.csv")


@cache
def short_counters() -> tuple[ProfilerCounters, ...]:
    """All rows of h200_short_counters.csv, of all three cards."""
    return _counted_reads("h200_short_counters.csv")


@cache
def own_kernels() -> tuple[OwnKernel, ...]:
    """All rows of h200_to_and_fro.csv."""
    return tuple(
        OwnKernel(
            Gemm(*_sizes(row), (128, 256, 64), "f16", workgroups=H200_WORKGROUPS, walk="to-and-fro"),
            row["mapping"],
            int(row["l2_requests_bytes"]),
            float(row["l2_hit_pct"]) / 100,
            int(row["dram_read_bytes"]),
        )
        for row in _rows("h200_to_and_fro.csv")
    )


@cache
def published_rates() -> tuple[Rates, ...]:
    """All rows of published_gemm_cache_rates.csv."""
    return tuple(
        Rates(
            Gemm(int(row["size"]), int(row["size"]), int(row["size"]), _tile(row), "bf16"),
            _published_order(row),
            float(row["l2_hit_pct"]) / 100,
            float(row["llc_hit_pct"]) / 100,
            float(row["tflops"]),
        )
        for row in _rows("published_gemm_cache_rates.csv")
    )


@cache
def reorderings() -> tuple[ReorderedSpeeds, ...]:
    """All rows of wave_reordering.csv."""
    return tuple(
        ReorderedSpeeds(
            Gemm(*_sizes(row), _tile(row), "f16", "f32"),
            f"xcd_contiguous(8) >> grouped({row['group_m']})",
            float(row["linear_tflops"]),
            float(row["reordered_tflops"]),
        )
        for row in _rows("wave_reordering.csv")
    )


@cache
def baselines() -> tuple[Baseline, ...]:
    """All rows of h200_gemm_baselines.csv."""
    return tuple(
        Baseline(
            Gemm(*_sizes(row), (128, 256, 64), "f16", workgroups=H200_WORKGROUPS),
            float(row["triton_persistent_best_tflops"]),
            float(row["triton_group1_tflops"]),
            float(row["triton_column_order_tflops"]),
        )
        for row in _rows("h200_gemm_baselines.csv")
    )


def _counted_reads(name: str) -> tuple[ProfilerCounters, ...]:
    """The rows of a file that counts sectors read and not those written, of which each is a hit."""
    found = []
    for row in _rows(name):
        gemm = _launched(row)
        written = WRITES_SEEN * 2 * gemm.m * gemm.n / SECTOR_BYTES
        hit = (int(row["l2_read_hit_sectors"]) + written) / (int(row["l2_read_sectors"]) + written)
        found.append(_counters(row, gemm, hit, bool(int(row["fitted"]))))
    return tuple(found)


def _counters(row: dict[str, str], gemm: Gemm, l2_hit: float, fitted: bool) -> ProfilerCounters:
    return ProfilerCounters(
        gemm,
        int(row["group_m"]),
        SECTOR_BYTES * int(row["l2_requests_from_sms_sectors"]),
        l2_hit,
        int(row["dram_read_bytes"]),
        1e-9 * int(row["time_ns"]),
        fitted,
    )


def _launched(row: dict[str, str]) -> Gemm:
    workgroups = H200_WORKGROUPS if int(row["persistent"]) else None
    return Gemm(*_sizes(row), _tile(row), "f16", workgroups=workgroups)


def _rows(name: str) -> list[dict[str, str]]:
    text = files("tilewave.sim").joinpath("data").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _sizes(row: dict[str, str]) -> tuple[int, int, int]:
    return int(row["m"]), int(row["n"]), int(row["k"])


def _tile(row: dict[str, str]) -> tuple[int, int, int]:
    return int(row["block_m"]), int(row["block_n"]), int(row["block_k"])


def _published_order(row: dict[str, str]) -> str:
    if row["order"] == "row-major":
        return "grouped(1)"
    return f"xcd_chunked(8, {row['chunk']}) >> grouped({row['window_rows']})"
