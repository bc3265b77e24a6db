"""The formulas of the documents, typed as they are there; only the spelling is Python's."""

from __future__ import annotations

from collections.abc import Callable

from tilewave.mapping import Grid, Index, choose, smaller


def wave_reordering(num_xcds: int, group_size_m: int) -> Callable[[Index, Grid], tuple[Index, Index]]:
    """Workgroup Reordering in Wave, "Reordering Logic"; `w` is the document's flat_wg_index."""

    def formula(w: Index, grid: Grid) -> tuple[Index, Index]:
        num_wg_0, num_wg_1 = grid.rows, grid.cols
        num_wgs_total = num_wg_0 * num_wg_1
        extra_wgs = num_wgs_total % num_xcds
        xcd_wg_index = (w % num_xcds) * (num_wgs_total // num_xcds) + smaller(w % num_xcds, extra_wgs) + (w // num_xcds)
        num_wg_group = group_size_m * num_wg_1
        group_id = xcd_wg_index // num_wg_group
        first_wg_id_0 = group_id * group_size_m
        size = smaller(num_wg_0 - first_wg_id_0, group_size_m)
        return first_wg_id_0 + ((xcd_wg_index % num_wg_group) % size), (xcd_wg_index % num_wg_group) // size

    return formula


def wave_l2_swizzle(group_size_m: int) -> Callable[[Index, Grid], tuple[Index, Index]]:
    """Persistent GEMM Tutorial, "L2 Cache Swizzling"; `tile_id` → (cta_m, cta_n)."""

    def formula(tile_id: Index, grid: Grid) -> tuple[Index, Index]:
        num_ctas_in_group = group_size_m * grid.cols
        first_cta_m = tile_id // num_ctas_in_group * group_size_m
        size = smaller(grid.rows - first_cta_m, group_size_m)
        return first_cta_m + ((tile_id % num_ctas_in_group) % size), (tile_id % num_ctas_in_group) // size

    return formula


def wave_xcd_swizzle(num_xcds: int, chunk_size: int) -> Callable[[Index, Grid, int], Index]:
    """Persistent GEMM Tutorial, "XCD Swizzling": the tile at which workgroup `cta` begins."""

    def wave_xcd_swizzle(cta: Index, grid: Grid, workgroups: int) -> Index:
        xcd_id = cta % num_xcds
        local_cta = cta // num_xcds
        chunk_idx = local_cta // chunk_size
        pos_in_chunk = local_cta % chunk_size
        remapped_cta = chunk_idx * num_xcds * chunk_size + xcd_id * chunk_size + pos_in_chunk
        chunked_threshold = (grid.size // (num_xcds * chunk_size)) * (num_xcds * chunk_size)
        return choose(cta <= chunked_threshold, remapped_cta, cta)

    return wave_xcd_swizzle


def swizzled_wg_to_tile(wg_id: Index, grid: Grid) -> tuple[Index, Index]:
    """Experiment 06b, "Swizzled Mapping Function"."""
    super_tiles_n = 4
    tiles_per_super_m = (grid.rows + 1) // 2
    tiles_per_super_n = (grid.cols + 3) // 4
    tiles_per_super = tiles_per_super_m * tiles_per_super_n
    super_tile_id = wg_id // tiles_per_super
    local_id = wg_id % tiles_per_super
    super_m = super_tile_id // super_tiles_n
    super_n = super_tile_id % super_tiles_n
    return (
        super_m * tiles_per_super_m + (local_id // tiles_per_super_n),
        super_n * tiles_per_super_n + (local_id % tiles_per_super_n),
    )


def naive_wg_to_tile(wg_id: Index, grid: Grid) -> tuple[Index, Index]:
    """Experiment 06b, "Naive Mapping Function"."""
    return wg_id // grid.cols, wg_id % grid.cols
