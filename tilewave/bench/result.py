"""What a benchmark found: who was right, who was how fast, on which machine, with which settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewave.bench.rounds import Rounds, geometric_mean
from tilewave.ir.types import DType, dims

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

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
    rungs: tuple[str, ...] = ()
    """Kernels of ours with an optimisation left out."""


@dataclass(frozen=True)
class Machine:
    """What it was measured on."""

    device: str
    driver: str
    torch: str
    versions: dict[str, str] = field(default_factory=dict)
    """Of the rivals' packages."""


@dataclass(frozen=True)
class Checked:
    """A contestant's result beside float64: ‖C - want‖ / ‖want‖, what that may be, and three launches compared."""

    contestant: str
    error: float
    bound: float
    same_bits: bool
    writes: DType
    is_ours: bool

    @property
    def passed(self) -> bool:
        return self.error <= self.bound and (self.same_bits or not self.is_ours)


@dataclass(frozen=True)
class Failed:
    """A contestant that could not take part, and why."""

    contestant: str
    why: str
    is_ours: bool


@dataclass(frozen=True)
class Result:
    """One shape."""

    shape: Shape
    checks: tuple[Checked, ...]
    failed: tuple[Failed, ...]
    rounds: tuple[Rounds, ...]
    """One for each mode; only those take part whose result is right."""
    launched_by: str
    """`CUDA graphs`, or what stood in their place and why."""
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
        """Whether everything of ours took part and is right; a rival's fault is its own."""
        wrong = any(check.is_ours and not check.passed for check in self.checks)
        return not wrong and not any(failed.is_ours for failed in self.failed)


@dataclass(frozen=True)
class Report:
    """Everything."""

    settings: Settings
    machine: Machine
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def notes(self) -> tuple[str, ...]:
        told = [f"{result.name}: {note}" for result in self.results for note in result.notes]
        for result in self.results:
            told += [f"{result.name}: {f.contestant} is left out: {f.why}" for f in result.failed]
            told += [f"{result.name}: {c.contestant} is wrong and not timed" for c in result.checks if not c.passed]
            told += [
                f"{result.name}: {c.contestant} gives other bits from launch to launch"
                for c in result.checks
                if not c.same_bits
            ]
        return tuple(told)

    def geometric_means(self, mode: str) -> dict[str, float]:
        """Of the ratios to the baseline, for each contestant that has one on every shape."""
        found: dict[str, list[float]] = {}
        for result in self.results:
            for rounds in result.rounds:
                for name in rounds.contestants if rounds.mode.name == mode else ():
                    if ratio := rounds.ratio(name):
                        found.setdefault(name, []).append(ratio.median)
        whole = {name: ratios for name, ratios in found.items() if len(ratios) == len(self.results)}
        return {name: geometric_mean(ratios) for name, ratios in whole.items()}
