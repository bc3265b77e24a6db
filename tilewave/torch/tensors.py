"""torch's tensors as operations ask for them, and which calls need torch to look at them first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilewave.errors import CallError, here
from tilewave.ir.types import DTYPES, INTERNAL, DType
from tilewave.ops.arrays import Shape
from tilewave.ops.digits import Digits

TORCH_DTYPES: dict[DType, torch.dtype] = {
    dtype: getattr(torch, dtype.numpy.name)
    for dtype in DTYPES.values()
    if dtype not in INTERNAL and hasattr(torch, dtype.numpy.name)
}
_DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}


class TorchLibrary:
    """What operations ask of a library of arrays, answered for torch."""

    def dtype(self, caller: str, name: str, array: Tensor) -> DType:
        found = _DTYPES.get(array.dtype)
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

    def facts(self, array: Tensor | None) -> Any:
        return None if array is None else (array.shape, array.stride(), array.dtype, array.device)

    def digits(self) -> Digits:
        """As torch is told by `torch.set_float32_matmul_precision`."""
        return Digits.ALL if torch.get_float32_matmul_precision() == "highest" else Digits.FEWER


def device_name(device: torch.device) -> str:
    """As tilewave spells it: `cpu`, `cuda:0`, `rocm:0`."""
    if device.type != "cuda":
        return str(device.type)
    return f"{'rocm' if torch.version.hip else 'cuda'}:{device.index or 0}"


LIBRARY = TorchLibrary()
_PLAIN = (Tensor, torch.nn.Parameter)


def plain(*tensors: Tensor | None) -> list[Any] | None:
    """The tensors as a kernel may have them at once; None where torch differentiates, traces or casts them first."""
    if torch.compiler.is_compiling():
        return None
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (type(t) not in _PLAIN or (grad and t.requires_grad) or t.is_meta or t.is_neg()):
            return None
    return None if _is_watched() else [bare(t) for t in tensors]


def _is_watched() -> bool:
    """Whether torch has something to do at every operator: a mode, a transform, autocast, a profiler."""
    return bool(
        torch._C._is_any_autocast_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.profiler._is_profiler_enabled
    )


def bare(tensor: Any) -> Any:
    """A tensor that does not ask for gradients, which its operator computes; anything else as it is."""
    return tensor.detach() if isinstance(tensor, Tensor) and tensor.requires_grad else tensor


def want_tensors(caller: str, names: Sequence[str], arrays: Sequence[Any]) -> None:
    """An error where an array is another library's."""
    for name, array in zip(names, arrays, strict=True):
        if array is not None and not isinstance(array, Tensor):
            what = f"{caller}: {name} is no tensor of torch's, as others of this call are"
            raise CallError(what, loc=here(), remedy=f"pass torch.as_tensor({name})")
