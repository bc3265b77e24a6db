"""How a GPU kernel is launched: its workgroups, and what fills its parameters at a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from tilewave.ir.host_program import Number
from tilewave.records import dataclass

Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class Address:
    """The address of an array's first element."""

    array: int


@dataclass(frozen=True)
class Stride:
    """The stride of an array along an axis, in elements."""

    array: int
    axis: int


@dataclass(frozen=True)
class SymbolArgument:
    """A scalar argument that is a size or a dynamic symbol."""

    index: int


@dataclass(frozen=True)
class ScalarSlot:
    """A scalar argument that only the kernel's arithmetic depends on: `alpha: f32`."""

    index: int


@dataclass(frozen=True)
class Table:
    """The address of constant data of the kernel, copied to the device once."""

    index: int


@dataclass(frozen=True)
class ScratchMemory:
    """The address of memory that the launches on one stream share; zeroed before the first of them.

    Launches that a graph records share memory of that graph, so that graphs may run concurrently.
    """

    bytes: int


@dataclass(frozen=True)
class TiledArray:
    """A tensor map of an array, for TMA."""

    array: int
    axes: tuple[int, ...]
    """The array's axes, from the slowest to the fastest."""
    box: tuple[int, ...]
    swizzle_bytes: int = 128
    l2_promotion_bytes: int = 128


Slot = Address | Stride | SymbolArgument | ScalarSlot | Table | ScratchMemory | TiledArray


@dataclass(frozen=True)
class Cluster:
    """Workgroups that run concurrently and access each other's shared memory."""

    shape: Shape3


@dataclass(frozen=True)
class DependentLaunchAttribute:
    """Programmatic dependent launch: the kernel itself waits for the previous launch on the stream, so it may start
    before that one ends."""


Attribute = Cluster | DependentLaunchAttribute


@dataclass(frozen=True)
class GpuLaunch:
    """A kernel's parameters in order, its workgroups, and the lanes of each."""

    slots: tuple[Slot, ...]
    grid: Shape3
    block: Shape3
    shared_bytes: int = 0
    """Dynamic shared memory, besides what the kernel declares."""
    attributes: tuple[Attribute, ...] = ()
    tables: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        assert min(*self.grid, *self.block) > 0, f"a launch of {self.grid} workgroups of {self.block} lanes"
        for attribute in self.attributes:
            if isinstance(attribute, Cluster):
                whole = all(g % c == 0 for g, c in zip(self.grid, attribute.shape, strict=True))
                assert whole, f"{self.grid} workgroups do not divide into clusters of {attribute.shape}"


class LaunchPlace(NamedTuple):
    """A device by its number, and one of its streams."""

    number: int
    stream: int


class LaunchForm(NamedTuple):
    """A launch for the scalar arguments of a call, as plain or recorded numbers."""

    numbers: Sequence[Number]
    """The numbers that slots take by their index."""
    grid: tuple[Number, Number, Number]
    conditions: tuple[Number, ...] = ()
    """Where one of them is false, this launch record does not serve the call."""
    uses_pdl: Number = True
    """Whether the launch uses programmatic dependent launch, where the kernel allows it."""


LaunchFormula = Callable[[Sequence[Number]], LaunchForm]
"""From the scalar arguments of a call to its launch."""


@dataclass(frozen=True)
class SameGrid:
    """The launch formula of a static grid, which passes the scalar arguments unchanged."""

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
    """Return the launch as JSON data, for a cache or a file."""
    return {
        "slots": [_record(slot) for slot in launch.slots],
        "grid": launch.grid,
        "block": launch.block,
        "shared_bytes": launch.shared_bytes,
        "attributes": [_record(attribute) for attribute in launch.attributes],
        "tables": [table.hex() for table in launch.tables],
    }


def unpacked(data: Mapping[str, Any]) -> GpuLaunch:
    """Return the launch that `packed` converted."""
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
