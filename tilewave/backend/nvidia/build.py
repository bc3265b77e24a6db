"""From a tile-level kernel to the lane-level kernel of an NVIDIA chip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewave.analysis.l2_residency import NOTHING_STREAMED, Streamed, streamed
from tilewave.analysis.launch_counts import Count, workgroups_of
from tilewave.analysis.loads import AHEAD_BYTES, loads_per_lane
from tilewave.analysis.packing import across_depth, unaligned_rows
from tilewave.analysis.tile_programs import needs_matrix_unit
from tilewave.analysis.wishes import not_as_asked
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, NvidiaCode, Specialization, kept
from tilewave.backend.nvidia.packing import in_numpy
from tilewave.backend.nvidia.resources import NvidiaResources
from tilewave.backend.protocol import (
    ASSEMBLED,
    Build,
    CountedLoop,
    LaneLaunch,
    ReplayedCall,
    metrics_of,
)
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.ir.launch import is_open
from tilewave.ir.ops import Allocate, Copy, Mma, Read, TmaLoad, TmaLoadMulticast
from tilewave.ir.placements import elements, is_packed_copy
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import unnamed, walk
from tilewave.ir.types import Memory
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.machine.matrix import ALONG_DEPTH
from tilewave.pipeline.runner import Pass, Step, after, last_on_tiles, pass_name, run
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView, Parameter, view
from tilewave.runtime.cache import compile_key, key_of

if TYPE_CHECKING:
    from tilewave.backend.nvidia.packing import RowCopy
    from tilewave.backend.nvidia.program import NvidiaProgram
    from tilewave.backend.nvidia.ptxas import Assembled
    from tilewave.runtime.call_class import NativeCalls
    from tilewave.runtime.sizes import Size

VECTOR_BYTES = (1, 2, 4, 8)
"""The vectors in which lanes hold rows that are not aligned for the widest load."""

Passed = tuple[Kernel, tuple[Step, ...]]
"""The lane-level kernel, and the steps of the passes."""

TWO_FIT = RemarkKind(
    "two workgroups of {bytes:,} bytes of shared memory fit on an SM and overlap, so the kernel is not made persistent",
    "with larger tiles one workgroup fills an SM, and the kernel is made persistent",
)


@dataclass(frozen=True, eq=False)
class NvidiaBuild(Build):
    """A kernel for one chip; where the cache has its code, passes run on demand only."""

    tiles: Kernel
    chip: Chip
    key: str | None
    """The cache key of its code; None where a file has all the code that the kernel may need."""
    passing: Callable[[], Passed]
    others: Mapping[int, Callable[[Specialization], NvidiaBuild]] = field(default_factory=dict)
    """Builds the kernel for arrays with a key, by the alignment of its rows: `Specialization.rows`."""
    codes: Mapping[Specialization, NvidiaCode] = field(default_factory=dict)
    """Code that is known without compiling."""
    counted: NvidiaResources | None = None
    """Resources read from a file."""
    packs: bool = False
    """Whether unaligned arrays may be packed for TMA."""
    copies: Mapping[RowCopy, NvidiaCode] = field(default_factory=dict)
    """Code of the packing copies, from a file."""

    @cached_property
    def passed(self) -> Passed:
        return self.passing()

    @property
    def lanes(self) -> Kernel:
        return self.passed[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.passed[1]

    def for_key(self, key: Specialization) -> NvidiaBuild:
        """Return the build for arrays with this key; this one where there is no other."""
        decides = replace(key, widths=key.widths if key.vector_bytes else ())
        if decides not in self._built:
            make = self.others.get(key.rows)
            self._built[decides] = self if make is None else make(key)
        return self._built[decides]

    @cached_property
    def _built(self) -> dict[Specialization, NvidiaBuild]:
        return {}

    @property
    def plain(self) -> NvidiaBuild:
        """The build for arrays of any strides, whose lanes load."""
        return self.for_key(Specialization(BY_LANES))

    def lane_launches(self, views: Sequence[ArrayView], values: Mapping[str, Any]) -> Iterable[LaneLaunch]:
        program, plan = self.program, self.program.plans.plan_for(views)
        main = LaneLaunch(program.kernel_for(plan.key), tuple(views), values)
        return in_numpy(plan.packed_copies, views, main) if plan.packed_copies else (main,)

    @property
    def binaries(self) -> tuple[str, ...]:
        return self.program.binaries

    @cached_property
    def program(self) -> NvidiaProgram:
        with IMPORTING:
            from tilewave.backend.nvidia.make import maker  # noqa: PLC0415  looking needs none of the driver's side
        with IMPORTING:
            from tilewave.backend.nvidia.program import NvidiaProgram  # noqa: PLC0415  nor this

        make = None if self.key is None else maker(self.key, self.chip)
        kernels = self.tiles, lambda key: self.for_key(key).lanes, frozenset(self.others)
        return NvidiaProgram(*kernels, self.chip, make, self.packs, self.copies, dict(self.codes))

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        self.program.run(arrays, numbers, parameters)

    def call(self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size) -> None:
        self.program.calls.call(arrays, given, sized)

    def replay(
        self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size, fresh: Collection[int]
    ) -> ReplayedCall | None:
        return self.program.calls.replay(arrays, given)  # checks at every call that arrays do not overlap

    @property
    def native_calls(self) -> NativeCalls | None:
        return self.program.calls.native

    def is_native(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> bool:
        return self.program.calls.is_native(arrays, given)

    def prepare(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> None:
        self.program.prepare(arrays, parameters)

    def compile_for(self, arrays: Sequence[Any]) -> None:
        program = self.program
        program.code_for(program.plans.plan_for([view(array) for array in arrays]).key)

    def remarks_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Remark, ...]:
        return self.program.remarks_for(arrays, parameters)

    def prepacked(self, array: Any, name: str) -> Any:
        return self.program.plans.prepacked(array, name)

    def files(self) -> Mapping[str, bytes]:
        text = {} if self.llvm_ir is None else {"ll": self.llvm_ir.encode()}
        return {"ptx": self.code, **text}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return metrics_of(self.resources)

    @property
    def assembled_metrics(self) -> Mapping[str, Any]:
        """The attributes `ASSEMBLED` of the resources, and CTAs per SM; None without ptxas."""
        return {name: getattr(self.resources, name) for name in (*ASSEMBLED, "workgroups_per_sm")}

    @property
    def workgroups(self) -> Count:
        code = self.codes.get(ALIGNED)
        return code.workgroups if code and isinstance(code.workgroups, int) else workgroups_of(self.lanes)

    @property
    def llvm_ir(self) -> str | None:
        return self.program.llvm_ir

    @property
    def asm(self) -> str:
        return self.program.ptx

    @property
    def code(self) -> bytes:
        """The PTX, which the driver assembles."""
        return self.program.ptx.encode()

    @property
    def assembled(self) -> Assembled | None:
        return self.program.assembled

    @cached_property
    def loop(self) -> CountedLoop:
        with IMPORTING:
            from tilewave.backend.nvidia.ptx_loop import ptx_loop_statistics  # noqa: PLC0415  few count

        return ptx_loop_statistics(self.asm, self.tiles.name, self.chip.name)

    @cached_property
    def resources(self) -> NvidiaResources:
        if self.counted is not None:
            return replace(self.counted, built=lambda: self)
        allocated = [op.result.type for op in walk(self.lanes.body) if isinstance(op, Allocate)]
        chosen = after(self.steps, "select_mma", self.tiles)
        products = tuple(dict.fromkeys(op.instruction for op in walk(chosen.body) if isinstance(op, Mma)))
        return NvidiaResources(
            self.chip.name,
            self.lanes.waves,
            self.lanes.lanes,
            products,
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(last_on_tiles(self.steps, self.tiles)),
            lambda: self,
            not_as_asked(self.tiles, chosen, self.lanes, products, self.chip.name),
        )


def build_nvidia(
    tiles: Kernel,
    chip: Chip,
    places: Places,
    prefetched: int,
    stages: int | None = None,
) -> NvidiaBuild:
    """Build the kernel for the chip's lanes; raise an error at the constraint that the chip cannot satisfy.

    With TMA the software pipeline has `stages` stages; by default four, or as many as fit in shared memory. Where TMA
    cannot load the tiles, lanes load them `prefetched` steps ahead; by default one, if lanes have the registers.
    """
    packing = chip.tuning.packing
    unaligned_arrays = (
        *unaligned_rows(tiles, TENSOR_MAPS.grain_bytes, packing),
        *across_depth(tiles, ALONG_DEPTH, packing),
    )
    packs = is_open(tiles) or bool(unaligned_arrays)
    large = streamed(tiles, chip, {})
    key = compile_key(
        chip.name, repr(chip), places.decisive, f"{prefetched} {stages}", unnamed(tiles), *unaligned_arrays
    )
    copying = _Copying(chip, places, stages, large, key=key)

    def plain(_: Specialization) -> NvidiaBuild:
        ahead = prefetched or int(_brings_little(tiles))
        pipelining = _pipelines().prefetch(ahead, chip) if ahead else ()
        return build_plain(tiles, chip, places, pipelining, key_of(key, "plain"))

    def unaligned_lines(_: Specialization) -> NvidiaBuild:
        return _chosen(tiles, replace(copying, open_on_lines=False))

    def in_vectors(key: Specialization) -> NvidiaBuild:
        return build_plain(tiles, chip, places, (), widths=key.widths)

    others: dict[int, Callable[[Specialization], NvidiaBuild]] = {BY_LANES: plain}
    if is_open(tiles):
        others[TENSOR_MAPS.grain_bytes] = unaligned_lines
    by_vectors = is_open(tiles) and not needs_matrix_unit(tiles)
    vectors = dict.fromkeys(VECTOR_BYTES, in_vectors) if by_vectors else {}

    def chosen() -> NvidiaBuild:
        built = _chosen(tiles, copying)
        if _copies(built):
            return replace(built, others=others, packs=packs)
        return replace(_tried(built, plain(ALIGNED)), key=key, others=vectors)

    code = kept(key, ALIGNED)
    if code is None:
        return chosen()
    whole = NvidiaBuild(tiles, chip, key, lambda: chosen().passed, vectors, {ALIGNED: code})
    return replace(whole, others={**vectors, **others}, packs=packs) if code.maps else whole


@dataclass(frozen=True)
class _Copying:
    """Builds kernels whose tiles are loaded by TMA."""

    chip: Chip
    places: Places
    stages: int | None = None
    streamed: Streamed = NOTHING_STREAMED
    open_on_lines: bool = True
    key: str = ""

    def passes(self, workgroups: int) -> tuple[Pass, ...]:
        """Return the passes for `workgroups` resident at once; 0: one workgroup per tile."""
        facts = self.chip, self.places, self.stages, workgroups, self.stages or 1, self.open_on_lines, self.streamed
        passes: tuple[Pass, ...] = _pipelines().hopper(*facts)
        return passes

    def built(self, tiles: Kernel, workgroups: int) -> NvidiaBuild:
        """Build the kernel; if `use_tma` makes no copies, later passes are skipped, as another list builds it."""
        passes = self.passes(workgroups)
        until = 1 + [pass_name(p) for p in passes].index("use_tma")
        kernel, steps = run(tiles, passes[:until])
        if any(isinstance(op, Copy) for op in walk(kernel.body)):
            kernel, more = run(kernel, passes[until:])
            steps = (*steps, *more)
        return build_of(tiles, self.chip, (kernel, steps), self.key)


def _chosen(tiles: Kernel, copying: _Copying) -> NvidiaBuild:
    """Return the build with TMA; persistent, if each workgroup has an SM to itself."""
    chip = copying.chip
    built = copying.built(tiles, chip.processors)
    if not _copies(built):
        return built
    needed = built.resources.shared_bytes
    alone = needed > chip.shared.bytes // 2  # no two workgroups fit on one SM
    few = isinstance(tiles.workgroups, int) and tiles.workgroups < chip.processors  # idle SMs take splits of tiles
    if alone or few or built.lanes.workgroups == tiles.workgroups:
        return built
    loc = next(op.loc for op in walk(tiles.body) if isinstance(op, Mma))
    one_each = copying.built(tiles, tiles.workgroups if isinstance(tiles.workgroups, int) else 0)
    return _saying("make_persistent", TWO_FIT.at(loc, bytes=needed), one_each)


def _copies(build: NvidiaBuild) -> bool:
    return any(isinstance(op, (TmaLoad, TmaLoadMulticast)) for op in walk(build.lanes.body))


def _saying(name: str, remarks: Remark, build: NvidiaBuild) -> NvidiaBuild:
    """Return the build with a remark on a pass that was held back."""
    lanes, steps = build.passed
    said = tuple(replace(s, remarks=(*s.remarks, remarks)) if s.name == name else s for s in steps)
    return replace(build, passing=lambda: (lanes, said))


def _tried(copying: NvidiaBuild, plain: NvidiaBuild) -> NvidiaBuild:
    """Return the plain build; its steps begin with those that would use TMA, with their remarks."""
    lanes, steps = plain.passed
    tried = [s for s in copying.steps if s.name in ("use_tma", "specialize_waves") and s.remarks]
    unchanged = [replace(s, before=plain.tiles, after=plain.tiles) for s in tried]
    return replace(plain, passing=lambda: (lanes, (*unchanged, *steps)))


def copying_passes(
    chip: Chip, places: Places, stages: int | None = None, large: Streamed = NOTHING_STREAMED
) -> tuple[Pass, ...]:
    """Return the TMA passes for a kernel whose `large` operands do not fit in L2."""
    return _Copying(chip, places, stages, large).passes(chip.processors)


def _brings_little(tiles: Kernel) -> bool:
    """Return whether lanes that multiply have registers for the tiles of a step besides the sums."""
    ops = list(walk(tiles.body))
    read = [op.result.type for op in ops if isinstance(op, Read)]
    return any(isinstance(op, Mma) for op in ops) and sum(prod(x.shape) * x.dtype.bytes for x in read) <= AHEAD_BYTES


def build_plain(
    tiles: Kernel,
    chip: Chip,
    places: Places,
    pipelining: Sequence[Pass],
    key: str = "",
    widths: Sequence[tuple[str, int]] = (),
) -> NvidiaBuild:
    """Build the kernel whose lanes load its tiles, from arrays of any strides, or with rows aligned to `widths`.

    Products start before the previous launch ends. Other kernels need loads and stores in any order.
    """
    lists = _pipelines()
    starting = (lists.DependentLaunch(),) if any(isinstance(op, Mma) for op in walk(tiles.body)) else ()
    return build_with(tiles, chip, lists.hopper_plain(chip, places, pipelining, widths, starting), key)


def build_with(tiles: Kernel, chip: Chip, passes: Sequence[Pass], key: str = "") -> NvidiaBuild:
    """Build the kernel by these passes; without a key, the cache key is that of its lane-level kernel."""
    return build_of(tiles, chip, run(tiles, passes), key)


def build_of(tiles: Kernel, chip: Chip, passed: Passed, key: str = "") -> NvidiaBuild:
    key = key or compile_key(chip.name, repr(chip), unnamed(passed[0]))
    return NvidiaBuild(tiles, chip, key, lambda: passed, packs=any(map(is_packed_copy, passed[0].body.args)))


def _pipelines() -> ModuleType:
    with IMPORTING:
        from tilewave.pipeline import lists  # noqa: PLC0415  all passes; code from the cache needs none of them

    return lists
