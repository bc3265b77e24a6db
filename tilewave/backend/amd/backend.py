"""The targets of AMD chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewave.backend.protocol import Backend, Build, BuildOptions
from tilewave.errors import TargetError, TilewaveError, here
from tilewave.forks import IMPORTING
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.machine.chips import Chip
from tilewave.pipeline.runner import Pass
from tilewave.records import dataclass

if TYPE_CHECKING:
    from tilewave.backend.amd.build import AmdBuild
    from tilewave.runtime.hip import HipDriver
    from tilewave.runtime.saved_file import Contents, Stored


@dataclass(frozen=True)
class AmdBackend(Backend):
    name: str
    chip: Chip

    has_cost_model = True
    kind = "an AMD GPU"
    device = "rocm"
    also_called = ("amd", "hip", "amdgpu")
    has_lanes = True
    is_emulated = True
    counts_loops = True
    models_cycles = True

    def check(self, options: BuildOptions) -> None:
        if (options.num_stages or 1) > 1 and options.prefetched == 0:
            raise TilewaveError(
                f"num_stages is {options.num_stages}, but with SchedulingType.NONE a loop on {self.name} has one stage",
                loc=here(),
                remedy="leave schedule out, or leave num_stages out",
            )

    @property
    def most_bytes(self) -> int:
        return self.chip.register_bytes

    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> AmdBuild:
        with IMPORTING:
            from tilewave.backend.amd.build import build_amd, steps_ahead  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait for it

        return build_amd(tiles, self.chip, places, steps_ahead(tiles, options))

    def load(self, contents: Contents, kernel: Kernel) -> AmdBuild:
        with IMPORTING:
            from tilewave.backend.amd.saved import loaded_amd  # noqa: PLC0415  as above

        return loaded_amd(contents, self.chip, kernel)

    def stored(self, build: Build) -> Stored:
        with IMPORTING:
            from tilewave.backend.amd.saved import stored_amd  # noqa: PLC0415  as above

        return stored_amd(build)

    def passes(self) -> tuple[Pass, ...]:
        with IMPORTING:
            from tilewave.backend.amd.build import passes_for  # noqa: PLC0415  as above

        return passes_for(self.chip, Places(), 1)

    def device_count(self) -> int:
        try:
            return _driver().device_count()
        except TargetError:  # no driver, or no usable device
            return 0

    def driver(self) -> str:
        try:
            return f"HIP, {_driver().device_count()} devices"
        except TargetError as error:
            return error.what

    def runs_on(self, number: int) -> bool:
        return _driver().device(number).arch == self.chip.cpu

    def device_name(self, number: int) -> str:
        device = _driver().device(number)
        return f"{device.name} ({device.arch})"


def _driver() -> HipDriver:
    with IMPORTING:
        from tilewave.runtime.hip import hip_driver  # noqa: PLC0415  `import tilewave` does not wait for drivers

    return hip_driver()
