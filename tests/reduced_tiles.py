"""Kernels that reduce a tile in every way, run wherever this machine can, and what their results are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import exact
import numpy as np

import tilewave
from tilewave import *
from tilewave.ir.types import DTYPES

DIMS = (sym.A, sym.B, sym.C)
NAMES = "ABC"
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
INTEGERS = ("i8", "i32", "i64")
SUMMED_IN = {"f16": "f32", "bf16": "f32", "i8": "i32", "bool": "i32", **{n: "f32" for n in FLOATS if "f8" in n}}
"""What sums and products of small numbers are."""
COMBINED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
COMBINED |= {"any": np.logical_or, "all": np.logical_and}
ORDERS = ("in turn", "backwards", "random")


@dataclass(frozen=True)
class Case:
    """A tile of an array of `shape`, whole along dims whose `tile` is 0, without `axes`. `memory` is the array's order
    of dims, `waves` among how many waves each dim is cut; the dims in `open` get their sizes from the call."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    how: str = "sum"
    dtype: str = "f32"
    tile: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    waves: tuple[int, ...] = ()
    use: str = "written"
    """The use of the reduced value: "written" alone, "beside" the tile, or the difference of both reduced "again"."""
    open: tuple[int, ...] = ()

    def __str__(self) -> str:
        more = [f"{n}={v}" for n in ("tile", "memory", "waves", "open") if (v := getattr(self, n))]
        shape = "x".join(map(str, self.shape))
        return " ".join([self.how, self.dtype, shape, f"axes={self.axes}", self.use, *more])

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(range(len(self.shape)))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(axis for axis in self.every if axis not in self.axes)

    @property
    def tiles(self) -> tuple[int, ...]:
        return self.tile or tuple(0 if axis in self.axes else 1 for axis in self.every)

    @property
    def result(self) -> str:
        if self.how in ("any", "all"):
            return "bool"
        if self.how in ("argmax", "argmin"):
            return "i32"
        return SUMMED_IN.get(self.dtype, self.dtype) if self.how in ("sum", "prod") else self.dtype

    @property
    def written(self) -> tuple[int, ...]:
        """The axes of what is written."""
        return {"written": self.kept, "beside": self.every, "again": (0,)}[self.use]


def _dims(axes: Any) -> str:
    return ", ".join(NAMES[axis] for axis in axes)


def kernel_of(case: Case) -> Any:
    """The kernel that says it."""
    every, memory = case.every, case.memory or case.every
    x = "read(x)" if memory == every else f"permute(read(x), target_shape=[{_dims(every)}])"
    along = f"dim=[{_dims(case.axes)}]" if not case.how.startswith("arg") else _dims(case.axes)
    less = f"cast(x, out) - x.{case.how}({along})"
    value = {
        "written": f"x.{case.how}({along})",
        "beside": less,
        "again": f"({less}).{case.how}(dim=[{_dims(every[1:])}])",
    }[case.use]
    out = _dims(case.written) or "O"
    if out == "O":
        value = f"broadcast({value}, target_shape=[O])"
    text = [
        f"def reduced(x: Memory[{_dims(memory)}, GLOBAL, dtype], y: Memory[{out}, GLOBAL, out]):",
        f"    x = {x}",
        f"    write({value}, y)",
    ]
    names: dict[str, Any] = {**vars(tilewave), **dict(zip(NAMES, DIMS, strict=True)), "O": sym.O}
    names |= {"GLOBAL": GLOBAL_ADDRESS_SPACE, "dtype": DTYPES[case.dtype], "out": DTYPES[case.result]}
    exec("\n".join(text), names)
    return wave(constraints(case))(names["reduced"])


