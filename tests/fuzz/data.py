"""The arrays of a call: their content and their layout in memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from .exact import NUMPY
from .program import FLOATS, Array, Layout, Program

SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    3.0,
    -7.25,
    100.0,
    127.0,
    128.0,
    300.0,
    -129.5,
    65504.0,
    65520.0,
    1e10,
    -3e38,
    1e-7,
)
SPECIAL += (float("inf"), float("-inf"), float("nan"), 2.0**-24, 2.0**-14 - 2.0**-25, 1 + 2.0**-11 + 2.0**-40, 448.0)


@dataclass(frozen=True)
class Given:
    """An array as the kernel sees it, the memory that contains it, and the initial content of that memory."""

    view: np.ndarray
    memory: np.ndarray
    before: bytes


def given(program: Program) -> dict[str, Given]:
    return {a.name: laid_out(content(program, a), a.layout) for a in program.arrays}


def content(program: Program, a: Array) -> np.ndarray:
    shape = tuple(program.dim(d).size for d in a.dims)
    rng = np.random.default_rng([program.seed, zlib.crc32(a.name.encode())])
    with np.errstate(all="ignore"):
        return np.asarray(CONTENTS[a.content](rng, shape, a.dtype)).astype(NUMPY[a.dtype])


def _small(rng, shape, dtype):
    return rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(-4, 5, shape)


def _normal(rng, shape, dtype):
    return rng.standard_normal(shape) if dtype in FLOATS else _small(rng, shape, dtype)


def _special(rng, shape, dtype):
    if dtype in FLOATS:
        return np.select(
            [rng.random(shape) < 0.4, rng.random(shape) < 0.4],
            [rng.choice(np.array(SPECIAL), shape), _near_ties(rng, shape)],
            rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 8, shape),
        )
    return _extreme(rng, shape, dtype)


def _near_ties(rng, shape):
    """Return numbers halfway between two of a narrower float, or close to it."""
    digits = rng.choice(np.array([2, 3, 7, 10, 23]), shape)
    odd = 2 * rng.integers(2.0**digits, 2.0 ** (digits + 1)) + 1
    beside = rng.choice(np.array([0.0, 0.0, 1.0, -1.0]), shape) * 2.0 ** -rng.choice(np.array([5, 20, 28]), shape)
    return (odd + beside) * 2.0 ** (rng.integers(-18, 10, shape) - digits) * rng.choice(np.array([-1, 1]), shape)


def _extreme(rng, shape, dtype):
    if dtype == "bool" or dtype in FLOATS:
        return _small(rng, shape, dtype)
    ends = np.iinfo(NUMPY[dtype])
    hard = np.array([0, 0, 1, -1, 2, -2, 3, 7, ends.max, ends.min, ends.max - 1, ends.min + 1], np.int64)
    return np.where(rng.random(shape) < 0.6, rng.choice(hard, shape), rng.integers(ends.min, ends.max, shape))


def _poison(rng, shape, dtype):
    """What no kernel computes by chance; truth values have none, and are drawn."""
    if dtype == "bool":
        return rng.integers(0, 2, shape)
    return np.full(shape, np.nan if dtype in FLOATS else 77)


def _rising(rng, shape, dtype):
    """Return where groups of rows end."""
    return np.sort(rng.integers(0, 24, shape), axis=-1) if shape else _small(rng, shape, dtype)


CONTENTS = {
    "small": _small,
    "rising": _rising,
    "normal": _normal,
    "special": _special,
    "extreme": _extreme,
    "poison": _poison,
}


def laid_out(x: np.ndarray, layout: Layout | None) -> Given:
    """Return x's numbers in memory with this layout, with 0x5a between them."""
    if layout is None:
        memory = x.copy()
        return Given(memory, memory, memory.tobytes())
    sizes = [max(n, 1) for n in x.shape]  # an empty array still has memory around it
    spans = [abs(layout.steps[n]) * (sizes[n] - 1) + 1 + layout.before[n] + layout.after[n] for n in range(x.ndim)]
    memory = np.full([spans[n] for n in layout.order], 0x5A, np.uint8)
    memory = np.repeat(memory[..., None], x.itemsize, -1).view(x.dtype)[..., 0] if x.ndim else memory.view(x.dtype)
    view = memory.transpose(np.argsort(layout.order))[tuple(_along(layout, n, x.shape[n]) for n in range(x.ndim))]
    view[...] = x
    return Given(view, memory, memory.tobytes())


def _along(layout: Layout, n: int, size: int) -> slice:
    first, step = layout.before[n], layout.steps[n]
    if not size:
        return slice(first, first, step)
    last = first + abs(step) * (size - 1)
    return slice(first, last + 1, step) if step > 0 else slice(last, first - 1 if first else None, step)


def between_changed(g: Given) -> bool:
    """Whether anything in the memory changed that is not the array's own."""
    now = g.memory.copy()
    was = np.frombuffer(g.before, np.uint8).reshape(*g.memory.shape, g.memory.itemsize)
    found = np.ascontiguousarray(now).view(np.uint8).reshape(was.shape)
    own = np.zeros(g.memory.shape, np.bool_)
    own.reshape(-1)[_offsets(g)] = True
    return bool((found != was)[~own].any())


def _offsets(g: Given) -> np.ndarray:
    base = g.memory.__array_interface__["data"][0]
    first = g.view.__array_interface__["data"][0]
    at = np.full(g.view.shape, (first - base) // g.view.itemsize, np.int64)
    for axis, stride in enumerate(g.view.strides):
        steps = np.arange(g.view.shape[axis]) * (stride // g.view.itemsize)
        at = at + steps.reshape([-1 if n == axis else 1 for n in range(g.view.ndim)])
    return at.reshape(-1)
