"""A compiled kernel ↔ the members of its file: texts, machine code, and what a launch must provide."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from tilewave.backend.amd.build import AmdBuild
from tilewave.backend.cpu.build import CpuBuild
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, host_features, host_instruction_set, runs_here
from tilewave.backend.nvidia.build import NvidiaBuild
from tilewave.errors import SavedKernelError, TargetError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.types import DTYPES
from tilewave.machine.chips import CHIPS
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.cpu import Launch, Program
from tilewave.runtime.records import AGAIN, Record, restored
from tilewave.runtime.saved_file import Contents, Path, Stored, read, write
from tilewave.saved.gpu import loaded_amd, loaded_nvidia, stored_amd, stored_nvidia

TILES, OBJECT = "kernel.ir", "code.o"


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


def read_kernel(path: Path) -> tuple[Contents, SavedKernel]:
    """The file, and what it holds."""
    contents = read(path)
    about = contents.about
    kernel = contents.kernel(TILES)
    target = about.text("target")
    parameters = tuple(_parameter(p) for p in about.records("parameters"))
    build = _loaded_build(contents, target, kernel)
    if (kernel.name, kernel.workgroups) != (about.text("name"), about.number("workgroups")):
        raise contents.misfit(TILES)
    saved = SavedKernel(kernel, target, parameters, about.texts("dynamic_symbols"), about.text("remedy"), build)
    return contents, saved


def _stored_build(saved: SavedKernel) -> Stored:
    match saved.build:
        case None:
            return {}, {}
        case CpuBuild():
            return _stored_cpu(saved.build)
        case AmdBuild():
            return stored_amd(saved.build)
        case NvidiaBuild():
            return stored_nvidia(saved.build)
    raise NotImplementedError(f"cannot save {saved.build}")


def _loaded_build(contents: Contents, target: str, kernel: Kernel) -> CpuBuild | AmdBuild | NvidiaBuild | None:
    if target == "numpy":
        return None
    if target == "cpu":
        return _loaded_cpu(contents, kernel)
    chip = CHIPS.get(target)
    if chip is not None:
        return (loaded_amd if chip.vendor == "amd" else loaded_nvidia)(contents, chip, kernel)
    raise SavedKernelError(
        f"{contents.path} is for {target}, for which this tilewave loads nothing",
        loc=here(),
        remedy=f"load it with the tilewave that wrote it, {contents.about.text('tilewave')}",
    )


def _parameter(p: Record) -> Parameter:
    dtype = p.text("dtype")
    return Parameter(p.text("name"), p.numbers("shape"), DTYPES.get(dtype) or p.fail("dtype"), p.truth("written"))


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
    launch = restored(Launch, about.record("launch"))
    return LoadedCpu(kernel, s, contents.member(OBJECT), launch, contents.path)
