"""What the first line of a check test may name: each pass, made from the words in its parentheses."""

from kernels import FORMATS
from tunings import FREE, SPLITS

from tilewave.analysis.l2_residency import Streamed
from tilewave.ir.constraint_locations import Places
from tilewave.machine.chips import CHIPS, SM_90A
from tilewave.mapping import as_mapping
from tilewave.passes.grid.alternate_k_direction import alternate_k_direction
from tilewave.passes.grid.expand_ragged_tiles import expand_ragged_tiles
from tilewave.passes.grid.hoist_to_launch import hoist_to_launch
from tilewave.passes.grid.make_persistent import MakePersistent
from tilewave.passes.grid.map_workgroups import MapWorkgroups
from tilewave.passes.grid.serialize_split_k import serialize_split_k
from tilewave.passes.grid.set_occupancy import SetOccupancy
from tilewave.passes.grid.skip_empty_tiles import skip_empty_tiles
from tilewave.passes.grid.split_k import SplitK
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.grid.take_first_step import take_first_step
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
from tilewave.passes.memory.prefetch_results import prefetch_results
from tilewave.passes.memory.prepack_operands import PrepackOperands
from tilewave.passes.memory.read_rows_in_place import read_rows_in_place
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
from tilewave.passes.softmax.skip_masked_blocks import skip_masked_blocks
from tilewave.passes.tile.chain_mma import chain_mma
from tilewave.passes.tile.choose_wave_count import ChooseWaveCount
from tilewave.passes.tile.fold_permutes import fold_permutes
from tilewave.passes.tile.fold_trivial_loops import fold_trivial_loops
from tilewave.passes.tile.licm_reads import licm_reads
from tilewave.passes.tile.narrow_mma import narrow_mma
from tilewave.passes.tile.pad_rows import PadRows
from tilewave.passes.tile.reduce_thin_mma import ReduceThinMma
from tilewave.passes.tile.select_mma import SelectMma
from tilewave.passes.tile.simplify import simplify
from tilewave.passes.tile.split_tiles import SplitTiles
from tilewave.passes.tile.tile_reductions import TileReductions
from tilewave.passes.tile.transpose_mma import TransposeMma
from tilewave.passes.tile.use_matrix_unit import use_matrix_unit

