"""The order of passes behind the tile level, decided here and nowhere else; each line says why it stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewave.analysis.streaming import NOTHING_STREAMED, Streamed
from tilewave.ir.places import Places
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import NAMED
from tilewave.passes.add_up_parts import add_up_parts
from tilewave.passes.alternate_depth import alternate_depth
from tilewave.passes.carry_slots import carry_slots
from tilewave.passes.chain_products import chain_products
from tilewave.passes.choose_instructions import ChooseInstructions
from tilewave.passes.choose_waves import ChooseWaves
from tilewave.passes.compare_places import compare_places
from tilewave.passes.compare_with_steps import compare_with_steps
from tilewave.passes.compute_at_launch import compute_at_launch
from tilewave.passes.convert_layouts import ConvertLayouts
from tilewave.passes.dissolve_loops import dissolve_loops
from tilewave.passes.distribute_lanes import distribute_lanes
from tilewave.passes.fit_shared import FitShared
from tilewave.passes.guard_edges import guard_edges
from tilewave.passes.hoist_reads import hoist_reads
from tilewave.passes.interleave_products import InterleaveProducts
from tilewave.passes.keep_maximum import keep_maximum
from tilewave.passes.lag_products import lag_products
from tilewave.passes.limit_vectors import LimitVectors
from tilewave.passes.load_early import LoadEarly
from tilewave.passes.load_in_parts import LoadInParts
from tilewave.passes.load_into_shared import LoadIntoShared
from tilewave.passes.make_persistent import MakePersistent
from tilewave.passes.mask_once import mask_once
from tilewave.passes.meet_once import MeetOnce
from tilewave.passes.minimize_global_loads import MinimizeGlobalLoads
from tilewave.passes.multiply_by_reciprocals import MultiplyByReciprocals
from tilewave.passes.order_copies import OrderCopies
from tilewave.passes.overlap_steps import overlap_steps
from tilewave.passes.pad_products import pad_products
from tilewave.passes.pipeline_loop import PipelineLoop
from tilewave.passes.place_barriers import place_barriers
from tilewave.passes.prepack_operands import PanelFormat, PrepackOperands
from tilewave.passes.recompute_rows import RecomputeRows
from tilewave.passes.reduce_across_waves import reduce_across_waves
from tilewave.passes.repack_rows import RepackRows
from tilewave.passes.separate_edges import separate_edges
from tilewave.passes.share_copies import ShareCopies
from tilewave.passes.share_parts import ShareParts
from tilewave.passes.share_processors import ShareProcessors
from tilewave.passes.shift_through_shared import shift_through_shared
from tilewave.passes.simplify import simplify
from tilewave.passes.skip_unit_factors import skip_unit_factors
from tilewave.passes.skip_whole_masks import skip_whole_masks
from tilewave.passes.skip_zeros import skip_zeros
from tilewave.passes.specialize_waves import SpecializeWaves
from tilewave.passes.split_last_round import SplitLastRound
from tilewave.passes.split_tiles import SplitTiles
from tilewave.passes.stage_shared import StageShared
from tilewave.passes.stage_writes import StageWrites
from tilewave.passes.stagger_groups import StaggerGroups
from tilewave.passes.start_early import StartEarly
from tilewave.passes.store_in_parts import StoreInParts
from tilewave.passes.take_a_step import take_a_step
from tilewave.passes.take_parts_first import take_parts_first
from tilewave.passes.tell_whole_steps import tell_whole_steps
from tilewave.passes.turn_narrow_products import TurnNarrowProducts
from tilewave.passes.turn_products import turn_products
from tilewave.passes.unroll_slots import UnrollSlots
from tilewave.passes.use_copy_engine import UseCopyEngine
from tilewave.passes.use_matrix_unit import use_matrix_unit
from tilewave.passes.walk_reductions import WalkReductions
from tilewave.passes.widen_rows import widen_rows
from tilewave.passes.widen_writes import WidenWrites
from tilewave.pipeline.runner import Pass


def cpu(rows: int, cols: int, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """From whole tiles to register blocks of `rows` x `cols`."""
    return (
        add_up_parts,  # first: whoever follows sees loops that are whole
        WalkReductions(4 * cols, 8),  # early: it leaves tiles of other shapes behind
        SplitTiles(rows, cols),  # before packing: what is packed depends on how high and wide a block is
        PrepackOperands(rows, cols, unit, formats),
        simplify,  # last: folds the positions of blocks and panels
    )


def cpu_in_place(cols: int) -> tuple[Pass, ...]:
    """The same, where operands are read where they lie: to pack them costs more than small products do. Tiles stay
    whole, and what a step turns of them is turned once for all of its rows."""
    return (add_up_parts, dissolve_loops, WalkReductions(4 * cols, 8), simplify)


def cpu_with_matrix_unit(rows: int, cols: int, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """The same, with sums in the registers of a matrix unit."""
    return (*cpu(rows, cols, unit, formats), use_matrix_unit)  # behind: it takes what was packed


def lanes(machine: Chip, places: Places, pipelining: Sequence[Pass]) -> tuple[Pass, ...]:
    """From whole tiles to what each lane of each wave does; `pipelining` overlaps loads and products, or is empty."""
    return (
        add_up_parts,  # first: whoever follows sees loops that are whole
        dissolve_loops,  # early: a single step needs no pipeline, and no barrier for the step behind it
        hoist_reads,  # before anybody counts or stages what a step reads
        widen_rows,  # before waves are counted: it is the longer rows that they share
        ChooseWaves(machine),
        ChooseInstructions(machine, places),  # before staging: what is staged, and how, depends on the instruction
        pad_products,  # behind: tiles grow to whole blocks of what was chosen; whoever follows sees no others
        chain_products,  # behind: it counts rows; before staging: it says in which order operands are read
        shift_through_shared,  # behind: it is the longer rows that move; before layouts are asked for
        StageShared(machine),
        # Before the loop is pipelined, which copies the loads.
        MinimizeGlobalLoads(machine.widest_load_bytes, machine.shared.widest_bytes),
        LoadIntoShared(machine, _slots(pipelining)),  # behind: it takes what is loaded in the widest chunks
        *pipelining,  # before barriers: it decides what must be waited for
        reduce_across_waves,  # before layouts are converted: what waves left for each other can be had in any
        ConvertLayouts(machine),  # before barriers: what waves exchange goes through memories
        WidenWrites(machine),  # behind: a pipeline has memories to itself; before barriers: results take their bytes
        place_barriers,
        FitShared(machine, places),  # behind everything that allocates
        guard_edges,  # last on whole tiles: the passes above move reads, and each has edges of its own
        separate_edges,  # behind: it takes guards away
        compute_at_launch,  # behind: how many steps lie inside
        distribute_lanes,
        take_parts_first,  # behind: writes are cut into parts there
        simplify,  # folds the positions of lanes
        compare_places,  # behind: it looks at sums as simple as they get
        MeetOnce(),  # before: what it moves behind a barrier is what is computed again there
        RecomputeRows(),
        StoreInParts(),  # behind: it is what is computed again that need not be there all at once
        LoadEarly(),  # behind: of what is cut in parts, a lane holds much
        InterleaveProducts({name: i.depth for name, i in NAMED.items()}, machine.matrix_units),  # orders what is there
        UnrollSlots(),  # last: it repeats what was ordered
        simplify,
    )


def _slots(pipelining: Sequence[Pass]) -> int:
    """How many steps of what is brought past the registers shared memory will hold at once."""
    return max((p.slots_of_brought for p in pipelining if isinstance(p, PipelineLoop)), default=1)


def prefetch(buffers: int) -> tuple[Pass, ...]:
    """Load ahead while multiplying."""
    return (
        PipelineLoop(buffers),
        simplify,  # finds how often its loops go round
        dissolve_loops,  # loops of one round disappear, and with them barriers that only further rounds would need
    )


def hopper_plain(
    machine: Chip, places: Places, pipelining: Sequence[Pass], vector_bytes: int | None = None
) -> tuple[Pass, ...]:
    """From whole tiles to lanes, where groups of waves multiply what lies in shared memory; lanes load it.

    Rows begin and end at multiples of `vector_bytes`, or, unsaid, of what the widest load moves.
    """
    return (
        LimitVectors(vector_bytes or machine.widest_load_bytes),  # first: whoever asks how tiles are held must know it
        TurnNarrowProducts(machine),  # before parts are made: what is handed over is what the unit leaves
        ShareParts(machine.processors),
        add_up_parts,  # behind: what workgroups cannot share
        dissolve_loops,
        hoist_reads,
        turn_products,  # before instructions are chosen: groups of waves lie below each other
        widen_rows,
        ChooseWaves(machine),
        ChooseInstructions(machine, places),
        pad_products,
        shift_through_shared,
        StageShared(machine),
        MinimizeGlobalLoads(machine.widest_load_bytes),
        *pipelining,
        reduce_across_waves,
        ConvertLayouts(machine),
        StageWrites(machine, by_engine=False),  # behind: it asks how tiles are held; before shared memory is full
        place_barriers,
        FitShared(machine, places),
        guard_edges,
        separate_edges,
        compute_at_launch,
        distribute_lanes,
        simplify,
        compare_places,  # behind: it looks at sums as simple as they get
        MeetOnce(),  # before: what it moves behind a barrier is what is computed again there
        RecomputeRows(),  # behind: it is lanes that hold rows
        StoreInParts(),  # behind: it is what is computed again that need not be there all at once
        LoadEarly(),  # behind: of what is cut in parts, a lane holds much
        simplify,
    )


def hopper(
    machine: Chip,
    places: Places,
    stages: int | None,
    workgroups: int,
    fewest: int = 1,
    open_on_lines: bool = True,
    streamed: Streamed = NOTHING_STREAMED,
) -> tuple[Pass, ...]:
    """The same, where the copy engine can bring all tiles: one wave asks for them, `stages` steps ahead.

    Where shared memory holds fewer stages, the ring has fewer, but not below `fewest`; unsaid, the pass decides.
    `workgroups` run at once; where there are more, each of those computes several tiles; 0 where each has one tile.
    `open_on_lines`: whether arrays whose rows are as long as a launch says begin them on cache lines.
    """
    return (
        RepackRows(machine),  # first: whoever asks where rows begin must know that they are copied
        TurnNarrowProducts(machine),  # before parts are made: what is handed over is what the unit leaves
        take_a_step,  # before: whoever makes parts of a depth must know that there is one
        ShareParts(machine.processors),  # before: what its author cuts is not cut again
        add_up_parts,  # behind: what workgroups cannot share
        SplitLastRound(  # makes rounds, or
            workgroups or machine.processors,
            line_bytes=machine.line_bytes,
            open_on_lines=open_on_lines,
            only_few=not workgroups,
        ),
        MakePersistent(workgroups),  # leaves it to this one
        alternate_depth,  # behind: it looks for loops over tiles, and before staging, for loops that only add up
        hoist_reads,  # behind: it moves what stands between loops
        mask_once,  # before: fewer masks are told apart then
        tell_whole_steps,  # on tiles, whose positions are sums
        turn_products,  # before instructions are chosen: groups of waves lie below each other
        ChooseInstructions(machine, places),
        pad_products,
        shift_through_shared,
        StageShared(machine),
        UseCopyEngine(machine),  # behind staging: it replaces the reads and writes that staging made
        MinimizeGlobalLoads(machine.widest_load_bytes),  # what lanes still load
        reduce_across_waves,
        ConvertLayouts(machine),
        place_barriers,
        guard_edges,
        StageWrites(machine),  # behind barriers: groups of waves have meetings of their own
        distribute_lanes,
        take_parts_first,  # behind: writes are cut into parts there
        LoadInParts(),  # behind: what is loaded is wanted in parts now
        skip_whole_masks,  # on lanes: what decides a mask is left out too
        compare_with_steps,  # behind: it looks for loops in which masks are apart
        keep_maximum,  # before: where it does, there are no factors
        skip_unit_factors,  # on lanes: each wave asks for itself
        SpecializeWaves(machine, stages, fewest if stages else 1),  # on lanes: each role is a program of its own
        ShareCopies(machine, open_on_lines=open_on_lines),  # behind the roles: it changes whom each tells
        OrderCopies(streamed),  # behind: it asks what is shared
        lag_products,  # behind: it takes steps of rings apart
        simplify,
        dissolve_loops,  # of a first step that stands in front of its loop, much is known
        skip_zeros,  # behind: what loops begin with is settled
        overlap_steps,  # behind: the first product of a loop is told apart by its number
        StaggerGroups(),  # behind: what is added to in the first step is settled; loops are cut in two here
        StartEarly(streamed),  # behind roles: each waits by itself, when it is ready
        FitShared(machine, places),  # behind the ring
        ShareProcessors(machine),  # behind it, too
        carry_slots,  # behind whoever asks of which step a slot is
        MultiplyByReciprocals(),  # last: whatever computes positions is there
        simplify,
    )
