"""A kernel on whole tiles → what each lane does on an NVIDIA chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING

from tilewave.analysis.loads import LaneLoads, loads_per_lane
from tilewave.analysis.wishes import not_as_asked
from tilewave.backend.nvidia.code import CHIP, NvidiaCode, Variant, kept
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Allocate, CopyIn, CopyTogether, Mma
from tilewave.ir.placements import elements
from tilewave.ir.places import Places
from tilewave.ir.reasons import Declined, Reason
from tilewave.ir.rewrite import unnamed, walk
from tilewave.ir.types import Memory
from tilewave.pipeline.runner import Pass, Step, after, last_on_tiles, run
from tilewave.runtime.cache import compile_key, key_of

if TYPE_CHECKING:
    from tilewave.backend.nvidia.program import NvidiaProgram
    from tilewave.backend.nvidia.ptxas import Assembled
    from tilewave.machine.lanes import LaneMachine

Passed = tuple[Kernel, tuple[Step, ...]]
"""What each lane does, and how passes came to it."""

PROCESSORS = 132
"""Of an H100 or H200 in its SXM form (NVIDIA, "H100 Tensor Core GPU Architecture"); one workgroup keeps one busy."""

TWO_FIT = Reason(
    "two workgroups of {bytes:,} bytes fit on one processor and overlap there, so each computes one tile and ends",
    "with larger tiles a workgroup has a processor to itself, and goes from tile to tile",
)


@dataclass(frozen=True)
class NvidiaResources:
    """What a workgroup takes of its machine, and what each lane loads in a step."""

    machine: str
    waves: tuple[int, ...]
    """Taken, which need not be the ones wished for: groups of four compute together."""
    lanes: int
    """Of one wave."""
    instructions: tuple[str, ...]
    shared_bytes: int
    loads: tuple[LaneLoads, ...]
    assemble: Callable[[], Assembled | None] = field(repr=False, compare=False)
    not_as_asked: tuple[str, ...] = ()
    """What the author wished and did not get, and why."""

    @property
    def assembled(self) -> Assembled | None:
        """Registers, spills and the assembler's words; None where this machine has no assembler."""
        return self.assemble()


