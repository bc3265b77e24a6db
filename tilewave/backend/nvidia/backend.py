"""One of NVIDIA's chips as a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewave.backend.protocol import Backend, BuildOptions
from tilewave.forks import IMPORTING
from tilewave.ir.core import Kernel
from tilewave.ir.places import Places
from tilewave.machine.chips import Chip
from tilewave.pipeline.runner import Pass

if TYPE_CHECKING:
    from tilewave.backend.nvidia.build import NvidiaBuild
    from tilewave.runtime.saved_file import Contents


@dataclass(frozen=True)
class NvidiaBackend(Backend):
    name: str
    chip: Chip

    kind = "an NVIDIA GPU"
    device = "cuda"
    has_lanes = True

    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> NvidiaBuild:
        with IMPORTING:
            from tilewave.backend.nvidia.build import build_nvidia  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait for it

        return build_nvidia(tiles, self.chip, places, options.prefetched, options.buffers)

    def load(self, contents: Contents, kernel: Kernel) -> NvidiaBuild:
        with IMPORTING:
            from tilewave.backend.nvidia.saved import loaded_nvidia  # noqa: PLC0415  as above

        return loaded_nvidia(contents, self.chip, kernel)

    def passes(self) -> tuple[Pass, ...]:
        with IMPORTING:
            from tilewave.backend.nvidia.build import copying_passes  # noqa: PLC0415  as above

        return copying_passes(self.chip, Places())
