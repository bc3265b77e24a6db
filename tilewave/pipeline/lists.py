"""The order of the passes after the tile level, defined only here; each comment gives the reason for a place."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.l2_residency import NOTHING_STREAMED, Streamed
from tilewave.ir.constraint_locations import Places
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import NAMED
from tilewave.passes.grid.alternate_k_direction import alternate_k_direction
from tilewave.passes.grid.hoist_to_launch import hoist_to_launch
from tilewave.passes.grid.make_persistent import MakePersistent
from tilewave.passes.grid.serialize_split_k import serialize_split_k
from tilewave.passes.grid.set_occupancy import SetOccupancy
from tilewave.passes.grid.skip_empty_tiles import skip_empty_tiles
from tilewave.passes.grid.split_k import SplitK
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.grid.take_first_step import take_first_step
from tilewave.passes.lanes.distribute_lanes import distribute_lanes
from tilewave.passes.lanes.fuse_wave_reductions import FuseWaveReductions
from tilewave.passes.lanes.peel_edges import peel_edges
from tilewave.passes.lanes.predicate_edges import predicate_edges
from tilewave.passes.lanes.reduce_across_waves import reduce_across_waves
from tilewave.passes.lanes.rematerialize import Rematerialize
from tilewave.passes.lanes.slice_epilogue import SliceEpilogue
from tilewave.passes.lanes.slice_rows import SliceRows
from tilewave.passes.lanes.strength_reduce_division import StrengthReduceDivision
from tilewave.passes.lanes.vectorize_atomics import vectorize_atomics
from tilewave.passes.lanes.vectorize_bounds_checks import vectorize_bounds_checks
from tilewave.passes.memory.coalesce_loads import CoalesceLoads
from tilewave.passes.memory.convert_layouts import ConvertLayouts
from tilewave.passes.memory.direct_to_shared import DirectToShared
from tilewave.passes.memory.limit_vector_width import LimitVectorWidth
from tilewave.passes.memory.multicast_loads import MulticastLoads
from tilewave.passes.memory.order_tma_loads import OrderTmaLoads
from tilewave.passes.memory.pack_unaligned import PackUnaligned
from tilewave.passes.memory.place_barriers import place_barriers
from tilewave.passes.memory.shift_through_shared import shift_through_shared
from tilewave.passes.memory.stage_epilogue import StageEpilogue
from tilewave.passes.memory.stage_shared import StageShared
from tilewave.passes.memory.use_tma import UseTma
from tilewave.passes.schedule.carry_stage_index import carry_stage_index
from tilewave.passes.schedule.delay_dependent_mma import delay_dependent_mma
from tilewave.passes.schedule.delegate_turns import DelegateTurns
from tilewave.passes.schedule.dependent_launch import DependentLaunch
from tilewave.passes.schedule.find_tiles_ahead import FindTilesAhead
from tilewave.passes.schedule.halve_steps import HalveSteps
from tilewave.passes.schedule.hold_left_operands import HoldLeftOperands
from tilewave.passes.schedule.interleave_mma import InterleaveMma
from tilewave.passes.schedule.overlap_mma import OverlapMma
from tilewave.passes.schedule.peel_accumulator_init import peel_accumulator_init
from tilewave.passes.schedule.ping_pong import PingPong
from tilewave.passes.schedule.pipeline_exchanges import PipelineExchanges
from tilewave.passes.schedule.pipeline_mma import PipelineMma
from tilewave.passes.schedule.prefetch_tiles import PrefetchTiles
from tilewave.passes.schedule.prioritize_mma import prioritize_mma
from tilewave.passes.schedule.software_pipeline import SoftwarePipeline
from tilewave.passes.schedule.specialize_waves import SpecializeWaves
from tilewave.passes.schedule.unroll_stages import UnrollStages
from tilewave.passes.softmax.defer_rescaling import defer_rescaling
from tilewave.passes.softmax.drop_true_masks import drop_true_masks
from tilewave.passes.softmax.merge_masks import merge_masks
from tilewave.passes.tile.chain_mma import chain_mma
from tilewave.passes.tile.choose_wave_count import ChooseWaveCount
from tilewave.passes.tile.fold_trivial_loops import fold_trivial_loops
from tilewave.passes.tile.licm_reads import licm_reads
from tilewave.passes.tile.narrow_mma import narrow_mma
from tilewave.passes.tile.pad_rows import PadRows
from tilewave.passes.tile.reduce_thin_mma import ReduceThinMma
from tilewave.passes.tile.select_mma import SelectMma
from tilewave.passes.tile.simplify import simplify
from tilewave.passes.tile.transpose_mma import TransposeMma
from tilewave.pipeline.runner import Pass


def lanes(machine: Chip, places: Places, pipelining: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes from whole tiles to lane code; `pipelining` overlaps loads and products, or is empty."""
    return (
        serialize_split_k,  # first, because later passes expect K loops that are not split
        skip_empty_tiles,  # before licm_reads, because a tile that is skipped reads nothing
        fold_trivial_loops,  # before pipelining, because a single step needs no pipeline, nor a barrier for a next one
        licm_reads,  # before choose_wave_count and stage_shared, which count and stage the reads of a step
        merge_masks,  # before distribute_lanes, because positions of tiles are sums
        PadRows(machine.lanes),  # before choose_wave_count, because waves share the padded rows
        ChooseWaveCount(
            machine, machine.tuning.rows
        ),  # before reduce_across_waves, because layouts depend on the number of waves
        SelectMma(machine, places),  # before stage_shared, because the instruction decides what is staged
        chain_mma,  # after select_mma, because it counts rows; before stage_shared, which reads operands in its order
        shift_through_shared,  # after pad_rows, because padded rows are shifted; before passes that need layouts
        # After select_mma, because a half step is an instruction deep; before stage_shared, which stages whole tiles.
        *_halving(machine, pipelining),
        StageShared(machine),  # before coalesce_loads, which spreads the loads of staged tiles over all lanes
        # Before pipelining, because software_pipeline copies the loads.
        CoalesceLoads(machine.widest_load_bytes, machine.shared.widest_bytes),
        DirectToShared(machine, _slots(pipelining)),  # after coalesce_loads, because it takes the widest loads
        *pipelining,  # before place_barriers, because it decides what has to be waited for
        reduce_across_waves,  # before convert_layouts, because partial results can be read in any layout
        ConvertLayouts(machine),  # before place_barriers, because waves exchange tiles through shared memory
        # After pipelining and before place_barriers, because it reuses the bytes of staged tiles.
        StageEpilogue(machine),
        place_barriers,  # after stage_epilogue, the last pass that adds accesses to shared memory
        SetOccupancy(machine, places),  # after stage_epilogue, the last pass that allocates
        predicate_edges,  # last on tiles, because the passes above move reads, and each access has its own predicates
        peel_edges,  # after predicate_edges, because it removes predicates
        hoist_to_launch,  # after peel_edges, because the number of steps inside is a scalar of the launch
        distribute_lanes,  # after predicate_edges, because lanes check the axes that it found
        SliceEpilogue(),  # after distribute_lanes, which slices the writes
        simplify,  # after distribute_lanes, because it folds the positions of lanes
        drop_true_masks,  # after distribute_lanes, because it skips the comparisons of lanes, too
        vectorize_bounds_checks,  # after simplify, because it matches sums in their simplest form
        FuseWaveReductions(),  # before rematerialize, because what it moves after a barrier is rematerialized there
        Rematerialize(),  # after distribute_lanes, because it counts the registers of lanes
        SliceRows(),  # after rematerialize, because rematerialized values need not be live all at once
        # After slice_rows, because it orders the final loads and products.
        InterleaveMma({name: i.depth for name, i in NAMED.items()}, machine.matrix_units),
        prioritize_mma,  # after interleave_mma, which sets the priorities of the loops that it orders
        UnrollStages(),  # after interleave_mma and prioritize_mma, because it repeats the ordered steps
        simplify,  # last, because unroll_stages makes the stage indices constants
    )


