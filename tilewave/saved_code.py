"""A compiled kernel ↔ the members of its file: texts, machine code, and what a launch must provide."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tilewave.amd import AmdBuild, LaneResources
from tilewave.amd_program import AmdCode, AmdProgram
from tilewave.cpu import CpuBuild
from tilewave.errors import SavedKernelError, TargetError, TilewaveError, here
from tilewave.ir.core import Kernel
from tilewave.ir.lane_loads import LaneLoads
from tilewave.ir.parse import parse
from tilewave.ir.types import DTYPES
from tilewave.ir.verify import verify
from tilewave.lower.lane_memory import Reach
from tilewave.lower.lanes import KernelArgument
from tilewave.machine.lanes import LANE_MACHINES
from tilewave.nvidia import NvidiaBuild
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.cpu import Launch, Program
from tilewave.saved_file import AGAIN, Contents, Path, Record, read, write
from tilewave.targets.amdgcn import AMDGCN
from tilewave.targets.cpu import INSTRUCTION_SETS, host_features, host_instruction_set, runs_here

TILES, LANES, OBJECT = "kernel.ir", "lanes.ir", "code.o"
NO_TEXT_OF_OURS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What parsing raises where every word is known, and their arrangement was never foreseen."""

Codes = Mapping[frozenset[str], AmdCode]
Stored = tuple[dict[str, Any], dict[str, bytes]]
"""What `kernel.json` says, and the other members."""


@dataclass(frozen=True)
class SavedKernel:
    """What a file holds of a compiled kernel."""

    kernel: Kernel
    """On whole tiles."""
    target: str
    parameters: tuple[Parameter, ...]
    dynamic_symbols: tuple[str, ...]
    remedy: str
    """Against an order that loses tiles."""
    build: CpuBuild | AmdBuild | NvidiaBuild | None


def write_kernel(path: Path, saved: SavedKernel) -> None:
    about, members = _stored_build(saved)
    facts = {
        "name": saved.kernel.name,
        "target": saved.target,
        "workgroups": saved.kernel.workgroups,
        "parameters": [
            {"name": p.name, "shape": p.shape, "dtype": p.dtype.name, "written": p.written} for p in saved.parameters
        ],
        "dynamic_symbols": saved.dynamic_symbols,
        "remedy": saved.remedy,
    }
    write(path, {**facts, **about}, {TILES: str(saved.kernel).encode(), **members})


def read_kernel(path: Path) -> tuple[str, SavedKernel]:
    """The file's name as messages spell it, and what it holds."""
    contents = read(path)
    about = contents.about
    kernel = _parsed(contents, TILES)
    target = about.text("target")
    parameters = tuple(_parameter(p) for p in about.records("parameters"))
    build = _loaded_build(contents, target, kernel)
    if (kernel.name, kernel.workgroups) != (about.text("name"), about.number("workgroups")):
        raise misfit(contents.path, TILES)
    saved = SavedKernel(kernel, target, parameters, about.texts("dynamic_symbols"), about.text("remedy"), build)
    return contents.path, saved


def _stored_build(saved: SavedKernel) -> Stored:
    match saved.build:
        case None:
            return {}, {}
        case CpuBuild():
            return _stored_cpu(saved.build)
        case AmdBuild():
            return _stored_amd(saved.build)
        case _:
            raise SavedKernelError(
                f"{saved.kernel.name}: nothing is emitted for {saved.target} yet, so there is nothing to save",
                loc=here(),
                remedy='compile it with target="cpu", "gfx942" or "gfx950"',
            )


def _loaded_build(contents: Contents, target: str, kernel: Kernel) -> CpuBuild | AmdBuild | None:
    if target == "numpy":
        return None
    if target == "cpu":
        return _loaded_cpu(contents, kernel)
    if target in AMDGCN:
        return _loaded_amd(contents, target, kernel)
    raise SavedKernelError(
        f"{contents.path} is for {target}, for which this tilewave loads nothing",
        loc=here(),
        remedy=f"load it with the tilewave that wrote it, {contents.about.text('tilewave')}",
    )


def _parsed(contents: Contents, member: str) -> Kernel:
    text, file = contents.text(member), f"{contents.path}/{member}"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # errors show the op that they mean
    try:
        return verify(parse(text, file))
    except TilewaveError as error:
        why = error.what
    except NO_TEXT_OF_OURS as error:
        why = str(error)
    raise SavedKernelError(f"{contents.path}: {member} is no kernel: {why}", loc=here(), remedy=AGAIN)


def _parameter(p: Record) -> Parameter:
    dtype = p.text("dtype")
    return Parameter(p.text("name"), p.numbers("shape"), DTYPES.get(dtype) or p.fail("dtype"), p.truth("written"))


