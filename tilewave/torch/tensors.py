"""torch's implementation of `ArrayLibrary`, and the test of which calls must go through torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from tilewave.errors import CallError, here
from tilewave.ir.types import DTYPES, INTERNAL, WIDEST_BYTES, DType
from tilewave.ops.arrays import ArrayArguments, Shape
from tilewave.ops.digits import Digits
from tilewave.runtime.array_layouts import LINE
from tilewave.runtime.dlpack import dtype_word
from tilewave.runtime.dynamic_calls import Allocation, DynamicCalls, heads_of
from tilewave.runtime.foreign_arrays import machine_layout, machine_reader

TORCH_DTYPES: dict[DType, torch.dtype] = {
    dtype: getattr(torch, dtype.numpy.name)
    for dtype in DTYPES.values()
    if dtype not in INTERNAL and hasattr(torch, dtype.numpy.name)
}
DTYPES_OF = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}


class TorchLibrary:
    """The `ArrayLibrary` of torch tensors."""

    def dtype(self, caller: str, name: str, array: Tensor) -> DType:
        found = DTYPES_OF.get(array.dtype)
        if found is None:
            what = f"{caller}: {name} is {str(array.dtype).removeprefix('torch.')}, which no kernel takes"
            raise CallError(what, loc=here(), remedy=f"pass {name}.float()")
        return found

    def steps(self, array: Tensor) -> Shape:
        return tuple(array.stride())

    def device(self, array: Tensor) -> str:
        return device_name(array.device)

    def empty(self, shape: Shape, dtype: DType, like: Tensor) -> Tensor:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=like.device)

    def broadcast(self, array: Tensor, shape: Shape) -> Tensor:
        return array.expand(shape)

    def strided(self, array: Tensor, shape: Shape, steps: Shape) -> Tensor:
        return array.as_strided(shape, steps)

    def address(self, array: Tensor) -> int:
        return int(array.data_ptr())

    def layout(self, arrays: tuple[Tensor | None, ...]) -> Any:
        return _layout()(arrays, False)

    def allocation(self, like: Tensor) -> Callable[[], Tensor]:
        # empty_strided takes two thirds of the time of empty, and what torch's compiler allocates by half of that.
        shape, steps = tuple(like.shape), tuple(like.stride())
        quick = _compilers_allocation("_empty_strided_cpu") if like.is_cpu else None
        if quick is not None:
            return partial(quick, shape, steps, like.dtype)
        return partial(torch.empty_strided, shape, steps, dtype=like.dtype, device=like.device)

    def bare(self, arrays: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple([bare(array) for array in arrays])

    def dynamic_calls(self) -> DynamicCalls | None:
        reader = machine_reader()
        return None if reader is None else DynamicCalls(reader)

    def heads(self, arrays: tuple[Tensor | None, ...]) -> tuple[tuple[int, int], ...]:
        tensors = [t for t in arrays if t is not None]
        kind, _, number = device_name(tensors[0].device).partition(":")
        if kind != "cuda" or len({t.device for t in tensors}) > 1 or not all(t.dtype in DTYPES_OF for t in tensors):
            return ()
        kinds = [None if t is None else (t.dim(), dtype_word(DTYPES_OF[t.dtype])) for t in arrays]
        return heads_of(kinds, int(number or 0))

    def result_allocation(self, like: Tensor) -> Allocation:
        quick = _compilers_allocation("_empty_strided_cuda")
        if quick is not None and torch.cuda.device_count() == 1:
            return Allocation(quick, like.dtype, None, None)
        return Allocation(torch.empty_strided, like.dtype, like.device, ("dtype", "device"))

    def digits(self) -> Digits:
        """Return the precision set by `torch.set_float32_matmul_precision`."""
        return Digits.ALL if torch.get_float32_matmul_precision() == "highest" else Digits.FEWER


def _compilers_allocation(name: str) -> Any:
    """Return the function of shape, strides and dtype by which torch's compiler allocates; None where it is not there.

    It takes half of the time of `empty_strided`, and has no device to say.
    """
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), name, None)


def device_name(device: torch.device) -> str:
    """Return tilewave's name of a device: `cpu`, `cuda:0`, `rocm:0`."""
    if device.type != "cuda":
        return str(device.type)
    return f"{'rocm' if torch.version.hip else 'cuda'}:{device.index or 0}"


