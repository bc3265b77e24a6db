"""`make demo`: the reordered and the persistent GEMM of Wave's documents: their tile orders, a run, and the check."""

import time

import numpy as np
import persistent_gemm_xcd
import reordered_gemm
from rich.console import Console
from rich.table import Table

from tilewave import WaveCompileOptions, wave_compile
from tilewave.errors import CoverageError

M, N, K = 1024, 2048, 512
console = Console()


def show_order(schedule, title):
    """The workgroup of each tile, and its round where workgroups take several."""
    table = Table(title=title, show_lines=False)
    table.add_column("M \\ N", justify="right", style="dim")
    for column in range(schedule.grid[1]):
        table.add_column(str(column), justify="right")
    workgroups, rounds = schedule.table(), schedule.rounds()
    for row in range(schedule.grid[0]):
        cells = zip(workgroups[row], rounds[row], strict=True)
        table.add_row(str(row), *(f"{w}{'′' * r}" for w, r in cells))
    console.print(table)


def check(compiled):
    """Run on random data into a poisoned output; hold every element against float64 and the bound for f32 sums."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (N, K)))
    c = np.full((M, N), np.nan, np.float32)
    start = time.perf_counter()
    compiled.interpret(a, b, c)
    seconds = time.perf_counter() - start
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(c - wide_a @ wide_b.T)
    unit = np.finfo(np.float32).eps / 2
    bound = (K + 1) * unit * (np.abs(wide_a) @ np.abs(wide_b).T)
    wrong = int((~(error <= bound)).sum())
    console.print(f"  {M}x{N}x{K} f16 → f32 in the interpreter: {seconds:.2f} s")
    console.print(f"  against float64: largest error {error.max():.2e}, bound {bound.min():.2e} … {bound.max():.2e}")
    console.print(f"  elements outside the bound: {wrong} / {c.size}\n")
    assert not wrong


def main():
    reordered = wave_compile(WaveCompileOptions(subs=reordered_gemm.subs(M, N, K, group_size_m=2)), reordered_gemm.gemm)
    show_order(reordered.schedule, "Reordered GEMM: the workgroup of each 128x256 tile (8 XCDs, GROUP_SIZE_M = 2)")
    check(reordered)

    sizes = persistent_gemm_xcd.subs(M, N, K, num_ctas=32, chunk_size=2)
    persistent = wave_compile(WaveCompileOptions(subs=sizes), persistent_gemm_xcd.persistent_gemm)
    show_order(persistent.schedule, "Persistent GEMM: 32 workgroups, two tiles each (′ = second round)")
    check(persistent)

    console.print("The same persistent kernel with 20 workgroups would lose tiles. It does not compile:")
    try:
        sizes = persistent_gemm_xcd.subs(M, N, K, num_ctas=20, chunk_size=2)
        wave_compile(WaveCompileOptions(subs=sizes), persistent_gemm_xcd.persistent_gemm)
    except CoverageError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
