"""How a GPU kernel is launched: how many workgroups, and what its parameters are filled with at a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tilewave.ir.host_program import Number

Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class Address:
    """The address of an array's first element."""

    array: int


@dataclass(frozen=True)
class Stride:
    """How many elements lie between neighbours along an axis."""

    array: int
    axis: int


@dataclass(frozen=True)
class SymbolArgument:
    """One of the numbers of the call: a dynamic symbol."""

    index: int


@dataclass(frozen=True)
class ScalarSlot:
    """One of the numbers of the call, which nothing but the kernel's own arithmetic depends on: `alpha: f32`."""

    index: int


@dataclass(frozen=True)
class Table:
    """The address of data that the kernel brings along, put on the device once."""

    index: int


@dataclass(frozen=True)
class ScratchMemory:
    """The address of memory that the launches on one stream share; zeros before the first of them.

    Launches that a graph records have theirs with the graph, so that graphs may run side by side.
    """

    bytes: int


@dataclass(frozen=True)
class TiledArray:
    """A tensor map of an array, for the copy engine."""

    array: int
    axes: tuple[int, ...]
    """The array's axes, from the slowest to the fastest."""
    box: tuple[int, ...]
    swizzle_bytes: int = 128
    l2_promotion_bytes: int = 128


Slot = Address | Stride | SymbolArgument | ScalarSlot | Table | ScratchMemory | TiledArray


@dataclass(frozen=True)
class Cluster:
    """Workgroups that run side by side and see each other's shared memory."""

    shape: Shape3


@dataclass(frozen=True)
class DependentLaunchAttribute:
    """The kernel itself waits for its predecessor on the stream, so it may start before that one ends."""


Attribute = Cluster | DependentLaunchAttribute


@dataclass(frozen=True)
class GpuLaunch:
    """A kernel's parameters in order, its workgroups, and the lanes of each."""

    slots: tuple[Slot, ...]
    grid: Shape3
    block: Shape3
    shared_bytes: int = 0
    """Shared memory beyond what the kernel declares itself."""
    attributes: tuple[Attribute, ...] = ()
    tables: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        assert min(*self.grid, *self.block) > 0, f"a launch of {self.grid} workgroups of {self.block} lanes"
        for attribute in self.attributes:
            if isinstance(attribute, Cluster):
                whole = all(g % c == 0 for g, c in zip(self.grid, attribute.shape, strict=True))
                assert whole, f"{self.grid} workgroups do not divide into clusters of {attribute.shape}"


class LaunchForm(NamedTuple):
    """What a launch comes to for the numbers of a call, known or recorded."""

    numbers: Sequence[Number]
    """What slots take by their index."""
    grid: tuple[Number, Number, Number]
    conditions: tuple[Number, ...] = ()
    """Where one does not hold, the call is none of its own."""
    uses_pdl: Number = True
    """Whether the launch asks for what `DependentLaunchAttribute` allows."""


LaunchFormula = Callable[[Sequence[Number]], LaunchForm]
"""Of the numbers of a call."""


@dataclass(frozen=True)
class SameGrid:
    """As many workgroups in every call, which are passed its numbers."""

    grid: Shape3

    def __call__(self, numbers: Sequence[Number]) -> LaunchForm:
        return LaunchForm(numbers, self.grid)


# as data ------------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        Address,
        Stride,
        SymbolArgument,
        ScalarSlot,
        Table,
        ScratchMemory,
        TiledArray,
        Cluster,
        DependentLaunchAttribute,
    )
}


def packed(launch: GpuLaunch) -> dict[str, Any]:
    """The launch as JSON has it, for a cache or a file."""
    return {
        "slots": [_record(slot) for slot in launch.slots],
        "grid": launch.grid,
        "block": launch.block,
        "shared_bytes": launch.shared_bytes,
        "attributes": [_record(attribute) for attribute in launch.attributes],
        "tables": [table.hex() for table in launch.tables],
    }


def unpacked(data: Mapping[str, Any]) -> GpuLaunch:
    """What `packed` was given."""
    return GpuLaunch(
        slots=tuple(_object(slot) for slot in data["slots"]),
        grid=tuple(data["grid"]),
        block=tuple(data["block"]),
        shared_bytes=data["shared_bytes"],
        attributes=tuple(_object(attribute) for attribute in data["attributes"]),
        tables=tuple(bytes.fromhex(table) for table in data["tables"]),
    )


def _record(value: Slot | Attribute) -> dict[str, Any]:
    return {"kind": type(value).__name__, **asdict(value)}


def _object(record: Mapping[str, Any]) -> Any:
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items() if name != "kind"}
    return _KINDS[record["kind"]](**fields)
