"""Arguments for any kernel: random numbers by dtype for what it reads, poison for what it only writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewave.analysis.contracts import ENDS
from tilewave.bench.problem import Array, available_bytes
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.interp.numbers import poison_of
from tilewave.ir.effects import touched
from tilewave.ir.types import DType, dims
from tilewave.lang.kernel import arguments
from tilewave.runtime.arrays import Parameter

CHECKED_BYTES = 8 * 12
"""For each element of an argument: itself, and what its check holds in float64."""


def make_arguments(compiled: Compiled, seed: int) -> list[Array]:
    """Return random arguments: normal floats, integers from -127 to 127, indices that keep their contract; outputs are
    filled with a poison value."""
    _check_memory(compiled)
    _, read = touched(compiled.kernel)
    names = {value.name for value in arguments(compiled.kernel)[0] if value in read}
    draw = np.random.default_rng(seed)
    contracts = {name: (into, flags) for name, into, *flags in compiled.kernel.contracts}
    made = [
        _random(draw, p) if p.name in names or not p.written else np.full(p.shape, poison_of(p.dtype), p.dtype.numpy)
        for p in compiled.parameters
    ]
    return [
        _indices(draw, p, *contracts[p.name]) if p.name in contracts else array
        for p, array in zip(compiled.parameters, made, strict=True)
    ]


def _indices(draw: np.random.Generator, parameter: Parameter, into: str, flags: Sequence[str]) -> Array:
    """Return indices below a length that keep their contract; those that are too many to be distinct are -1."""
    count = math.prod(parameter.shape)
    end = int(into) if into.isdecimal() else count
    if ENDS in flags:
        found = np.append(draw.integers(0, end + 1, max(count - 1, 0)), end)[:count]
    elif "unique" in flags:
        found = np.full(count, -1)
        found[: min(count, end)] = draw.permutation(end)[:count]
    else:
        found = draw.integers(0, end, count)
    return (np.sort(found) if "sorted" in flags else found).reshape(parameter.shape).astype(parameter.dtype.numpy)


def _random(draw: np.random.Generator, parameter: Parameter) -> Array:
    dtype, shape = parameter.dtype, parameter.shape
    if dtype.is_int:
        return draw.integers(-127, 128, shape).astype(dtype.numpy)
    if not dtype.is_float:
        return draw.integers(0, 2, shape).astype(dtype.numpy)
    wide = np.float64 if dtype.bits == 64 else np.float32
    return draw.standard_normal(shape, wide).astype(dtype.numpy, copy=False)


def _check_memory(compiled: Compiled) -> None:
    """An error before anything is allocated that this machine cannot hold."""
    needed = CHECKED_BYTES * sum(math.prod(p.shape) for p in compiled.parameters)
    free = available_bytes()
    if free is not None and needed > free:
        raise TilewaveError(
            f"{compiled.name}: its arguments and their check need about {needed / 1e9:.1f} GB, "
            f"but only {free / 1e9:.1f} GB of memory are available",
            remedy="choose smaller sizes",
        )


Signature = tuple[tuple[tuple[int, ...], DType, bool], ...]


def signature(compiled: Compiled) -> Signature:
    """What kernels must have in common to be called with the same arguments."""
    return tuple((p.shape, p.dtype, p.written) for p in compiled.parameters)


def signature_text(parameters: Sequence[Parameter]) -> str:
    """`a 512x256 f16, b 512x256 f16 → c 512x512 f32`."""
    parts = [(f"{p.name} {dims(p.shape)} {p.dtype}", p.written) for p in parameters]
    read, written = (", ".join(text for text, is_written in parts if is_written is wanted) for wanted in (False, True))
    return f"{read} → {written}" if read else f"→ {written}"
