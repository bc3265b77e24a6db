"""The default tile sizes: a tuning record's or the cost model's choice for given sizes, or for a call's size bucket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewave.analysis.reduction_order import adds_products_alone
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.backend.targets import target_named
from tilewave.errors import ConstraintError, TilewaveError
from tilewave.ir.core import BATCH_INVARIANT, Kernel, Op, Value
from tilewave.ir.ops import Read
from tilewave.ir.rewrite import rename_block, rewrite_block, unnamed
from tilewave.ir.types import Memory
from tilewave.lang.constraints import SplitConstraint, TilingConstraint
from tilewave.lang.kernel import WaveKernel, check_subs, parameters_of, trace_kernel, unsaid_sizes
from tilewave.lang.symbols import Symbol
from tilewave.lang.types import MemoryType
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import CHIPS
from tilewave.runtime.cache import key_of
from tilewave.runtime.pool import default_threads
from tilewave.trace import NO_WORK, TileWork
from tilewave.tune.choose import (
    RankedConfigs,
    TileChoice,
    TileMachine,
    bucket,
    bucket_ends,
    bucket_text,
    config_text,
    illegal_text,
    rank,
    rank_buckets,
    sizes_text,
)
from tilewave.tune.chosen import first_line, passed_over
from tilewave.tune.fitted import HOST, TIMINGS
from tilewave.tune.gpu import GpuTiles
from tilewave.tune.host import HostTiles
from tilewave.tune.order import order_for, orders_on
from tilewave.tune.problem import TiledProblem
from tilewave.tune.records import RecordKey, TileRecord
from tilewave.tune.space import NUM_STAGES, SPLIT, Space, said_of, space_of, tunable
from tilewave.tune.store import SHIPPED, SHIPPED_OF, Found, LookedUp, Records, search_path
from tilewave.tune.tune import Tune

PROBED = 64
"""The tile that a kernel is traced with to see what it does; any would do."""
TYPICAL = 4096
"""The assumed value of a dynamic size before the first call."""
T = TypeVar("T")
MOST_RECORDS = 8
"""Records of one decision that are tried, the nearest and best first, until one can be compiled."""


def stale_note(stale: Sequence[Found]) -> str:
    """Return the note that tuning records are for an older text of the kernel."""
    files = ", ".join(dict.fromkeys(str(found.file) for found in stale))
    return f"records in {files} are of another version of this kernel and were not used; tune it again"


def records_here() -> Records:
    """Return the tuning records of the current search path."""
    return _records(tuple(search_path()))


@cache
def _records(path: tuple[Path, ...]) -> Records:
    return Records(path)


def machine_of(target: str, work: TileWork = NO_WORK) -> TileMachine:
    """What is known of a target's tiles: a chip's card, or else this machine's cores; TargetError for another name."""
    target_named(target)
    if chip := CHIPS.get(target):
        return GpuTiles(chip, STANDING_FOR[target], TIMINGS[chip.vendor])
    dtypes = {p.dtype.name for p in work.products}
    able = (s for s in INSTRUCTION_SETS.values() if runs_here(s))
    s = next(s for s in able if not s.only or (dtypes and dtypes <= {*s.only}))
    facts = s.name, default_threads(), s.rows, s.cols, s.vector_bytes, HOST
    return HostTiles(*facts, reads_in_place=not s.matrix_unit, vector_registers=s.vector_registers)


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
        probe = {**subs, **{one.symbol: PROBED for one in found}}
        traced = trace_kernel(kernel, probe, dynamic, longest)
        work = traced.work
        known = {s: v for s, v in _known(said, (*dims, *dynamic)).items() if isinstance(v, int)}
        machine = machine_of(target, work)
        problem = TiledProblem(work, kernel.constraints, {**dict.fromkeys(dynamic, TYPICAL), **known})
        digest = _digest(kernel, probe, dynamic, longest, traced.ir, machine)
        space = space_of(found, work, machine, kernel.constraints)
        space = space if num_stages is None else space.with_only(NUM_STAGES, num_stages)
        space, asked = (space, ()) if tune is None else (tune.of(space), tune.mapping)
        facts = kernel, machine, problem, space, dims, digest, asked
        return TunableKernel(*facts, adds_products_alone=adds_products_alone(traced.ir))

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders that are tried if the author gives none."""
        if self.asked or not isinstance(self.machine, GpuTiles):
            return self.asked
        return tuple(orders_on(self.machine.card))

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
        for one in fixed.items():
            space = space.with_only(*one)
        return replace(self, problem=problem, space=space, fixed=fixed)

    @property
    def passed(self) -> tuple[GivenSize, ...]:
        """Return the array and axis from which each dynamic size is read at a call."""
        return given_sizes(self.kernel, self.left_open)

    @property
    def typical(self) -> dict[Symbol, int]:
        """The assumed values of the dynamic sizes."""
        return dict.fromkeys(self.left_open, TYPICAL)

    def choices(self, buckets: Mapping[Symbol, int] | None = None) -> list[TileChoice]:
        """Return the choices of tuning records, then the cost model's, best first, for fixed sizes or a size bucket."""
        buckets = {dim: bucket(TYPICAL) for dim in self.left_open} if buckets is None else buckets
        made = self.predicted(buckets)
        found = self.on_record(buckets)
        notes = list(found.remarks)
        stale = [one for one in found.stale if one.file.parent != SHIPPED]  # ours name kernels of several layouts
        if stale and not found.fitting:
            notes.append(stale_note(stale))
        recorded: list[TileChoice] = []
        for one in found.fitting[:MOST_RECORDS]:
            try:
                recorded.append(self.of_record(one, buckets, made[0].sizes if made else ""))
            except IllegalRecord as error:
                notes.append(passed_over(one.file, str(error)))
        return [choice.noting(notes) for choice in (*recorded, *made)]

    def on_record(self, buckets: Mapping[Symbol, int]) -> LookedUp:
        """Return the tuning records for a whole size bucket, followed by those for its largest sizes."""
        found = _look_up(self.key(buckets))
        return found.before(_look_up(self.key_of_sizes(self.largest(buckets)))) if buckets else found

    def predicted(self, buckets: Mapping[Symbol, int]) -> list[TileChoice]:
        """The model's choices."""
        if not self.left_open:
            ranked = rank(self.problem, self.space.within(self.problem.values), self.machine)
            return self._explained(ranked, self.problem, sizes_text(self._sizes(self.problem)), 1.0)
        ranked, share = rank_buckets(self.problem, self.space, self.machine, buckets)
        return self._explained(ranked, self.largest(buckets), bucket_text(buckets), share)

    def largest(self, buckets: Mapping[Symbol, int]) -> TiledProblem:
        """With the largest sizes of a bucket."""
        return self.problem.sized(largest_sizes(buckets))

    def key(self, buckets: Mapping[Symbol, int]) -> RecordKey:
        """Return the key of the tuning records for a size bucket, or for the sizes if there are no buckets."""
        return self._key({dim: "{}..{}".format(*bucket_ends(number)) for dim, number in buckets.items()})

    def key_of_sizes(self, problem: TiledProblem) -> RecordKey:
        return self._key({dim: str(n) for dim, n in self._sizes(problem).items()})

    def _key(self, passed: Mapping[Symbol, str]) -> RecordKey:
        known = {str(d): str(n) for d, n in self._sizes(self.problem).items()} | {str(d): n for d, n in passed.items()}
        known |= {"sums": BATCH_INVARIANT} if self.problem.in_fixed_order else {}
        sizes = ",".join(f"{name}={value}" for name, value in sorted(known.items())) or "-"
        return RecordKey(self.kernel.name, self.digest, self.machine.name, sizes)

    def of_record(self, found: Found, buckets: Mapping[Symbol, int], sizes: str) -> TileChoice:
        """The choice of a record; an `IllegalRecord` where it names other symbols, or a point that is illegal now."""
        record = found.record
        config = self._config_of(record)
        try:
            cut = self.largest(buckets).cut(config)
            if why := self.machine.refused(cut):
                raise IllegalRecord(f"{config_text(config)} is illegal here, by {why}")
            prediction = self.machine.predict(cut)
        except (TilewaveError, ArithmeticError) as error:
            raise IllegalRecord(f"{config_text(config)} cannot be: {first_line(error)}") from None
        how = f"a record in {found.file}, {record.how}, of {record.tried} runs,"
        if record.measured is not None:
            error_share = (record.spread or 0.0) / record.measured if record.measured else 0.0
            prediction = replace(prediction, seconds=record.measured, error=error_share, fitted_on=str(found.file))
        illegal = {"what the record says": record.illegal} if record.illegal else {}
        order = "" if self.problem.is_ordered else record.order
        facts = config, order, prediction, record.considered, illegal, (), sizes, how
        return TileChoice(*facts, record=str(found.file))

    def _config_of(self, record: TileRecord) -> dict[Symbol, int]:
        """What a record chose, by this kernel's own symbols."""
        config = {s: record.choice[s.name] for s in self.space.symbols if s.name in record.choice}
        if {*self.space.tiles} - {*config} or len(config) != len(record.choice):
            wanted = ", ".join(s.name for s in self.space.symbols)
            raise IllegalRecord(f"it chooses {', '.join(record.choice)}, and this kernel leaves {wanted} open")
        if other := [f"{s}={n}" for s, n in self.fixed.items() if config.get(s) != n]:
            raise IllegalRecord(f"batch-invariant sums need {', '.join(other)}")
        return config

    def at(self, values: Mapping[str, int], order: str) -> TileChoice:
        """The choice of a point that somebody names."""
        config = {s: values[s.name] for s in self.space.symbols if s.name in values}
        prediction = self.machine.predict(self.problem.cut(config))
        return TileChoice(config, order, prediction, 1, {}, (), sizes_text(self._sizes(self.problem)))

    def _sizes(self, problem: TiledProblem) -> dict[Symbol, int]:
        """Return the known sizes of the arrays."""
        arrays = [kind for _, kind in parameters_of(self.kernel) if isinstance(kind, MemoryType)]
        dims = dict.fromkeys(d for kind in arrays for d in kind.dims if isinstance(d, Symbol))
        return {d: problem.values[d] for d in dims if d in problem.values}

    def _explained(self, ranked: RankedConfigs, problem: TiledProblem, sizes: str, share: float) -> list[TileChoice]:
        made = []
        for at, one in enumerate(ranked.legal):
            order = "" if at or problem.is_ordered else order_for(problem.cut(one.config), self.machine, self.asked)
            made.append(ranked.choice(at, order, sizes, share))
        return made

    def nothing_fits(self) -> ConstraintError:
        """Why there is no choice."""
        ranked = rank(self.problem.sized(self.typical), self.space, self.machine)
        what = f"{self.kernel.name}: of {ranked.considered} configs {illegal_text(ranked.illegal)}, so no tile is left"
        names = ", ".join(f"{s}: …" for s in self.space.tiles)
        return ConstraintError(what, loc=self.kernel.loc, remedy=f"give one: subs={{{names}}}")

    def decided(self, choice: TileChoice) -> WaveKernel:
        """The kernel with the order of tiles and the parts of sums that were chosen."""
        kernel = self.kernel.ordered(choice.order) if choice.order else self.kernel
        if choice.split == 1:
            return kernel
        parts = SplitConstraint(self.problem.work.products[0].depth, choice.split, loc=kernel.loc)
        return replace(kernel, constraints=(*kernel.constraints, parts), kept={})


