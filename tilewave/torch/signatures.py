"""A kernel's signature as a torch operator: arguments, allocated results, and sizes that no argument gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewave.call import LEAST_WHOLE, prepared
from tilewave.errors import CallError, DTypeError, TraceError, here
from tilewave.forks import cached_property
from tilewave.ir.core import word
from tilewave.ir.effects import touched
from tilewave.ir.types import BOOL, DType
from tilewave.lang.kernel import WaveKernel, parameters_of
from tilewave.lang.symbols import Symbol
from tilewave.lang.types import MemoryType
from tilewave.records import dataclass
from tilewave.torch.tensors import TORCH_DTYPES

Kind = MemoryType | DType


@dataclass(frozen=True)
class OperatorSignature:
    """A kernel's parameters, and which of them a call passes."""

    kernel: str
    parameters: Mapping[str, Kind]
    """All parameters of the kernel, in the author's order."""
    results: tuple[str, ...]
    """Arrays that are allocated and returned."""
    mutated: tuple[str, ...]
    """The caller's arrays that are written in place."""
    fixed: Mapping[Symbol, Any]
    """Symbols with a value that is the same in every call."""

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The kernel's parameters that a call passes."""
        return tuple(name for name in self.parameters if name not in self.results)

    @cached_property
    def sizes(self) -> tuple[Symbol, ...]:
        """Symbols that occur only in the shapes of results: a call passes them after all other arguments."""
        passed = {*self.fixed, *(dim for name in self.given for dim in self._dims(name) if isinstance(dim, Symbol))}
        wanted = [s for name in self.results for dim in self._dims(name) for s in dim.symbols()]
        return tuple(s for s in dict.fromkeys(wanted) if s not in passed)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The operator's arguments, in order."""
        return (*self.given, *(size.name for size in self.sizes))

    @property
    def schema(self) -> str:
        """The operator's schema in torch's syntax."""
        listed = [f"{self._spelled(name)} {name}" for name in self.given]
        listed += [f"SymInt {size}" for size in self.sizes]
        results = ", ".join("Tensor" for _ in self.results)
        return f"({', '.join(listed)}) -> {results if len(self.results) == 1 else f'({results})'}"

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """The arguments that are arrays."""
        return tuple(name for name in self.given if isinstance(self.parameters[name], MemoryType))

    @cached_property
    def _order(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The indices of arguments that are arrays, and of those that are not."""
        arrays = tuple(i for i, name in enumerate(self.arguments) if name in self.arrays)
        return arrays, tuple(i for i in range(len(self.arguments)) if i not in arrays)

    def parted(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the arrays of a call, and its other arguments."""
        arrays, others = self._order
        return tuple([args[i] for i in arrays]), tuple([args[i] for i in others])

    def joined(self, parted: Sequence[Any]) -> list[Any]:
        """Return the two results of `parted` as one list in the order of the arguments."""
        arrays, others = self._order
        found = dict(zip((*arrays, *others), parted, strict=True))
        return [found[i] for i in range(len(found))]

    def _dims(self, name: str) -> tuple[Any, ...]:
        kind = self.parameters[name]
        return kind.dims if isinstance(kind, MemoryType) else ()

    def _spelled(self, name: str) -> str:
        kind = self.parameters[name]
        if isinstance(kind, MemoryType):
            return f"Tensor(a{self.mutated.index(name)}!)" if name in self.mutated else "Tensor"
        return "bool" if kind == BOOL else "float" if kind.is_float else "SymInt"

    # -- of a call

    def want_tensors(self, args: Sequence[Any]) -> None:
        """Raise where an array argument is no tensor."""
        for at in self._order[0]:
            if not isinstance(args[at], Tensor):
                name = self.arguments[at]
                what = f"{self.kernel}: {name} is of {type(args[at]).__name__}, and no tensor of torch's"
                raise CallError(what, loc=here(), remedy=f"pass torch.as_tensor({name})")

    def check(self, args: Sequence[Any]) -> None:
        """Raise where a tensor has another dtype or rank than the kernel takes."""
        for name, value in zip(self.given, args, strict=False):
            kind = self.parameters[name]
            if not isinstance(kind, MemoryType):
                continue
            if value.dtype != TORCH_DTYPES[kind.dtype]:
                what = f"{self.kernel}: {name} is {_short(value.dtype)}, but the kernel takes {kind.dtype}"
                raise DTypeError(what, loc=here(), remedy=f"pass {name}.to({TORCH_DTYPES[kind.dtype]})")
            if value.dim() != len(kind.dims):
                what = f"{self.kernel}: {name} has {value.dim()} axes, but the kernel takes {_listed(kind)}"
                raise CallError(what, loc=here(), remedy=f"pass a tensor with {len(kind.dims)}")

    def allocated(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return new tensors for the results, in the shapes that follow from the arguments."""
        known = {**self.fixed, **dict(zip(self.sizes, args[len(self.given) :], strict=True))}
        like = None
        for name, value in zip(self.given, args, strict=False):
            if isinstance(value, Tensor):
                like = value if like is None else like
                for dim, length in zip(self._dims(name), value.shape, strict=True):
                    if isinstance(dim, Symbol):
                        known.setdefault(dim, length)
        assert like is not None, "a kernel has an array that is given"
        found = {}
        for name in self.results:
            kind = self.parameters[name]
            assert isinstance(kind, MemoryType), "results are arrays"
            shape = [dim.evaluate(known) for dim in kind.dims]
            found[name] = torch.empty(shape, dtype=TORCH_DTYPES[kind.dtype], device=like.device)
        return found

    def cast(self, device: str, args: Sequence[Any]) -> list[Any]:
        """Cast float arguments to the kernel's dtypes, under autocast."""
        found = list(args)
        for i, name in enumerate(self.given):
            kind, value = self.parameters[name], args[i]
            if isinstance(kind, MemoryType) and name not in self.mutated and kind.dtype.is_float:
                found[i] = value.to(TORCH_DTYPES[kind.dtype]) if value.is_floating_point() else value
        return found


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(kind: MemoryType) -> str:
    return f"[{', '.join(map(str, kind.dims))}]"


# of a kernel --------------------------------------------------------------------------------------------------------


def signature_of(kernel: WaveKernel, results: Sequence[str] | None) -> OperatorSignature:
    """Return a kernel's signature; by default its results are the arrays that it writes and does not read."""
    parameters = dict(parameters_of(kernel))
    names = {word(name): name for name in parameters}
    written, read = ([names[v.name] for v in values] for values in _touched(kernel))
    wanted = [name for name in parameters if name in written and name not in read] if results is None else results
    for name in wanted:
        if name not in written:
            what = f"op: {kernel.name} writes no array {name}"
            raise TraceError(what, loc=here(), remedy=f"it writes {', '.join(n for n in parameters if n in written)}")
        if name in read:
            what = f"op: {kernel.name} reads {name}, so that it cannot be allocated: its values must be given"
            raise TraceError(what, loc=here(), remedy=f"leave {name} out of results; the operator changes it in place")
    mutated = tuple(name for name in parameters if name in written and name not in wanted)
    found = OperatorSignature(kernel.name, parameters, tuple(wanted), mutated, dict(kernel.subs))
    if not any(isinstance(parameters[name], MemoryType) for name in found.given):
        what = f"op: {kernel.name} is given no array, so that its device is not known"
        raise TraceError(what, loc=here(), remedy="write results=() and pass the arrays that it writes")
    return found


def _touched(kernel: WaveKernel) -> tuple[Any, Any]:
    """Return what a kernel writes and what it reads, found by tracing it once."""
    max_sizes = {size.symbol: LEAST_WHOLE for size in prepared(kernel).whole}
    return touched(kernel.compile(target="numpy", max_sizes=max_sizes).kernel)
