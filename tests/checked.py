"""What the first line of a check test may name: each pass, made from the words in its parentheses."""

from kernels import FORMATS

from tilewave.analysis.streaming import Streamed
from tilewave.ir.places import Places
from tilewave.machine.chips import CHIPS, SM_90A
from tilewave.mapping import as_mapping
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
from tilewave.passes.fit_shared import FitShared
from tilewave.passes.guard_edges import guard_edges
from tilewave.passes.hoist_reads import hoist_reads
from tilewave.passes.keep_maximum import keep_maximum
from tilewave.passes.lag_products import lag_products
from tilewave.passes.limit_vectors import LimitVectors
from tilewave.passes.load_early import LoadEarly
from tilewave.passes.load_in_parts import LoadInParts
from tilewave.passes.load_into_shared import LoadIntoShared
from tilewave.passes.make_persistent import MakePersistent
from tilewave.passes.map_workgroups import MapWorkgroups
from tilewave.passes.mask_once import mask_once
from tilewave.passes.meet_once import MeetOnce
from tilewave.passes.minimize_global_loads import MinimizeGlobalLoads
from tilewave.passes.multiply_by_reciprocals import MultiplyByReciprocals
from tilewave.passes.order_copies import OrderCopies
from tilewave.passes.orient_reads import orient_reads
from tilewave.passes.overlap_steps import overlap_steps
from tilewave.passes.pad_products import pad_products
from tilewave.passes.pipeline_loop import PipelineLoop
from tilewave.passes.place_barriers import place_barriers
from tilewave.passes.prepack_operands import PrepackOperands
from tilewave.passes.recompute_rows import RecomputeRows
from tilewave.passes.reduce_across_waves import reduce_across_waves
from tilewave.passes.repack_rows import RepackRows
from tilewave.passes.separate_edges import separate_edges
from tilewave.passes.share_copies import ShareCopies
from tilewave.passes.share_parts import ShareParts
from tilewave.passes.share_processors import ShareProcessors
from tilewave.passes.shift_through_shared import shift_through_shared
from tilewave.passes.simplify import simplify
from tilewave.passes.skip_masked_steps import skip_masked_steps
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

PASSES = {
    "add_up_parts": lambda text: add_up_parts,
    "alternate_depth": lambda text: alternate_depth,
    "carry_slots": lambda text: carry_slots,
    "chain_products": lambda text: chain_products,
    "choose_instructions": lambda text: ChooseInstructions(CHIPS[text], Places()),
    "choose_waves": lambda text: ChooseWaves(CHIPS[text]),
    "compare_places": lambda text: compare_places,
    "compare_with_steps": lambda text: compare_with_steps,
    "compute_at_launch": lambda text: compute_at_launch,
    "convert_layouts": lambda text: ConvertLayouts(CHIPS[text]),
    "dissolve_loops": lambda text: dissolve_loops,
    "fit_shared": lambda text: FitShared(CHIPS[text], Places()),
    "guard_edges": lambda text: guard_edges,
    "hoist_reads": lambda text: hoist_reads,
    "limit_vectors": lambda text: LimitVectors(int(text)),
    "load_early": lambda text: LoadEarly(int(text)),
    "load_in_parts": lambda text: LoadInParts(int(text)),
    "load_into_shared": lambda text: LoadIntoShared(CHIPS[text.split(",")[0]], int(text.split(",")[1])),
    "make_persistent": lambda text: MakePersistent(int(text)),
    "map_workgroups": lambda text: MapWorkgroups(as_mapping(text)),
    "mask_once": lambda text: mask_once,
    "meet_once": lambda text: MeetOnce(int(text)),
    "minimize_global_loads": lambda text: MinimizeGlobalLoads(int(text)),
    "order_copies": lambda text: OrderCopies(Streamed(frozenset(text.split(",")))),
    "orient_reads": lambda text: orient_reads,
    "overlap_steps": lambda text: overlap_steps,
    "pad_products": lambda text: pad_products,
    "pipeline_loop": lambda text: PipelineLoop(int(text)),
    "place_barriers": lambda text: place_barriers,
    "prepack_operands": lambda text: PrepackOperands(4, 8, int(text), FORMATS),
    "recompute_rows": lambda text: RecomputeRows(int(text)),
    "reduce_across_waves": lambda text: reduce_across_waves,
    "repack_rows": lambda text: RepackRows(CHIPS[text]),
    "separate_edges": lambda text: separate_edges,
    "share_processors": lambda text: ShareProcessors(CHIPS[text]),
    "share_parts": lambda text: ShareParts(int(text)),
    "share_copies": lambda text: ShareCopies(CHIPS[text]),
    "shift_through_shared": lambda text: shift_through_shared,
    "simplify": lambda text: simplify,
    "specialize_waves": lambda text: SpecializeWaves(SM_90A, int(text)),
    "use_matrix_unit": lambda text: use_matrix_unit,
    "split_last_round": lambda text: SplitLastRound(int(text), 0),
    "split_tiles": lambda text: SplitTiles(*map(int, text.split("x"))),
    "stage_shared": lambda text: StageShared(CHIPS[text]),
    "stage_writes": lambda text: StageWrites(CHIPS[text]),
    "store_in_parts": lambda text: StoreInParts(int(text)),
    "take_a_step": lambda text: take_a_step,
    "take_parts_first": lambda text: take_parts_first,
    "skip_masked_steps": lambda text: skip_masked_steps,
    "skip_unit_factors": lambda text: skip_unit_factors,
    "lag_products": lambda text: lag_products,
    "keep_maximum": lambda text: keep_maximum,
    "skip_whole_masks": lambda text: skip_whole_masks,
    "skip_zeros": lambda text: skip_zeros,
    "stagger_groups": lambda text: StaggerGroups(int(text)),
    "start_early": lambda text: StartEarly(),
    "multiply_by_reciprocals": lambda text: MultiplyByReciprocals(),
    "tell_whole_steps": lambda text: tell_whole_steps,
    "turn_narrow_products": lambda text: TurnNarrowProducts(CHIPS[text]),
    "turn_products": lambda text: turn_products,
    "unroll_slots": lambda text: UnrollSlots(),
    "use_copy_engine": lambda text: UseCopyEngine(CHIPS[text]),
    "walk_reductions": lambda text: WalkReductions(*map(int, text.split("x"))),
    "widen_rows": lambda text: widen_rows,
    "widen_writes": lambda text: WidenWrites(CHIPS[text]),
}
SEPARATOR = "// -----\n"
