"""The targets of NVIDIA chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewave.backend.protocol import Backend, Build, BuildOptions
from tilewave.errors import TargetError
from tilewave.forks import IMPORTING
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.machine.chips import Chip
from tilewave.pipeline.runner import Pass
from tilewave.records import dataclass

if TYPE_CHECKING:
    from tilewave.backend.nvidia.build import NvidiaBuild
    from tilewave.runtime.cuda_driver import CudaDriver
    from tilewave.runtime.saved_file import Contents, Stored


@dataclass(frozen=True)
class NvidiaBackend(Backend):
    name: str
    chip: Chip

    has_cost_model = True
    kind = "an NVIDIA GPU"
    device = "cuda"
    also_called = ("nvidia", "ptx", "hopper", "gpu")
    has_lanes = True
    counts_loops = True

    @property
    def most_bytes(self) -> int:
        return self.chip.register_bytes

    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> NvidiaBuild:
        with IMPORTING:
            from tilewave.backend.nvidia.build import build_nvidia  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait for it

        return build_nvidia(tiles, self.chip, places, options.prefetched or 0, options.num_stages)

    def load(self, contents: Contents, kernel: Kernel) -> NvidiaBuild:
        with IMPORTING:
            from tilewave.backend.nvidia.saved import loaded_nvidia  # noqa: PLC0415  as above

        return loaded_nvidia(contents, self.chip, kernel)

    def stored(self, build: Build) -> Stored:
        with IMPORTING:
            from tilewave.backend.nvidia.saved import stored_nvidia  # noqa: PLC0415  as above

        return stored_nvidia(build)

    def passes(self) -> tuple[Pass, ...]:
        with IMPORTING:
            from tilewave.backend.nvidia.build import copying_passes  # noqa: PLC0415  as above

        return copying_passes(self.chip, Places())

    def device_count(self) -> int:
        try:
            return _driver().device_count()
        except TargetError:  # no driver, or no usable device
            return 0

    def driver(self) -> str:
        try:
            major, minor = _driver().version
        except TargetError as error:
            return error.what
        return f"CUDA {major}.{minor}"

    def runs_on(self, number: int) -> bool:
        return _driver().device(number).runs(self.chip.cpu)

    def device_name(self, number: int) -> str:
        device = _driver().device(number)
        return f"{device.name} ({device.arch})"


def _driver() -> CudaDriver:
    with IMPORTING:
        from tilewave.runtime.cuda_driver import cuda_driver  # noqa: PLC0415  `import tilewave` does not wait for drivers

    return cuda_driver()
