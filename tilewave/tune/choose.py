"""The model's choice for a kernel's work and sizes: every legal config with its time, the best first, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewave.cost.prediction import Prediction
from tilewave.cost.work import UNSAID, CutWork
from tilewave.errors import NOWHERE, SymbolError
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.lang.constraints import Constraint, WorkgroupConstraint
from tilewave.lang.cutting import cut_work
from tilewave.lang.symbols import Symbol
from tilewave.records import dataclass
from tilewave.trace import TileWork
from tilewave.tune.machines import TileMachine
from tilewave.tune.space import IN_PLACE, KNOBS, NUM_STAGES, SPLIT, Space

CHOSEN = RemarkKind("{reason}", "write {kept} to keep it, or other values; fitted on {fit}")
SHOWN = 3
"""The number of runner-up configs that a reason names."""


Config = Mapping[Symbol, int]
"""A value for each symbol that is to be decided."""


@dataclass(frozen=True)
class TiledProblem:
    """A kernel whose sizes are known and whose tiles are not."""

    work: TileWork
    constraints: tuple[Constraint, ...]
    values: Mapping[Symbol, Any]
    """Sizes and other symbols, as far as they are known."""
    in_fixed_order: bool = False
    """Whether results are batch-invariant."""

    def sized(self, sizes: Mapping[Symbol, int]) -> TiledProblem:
        return replace(self, values={**self.values, **sizes})

    @property
    def has_tile_order(self) -> bool:
        """Whether workgroups share operands, so that the order of tiles makes a difference."""
        grid = [c for c in self.constraints if isinstance(c, WorkgroupConstraint) and c.primary]
        return len(self.work.products) == 1 and len(grid) > 1

    def cut(self, config: Config) -> CutWork:
        """Return the launch that a config makes of the problem."""
        work = cut_work(self.work, self.constraints, {**self.values, **config})
        knobs = config.get(SPLIT, work.split), config.get(NUM_STAGES, UNSAID), config.get(IN_PLACE, UNSAID)
        return replace(work, in_fixed_order=self.in_fixed_order).with_knobs(*knobs)


@dataclass(frozen=True)
class TileChoice:
    """What was decided, from what, and why."""

    config: Mapping[Symbol, int]
    prediction: Prediction
    order: str = ""
    """The order of tiles if it was chosen; empty if the author gives it or it makes no difference."""
    sizes: str = ""
    """The sizes that the choice is for."""
    considered: int = 1
    illegal: Mapping[str, int] = field(default_factory=dict)
    """Configs that were never compiled, by what there is too little of."""
    others: tuple[TileChoice, ...] = ()
    """The next best."""
    how: str = "the model"
    notes: tuple[str, ...] = ()
    """What else must be said: records that were passed over, and why."""
    record: str = ""
    """The file of the record that says so; nothing where the model chose."""
    ranked: Callable[[], TileChoice] | None = field(default=None, compare=False, repr=False)
    """Returns this choice with all others, which are ranked when somebody asks."""

    def noting(self, notes: Sequence[str]) -> TileChoice:
        """Return this choice with further notes on how it was made."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def values(self) -> dict[str, int]:
        """The config by the names of its symbols."""
        return {s.name: n for s, n in self.config.items()}

    @property
    def tiles(self) -> dict[Symbol, int]:
        """The values of the kernel's symbols."""
        return {s: n for s, n in self.config.items() if s not in KNOBS}

    @property
    def without_stages(self) -> TileChoice:
        """This choice, with the number of stages left to the compiler."""
        return replace(self, config={s: n for s, n in self.config.items() if s != NUM_STAGES})

    def knob(self, symbol: Symbol) -> int:
        """Return the value of a knob; `UNSAID` where it is left to the compiler."""
        return self.config.get(symbol, UNSAID)

    @property
    def text(self) -> str:
        return config_text(self.config, self.order)

    @property
    def reason(self) -> str:
        """One sentence for each: the choice, its time, what was left out."""
        if self.ranked is not None:
            return self.ranked().noting(self.notes).reason
        p = self.prediction
        given = [
            f"no tile was given; {self.how} chose {self.text} for {self.sizes}: "
            f"{seconds_text(p.seconds)} ± {100 * p.error:.0f} %, bottleneck: {p.limit}"
        ]
        if self.others:
            given.append("next " + ", ".join(f"{o.text}: {seconds_text(o.prediction.seconds)}" for o in self.others))
        given.append(f"of {self.considered} configs {illegal_text(self.illegal)}")
        given.append(f"faster would be {p.advice}")
        given += self.notes
        return "; ".join(given)

    def remarks(self) -> Remark:
        """As `why()` shows it."""
        names = ", ".join(f"{s}: {v}" for s, v in self.tiles.items())
        kept = [f"subs={{{names}}}", *(f"{s}={v}" for s, v in self.config.items() if s in KNOBS)]
        return CHOSEN.at(NOWHERE, reason=self.reason, kept=", ".join(kept), fit=self.prediction.fitted_on)


def config_text(config: Config, order: str = "") -> str:
    return ", ".join((*(f"{s}={v}" for s, v in config.items()), *((order,) if order else ())))


def illegal_text(illegal: Mapping[str, int]) -> str:
    if not illegal:
        return "all are legal"
    why = ", ".join(f"{count} by {name}" for name, count in sorted(illegal.items()))
    return f"{sum(illegal.values())} are illegal ({why})"


def seconds_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


@dataclass(frozen=True)
class RankedConfigs:
    """Legal configs, the fastest first, and how many were illegal."""

    legal: tuple[TileChoice, ...]
    illegal: Mapping[str, int]

    @property
    def considered(self) -> int:
        return len(self.legal) + sum(self.illegal.values())

    def choices(self, order: str, sizes: str) -> list[TileChoice]:
        """Return each config as the choice for sizes, in an order of tiles, with those that follow it."""
        first, facts = self.legal[: SHOWN + 1], (order, sizes, self.considered, self.illegal)
        others = [tuple(one for one in first if one is not chosen)[:SHOWN] for chosen in self.legal]
        return [TileChoice(one.config, one.prediction, *facts, o) for one, o in zip(self.legal, others, strict=True)]


def rank(problem: TiledProblem, space: Space, machine: TileMachine) -> RankedConfigs:
    """Return all configs of a space by predicted time; equal ones in the order of the space."""
    found: list[TileChoice] = []
    illegal: Counter[str] = Counter()
    for config in space.configs():
        try:
            work = problem.cut(config)
        except SymbolError:  # the half of an odd number, say
            illegal["whole numbers"] += 1
            continue
        if why := machine.refused(work):
            illegal[why] += 1
        else:
            found.append(TileChoice(config, machine.predict(work)))
    found.sort(key=lambda one: one.prediction.seconds)
    return RankedConfigs(tuple(found), dict(illegal))
