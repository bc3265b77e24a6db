"""Machine code of GPUs ↔ the members of a file: code for arrays in rows, and code for arrays however they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from tilewave.amd import AmdBuild, LaneResources
from tilewave.amd_program import AmdCode, AmdProgram
from tilewave.ir.core import Kernel, Value
from tilewave.ir.lane_loads import LaneLoads
from tilewave.ir.types import Memory
from tilewave.lower.lane_later import MapArgument
from tilewave.lower.lane_memory import Reach
from tilewave.lower.lanes import KernelArgument
from tilewave.machine.lanes import LANE_MACHINES, SM_90A
from tilewave.nvidia import NvidiaBuild, NvidiaResources
from tilewave.nvidia_program import NvidiaCode, NvidiaProgram, Variant
from tilewave.runtime.arrays import ArrayView
from tilewave.saved_file import Contents, Record, Stored

LANES, PLAIN = "lanes.ir", "plain.ir"
ALLOCATED_BYTES = 256
"""Where CUDA allocates memory it begins at multiples of this ("CUDA C++ Programming Guide", device memory accesses)."""


# AMD chips ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedAmd(AmdBuild):
    """Machine code, and the lanes that it was made of."""

    codes: Mapping[frozenset[str], AmdCode] = field(default_factory=dict)
    counted: LaneResources | None = None

    @cached_property
    def program(self) -> AmdProgram:
        return LoadedAmdProgram(self.lanes, self.machine.name, dict(self.codes))

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
        code = asdict(program.code_for(anyhow))
        members[f"{name}.s"] = code.pop("asm").encode()
        members[f"{name}.hsaco"] = code.pop("code_object")
        codes.append({"member": name, "anyhow": sorted(anyhow), **code})
    return {"codes": codes, "resources": asdict(build.resources)}, members


def loaded_amd(contents: Contents, target: str, kernel: Kernel) -> LoadedAmd:
    codes = dict(_loaded_code(contents, about) for about in contents.about.records("codes"))
    lanes = contents.kernel(LANES)
    reached = {reach.name for code in codes.values() for reach in code.reaches}
    if frozenset(reached) not in codes or lanes.name != kernel.name:
        raise contents.misfit(LANES)
    resources = _resources(contents.about.record("resources"))
    return LoadedAmd(kernel, LANE_MACHINES[target], lanes, (), codes, resources)


def _loaded_code(contents: Contents, about: Record) -> tuple[frozenset[str], AmdCode]:
    reaches = tuple(
        Reach(r.text("name"), r.number("bytes"), r.numbers("steps"), r.number("grain"))
        for r in about.records("reaches")
    )
    name = about.text("member")
    sizes = about.number("shared_bytes"), about.number("workgroup_size")
    code = AmdCode(_arguments(about), reaches, *sizes, contents.text(f"{name}.s"), contents.member(f"{name}.hsaco"))
    return frozenset(about.texts("anyhow")), code


def _resources(r: Record) -> LaneResources:
    return LaneResources(
        r.text("machine"),
        r.numbers("waves"),
        r.number("lanes"),
        r.texts("instructions"),
        r.number("shared_bytes"),
        _loads(r, "loads_before"),
        _loads(r, "loads"),
        r.number("registers"),
        r.number("accumulation_registers"),
        r.number("spills"),
        r.number("waves_per_unit"),
    )


def _loads(r: Record, name: str) -> tuple[LaneLoads, ...]:
    return tuple(LaneLoads(x.text("memory"), x.number("loads"), x.number("elements")) for x in r.records(name))


def _arguments(about: Record) -> tuple[KernelArgument, ...]:
    return tuple(
        KernelArgument(a.text("name"), a.text("kind"), a.axis("axis"), a.text("dtype"))
        for a in about.records("arguments")
    )


# NVIDIA chips -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedNvidia(NvidiaBuild):
    """PTX, and the lanes that it was made of."""

    codes: Mapping[Variant, NvidiaCode] = field(default_factory=dict)
    counted: NvidiaResources | None = None

    @cached_property
    def program(self) -> NvidiaProgram:
        plain = (lambda: self.plain.lanes) if self.otherwise else None
        return LoadedNvidiaProgram(self.lanes, plain, dict(self.codes))

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
    return [v for v in program.lanes.body.args if isinstance(v.type, Memory)]


def stored_nvidia(build: NvidiaBuild) -> Stored:
    program = build.program
    members = {LANES: str(build.lanes).encode()}
    if build.otherwise:
        members[PLAIN] = str(build.plain.lanes).encode()
    codes: list[dict[str, Any]] = []
    variants = {_for_any(program): "code_anyhow", _in_rows(program): "code_rows", Variant(): "code"}
    for variant, name in reversed(variants.items()):
        code = asdict(program.code_for(variant))
        members[f"{name}.ptx"] = code.pop("ptx").encode()
        codes.append({"member": name, "variant": {**asdict(variant), "narrow": dict(variant.narrow)}, **code})
    counted = {f.name: getattr(build.resources, f.name) for f in fields(NvidiaResources) if f.name != "assemble"}
    counted["loads"] = [asdict(x) for x in build.resources.loads]
    return {"codes": codes, "resources": counted}, members


def loaded_nvidia(contents: Contents, kernel: Kernel) -> LoadedNvidia:
    about = contents.about
    codes = dict(_loaded_ptx(contents, code) for code in about.records("codes"))
    lanes = contents.kernel(LANES)
    plain = NvidiaBuild(kernel, SM_90A, contents.kernel(PLAIN), ()) if PLAIN in contents.members else None
    r = about.record("resources")
    counted = NvidiaResources(
        r.text("machine"),
        r.numbers("waves"),
        r.number("lanes"),
        r.texts("instructions"),
        r.number("shared_bytes"),
        _loads(r, "loads"),
        lambda: None,
    )
    loaded = LoadedNvidia(kernel, SM_90A, lanes, (), (lambda: plain) if plain else None, codes, counted)
    if lanes.name != kernel.name or not {Variant(), _for_any(loaded.program)} <= codes.keys():
        raise contents.misfit(LANES)
    return loaded


def _loaded_ptx(contents: Contents, about: Record) -> tuple[Variant, NvidiaCode]:
    v = about.record("variant")
    narrow = v.record("narrow")
    variant = Variant(
        v.truth("is_plain"), v.texts("anyhow"), tuple((name, narrow.number(name)) for name in narrow.fields)
    )
    maps = tuple(
        MapArgument(m.text("name"), m.numbers("axes"), m.numbers("box"), m.number("swizzle_bytes"))
        for m in about.records("maps")
    )
    sizes = about.number("shared_bytes"), about.number("workgroup_size")
    return variant, NvidiaCode(_arguments(about), maps, *sizes, contents.text(f"{about.text('member')}.ptx"))