def largest_sizes(buckets: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """Return the largest sizes of a bucket."""
    return {dim: bucket_ends(number)[1] for dim, number in buckets.items()}


def _look_up(key: RecordKey) -> LookedUp:
    """Return the tuning records of a kernel, followed by those of the `ops.matmul` kernel that computes the same."""
    records = records_here()
    found = records.look_up(key)
    if key.kernel == SHIPPED_OF:
        return found
    same = records.look_up(replace(key, kernel=SHIPPED_OF))
    return found.before(replace(same, stale=()))  # that of another product, not an older text of this kernel


def _digest(
    kernel: WaveKernel,
    probe: Mapping[Symbol, Any],
    dynamic: Sequence[Symbol],
    longest: Mapping[Symbol, int],
    traced: Kernel,
    machine: TileMachine,
) -> str:
    """Return the digest of what a kernel computes, without its name and, if it traces without them, its sizes."""
    arrays = [kind for _, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    sizes = {d for kind in arrays for d in kind.dims}
    passed = {s: v for s, v in probe.items() if s not in sizes}
    with suppress(TilewaveError):
        traced = trace_kernel(replace(kernel, subs=_without(kernel.subs, sizes)), passed, dynamic, longest).ir
    return key_of(_anonymous(traced, machine.stages_operands), repr(kernel.constraints))[:16]


def _anonymous(kernel: Kernel, stages_operands: bool) -> str:
    """Return the kernel's text without the names of the kernel and its arrays; where operands are always staged in
    shared memory, also without the requests for it."""
    arrays = [v for v in kernel.body.args if isinstance(v.type, Memory)]
    numbered = {v: Value(f"array{number}", v.type) for number, v in enumerate(arrays)}

    def nameless(op: Op) -> list[Op]:
        return [replace(op, through="") if stages_operands and isinstance(op, Read) else op]

    body = rewrite_block(rename_block(kernel.body, numbered), nameless)
    return unnamed(replace(kernel, name="", body=body))


def _without(subs: Mapping[Symbol, Any], sizes: Collection[Any]) -> dict[Symbol, Any]:
    return {s: v for s, v in subs.items() if s not in sizes}


def _known(said: Mapping[Symbol, Any], left_open: Sequence[Symbol]) -> dict[Symbol, Any]:
    """Return the values of the symbols that do not depend on dynamic sizes."""
    numbers = dict.fromkeys(left_open)
    kept = {s: v for s, v in said.items() if not _hangs_on(v, numbers, said)}
    return check_subs(kept)


def _hangs_on(value: Any, numbers: Mapping[Symbol, None], said: Mapping[Symbol, Any]) -> bool:
    inner = value.symbols() if hasattr(value, "symbols") else ()
    return any(s in numbers or s not in said or _hangs_on(said[s], numbers, said) for s in inner)


# -- at a call --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenSize:
    """A dynamic size, and the array and axis of a call that it is read from."""

    symbol: Symbol
    array: int
    axis: int


def given_sizes(kernel: WaveKernel, left_open: Sequence[Symbol]) -> tuple[GivenSize, ...]:
    """Return the first array and axis of each dynamic size."""
    found: dict[Symbol, GivenSize] = {}
    arrays = [kind for _, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    for at, kind in enumerate(arrays):
        for axis, dim in enumerate(kind.dims):
            if isinstance(dim, Symbol) and dim in left_open:
                found.setdefault(dim, GivenSize(dim, at, axis))
    return tuple(found.values())


class BySize(Generic[T]):
    """What serves the sizes of a call: one thing for each bucket, made when its first call comes."""

    def __init__(self, passed: tuple[GivenSize, ...], make: Callable[[Mapping[Symbol, int]], T]) -> None:
        self.passed, self.make = passed, make
        self.made: dict[tuple[int, ...], T] = {}

    def of(self, shapes: Sequence[tuple[int, ...]]) -> T:
        """For arrays of these shapes, in the time of a look into a table."""
        try:
            key = tuple([bucket(shapes[one.array][one.axis]) for one in self.passed])
        except IndexError:  # an array has too few axes, which the kernel's check of its arguments reports
            key = next(iter(self.made))
        return self.made.get(key) or self._new(key)

    def near(self, sizes: Mapping[Symbol, int]) -> T:
        """For calls with sizes such as these."""
        return self._new(tuple(bucket(sizes[one.symbol]) for one in self.passed))

    def _new(self, key: tuple[int, ...]) -> T:
        found = self.made[key] = self.make({one.symbol: n for one, n in zip(self.passed, key, strict=True)})
        return found
