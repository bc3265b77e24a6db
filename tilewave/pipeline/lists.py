"""The order of the passes after the tile level, defined only here; each comment gives the reason for a place."""

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
    """Return the passes from whole tiles to register blocks of `rows` x `cols`."""
    return (
        add_up_parts,  # first, because later passes expect K loops that are not split
        WalkReductions(4 * cols, 8),  # before split_tiles, because it leaves tiles of other shapes
        SplitTiles(rows, cols),  # before prepack_operands, because the size of a block decides the panels
        PrepackOperands(rows, cols, unit, formats),
        simplify,  # last, because it folds the positions of blocks and panels
    )


def cpu_in_place(cols: int) -> tuple[Pass, ...]:
    """Return the passes for small products, which read operands in place: packing would cost more than the product.

    Tiles stay whole, and what a step transposes of them is transposed once for all of its rows.
    """
    return (add_up_parts, dissolve_loops, WalkReductions(4 * cols, 8), simplify)


def cpu_with_matrix_unit(rows: int, cols: int, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """Return the passes of `cpu`, with accumulators in the registers of a matrix unit."""
    return (*cpu(rows, cols, unit, formats), use_matrix_unit)  # after prepack_operands, because it needs panels


def lanes(machine: Chip, places: Places, pipelining: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes from whole tiles to lane code; `pipelining` overlaps loads and products, or is empty."""
    return (
        add_up_parts,  # first, because later passes expect K loops that are not split
        dissolve_loops,  # before pipelining, because a single step needs no pipeline, nor a barrier for a next one
        hoist_reads,  # before choose_wave_count and stage_shared, which count and stage the reads of a step
        widen_rows,  # before choose_wave_count, because waves share the padded rows
        ChooseWaves(machine),  # before reduce_across_waves, because layouts depend on the number of waves
        ChooseInstructions(machine, places),  # before stage_shared, because the instruction decides what is staged
        pad_products,  # after select_mma, because tiles are padded to blocks of the selected instruction
        chain_products,  # after pad_mma, because it counts rows; before stage_shared, which reads operands in its order
        shift_through_shared,  # after pad_rows, because padded rows are shifted; before passes that need layouts
        StageShared(machine),  # before coalesce_loads, which spreads the loads of staged tiles over all lanes
        # Before pipelining, because software_pipeline copies the loads.
        MinimizeGlobalLoads(machine.widest_load_bytes, machine.shared.widest_bytes),
        LoadIntoShared(machine, _slots(pipelining)),  # after coalesce_loads, because it takes the widest loads
        *pipelining,  # before place_barriers, because it decides what has to be waited for
        reduce_across_waves,  # before convert_layouts, because partial results can be read in any layout
        ConvertLayouts(machine),  # before place_barriers, because waves exchange tiles through shared memory
        WidenWrites(machine),  # after pipelining and before place_barriers, because it reuses the bytes of staged tiles
        place_barriers,  # after widen_stores, the last pass that adds accesses to shared memory
        FitShared(machine, places),  # after widen_stores, the last pass that allocates
        guard_edges,  # last on tiles, because the passes above move reads, and each access has its own predicates
        separate_edges,  # after predicate_edges, because it removes predicates
        compute_at_launch,  # after peel_edges, because the number of steps inside is a scalar of the launch
        distribute_lanes,  # after predicate_edges, because lanes check the axes that it found
        take_parts_first,  # after distribute_lanes, which slices the writes
        simplify,  # after distribute_lanes, because it folds the positions of lanes
        compare_places,  # after simplify, because it matches sums in their simplest form
        MeetOnce(),  # before rematerialize, because what it moves after a barrier is rematerialized there
        RecomputeRows(),  # after distribute_lanes, because it counts the registers of lanes
        StoreInParts(),  # after rematerialize, because rematerialized values need not be live all at once
        LoadEarly(),  # after slice_stores, because lanes have no registers for hoisted loads where it slices
        # After hoist_loads, because it orders the final loads and products.
        InterleaveProducts({name: i.depth for name, i in NAMED.items()}, machine.matrix_units),
        UnrollSlots(),  # after interleave_mma, because it repeats the ordered steps
        simplify,  # last, because unroll_stages makes the stage indices constants
    )


def _slots(pipelining: Sequence[Pass]) -> int:
    """Return the number of pipeline stages for tiles that are copied past the registers."""
    return max((p.slots_of_brought for p in pipelining if isinstance(p, PipelineLoop)), default=1)


def prefetch(buffers: int) -> tuple[Pass, ...]:
    """Return the passes that load ahead while multiplying."""
    return (
        PipelineLoop(buffers),
        simplify,  # after software_pipeline, because it computes the trip counts of its loops
        dissolve_loops,  # after simplify, so that loops of one trip, and barriers for their next trips, disappear
    )


def hopper_plain(
    machine: Chip, places: Places, pipelining: Sequence[Pass], vector_bytes: int | None = None
) -> tuple[Pass, ...]:
    """Return the passes from whole tiles to lanes where lanes load the operands that wgmma reads from shared memory.

    Rows begin and end at multiples of `vector_bytes`, or, if None, of what the widest load moves.
    `lanes` gives the reasons for passes without a comment.
    """
    return (
        LimitVectors(vector_bytes or machine.widest_load_bytes),  # first, because layouts depend on it
        TurnNarrowProducts(machine),  # before split_k, because workgroups exchange sums as the matrix unit leaves them
        ShareParts(machine.processors),
        add_up_parts,  # after split_k, because it serializes the splits that workgroups cannot share
        dissolve_loops,
        hoist_reads,
        turn_products,  # before select_mma, because warpgroups split the rows of the product
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
        # After convert_layouts, because it needs layouts; before check_shared_capacity, because it allocates.
        StageWrites(machine, by_engine=False),
        place_barriers,
        FitShared(machine, places),
        guard_edges,
        separate_edges,
        compute_at_launch,
        distribute_lanes,
        simplify,
        compare_places,  # after simplify, because it matches sums in their simplest form
        MeetOnce(),  # before rematerialize, because what it moves after a barrier is rematerialized there
        RecomputeRows(),  # after distribute_lanes, because it counts the registers of lanes
        StoreInParts(),  # after rematerialize, because rematerialized values need not be live all at once
        LoadEarly(),  # after slice_stores, because lanes have no registers for hoisted loads where it slices
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
    """Return the passes where TMA can load all tiles: a producer warp issues the loads, `stages` steps ahead.

    Where shared memory holds fewer stages, the pipeline has fewer, but not below `fewest`; None: the pass chooses.
    `workgroups` run at once; where there are more, each of those computes several tiles; 0 where each has one tile.
    `open_on_lines`: whether arrays with rows of dynamic length begin them on cache lines.
    `streamed`: the arrays that L2 does not keep. `lanes` gives the reasons for passes without a comment.
    """
    return (
        RepackRows(machine),  # first, because later passes need the alignment of the packed copies
        TurnNarrowProducts(machine),  # before split_k, because workgroups exchange sums as the matrix unit leaves them
        take_a_step,  # before split_k and stream_k, because they split a K of at least one step
        ShareParts(machine.processors),  # before stream_k, because a sum that its author splits is not split again
        add_up_parts,  # after split_k, because it serializes the splits that workgroups cannot share
        SplitLastRound(  # before make_persistent, because it makes the kernel persistent itself where it splits tiles
            workgroups or machine.processors,
            line_bytes=machine.line_bytes,
            open_on_lines=open_on_lines,
            only_few=not workgroups,
        ),
        MakePersistent(workgroups),  # after stream_k, because it takes the kernels that stream_k leaves
        # After make_persistent, because it needs loops over tiles; before stage_shared, which adds to the K loops.
        alternate_depth,
        hoist_reads,  # after alternate_k_direction, because it moves what is between the loops
        mask_once,  # before mark_unmasked_steps, because fewer masks are left to mark
        tell_whole_steps,  # before distribute_lanes, because positions of tiles are sums
        turn_products,  # before select_mma, because warpgroups split the rows of the product
        ChooseInstructions(machine, places),
        pad_products,
        shift_through_shared,
        StageShared(machine),
        UseCopyEngine(machine),  # after stage_shared, because it replaces the reads and writes of staged tiles
        MinimizeGlobalLoads(machine.widest_load_bytes),  # after use_tma, because it takes what lanes still load
        reduce_across_waves,
        ConvertLayouts(machine),
        place_barriers,
        guard_edges,
        StageWrites(machine),  # after place_barriers, because distribute_lanes adds the barriers of warpgroups
        distribute_lanes,
        take_parts_first,  # after distribute_lanes, which slices the writes
        LoadInParts(),  # after slice_elementwise, because loads are used in slices then
        skip_whole_masks,  # after distribute_lanes, because it skips the comparisons of lanes, too
        compare_with_steps,  # after drop_true_masks, because it looks for the loops that this puts around masks
        keep_maximum,  # before skip_unit_rescaling, because deferred rescaling leaves no factors
        skip_unit_factors,  # after distribute_lanes, because each wave tests its own factors
        # After distribute_lanes, because each role is a program of lanes.
        SpecializeWaves(machine, stages, fewest if stages else 1),
        # After specialize_waves, because it changes on which mbarriers the roles arrive.
        ShareCopies(machine, open_on_lines=open_on_lines),
        OrderCopies(streamed),  # after multicast_loads, because multicast tiles are loaded first
        lag_products,  # after specialize_waves, because it takes the steps of pipelines apart
        simplify,  # after delay_dependent_mma, because it folds the trip counts of the loops that it splits
        dissolve_loops,  # after delay_dependent_mma, because much is known of the step that it peels
        skip_zeros,  # after fold_trivial_loops, because the initial values of loops are final then
        overlap_steps,  # after peel_accumulator_init, because the step number marks the first product of a loop
        StaggerGroups(),  # after peel_accumulator_init, because it splits K loops, and the first part may be empty
        StartEarly(streamed),  # after specialize_waves, because each role waits itself, when it is ready
        FitShared(machine, places),  # after specialize_waves, because it allocates the pipeline stages
        ShareProcessors(machine),  # after specialize_waves, because occupancy depends on the pipeline stages
        carry_slots,  # after overlap_mma, because that derives stage indices from step numbers
        MultiplyByReciprocals(),  # after all passes that compute positions, because it takes all divisions
        simplify,  # last, because strength_reduce_division leaves arithmetic to fold
    )
