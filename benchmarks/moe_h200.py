"""A whole mixture of experts on an NVIDIA GPU through `ops.moe`, beside the same layer in torch (bf16).

    python benchmarks/moe_h200.py [--json FILE] [--only TEXT] [--tiles] [--parts] [--compiled]

torch's layer is softmax, topk, a stable sort, index_select, `_grouped_mm`, silu(gate) * up, `_grouped_mm`, and a sum
over the experts of a token: by index_add (`torch add`), or by a gather and a batched product (`torch gather`);
`--compiled` adds the second one by torch.compile. Results are compared with float64 first, for some tokens, and for all
with torch's; then tokens alone with tokens among others, bit by bit. A wrong result is never timed.

Each contestant is a CUDA graph of one call; graphs take turns, in a new order each round. Printed are medians in
microseconds, half the distance of the quartiles, and the ratio to the quickest of torch's (above 1, ours is faster);
then the launches of our call, each in a graph of its own, and the bytes of its arrays per second. `--tiles` times both
products with other tiles, `--parts` the other launches.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F

from tilewave import bf16, f32, i32, ops
from tilewave.kernels.counting_sort import block_counts_kernel, places_kernel
from tilewave.kernels.grouped import GroupedForm, GroupedTile, gated_product_kernel, invariant_product_kernel
from tilewave.kernels.indexed import RowTile
from tilewave.kernels.ragged import permute_rows_kernel, unpermute_rows_kernel
from tilewave.kernels.rows import Rows
from tilewave.kernels.selections import Routing, route_tokens_kernel
from tilewave.ops import experts
from tilewave.torch.tensors import LIBRARY

ROUNDS, WARM = 15, 3
CASES = {
    "128 experts, top 8, FFN 768": (32768, 2048, 768, 128, 8, 0.0),
    "512 experts, top 10, FFN 512": (32768, 2048, 512, 512, 10, 0.0),
    "128 experts, top 8, FFN 768, skewed": (32768, 2048, 768, 128, 8, 2.0),
    "128 experts, top 8, FFN 768, 64 tokens": (64, 2048, 768, 128, 8, 0.0),
}
"""Tokens, their numbers, an expert's hidden numbers, experts, a token's experts, and how far experts' logits differ."""
TILES = [(64, 128, 64), (128, 64, 64), (128, 96, 64), (128, 128, 64), (128, 128, 128), (256, 64, 64), (256, 128, 64)]
UNPERMUTED = [(1, 512), (1, 1024), (1, 2048), (2, 512), (2, 1024), (4, 256)]
PLAIN_TILES = [*TILES, (128, 192, 64), (128, 256, 64)]
Call = Callable[[], Any]


