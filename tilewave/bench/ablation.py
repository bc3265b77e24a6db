"""An ablation study: our GEMM with one optimisation left out of the list of passes at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewave.analysis.l2_residency import streamed
from tilewave.backend.nvidia.build import NvidiaBuild, build_plain, build_with, copying_passes
from tilewave.backend.targets import targets_on
from tilewave.bench.result import Settings, Shape
from tilewave.compile import compile_with
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.kernels import gemm
from tilewave.machine.chips import CHIPS
from tilewave.options import WaveCompileOptions
from tilewave.pipeline.runner import Pass, pass_name
from tilewave.records import dataclass
from tilewave.renamed import current_pass

TARGET = targets_on("cuda")[0].name
"""The GPU target that is measured: the first one of the table."""
CHIP = CHIPS[TARGET]
WITHOUT = "without "
Passes = tuple[Pass, ...]
Change = Callable[[Passes], Passes]
Build = Callable[[Kernel, Places], NvidiaBuild]


@dataclass(frozen=True)
class Ablation:
    """One way to build the kernel; `mapping` is the order of tiles, where it is not the benchmark's."""

    name: str
    build: Build
    mapping: str = ""


def changed(change: Change) -> Build:
    """With a changed list of passes."""

    def build(tiles: Kernel, places: Places) -> NvidiaBuild:
        return build_with(tiles, CHIP, change(copying_passes(CHIP, places, large=streamed(tiles, CHIP, {}))))

    return build


def without(name: str) -> Change:
    """The list without the pass of that name."""

    def change(passes: Passes) -> Passes:
        return tuple(p for p in passes if _known(name, passes) != pass_name(p))

    return change


def having(name: str, **fields: Any) -> Change:
    """The list in which the pass of that name has other parameters."""

    def change(passes: Passes) -> Passes:
        _known(name, passes)
        return tuple(replace(p, **fields) if pass_name(p) == name else p for p in passes)  # type: ignore[type-var]

    return change


def _known(name: str, passes: Sequence[Pass]) -> str:
    names = tuple(dict.fromkeys(map(pass_name, passes)))
    if name not in names:
        raise TilewaveError(f"no pass of {TARGET} is called {name!r}", remedy=f"the passes are {', '.join(names)}")
    return name


def ablation_without(name: str) -> Ablation:
    return Ablation(f"{WITHOUT}{name}", changed(without(name)))


def checked_ablation(name: str) -> Ablation:
    """Return the ablation without a pass; raise an error if no pass has this name."""
    return ablation_without(_known(current_pass(name), copying_passes(CHIP, Places())))


def ablation_named(name: str) -> Ablation:
    known = {ablation.name: ablation for ablation in ablations()}
    return known.get(name) or ablation_without(name.removeprefix(WITHOUT))


NEEDED = (
    "pack_unaligned",
    "take_first_step",
    "skip_empty_tiles",
    "find_tiles_ahead",
    "narrow_mma",
    "split_k",
    "serialize_split_k",
    "licm_reads",
    "merge_masks",
    "reduce_thin_mma",
    "transpose_mma",
    "select_mma",
    "shift_through_shared",
    "stage_shared",
    "use_tma",
    "coalesce_loads",
    "reduce_across_waves",
    "convert_layouts",
    "place_barriers",
    "predicate_edges",
    "distribute_lanes",
    "drop_true_masks",
    "defer_rescaling",
    "delay_dependent_mma",
    "fold_trivial_loops",
    "overlap_mma",
    "ping_pong",
    "pipeline_mma",
    "set_occupancy",
    "vectorize_atomics",
    "hold_left_operands",
    "pipeline_exchanges",
    "delegate_turns",
    "carry_stage_index",
    "simplify",
)
"""Passes that every kernel needs, that only refuse, without which nothing is copied, or that known sizes, large tiles,
four stages, sums in one part, groups of one size and single products without an epilogue or atomics do not need; the
others can be left out."""


def ablations() -> tuple[Ablation, ...]:
    """Each pass that may be left out, and what is chosen by numbers."""
    names = [pass_name(p) for p in copying_passes(CHIP, Places())]
    return (
        *(ablation_without(name) for name in dict.fromkeys(names) if name not in NEEDED),
        Ablation("in order of rows", changed(lambda passes: passes), "linear()"),
        Ablation("3 stages", changed(having("specialize_waves", stages=3))),
        Ablation("2 stages", changed(having("specialize_waves", stages=2))),
        Ablation("loads by lanes", lambda tiles, places: build_plain(tiles, CHIP, places, ())),
    )


def compiled_ablation(ablation: Ablation, shape: Shape, settings: Settings) -> Compiled:
    """The kernel that an ablation makes; a TilewaveError where it cannot be made."""
    mapping = ablation.mapping or settings.mappings[0]
    made = gemm(shape, settings.dtype, settings.out, settings.tile, mapping)
    return compile_with(WaveCompileOptions(subs=made.subs, target=TARGET), made.kernel, ablation.build)
