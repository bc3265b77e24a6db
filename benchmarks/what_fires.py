"""Count on how many kernels of a corpus each pass changes anything, for each target.

    python benchmarks/what_fires.py                      # all targets
    python benchmarks/what_fires.py --target sm_90a
    python benchmarks/what_fires.py --json build/fires.json

The corpus is that of `machine_code.py`, mostly of small ragged sizes, and full-size kernels: products in all layouts,
with prefetching on AMD, on small grids and with unaligned rows, products of groups of rows, attention and its gradient,
sums at indices, and rows of 1,000 to 65,536 elements. A pass that changes none is a candidate for deletion, and one
that changes a few for a look at what it earns there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from machine_code import GPUS, TARGETS, Case, attending, cases, compiled, multiplying
from rich.progress import track

from tilewave import SchedulingType, bf16, f16, f32, i8, i32, i64, kernels, sym
from tilewave.kernels import AttentionTile, Heads, Rows, Scores
from tilewave.kernels.attention_fused_backward import Adding, attention_fused_backward_kernel
from tilewave.kernels.attention_gradients import attention_keys_backward_kernel
from tilewave.kernels.attentions import H_KV, K2
from tilewave.kernels.grouped import (
    GroupedForm,
    GroupedSumForm,
    GroupedTile,
    gated_product_kernel,
    grouped_product_kernel,
    grouped_sum_kernel,
)
from tilewave.kernels.indexed import RowTile, index_add_kernel
from tilewave.pipeline.runner import Step

AMD, HOPPER = GPUS[:2], GPUS[2:]
LAYOUTS = ("nt", "nn", "tn", "tt")
EDGES = ((128, 256, 64), (128, 128, 32), (64, 64, 64))
"""Tiles of products."""
GROUPED = GroupedTile(64, 128, 64), GroupedTile(16, 128, 64), GroupedTile(64, 256, 64)
"""Tiles of products of groups of rows."""
ATTENDED = ({sym.M: 4096, K2: 4096}, {sym.M: 1000, K2: 3001}, {sym.M: 1, K2: 8192})

Count = dict[str, Counter[str]]


def products() -> Iterator[Case]:
    """Yield full-size products."""
    prefetching = {"schedule": SchedulingType.PREFETCH, "num_stages": 2}
    for layout in LAYOUTS:
        for dtype, tile in zip((f16, bf16, i8), EDGES, strict=True):
            loaded_ahead = multiplying(dtype, None, (4096,) * 3, targets=AMD, layout=layout, tile=(*tile[:2], 32))
            yield replace(loaded_ahead, options=prefetching)
            yield multiplying(dtype, None, (512, 4096, 8192), targets=HOPPER, layout=layout, tile=tile)
        yield multiplying(f16, f16, (4095, 4097, 2049), targets=HOPPER, layout=layout, tile=(128, 128, 64))
        yield multiplying(f16, f16, (16, 8192, 4096), targets=HOPPER, layout=layout, tile=(16, 128, 64))
    for shape in ((4096, 4096, 4096), (384, 8192, 8192), (8192, 8192, 1024)):
        for workgroups in (None, 132):
            yield multiplying(f16, f16, shape, targets=HOPPER, tile=(128, 256, 64), workgroups=workgroups)


def attention() -> Iterator[Case]:
    """Yield attention with heads of 64, some of dynamic sizes."""
    for sizes in ATTENDED:
        for asked in ({}, {"causal": True}, {"causal": True, "window": 512}, {"soft_cap": 20.0}):
            yield attending(sizes, (128, 128, 8), **asked)
            yield attending(sizes, (64, 64, 4), **asked)
    yield replace(attending(tile=(128, 128, 8), causal=True), sizes={}, targets=HOPPER)


def rows() -> Iterator[Case]:
    """Yield kernels of whole rows."""
    for columns in (1000, 8192, 65536):
        sizes = {sym.M: 512, sym.N: columns}
        yield Case(lambda: kernels.softmax_kernel(Rows(1), f16, f32), sizes)
        yield Case(lambda: kernels.layer_norm_kernel(Rows(1), f16, f16, f16, f16), sizes)
        yield Case(lambda: kernels.rms_norm_kernel(Rows(1), bf16, bf16, bf16), sizes)


def groups() -> Iterator[Case]:
    """Yield products of groups of rows, which end anywhere, and sums of rows at indices."""
    sizes = {sym.N: 4096, sym.K: 4096}
    for dtype, index in ((bf16, i32), (f16, i64)):
        form = GroupedForm(dtype, dtype, index)
        for tile in GROUPED:
            targets = HOPPER if tile.columns > 128 else GPUS  # the widest needs the shared memory of Hopper
            yield Case(partial(grouped_product_kernel, tile, form), sizes, targets=targets)
        gated = replace(form, activation="silu")
        yield Case(partial(gated_product_kernel, GROUPED[0], gated), sizes, targets=GPUS)
        wide = GroupedSumForm(dtype, f32, index)
        yield Case(partial(grouped_sum_kernel, GROUPED[0], wide), {sym.M: 4096, sym.N: 4096}, targets=GPUS)
        yield Case(partial(index_add_kernel, RowTile(1, 2048), dtype, index, f32), {}, targets=GPUS)


def gradients() -> Iterator[Case]:
    """Yield the backward pass of attention in one kernel, and that of keys in a kernel of its own."""
    sizes = {sym.B: 2, H_KV: 8, sym.M: 4096, K2: 4096}
    scores = Scores(0.1, causal=True)
    for heads in (Heads(64, 64), Heads(128, 128)):
        for adding in Adding:
            facts = AttentionTile(64, 128, 4), heads, scores, f32, bf16, adding
            yield Case(partial(attention_fused_backward_kernel, *facts), sizes, targets=HOPPER)
        parts = AttentionTile(64, 64, 4), heads, scores, f32, bf16, None, f32, f32
        yield Case(partial(attention_keys_backward_kernel, *parts), sizes, targets=HOPPER)


def corpus(targets: Iterable[str]) -> list[tuple[Case, str]]:
    """Return the cases, each with a target that it is compiled for."""
    full = [
        (case, target)
        for case in (*products(), *attention(), *gradients(), *groups(), *rows())
        for target in case.targets
    ]
    small = [(case, target) for _, case, target in cases()]
    return [one for one in (*small, *full) if one[1] in targets]


def changing(steps: Iterable[Step]) -> set[str]:
    """Return the names of the passes that changed a kernel."""
    return {step.name for step in steps if step.changed}


def counted(targets: Iterable[str]) -> tuple[Count, Counter[str]]:
    """Return for each pass the number of kernels that it changes on each target, and the kernels of each target."""
    found: Count = {}
    kernels: Counter[str] = Counter()
    for case, target in track(corpus(targets), "compiling"):
        steps = compiled(case, target).steps
        kernels[target] += 1
        for name in {step.name for step in steps}:
            found.setdefault(name, Counter())
        for name in changing(steps):
            found[name][target] += 1
    return found, kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the counts to a file")
    asked = parser.parse_args()
    targets = asked.target or TARGETS
    found, kernels = counted(targets)
    print(f"{'pass':<26}" + "".join(f"{t:>9}" for t in targets) + f"{'all':>7}")
    for name, by in sorted(found.items(), key=lambda item: (item[1].total(), item[0])):
        print(f"{name:<26}" + "".join(f"{by[t]:>9}" for t in targets) + f"{by.total():>7}")
    print(f"{'kernels':<26}" + "".join(f"{kernels[t]:>9}" for t in targets) + f"{kernels.total():>7}")
    if asked.json:
        asked.json.write_text(json.dumps({"kernels": kernels, "passes": found}, indent=1))


if __name__ == "__main__":
    main()