def layer_of(case: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return random tokens, logits and matrices."""
    tokens, hidden, narrow, count, _, apart = case
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    x, w1 = torch.randn(tokens, hidden, **half), torch.randn(count, 2 * narrow, hidden, **half) / hidden**0.5
    w2 = torch.randn(count, hidden, narrow, **half) / narrow**0.5
    logits = torch.randn(tokens, count, device="cuda") + apart * torch.randn(count, device="cuda")
    return x, logits, w1, w2


# torch's layer ----------------------------------------------------------------------------------------------------


def sorted_hidden(x: Any, logits: Any, w1: Any, w2: Any, top_k: int) -> tuple[Any, ...]:
    """Return the rows of all experts after both products, the order that sorted them, and the weights of tokens."""
    weights, chosen = torch.softmax(logits, -1).topk(top_k)
    weights = weights / weights.sum(-1, keepdim=True)
    found, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(found, torch.arange(len(w1), device=x.device), right=True).to(torch.int32)
    both = torch._grouped_mm(x.index_select(0, order // top_k), w1.mT, offs=ends)
    gate, up = both.chunk(2, -1)
    return torch._grouped_mm(F.silu(gate) * up, w2.mT, offs=ends), order, weights


def by_index_add(x: Any, logits: Any, w1: Any, w2: Any, top_k: int) -> Any:
    rows, order, weights = sorted_hidden(x, logits, w1, w2, top_k)
    rows = rows * weights.flatten()[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add_(0, order // top_k, rows)


def by_gather(x: Any, logits: Any, w1: Any, w2: Any, top_k: int) -> Any:
    rows, order, weights = sorted_hidden(x, logits, w1, w2, top_k)
    slots = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    of_tokens = rows.index_select(0, slots).view(len(x), top_k, -1)
    return torch.bmm(weights[:, None].to(rows.dtype), of_tokens)[:, 0]


def in_float64(x: Any, logits: Any, w1: Any, w2: Any, top_k: int) -> Any:
    """Return the layer of a few tokens, one by one."""
    found = torch.zeros_like(x, dtype=torch.float64)
    weights, chosen = torch.softmax(logits.double(), -1).topk(top_k)
    weights /= weights.sum(-1, keepdim=True)
    for t in range(len(x)):
        for weight, expert in zip(weights[t], chosen[t].tolist(), strict=True):
            gate, up = (w1[expert].double() @ x[t].double()).chunk(2)
            found[t] += weight * (w2[expert].double() @ (F.silu(gate) * up))
    return found


# checks ---------------------------------------------------------------------------------------------------------------


def apart(found: Any, want: Any) -> float:
    return float((found.double() - want.double()).norm() / want.double().norm())


def want_right(layer: tuple[Any, ...], top_k: int) -> dict[str, float]:
    """Raise unless our result is right, and has the same bits alone and among others; return how far it is off."""
    x, logits, w1, w2 = layer
    found = ops.moe(*layer, top_k)
    few = torch.randperm(len(x), device="cuda")[:32]
    errors = {"float64": apart(found[few], in_float64(x[few], logits[few], w1, w2, top_k))}
    errors["torch"] = apart(found, by_gather(*layer, top_k))
    assert errors["float64"] < 2**-7 and errors["torch"] < 2**-7, errors
    assert not found.isnan().any()
    for first, count in ((0, 1), (5, 1), (17, 16), (1, 47), (0, len(x) - 3)):
        part = slice(first, first + count)
        assert torch.equal(ops.moe(x[part], logits[part], w1, w2, top_k), found[part]), f"other bits in {part}"
    assert torch.equal(ops.moe(*layer, top_k), found), "other bits in another run"
    return errors


# times ----------------------------------------------------------------------------------------------------------------


def graph_of(call: Call) -> Any:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def measured(calls: dict[str, Call]) -> dict[str, tuple[float, float]]:
    """Return the median and half the distance of the quartiles of each call, in microseconds."""
    graphs = {name: graph_of(call) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + WARM):
        for name in random.sample(list(graphs), len(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn >= WARM:
                found[name].append(1000 * begin.elapsed_time(end))
    return {name: (median(t), (quantiles(t)[2] - quantiles(t)[0]) / 2) for name, t in found.items()}


def launches_of(layer: tuple[Any, ...], top_k: int) -> list[Any]:
    """Return the launches of a call, which have run, so that each finds its inputs."""
    work = experts.moe.work(LIBRARY, *layer, None, top_k, Routing(), "silu")
    work.run()
    torch.cuda.synchronize()
    return list(work.launches)


def by_launch(layer: tuple[Any, ...], top_k: int) -> tuple[dict[str, tuple[float, float]], dict[str, int]]:
    """Return the time of each launch, and the bytes of its arrays, each once."""
    launches = {f"{i} {one.kernel.name}": one for i, one in enumerate(launches_of(layer, top_k))}
    moved = {name: sum(a.numel() * a.element_size() for a in one.arguments) for name, one in launches.items()}
    return measured(launches), moved


def by_tile(layer: tuple[Any, ...], top_k: int) -> dict[str, tuple[float, float]]:
    """Return the time of both products for several tiles; one that does not compile is left out."""
    launches = {one.kernel.name: one for one in launches_of(layer, top_k)}
    made = {"gated_product": (gated_product_kernel, "silu", TILES)}
    made["grouped_product"] = invariant_product_kernel, "", PLAIN_TILES
    calls: dict[str, Call] = {}
    for name, (make, activation, tiles) in made.items():
        for tile in tiles:
            kernel = make(GroupedTile(*tile), GroupedForm(bf16, bf16, i32, activation=activation))
            call = partial(kernel, *launches[name].arguments)
            try:
                call()
            except Exception as error:
                print(f"  {name} {tile}: {str(error).splitlines()[0]}")
                continue
            calls[f"{name} {'x'.join(map(str, tile))}"] = call
    return measured(calls)


def show(times: dict[str, tuple[float, float]], moved: dict[str, int] | None = None) -> None:
    for of, (time, spread) in times.items():
        speed = f"{moved[of] / time / 1e6:6.2f} TB/s of its arrays" if moved else ""
        print(f"  {of:36} {time:9.1f} µs ± {spread:5.1f} {speed}", flush=True)


def by_part(layer: tuple[Any, ...], top_k: int) -> dict[str, tuple[float, float]]:
    """Return the times of launches around the products for other tiles."""
    launches = {one.kernel.name: one.arguments for one in launches_of(layer, top_k)}
    made = {
        **{f"block_counts {j}x{v}": block_counts_kernel(i32, j, v) for j in (8, 16, 32) for v in (64, 128, 256)},
        **{f"places {p}x{j}": places_kernel(i32, p, j) for p in (128, 256) for j in (8, 16, 32, 64)},
        **{
            f"unpermute_rows {rows}x{columns}": unpermute_rows_kernel(RowTile(rows, columns), bf16, i32, bf16, f32)
            for rows, columns in UNPERMUTED
        },
        **{f"permute_rows {c}": permute_rows_kernel(RowTile(1, c), bf16, i32, bf16) for c in (512, 1024, 2048)},
        **{
            f"route_tokens {rows}": route_tokens_kernel(Rows(rows), f32, f32, i32, top_k, Routing())
            for rows in (1, 2, 4, 8, 16)
        },
    }
    return measured({name: partial(kernel, *launches[kernel.name]) for name, kernel in made.items()})


def reported(name: str, case: tuple[Any, ...], chosen: argparse.Namespace) -> dict[str, Any]:
    layer, (tokens, hidden, narrow, _, top_k, _) = layer_of(case), case
    errors = want_right(layer, top_k)
    calls = {"ours": partial(ops.moe, *layer, top_k), "torch add": partial(by_index_add, *layer, top_k)}
    calls["torch gather"] = partial(by_gather, *layer, top_k)
    if chosen.compiled:
        calls["torch compiled"] = partial(torch.compile(by_gather, dynamic=False), *layer, top_k)
    found = measured(calls)
    best = min(time for of, (time, _) in found.items() if of != "ours")
    tflops = 6e-6 * tokens * top_k * hidden * narrow / found["ours"][0]
    said = f"ratio {best / found['ours'][0]:.3f}, {tflops:.0f} TFLOP/s, off by {errors['float64']:.1e}"
    print(f"{name}: {said}, same bits alone and among others", flush=True)
    show(found)
    parts, moved = by_launch(layer, top_k)
    show(parts, moved)
    tiles = by_tile(layer, top_k) if chosen.tiles else {}
    show(tiles)
    if chosen.parts:
        show(by_part(layer, top_k))
    return {"errors": errors, "layer": found, "launches": parts, "tiles": tiles, "ratio": best / found["ours"][0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    chosen = parser.parse_args()
    found = {name: reported(name, case, chosen) for name, case in CASES.items() if chosen.only in name}
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
