"""The CPU target: the cores of this machine, or of another by its instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewave.backend.protocol import Backend, Build, BuildOptions
from tilewave.forks import IMPORTING
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.machine.register_blocks import RegisterBlock
from tilewave.pipeline.runner import Pass
from tilewave.records import dataclass

if TYPE_CHECKING:
    from tilewave.backend.cpu.build import CpuBuild
    from tilewave.runtime.saved_file import Contents, Stored


@dataclass(frozen=True)
class CpuBackend(Backend):
    name: str

    has_cost_model = True
    kind = "the CPU"
    device = "cpu"
    takes_instruction_sets = True

    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> CpuBuild:
        with IMPORTING:
            from tilewave.backend.cpu.build import build_cpu  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait for it

        return build_cpu(tiles, options.instruction_set, options.in_place)

    def load(self, contents: Contents, kernel: Kernel) -> CpuBuild:
        with IMPORTING:
            from tilewave.backend.cpu.saved import loaded_cpu  # noqa: PLC0415  as above

        return loaded_cpu(contents, kernel)

    def stored(self, build: Build) -> Stored:
        with IMPORTING:
            from tilewave.backend.cpu.saved import stored_cpu  # noqa: PLC0415  as above

        return stored_cpu(build)

    def passes(self) -> tuple[Pass, ...]:
        with IMPORTING:
            from tilewave.pipeline import cpu_lists as lists  # noqa: PLC0415  all passes; running needs none of them

        return lists.cpu_with_matrix_unit(RegisterBlock(1, 1, 1, 1), 1, {})
