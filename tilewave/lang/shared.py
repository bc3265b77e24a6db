"""Shared memory that the author allocates, and barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewave.errors import ShapeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.types import DType
from tilewave.ir.types import Memory as IrMemory
from tilewave.lang.geometry import positive
from tilewave.lang.symbols import expression
from tilewave.lang.types import AddressSpace, MemoryArgument, want_dtype
from tilewave.records import dataclass
from tilewave.trace import DimensionWindow, assigned_name, current


@dataclass(frozen=True)
class AllocatedMemory(MemoryArgument):
    """Shared memory of each workgroup: its tiles begin at 0, wherever the workgroup's tile is in the whole."""

    def start(self, window: DimensionWindow) -> int:
        return 0

    @property
    def through(self) -> str:
        return ""

    @property
    def has_edges(self) -> bool:
        return False  # it has exactly the length of its tiles

    def want_room(self, op: str, axes: Sequence[int], shape: Sequence[int]) -> None:
        """Refuse a tile that is longer than the memory."""
        for axis, extent in zip(axes, shape, strict=True):
            dim, room = self.dims[axis], self.value.type.shape[axis]
            if extent > room:
                raise ShapeError(
                    f"{op}: a tile has {extent} elements along {dim}, but {self.name} holds {room}",
                    loc=here(),
                    remedy=f"write {extent} for {dim} in the distributed_shape of {self.name}",
                )


def allocate(
    shape: Sequence[Any], distributed_shape: Sequence[Any], dtype: DType, address_space: Any = AddressSpace.SHARED
) -> AllocatedMemory:
    """Allocate shared memory of the workgroup: `shape` names its dims, `distributed_shape` gives their lengths."""
    trace = current("allocate")
    dims, lengths = (_listed("allocate", given) for given in (shape, distributed_shape))
    if len(dims) != len(lengths):
        raise ShapeError(
            f"allocate: shape has {len(dims)} dims, but distributed_shape {len(lengths)}",
            loc=here(),
            remedy="write allocate((M, K), (BLOCK_M, BLOCK_K), f16): a length for each dim",
        )
    want_dtype(dtype)
    space = trace.symbols.get(address_space, address_space)
    if space is not AddressSpace.SHARED:
        raise TraceError(
            f"allocate makes shared memory, not {space!r}",
            loc=here(),
            remedy="write SHARED_ADDRESS_SPACE, or leave it out; global memory is an argument of the kernel",
        )
    extents = tuple(positive(n, trace.symbols, here(), "length") for n in lengths)
    name = assigned_name(here()) or "own"
    value = trace.fresh(name, IrMemory(extents, dtype, "shared"))
    trace.allocations.append(ir.Allocate(results=(value,), loc=here()))
    return AllocatedMemory(name, value, dims, AddressSpace.SHARED)


def _listed(op: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Sequence) or not given:
        raise ShapeError(f"{op}: {given!r} is no list of dims", loc=here(), remedy=f"write {op}((M, K), (64, 32), f16)")
    return tuple(expression(d) for d in given)


def workgroup_barrier() -> None:
    """Wait until all waves of the workgroup have arrived."""
    current("workgroup_barrier").effect(ir.Barrier)


def shared_memory_barrier() -> None:
    """Wait as `workgroup_barrier` does."""
    current("shared_memory_barrier").effect(ir.Barrier)