def _halving(machine: Chip, pipelining: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the pass that halves steps, where the number of stages is left to the passes."""
    is_free = any(isinstance(p, SoftwarePipeline) and p.num_stages == 1 for p in pipelining)
    return (HalveSteps(machine),) if is_free else ()


def _slots(pipelining: Sequence[Pass]) -> int:
    """Return the number of pipeline stages for tiles that are copied past the registers."""
    return max((p.slots_of_brought for p in pipelining if isinstance(p, SoftwarePipeline)), default=1)


def prefetch(num_stages: int, machine: Chip) -> tuple[Pass, ...]:
    """Return the passes that load ahead while multiplying."""
    return (
        SoftwarePipeline(num_stages, machine.shared.bytes, machine.tuning.pipeline.in_flight_bytes),
        simplify,  # after software_pipeline, because it computes the trip counts of its loops
        fold_trivial_loops,  # after simplify, so that loops of one trip, and barriers for their next trips, disappear
    )


def hopper_plain(
    machine: Chip,
    places: Places,
    pipelining: Sequence[Pass],
    widths: Sequence[tuple[str, int]] = (),
    starting: Sequence[Pass] = (),
) -> tuple[Pass, ...]:
    """Return the passes from whole tiles to lanes where lanes load the operands that wgmma reads from shared memory.

    Rows begin and end at multiples of what the widest load moves, or of the bytes that `widths` has for each array.
    `starting` decides whether the kernel starts before the previous launch ends, or is empty.
    `lanes` gives the reasons for passes without a comment.
    """
    return (
        *_limits(widths),  # first, because layouts depend on the width of vectors
        # Before split_k, because workgroups exchange sums as the matrix unit leaves them.
        TransposeMma(machine, by_tma=False),
        SplitK(machine.processors, machine.tuning.splits, sharing=machine),
        serialize_split_k,  # after split_k, because it serializes the splits that workgroups cannot share
        skip_empty_tiles,
        fold_trivial_loops,
        licm_reads,
        PadRows(machine.lanes),
        ChooseWaveCount(machine, machine.tuning.rows),
        # After choose_wave_count, because it counts the workgroups of a processor.
        PrefetchTiles(machine.tuning.pipeline.in_flight_bytes),
        # After choose_wave_count and prefetch_tiles, because it decides how many waves have how much in flight; before
        # select_mma, which would pad such products.
        ReduceThinMma(machine),
        SelectMma(machine, places),
        shift_through_shared,
        StageShared(machine),
        CoalesceLoads(machine.widest_load_bytes),
        *pipelining,
        reduce_across_waves,
        ConvertLayouts(machine),
        # After convert_layouts, because it needs layouts; before set_occupancy, because it allocates.
        StageEpilogue(machine, by_tma=False),
        place_barriers,
        SetOccupancy(machine, places),
        predicate_edges,
        peel_edges,
        hoist_to_launch,
        distribute_lanes,
        simplify,
        vectorize_bounds_checks,  # after simplify, because it matches sums in their simplest form
        FuseWaveReductions(),  # before rematerialize, because what it moves after a barrier is rematerialized there
        Rematerialize(),  # after distribute_lanes, because it counts the registers of lanes
        SliceRows(),  # after rematerialize, because rematerialized values need not be live all at once
        simplify,
        *starting,  # last, because waits keep the order of loads and stores
    )


def _limits(widths: Sequence[tuple[str, int]]) -> tuple[Pass, ...]:
    """Return the pass that narrows the vectors of lanes to these bytes of arrays, where there are any."""
    least = min((width for _, width in widths), default=0)
    return (LimitVectorWidth(least, tuple(one for one in widths if one[1] > least)),) if widths else ()


def specialized(
    machine: Chip, places: Places, stages: int | None, fewest: int, open_on_lines: bool, streamed: Streamed
) -> tuple[Pass, ...]:
    """Return the passes of `hopper` on lanes that divide the work among warps; parameters as there."""
    return (
        # After distribute_lanes, because lanes hold rows; before specialize_waves, which waits for what lanes load.
        HoldLeftOperands(machine.tuning.pipeline.held_registers),
        # After distribute_lanes, because each role is a program of lanes.
        SpecializeWaves(machine, machine.tuning.pipeline, stages, fewest if stages else 1),
        # After specialize_waves, whose roles search for the same tiles; before dependent_launch, where each role waits.
        FindTilesAhead(machine),
        # After specialize_waves, because it changes on which mbarriers the roles arrive.
        MulticastLoads(machine, machine.tuning.loads, open_on_lines=open_on_lines),
        OrderTmaLoads(
            machine.tuning.loads, streamed
        ),  # after multicast_loads, because multicast tiles are loaded first
        PipelineExchanges(machine),  # after specialize_waves, because it takes the barriers of consumers
        # After pipeline_exchanges, because it takes the steps of pipelines apart; before delay_dependent_mma, which
        # takes the steps of two products that rescale their sums.
        PipelineMma(machine.tuning.pipeline.held_registers),
        delay_dependent_mma,
        simplify,  # after delay_dependent_mma, because it folds the trip counts of the loops that it splits
        fold_trivial_loops,  # after delay_dependent_mma, because much is known of the step that it peels
        peel_accumulator_init,  # after fold_trivial_loops, because the initial values of loops are final then
        OverlapMma(
            machine.tuning.pipeline.least_overlapped
        ),  # after peel_accumulator_init, because the step number marks the first product of a loop
        PingPong(
            machine.tuning.pipeline.lead
        ),  # after peel_accumulator_init, because it splits K loops, and the first part may be empty
        # After pipeline_mma and ping_pong, which move turns to other places of the consumers' loops; before
        # dependent_launch, because the roles that it makes access global memory.
        DelegateTurns(machine),
        DependentLaunch(streamed),  # after specialize_waves, because each role waits itself, when it is ready
        SetOccupancy(machine, places),  # after specialize_waves, because it allocates the pipeline stages
        carry_stage_index,  # after overlap_mma, because that derives stage indices from step numbers
        StrengthReduceDivision(),  # after all passes that compute positions, because it takes all divisions
        simplify,  # last, because strength_reduce_division leaves arithmetic to fold
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
        ReduceThinMma(machine),  # first, because only what is multiplied is packed and loaded by TMA
        PackUnaligned(machine),  # before all others, because they need the alignment of the packed copies
        TransposeMma(machine),  # before split_k, because workgroups exchange sums as the matrix unit leaves them
        take_first_step,  # before split_k and stream_k, because they split a K of at least one step
        SplitK(
            machine.processors, machine.tuning.splits
        ),  # before stream_k, because a sum that its author splits is not split again
        serialize_split_k,  # after split_k, because it serializes the splits that workgroups cannot share
        StreamK(  # before make_persistent, because it makes the kernel persistent itself where it splits tiles
            workgroups or machine.processors,
            machine.tuning.splits,
            line_bytes=machine.line_bytes,
            open_on_lines=open_on_lines,
            only_few=not workgroups,
        ),
        MakePersistent(workgroups),  # after stream_k, because it takes the kernels that stream_k leaves
        # After make_persistent, because it needs loops over tiles; before stage_shared, which adds to the K loops.
        alternate_k_direction,
        skip_empty_tiles,  # after alternate_k_direction, because a loop of one tile at most then encloses the K loop
        licm_reads,  # after alternate_k_direction, because it moves what is between the loops
        merge_masks,  # before distribute_lanes, because positions of tiles are sums
        narrow_mma,  # after transpose_mma, because columns are left out; after passes that change K loops
        SelectMma(machine, places),
        shift_through_shared,
        StageShared(machine),
        # After stage_shared, because it replaces the reads and writes of staged tiles; after narrow_mma, because it
        # loads the rows that products use.
        UseTma(machine),
        CoalesceLoads(machine.widest_load_bytes),  # after use_tma, because it takes what lanes still load
        reduce_across_waves,
        ConvertLayouts(machine),
        place_barriers,
        predicate_edges,
        StageEpilogue(machine),  # after place_barriers, because distribute_lanes adds the barriers of warpgroups
        distribute_lanes,
        SliceEpilogue(),  # after distribute_lanes, which slices the writes
        vectorize_atomics,  # after distribute_lanes, because it compares the positions of a lane's registers
        drop_true_masks,  # after distribute_lanes, because it skips the comparisons of lanes, too
        defer_rescaling,  # after distribute_lanes, because each wave tests its own factors
        *specialized(machine, places, stages, fewest, open_on_lines, streamed),
    )
