"""What every kernel of the gallery has: a check against float64, its time beside numpy's, and its picture.

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

FILES = (
    "vector_add",
    "scaled_add",
    "gelu_tiles",
    "transpose",
    "rotary",
    "softmax_rows",
    "layer_norm",
    "cross_entropy",
    "argmax_rows",
    "prefix_sums",
    "gemm_tiles",
    "gemm_bias_relu",
    "batched_gemm",
    "split_sums",
    "int8_gemm",
    "int4_gemm",
    "attention_heads",
)
SECONDS = 0.5
"""That a kernel and numpy are called for."""


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments: inputs, then outputs, as it takes them, and numbers by name."""

    kernel: Any
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    exact: Callable[..., Any]
    """The outputs from the inputs in float64."""
    numpy: Callable[..., Any]
    """The same in numpy as one would write it, to be timed beside."""
    roundings: int = 1
    """Of f32, one behind the other; what they may move is measured by `size`."""
    size: Callable[..., Any] | None = None
    """How large the numbers are that are rounded; without it, the result itself."""
    numbers: dict[str, Any] | None = None
    mapping: str = "linear()"

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
        out.fill(np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).min)
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
    """The quickest of some calls of each, in turns, after one that compiles: other work only makes times longer."""
    for call in calls:
        call()
    best, begun = [math.inf] * len(calls), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        for at, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[at] = min(best[at], time.perf_counter() - start)
    return best


def grid_of(case):
    """Its tiles as rows and columns: batches one below the other, a single column in rows."""
    grid = case.compiled("cpu").schedule.grid
    rows, cols = math.prod(grid[:-1]), grid[-1]
    side = math.isqrt(rows)
    return (rows // side, side) if cols == 1 and rows > 1 and rows % side == 0 else (rows, cols)


def present(case, name):
    """One line: what it is, how exact, how fast."""
    used = check(case)
    ours, theirs = seconds_of(case.call, lambda: case.numpy(*case.inputs))
    grid = "×".join(map(str, grid_of(case)))
    print(f"{name:16} {grid:>9} tiles   {used:6.1%} of the allowed error   {1e6 * ours:9.1f} µs, "
          f"{theirs / ours:6.2f} times as fast as numpy")  # fmt: skip


def cases():
    """Every kernel of the gallery, by name."""
    here = Path(__file__).parent
    return {name: runpy.run_path(str(here / f"{name}.py"))["case"]() for name in FILES}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="A directory for an SVG of each kernel's tiles.")
    pictures = parser.parse_args().pictures
    for name, case in cases().items():
        present(case, name)
        if pictures:
            pictures.mkdir(parents=True, exist_ok=True)
            show(case.mapping, grid_of(case)).save(pictures / f"{name}.svg")


if __name__ == "__main__":
    main()
