"""The default configs: a tuning record's or the cost model's choice, for given sizes or for those of each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeVar

from tilewave.analysis.reduction_order import adds_products_alone
from tilewave.errors import ConstraintError, TilewaveError, first_line
from tilewave.forks import cached_property
from tilewave.ir.core import BATCH_INVARIANT, Kernel, Op
from tilewave.ir.host_program import Number
from tilewave.ir.ops import Read
from tilewave.ir.rewrite import anonymous, rewrite_block
from tilewave.lang.constraints import Constraint, SplitConstraint, TilingConstraint
from tilewave.lang.kernel import WaveKernel, trace_kernel, unsaid_sizes
from tilewave.lang.open_tiles import known_values, said_of, tunable
from tilewave.lang.symbols import Symbol
from tilewave.lang.tuning import Tune
from tilewave.records import dataclass
from tilewave.runtime.cache import compile_key, default_cache, key_of
from tilewave.runtime.native.choice import NativeChoice
from tilewave.tune.choose import Config, RankedConfigs, TileChoice, TiledProblem, config_text, illegal_text, rank
from tilewave.tune.machines import HostTiles, TileMachine, machine_of
from tilewave.tune.records import RecordKey, TileRecord
from tilewave.tune.space import NUM_STAGES, SPLIT, Space, narrowed, space_of
from tilewave.tune.store import LookedUp, records_exist, records_in, search_path

PROBED = 64
"""The tile that a kernel is traced with to see what it does; any would do."""
TYPICAL = 4096
"""The assumed value of a dynamic size before the first call."""
MOST_RANKED = 4096
"""The most classes of sizes whose ranking is remembered; one more clears them all."""
FINENESS, GRAIN = 16, 64
"""The classes of sizes between a power of two and the next, and the largest power of two that tells them apart."""
MOST_TRIED = 8
"""Tiles that are compiled, the best first, until one is not refused: the model does not know all that passes do."""
MOST_RECORDS = 8
"""Records of one decision that are tried, the nearest and best first, until one can be compiled."""
T = TypeVar("T")


def like(n: int) -> int:
    """Return the largest size of a class: as near as a sixteenth, with the same power of two as a divisor."""
    step = max(1, (1 << max(n - 1, 0).bit_length()) // (2 * FINENESS))
    grain = min(n & -n, GRAIN)
    apart = grain if grain == GRAIN else 2 * grain
    return n + (-n % step) // apart * apart if n else 0


def stale_note(stale: Sequence[TileRecord]) -> str:
    """Return the note that tuning records are for an older text of the kernel."""
    files = ", ".join(dict.fromkeys(one.file for one in stale))
    return f"records in {files} are of another version of this kernel and were not used; tune it again"


def passed_over(file: object, why: str) -> str:
    """The remark that a record was not used."""
    return f"a record in {file} was skipped: {why}"


class IllegalRecord(ValueError):
    """A record that this kernel cannot have; says why."""


@dataclass(frozen=True)
class TunableKernel:
    """A kernel whose author left tiles open, for a target: what can be decided, and what it is decided by."""

    kernel: WaveKernel
    machine: TileMachine
    problem: TiledProblem
    space: Space
    left_open: tuple[Symbol, ...]
    """The dynamic sizes, which are read from a call's arrays."""
    digest: str
    """The digest of the kernel's traced text."""
    asked: tuple[str, ...] = ()
    """Orders of tiles that are to be tried."""
    fixed: Mapping[Symbol, int] = field(default_factory=dict)
    """What must not be decided otherwise, by a record either."""
    adds_products_alone: bool = False
    """Whether no tile's depth changes the order of summation."""
    ranked: dict[tuple[int, ...], RankedConfigs] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The configs by predicted time, by class of sizes."""

    @staticmethod
    def of(
        kernel: WaveKernel,
        subs: Mapping[Symbol, Any],
        dynamic: Sequence[Symbol],
        longest: Mapping[Symbol, int],
        target: str,
        tune: Tune | None = None,
        num_stages: int | None = None,
    ) -> TunableKernel:
        said, found = said_of(kernel, subs, dynamic), tunable(kernel, subs, dynamic)
        dims = tuple(dict.fromkeys(unsaid_sizes(kernel, said)))
        probe = {**subs, **dict.fromkeys(found, PROBED)}
        traced = trace_kernel(kernel, probe, dynamic, longest)
        work = traced.work
        known = {s: v for s, v in known_values(said, (*dims, *dynamic)).items() if isinstance(v, int)}
        machine = machine_of(target, work)
        problem = TiledProblem(work, kernel.constraints, {**dict.fromkeys(dynamic, TYPICAL), **known})
        named = any(s in probe or s in kernel.subs for s in unsaid_sizes(kernel, {}))
        sizeless = _without_sizes(kernel, probe, dynamic, longest) if named else None
        digest = _digest(sizeless or traced.ir, kernel.constraints, machine)
        space = space_of(found, work, machine, kernel.constraints)
        space = space if num_stages is None else space.with_only(NUM_STAGES, num_stages)
        space, asked = (space, ()) if tune is None else (narrowed(space, tune), tune.mapping)
        facts = kernel, machine, problem, space, dims, digest, asked
        return TunableKernel(*facts, adds_products_alone=adds_products_alone(traced.ir))

    def for_all_batches(self) -> TunableKernel:
        """Return the batch-invariant form of this kernel: no sum depends on the sizes of the grid's dimensions.

        Where all matrix instructions have one depth, tile sizes are still chosen by size, except the tile depth: if a
        step does more with its products than add them up, its depth is chosen by the K sizes alone. Otherwise all tile
        sizes are chosen by the K sizes alone.
        """
        depths = {c.dim for c in self.kernel.constraints if isinstance(c, TilingConstraint)}
        sizes = {**self.typical, **self._sizes(self.problem)}
        values = {dim: n if dim in depths else TYPICAL for dim, n in sizes.items()}
        space, problem = self.space.without(SPLIT), replace(self.problem, in_fixed_order=True)
        for_all = replace(self, problem=problem.sized(values), space=space, left_open=())
        if not self.machine.sums_in_same_order(problem.work):
            return for_all
        if self.adds_products_alone:
            return replace(self, problem=problem, space=space)
        first = for_all.predicted({})[:1]
        fixed = {d.symbol: one.config[d.symbol] for one in first for d in space.decisions if d.dim in depths}
        for symbol, depth in fixed.items():
            space = space.with_only(symbol, depth)
        return replace(self, problem=problem, space=space, fixed=fixed)

    @property
    def typical(self) -> dict[Symbol, int]:
        """The assumed values of the dynamic sizes."""
        return dict.fromkeys(self.left_open, TYPICAL)

    def choices(self, sizes: Mapping[Symbol, int] | None = None, timed: TileRecord | None = None) -> list[TileChoice]:
        """Return the choices of tuning records, then the cost model's, best first; `sizes` are the dynamic ones.

        `timed` is what this process has timed for them.
        """
        sizes = self.typical if sizes is None else sizes
        made = self.predicted(sizes)
        found = self.on_record(sizes)
        notes = list(found.remarks)
        if found.stale and not found.fitting:
            notes.append(stale_note(found.stale))
        recorded: list[TileChoice] = []
        here = () if timed is None else (replace(timed, file="this process"),)
        for one in (*here, *found.fitting[:MOST_RECORDS]):
            try:
                recorded.append(self.of_record(one, sizes))
            except IllegalRecord as error:
                notes.append(passed_over(one.file, str(error)))
        return [choice.noting(notes) for choice in (*recorded, *made)]

    def stored_choice(self) -> NativeChoice | None:
        """Return `recorded_choice` from the compile cache; None where it has none."""
        data = default_cache().get(self._choice_key)
        return None if data is None else NativeChoice.restored(data)

    def recorded_choice(self) -> NativeChoice | None:
        """Return the model's choice by the dynamic sizes as machine code; None where the model is not of integers."""
        machine = self.machine
        if isinstance(machine, HostTiles):
            return None
        legal = [one.config for one in rank(self.problem.sized(self.typical), self.space, machine).legal]
        configs = [config for config in self.space.configs() if config in legal]

        def time_of(config: Config) -> Callable[[Sequence[Number]], Number]:
            open_sizes = partial(zip, self.left_open, strict=True)
            return lambda sizes: machine.picoseconds(self.problem.sized(dict(open_sizes(sizes))).cut(config))

        order = self._order(self.problem)
        times = {config_text(config, order): time_of(config) for config in configs}
        found = NativeChoice.of(len(self.left_open), times)
        if found is not None:
            default_cache().put(self._choice_key, found.stored())
        return found

    @cached_property
    def _choice_key(self) -> str:
        values = sorted((s.name, str(value)) for s, value in self.problem.values.items())
        facts = self.machine, self.space, values, self.left_open, self._order(self.problem), self.problem.in_fixed_order
        return compile_key("choice", self.digest, *map(repr, facts))

    def has_records(self) -> bool:
        """Return whether tuning records may know a better choice than the model."""
        return records_exist(int(time.monotonic()))

    def on_record(self, sizes: Mapping[Symbol, int]) -> LookedUp:
        """Return the tuning records for sizes."""
        records = records_in(tuple(search_path()))
        found = records.look_up(self.key(sizes))
        return found.before(records.look_up(self.class_key(sizes))) if self.left_open else found

    def predicted(self, sizes: Mapping[Symbol, int]) -> list[TileChoice]:
        """Return the model's choices for sizes of a call, the best first."""
        problem = self.problem.sized(sizes)
        return self._ranked(sizes).choices(self._order(problem), self._sizes_text(problem))

    def choice_of(self, text: str, sizes: Mapping[Symbol, int]) -> TileChoice:
        """Return the model's choice with this text, without ranking the others."""
        problem = self.problem.sized(sizes)
        order = self._order(problem)
        config = next(one for one in self.space.configs() if config_text(one, order) == text)

        def ranked() -> TileChoice:
            return next(one for one in self.predicted(sizes) if one.text == text)

        prediction = self.machine.predict(problem.cut(config))
        return TileChoice(config, prediction, order, self._sizes_text(problem), ranked=ranked)

    def _ranked(self, sizes: Mapping[Symbol, int]) -> RankedConfigs:
        """Return all configs by predicted time: for these sizes on a GPU, and for their class on a CPU.

        There no machine code chooses, and the model is rougher.
        """
        if not isinstance(self.machine, HostTiles):
            return rank(self.problem.sized(sizes), self.space, self.machine)
        near = {s: like(n) for s, n in sizes.items()}
        key = tuple(near.values())
        if len(self.ranked) >= MOST_RANKED:
            self.ranked.clear()
        if key not in self.ranked:
            self.ranked[key] = rank(self.problem.sized(near), self.space, self.machine)
        return self.ranked[key]

    def key(self, sizes: Mapping[Symbol, int]) -> RecordKey:
        """Return the key of the tuning records for sizes."""
        return self._key(self._sizes(self.problem.sized(sizes)))

    def class_key(self, sizes: Mapping[Symbol, int]) -> RecordKey:
        """Return the key of what calls timed for sizes: from one power of two to the next, in each dynamic size."""
        ends = {d: max(0, n - 1).bit_length() for d, n in sizes.items() if d in self.left_open}
        classes = {d: f"{(1 << most - 1) + 1 if most else 0}..{1 << most}" for d, most in ends.items()}
        return self._key({**self._sizes(self.problem.sized(sizes)), **classes})

    def _key(self, sizes: Mapping[Symbol, object]) -> RecordKey:
        named = {s.name: n for s, n in sizes.items()} | (
            {"sums": BATCH_INVARIANT} if self.problem.in_fixed_order else {}
        )
        text = ",".join(f"{name}={value}" for name, value in sorted(named.items())) or "-"
        return RecordKey(self.kernel.name, self.digest, self.machine.name, text)

    def of_record(self, record: TileRecord, sizes: Mapping[Symbol, int]) -> TileChoice:
        """Return the choice of a record; an `IllegalRecord` for other symbols, or a config that is illegal now."""
        sized = replace(self, problem=self.problem.sized(sizes))
        config = self._config_of(record)
        try:
            if why := self.machine.refused(sized.problem.cut(config)):
                raise IllegalRecord(f"{config_text(config)} is illegal here, by {why}")
            one = sized.at(record.choice, "" if self.kernel.is_ordered else record.order)
        except (TilewaveError, ArithmeticError) as error:
            raise IllegalRecord(f"{config_text(config)} cannot be: {first_line(error)}") from None
        how = f"a record in {record.file}, {record.how}, of {record.tried} runs,"
        if record.measured is not None:
            share = (record.spread or 0.0) / record.measured if record.measured else 0.0
            measured = replace(one.prediction, seconds=record.measured, error=share, fitted_on=record.file)
            one = replace(one, prediction=measured)
        illegal = {"what the record says": record.illegal} if record.illegal else {}
        return replace(one, considered=record.considered, illegal=illegal, how=how, record=record.file)

    def _config_of(self, record: TileRecord) -> Config:
        """What a record chose, by this kernel's own symbols."""
        config = self._named(record.choice)
        if {*self.space.tiles} - {*config} or len(config) != len(record.choice):
            wanted = ", ".join(s.name for s in self.space.symbols)
            raise IllegalRecord(f"it chooses {', '.join(record.choice)}, and this kernel leaves {wanted} open")
        if other := [f"{s}={n}" for s, n in self.fixed.items() if config.get(s) != n]:
            raise IllegalRecord(f"batch-invariant sums need {', '.join(other)}")
        return config

    def _named(self, values: Mapping[str, int]) -> Config:
        return {s: values[s.name] for s in self.space.symbols if s.name in values}

    def at(self, values: Mapping[str, int], order: str) -> TileChoice:
        """The choice of a point that somebody names."""
        config = self._named(values)
        prediction = self.machine.predict(self.problem.cut(config))
        return TileChoice(config, prediction, order, self._sizes_text(self.problem))

    def _sizes(self, problem: TiledProblem) -> dict[Symbol, int]:
        """Return the known sizes of the arrays."""
        return {d: problem.values[d] for d in unsaid_sizes(self.kernel, {}) if d in problem.values}

    def _sizes_text(self, problem: TiledProblem) -> str:
        return ", ".join(f"{s}={v}" for s, v in self._sizes(problem).items())

    def _order(self, problem: TiledProblem) -> str:
        """Return the order of tiles that is chosen; empty if the author gives it or it makes no difference."""
        asked = self.asked[:1] or ((self.machine.order,) if problem.has_tile_order else ())
        return "" if self.kernel.is_ordered else next(iter(asked), "")

    def nothing_fits(self) -> ConstraintError:
        """Why there is no choice."""
        ranked = rank(self.problem.sized(self.typical), self.space, self.machine)
        what = f"{self.kernel.name}: of {ranked.considered} configs {illegal_text(ranked.illegal)}, so no tile is left"
        names = ", ".join(f"{s}: …" for s in self.space.tiles)
        return ConstraintError(what, loc=self.kernel.loc, remedy=f"give one: subs={{{names}}}")

    def first(self, choices: Sequence[TileChoice], make: Callable[[TileChoice], T]) -> T:
        """Return what `make` gives of the first choice that it can make; the error of the best where it can make none.

        A record is data of somebody else: whatever it leads to, it is passed over, and the choice that is taken says
        so. A choice of the model may be refused with a `ConstraintError`; any other error is the kernel's own.
        """
        notes: list[str] = []
        refused: ConstraintError | None = None
        recorded = sum(bool(one.record) for one in choices)
        for choice in choices[: recorded + MOST_TRIED]:
            try:
                return make(choice.noting(notes))
            except Exception as error:  # of a record, an internal fault of ours too: the kernel is right
                if choice.record:
                    notes.append(passed_over(choice.record, f"{choice.text} does not compile: {first_line(error)}"))
                elif not isinstance(error, ConstraintError):
                    raise
                else:
                    refused = refused or error
        raise refused or self.nothing_fits()

    def decided(self, choice: TileChoice) -> WaveKernel:
        """The kernel with the order of tiles and the parts of sums that were chosen."""
        kernel = self.kernel.ordered(choice.order) if choice.order else self.kernel
        split = choice.knob(SPLIT)
        if split <= 1:
            return kernel
        parts = SplitConstraint(self.problem.work.products[0].depth, split, loc=kernel.loc)
        return replace(kernel, constraints=(*kernel.constraints, parts), kept={})


def _digest(traced: Kernel, constraints: Sequence[Constraint], machine: TileMachine) -> str:
    """Return the digest of what a kernel computes, without its name, and without requests for shared memory where
    operands are always staged there."""

    def staged(op: Op) -> list[Op]:
        return [replace(op, through="") if machine.stages_operands and isinstance(op, Read) else op]

    return key_of(anonymous(replace(traced, body=rewrite_block(traced.body, staged))), repr(constraints))[:16]


def _without_sizes(
    kernel: WaveKernel, probe: Mapping[Symbol, Any], dynamic: Sequence[Symbol], longest: Mapping[Symbol, int]
) -> Kernel | None:
    """Return a kernel traced without its arrays' sizes; None where it needs them."""
    sizes = unsaid_sizes(kernel, {})
    given, subs = ({s: v for s, v in values.items() if s not in sizes} for values in (probe, kernel.subs))
    with suppress(TilewaveError):
        return trace_kernel(replace(kernel, subs=subs), given, dynamic, longest).ir
    return None
