"""`tilewave warm`: compile every config of the products' kernel sets into the cache on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np

from tilewave.backend.targets import target_here, target_named
from tilewave.bench.tuning import want_cost_model
from tilewave.bench.workers import Killed, LocalWorkers, Workers
from tilewave.cli.progress import progress
from tilewave.compile import KernelMaker, kernel_maker
from tilewave.errors import ConstraintError, TilewaveError
from tilewave.ir.types import DTYPES, DType
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import K, M, N
from tilewave.ops.digits import Digits, instruction_for
from tilewave.ops.products import result_dtype
from tilewave.options import WaveCompileOptions
from tilewave.records import dataclass
from tilewave.runtime.cache import default_cache
from tilewave.tune.choose import TileChoice

WARM_DTYPES = "f16,bf16"
"""The dtypes whose sets are compiled, unless others are asked for."""
LAYOUTS = tuple(product(((M, K), (K, M)), ((N, K), (K, N))))
ALIGNED, UNALIGNED = {M: 512, N: 512, K: 512}, {M: 515, N: 517, K: 519}
"""Sizes of arrays whose rows begin on cache lines, and of unaligned arrays."""


@dataclass(frozen=True)
class WarmTask:
    """One config of one product."""

    target: str
    dtype: str
    layout: int
    config: int
    """Its index in `configs_of`."""


def warm_command(*, target: str, dtypes: str, workers: int, as_json: bool) -> None:
    target = target_named(target or target_here()).name
    want_cost_model(target_named(target))
    directory = default_cache().directory
    if directory is None:
        raise TilewaveError("warm: the cache is switched off", remedy="unset TILEWAVE_CACHE_DIR, or name a directory")
    tasks = [task for name in dtypes.split(",") for task in tasks_of(target, _dtype_named(name))]
    begin = time.monotonic()
    refused = _warmed(tasks, workers or os.cpu_count() or 1)
    seconds = time.monotonic() - begin
    done = len(tasks) - len(refused)
    if as_json:
        facts = {"target": target, "directory": str(directory), "kernels": done, "refused": refused}
        print(json.dumps({**facts, "seconds": round(seconds, 3)}, indent=2))
        return
    print(f"{done} kernels for {target} in {directory}: {seconds:.1f} s")
    if refused:
        print(f"{len(refused)} configs are refused by the compiler; calls take others: {refused[0]}")


def _dtype_named(name: str) -> DType:
    if name not in DTYPES:
        raise TilewaveError(f"--dtypes: unknown dtype {name!r}", remedy=f"there are {', '.join(DTYPES)}")
    return DTYPES[name]


def tasks_of(target: str, dtype: DType) -> Iterator[WarmTask]:
    """Yield the configs of a dtype's products in every layout."""
    for layout in range(len(LAYOUTS)):
        maker = maker_of(target, dtype.name, layout)
        yield from (WarmTask(target, dtype.name, layout, at) for at in range(len(configs_of(maker))))


def configs_of(maker: KernelMaker) -> list[TileChoice]:
    """Return the legal configs of a kernel set, in the same order in every process."""
    return sorted(maker.tiles.predicted(maker.tiles.typical), key=lambda one: one.text)


@cache
def maker_of(target: str, dtype: str, layout: int) -> KernelMaker:
    """Return what makes the kernels of a product, as its calls do."""
    given = DTYPES[dtype]
    kernel = product_kernel(
        ProductForm(given, result_dtype(given), *LAYOUTS[layout]), instruction_for(target, given, Digits.FEWER)
    )
    return kernel_maker(WaveCompileOptions(target=target), kernel)


def warm(task: WarmTask) -> str:
    """Compile a config for aligned and unaligned arrays; return why it is refused, or an empty text."""
    maker = maker_of(task.target, task.dtype, task.layout)
    choice = configs_of(maker)[task.config]
    try:
        made = maker.make(choice)
        for sizes in (ALIGNED, UNALIGNED):
            shapes = [[sizes[dim] for dim in axes] for axes in (*LAYOUTS[task.layout], (M, N))]
            dtypes = DTYPES[task.dtype], DTYPES[task.dtype], result_dtype(DTYPES[task.dtype])
            made.build.compile_for([np.empty(shape, d.numpy) for shape, d in zip(shapes, dtypes, strict=True)])
    except ConstraintError as error:
        return f"{task.dtype} {choice.text}: {str(error).splitlines()[0]}"
    return ""


def _warmed(tasks: Sequence[WarmTask], count: int) -> list[str]:
    """Compile all configs, in this process or in several; return why some are refused."""
    refused = []
    with progress("warm", len(tasks)) as advance:
        for found in map(warm, tasks) if count == 1 else _by_workers(tasks, count):
            refused += [found] if found else []
            advance()
    return refused


def _by_workers(tasks: Sequence[WarmTask], count: int) -> Iterator[str]:
    workers: Workers
    with LocalWorkers(min(count, len(tasks))) as workers:
        for number, found in workers.results(warm, tasks):
            yield f"{tasks[number]}: ended its process" if isinstance(found, Killed) else found
