"""Autocast: the dtype that products of a tensor are computed in, and the casts of a call's arguments.

torch casts each parameter once, and keeps the cast until the outermost autocast region ends. Casts made here are kept
for as long: their store is attached to a cast that torch's own cache holds, and is freed together with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewave.torch.tensors import have_memory, is_autocast

AUTOCAST = {"cpu": "CPU", "cuda": "CUDA"}
"""torch's dispatch keys of autocast, by device kind."""
Cast = Callable[[str, Sequence[Any]], Sequence[Any]]
"""From a device kind and the arguments of a call under autocast to the operator's arguments."""


def is_cast(device: str) -> bool:
    """Return whether calls on a device of this kind are under autocast."""
    return is_autocast() and device in AUTOCAST and torch.is_autocast_enabled(device)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that products of a tensor are computed in: under autocast another than the tensor's."""
    if not is_autocast():
        return x.dtype
    device = x.device.type
    return torch.get_autocast_dtype(device) if is_cast(device) and _may_be_cast(x) else x.dtype


def _may_be_cast(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64


def to_autocast_dtype(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Cast floats to autocast's dtype, in which products are faster."""
    return _all_cast(args, torch.get_autocast_dtype(device))


def to_float32(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Cast floats to f32, whose precision sums and exponentials need."""
    return _all_cast(args, torch.float32)


def rows_to_float32(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Cast rows of norms and softmax as torch does: to f32 on GPUs, while on the CPU they keep their dtype."""
    return args if device == "cpu" else to_float32(device, args)


def _all_cast(args: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    return [_cast(x, dtype) if _may_be_cast(x) else x for x in args]


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype or not _is_kept(x):
        return x.to(dtype)
    return _casts_of(x.device)(x, dtype)


def _is_kept(x: Tensor) -> bool:
    """Return whether a tensor's cast is kept for further calls: as in torch, where it is a parameter in f32."""
    is_parameter = x.requires_grad and x.is_leaf and x.dtype == torch.float32
    return is_parameter and torch.is_autocast_cache_enabled() and not x.is_inference() and have_memory((x,))


class _Casts:
    """The casts of parameters in an autocast region."""

    def __init__(self) -> None:
        self.found: dict[Any, tuple[Any, Tensor]] = {}

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        key, state = (id(x), dtype, torch.is_grad_enabled()), (x, x._version, x.data_ptr())
        kept = self.found.get(key)
        if kept is None or kept[0][0] is not x or kept[0][1:] != state[1:]:
            kept = self.found[key] = state, x.to(dtype)
        return kept[1]


_REGIONS: dict[torch.device, weakref.ref[_Casts]] = {}
"""The casts of each device's current autocast region; freed ones are of regions that have ended."""


def _casts_of(device: torch.device) -> _Casts:
    """Return the casts of the current autocast region on a device."""
    known = _REGIONS.get(device)
    found = None if known is None else known()
    if found is None:
        found = _Casts()
        _REGIONS[device] = weakref.ref(found)
        _attach_to_region(found, device)
    return found


def _attach_to_region(kept: object, device: torch.device) -> None:
    """Keep an object alive until the autocast region ends: a node of autograd, which torch's cache owns, refers to it.

    The node is that of the cast of an empty parameter, which takes no launch and no memory.
    """
    with torch.inference_mode(False), torch.enable_grad():
        empty = torch.empty((0, 0), device=device, requires_grad=True)
        node = torch.mm(empty, empty).grad_fn.next_functions[0][0]
    node.metadata["tilewave"] = kept
