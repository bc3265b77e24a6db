"""Shared by all kernels of the gallery: a check against float64, the time compared with numpy's, and a picture.

python examples/gallery/softmax_rows.py                      one kernel: check and time
python examples/gallery/presented.py                         all of them, in a table
python examples/gallery/presented.py --pictures DIRECTORY    and the order of their tiles, drawn
"""

import argparse
import math
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewave.view import show

TIMED = {
    "vector_add": {"n": 4_000_000},
    "scaled_add": {"n": 4_000_000},
    "gelu_tiles": {"m": 1024, "n": 4096},
    "transpose": {"m": 3000, "n": 4000},
    "rotary": {"tokens": 16384},
    "softmax_rows": {"m": 4096},
    "layer_norm": {"m": 4096},
    "cross_entropy": {"m": 4096},
    "argmax_rows": {"m": 4096},
    "prefix_sums": {"m": 4096},
    "gemm_tiles": {"m": 1024, "n": 1024, "k": 1024},
    "gemm_bias_relu": {"m": 1024, "n": 1024, "k": 1024},
    "batched_gemm": {"count": 128},
    "split_sums": {"n": 1024, "k": 16384},
    "int8_gemm": {"m": 1024, "n": 1024, "k": 1024},
    "int4_gemm": {"n": 4096, "k": 4096},
    "attention_heads": {"heads": 8, "queries": 1024, "keys": 1024},
    "dropout": {"m": 4096, "n": 1024},
    "embedding": {"tokens": 8192, "words": 32000, "size": 1024},
    "scatter_rows": {"rows": 8192, "size": 1024},
    "paged_write": {"pages": 256, "heads": 8},
    "histogram": {"n": 4_000_000},
    "gathered_product": {"m": 1024, "n": 1024, "k": 1024, "tokens": 4096},
}
"""Every kernel, and the sizes at which it is timed; it is checked at small sizes with boundary tiles."""
SECONDS = 1.0
"""How long a kernel and numpy are each called."""


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments: inputs, then outputs, as it takes them, and numbers by name."""

    kernel: Any
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    exact: Callable[..., Any]
    """The outputs from the inputs in float64."""
    numpy: Callable[..., Any]
    """The computation in idiomatic numpy, for the comparison of times."""
    roundings: int = 1
    """Roundings in f32, one after the other; `size` gives the magnitude that they apply to."""
    size: Callable[..., Any] | None = None
    """How large the numbers are that are rounded; without it, the result itself."""
    numbers: dict[str, Any] | None = None
    mapping: str = "linear()"
    begin: int | None = None
    """What outputs that the kernel adds to hold before; those that it stores hold a poison value."""

    def call(self):
        self.kernel(*self.inputs, *self.outputs, **(self.numbers or {}))

    def compiled(self, target):
        """For the sizes of its arrays; no card is needed."""
        memories = [kind for kind in self.kernel.function.__annotations__.values() if hasattr(kind, "dims")]
        arrays = zip((*self.inputs, *self.outputs), memories, strict=True)
        sizes = {dim: size for array, kind in arrays for dim, size in zip(kind.dims, array.shape, strict=True)}
        return self.kernel.compile(target=target, subs=sizes)


def check(case):
    """Every element within what its roundings allow; the largest share of it that was used."""
    for out in case.outputs:
        poison = np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).min
        out.fill(poison if case.begin is None else case.begin)
    case.call()
    wide = [x.astype(np.float64) for x in case.inputs]
    wanted = case.exact(*wide)
    sizes = (case.size or case.exact)(*wide)
    wanted, sizes = ([x] if len(case.outputs) == 1 else x for x in (wanted, sizes))
    return max(_used(case, *row) for row in zip(case.outputs, wanted, sizes, strict=True))


def _used(case, out, wanted, size):
    if out.dtype.kind == "i":
        assert np.array_equal(out, wanted), "whole numbers are exact"
        return 0.0
    last_place = np.spacing(np.abs(wanted).astype(out.dtype)).astype(np.float64) / 2
    allowed = case.roundings * np.finfo(np.float32).eps / 2 * np.abs(size) + last_place
    used = np.abs(out - wanted) / np.maximum(allowed, np.finfo(np.float64).tiny)
    assert (used <= 1).all(), f"off by {used.max():.2f} times what is allowed"
    return float(used.max())


def seconds_of(*calls):
    """By the clock, and of the processor over all threads: the least of some calls of each, in turns, after one that
    compiles. Other work makes times longer, those of the clock most; none is less than a clock can tell."""
    for call in calls:
        call()
    best, begun = np.full((2, len(calls)), math.inf), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        for at, call in enumerate(calls):
            start = time.perf_counter(), time.process_time()
            call()
            best[:, at] = np.minimum(best[:, at], (time.perf_counter() - start[0], time.process_time() - start[1]))
    return np.maximum(best, time.get_clock_info("process_time").resolution)


def picture_of(case):
    """The order of its tiles as its code has it: batches one below the other, a single row or column as a square."""
    compiled = case.compiled("numpy")
    *outer, cols = compiled.schedule.grid
    tiles, rows = math.prod(outer) * cols, math.isqrt(math.prod(outer) * cols)
    if tiles > max(math.prod(outer), cols) or tiles % rows:
        return show(case.mapping, (math.prod(outer), cols)) if case.mapping != "linear()" else show(compiled)
    return show("linear()", (tiles // rows, rows))


def present(case, name, timed=None):
    """One line: what it is, how exact, how fast; another case of it may be timed."""
    used, timed = check(case), timed or case
    clock, processor = seconds_of(timed.call, lambda: timed.numpy(*timed.inputs))
    shape = "×".join(map(str, timed.outputs[0].shape))
    print(f"{name:16} {used:6.1%} of the allowed error   {shape:>12} in {1e6 * clock[0]:9.1f} µs, "
          f"{clock[1] / clock[0]:6.2f} times as fast as numpy; {1e6 * processor[0]:9.1f} µs of the processor, "
          f"{processor[1] / processor[0]:6.2f} times")  # fmt: skip


def made(name, **sizes):
    return runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))["case"](**sizes)


def cases():
    """Every kernel of the gallery, by name, at the sizes at which it is checked."""
    return {name: made(name) for name in TIMED}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="A directory for an SVG of each kernel's tiles.")
    pictures = parser.parse_args().pictures
    for name, case in cases().items():
        present(case, name, made(name, **TIMED[name]))
        if pictures:
            pictures.mkdir(parents=True, exist_ok=True)
            picture_of(case).save(pictures / f"{name}.svg")


if __name__ == "__main__":
    main()