LIBRARY = TorchLibrary()
_PLAIN = (Tensor, torch.nn.Parameter)
"""The classes of plain tensors: a derived class may wrap a tensor without memory, or redefine operators."""


# which calls torch has nothing to do with ---------------------------------------------------------------------------

_profiler, _forward_gradients = torch.autograd.profiler, torch.autograd.forward_ad
is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_modes, has_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
is_autocast = torch._C._is_any_autocast_enabled
_transform = torch._C._functorch.peek_interpreter_stack


def is_free() -> bool:
    """Return whether the dispatcher has nothing to do for operators, apart from what their tensors require."""
    return not is_autocast() and is_unwatched()


def is_unwatched() -> bool:
    """Return whether nothing in torch observes operators: no compiler, mode, transform or profiler."""
    return not (
        is_compiling()
        or _modes()
        or (has_function_modes() and any(map(_watches, _get_current_function_mode_stack())))
        or _transform() is not None
        or _profiler._is_profiler_enabled
        or _forward_gradients._current_level >= 0
    )


def _watches(mode: Any) -> bool:
    """Return whether a function mode observes operators too: one that sets the device of new tensors does not."""
    return getattr(mode, "watches_operators", type(mode) is not DeviceContext)


def free_layout(tensors: tuple[Any, ...]) -> Any:
    """Return the layout key of tensors, some of which may be None; None where the dispatcher must see them first:
    one requires a gradient, or is of a derived class."""
    return _layout()(tensors, is_grad_enabled())


def have_memory(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors are plain and have addresses: none is traced, faked or transformed."""
    if is_compiling() or _modes() or _transform() is not None:
        return False
    return all(type(t) in _PLAIN and not t.is_meta and t.layout is torch.strided for t in tensors)


def are_plain(tensors: tuple[Any, ...]) -> bool:
    """Return whether tensors, some of which may be None, are of no derived class, have memory, and are not negated."""
    return _layout()(tensors, False) is not None


@cache
def _layout() -> Callable[[tuple[Any, ...], bool], Any]:
    return machine_layout() or _asked_layout


def _asked_layout(tensors: tuple[Any, ...], grad: bool) -> Any:
    """Return the layout key that machine code would find, read from the tensors' attributes."""
    found: list[Any] = []
    for t in tensors:
        if t is None:
            found.append(None)
            continue
        if type(t) not in _PLAIN or (grad and t.requires_grad) or t.layout is not torch.strided or t.is_neg():
            return None
        if t.is_meta or not t.data_ptr():
            return None
        grain = gcd(t.data_ptr(), WIDEST_BYTES if t.is_cpu else LINE)
        found.append((t.shape, t.stride(), t.dtype, t.device, grain))
    return tuple(found)


def bare(tensor: Any) -> Any:
    """Return a tensor detached where it requires a gradient, which its operator computes; anything else unchanged."""
    return tensor.detach() if isinstance(tensor, Tensor) and tensor.requires_grad else tensor


def want_tensors(of: ArrayArguments, arrays: Sequence[Any]) -> None:
    """Raise an error where an array is missing, or is no torch tensor."""
    for required, array in zip(of.required, arrays, strict=True):
        if not isinstance(array, Tensor) and (required or array is not None):
            break
    else:
        return
    of.want_all(arrays)
    for name, array in zip(of.names, arrays, strict=True):
        if array is not None and not isinstance(array, Tensor):
            what = f"{of.caller}: {name} is no tensor of torch's, as others of this call are"
            raise CallError(what, loc=here(), remedy=f"pass torch.as_tensor({name})")
