"""What can be explored: the GEMM that comes with tilewave, or the kernels of a file."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import as_file, files
from typing import Any, Protocol

from tilewave.backend.targets import target_of
from tilewave.compile import wave_compile
from tilewave.compiled import Compiled
from tilewave.explore.choice import ExplorerChoice, ExplorerError
from tilewave.explore.tiles import want_drawable
from tilewave.ir.types import DTYPES
from tilewave.kernels import GemmKernel, accumulator
from tilewave.machine import Machine
from tilewave.options import WaveCompileOptions
from tilewave.records import dataclass
from tilewave.sim.problem import Gemm
from tilewave.sim.simulate import SimulatedRun, run
from tilewave.view.extents import parse_extents

LINEAR = "linear()"
LARGEST_COUNT = 9
"""Digits of a number of workgroups."""


class Explored(Protocol):
    """A source of kernels."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """By name; none where there is nothing to choose among."""

    def compiled(self, choice: ExplorerChoice, order: str, target: str) -> Compiled:
        """The chosen kernel with an order of tiles, for a target."""

    def run(self, choice: ExplorerChoice, order: str, machine: Machine) -> tuple[SimulatedRun, Any]:
        """The launch simulated, and what it is a launch of."""


class ExploredGemm:
    """C[M, N] = A · Bᵀ of any shape, tile and dtype."""

    kernels: tuple[str, ...] = ()

    def compiled(self, choice: ExplorerChoice, order: str, target: str) -> Compiled:
        problem = gemm_of(choice)
        dtypes = problem.element, accumulator(problem.element), problem.written
        kernel = _gemm_file()["kernel"](*dtypes, order or LINEAR, problem.workgroups)
        made = GemmKernel(problem.m, problem.n, problem.k, problem.tile, kernel)
        return wave_compile(WaveCompileOptions(subs=made.subs, target=target), kernel)

    def run(self, choice: ExplorerChoice, order: str, machine: Machine) -> tuple[SimulatedRun, Gemm]:
        problem = gemm_of(choice)
        want_drawable(problem.grid.size)
        return run(problem, machine, order or LINEAR), problem


@cache
def _gemm_file() -> dict[str, Any]:
    """Run as a user's file is, so that its lines are an author's."""
    with as_file(files("tilewave.explore").joinpath("assets").joinpath("gemm.py")) as path:
        return runpy.run_path(str(path), run_name="gemm")


def gemm_of(choice: ExplorerChoice) -> Gemm:
    """The GEMM of a choice, as the simulator takes it."""
    m, n, k = (extent.value for extent in parse_extents(choice.shape, "a shape", ("M", "N", "K"), "4096x4096x4096"))
    tile = (extent.value for extent in parse_extents(choice.tile, "a tile", ("M", "N", "K"), "128x256x64"))
    if choice.dtype not in DTYPES:
        raise ExplorerError(f"unknown dtype {choice.dtype!r}", remedy=f"there are {', '.join(DTYPES)}")
    block_m, block_n, block_k = tile
    return Gemm(m, n, k, (block_m, block_n, block_k), choice.dtype, workgroups=_count(choice.workgroups))


def _count(text: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal() or not text.isascii() or len(text) > LARGEST_COUNT:
        what = f"a number of workgroups is a whole number, not {text!r}"
        raise ExplorerError(what, remedy="leave it empty, or write 304")
    return int(text)


Load = Callable[[str, str, str], Mapping[str, Compiled]]
"""(sizes, order, target) → the kernels of a file, compiled."""


@dataclass(frozen=True)
class ExploredFile:
    """The kernels of a Python file; `load` runs the file again when it has changed."""

    kernels: tuple[str, ...]
    load: Load

    def compiled(self, choice: ExplorerChoice, order: str, target: str) -> Compiled:
        name = choice.kernel or self.kernels[0]
        found = self.load(choice.sizes, order, target)
        if name not in found:
            raise ExplorerError(f"the file has no kernel {name!r}", remedy=f"it has {', '.join(found)}")
        return found[name]

    def run(self, choice: ExplorerChoice, order: str, machine: Machine) -> tuple[SimulatedRun, Compiled]:
        compiled = self.compiled(choice, order, choice.target or target_of(machine))
        found = run(compiled, machine)
        return found.called(order) if order else found, compiled
