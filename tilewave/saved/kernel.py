"""A compiled kernel ↔ the members of its file: its text, what a launch must provide, and what its target adds."""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.backend.protocol import Build
from tilewave.backend.targets import TARGETS
from tilewave.errors import SavedKernelError, here
from tilewave.ir.core import Kernel
from tilewave.ir.types import DTYPES
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.records import Record
from tilewave.runtime.saved_file import Contents, Path, read, write

TILES = "kernel.ir"


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
    build: Build


def write_kernel(path: Path, saved: SavedKernel) -> None:
    about, members = saved.build.stored()
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


def _loaded_build(contents: Contents, target: str, kernel: Kernel) -> Build:
    if target in TARGETS:
        return TARGETS[target].load(contents, kernel)
    raise SavedKernelError(
        f"{contents.path} is for {target}, for which this tilewave loads nothing",
        loc=here(),
        remedy=f"load it with the tilewave that wrote it, {contents.about.text('tilewave')}",
    )


def _parameter(p: Record) -> Parameter:
    dtype = p.text("dtype")
    return Parameter(p.text("name"), p.numbers("shape"), DTYPES.get(dtype) or p.fail("dtype"), p.truth("written"))