def constraints(case: Case) -> list[Any]:
    cut = [axis for axis, tile in enumerate(case.tiles) if tile]
    found: list[Any] = [WorkgroupConstraint(DIMS[axis], case.tiles[axis], i) for i, axis in enumerate(cut)]
    among = [(axis, count) for axis, count in enumerate(case.waves) if count > 1]
    return [*found, *(WaveConstraint(DIMS[axis], case.tiles[axis] // count) for axis, count in among)]


@cache
def compiled_for(case: Case, target: str) -> Any:
    subs = {dim: n for i, (dim, n) in enumerate(zip(DIMS, case.shape, strict=False)) if i not in case.open}
    longest = {DIMS[axis]: 64 for axis in case.open if not case.tiles[axis]}
    options = WaveCompileOptions(subs={**subs, sym.O: 1}, target=target, max_sizes=longest)
    return wave_compile(options, kernel_of(case))


def given(case: Case, seed: int = 0) -> Any:
    """Numbers for the array: products are of small powers of two, few truths are unlike the others."""
    rng, dtype = np.random.default_rng(seed), DTYPES[case.dtype]
    shape = tuple(case.shape[i] for i in (case.memory or case.every))
    rare = rng.random(shape) < 0.02
    if case.how in ("any", "all"):
        return (rare if case.how == "any" else ~rare).astype(np.float32).astype(dtype.numpy)
    if case.dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_int:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    drawn = rng.standard_normal(shape)
    if case.how == "prod":
        drawn = np.exp2(np.round(drawn)) * rng.choice([-1, 1], shape)
    return drawn.astype(np.float32).astype(dtype.numpy)


def output(case: Case) -> Any:
    """Return an array that shows unwritten elements."""
    shape, dtype = tuple(case.shape[axis] for axis in case.written) or (1,), DTYPES[case.result]
    if dtype.name == "bool":
        return np.zeros(shape, bool)
    return np.full(math.prod(shape) * dtype.numpy.itemsize, 0x5A, np.uint8).view(dtype.numpy).reshape(shape)


def run(case: Case, way: str, order: str = "random", seed: int = 0, x: Any = None) -> Any:
    """What a case gives on "tiles", on "lanes of" a target, on the CPU, or emulated."""
    x, y = given(case, seed) if x is None else x, output(case)
    compiled = compiled_for(case, way.rpartition(" ")[2] if way != "tiles" else "numpy")
    if way == "tiles":
        compiled.interpret(x, y)
    elif way.startswith("lanes"):
        compiled.interpret(x, y, level="lane", order=order, seed=seed)
    elif way == "cpu":
        compiled(x, y)
    else:
        report = compiled.emulate(x, y, order=order, seed=seed)
        assert report.findings == (), report.findings
    return y


# -- what is right -----------------------------------------------------------------------------------------------------


def tree(how: str, x: Any, axes: Any) -> Any:
    """Neighbours first, the last axis first; one that has no neighbour waits."""
    for axis in sorted(axes, reverse=True):
        parts = list(np.moveaxis(x, axis, 0))
        while len(parts) > 1:
            pairs = [_both(how, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[2 * len(pairs) :]
        x = parts[0]
    return x


def _both(how: str, a: Any, b: Any) -> Any:
    if how in ("max", "min") and a.dtype.kind not in "iub":
        x, y = a.astype(np.float64), b.astype(np.float64)
        first = np.signbit(x) if how == "min" else ~np.signbit(x)  # zeros are equal, and the negative one is smaller
        return np.where(x == y, np.where(first, x, y), COMBINED[how](x, y)).astype(a.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return COMBINED[how](a, b)


def wanted(case: Case, x: Any) -> Any:
    """What a case gives, to the last bit."""
    if case.memory:
        x = x.transpose(tuple(case.memory.index(axis) for axis in case.every))
    if case.how.startswith("arg"):
        return getattr(np, case.how)(x.astype(np.float64), axis=case.axes[0]).astype(np.int32)
    x = x != 0 if case.how in ("any", "all") else x.astype(DTYPES[case.result].numpy)
    left = tree(case.how, x, case.axes)
    if case.use == "written":
        return np.reshape(left, output(case).shape)
    less = x - np.expand_dims(left, case.axes)
    return less if case.use == "beside" else tree(case.how, less, case.every[1:])


def check(case: Case, way: str, order: str = "random", seed: int = 0) -> None:
    x = given(case, seed)
    found, want = run(case, way, order, seed), wanted(case, x)
    wrong = exact.differing(found.reshape(-1), want.reshape(-1))
    assert len(wrong) == 0, f"{case} on {way}: {found.reshape(-1)[wrong[:4]]}, not {want.reshape(-1)[wrong[:4]]}"


def check_bound(case: Case, found: Any, x: Any) -> None:
    """A sum is that of float64 within what its roundings, one on each level of the tree, can make of it."""
    unit = float(np.finfo(found.dtype).eps) / 2
    levels = sum(math.ceil(math.log2(case.shape[axis])) for axis in case.axes)
    x = x.astype(np.float64)
    if case.memory:
        x = x.transpose(tuple(case.memory.index(axis) for axis in case.every))
    bound = levels * unit / (1 - levels * unit) * np.abs(x).sum(axis=case.axes)
    assert (np.abs(found - x.sum(axis=case.axes)) <= bound).all()
