"""PTX of a kernel for an NVIDIA chip, from the cache or made anew, and the card where there is one.

Arrays that lie otherwise than the copy engine or wide loads want get code of their own, made when they first come.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from tilewave.backend.nvidia.code import NvidiaCode, Variant, keep, kept
from tilewave.backend.nvidia.ptxas import Assembled, assemble_ptx, ptxas, read_log
from tilewave.errors import NOWHERE, CallError, SlowCodeWarning, SpillWarning, here, levels_to_author
from tilewave.forks import IMPORTING, cached_property
from tilewave.interp.tiles import touched
from tilewave.ir.core import Kernel, Value
from tilewave.ir.last_round import MOST_TILES
from tilewave.ir.launch import HostLaunch, LaunchCode, is_open, numbers_of, open_sizes
from tilewave.ir.ops import CopyAsyncCluster, CopyAsyncOut, CopyAsyncSignal
from tilewave.ir.placements import box_axes
from tilewave.ir.reasons import Declined, Reason
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX, INDEX_SCALAR, Memory
from tilewave.lower.launch_arguments import KernelArgument, MapArgument
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.runtime.array_places import ArrayPlaces, lie_code
from tilewave.runtime.arrays import ArrayView, Parameter, check_call
from tilewave.runtime.cuda import CudaCode, CudaProgram, GivenNumber, LaunchKind, Nothing, Prepared
from tilewave.runtime.cuda_launch import LaunchTemplate, tensor_map
from tilewave.runtime.gpu_launch import (
    Address,
    Cluster,
    EarlyStart,
    GpuLaunch,
    LaunchShape,
    ScalarSlot,
    ScratchMemory,
    Slot,
    Stride,
    SymbolArgument,
    TiledArray,
)
from tilewave.runtime.sizes import Size

Parameters = tuple[Parameter, ...]
Make = Callable[[Variant, Callable[[Variant], Kernel]], NvidiaCode]
"""Code for arrays that lie so; lanes are asked for where the cache does not know it."""

KEPT_CLASSES = 1024
COPIES = (CopyAsyncSignal, CopyAsyncCluster, CopyAsyncOut)

NOT_COPIED = Reason("{array} {problem}, so lanes load all tiles in this call")
ONE_BY_ONE = Reason(
    "neighbours along the last axis of {array} are {bytes} bytes apart, so lanes move them one by one",
    "copy it into rows without gaps",
)
NARROW = Reason(
    "{array}, or its rows, begin at multiples of {bytes} bytes, and not of {widest}, so lanes move {bytes} at a time",
    "let it begin, and its rows lie, at multiples of {widest} bytes",
)


class Chosen(NamedTuple):
    """Code for arrays that lie alike, and what its launches compute."""

    program: CudaProgram
    code: NvidiaCode
    launched: LaunchCode


@dataclass(frozen=True, eq=False)
class NvidiaProgram:
    """One kernel for one chip; where its copies cannot take an array, `otherwise` gives one that takes any."""

    tiles: Kernel
    """Which has its name and its parameters."""
    chip: Chip
    lanes: Callable[[], Kernel]
    make: Make | None
    """None where a file brought its code: what fits no other variant takes the one for arrays of any kind."""
    otherwise: Callable[[], Kernel] | None = None
    off_lines: Callable[[], Kernel] | None = None
    """For open rows that do not begin on cache lines."""
    _codes: dict[Variant, NvidiaCode] = field(default_factory=dict)
    programs: dict[Variant, Chosen] = field(default_factory=dict)
    """What calls took so far."""
    _chooser: list[Chooser] = field(default_factory=list)
    """One, from the first call on."""
    _classes: dict[tuple[Any, ...], Variant] = field(default_factory=dict)
    """By how arrays lie."""
    _warned: set[tuple[int, int]] = field(default_factory=set)
    """The programs, each on a device, whose code was looked at."""

    @property
    def name(self) -> str:
        return self.tiles.name

    @cached_property
    def memories(self) -> list[Any]:
        return [v for v in self.tiles.body.args if isinstance(v.type, Memory)]

    @property
    def llvm_ir(self) -> str | None:
        """What LLVM is given where code is made."""
        ir: str | None = _compiler().lowered_for(self.lanes(), self.chip, Variant()).llvm_ir if self.make else None
        return ir

    @property
    def ptx(self) -> str:
        """For arrays that lie well."""
        return self.code_for(Variant()).ptx

    @property
    def assembled(self) -> Assembled | None:
        """What the driver made of it at the first call, or else this machine's ptxas makes; None where it has none."""
        for program, *_ in self.programs.values():
            found, log = program.resources(), program.log()
            return Assembled(found.registers, found.local_bytes, read_log(log).serialized, log)
        return assemble_ptx(self.ptx, self.chip.cpu) if ptxas() else None

    # -- running it

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: Parameters) -> None:
        """On the arrays' device and stream; nothing is copied and nothing waited for."""
        self._choosing(parameters)(arrays, numbers, parameters)

    def call(self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size) -> None:
        """The same for a call that may be known."""
        chooser = self._chooser[0] if self._chooser else self._choosing(sized(arrays, given).parameters)
        chooser.call(arrays, given, sized)

    def _choosing(self, parameters: Parameters) -> Chooser:
        if not self._chooser:
            code = self._any_code(parameters) if self.is_open else self._cuda_code(Variant(), parameters)
            self._chooser.append(Chooser(code, owner=self, given=self._given))
        return self._chooser[0]

    @property
    def _given(self) -> tuple[GivenNumber, ...]:
        """The numbers of a call that its arrays do not tell."""
        told = open_sizes(self.tiles)
        numbers = enumerate(numbers_of(self.tiles))
        return tuple(GivenNumber(i, v.name, v.type.dtype) for i, v in numbers if v.name not in told)

    @property
    def binaries(self) -> tuple[str, ...]:
        return tuple(variant.arrays for variant in self._codes)

    @cached_property
    def is_open(self) -> bool:
        return is_open(self.tiles)

    def tile_count(self, numbers: Sequence[int]) -> int:
        """How many tiles a launch computes."""
        known = self.tiles.workgroups
        return known if isinstance(known, int) else self._tile_launch(numbers).workgroups

    @cached_property
    def _tile_launch(self) -> HostLaunch:
        return HostLaunch.of(self.tiles)

    def chosen(self, variant: Variant, parameters: tuple[Parameter, ...]) -> Chosen:
        found = self.programs.get(variant)
        if found is None:
            code = self.code_for(variant)
            launched = code.launches.in_order([v.name for v in numbers_of(self.tiles)], code.symbols)
            found = self.programs[variant] = Chosen(CudaProgram(self._cuda_code(variant, parameters)), code, launched)
        return found

    def _cuda_code(self, variant: Variant, parameters: tuple[Parameter, ...]) -> CudaCode:
        code = self.code_for(variant)
        return CudaCode(self.name, self.chip.cpu, code.ptx.encode(), _launch(code, self.tiles), parameters)

    def _any_code(self, parameters: Parameters) -> CudaCode:
        """What all of its code has in common, before it is known which arrays come; some of it hands parts over."""
        scalars = (ScalarSlot(i) for i, v in enumerate(numbers_of(self.tiles)) if v.type != INDEX_SCALAR)
        launch = GpuLaunch((ScratchMemory(0), *scalars), (1, 1, 1), (1, 1, 1))
        return CudaCode(self.name, self.chip.cpu, b"", launch, parameters)

    def warn_of_slow_code(self, program: CudaProgram, number: int) -> None:
        """What the assembler could not do well is said, once; the code is right all the same."""
        if (id(program), number) in self._warned:
            return
        self._warned.add((id(program), number))
        told, spilled = read_log(program.log(number)), program.resources(number).local_bytes
        if told.serialized:
            what = f"{self.name}: products wait for each other: {told.serialized[0]}"
            warnings.warn(f"{what}; smaller tiles leave more registers", SlowCodeWarning, stacklevel=levels_to_author())
        if spilled:
            what = f"{self.name}: {spilled} bytes of a lane are spilled"
            warnings.warn(f"{what}; smaller tiles need fewer registers", SpillWarning, stacklevel=levels_to_author())

    # -- which code

    def variant_for(self, views: Sequence[ArrayView]) -> Variant:
        """What fits arrays that lie so."""
        fitting = self._variant_for(views)
        return fitting if self.make or fitting in self._codes else self.for_any

    @property
    def for_any(self) -> Variant:
        """Element by element, which needs neither neighbours nor alignment."""
        return Variant(self.otherwise is not None, tuple(v.name for v in self.memories))

    def _variant_for(self, views: Sequence[ArrayView]) -> Variant:
        return self._class_of(views) if self.is_open else self._fitting(views)

    def _class_of(self, views: Sequence[ArrayView]) -> Variant:
        """One of three, whatever the sizes: rows on cache lines, on the engine's grain, or anything."""
        key = lie_code(tuple([len(v.shape) for v in views]))(*ArrayPlaces.of_views(views))
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= KEPT_CLASSES:
                self._classes.clear()
            found = self._classes[key] = self._look_at(views)
        return found

    def _look_at(self, views: Sequence[ArrayView]) -> Variant:
        fitting, named = self._fitting(views), self._named(views)
        if fitting != Variant() or (not self.copied and self._has_odd_rows(named)):
            return self.for_any
        brought = [named[name] for name, _ in self.copied if name not in self.written]
        rows = [v.strides[-2] for v in brought if len(v.shape) > 1 and v.shape[-2] > 1]
        on_lines = all(row % self.chip.line_bytes == 0 for row in rows)
        return Variant(off_lines=self.off_lines is not None and not on_lines)

    def _has_odd_rows(self, named: Mapping[str, ArrayView]) -> bool:
        """Whether rows end within a load: where lanes load all, code is made for open rows that do not."""
        rows = (v.shape[-1] * v.dtype.bytes for v in named.values() if v.shape)
        return any(row % self.chip.widest_load_bytes for row in rows)

    def _fitting(self, views: Sequence[ArrayView]) -> Variant:
        named, widest = self._named(views), self.chip.widest_load_bytes
        any_strides = tuple(name for name, v in named.items() if v.shape[-1] > 1 and v.strides[-1] != v.dtype.bytes)
        narrow = tuple((name, found) for name, v in named.items() if (found := alignment(v, widest)) < widest)
        narrow = tuple((name, found) for name, found in narrow if name not in any_strides)
        return Variant(bool(self._not_copied(named)) and self.otherwise is not None, any_strides, narrow)

    def declined_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Declined, ...]:
        """What these arrays keep its code from, and why."""
        return self.declined(check_call(self.name, parameters, arrays, "cuda", here()))

    def declined(self, views: Sequence[ArrayView]) -> tuple[Declined, ...]:
        named, variant = self._named(views), self._variant_for(views)
        copied = self._not_copied(named) if variant.is_plain else {}
        found = [NOT_COPIED.at(NOWHERE, array=name, problem=problem) for name, problem in copied.items()]
        found += [ONE_BY_ONE.at(NOWHERE, array=name, bytes=named[name].strides[-1]) for name in variant.any_strides]
        widest = self.chip.widest_load_bytes
        found += [NARROW.at(NOWHERE, array=name, bytes=size, widest=widest) for name, size in variant.narrow]
        return tuple(found)

    def _named(self, views: Sequence[ArrayView]) -> dict[str, ArrayView]:
        return dict(zip((v.name for v in self.memories), views, strict=True))

    def _not_copied(self, named: dict[str, ArrayView]) -> dict[str, str]:
        """The arrays that the copy engine cannot take, and why."""
        found = {name: self._problem(axes, named[name], name in self.written) for name, axes in self.copied}
        return {name: problem for name, problem in found.items() if problem}

    def _problem(self, axes: tuple[int, ...], view: ArrayView, is_written: bool) -> str:
        grain, row = TENSOR_MAPS.grain_bytes, view.shape[-1] * view.dtype.bytes
        if is_written and row % grain:
            return f"has rows of {row} bytes, and the copy engine stores multiples of {grain}"
        return tensor_map(TiledArray(0, axes, ()), view).problem(view.pointer)

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(v.name for v in touched(self.tiles)[0])

    @cached_property
    def copied(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The arrays that the copy engine moves, each with the order of its axes; nothing is compiled for that."""
        if Variant() in self._codes or not self.is_open:
            return tuple(dict.fromkeys((m.name, m.axes) for m in self.code_for(Variant()).maps))
        moves = [op for op in walk(self.lanes().body) if isinstance(op, COPIES)]
        return tuple(dict.fromkeys((op.memory.name, box_axes(_rank(op.memory), op.axes)) for op in moves))

    def kernel_of(self, variant: Variant) -> Kernel:
        if variant.off_lines and self.off_lines:
            return self.off_lines()
        return self.otherwise() if variant.is_plain and self.otherwise else self.lanes()

    def code_for(self, variant: Variant) -> NvidiaCode:
        if variant not in self._codes:
            assert self.make is not None, f"variant_for gives what the file has, not {variant}"
            self._codes[variant] = self.make(variant, self.kernel_of)
        return self._codes[variant]


@dataclass
class Chooser(CudaProgram):
    """A program that looks at how arrays lie before it takes its code."""

    owner: NvidiaProgram = field(kw_only=True, repr=False)

    def launch_kind(
        self, views: Sequence[ArrayView], numbers: Sequence[int], number: int, stream: int, parameters: Parameters
    ) -> LaunchKind:
        owner = self.owner
        tiles = owner.tile_count(numbers)
        if not tiles:
            return NoTiles(owner)
        if tiles > MOST_TILES:
            what = f"{owner.name}: {tiles:,} tiles, and a launch computes {MOST_TILES:,} at most"
            raise CallError(what, remedy="call it with parts of the arrays")
        chosen = owner.chosen(owner.variant_for(views), parameters)
        owner.warn_of_slow_code(chosen.program, number)
        template = chosen.program.template(views, number, stream)
        return TileLaunch(owner, chosen.launched, chosen.code.cluster, template)


class TileLaunch(NamedTuple):
    """With code for arrays that lie alike; what their sizes decide is computed at each call."""

    owner: NvidiaProgram
    launched: LaunchCode
    cluster: int
    template: LaunchTemplate

    def at(self, places: ArrayPlaces, numbers: Sequence[int]) -> Prepared | None:
        owner, launched, cluster, template = self
        tiles = owner.tile_count(numbers)
        if not 0 < tiles <= MOST_TILES:
            return None
        workgroups, passed = launched(numbers)
        one_round = workgroups == -(-tiles // cluster) * cluster
        shape = LaunchShape((workgroups, 1, 1), one_round) if owner.is_open else None
        return Prepared(template.launcher, template.at(places, passed, shape), numbers)


class NoTiles(NamedTuple):
    """Where there is nothing to compute, nothing is launched."""

    owner: NvidiaProgram

    def at(self, places: ArrayPlaces, numbers: Sequence[int]) -> Prepared | None:
        return None if self.owner.tile_count(numbers) else Prepared(Nothing(), None, numbers)


def _rank(memory: Value) -> int:
    assert isinstance(memory.type, Memory)
    return memory.type.rank


def alignment(v: ArrayView, widest_bytes: int) -> int:
    """The largest power of two, up to the widest load's bytes, that divides an array's address and its rows' steps."""
    found = widest_bytes | v.pointer
    for extent, stride in zip(v.shape[:-1], v.strides[:-1], strict=True):
        if extent > 1:
            found |= stride
    return found & -found


def maker(key: str, chip: Chip) -> Make:
    """From the cache, or made anew and kept."""

    def make(variant: Variant, kernel_of: Callable[[Variant], Kernel]) -> NvidiaCode:
        code = kept(key, variant)
        if code is None:
            code = _compiler().code_of(kernel_of(variant), chip, variant)
            keep(key, variant, code)
        return code

    return make


def _compiler() -> ModuleType:
    with IMPORTING:
        from tilewave.backend.nvidia import compiler as nvidia_ptx  # noqa: PLC0415  LLVM is heavy, and code from the cache needs none of it

    return nvidia_ptx


def _launch(code: NvidiaCode, tiles: Kernel) -> GpuLaunch:
    names = [v.name for v in tiles.body.args if isinstance(v.type, Memory)]
    symbols = code.symbols
    slots = [*(_slot(a, names, symbols) for a in code.arguments), *(_tiled(m, names) for m in code.maps)]
    attributes = (
        *((Cluster((code.cluster, 1, 1)),) if code.cluster > 1 else ()),
        *((EarlyStart(),) if code.starts_early else ()),
    )
    known = code.workgroups if isinstance(code.workgroups, int) else code.cluster
    grid, block = (known, 1, 1), (code.workgroup_size, 1, 1)
    return GpuLaunch(tuple(slots), grid, block, code.shared_bytes, attributes)


def _slot(argument: KernelArgument, names: Sequence[str], symbols: Sequence[str]) -> Slot:
    match argument.kind:
        case "pointer":
            return Address(names.index(argument.name))
        case "stride":
            return Stride(names.index(argument.name), argument.axis)
        case "symbol":
            index = symbols.index(argument.name)
            return SymbolArgument(index) if argument.dtype == INDEX.name else ScalarSlot(index)
        case "scratch":
            return ScratchMemory(argument.scratch_bytes)
    raise NotImplementedError(f"a launch cannot provide a {argument.kind}")


def _tiled(m: MapArgument, names: Sequence[str]) -> TiledArray:
    return TiledArray(names.index(m.name), m.axes, m.box, m.swizzle_bytes)
