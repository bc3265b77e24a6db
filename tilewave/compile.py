"""From a kernel and options to `Compiled`: the one place that calls trace, tile passes, analyses and the target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewave.analysis.every_size import every_size, is_right_unseen
from tilewave.analysis.group_orders import row_by_row
from tilewave.analysis.indexed_writes import leaves_out_by_data, want_no_order
from tilewave.analysis.schedule import WRITE_SOMETHING, Correction, writes_something
from tilewave.analysis.size_proofs import Verdicts
from tilewave.arguments import KernelArguments, order_depends_on
from tilewave.backend.protocol import Backend, Build
from tilewave.backend.targets import target_named, target_on
from tilewave.checked_call import CompiledAssertions, Observed
from tilewave.compiled import Compiled
from tilewave.errors import NOWHERE, ConstraintError, CoverageError
from tilewave.forks import IMPORTING
from tilewave.hooks import Hooks
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import BATCH_INVARIANT, Kernel
from tilewave.ir.launch import is_open, open_sizes
from tilewave.ir.observations import has_observations, without_observations
from tilewave.ir.ops import TileOf
from tilewave.ir.rewrite import walk
from tilewave.lang.kernel import WaveKernel, places_of_sizes, trace_kernel
from tilewave.lang.open_tiles import tunable
from tilewave.lang.reordering import Reordering
from tilewave.lang.symbols import Symbol
from tilewave.lang.tuning import Tune
from tilewave.lang.wave_words import WaveSchedule, ignored, remarks
from tilewave.options import (
    WaveCompileOptions,
    as_chosen,
    check_kinds,
    check_tune,
    checked_options,
    open_symbols,
    set_default_run_config,
)
from tilewave.pipeline.batch_invariant import want_batch_invariant
from tilewave.pipeline.runner import Pass, run
from tilewave.records import dataclass
from tilewave.runtime.kernel_set import KernelSet
from tilewave.trace import TileLimits
from tilewave.transform.recorded_assertions import record_assertions
from tilewave.tune.space import NUM_STAGES

if TYPE_CHECKING:
    from tilewave.passes.grid.map_workgroups import TileOrder
    from tilewave.runtime.native.choice import NativeChoice
    from tilewave.tune.choose import TileChoice
    from tilewave.tune.default import TunableKernel
    from tilewave.tune.records import TileRecord

AUTOTUNE = "TILEWAVE_AUTOTUNE"
Builder = Callable[[Kernel, Places], Build]
"""Compiles a kernel on whole tiles for a target."""

REMEDY = "Correct the formula, or name a mapping that is right on every grid, for example\n{example}"
MISPLACED = (
    "The order of tiles is right, and what is wrong is where this write puts them: correct its IndexMapping,\n"
    "or give the memory every dim that is cut over the grid"
)
LEFT_OUT = (
    "Rows that numbers from memory leave out count as written, unless they are known to be those of other segments:\n"
    "let each end where the next begins, at the offsets of an array Memory[…, Indices(sorted=True)]"
)
EXAMPLES = {
    "plain": "    WorkgroupMapping(xcd_contiguous(8) >> grouped(4))",
    "persistent": "    GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop",
}


def wave_compile(options: WaveCompileOptions, kernel: WaveKernel, schedule: WaveSchedule | None = None) -> Compiled:
    """Compile a kernel; it is not changed, and may be compiled again with other options. Wave's schedules are ignored.

    Tile sizes without a value are chosen: for the sizes in `subs`, or for those of each call.
    """
    check_kinds(options, kernel)
    compiled = compile_near(replace(options), kernel, {})  # a copy, because authors may assign to their options
    without = ignored(schedule)
    return replace(compiled, not_taken=(*compiled.not_taken, *without)) if without else compiled


def compile_near(options: WaveCompileOptions, kernel: WaveKernel, sizes: Mapping[Symbol, int]) -> Compiled:
    """Compile a kernel, first for a call with these sizes; it serves all sizes that the options leave dynamic."""
    check_kinds(options, kernel)
    target = target_named(set_default_run_config(options).target or "")
    check_tune(options, kernel)
    if tunable(kernel, options.subs, open_symbols(options.dynamic_symbols)):
        compiled = _choosing(options, kernel, sizes)
    else:
        compiled = _compiled(options, kernel, target)

    @cache
    def there(device: str) -> Compiled:
        return wave_compile(replace(options, target=target_on(kernel.name, device).name), kernel)

    return replace(compiled, elsewhere=there) if options.target is None else compiled


def _compiled(options: WaveCompileOptions, kernel: WaveKernel, target: Backend) -> Compiled:
    """Compile a kernel with given tile sizes."""
    wanted = checked_options(options, target)
    return compile_with(options, kernel, lambda tiles, places: target.build(tiles, places, wanted))


def _choosing(options: WaveCompileOptions, kernel: WaveKernel, sizes: Mapping[Symbol, int]) -> Compiled:
    """Compile with tile sizes that the cost model chooses; where sizes are dynamic, for those of each call."""
    maker = kernel_maker(options, kernel)
    tiles = maker.tiles
    if not tiles.left_open:
        return tiles.first(tiles.choices(), maker.make)
    if sizes:
        maker.time(sizes)
    serving = KernelSet(places_of_sizes(kernel, tiles.left_open), maker)
    return replace(serving.near({**tiles.typical, **sizes}), by_size=serving)


def kernel_maker(options: WaveCompileOptions, kernel: WaveKernel) -> KernelMaker:
    """Return what chooses and compiles the configs of a kernel whose tiles are open."""
    with IMPORTING:
        from tilewave.tune.default import TunableKernel  # noqa: PLC0415  most give their tiles

    target = target_named(set_default_run_config(options).target or "")
    tune: Tune | None = options.tune or kernel.tune
    facts = options.subs, tuple(options.dynamic_symbols), options.max_sizes, target.name, tune, options.num_stages
    tiles = TunableKernel.of(kernel, *facts)
    return KernelMaker(options, target, tiles.for_all_batches() if options.batch_invariant else tiles)


@dataclass(frozen=True)
class KernelMaker:
    """Chooses and compiles the configs of one kernel."""

    options: WaveCompileOptions
    target: Backend
    tiles: TunableKernel
    timed: dict[str, TileRecord] = field(default_factory=dict)
    """The decisions of this process by timing, by class of sizes."""

    def choices(self, sizes: Mapping[Symbol, int]) -> list[TileChoice]:
        return self.tiles.choices(sizes, self.timed.get(self.tiles.class_key(sizes).sizes) if self.timed else None)

    def choice_of(self, text: str, sizes: Mapping[Symbol, int]) -> TileChoice:
        return self.tiles.choice_of(text, sizes)

    @property
    def is_timed(self) -> bool:
        """Whether calls time configs; a batch-invariant kernel is the same however fast others are."""
        tune: Tune | None = self.options.tune or self.tiles.kernel.tune
        asked = os.environ.get(AUTOTUNE, "") == "1" or bool(tune and tune.configs)
        return asked and not self.options.batch_invariant

    def time(self, sizes: Mapping[Symbol, int]) -> None:
        if not self.is_timed:
            return
        key = self.tiles.class_key(sizes)
        if key.sizes in self.timed or self.tiles.on_record(sizes).fitting:
            return
        subs, tune = {**self.options.subs, **sizes}, self.options.tune or self.tiles.kernel.tune
        with IMPORTING:
            from tilewave.tune.store import records_to_write  # noqa: PLC0415  few calls time anything
        with records_to_write() as directory:
            found = Hooks.autotune(self.tiles.kernel, subs, self.target.name, within=tune, records=directory, key=key)
        self.timed[key.sizes] = found.record

    def make(self, choice: TileChoice) -> Compiled:
        kernel = self.tiles.decided(choice)
        try:
            made = _compiled(as_chosen(self.options, choice), kernel, self.target)
        except ConstraintError:  # an epilogue may leave room for fewer stages: then as many as there is room for
            if not choice.knob(NUM_STAGES):
                raise
            made = _compiled(as_chosen(self.options, choice.without_stages), kernel, self.target)
        return replace(made, choice=choice)

    def stored_choice(self) -> NativeChoice | None:
        return None if self.is_timed else self.tiles.stored_choice()

    def recorded_choice(self) -> NativeChoice | None:
        return None if self.is_timed else self.tiles.recorded_choice()

    def has_records(self) -> bool:
        return self.tiles.has_records()

    def prepare(self, made: Compiled, arrays: Sequence[Any]) -> None:
        made.build.prepare(arrays, made.arguments.sized(arrays, {}).parameters)

    def first(self, choices: Sequence[TileChoice], make: Callable[[TileChoice], Compiled]) -> Compiled:
        return self.tiles.first(choices, make)


def compile_with(options: WaveCompileOptions, kernel: WaveKernel, build: Builder) -> Compiled:
    """Compile a kernel with a build function of the caller's, for the options' target."""
    target = target_named(set_default_run_config(options).target or "")
    dynamic = open_symbols(options.dynamic_symbols)
    room = TileLimits(target.name, target.most_bytes)
    traced = trace_kernel(kernel, options.subs, dynamic, options.max_sizes, room)
    if not writes_something(traced.ir):
        raise CoverageError(f"{kernel.name} writes nothing", loc=kernel.loc, remedy=WRITE_SOMETHING)
    want_no_order(row_by_row(traced.ir))
    observed = traced.ir if has_observations(traced.ir) else None
    traced = replace(traced, ir=without_observations(traced.ir))
    final, steps = run(traced.ir, _tile_level(traced.order))
    kind = "plain" if any(isinstance(op, TileOf) for op in walk(traced.ir.body)) else "persistent"
    rightly_ordered = kind == "plain" and not traced.order.doubt
    passed = MISPLACED if rightly_ordered else REMEDY.format(example=EXAMPLES[kind])
    if rightly_ordered and leaves_out_by_data(traced.ir):
        passed = LEFT_OUT
    remedy = Correction(passed, NOWHERE if rightly_ordered else traced.order.loc)
    if isinstance(traced.order, Reordering):
        passed = f"{traced.order.left_alone}\n{passed}".lstrip()
        remedy = replace(remedy, text=passed, coordinates=traced.order.coordinates)
    given = tuple(s for s in dynamic if s.name not in open_sizes(final))
    judged = row_by_row(traced.ir)
    proof = every_size(judged, str(traced.order), traced.order.doubt, traced.order.positive)
    verdicts = Verdicts(final, proof, remedy)
    if not is_open(final) and not order_depends_on(final) and not is_right_unseen(judged, traced.order.doubt):
        verdicts.first({s.name: 1 for s in given})
    final, expanded = run(final, _after_proofs())
    steps = (*steps, *(step for step in expanded if step.changed))
    if options.batch_invariant:
        final = replace(final, sums=BATCH_INVARIANT)
    if observed is not None:
        observed, _ = run(observed, (*_tile_level(traced.order), *_after_proofs()))
        observed = replace(observed, sums=final.sums)
    built = build(observed if observed and target.interprets else final, traced.places)
    proved = want_batch_invariant(kernel.name, final, built.steps) if options.batch_invariant else ()
    names = tuple(s.name for s in given)

    def assertions() -> CompiledAssertions | None:
        assert observed is not None
        recorded = None if target.interprets else record_assertions(observed)
        if recorded is None:
            return None
        called = KernelArguments(recorded.kernel, names, verdicts, traced.assumed)
        return CompiledAssertions(recorded, target.name, build(recorded.kernel, traced.places), called)

    made = Compiled(final, traced.ir, steps, target.name, names, built, verdicts)
    return replace(
        made,
        assumed=traced.assumed,
        not_taken=(*(options.schedule.remarks if options.schedule else ()), *remarks(options.without_effect)),
        proved=proved,
        observed=Observed(observed, assertions) if observed is not None else None,
    )


def _tile_level(order: TileOrder) -> tuple[Pass, ...]:
    with IMPORTING:
        from tilewave.pipeline.tile_level import tile_level  # noqa: PLC0415  `import tilewave` does not wait for passes

    return tile_level(order)


def _after_proofs() -> tuple[Pass, ...]:
    with IMPORTING:
        from tilewave.pipeline.tile_level import after_proofs  # noqa: PLC0415  `import tilewave` does not wait for passes

    return after_proofs()
