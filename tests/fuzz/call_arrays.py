"""The arrays of a call: made in buffers, held by numpy or torch, on this machine or a GPU; and what of them changed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .calls import Alias, Call, Laid
from .data import CONTENTS, laid_out
from .exact import NUMPY

FILL = 0x5A
"""The bytes between elements."""


@dataclass(frozen=True)
class Buffered:
    """An array, the memory that it is laid out in, and what that held before the call."""

    view: np.ndarray
    memory: np.ndarray
    before: bytes

    @property
    def places(self) -> np.ndarray:
        """The byte offsets of its elements in the memory."""
        at = np.full(self.view.shape, _address(self.view) - _address(self.memory), np.int64)
        for axis, stride in enumerate(self.view.strides):
            steps = np.arange(self.view.shape[axis]) * stride
            at = at + steps.reshape([-1 if n == axis else 1 for n in range(self.view.ndim)])
        return at.reshape(-1)

    @property
    def shares_addresses(self) -> bool:
        """Whether two of its elements are one."""
        places = self.places
        return len(np.unique(places)) < len(places)

    def overlaps(self, other: Buffered) -> bool:
        """Whether an element of one is in part one of the other."""
        if self.memory is not other.memory:
            return False
        near = self.places[:, None] - other.places[None, :]
        return bool(((near < other.view.itemsize) & (near > -self.view.itemsize)).any())


def buffered(call: Call) -> dict[str, Buffered]:
    """Every array of a call by its name."""
    found: dict[str, Buffered] = {}
    for name, laid in call.arguments:
        if isinstance(laid, Laid):
            found[name] = _laid(laid, np.random.default_rng([call.seed, zlib.crc32(name.encode())]))
    for name, alias in call.arguments:
        if isinstance(alias, Alias) and alias.of in found:
            found[name] = _alias(alias, found[alias.of])
    return found


def _laid(a: Laid, rng: np.random.Generator) -> Buffered:
    with np.errstate(all="ignore"):
        shape = _distinct(a)
        x = np.asarray(CONTENTS[a.content](rng, shape, a.dtype)).astype(NUMPY[a.dtype])
    if a.flaw == "misaligned":
        return _misaligned(x)
    if a.flaw == "swapped":
        x = x.astype(x.dtype.newbyteorder())
    made = laid_out(x, a.layout if a.flaw not in ("repeated", "sliding") else None)
    view = made.view
    if a.flaw == "repeated":
        view = _strided(view, a.shape, [0 if n != m else s for n, m, s in _axes(view, a.shape)])
    elif a.flaw == "sliding":
        view = _strided(view, a.shape, [x.itemsize] * len(a.shape))
    if a.flaw == "read-only":
        view = view.view()
        view.flags.writeable = False
    return Buffered(view, made.memory, made.before)


def _distinct(a: Laid) -> tuple[int, ...]:
    """The shape of what is in memory."""
    if a.flaw == "repeated":
        first = next((n for n, size in enumerate(a.shape) if size > 1), None)
        return tuple(1 if n == first else size for n, size in enumerate(a.shape))
    return (sum(a.shape) + 1,) if a.flaw == "sliding" else a.shape


def _strided(memory: np.ndarray, shape: tuple[int, ...], strides: Sequence[int], at: int = 0) -> np.ndarray:
    """A view of contiguous memory from a byte on; numpy's as_strided does not know every dtype."""
    return np.ndarray(shape, memory.dtype, memory, at, strides)


def _axes(view: np.ndarray, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    return list(zip(shape, view.shape, view.strides, strict=True))


def _misaligned(x: np.ndarray) -> Buffered:
    memory = np.full(x.nbytes + 2 * x.itemsize, FILL, np.uint8)
    view = memory[1 : 1 + x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return Buffered(view, memory, memory.tobytes())


def _alias(alias: Alias, of: Buffered) -> Buffered:
    """In the same memory; from its beginning where it would reach beyond the end."""
    strides = of.view.strides if len(alias.shape) == of.view.ndim else _dense(alias.shape, of.view.itemsize)
    reach = [(size - 1) * stride for size, stride in zip(alias.shape, strides, strict=True)]
    low, high = (sum(f(0, r) for r in reach) for f in (min, max))
    first, item = _address(of.view) - _address(of.memory), of.view.itemsize
    end = of.memory.nbytes - item
    for at in (first + alias.shift * item, first, -low):
        if at + low >= 0 and at + high <= end and 0 not in alias.shape:
            view: np.ndarray = np.ndarray(alias.shape, of.view.dtype, of.memory, at, strides)
            return Buffered(view, of.memory, of.before)
    return of


def _dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[n + 1 :])) * item for n in range(len(shape)))


def _address(x: np.ndarray) -> int:
    return int(x.__array_interface__["data"][0])


# -- who holds them --------------------------------------------------------------------------------------------------


class HeldArrays:
    """The arrays of a call in their libraries; on a GPU they are copies that are copied back."""

    def __init__(self, arrays: dict[str, Buffered], library_of: dict[str, str], device: str) -> None:
        self.arrays, self.device = arrays, device
        self.buffers: dict[int, tuple[np.ndarray, Any]] = {}
        self.objects = {name: b.view if library_of[name] == "numpy" else self._tensor(b) for name, b in arrays.items()}

    def _tensor(self, b: Buffered) -> Any:
        import torch

        if id(b.memory) not in self.buffers:
            flat = torch.from_numpy(b.memory.reshape(-1).view(np.uint8))
            self.buffers[id(b.memory)] = (b.memory, flat.to(self.device) if self.device != "cpu" else flat)
        _, buffer = self.buffers[id(b.memory)]
        item = b.view.itemsize
        kind = torch.bool if b.view.dtype == np.bool_ else getattr(torch, b.view.dtype.name)
        first = (_address(b.view) - _address(b.memory)) // item
        return buffer.view(kind).as_strided(b.view.shape, [s // item for s in b.view.strides], first)

    def bring_back(self) -> None:
        if self.device == "cpu":
            return
        for memory, buffer in self.buffers.values():
            memory.reshape(-1).view(np.uint8)[...] = buffer.cpu().numpy()


def as_numpy(x: Any) -> np.ndarray:
    """What a call gave back, as numpy's array of the same dtype."""
    if isinstance(x, np.ndarray):
        return x
    import torch

    flat = x.detach().cpu().contiguous()
    name = str(x.dtype).removeprefix("torch.")
    dtype = np.dtype(np.bool_) if name == "bool" else {n.name: n for n in map(np.dtype, NUMPY.values())}[name]
    return flat.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tuple(x.shape))


# -- what changed ----------------------------------------------------------------------------------------------------


def changed_outside(arrays: dict[str, Buffered], written: set[str]) -> str:
    """The name of an array in whose memory something changed that is no element of what was to be written; or ""."""
    for name, b in arrays.items():
        now = np.frombuffer(b.memory.tobytes(), np.uint8)
        changed = now != np.frombuffer(b.before, np.uint8)
        if not changed.any():
            continue
        own = np.zeros(changed.shape, np.bool_)
        for other in (arrays[w] for w in written if w in arrays and arrays[w].memory is b.memory):
            for byte in range(other.view.itemsize):
                own[other.places + byte] = True
        if changed[~own].any():
            return name
    return ""
