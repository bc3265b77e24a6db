"""What comparing every index with its array costs, on an NVIDIA GPU: kernels beside the same without the comparison.

    python benchmarks/boundary_rule_h200.py [--rounds N]

The kernels are those of `tilewave.ops` with an index from memory, compiled as there. Those without the
comparison exist in this script alone, are given valid indices only, and must agree with the others bit by bit (sums of
floats in any order apart). Each is a CUDA graph of calls on buffers that take turns. Printed are medians in
microseconds, and the time with the comparison relative to that without it (1: it costs nothing).
"""

from __future__ import annotations

import argparse
import os
import random
from dataclasses import replace
from statistics import median
from unittest.mock import patch

from indices_h200 import graph_of, on_each

from tilewave.ir.types import F16, F32, I32, I64
from tilewave.kernels.caches import cache_tile_for, kv_cache_write_kernel
from tilewave.kernels.counts import bincount_kernel
from tilewave.kernels.indexed import (
    embedding_kernel,
    gather_tile_for,
    index_add_kernel,
    scatter_tile_for,
)
from tilewave.kernels.losses import cross_entropy_kernel
from tilewave.kernels.ragged import permute_rows_kernel
from tilewave.kernels.rows import N, rows_for
from tilewave.lower.gpu.indexed import _Addresses

BUFFERS = 4


def address_alone(self, at):
    """Return a position's address, whether it is in the array or not."""
    wide = [x if kind == "i64" else self.f.value(f"sext {kind} {x} to i64") for kind, x in at]
    offset = self.m.flat(self.place, wide)
    where = self.f.value(f"getelementptr {self.kind}, {self.target.global_pointer} {self.place.pointer}, i64 {offset}")
    return where, self.m.all_of(self.mask)


def with_and_without(kernel, arrays, subs):
    """Return calls of a kernel as it is, and without the comparison, after the first call of each."""
    with_rule = kernel.compile(target="sm_90a", subs=subs)
    with_rule(*arrays)
    with patch.object(_Addresses, "_address", address_alone):
        without = replace(kernel, kept={}).compile(target="sm_90a", subs=subs)
        without(*arrays)
    return with_rule, without


def row_cases(torch, rows, wide, table):
    half = {"device": "cuda", "dtype": torch.float16}
    tables = [torch.randn(table, wide, **half) for _ in range(BUFFERS)]
    xs = [torch.randn(rows, wide, **half) for _ in tables]
    outs, sums = [torch.empty_like(x) for x in xs], [torch.zeros(table, wide, device="cuda") for _ in tables]
    ids = [torch.randint(0, table, (rows,), device="cuda") for _ in tables]
    slots = [torch.randperm(table, device="cuda")[:rows, None] for _ in tables]
    gather, scatter = (choose("sm_90a", wide, F16) for choose in (gather_tile_for, scatter_tile_for))
    yield f"embedding {rows}x{wide}", embedding_kernel(gather, F16, I64, F16), (tables, ids, outs), -1, {}
    yield f"permute_rows {rows}x{wide}", permute_rows_kernel(scatter, F16, I64, F16), (xs, slots, tables), -1, {}
    adds = index_add_kernel(scatter_tile_for("sm_90a", wide, F32), F16, I64, F32)
    yield f"index_add {rows}x{wide}", adds, (xs, ids, sums), None, {}


def cache_cases(torch, tokens, heads, elements):
    half, places = {"device": "cuda", "dtype": torch.float16}, 16
    pages = tokens // places * 2
    xs = [torch.randn(tokens, heads, elements, **half) for _ in range(BUFFERS)]
    caches = [torch.zeros(pages, places, heads, elements, **half) for _ in xs]
    slots = [torch.randperm(pages * places, device="cuda")[:tokens] for _ in xs]
    kernel = kv_cache_write_kernel(cache_tile_for(heads, elements, F16), F16, I64, F16)
    yield f"kv_cache_write {tokens}x{heads}x{elements}", kernel, (xs, slots, caches), -1, {}


def loss_cases(torch, rows, columns):
    xs = [torch.randn(rows, columns, device="cuda", dtype=torch.float16) for _ in range(BUFFERS)]
    labels = [torch.randint(0, columns, (rows,), device="cuda") for _ in xs]
    losses = [torch.empty(rows, device="cuda") for _ in xs]
    kernel = cross_entropy_kernel(rows_for("sm_90a", columns, F16), F16, I64, F32)
    yield f"cross_entropy {rows}x{columns}", kernel, (xs, labels, losses), -1, {N: columns}


def count_cases(torch, count, bins):
    xs = [torch.randint(0, bins, (count,), device="cuda", dtype=torch.int32) for _ in range(BUFFERS)]
    totals = [torch.zeros(bins, device="cuda", dtype=torch.int32) for _ in xs]
    yield f"bincount {count} into {bins}", bincount_kernel(I32, I32), (xs, totals), None, {}


def cases(torch):
    """Yield the name of a case, its kernel, buffers for each parameter, which must be equal bit by bit, and sizes."""
    for rows, wide, table in ((65536, 128, 1 << 19), (16384, 4096, 1 << 15)):
        yield from row_cases(torch, rows, wide, table)
    yield from cache_cases(torch, 16384, 8, 128)
    for rows, columns in ((4096, 32000), (1024, 131072)):
        yield from loss_cases(torch, rows, columns)
    for bins in (256, 1 << 16):
        yield from count_cases(torch, 1 << 24, bins)


def main() -> None:
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    os.environ["TILEWAVE_CACHE_DIR"] = "off"  # the cache knows kernels by what is compiled, not by this script's patch
    for name, kernel, buffers, compared, subs in cases(torch):
        first = [some[0] for some in buffers]
        calls = with_and_without(kernel, first, subs)
        if compared is not None:
            results = []
            for call in calls:
                first[compared].zero_()
                call(*first)
                results.append(first[compared].clone())
            assert torch.equal(*results), name
        timed = {
            n: graph_of(torch, on_each(call, *buffers)) for n, call in zip(("with", "without"), calls, strict=True)
        }
        found: dict[str, list[float]] = {n: [] for n in timed}
        for _ in range(rounds):
            for n in random.sample(list(timed), len(timed)):
                found[n].append(timed[n]())
        t = {n: median(times) for n, times in found.items()}
        shown = " ".join(f"{n}={us:9.2f}" for n, us in t.items())
        print(f"{name:32} {shown} costs={t['with'] / t['without']:.3f}", flush=True)


if __name__ == "__main__":
    main()
