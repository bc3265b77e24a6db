"""Count the instructions in the K loop of AMD GEMM code: with fixed and dynamic shapes, or in all four layouts.

python benchmarks/amd_kloop.py [--out f16] [--layouts] [--large]
"""

import argparse
from itertools import product

import tilewave as tw
from tilewave import GLOBAL_ADDRESS_SPACE, Memory, Register, bf16, cast, f16, f32, iterate, mma, read, sym, write
from tilewave.emulator.chips import UNITS

M, N, K = sym.M, sym.N, sym.K
BLOCK_M, BLOCK_N, BLOCK_K = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
GLOBAL = GLOBAL_ADDRESS_SPACE
SIZE = 1024
SIZES = {"fixed": {M: SIZE, N: SIZE, K: SIZE}, " open": {}}
RESULTS = {"f32": (f16, f32), "f16": (f16, f16), "bf16": (bf16, bf16)}
"""The dtypes of the operands and of C."""
ROWS = [
    ("gfx942", (128, 256, 64), (2, 4)),
    ("gfx942", (128, 256, 64), (4, 2)),
    ("gfx942", (128, 256, 64), (2, 2)),
    ("gfx942", (256, 256, 64), (4, 2)),
    ("gfx942", (256, 256, 64), (2, 2)),
    ("gfx950", (256, 256, 64), (4, 2)),
    ("gfx950", (256, 256, 64), (2, 2)),
]
LARGE = {
    ("gfx942", f16): tw.MMAType.F32_32x32x8_F16,
    ("gfx942", bf16): tw.MMAType.F32_32x32x8_BF16,
    ("gfx950", f16): tw.MMAType.F32_32x32x16_F16,
    ("gfx950", bf16): tw.MMAType.F32_32x32x16_BF16,
}
"""The instructions of 32x32 sums, which do the work of two of 16x16 in twice the time."""
LAYOUTS = {"NT": ((M, K), (N, K)), "NN": ((M, K), (K, N)), "TT": ((K, M), (N, K)), "TN": ((K, M), (K, N))}
"""Layouts as BLAS names them: whether A is [M, K] or transposed, and B [K, N] or transposed."""
LAYOUT_ROWS = [
    (chip, tile, waves)
    for chip in ("gfx942", "gfx950")
    for tile, waves in (
        ((128, 256, 64), (2, 4)),
        ((128, 256, 64), (2, 2)),
        ((256, 256, 64), (4, 2)),
        ((256, 256, 64), (2, 4)),
    )
]


def compiled(chip, tile, waves, dtype, out, sizes, layout="NT", wish=None):
    a_dims, b_dims = LAYOUTS[layout]

    @tw.wave([
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(N, BLOCK_N, 1),
        tw.TilingConstraint(K, BLOCK_K),
        tw.WaveConstraint(M, BLOCK_M / waves[0]),
        tw.WaveConstraint(N, BLOCK_N / waves[1]),
        *([tw.HardwareConstraint(mma_type=wish)] if wish else []),
    ])  # fmt: skip
    def gemm(a: Memory[(*a_dims, GLOBAL, dtype)], b: Memory[(*b_dims, GLOBAL, dtype)], c: Memory[M, N, GLOBAL, out]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total if out == f32 else cast(total, out), c)

    blocks = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    options = tw.WaveCompileOptions(subs={**sizes, **blocks}, target=chip, schedule=tw.SchedulingType.PREFETCH)
    return tw.wave_compile(options, gemm)


HEADS = "per matrix  per 16 cycles  gap  ÷ next  vector  moves  nops  spills  conflicts  registers  stores"
"""Per 16 cycles of the matrix unit: what an instruction of 16x16 sums takes, and half of what one of 32x32 does."""


def per_16_cycles(s):
    return s.instructions / (s.matrix_cycles * UNITS / s.waves / 16)


def print_row(chip, tile, waves, name, s, more=""):
    print(
        f"{chip}  {'x'.join(map(str, tile)):10}  {waves[0]}x{waves[1]}    {name}  {s.instructions_per_matrix:9.2f}"
        f"  {per_16_cycles(s):13.2f}  {s.longest_gap:4} {s.matrix_over_next:7.2f} {s.vector_instructions:7}"
        f" {s.accumulator_moves:6} {s.nops:5}  {s.spills:6}  {s.bank_conflict_cycles:9g}  {s.registers:9}"
        f"  {max(s.store_bytes)} B{more}"
    )


def print_sizes(dtype, out, wishes):
    print(f"{dtype} in, f32 sums, {out} out, {SIZE}³ or any sizes, PREFETCH; per wave and step")
    print(f"chip    tile        waves  sizes  {HEADS}")
    for (chip, tile, waves), (name, sizes) in product(ROWS, SIZES.items()):
        wish = wishes.get((chip, dtype))
        found = compiled(chip, tile, waves, dtype, out, sizes, wish=wish).loop_statistics
        print_row(chip, tile, waves, name, found)


def print_layouts(dtype, out, wishes):
    print(f"{dtype} in, f32 sums, {out} out, {SIZE}³, PREFETCH; per wave and step")
    print(f"chip    tile        waves  layout {HEADS}  of NT")
    for chip, tile, waves in LAYOUT_ROWS:
        asked = chip, tile, waves, dtype, out, SIZES["fixed"]
        wish = wishes.get((chip, dtype))
        found = {name: compiled(*asked, name, wish).loop_statistics for name in LAYOUTS}
        for name, s in found.items():
            share = s.instructions_per_matrix / found["NT"].instructions_per_matrix
            print_row(chip, tile, waves, f"{name:5}", s, f"  {share:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", choices=RESULTS, default="f32", help="the dtype of C (default: f32)")
    parser.add_argument("--layouts", action="store_true", help="A and B in all four layouts, sizes fixed")
    parser.add_argument("--large", action="store_true", help="with the instructions of 32x32 sums")
    asked = parser.parse_args()
    (print_layouts if asked.layouts else print_sizes)(*RESULTS[asked.out], LARGE if asked.large else {})


if __name__ == "__main__":
    main()