@dataclass(frozen=True, eq=False)
class NvidiaBuild:
    """A kernel for one chip; where the cache has its code, passes run when somebody asks what they did."""

    tiles: Kernel
    key: str
    """Of its code, in the cache."""
    passing: Callable[[], Passed]
    otherwise: Callable[[], NvidiaBuild] | None = None
    """How the kernel is built for arrays that the copy engine cannot take; None where this is that build."""
    codes: Mapping[Variant, NvidiaCode] = field(default_factory=dict)
    """Known from the beginning."""

    @cached_property
    def passed(self) -> Passed:
        return self.passing()

    @property
    def lanes(self) -> Kernel:
        return self.passed[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.passed[1]

    @cached_property
    def plain(self) -> NvidiaBuild:
        """For arrays of any strides."""
        return self.otherwise() if self.otherwise else self

    @cached_property
    def program(self) -> NvidiaProgram:
        with IMPORTING:
            from tilewave.backend.nvidia.program import NvidiaProgram  # noqa: PLC0415  the driver's side is heavy, and looking needs none of it

        plain = (lambda: self.plain.lanes) if self.otherwise else None
        return NvidiaProgram(self.tiles, self.key, lambda: self.lanes, plain, dict(self.codes))

    @property
    def llvm_ir(self) -> str:
        return self.program.llvm_ir

    @property
    def asm(self) -> str:
        return self.program.ptx

    @property
    def code(self) -> bytes:
        """PTX, which the driver assembles."""
        return self.program.ptx.encode()

    @cached_property
    def resources(self) -> NvidiaResources:
        allocated = [op.result.type for op in walk(self.lanes.body) if isinstance(op, Allocate)]
        chosen = after(self.steps, "choose_instructions", self.tiles)
        products = tuple(dict.fromkeys(op.instruction for op in walk(chosen.body) if isinstance(op, Mma)))
        return NvidiaResources(
            CHIP,
            self.lanes.waves,
            self.lanes.lanes,
            products,
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(last_on_tiles(self.steps, self.tiles)),
            lambda: self.program.assembled,
            not_as_asked(self.tiles, chosen, self.lanes, products, CHIP),
        )


def build_nvidia(tiles: Kernel, places: Places, prefetched: int, stages: int | None = None) -> NvidiaBuild:
    """The kernel for each lane; an error at the author's constraint where the chip cannot do as asked.

    The copy engine is ahead by `stages`; unsaid, by four, or as many as shared memory holds. Where it cannot bring the
    tiles, lanes load them, `prefetched` steps ahead.
    """
    key = compile_key("nvidia", CHIP, places.decisive, f"{prefetched} {stages}", unnamed(tiles))

    def plain() -> NvidiaBuild:
        pipelining = _pipelines().prefetch(prefetched) if prefetched else ()
        return build_plain(tiles, places, pipelining, key_of(key, "plain"))

    def chosen() -> NvidiaBuild:
        copying = _chosen(tiles, places, stages)
        if _copies(copying):
            return replace(copying, key=key, otherwise=plain)
        return replace(_tried(copying, plain()), key=key)

    code = kept(key, Variant())
    if code is None:
        return chosen()
    return NvidiaBuild(tiles, key, lambda: chosen().passed, plain if code.maps else None, {Variant(): code})


def _chosen(tiles: Kernel, places: Places, stages: int | None) -> NvidiaBuild:
    """With copies; as many workgroups as run at once, if each has a processor to itself."""
    built = build_copying(tiles, places, stages, PROCESSORS)
    if not _copies(built):
        return built
    needed = built.resources.shared_bytes
    alone = needed > _machine().shared.bytes // 2  # no two workgroups fit on one processor
    if alone or built.lanes.workgroups == tiles.workgroups:
        return built
    loc = next(op.loc for op in walk(tiles.body) if isinstance(op, Mma))
    return _saying(
        "make_persistent", TWO_FIT.at(loc, bytes=needed), build_copying(tiles, places, stages, tiles.workgroups)
    )


def _copies(build: NvidiaBuild) -> bool:
    return any(isinstance(op, (CopyIn, CopyTogether)) for op in walk(build.lanes.body))


def _saying(name: str, declined: Declined, build: NvidiaBuild) -> NvidiaBuild:
    """The same, where a pass was not let do what it could have done."""
    lanes, steps = build.passed
    said = tuple(replace(s, declined=(*s.declined, declined)) if s.name == name else s for s in steps)
    return replace(build, passing=lambda: (lanes, said))


def _tried(copying: NvidiaBuild, plain: NvidiaBuild) -> NvidiaBuild:
    """The plain build, whose steps begin with those that were to copy and say why they could not."""
    lanes, steps = plain.passed
    tried = [s for s in copying.steps if s.name in ("use_copy_engine", "specialize_waves") and s.declined]
    unchanged = [replace(s, before=plain.tiles, after=plain.tiles) for s in tried]
    return replace(plain, passing=lambda: (lanes, (*unchanged, *steps)))


def build_copying(tiles: Kernel, places: Places, stages: int | None, workgroups: int) -> NvidiaBuild:
    """The kernel whose tiles the copy engine brings, where it can; `workgroups` run at once."""
    return build_with(tiles, copying_passes(places, stages, workgroups))


def copying_passes(places: Places, stages: int | None = None, workgroups: int = PROCESSORS) -> tuple[Pass, ...]:
    passes: tuple[Pass, ...] = _pipelines().hopper(_machine(), places, stages, workgroups, stages or 1)
    return passes


def build_plain(tiles: Kernel, places: Places, pipelining: Sequence[Pass], key: str = "") -> NvidiaBuild:
    """The kernel whose lanes load its tiles, from arrays of any strides."""
    return build_with(tiles, _pipelines().hopper_plain(_machine(), places, pipelining), key)


def build_with(tiles: Kernel, passes: Sequence[Pass], key: str = "") -> NvidiaBuild:
    """The kernel that these passes make; without a key of its own, the cache knows it by its lanes."""
    passed = run(tiles, passes)
    return NvidiaBuild(tiles, key or compile_key("nvidia", unnamed(passed[0])), lambda: passed)


def _machine() -> LaneMachine:
    with IMPORTING:
        from tilewave.machine.lanes import SM_90A  # noqa: PLC0415  as in _pipelines

    return SM_90A


def _pipelines() -> ModuleType:
    with IMPORTING:
        from tilewave.pipeline import lists  # noqa: PLC0415  all passes; code from the cache needs none of them

    return lists
