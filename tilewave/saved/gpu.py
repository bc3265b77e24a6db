"""Machine code of GPUs ↔ the members of a file: code for arrays in rows, and code for arrays however they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tilewave.analysis.loads import LaneLoads
from tilewave.backend.amd.build import AmdBuild, LaneResources
from tilewave.backend.amd.code import AmdCode
from tilewave.backend.amd.program import AmdProgram
from tilewave.backend.nvidia.build import NvidiaBuild, NvidiaResources
from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.program import NvidiaProgram
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.types import Memory
from tilewave.machine.chips import Chip
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.records import Record, restored
from tilewave.runtime.saved_file import Contents, Stored

LANES, PLAIN = "lanes.ir", "plain.ir"
UNKNOWN = ""
"""To the cache: a file brings all the code that its kernel may take."""
ALLOCATED_BYTES = 256
"""Where CUDA allocates memory it begins at multiples of this ("CUDA C++ Programming Guide", device memory accesses)."""


# AMD chips ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedAmd(AmdBuild):
    """Machine code, and the lanes that it was made of."""

    counted: LaneResources | None = None

    @cached_property
    def program(self) -> AmdProgram:
        return LoadedAmdProgram(self.tiles, self.chip, self.key, lambda: self.lanes, dict(self.codes))

    @cached_property
    def resources(self) -> LaneResources:
        assert self.counted is not None
        return self.counted


class LoadedAmdProgram(AmdProgram):
    """A program that makes no code: a file holds some for arrays in rows, and some for arrays however they lie."""

    def code_for(self, anyhow: frozenset[str]) -> AmdCode:
        fitting = [names for names in self._codes if names >= anyhow]
        return self._codes[min(fitting, key=len)]


def stored_amd(build: AmdBuild) -> Stored:
    program = build.program
    everything = frozenset(reach.name for reach in program.code.reaches)
    variants = {"code": frozenset[str](), **({"code_anyhow": everything} if everything else {})}
    codes: list[dict[str, Any]] = []
    members = {LANES: str(build.lanes).encode()}
    for name, anyhow in variants.items():
        code = program.code_for(anyhow)
        members[f"{name}.s"], members[f"{name}.hsaco"] = code.asm.encode(), code.code_object
        codes.append({"member": name, "anyhow": sorted(anyhow), **code.facts})
    return {"codes": codes, "resources": asdict(build.resources)}, members


def loaded_amd(contents: Contents, chip: Chip, kernel: Kernel) -> LoadedAmd:
    codes = dict(_loaded_code(contents, about) for about in contents.about.records("codes"))
    lanes = contents.kernel(LANES)
    reached = {reach.name for code in codes.values() for reach in code.reaches}
    if frozenset(reached) not in codes or lanes.name != kernel.name:
        raise contents.misfit(LANES)
    resources = restored(LaneResources, contents.about.record("resources"))
    return LoadedAmd(kernel, chip, UNKNOWN, lambda: (lanes, ()), codes, resources)


def _loaded_code(contents: Contents, about: Record) -> tuple[frozenset[str], AmdCode]:
    name = about.text("member")
    code = AmdCode.of(about, contents.text(f"{name}.s"), contents.member(f"{name}.hsaco"))
    return frozenset(about.texts("anyhow")), code


# NVIDIA chips -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedNvidia(NvidiaBuild):
    """PTX, and the lanes that it was made of."""

    counted: NvidiaResources | None = None

    @cached_property
    def program(self) -> NvidiaProgram:
        plain = (lambda: self.plain.lanes) if self.otherwise else None
        return LoadedNvidiaProgram(self.tiles, self.chip, self.key, lambda: self.lanes, plain, dict(self.codes))

    @cached_property
    def resources(self) -> NvidiaResources:
        assert self.counted is not None
        return replace(self.counted, assemble=lambda: self.program.assembled)


class LoadedNvidiaProgram(NvidiaProgram):
    """A program that makes no code: what fits no other variant of its file takes the one for arrays of any kind."""

    def variant_for(self, views: Sequence[ArrayView]) -> Variant:
        fitting = super().variant_for(views)
        return fitting if fitting in self._codes else _for_any(self)


def _for_any(program: NvidiaProgram) -> Variant:
    """Element by element, which needs neither neighbours nor alignment."""
    return Variant(program.otherwise is not None, tuple(v.name for v in _memories(program)))


def _in_rows(program: NvidiaProgram) -> Variant:
    """For arrays without gaps, which begin where memory is allocated."""
    views = []
    for v in _memories(program):
        strides = [v.type.dtype.bytes]
        for extent in v.type.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        views.append(ArrayView(ALLOCATED_BYTES, v.type.shape, tuple(strides), v.type.dtype, "cuda", False, None))
    return program.variant_for(views)


def _memories(program: NvidiaProgram) -> list[Value]:
    return [v for v in program.tiles.body.args if isinstance(v.type, Memory)]


def stored_nvidia(build: NvidiaBuild) -> Stored:
    program = build.program
    members = {LANES: str(build.lanes).encode()}
    if build.otherwise:
        members[PLAIN] = str(build.plain.lanes).encode()
    codes: list[dict[str, Any]] = []
    variants = {_for_any(program): "code_anyhow", _in_rows(program): "code_rows", Variant(): "code"}
    for variant, name in reversed(variants.items()):
        code = program.code_for(variant)
        members[f"{name}.ptx"] = code.ptx.encode()
        codes.append({"member": name, "variant": {**asdict(variant), "narrow": dict(variant.narrow)}, **code.facts})
    counted = {f.name: getattr(build.resources, f.name) for f in fields(NvidiaResources) if f.name != "assemble"}
    counted["loads"] = [asdict(x) for x in build.resources.loads]
    return {"codes": codes, "resources": counted}, members


def loaded_nvidia(contents: Contents, chip: Chip, kernel: Kernel) -> LoadedNvidia:
    about = contents.about
    codes = dict(_loaded_ptx(contents, code) for code in about.records("codes"))
    lanes = contents.kernel(LANES)
    plain_lanes = contents.kernel(PLAIN) if PLAIN in contents.members else None
    plain = NvidiaBuild(kernel, chip, UNKNOWN, lambda: (plain_lanes, ())) if plain_lanes else None
    r = about.record("resources")
    counted = NvidiaResources(
        r.text("machine"),
        r.numbers("waves"),
        r.number("lanes"),
        r.texts("instructions"),
        r.number("shared_bytes"),
        tuple(restored(LaneLoads, one) for one in r.records("loads")),
        lambda: None,
        r.texts("not_as_asked"),
    )
    loaded = LoadedNvidia(
        kernel, chip, UNKNOWN, lambda: (lanes, ()), (lambda: plain) if plain else None, codes, counted
    )
    if lanes.name != kernel.name or not {Variant(), _for_any(loaded.program)} <= codes.keys():
        raise contents.misfit(LANES)
    return loaded


def _loaded_ptx(contents: Contents, about: Record) -> tuple[Variant, NvidiaCode]:
    v = about.record("variant")
    narrow = v.record("narrow")
    variant = Variant(
        v.truth("is_plain"), v.texts("anyhow"), tuple((name, narrow.number(name)) for name in narrow.fields)
    )
    return variant, NvidiaCode.of(about, contents.text(f"{about.text('member')}.ptx"))