def misfit(path: str, member: str) -> SavedKernelError:
    return SavedKernelError(f"{path}: kernel.json tells of another kernel than {member}", loc=here(), remedy=AGAIN)


# CPUs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedCpu(CpuBuild):
    """Machine code that another process made, perhaps on another machine."""

    path: str = ""

    @cached_property
    def program(self) -> Program:
        if not runs_here(self.instruction_set):
            raise TargetError(
                f"{self.tiles.name}: {self.path} holds code for {self.instruction_set.name}, but {self._lacking()}",
                loc=here(),
                remedy=f'save it from WaveCompileOptions(instruction_set="{host_instruction_set(self.tiles).name}"), '
                f"or run it in numpy: {self.tiles.name}.interpret(…)",
            )
        try:
            return super().program
        except RuntimeError as error:
            why = str(error).strip().splitlines() or ["LLVM does not say why"]
            what = f"{self.tiles.name}: {self.path}: {OBJECT} cannot be linked: {why[0]}"
            raise SavedKernelError(what, loc=here(), remedy=AGAIN) from None

    def _lacking(self) -> str:
        wanted, ours = self.instruction_set.triple, host_instruction_set().triple
        if wanted != ours:
            return f"that is {wanted.partition('-')[0]}, and this machine is {ours.partition('-')[0]}"
        missing = [need for need in self.instruction_set.needs if need not in host_features()]
        return f"this machine has no {', '.join(missing)}"


def _stored_cpu(build: CpuBuild) -> Stored:
    s = build.instruction_set
    about = {"instruction_set": s.name, "triple": s.triple, "needs": s.needs, "launch": asdict(build.launch)}
    return about, {OBJECT: build.code}


def _loaded_cpu(contents: Contents, kernel: Kernel) -> LoadedCpu:
    about = contents.about
    name = about.text("instruction_set")
    if name not in INSTRUCTION_SETS:
        raise SavedKernelError(
            f"{contents.path} holds code for {name}, an instruction set that this tilewave does not know",
            loc=here(),
            remedy=f"load it with the tilewave that wrote it, {about.text('tilewave')}",
        )
    s = replace(INSTRUCTION_SETS[name], triple=about.text("triple"), needs=about.texts("needs"))
    at = about.record("launch")
    launch = Launch(
        at.number("words"),
        at.numbers("packed_slots"),
        at.numbers("packed_bytes"),
        at.number("scratch_slot"),
        at.number("scratch_bytes"),
        at.numbers("item_bytes"),
    )
    return LoadedCpu(kernel, s, contents.member(OBJECT), launch, contents.path)


# AMD chips ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedAmd(AmdBuild):
    """Machine code, and the lanes that it was made of."""

    codes: Codes = field(default_factory=dict)
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


def _stored_amd(build: AmdBuild) -> Stored:
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


def _loaded_amd(contents: Contents, target: str, kernel: Kernel) -> LoadedAmd:
    codes = dict(_loaded_code(contents, about) for about in contents.about.records("codes"))
    lanes = _parsed(contents, LANES)
    reached = {reach.name for code in codes.values() for reach in code.reaches}
    if frozenset() not in codes or frozenset(reached) not in codes or lanes.name != kernel.name:
        raise misfit(contents.path, LANES)
    resources = _resources(contents.about.record("resources"))
    return LoadedAmd(kernel, LANE_MACHINES[target], lanes, (), codes, resources)


def _loaded_code(contents: Contents, about: Record) -> tuple[frozenset[str], AmdCode]:
    arguments = tuple(
        KernelArgument(a.text("name"), a.text("kind"), a.axis("axis"), a.text("dtype"))
        for a in about.records("arguments")
    )
    reaches = tuple(Reach(r.text("name"), r.number("bytes"), r.numbers("steps")) for r in about.records("reaches"))
    name = about.text("member")
    sizes = about.number("shared_bytes"), about.number("workgroup_size")
    code = AmdCode(arguments, reaches, *sizes, contents.text(f"{name}.s"), contents.member(f"{name}.hsaco"))
    return frozenset(about.texts("anyhow")), code


def _resources(r: Record) -> LaneResources:
    def loads(name: str) -> tuple[LaneLoads, ...]:
        return tuple(LaneLoads(x.text("memory"), x.number("loads"), x.number("elements")) for x in r.records(name))

    return LaneResources(
        r.text("machine"),
        r.numbers("waves"),
        r.number("lanes"),
        r.texts("instructions"),
        r.number("shared_bytes"),
        loads("loads_before"),
        loads("loads"),
        r.number("registers"),
        r.number("accumulation_registers"),
        r.number("spills"),
        r.number("waves_per_unit"),
    )
