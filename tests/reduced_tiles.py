"""Kernels that reduce a tile in every way, run wherever this machine can, and what their results are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import tilewave
from tilewave import *
from tilewave.ir.types import DTYPES

DIMS = (sym.A, sym.B, sym.C)
NAMES = "ABC"
SUMMED_IN = {"f16": "f32", "bf16": "f32", "i8": "i32", "bool": "i32", **{n: "f32" for n in DTYPES if "f8" in n}}
"""What sums and products of small numbers are."""
EXPRESSIONS = {
    "written": ("{r}", "kept"),
    "beside": ("x - {r}", "all"),
    "again": ("(x - {r}).{how}(dim={left})", "first"),
}
"""What becomes of a reduced tile, and over which dims that runs."""
LANES = ("lanes of gfx942", "lanes of sm_90a")
EMULATED = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Case:
    """A tile of an array of `shape`, whole along dims whose `tile` is 0, without `axes`; `memory` is the array's order
    of dims, and `waves` says of how many waves each dim is cut among."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    how: str = "sum"
    dtype: str = "f32"
    tile: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    waves: tuple[int, ...] = ()
    use: str = "written"
    open: tuple[int, ...] = field(default=())

    def __str__(self) -> str:
        more = [f"{n}={v}" for n in ("tile", "memory", "waves", "open") if (v := getattr(self, n))]
        shape = "x".join(map(str, self.shape))
        return " ".join([self.how, self.dtype, shape, f"axes={self.axes}", self.use, *more])

    @property
    def tiles(self) -> tuple[int, ...]:
        return self.tile or tuple(0 if axis in self.axes else 1 for axis in range(len(self.shape)))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.axes)

    @property
    def result(self) -> str:
        if self.how in ("any", "all"):
            return "bool"
        if self.how in ("argmax", "argmin"):
            return "i32"
        return SUMMED_IN.get(self.dtype, self.dtype) if self.how in ("sum", "prod") else self.dtype


def _dims(axes: Any) -> str:
    return ", ".join(NAMES[axis] for axis in axes)


def kernel_of(case: Case) -> Any:
    """The kernel that says it."""
    every = tuple(range(len(case.shape)))
    memory = case.memory or every
    x = "read(x)" if memory == every else f"permute(read(x), target_shape=[{_dims(every)}])"
    expression, over = EXPRESSIONS[case.use]
    reduced = f"x.{case.how}(dim=[{_dims(case.axes)}])" if case.how[:3] != "arg" else f"x.{case.how}({_dims(case.axes)})"
    left = _dims(case.kept[1:])
    value = expression.format(r=reduced, how=case.how, left=f"[{_dims(every[1:])}]")
    out = {"kept": case.kept, "all": every, "first": every[:1]}[over]
    if not out:
        value, out = f"broadcast({value}, target_shape=[O])", ("O",)
    del left
    kept = ", ".join(o if isinstance(o, str) else NAMES[o] for o in out)
    text = [
        f"def reduced(x: Memory[{_dims(memory)}, GLOBAL, dtype], y: Memory[{kept}, GLOBAL, out]):",
        f"    x = {x}",
        f"    write({value}, y)",
    ]
    names: dict[str, Any] = {**vars(tilewave), **dict(zip(NAMES, DIMS, strict=True)), "O": sym.O, "GLOBAL": GLOBAL_ADDRESS_SPACE}
    names |= {"dtype": DTYPES[case.dtype], "out": DTYPES[case.result]}
    exec("\n".join(text), names)
    return wave(constraints(case))(names["reduced"])


def constraints(case: Case) -> list[Any]:
    cut = [axis for axis, tile in enumerate(case.tiles) if tile]
    found: list[Any] = [WorkgroupConstraint(DIMS[axis], case.tiles[axis], i) for i, axis in enumerate(cut)]
    for axis, count in enumerate(case.waves):
        if count > 1:
            found.append(WaveConstraint(DIMS[axis], (case.tiles[axis] or case.shape[axis]) // count))
    return found


@cache
def compiled_for(case: Case, target: str) -> Any:
    subs = {dim: n for i, (dim, n) in enumerate(zip(DIMS, case.shape, strict=False)) if i not in case.open}
    return wave_compile(WaveCompileOptions(subs={**subs, sym.O: 1}, target=target), kernel_of(case))


def given(case: Case, seed: int = 0) -> Any:
    """Numbers of the array; products stay near 1."""
    rng, dtype = np.random.default_rng(seed), DTYPES[case.dtype]
    shape = tuple(case.shape[i] for i in (case.memory or range(len(case.shape))))
    if case.dtype == "bool":
        return rng.random(shape) < (0.99 if case.how == "all" else 0.01)
    if dtype.is_int:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    drawn = rng.standard_normal(shape)
    if case.how == "prod":
        drawn = np.exp2(np.round(rng.standard_normal(shape))) * rng.choice([-1, 1], shape)
    if case.how in ("any", "all"):
        drawn = np.where(rng.random(shape) < 0.98, 0.0 if case.how == "any" else 1.0, drawn)
    return drawn.astype(np.float32).astype(dtype.numpy)


def output(case: Case) -> Any:
    every = range(len(case.shape))
    axes = {"written": case.kept, "beside": every, "again": (0,)}[case.use]
    shape = tuple(case.shape[axis] for axis in axes) or (1,)
    dtype = DTYPES[case.result]
    if dtype.name == "bool":
        return np.zeros(shape, bool)
    return np.full(math.prod(shape) * dtype.numpy.itemsize, 0x5A, np.uint8).view(dtype.numpy).reshape(shape)


def run(case: Case, way: str, order: str = "", seed: int = 0) -> Any:
    x, y = given(case, seed), output(case)
    compiled = compiled_for(case, way.rpartition(" ")[2] if way != "tiles" else "numpy")
    if way == "tiles":
        compiled.interpret(x, y)
    elif way.startswith("lanes"):
        compiled.interpret(x, y, level="lane", order=order or "random", seed=seed)
    else:
        report = compiled.emulate(x, y, order=order or "random", seed=seed)
        assert report.findings == (), report.findings
    return y
