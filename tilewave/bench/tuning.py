"""Time points of a kernel's space here: each is compiled, held against the kernel's own program, and timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewave.backend.protocol import Backend
from tilewave.backend.targets import TARGETS, target_named
from tilewave.bench.devices import device_of
from tilewave.bench.kernel import KernelSettings, measure_kernels
from tilewave.bench.rounds import Rounds
from tilewave.compile import wave_compile
from tilewave.compiled import Compiled
from tilewave.emulator.findings import UnsupportedCode
from tilewave.errors import TargetError, TilewaveError, first_line, here
from tilewave.lang.kernel import WaveKernel, missing_sizes, missing_text
from tilewave.lang.open_tiles import said_of
from tilewave.lang.symbols import Symbol
from tilewave.lang.tuning import Tune
from tilewave.options import WaveCompileOptions, as_chosen, want_free, want_tunable
from tilewave.records import dataclass
from tilewave.tune.choose import TileChoice
from tilewave.tune.default import MOST_TRIED, TunableKernel
from tilewave.tune.records import STRENGTHS, RecordKey
from tilewave.tune.search import IN_TURN, RUNS, Advance, ConfigTime, Spread, Tuned, search, want_strength
from tilewave.tune.store import DIRECTORY

ROUNDS = 9
CHECK_SECONDS = 0.5
"""For each point: what the interpreter may take to see whether it is right."""


@dataclass(frozen=True)
class ConfigTimer:
    """Compiles points of one kernel for one target, and times them there."""

    open_tiles: TunableKernel
    options: WaveCompileOptions
    rounds: int = ROUNDS

    def __call__(self, configs: Sequence[TileChoice]) -> list[ConfigTime]:
        made: dict[str, Compiled] = {}
        why: dict[str, str] = {}
        rounds: Rounds | None = None
        for config in configs:
            try:
                made[config.text] = self.compiled(config)
            except TilewaveError as error:
                why[config.text] = first_line(error)
        if made:
            report = measure_kernels(made, KernelSettings(rounds=self.rounds, check_seconds=CHECK_SECONDS))
            why |= {one.contestant: one.why for one in report.left_out}
            why |= {one.name: "its result is wrong" for one in report.kernels if not one.accuracy.passed}
            rounds = report.rounds[0] if report.rounds else None
        return [_time(config.text, rounds, why) for config in configs]

    def why_not(self, first: Compiled) -> str:
        """Why nothing can be timed here, and what is known instead; nothing where it can."""
        try:
            device_of(first, "tilewave tune")
        except TargetError as error:
            return f"by the model alone: {first_line(error)}{_counted(first)}"
        return ""

    def first_compiled(self) -> tuple[TileChoice, Compiled]:
        """The best predicted point that the compiler takes; the first refusal where it takes none of the best."""
        refused: TilewaveError | None = None
        for config in self.open_tiles.predicted({})[:MOST_TRIED]:
            try:
                made = self.compiled(config)
                made.build.code  # noqa: B018  it is compiled when somebody asks
            except TilewaveError as error:
                refused = refused or error
            else:
                return config, made
        raise refused or self.open_tiles.nothing_fits()

    def compiled(self, config: TileChoice) -> Compiled:
        return wave_compile(as_chosen(self.options, config), self.open_tiles.decided(config))


def _counted(compiled: Compiled) -> str:
    """Return statistics of emulated machine code: instructions per matrix instruction, or registers and occupancy."""
    if compiled.build.emulated is None:
        return ""
    try:
        each = compiled.loop_statistics.instructions_per_matrix
    except UnsupportedCode:  # it multiplies nothing
        found = compiled.build.metrics
        return f"; each lane takes {found['registers']} registers, so {found['waves_per_unit']} waves share a SIMD"
    return f"; its K loop has {each:.2f} instructions for each matrix instruction"


def tune(
    kernel: WaveKernel,
    subs: Mapping[Symbol, Any],
    target: str,
    how: str = STRENGTHS[1],
    *,
    within: Tune | None = None,
    records: Path = Path(DIRECTORY),
    runs: int = RUNS,
    rounds: int = ROUNDS,
    advance: Advance = lambda: None,
    spread: Spread = IN_TURN,
    key: RecordKey | None = None,
) -> Tuned:
    """Autotune a kernel's tile sizes for sizes on a target, and save a tuning record, for `key` where one is given.

    how="model": nothing runs; "measured": the cost model's best configs, at most `runs`; "exhaustive": every legal one.
    """
    timer = timer_for(kernel, subs, target, within, rounds)
    want_strength(how)
    untimed, first = timer.first_compiled()
    notes = timer.why_not(first) if how in STRENGTHS[1:] and spread.measures_here else ""
    strength = STRENGTHS[0] if notes else how
    return search(timer.open_tiles, strength, timer, records, runs, advance, notes, spread, untimed, key)


def timer_for(
    kernel: WaveKernel, subs: Mapping[Symbol, Any], target: str, within: Tune | None = None, rounds: int = ROUNDS
) -> ConfigTimer:
    """Return the timer of a kernel's configs; an error where all tiles are given, or the target has no cost model."""
    want_cost_model(target_named(target))
    if missing := missing_sizes(kernel, said_of(kernel, subs, ())):
        pairs = ", ".join(f"{name}: …" for name in missing)
        raise TilewaveError(f"{kernel.name}: {missing_text(missing)}", remedy=f"pass subs={{{pairs}}}")
    want_tunable(kernel, subs)
    want_free(within, kernel, subs)
    open_tiles = TunableKernel.of(kernel, subs, (), {}, target, within or kernel.tune)
    return ConfigTimer(open_tiles, WaveCompileOptions(subs=subs, target=target), rounds)


def want_cost_model(target: Backend) -> None:
    """Refuse a target whose tiles nothing predicts: the decision would be the CPU's."""
    if not target.has_cost_model:
        able = [one.name for one in TARGETS.values() if one.has_cost_model]
        what = f"nothing to tune: {target.kind} ({target.name}) has no cost model"
        raise TargetError(what, loc=here(), remedy=f"tune for {', '.join(able)}")


def _time(name: str, rounds: Rounds | None, why: Mapping[str, str]) -> ConfigTime:
    if name in why or rounds is None:
        return ConfigTime(None, why=why.get(name, "nothing was timed"))
    found = rounds.time(name)
    return ConfigTime(found.median, found.spread, len(rounds.rounds))
