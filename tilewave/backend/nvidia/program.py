"""PTX of a kernel for an NVIDIA chip, compiled or from the cache, run on a card.

Arrays that are not aligned for TMA or wide loads need other variants of the code, compiled at their first call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from tilewave.analysis.loads import moved_in_chunks
from tilewave.analysis.packing import TileLoads
from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.make import Make, compiler, launch_of_code
from tilewave.backend.nvidia.packing import (
    ALLOCATED_BYTES,
    PACK,
    TRANSPOSE,
    UNPACK,
    WIDEST_TRANSPOSED,
    PackedArray,
    RowCopy,
    Unaligned,
    packed_copies,
    padded_row,
)
from tilewave.backend.nvidia.ptxas import Assembled, assemble_ptx, ptxas, read_log
from tilewave.backend.nvidia.row_copies import LaunchPlace, RowCopies
from tilewave.backend.protocol import ReplayedCall
from tilewave.errors import NOWHERE, CallError, SlowCodeWarning, SpillWarning, here, warn_of_code
from tilewave.forks import cached_property
from tilewave.interp.tiles import touched
from tilewave.ir.core import Kernel, Value
from tilewave.ir.host_program import Number, rounded_up
from tilewave.ir.launch import HostLaunch, LaunchSteps, is_open, numbers_of, open_sizes
from tilewave.ir.ops import TmaLoad, TmaLoadMulticast, TmaStore
from tilewave.ir.placements import box_axes
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import walk
from tilewave.ir.stream_k import MOST_TILES
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.runtime.array_layouts import ArrayPlaces, layout_of, placed, places_of, views_at
from tilewave.runtime.arrays import ArrayView, Parameter, check_call, view
from tilewave.runtime.cuda import CudaCode, CudaProgram, GivenNumber, LaunchKind
from tilewave.runtime.foreign_arrays import in_padded_rows
from tilewave.runtime.gpu_launch import GpuLaunch, LaunchForm, LaunchFormula, ScalarSlot, ScratchMemory, TiledArray
from tilewave.runtime.launch_template import KnownLaunch, LaunchCode, LaunchTemplate, tensor_map
from tilewave.runtime.private_memory import PrivateMemory
from tilewave.runtime.sizes import Size

Parameters = tuple[Parameter, ...]
KEPT_CLASSES = 1024
"""Layouts, or launches with packed arrays, that are kept; beyond this many the cache is cleared."""
COPIES = (TmaLoad, TmaLoadMulticast, TmaStore)

NOT_COPIED = RemarkKind("{array} {problem}, so lanes load all tiles in this call")
REPACKED = RemarkKind(
    "{array} {problem}, so it {moved} rows of {pitch} bytes {when} each launch",
    "align its base and its row stride to {grain} bytes",
)
ONE_BY_ONE = RemarkKind(
    "the stride of the last axis of {array} is {bytes} bytes, so lanes load and store single elements",
    "make it contiguous",
)
ELEMENTS = RemarkKind(
    "the base or row stride of {array} is aligned to {bytes} bytes, not {widest}, so lanes load and store single "
    "elements",
    "align its base and its row stride to {widest} bytes",
)
NARROW_ROWS = "has a base or row stride aligned to {bytes} bytes, not {widest}"
NARROW = RemarkKind(
    "the base or row stride of {array} is aligned to {bytes} bytes, not {widest}, so each load becomes two, and "
    "stores have {bytes} bytes",
    "align its base and its row stride to {widest} bytes",
)


class LaunchPlan(NamedTuple):
    """The plan of a call: the variant of the code, and the arrays that are packed for it."""

    variant: Variant
    packed_copies: tuple[PackedArray, ...] = ()

    def views(self, views: Sequence[ArrayView], memory: int = ALLOCATED_BYTES) -> list[ArrayView]:
        """Return the arrays as the code sees them, with private memory at `memory`."""
        found = list(views)
        for r in self.packed_copies:
            found[r.array] = r.padded(found[r.array], memory)
        return found


class Chosen(NamedTuple):
    """The program of a variant, and the values computed at its launches."""

    program: CudaProgram
    formula: LaunchFormula


@dataclass(frozen=True, eq=False)
class NvidiaProgram:
    """One kernel for one chip; `otherwise` builds the kernel for arrays that TMA cannot load."""

    tiles: Kernel
    """The kernel on tiles, with the name and the parameters."""
    chip: Chip
    lanes: Callable[[], Kernel]
    make: Make | None
    """None where a file has the code: arrays that fit no other variant use the one for any strides."""
    otherwise: Callable[[], Kernel] | None = None
    unaligned_lines: Callable[[], Kernel] | None = None
    """Builds the kernel for dynamic rows that do not begin on cache lines."""
    in_vectors: Callable[[int], Kernel] | None = None
    """Builds the kernel for dynamic rows aligned to so many bytes, fewer than the widest load."""
    packs: bool = False
    """Whether unaligned arrays may be packed for TMA."""
    known_copies: Mapping[RowCopy, NvidiaCode] = field(default_factory=dict)
    """Code of packing copies, from a file."""
    _codes: dict[Variant, NvidiaCode] = field(default_factory=dict)
    programs: dict[Variant, Chosen] = field(default_factory=dict)
    """Programs of earlier calls, by variant."""
    _chooser: list[Chooser] = field(default_factory=list)
    """Empty, or one from the first call on."""
    _classes: dict[tuple[Any, ...], Variant] = field(default_factory=dict)
    """Variants by array layout."""
    _warned: set[tuple[int, int]] = field(default_factory=set)
    """The programs and devices whose code was checked for spills and serialized wgmma."""

    @property
    def name(self) -> str:
        return self.tiles.name

    @cached_property
    def memories(self) -> list[Any]:
        return [v for v in self.tiles.body.args if isinstance(v.type, Memory)]

    @cached_property
    def copies(self) -> RowCopies:
        """The packing copies of its arrays."""
        return RowCopies(self.chip, PrivateMemory(self.name), dict(self.known_copies))

    @property
    def copies_needed(self) -> tuple[RowCopy, ...]:
        """All packing copies that calls may need."""
        memories = self.memories if self.packs else []
        kinds = Counter((UNPACK if v.name in self.written else PACK, v.type.dtype.bytes, v.type.rank) for v in memories)
        copies = [RowCopy(*kind, count + 1) for kind, most in kinds.items() for count in range(most)]
        transposed = [RowCopy(TRANSPOSE, size, rank) for kind, size, rank in kinds if kind == PACK and rank > 1]
        return (*copies, *(copy for copy in transposed if copy.element_bytes <= WIDEST_TRANSPOSED))

    @property
    def llvm_ir(self) -> str | None:
        """The LLVM IR, where the kernel is compiled here."""
        ir: str | None = compiler().lowered_for(self.lanes(), self.chip, Variant()).llvm_ir if self.make else None
        return ir

    @property
    def ptx(self) -> str:
        """The PTX for aligned arrays."""
        return self.code_for(Variant()).ptx

    @property
    def assembled(self) -> Assembled | None:
        """Resources of the code that the driver loaded, or else of this machine's ptxas; None without either."""
        for program, *_ in self.programs.values():
            found, log = program.resources(), program.log()
            return Assembled(found.registers, found.local_bytes, read_log(log).serialized, log)
        return assemble_ptx(self.ptx, self.chip.cpu) if ptxas() else None

    # -- running it

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: Parameters) -> None:
        """Run the kernel on the arrays' device and stream, without synchronization."""
        self._choosing(parameters)(arrays, numbers, parameters)

    def call(self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size) -> None:
        """Run the kernel, by the fast path if an earlier call had the same layout."""
        chooser = self._chooser[0] if self._chooser else self._choosing(sized(arrays, given).parameters)
        chooser.call(arrays, given, sized)

    def replay(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> ReplayedCall | None:
        """Return the replayed launch for arrays with the same layout as these, which have been run."""
        return self._chooser[0].replay(arrays, given) if self._chooser else None

    def _choosing(self, parameters: Parameters) -> Chooser:
        if not self._chooser:
            of_any = self.is_open or self.packs
            code = self._any_code(parameters) if of_any else self._cuda_code(Variant(), parameters)
            self._chooser.append(Chooser(code, owner=self, given=self._given))
        return self._chooser[0]

    @property
    def _given(self) -> tuple[GivenNumber, ...]:
        """The scalar arguments of a call that do not follow from its arrays."""
        passed = open_sizes(self.tiles)
        numbers = enumerate(numbers_of(self.tiles))
        return tuple(GivenNumber(i, v.name, v.type.dtype) for i, v in numbers if v.name not in passed)

    @property
    def binaries(self) -> tuple[str, ...]:
        return tuple("any arrays" if variant == self.for_any else variant.arrays for variant in self._codes)

    @cached_property
    def is_open(self) -> bool:
        return is_open(self.tiles)

    def tile_count(self, numbers: Sequence[int]) -> int:
        """Return the number of tiles of a launch."""
        known = self.tiles.workgroups
        return known if isinstance(known, int) else self._tile_launch(numbers).workgroups

    def writes_nothing(self, shapes: Iterable[Sequence[int]]) -> bool:
        """Return whether all arrays that the kernel writes are empty."""
        return all(0 in shape for v, shape in zip(self.memories, shapes, strict=True) if v.name in self.written)

    @cached_property
    def _tile_launch(self) -> HostLaunch:
        return HostLaunch.of(self.tiles)

    def chosen(self, variant: Variant, parameters: tuple[Parameter, ...]) -> Chosen:
        found = self.programs.get(variant)
        if found is None:
            formula = self._formula(self.code_for(variant))
            found = self.programs[variant] = Chosen(CudaProgram(self._cuda_code(variant, parameters)), formula)
        return found

    def template(
        self, variant: Variant, views: Sequence[ArrayView], on: LaunchPlace, parameters: Parameters
    ) -> LaunchTemplate:
        """Return the launch template of a variant for arrays with the same layout as these."""
        chosen = self.chosen(variant, parameters)
        self.warn_of_slow_code(chosen.program, on.number)
        return chosen.program.by_template(views, len(numbers_of(self.tiles)), chosen.formula, *on)

    def want_launch(self, code: NvidiaCode) -> None:
        """Raise an exception where code cannot be launched with the kernel's arrays: a file may have any contents."""
        arrays = [(v.type.rank, v.type.dtype) for v in self.memories]
        count = len(numbers_of(self.tiles))
        LaunchCode(launch_of_code(code, self.tiles), arrays, count, self._formula(code))

    def _formula(self, code: NvidiaCode) -> LaunchFormula:
        """Return the function from scalar arguments to a launch: scalars, grid, and checks of the tile count."""
        given = [v.name for v in numbers_of(self.tiles)]
        steps, tiles_of = code.launches.steps(given, code.symbols), LaunchSteps(self.tiles, given, ())

        def formula(numbers: Sequence[Number]) -> LaunchForm:
            workgroups, passed = steps(numbers)
            if not self.is_open:
                return LaunchForm(passed, (workgroups, 1, 1))
            tiles, _ = tiles_of(numbers)
            is_one_round = workgroups == rounded_up(tiles, code.cluster) * code.cluster
            return LaunchForm(passed, (workgroups, 1, 1), (tiles > 0, tiles <= MOST_TILES), is_one_round)

        return formula

    def _cuda_code(self, variant: Variant, parameters: tuple[Parameter, ...]) -> CudaCode:
        code = self.code_for(variant)
        return CudaCode(self.name, self.chip.cpu, code.ptx.encode(), launch_of_code(code, self.tiles), parameters)

    def _any_code(self, parameters: Parameters) -> CudaCode:
        """Return the launch that all variants have in common, before arrays are known; some use scratch memory."""
        scalars = (ScalarSlot(i) for i, v in enumerate(numbers_of(self.tiles)) if v.type != INDEX_SCALAR)
        launch = GpuLaunch((ScratchMemory(0), *scalars), (1, 1, 1), (1, 1, 1))
        return CudaCode(self.name, self.chip.cpu, b"", launch, parameters)

    def warn_of_slow_code(self, program: CudaProgram, number: int) -> None:
        """Warn once of serialized wgmma and spills; the code is correct but slow."""
        if (id(program), number) in self._warned:
            return
        self._warned.add((id(program), number))
        passed, spilled = read_log(program.log(number)), program.resources(number).local_bytes
        if passed.serialized:
            what = f"{self.name}: products wait for each other: {passed.serialized[0]}"
            warn_of_code(f"{what}; smaller tiles leave more registers", SlowCodeWarning)
        if spilled:
            what = f"{self.name}: {spilled} bytes of a lane are spilled"
            warn_of_code(f"{what}; smaller tiles need fewer registers", SpillWarning)

    # -- which code

    def variant_for(self, views: Sequence[ArrayView]) -> Variant:
        """Return the variant for arrays with these layouts."""
        fitting = self._variant_for(views)
        if self.make or fitting in self._codes:
            return fitting
        return next((known for known in self._codes if known.is_wider(fitting)), self.for_any)

    @property
    def for_any(self) -> Variant:
        """The variant that moves single elements and needs neither contiguous rows nor alignment."""
        return Variant(self.otherwise is not None, tuple(v.name for v in self.memories))

    def plan_for(self, views: Sequence[ArrayView]) -> LaunchPlan:
        """Return the variant for these arrays; unaligned ones are packed where TMA can then load them and it pays."""
        plain = LaunchPlan(self.variant_for(views))
        unaligned_arrays = self.unaligned_arrays(views) if self.packs else []
        shapes = {name: v.shape for name, v in self._named(views).items()}
        if not unaligned_arrays or not all(x.copied_by(views[x.array]) for x in unaligned_arrays):
            return plain
        if not self._loads.are_worth_it(shapes, self.chip.tuning.packing, self._read_in_place(unaligned_arrays)):
            return plain
        arrays = packed_copies(views, unaligned_arrays)
        variant = self.variant_for(LaunchPlan(Variant(), arrays).views(views))
        return plain if variant.is_plain else LaunchPlan(variant, arrays)

    def _read_in_place(self, unaligned_arrays: Sequence[Unaligned]) -> tuple[str, ...]:
        """Return the arrays that lanes load well in place; not for dynamic shapes or columns, loaded by elements."""
        if self.is_open or self.transposed.intersection(x.name for x in unaligned_arrays):
            return ()
        return tuple(x.name for x in unaligned_arrays)

    @cached_property
    def _loads(self) -> TileLoads:
        return TileLoads.of(self.tiles)

    def prepacked(self, array: Any, name: str) -> Any:
        """Return a packed copy of the operand of that name; the array itself if it is aligned or cannot be packed."""
        v = view(array, f"{self.name}: array")
        order = self._order_of(name, len(v.shape))
        unaligned = Unaligned(0, name, self._problem(order, v, is_written=False), False, order) if order else None
        if unaligned is None or not self.packs or not unaligned.problem or not unaligned.copied_by(v):
            return array
        return in_padded_rows(array, order, padded_row(unaligned.seen(v)))

    def _order_of(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the order of axes in which TMA loads the operand of that name, or all if ""; () if it loads none."""
        loaded = {n: axes for n, axes in self.copied if n not in self.written and len(axes) == rank}
        orders = {axes for n, axes in loaded.items() if name in ("", n)}
        if len(orders) > 1:
            what = f"{self.name}: {' and '.join(loaded)} are prepacked in different ways"
            raise CallError(what, loc=here(), remedy=f'say which it is: prepack(array, "{next(iter(loaded))}")')
        return orders.pop() if orders else ()

    def unaligned_arrays(self, views: Sequence[ArrayView]) -> list[Unaligned]:
        """Return the arrays to pack: those that TMA cannot load, and those that lanes load in small pieces."""
        named, widest = self._named(views), self.chip.widest_load_bytes
        problems = self._not_copied(named)
        if self.is_open:  # code for dynamic shapes loads whole chunks, or single elements
            narrow = {name: size for name, size in self._fitting(views).narrow if name not in self.written}
            problems = {name: NARROW_ROWS.format(bytes=size, widest=widest) for name, size in narrow.items()} | problems
        return [self._unaligned(name, problems[name], views) for name in named if name in problems]

    def _unaligned(self, name: str, problem: str, views: Sequence[ArrayView]) -> Unaligned:
        array = [v.name for v in self.memories].index(name)
        order = dict(self.copied).get(name) or tuple(range(len(views[array].shape)))
        return Unaligned(array, name, problem, name in self.written, order)

    def _variant_for(self, views: Sequence[ArrayView]) -> Variant:
        return self._class_of(views) if self.is_open else self._fitting(views)

    def _class_of(self, views: Sequence[ArrayView]) -> Variant:
        """Return a layout's variant: rows on cache lines, on TMA's grain, or any; and the arrays of any strides."""
        key = tuple(layout_of(placed(places_of(views))))
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= KEPT_CLASSES:
                self._classes.clear()
            found = self._classes[key] = self._look_at(views)
        return found

    def _look_at(self, views: Sequence[ArrayView]) -> Variant:
        fitting, named = self._fitting(views), self._named(views)
        if self.transposed and fitting == Variant(is_plain=True) and not self._has_unaligned_rows(named):
            return fitting  # lanes load whole chunks of arrays that TMA would need transposed
        anywhere = tuple(name for name in named if name in {*fitting.any_strides, *dict(fitting.narrow)})
        if fitting.is_plain or {name for name, _ in self.copied}.intersection(anywhere):
            return self.for_any
        if not self.copied and (
            anywhere or self._has_unaligned_rows({x: v for x, v in named.items() if x in self.chunked})
        ):
            return self.for_any if fitting.any_strides or not self.in_vectors else self._narrower(named)
        loaded = [(named[name], axes[-2]) for name, axes in self.copied if name not in self.written and len(axes) > 1]
        rows = [v.strides[axis] for v, axis in loaded if v.shape[axis] > 1]
        on_lines = all(row % self.chip.line_bytes == 0 for row in rows)
        return Variant(any_strides=anywhere, unaligned_lines=self.unaligned_lines is not None and not on_lines)

    def _narrower(self, named: Mapping[str, ArrayView]) -> Variant:
        """Return the variant for rows aligned to fewer bytes than the widest load."""
        chunked = {name: v for name, v in named.items() if name in self.chunked}
        rows = [v.shape[-1] * v.dtype.bytes for v in chunked.values() if v.shape]
        grain = gcd(*(alignment(v, self.chip.widest_load_bytes) for v in chunked.values()), *rows)
        return Variant(narrow=tuple((x, max(grain, v.dtype.bytes)) for x, v in chunked.items()), vector_bytes=grain)

    def _has_unaligned_rows(self, named: Mapping[str, ArrayView]) -> bool:
        """Return whether a row ends within a load: code for dynamic rows loaded by lanes assumes that none does."""
        rows = (v.shape[-1] * v.dtype.bytes for v in named.values() if v.shape)
        return any(row % self.chip.widest_load_bytes for row in rows)

    def _fitting(self, views: Sequence[ArrayView]) -> Variant:
        named, widest, plain = self._named(views), self.chip.widest_load_bytes, self._is_left_to_lanes(views)
        if not plain:
            named = {name: v for name, v in named.items() if name not in self.transposed}
        any_strides = tuple(name for name, v in named.items() if v.shape[-1] > 1 and v.strides[-1] != v.dtype.bytes)
        chunked = {name: v for name, v in named.items() if plain or name in self.chunked}
        narrow = tuple((name, found) for name, v in chunked.items() if (found := alignment(v, widest)) < widest)
        narrow = tuple((name, found) for name, found in narrow if name not in any_strides)
        return Variant(plain, any_strides, narrow)

    def _is_left_to_lanes(self, views: Sequence[ArrayView]) -> bool:
        """Return whether TMA cannot load some array and lanes can."""
        return self.otherwise is not None and bool(self._not_copied(self._named(views)))

    @cached_property
    def transposed(self) -> frozenset[str]:
        """The arrays that TMA loads transposed, and that lanes do not access."""
        return frozenset(name for name, axes in self.copied if axes != tuple(range(len(axes))))

    def remarks_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Remark, ...]:
        """Return remarks on what these arrays keep the code from."""
        return self.remarks(check_call(self.name, parameters, arrays, "cuda", here()))

    def remarks(self, views: Sequence[ArrayView]) -> tuple[Remark, ...]:
        named, plan = self._named(views), self.plan_for(views)
        variant = plan.variant if plan.packed_copies else self._variant_for(views)
        copied = self._not_copied(named) if variant.is_plain else {}
        found = [_packing_of(r, r.copied_by(views[r.array])) for r in plan.packed_copies]
        found += [NOT_COPIED.at(NOWHERE, array=name, problem=problem) for name, problem in copied.items()]
        widest = self.chip.widest_load_bytes
        found += [_one_by_one(name, named[name], widest) for name in variant.any_strides]
        found += [NARROW.at(NOWHERE, array=name, bytes=size, widest=widest) for name, size in variant.narrow]
        return tuple(found)

    def _named(self, views: Sequence[ArrayView]) -> dict[str, ArrayView]:
        return dict(zip((v.name for v in self.memories), views, strict=True))

    def _not_copied(self, named: dict[str, ArrayView]) -> dict[str, str]:
        """Return the arrays that TMA cannot load or store, and why."""
        found = {name: self._problem(axes, named[name], name in self.written) for name, axes in self.copied}
        return {name: problem for name, problem in found.items() if problem}

    def _problem(self, axes: tuple[int, ...], view: ArrayView, is_written: bool) -> str:
        grain, row = TENSOR_MAPS.grain_bytes, view.shape[-1] * view.dtype.bytes
        if is_written and row % grain:
            return f"has rows of {row} bytes, and TMA stores need a multiple of {grain}"
        return tensor_map(TiledArray(0, axes, ()), view).problem(view.pointer)

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(v.name for v in touched(self.tiles)[0])

    @cached_property
    def chunked(self) -> frozenset[str]:
        """The arrays that must be aligned for wide loads, stores or TMA; lanes move single elements of the others."""
        if Variant() in self._codes or not self.is_open:
            return frozenset(self.code_for(Variant()).chunked)
        return frozenset(moved_in_chunks(self.lanes()))

    @cached_property
    def copied(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The arrays that TMA moves, each with the order of its axes, found without compiling for dynamic shapes."""
        if Variant() in self._codes or not self.is_open:
            return tuple(dict.fromkeys((m.name, m.axes) for m in self.code_for(Variant()).maps))
        moves = [op for op in walk(self.lanes().body) if isinstance(op, COPIES)]
        return tuple(dict.fromkeys((op.memory.name, box_axes(_rank(op.memory), op.axes)) for op in moves))

    @property
    def beside(self) -> tuple[str, ...]:
        """The arrays that lanes load and store while TMA moves others; their layout is known at each call."""
        copied = {name for name, _ in self.copied} if self.is_open else set()
        return tuple(v.name for v in self.memories if v.name not in copied) if copied else ()

    def kernel_of(self, variant: Variant) -> Kernel:
        if variant.vector_bytes and self.in_vectors:
            return self.in_vectors(variant.vector_bytes)
        if variant.unaligned_lines and self.unaligned_lines:
            return self.unaligned_lines()
        return self.otherwise() if variant.is_plain and self.otherwise else self.lanes()

    def code_for(self, variant: Variant) -> NvidiaCode:
        if variant not in self._codes:
            assert self.make is not None, f"variant_for gives what the file has, not {variant}"
            self._codes[variant] = self.make(variant, self.kernel_of)
        return self._codes[variant]


MOVED = {PACK: "is copied into", TRANSPOSE: "is transposed into", UNPACK: "is copied back from"}


def _packing_of(r: PackedArray, kind: str) -> Remark:
    """Return the remark on a packed array."""
    when = "after" if r.is_written else "before"
    facts = {"moved": MOVED[kind], "when": when, "pitch": r.pitch_bytes, "grain": TENSOR_MAPS.grain_bytes}
    return REPACKED.at(NOWHERE, array=r.name, problem=r.problem, **facts)


def _one_by_one(name: str, v: ArrayView, widest_bytes: int) -> Remark:
    """Return the remark on an array that lanes move by single elements."""
    bytes_ = alignment(v, widest_bytes)
    if v.strides[-1] != v.dtype.bytes or bytes_ == widest_bytes:
        return ONE_BY_ONE.at(NOWHERE, array=name, bytes=v.strides[-1])
    return ELEMENTS.at(NOWHERE, array=name, bytes=bytes_, widest=widest_bytes)


@dataclass
class Chooser(CudaProgram):
    """A program that selects its code by the layout of the arrays."""

    owner: NvidiaProgram = field(kw_only=True, repr=False)

    def launch_kind(
        self, views: Sequence[ArrayView], numbers: Sequence[int], number: int, stream: int, parameters: Parameters
    ) -> LaunchKind:
        owner = self.owner
        tiles = owner.tile_count(numbers)
        if not tiles or owner.writes_nothing(v.shape for v in views):
            return NothingToDo(owner)
        if tiles > MOST_TILES:
            what = f"{owner.name}: {tiles:,} tiles, and a launch computes {MOST_TILES:,} at most"
            raise CallError(what, remedy="call it with parts of the arrays")
        on = LaunchPlace(number, stream)
        if owner.packs and owner.unaligned_arrays(views):
            return EitherLaunch(owner, tuple(views), on, parameters)
        return owner.template(owner.variant_for(views), views, on, parameters)


class EitherLaunch:
    """A launch with unaligned arrays: each call packs them for TMA, or runs the code in which lanes load."""

    def __init__(
        self, owner: NvidiaProgram, views: tuple[ArrayView, ...], on: LaunchPlace, parameters: Parameters
    ) -> None:
        self._owner, self._views, self._on, self._parameters = owner, views, on, parameters
        self._templates: dict[Variant, LaunchTemplate] = {}
        self._known: dict[Any, tuple[KnownLaunch, ...]] = {}
        """Launches by arrays and scalars: planning a launch takes longer than making it."""

    def launch(self, places: ArrayPlaces, numbers: Sequence[int]) -> bool:
        if not 0 < self._owner.tile_count(numbers) <= MOST_TILES:
            return False
        key = *(tuple(map(tuple, some)) for some in places[1:]), *places[0], *numbers
        launches = self._known.get(key)
        if launches is None:
            if len(self._known) >= KEPT_CLASSES:
                self._known.clear()
            launches = self._known[key] = tuple(self._launches(places, numbers))
        made = [launch() for launch in launches]
        return all(made)

    def _launches(self, places: ArrayPlaces, numbers: Sequence[int]) -> list[KnownLaunch]:
        """Return the launches of a call, in order."""
        owner, views = self._owner, views_at(places, self._views)
        plan = owner.plan_for(views)
        if plan.variant not in self._templates:
            own = plan.views(views)
            self._templates[plan.variant] = owner.template(plan.variant, own, self._on, self._parameters)
        main = self._templates[plan.variant]
        if not plan.packed_copies:
            return [main.known(places, numbers)]
        memory = owner.copies.memory(plan.packed_copies, views, self._on)
        before, after = owner.copies.launches(plan.packed_copies, views, memory, self._on)
        return [*before, main.known(places_of(plan.views(views, memory)), numbers), *after]


class NothingToDo(NamedTuple):
    """A launch without tiles, or with nothing to write: it is skipped, since empty arrays may have no address."""

    owner: NvidiaProgram

    def launch(self, places: ArrayPlaces, numbers: Sequence[int]) -> bool:
        return not self.owner.tile_count(numbers) or self.owner.writes_nothing(places[1])


def _rank(memory: Value) -> int:
    assert isinstance(memory.type, Memory)
    return memory.type.rank


def alignment(v: ArrayView, widest_bytes: int) -> int:
    """Return the alignment of an array's address and row strides: a power of two, at most `widest_bytes`."""
    found = widest_bytes | v.pointer
    for extent, stride in zip(v.shape[:-1], v.strides[:-1], strict=True):
        if extent > 1:
            found |= stride
    return found & -found