PASSES = {
    "serialize_split_k": lambda text: serialize_split_k,
    "alternate_k_direction": lambda text: alternate_k_direction,
    "carry_stage_index": lambda text: carry_stage_index,
    "chain_mma": lambda text: chain_mma,
    "select_mma": lambda text: SelectMma(CHIPS[text], Places()),
    "choose_wave_count": lambda text: ChooseWaveCount(CHIPS[text], CHIPS[text].tuning.rows),
    "vectorize_bounds_checks": lambda text: vectorize_bounds_checks,
    "expand_ragged_tiles": lambda text: expand_ragged_tiles,
    "hoist_to_launch": lambda text: hoist_to_launch,
    "convert_layouts": lambda text: ConvertLayouts(CHIPS[text]),
    "fold_trivial_loops": lambda text: fold_trivial_loops,
    "set_occupancy": lambda text: SetOccupancy(CHIPS[text], Places()),
    "predicate_edges": lambda text: predicate_edges,
    "licm_reads": lambda text: licm_reads,
    "prefetch_tiles": lambda text: PrefetchTiles(int(text)),
    "limit_vector_width": lambda text: LimitVectorWidth(*_limits(text)),
    "direct_to_shared": lambda text: DirectToShared(CHIPS[text.split(",")[0]], int(text.split(",")[1])),
    "make_persistent": lambda text: MakePersistent(int(text)),
    "map_workgroups": lambda text: MapWorkgroups(as_mapping(text)),
    "merge_masks": lambda text: merge_masks,
    "fuse_wave_reductions": lambda text: FuseWaveReductions(int(text)),
    "coalesce_loads": lambda text: CoalesceLoads(int(text)),
    "order_tma_loads": lambda text: OrderTmaLoads(SM_90A.tuning.loads, Streamed(frozenset(text.split(",")))),
    "find_tiles_ahead": lambda text: FindTilesAhead(CHIPS[text]),
    "fold_permutes": lambda text: fold_permutes,
    "overlap_mma": lambda text: OverlapMma(SM_90A.tuning.pipeline.least_overlapped),
    "narrow_mma": lambda text: narrow_mma,
    "software_pipeline": lambda text: SoftwarePipeline(int(text)),
    "place_barriers": lambda text: place_barriers,
    "prepack_operands": lambda text: PrepackOperands(4, 8, int(text), FORMATS),
    "prefetch_results": lambda text: prefetch_results,
    "read_rows_in_place": lambda text: read_rows_in_place,
    "rematerialize": lambda text: Rematerialize(int(text)),
    "reduce_across_waves": lambda text: reduce_across_waves,
    "halve_steps": lambda text: HalveSteps(CHIPS[text]),
    "pack_unaligned": lambda text: PackUnaligned(CHIPS[text]),
    "peel_edges": lambda text: peel_edges,
    "split_k": lambda text: SplitK(int(text), SPLITS),
    "multicast_loads": lambda text: MulticastLoads(CHIPS[text], CHIPS[text].tuning.loads),
    "shift_through_shared": lambda text: shift_through_shared,
    "simplify": lambda text: simplify,
    "specialize_waves": lambda text: SpecializeWaves(SM_90A, SM_90A.tuning.pipeline, int(text)),
    "use_matrix_unit": lambda text: use_matrix_unit,
    "stream_k": lambda text: StreamK(int(text), FREE),
    "split_tiles": lambda text: SplitTiles(*map(int, text.split("x"))),
    "stage_shared": lambda text: StageShared(CHIPS[text]),
    "stage_epilogue": lambda text: StageEpilogue(CHIPS[text]),
    "slice_epilogue": lambda text: SliceEpilogue(int(text)),
    "slice_rows": lambda text: SliceRows(*map(int, text.split(","))),
    "take_first_step": lambda text: take_first_step,
    "skip_empty_tiles": lambda text: skip_empty_tiles,
    "skip_masked_blocks": lambda text: skip_masked_blocks,
    "delegate_turns": lambda text: DelegateTurns(SM_90A),
    "delay_dependent_mma": lambda text: delay_dependent_mma,
    "defer_rescaling": lambda text: defer_rescaling,
    "drop_true_masks": lambda text: drop_true_masks,
    "peel_accumulator_init": lambda text: peel_accumulator_init,
    "ping_pong": lambda text: PingPong(int(text)),
    "hold_left_operands": lambda text: HoldLeftOperands(int(text)),
    "pipeline_exchanges": lambda text: PipelineExchanges(SM_90A),
    "pipeline_mma": lambda text: PipelineMma(int(text)),
    "vectorize_atomics": lambda text: vectorize_atomics,
    "dependent_launch": lambda text: DependentLaunch(),
    "strength_reduce_division": lambda text: StrengthReduceDivision(),
    "reduce_thin_mma": lambda text: ReduceThinMma(SM_90A),
    "transpose_mma": lambda text: TransposeMma(CHIPS[text]),
    "prioritize_mma": lambda text: prioritize_mma,
    "unroll_stages": lambda text: UnrollStages(),
    "use_tma": lambda text: UseTma(CHIPS[text]),
    "tile_reductions": lambda text: TileReductions(*map(int, text.split("x"))),
    "pad_rows": lambda text: PadRows(int(text)),
}
SEPARATOR = "// -----\n"


def _limits(text):
    """Return the bytes, and those of single memories: `2, a=16`."""
    least, *wide = text.replace(" ", "").split(",")
    return int(least), tuple((name, int(width)) for name, _, width in (one.partition("=") for one in wide))
