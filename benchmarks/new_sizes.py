"""What a call with sizes that a kernel has not seen costs before it runs: proved for every size, or looked at.

    python benchmarks/new_sizes.py

Printed are medians over different sizes of each grid: milliseconds that pass until the schedule is known to be right,
for a GEMM in a named order, and with a formula of the author's own.
A set of sizes that was seen before costs a lookup.
"""

from __future__ import annotations

import statistics
import time

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    WORKGROUP_0,
    WORKGROUP_1,
    Memory,
    Register,
    ReorderingConstraint,
    TilingConstraint,
    WaveCompileOptions,
    WorkgroupConstraint,
    WorkgroupMapping,
    f16,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    wave_compile,
    write,
)
from tilewave.compiled import Compiled
from tilewave.lang.constraints import Constraint

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILE = 128
GRIDS = (1, 16, 64, 256)
SIZES_OF_EACH = 15


def gemm(*order: Constraint) -> Compiled:
    tiles = [WorkgroupConstraint(M, TILE, 0), WorkgroupConstraint(N, TILE, 1), TilingConstraint(K, 64)]

    @wave([*tiles, *order])
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):  # type: ignore[valid-type]
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):  # type: ignore[no-untyped-def]
            return mma(read(a), read(b), acc)

        write(total, c)

    return wave_compile(WaveCompileOptions(target="numpy"), gemm)


KERNELS = {
    "grouped(8), proved": lambda: gemm(WorkgroupMapping("grouped(8)")),
    "a formula, looked at": lambda: gemm(ReorderingConstraint(WORKGROUP_1, 1), ReorderingConstraint(WORKGROUP_0, 0)),
}


def milliseconds(kernel: Compiled, side: int) -> float:
    """Return the milliseconds that a new set of sizes takes."""
    found = []
    for k in range(1, SIZES_OF_EACH + 1):
        sized = kernel.sizes.of_values({"M": TILE * side, "N": TILE * side, "K": 64 * k})
        begin = time.perf_counter()
        kernel.verdicts.want(sized.numbers, sized.values, sized.parameters)
        found.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(found)


def main() -> None:
    print(f"{'':24}" + "".join(f"{f'{n}x{n} tiles':>16}" for n in GRIDS))
    for name, make in KERNELS.items():
        kernel = make()
        print(f"{name:24}" + "".join(f"{milliseconds(kernel, n):13.3f} ms" for n in GRIDS))


if __name__ == "__main__":
    main()
