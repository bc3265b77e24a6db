"""How a GPU kernel is launched: how many workgroups, and what its parameters are filled with at a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

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
class EarlyStart:
    """The kernel itself waits for its predecessor on the stream, so it may start before that one ends."""


Attribute = Cluster | EarlyStart


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


class LaunchText(NamedTuple):
    """What a launch computes from the numbers of its call, which are called g0, g1, …, as Python."""

    given: int
    """How many these are."""
    lines: tuple[str, ...]
    """Those that return None turn down calls that are none of its own."""
    numbers: tuple[str, ...]
    """What slots take by their index."""
    grid: tuple[str, str, str]
    starts_early: str
    """Whether the launch asks for what `EarlyStart` allows."""

    @staticmethod
    def of(numbers: int, grid: Shape3) -> LaunchText:
        """For as many workgroups in every call."""
        x, y, z = map(str, grid)
        return LaunchText(numbers, (), tuple(f"g{i}" for i in range(numbers)), (x, y, z), "True")


# as data ------------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (Address, Stride, SymbolArgument, ScalarSlot, Table, ScratchMemory, TiledArray, Cluster, EarlyStart)
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
