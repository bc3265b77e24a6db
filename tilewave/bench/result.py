"""What a benchmark of the GEMM found: who was right, who was how fast, on which machine, with which settings."""

from __future__ import annotations

import math
from typing import Any

from tilewave.bench.contestant import LeftOut
from tilewave.bench.measured_on import MeasuredOn
from tilewave.bench.rounds import MODES, Rounds, geometric_mean
from tilewave.ir.types import DType, dims
from tilewave.records import dataclass

Shape = tuple[int, int, int]
CUBLAS = "cublas"
"""Whom the others are compared with."""


@dataclass(frozen=True)
class Settings:
    """The settings of a GEMM benchmark."""

    shapes: tuple[Shape, ...]
    dtype: DType
    out: DType
    tile: Shape
    mappings: tuple[str, ...]
    against: tuple[str, ...]
    modes: str
    rounds: int
    seed: int
    epilogue: str = ""
    """What follows the sums, or nothing."""
    ablations: tuple[str, ...] = ()
    """Kernels of ours with an optimisation left out."""

    @property
    def pieces(self) -> int:
        """The number of pieces of work that progress counts."""
        return len(self.shapes) * (1 + len(MODES[self.modes]) * self.rounds)

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": "gemm",
            "shapes": [list(shape) for shape in self.shapes],
            "dtype": self.dtype.name,
            "out": self.out.name,
            "tile": list(self.tile),
            "mappings": list(self.mappings),
            "against": list(self.against),
            "mode": self.modes,
            "rounds": self.rounds,
            "seed": self.seed,
            "epilogue": self.epilogue,
            "ablations": list(self.ablations),
        }


@dataclass(frozen=True)
class Checked:
    """A contestant's result compared with float64: ‖C - want‖ / ‖want‖, its bound, and three launches compared."""

    contestant: str
    error: float
    bound: float
    bitwise_equal: bool
    writes: DType
    is_ours: bool

    @property
    def passed(self) -> bool:
        return self.error <= self.bound and (self.bitwise_equal or not self.is_ours)

    def to_json(self) -> dict[str, Any]:
        return {
            "contestant": self.contestant,
            "relative_error": self.error if math.isfinite(self.error) else None,
            "bound": self.bound,
            "bitwise_equal": self.bitwise_equal,
            "writes": self.writes.name,
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Result:
    """One shape."""

    shape: Shape
    checks: tuple[Checked, ...]
    failed: tuple[LeftOut, ...]
    rounds: tuple[Rounds, ...]
    """One for each mode; only those take part whose result is right."""
    launched_by: str
    """`CUDA graphs`, or the fallback and its reason."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return dims(self.shape)

    @property
    def operations(self) -> int:
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def passed(self) -> bool:
        """Whether everything of ours took part and is right; a baseline's fault is its own."""
        wrong = any(check.is_ours and not check.passed for check in self.checks)
        return not wrong and not any(failed.is_ours for failed in self.failed)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "operations": self.operations,
            "launched_by": self.launched_by,
            "correctness": [check.to_json() for check in self.checks],
            "left_out": [{"contestant": failed.contestant, "why": failed.why} for failed in self.failed],
            "modes": [rounds.to_json(self.operations) for rounds in self.rounds],
        }


@dataclass(frozen=True)
class GemmReport:
    """Everything."""

    settings: Settings
    machine: MeasuredOn
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def notes(self) -> tuple[str, ...]:
        given = [f"{result.name}: {note}" for result in self.results for note in result.notes]
        for result in self.results:
            given += [f"{result.name}: {f.contestant} is left out: {f.why}" for f in result.failed]
            given += [f"{result.name}: {c.contestant} is wrong and not timed" for c in result.checks if not c.passed]
            given += [
                f"{result.name}: {c.contestant} is not deterministic from launch to launch"
                for c in result.checks
                if not c.bitwise_equal
            ]
        return tuple(given)

    def geometric_means(self, mode: str) -> dict[str, float]:
        """Return the geometric mean of the ratios to the baseline, for each contestant timed on every shape."""
        found: dict[str, list[float]] = {}
        for result in self.results:
            for rounds in result.rounds:
                for name in rounds.contestants if rounds.mode.name == mode else ():
                    if ratio := rounds.ratio(name):
                        found.setdefault(name, []).append(ratio.median)
        whole = {name: ratios for name, ratios in found.items() if len(ratios) == len(self.results)}
        return {name: geometric_mean(ratios) for name, ratios in whole.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything, every sample in the order in which it was taken."""
        modes = MODES[self.settings.modes]
        return {
            **self.machine.to_json(),
            "settings": self.settings.to_json(),
            "passed": self.passed,
            "notes": list(self.notes),
            "results": [result.to_json() for result in self.results],
            "geometric_means": {mode.name: self.geometric_means(mode.name) for mode in modes},
        }
