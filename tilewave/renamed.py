"""Names of version 0.1 that users may have typed or saved; each is accepted for one version, with a warning.

To drop them, delete this module and what imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tilewave.errors import levels_to_author

OPTIONS = {"buffers": "num_stages", "longest": "max_sizes"}
"""Options of compilation and autotuning, and the keys of tuning records."""

PASSES = {
    "split_last_round": "stream_k",
    "share_parts": "split_k",
    "add_up_parts": "serialize_split_k",
    "alternate_depth": "alternate_k_direction",
    "compute_at_launch": "hoist_to_launch",
    "take_a_step": "take_first_step",
    "share_processors": "set_occupancy",
    "hoist_reads": "licm_reads",
    "choose_instructions": "select_mma",
    "pad_products": "select_mma",
    "turn_products": "transpose_mma",
    "turn_narrow_products": "transpose_mma",
    "walk_reductions": "tile_reductions",
    "choose_waves": "choose_wave_count",
    "dissolve_loops": "fold_trivial_loops",
    "orient_reads": "fold_permutes",
    "widen_rows": "pad_rows",
    "chain_products": "chain_mma",
    "limit_vectors": "limit_vector_width",
    "minimize_global_loads": "coalesce_loads",
    "use_copy_engine": "use_tma",
    "load_into_shared": "direct_to_shared",
    "stage_writes": "stage_epilogue",
    "widen_writes": "stage_epilogue",
    "repack_rows": "pack_unaligned",
    "share_copies": "multicast_loads",
    "order_copies": "order_tma_loads",
    "fit_shared": "set_occupancy",
    "pipeline_loop": "software_pipeline",
    "interleave_products": "interleave_mma",
    "stagger_groups": "ping_pong",
    "skip_zeros": "peel_accumulator_init",
    "start_early": "dependent_launch",
    "lag_products": "delay_dependent_mma",
    "overlap_steps": "overlap_mma",
    "carry_slots": "carry_stage_index",
    "unroll_slots": "unroll_stages",
    "load_early": "slice_rows",
    "guard_edges": "predicate_edges",
    "separate_edges": "peel_edges",
    "recompute_rows": "rematerialize",
    "meet_once": "fuse_wave_reductions",
    "compare_places": "vectorize_bounds_checks",
    "multiply_by_reciprocals": "strength_reduce_division",
    "store_in_parts": "slice_rows",
    "load_in_parts": "slice_epilogue",
    "take_parts_first": "slice_epilogue",
    "keep_maximum": "defer_rescaling",
    "skip_unit_factors": "defer_rescaling",
    "skip_masked_steps": "skip_masked_blocks",
    "skip_whole_masks": "drop_true_masks",
    "mask_once": "merge_masks",
    "tell_whole_steps": "merge_masks",
    "compare_with_steps": "drop_true_masks",
}
"""Passes, as `compiled.ir(name)`, `tilewave diff` and `tilewave bench --without` name them."""

IR = {
    "make_signals": "make_mbarriers",
    "signals": "mbarriers",
    "copy_async_signal": "tma_load",
    "copy_async_cluster": "tma_load_multicast",
    "copy_async_out": "tma_store",
    "await_async_out": "wait_tma_stores",
    "await": "wait_mbarrier",
    "await_async": "wait_async",
    "await_products": "wait_mma",
    "await_older_products": "wait_older_mma",
    "await_earlier": "wait_prior_launch",
    "let_next_start": "launch_dependents",
    "await_loads": "wait_loads",
    "range_sharers": "stream_k_workgroups",
    "equal_shares": "stream_k_splits",
    "part": "extract_slice",
    "renew": "opaque_copy",
    "matrix_held": "wgmma_registers",
    "matrix_shared": "wgmma_shared",
}
"""Words of the IR's text: ops and types."""

KERNELS = {"attention_parts_kernel": "attention_splits_kernel", "join_parts_kernel": "join_splits_kernel"}
"""Functions of `tilewave.kernels`."""


def current_pass(name: str) -> str:
    """Return the current name of a pass; a repeated pass has a number, such as `hoist_to_launch_2`."""
    base, mark, number = name.rpartition("_")
    if number.isdigit():
        return PASSES.get(base, base) + mark + number
    return PASSES.get(name, name)


def current_name(caller: str, name: str, current: str) -> str:
    """Return the current name of an option, a pass or a kernel; an old name gives a warning at the author's line."""
    if name != current:
        warnings.warn(f"{caller}: {name} is called {current} now", FutureWarning, stacklevel=levels_to_author())
    return current


def current_options(caller: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments under the current names of options; an option's old name wins over its new one.

    `dataclasses.replace(options, buffers=3)` gives both: the new one with the value that the options had.
    """
    current = {name: value for name, value in named.items() if name not in OPTIONS}
    return current | {current_name(caller, old, new): named[old] for old, new in OPTIONS.items() if old in named}
