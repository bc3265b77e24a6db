"""Where attention's bytes come from, by the order of its tiles, simulated: python benchmarks/attention_traffic.py.

    python benchmarks/attention_traffic.py [--heads 64] [--seq 4096] [--head 128] [--machines MI300X,H200]
    ncu --kernel-name attention --clock-control none --metrics dram__bytes_read.sum,lts__t_sectors_op_read.sum \\
        python benchmarks/attention_traffic.py --launch --heads 16 --seq 16384

Every block of queries reads all keys and values of its head (up to its own rows where it is causal), so the L2 decides:
blocks of one head must meet there. On an MI300X each XCD has its own. Causal rows take differently long: `even` is how
soon the work could be done if it were shared evenly, as a share of when the last unit is done. `--launch` predicts
nothing, and runs each order once on the GPU at hand, for Nsight Compute to count; that needs torch.
"""

import argparse
import math

import numpy as np

import tilewave as tw
from tilewave import GLOBAL_ADDRESS_SPACE as GLOBAL
from tilewave import Memory, Register, f16, f32, first_index, iterate, mma, read, reciprocal, sym, write
from tilewave.machine import find
from tilewave.mapping import Causal, Grid, balance
from tilewave.sim import simulate

B, M, N, K1, K2, BLOCK_M = sym.B, sym.M, sym.N, sym.K1, sym.K2, sym.BLOCK_M
ORDERS = (
    "linear()",
    'linear(along="n")',
    "xcd_contiguous(8)",
    'last_first() >> linear(along="n")',
    "xcd_contiguous(8) >> last_first()",
    "xcd_contiguous(8) >> paired()",
)
BLOCK_QUERIES, BLOCK_KEYS = 128, 64


def attention(head, order, is_causal):
    scale = math.log2(math.e) / math.sqrt(head)

    @tw.wave([
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(B, 1, 1),
        tw.TilingConstraint(K2, BLOCK_KEYS),
        tw.WorkgroupMapping(order),
    ])  # fmt: skip
    def attention(
        q: Memory[B, M, K1, GLOBAL, f16],
        k: Memory[B, K2, K1, GLOBAL, f16],
        v: Memory[B, N, K2, GLOBAL, f16],
        o: Memory[B, M, N, GLOBAL, f16],
    ):
        queries = read(q)
        begin = [Register[B, M, f32](-1e30), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)]

        @iterate(K2, init_args=begin, stop=first_index(M) + BLOCK_M if is_causal else None)
        def step(old_max, old_sum, acc):
            scores = mma(queries, read(k), Register[B, M, K2, f32](0.0)) * scale
            new_max = scores.max(dim=K2, acc=old_max)
            p, shrink = tw.exp2(scores - new_max), tw.exp2(old_max - new_max)
            return new_max, p.sum(dim=K2, acc=old_sum * shrink), mma(tw.cast(p, f16), read(v), acc * shrink)

        _, total, weighted = step
        write(tw.cast(weighted * reciprocal(total), f16), o)

    return attention


def even(order, grid, machine, is_causal):
    """How soon the work could be done, as a share of when it is; `machine` has as many units as run at once."""
    chip = find(machine)
    costs = Causal(BLOCK_QUERIES, BLOCK_KEYS).costs(grid) if is_causal else np.ones((grid.rows, grid.cols), int)
    found = balance(order, grid, costs, chip.xcds, chip.units)
    return found.soonest / found.ends


def launch(sizes, orders):
    """Each once, in this order."""
    import torch  # noqa: PLC0415 - predicting does not need torch

    (heads, seq, head), options = (sizes[s] for s in (B, M, K1)), {"subs": sizes, "target": "sm_90a"}
    q, k, o = (torch.randn(heads, seq, head, device="cuda").half() for _ in range(3))
    v = torch.randn(heads, head, seq, device="cuda").half()
    for is_causal, order in orders:
        kernel = tw.wave_compile(tw.WaveCompileOptions(**options), attention(head, order, is_causal))
        kernel(q, k, v, o)
        torch.cuda.synchronize()
        print(f"causal: {is_causal}, {order}", flush=True)


def predict(options, sizes, masks):
    print(f"{options.heads} heads of {options.head}, sequences of {options.seq}, blocks of 128 queries, f16")
    print("machine  causal  order                                L2 hit  HBM reads, MB  even")
    grid = Grid(-(-options.seq // BLOCK_QUERIES), options.heads)
    for machine in options.machines.split(","):
        for is_causal in masks:
            for order in ORDERS:
                kernel = attention(options.head, order, is_causal)
                compiled = tw.wave_compile(tw.WaveCompileOptions(subs=sizes, target="numpy"), kernel)
                found = simulate(compiled, machine)
                read_mb = found.hbm_read_bytes / 1e6
                row = f"{machine:7}  {is_causal!s:6}  {order:35}  {found.l2_hit:6.3f}  {read_mb:13.0f}"
                print(f"{row}  {even(order, grid, machine, is_causal):4.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Simulated traffic of attention by the order of its tiles.")
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--machines", default="MI300X,H200")
    parser.add_argument("--causal", action="store_true", help="causal attention alone")
    parser.add_argument("--launch", action="store_true", help="run each order once on this GPU")
    options = parser.parse_args()
    sizes = {B: options.heads, M: options.seq, K2: options.seq, K1: options.head, N: options.head}
    sizes[BLOCK_M] = BLOCK_QUERIES
    masks = (True,) if options.causal else (False, True)
    if options.launch:
        launch(sizes, [(is_causal, order) for is_causal in masks for order in ORDERS])
    else:
        predict(options, sizes, masks)


if __name__ == "__main__":
    main()
