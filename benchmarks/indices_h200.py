"""Rows read and written at indices, on an NVIDIA GPU, beside torch and beside a copy of as many bytes.

    python benchmarks/indices_h200.py [--json FILE]

Each contestant is a CUDA graph of calls on buffers that L2 does not hold; graphs take turns, in a new order each round.
Printed are medians in microseconds, the share of a copy's bandwidth (`Tensor.copy_`), and the ratio to torch (above 1,
ours is faster). Results are compared with torch's first, and a wrong one is never timed.
"""

from __future__ import annotations

import argparse
import json
import random
from functools import partial
from pathlib import Path
from statistics import median

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Indices,
    Memory,
    WorkgroupConstraint,
    atomic_add,
    f16,
    f32,
    i32,
    read,
    sym,
    wave,
    write,
)

G = GLOBAL_ADDRESS_SPACE
T, V, D = sym.T, sym.V, sym.D
ROUNDS, CALLS, BUFFERS = 9, 12, 6
ROWS_OF_TABLES = (
    (65536, 128, 1 << 20),
    (1 << 20, 128, 1 << 21),
    (65536, 1024, 1 << 17),
    (16384, 4096, 1 << 15),
    (8192, 8192, 1 << 14),
)
BLOCKS = ((4, 1024), (16, 256), (8, 128), (16, 128), (32, 128), (1, 2048))
"""Rows and elements of a tile."""
ROWS = [WorkgroupConstraint(T, sym.BLOCK_T, 0), WorkgroupConstraint(D, sym.BLOCK_D, 1)]


@wave(ROWS)
def embedding(ids: Memory[T, G, i32], table: Memory[V, D, G, f16], out: Memory[T, D, G, f16]):
    write(read(table, at={V: read(ids)}), out)


@wave(ROWS)
def scatter(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, D, G, f16], out: Memory[V, D, G, f16]):
    write(read(x), out, at={V: read(slots)})


@wave(ROWS)
def index_add(slots: Memory[T, G, i32], x: Memory[T, D, G, f32], out: Memory[V, D, G, f32]):
    atomic_add(read(x), out, at={V: read(slots)})


@wave([WorkgroupConstraint(T, sym.BLOCK_T, 0)])
def histogram(x: Memory[T, G, i32], out: Memory[V, G, i32]):
    v = read(x)
    atomic_add(v * 0 + 1, out, at={V: v})


def graph_of(torch, calls):
    """Return a function that replays `CALLS` calls, each on the next buffers, and its microseconds a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()

    def timed():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1000 * begin.elapsed_time(end) / CALLS

    return timed


def measured(torch, contestants):
    timed = {name: graph_of(torch, calls) for name, calls in contestants.items()}
    found = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name in random.sample(list(timed), len(timed)):
            found[name].append(timed[name]())
    return {name: median(times) for name, times in found.items()}


def ids(torch, count, end):
    return torch.randint(0, end, (count,), device="cuda", dtype=torch.int32)


def on_each(call, *arrays):
    """Return a call for each of several buffers."""
    return [partial(call, *some) for some in zip(*arrays, strict=True)]


def of_rows(torch, rows, wide, table):
    """Yield embedding and scatter of rows, with several tiles."""
    half = {"device": "cuda", "dtype": torch.float16}
    tables = [torch.randn(table, wide, **half) for _ in range(BUFFERS)]
    xs = [torch.randn(rows, wide, **half) for _ in range(BUFFERS)]
    outs = [torch.empty_like(x) for x in xs]
    given = [ids(torch, rows, table) for _ in tables]
    slots = [torch.randperm(table, device="cuda")[:rows].to(torch.int32) for _ in tables]
    wide_slots, copies = [s.long() for s in slots], on_each(lambda to, x: to.copy_(x), outs, xs)
    for block in (block for block in BLOCKS if block[1] <= wide):
        subs = dict(zip((sym.BLOCK_T, sym.BLOCK_D), block, strict=True))
        read_rows, store_rows = (one.compile(target="sm_90a", subs=subs) for one in (embedding, scatter))
        read_rows(given[0], tables[0], outs[0])
        assert torch.equal(outs[0], tables[0][given[0].long()])
        wanted = tables[1].clone()
        wanted[wide_slots[1]] = xs[1]
        store_rows(slots[1], xs[1], tables[1])
        assert torch.equal(tables[1], wanted)
        theirs = on_each(lambda x, at, to: torch.index_select(x, 0, at, out=to), tables, given, outs)
        mine = on_each(read_rows, given, tables, outs)
        yield f"embedding {rows}x{wide} by {block}", {"ours": mine, "torch": theirs, "copy": copies}
        theirs = on_each(lambda to, at, x: to.index_copy_(0, at, x), tables, wide_slots, xs)
        mine = on_each(store_rows, slots, xs, tables)
        yield f"scatter {rows}x{wide} by {block}", {"ours": mine, "torch": theirs, "copy": copies}


def of_sums(torch, rows=65536, wide=512, table=16384):
    """Yield rows added where others add, with several tiles."""
    xs = [torch.randn(rows, wide, device="cuda") for _ in range(BUFFERS)]
    sums, given = [torch.zeros(table, wide, device="cuda") for _ in xs], [ids(torch, rows, table) for _ in xs]
    for block in ((16, 128), (4, 512), (8, 256)):
        adds = index_add.compile(target="sm_90a", subs=dict(zip((sym.BLOCK_T, sym.BLOCK_D), block, strict=True)))
        mine, theirs = torch.zeros_like(sums[0]), torch.zeros_like(sums[0])
        adds(given[0], xs[0], mine)
        theirs.index_add_(0, given[0], xs[0])
        assert torch.allclose(mine, theirs, atol=1e-3)
        calls = on_each(lambda to, at, x: to.index_add_(0, at, x), sums, given, xs)
        yield f"index_add {rows}x{wide} by {block}", {"ours": on_each(adds, given, xs, sums), "torch": calls}


def of_counts(torch, count, bins):
    """Yield counts of integers."""
    xs = [ids(torch, count, bins) for _ in range(BUFFERS)]
    outs = [torch.zeros(bins, device="cuda", dtype=torch.int32) for _ in xs]
    counts = histogram.compile(target="sm_90a", subs={sym.BLOCK_T: 2048})
    counts(xs[0], outs[0])
    assert torch.equal(outs[0], torch.bincount(xs[0], minlength=bins).int())
    ones, wide = torch.ones(count, device="cuda", dtype=torch.int32), [x.long() for x in xs]
    calls = on_each(lambda to, x: to.scatter_add_(0, x, ones), outs, wide)
    yield f"histogram {count} into {bins}", {"ours": on_each(counts, xs, outs), "torch": calls}


def cases(torch):
    """Yield the name of a case, and the calls of each contestant on several buffers."""
    for rows, wide, table in ROWS_OF_TABLES:
        yield from of_rows(torch, rows, wide, table)
    yield from of_sums(torch)
    for bins in (256, 1 << 16):
        yield from of_counts(torch, 1 << 24, bins)


def main() -> None:
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rows = []
    for name, contestants in cases(torch):
        found = measured(torch, contestants)
        row = {"case": name, **found, "to_torch": found["torch"] / found["ours"]}
        row |= {"of_copy": found["copy"] / found["ours"]} if "copy" in found else {}
        rows.append(row)
        print(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{v:36}" for k, v in row.items()), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
