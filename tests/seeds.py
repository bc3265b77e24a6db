"""The kernels of Wave's documents, as the examples hold them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import gemm
import kernels
import persistent_gemm
import persistent_gemm_l2
import persistent_gemm_xcd
import reordered_gemm

from tilewave.lang.kernel import WaveKernel


@dataclass(frozen=True)
class Seed:
    module: ModuleType
    kernel: WaveKernel

    def subs(self, m, n, k, **more):
        return self.module.subs(m, n, k, **more)

    def compile(self, m, n, k, **more):
        return kernels.compiled(self.kernel, subs=self.subs(m, n, k, **more))

    def __repr__(self):
        return self.module.__name__


SEEDS = [
    Seed(gemm, gemm.gemm),
    Seed(reordered_gemm, reordered_gemm.gemm),
    Seed(persistent_gemm, persistent_gemm.persistent_gemm),
    Seed(persistent_gemm_l2, persistent_gemm_l2.persistent_gemm),
    Seed(persistent_gemm_xcd, persistent_gemm_xcd.persistent_gemm),
]
