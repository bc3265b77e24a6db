"""Count the instructions in the loop over keys of attention's AMD machine code: python benchmarks/amd_attention.py."""

import sys
import warnings
from itertools import product
from pathlib import Path

import tilewave as tw

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from attention import BLOCK_K2, BLOCK_M, K1, K2, B, M, N, attention

BLOCKS = {BLOCK_M: 128, BLOCK_K2: 64}
KEYS = 1024
LAYOUTS = {"[N, K2]": (N, K2), "[K2, N]": (K2, N)}
INSTRUCTIONS = {
    "gfx942": (tw.MMAType.F32_16x16x16_F16, tw.MMAType.F32_32x32x8_F16),
    "gfx950": (tw.MMAType.F32_16x16x32_F16, tw.MMAType.F32_32x32x8_F16),
}


def counted(chip, head, v_dims, instruction):
    kernel = attention(head, v_dims=v_dims)
    asked = tw.wave([*kernel.constraints, tw.HardwareConstraint(mma_type=instruction)])(kernel.function)
    sizes = {B: 1, M: KEYS, K2: KEYS, K1: head, N: head}
    options = tw.WaveCompileOptions(subs={**BLOCKS, **sizes}, target=chip, schedule=tw.SchedulingType.PREFETCH)
    return tw.wave_compile(options, asked).loop_statistics


def main():
    warnings.simplefilter("ignore")
    print(
        "chip    head  V        instruction        per matrix  matrix  vector  registers  spills  conflicts  barriers"
    )
    for (chip, instructions), head, (name, v_dims) in product(INSTRUCTIONS.items(), (64, 128), LAYOUTS.items()):
        for instruction in instructions:
            s = counted(chip, head, v_dims, instruction)
            print(
                f"{chip}  {head:4}  {name}  {instruction.name:17}  {s.instructions / s.matrix_instructions:10.2f}"
                f"  {s.matrix_instructions:6}  {s.vector_instructions:6}  {s.registers:9}  {s.spills:6}"
                f"  {s.bank_conflict_cycles:9.0f}  {s.barriers:8}"
            )


if __name__ == "__main__":
    main()
