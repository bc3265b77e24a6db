"""From a kernel and options to `Compiled`: the one place that calls trace, tile passes, analyses and the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewave.analysis.every_size import every_size, is_right_unseen
from tilewave.analysis.schedule import WRITE_SOMETHING, Correction, stores
from tilewave.analysis.size_proofs import Verdicts
from tilewave.arguments import order_depends_on
from tilewave.backend.protocol import Backend, Build
from tilewave.backend.targets import target_named, target_on
from tilewave.compiled import Compiled
from tilewave.errors import NOWHERE, CoverageError
from tilewave.forks import IMPORTING
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import BATCH_INVARIANT, Kernel
from tilewave.ir.launch import is_open, open_sizes
from tilewave.ir.rewrite import walk
from tilewave.lang.kernel import WaveKernel, trace_kernel
from tilewave.lang.reordering import Reordering
from tilewave.lang.symbols import Symbol
from tilewave.lang.wave_words import remarks
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
from tilewave.trace import TileLimits
from tilewave.tune.space import tunable
from tilewave.tune.tune import Tune

if TYPE_CHECKING:
    from tilewave.passes.grid.map_workgroups import TileOrder
    from tilewave.tune.choose import TileChoice

Builder = Callable[[Kernel, Places], Build]
"""Compiles a kernel on whole tiles for a target."""

REMEDY = "Correct the formula, or name a mapping that is right on every grid, for example\n{example}"
MISPLACED = (
    "The order of tiles is right, and what is wrong is where this write puts them: correct its IndexMapping,\n"
    "or give the memory every dim that is cut over the grid"
)
EXAMPLES = {
    "plain": "    WorkgroupMapping(xcd_contiguous(8) >> grouped(4))",
    "persistent": "    GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop",
}


def wave_compile(options: WaveCompileOptions, kernel: WaveKernel) -> Compiled:
    """Compile a kernel; it is not changed, and may be compiled again with other options.

    Tile sizes without a value are chosen: for the sizes in `subs`, or for those of each call.
    """
    return compile_near(options, kernel, {})


def compile_near(options: WaveCompileOptions, kernel: WaveKernel, sizes: Mapping[Symbol, int]) -> Compiled:
    """Compile a kernel, first for a call with these sizes; it serves all sizes that the options leave dynamic."""
    check_kinds(options, kernel)
    target = target_named(set_default_run_config(options).target or "")
    check_tune(options, kernel)
    if tunable(kernel, options.subs, open_symbols(options.dynamic_symbols)):
        compiled = _choosing(options, kernel, target, sizes)
    else:
        compiled = _compiled(options, kernel, target)

    @cache
    def there(device: str) -> Compiled:
        return wave_compile(replace(options, target=target_on(kernel.name, device).name), kernel)

    return replace(compiled, elsewhere=there) if options.target is None else compiled


def _compiled(
    options: WaveCompileOptions, kernel: WaveKernel, target: Backend, sizes: tuple[tuple[str, int], ...] = ()
) -> Compiled:
    """Compile a kernel with given tile sizes; `sizes` are the largest values of dynamic ones."""
    wanted = replace(checked_options(options, target), sizes=sizes)
    return compile_with(options, kernel, lambda tiles, places: target.build(tiles, places, wanted))


def _choosing(
    options: WaveCompileOptions, kernel: WaveKernel, target: Backend, sizes: Mapping[Symbol, int]
) -> Compiled:
    """Compile with tile sizes of the cost model; where sizes are dynamic, for each size bucket at its first call."""
    with IMPORTING:
        from tilewave.tune.default import BySize, TunableKernel, largest_sizes  # noqa: PLC0415  most give their tiles
    with IMPORTING:
        from tilewave.tune.chosen import take  # noqa: PLC0415  as above

    tune: Tune | None = options.tune or kernel.tune
    facts = options.subs, tuple(options.dynamic_symbols), options.max_sizes, target.name, tune, options.num_stages
    tiles = TunableKernel.of(kernel, *facts)
    tiles = tiles.for_all_batches() if options.batch_invariant else tiles
    known: dict[tuple[Any, ...], Compiled] = {}

    def for_buckets(buckets: Mapping[Symbol, int] | None) -> Compiled:
        known_sizes = largest_sizes(buckets or {}) if target.judges_by_sizes else {}
        sizes = tuple((dim.name, n) for dim, n in known_sizes.items())

        def made(choice: TileChoice) -> Compiled:
            key = choice.text, sizes
            if key not in known:
                known[key] = _compiled(as_chosen(options, choice), tiles.decided(choice), target, sizes)
            return replace(known[key], choice=choice)

        return take(tiles.choices(buckets), made, tiles.nothing_fits)

    if not tiles.left_open:
        return for_buckets(None)
    serving = BySize(tiles.passed, for_buckets)
    return replace(serving.near({**tiles.typical, **sizes}), by_size=serving)


def compile_with(options: WaveCompileOptions, kernel: WaveKernel, build: Builder) -> Compiled:
    """Compile a kernel with a build function of the caller's, for the options' target."""
    target = target_named(set_default_run_config(options).target or "")
    dynamic = open_symbols(options.dynamic_symbols)
    room = TileLimits(target.name, target.most_bytes)
    traced = trace_kernel(kernel, options.subs, dynamic, options.max_sizes, room)
    if not any(map(stores, walk(traced.ir.body))):
        raise CoverageError(f"{kernel.name} writes nothing", loc=kernel.loc, remedy=WRITE_SOMETHING)
    final, steps = run(traced.ir, _tile_level(traced.order))
    kind = "plain" if "tile_of" in str(traced.ir) else "persistent"
    rightly_ordered = kind == "plain" and not traced.order.doubt
    passed = MISPLACED if rightly_ordered else REMEDY.format(example=EXAMPLES[kind])
    remedy = Correction(passed, NOWHERE if rightly_ordered else traced.order.loc)
    if isinstance(traced.order, Reordering):
        passed = f"{traced.order.left_alone}\n{passed}".lstrip()
        remedy = replace(remedy, text=passed, coordinates=traced.order.coordinates)
    given = tuple(s for s in dynamic if s.name not in open_sizes(final))
    proof = every_size(traced.ir, str(traced.order), traced.order.doubt, traced.order.positive)
    verdicts = Verdicts(final, proof, remedy)
    if not is_open(final) and not order_depends_on(final) and not is_right_unseen(traced.ir, traced.order.doubt):
        verdicts.first({s.name: 1 for s in given})
    if options.batch_invariant:
        final = replace(final, sums=BATCH_INVARIANT)
    built = build(final, traced.places)
    proved = want_batch_invariant(kernel.name, final, built.steps) if options.batch_invariant else ()
    names = tuple(s.name for s in given)
    made = Compiled(final, traced.ir, steps, target.name, names, built, verdicts)
    return replace(
        made,
        assumed=traced.assumed,
        not_taken=(*options.schedule.remarks, *remarks(options.without_effect)),
        proved=proved,
    )


def _tile_level(order: TileOrder) -> tuple[Pass, ...]:
    with IMPORTING:
        from tilewave.pipeline.tile_level import tile_level  # noqa: PLC0415  `import tilewave` does not wait for passes

    return tile_level(order)
