"""Verification of kinds: valid types, attributes of the right kind, and memories and axes as ops declare them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

from tilewave.ir.core import BARE_WORD, BATCH_INVARIANT, OPERANDS, Kernel, Op, Want, field_type, part_names
from tilewave.ir.launch import MOST_OPEN
from tilewave.ir.ops import LEVELS
from tilewave.ir.ops.control import MOST_WAVES
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.placements import row_elements
from tilewave.ir.types import (
    INDEX_SCALAR,
    INTERNAL,
    Accumulator,
    Columns,
    Exchange,
    Mbarriers,
    Memory,
    Padded,
    Panels,
    Scalar,
    Swizzled,
    SwizzledByBits,
    Tile,
    Type,
    Vector,
    space_of,
)

MOST_LANES = 64
MOST_AXES = 12
FARTHEST = 1 << 62
"""The limit of attributes that count elements or bytes: a sum of two still fits an index."""
MOST_ELEMENTS: dict[type[Type], int] = {
    Tile: 1 << 26,
    Accumulator: 1 << 20,
    Vector: 1 << 14,
    Mbarriers: 1 << 10,
    Exchange: 1 << 40,
    Memory: 1 << 48,
}
MOST_SHARED = 1 << 24
"""The most elements of a shared memory; the largest machine has some 200 KB."""


def _is_whole(x: object) -> bool:
    return type(x) is int and abs(x) < FARTHEST


def _are_whole(x: object) -> bool:
    return isinstance(x, tuple) and all(map(_is_whole, x))


KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "bool": (lambda x: type(x) is bool, "true or false"),
    "str": (lambda x: isinstance(x, str) and (not x or bool(BARE_WORD.match(x))) and x.isascii(), "a word"),
    "Text": (lambda x: isinstance(x, str), "a text"),
    "tuple[Text, ...]": (lambda x: isinstance(x, tuple) and all(isinstance(t, str) for t in x), "a list of texts"),
    "tuple[int, ...]": (_are_whole, "a list of whole numbers"),
    "tuple[tuple[int, ...], ...]": (lambda x: isinstance(x, tuple) and all(map(_are_whole, x)), "lists of numbers"),
    "int | float | bool": (lambda x: isinstance(x, (int, float, bool)), "a number"),
}
"""Checks and descriptions of attributes, by their annotations."""
KNOWN = frozenset((*KINDS, *OPERANDS, "Block"))

WORDS: dict[str, tuple[str, ...]] = {"through": ("", "shared"), "spread": ("", "rows", "columns", "linear", "blocks")}
"""The allowed values of attributes of these names."""
COUNTS: dict[str, tuple[int, int]] = {
    "per_lane": (0, 1 << 10),
    "depth": (0, 1 << 16),
    "waves": (0, MOST_WAVES),
    "members": (1, 16),
    "arrivals": (1, 1 << 20),
    "expect": (0, 1 << 20),
    "pending": (0, 1 << 20),
    "count": (1, 1 << 10),
    "rows": (0, MOST_WORKGROUPS),
    "cols": (0, MOST_WORKGROUPS),
    "batches": (0, MOST_WORKGROUPS),
    "workgroups": (0, MOST_WORKGROUPS),
    "first": (0, FARTHEST),
    "axis": (0, MOST_AXES),
    "row_axis": (0, MOST_AXES),
    "depth_axis": (0, MOST_AXES),
}
"""The ranges of attributes of these names that are one number."""


VECTOR_BYTES = (1, 2, 4, 8, 16)
"""What a load of a lane may move at once."""


def check_kernel(kernel: Kernel, want: Want) -> None:
    """Check a kernel's attributes."""
    counted = "str" if isinstance(kernel.workgroups, str) else "int"
    attributes = {"workgroups": counted, "waves": "tuple[int, ...]", "lanes": "int", "matrix": "str"}
    attributes |= {"cluster": "int", "resident": "int", "vector_bytes": "int"}
    for name, kind in attributes.items():
        fits, given = KINDS[kind]
        want(fits(getattr(kernel, name)), f"{name} is {given}, not {getattr(kernel, name)!r}")
    want(kernel.name.isidentifier(), f"a kernel's name is an identifier, not {kernel.name!r}")
    want(kernel.level in LEVELS, f"no level is called {kernel.level!r}; the levels are {', '.join(LEVELS)}")
    n, cluster = kernel.workgroups, kernel.cluster
    want(cluster >= 1, f"a cluster has one workgroup or more, not {cluster}")
    want(kernel.sums in ("", BATCH_INVARIANT), f"sums are free, or in {BATCH_INVARIANT}, not {kernel.sums!r}")
    want(kernel.resident >= 1, f"a processor holds one workgroup or more, not {kernel.resident}")
    vectors = kernel.vector_bytes in VECTOR_BYTES
    want(vectors, f"a lane's loads move 1, 2, 4, 8 or 16 bytes at once, not {kernel.vector_bytes}")
    if isinstance(n, int):
        want(n >= 1, f"{n} workgroups compute nothing")
        want(n <= MOST_WORKGROUPS, f"{n} workgroups are more than a launch numbers, {MOST_WORKGROUPS}")
        want(n % cluster == 0, f"{n} workgroups are no whole clusters of {cluster}")
    want(all(w >= 1 for w in kernel.waves), f"waves are counted from 1 on, not {list(kernel.waves)}")
    want(prod(kernel.waves) <= MOST_WAVES, f"a workgroup has at most {MOST_WAVES} waves")
    want(0 <= kernel.lanes <= MOST_LANES, f"a wave has at most {MOST_LANES} lanes, not {kernel.lanes}")
    check_limits(kernel, want)
    wide = isinstance(kernel.wide_rows, tuple) and all(_is_wide(one, kernel.vector_bytes) for one in kernel.wide_rows)
    want(wide, f"wide_rows are [memory, bytes] of arrays with wider vectors than others, not {kernel.wide_rows!r}")
    lanes = kernel.level != "lane" or (kernel.lanes > 0 and len(kernel.waves) > 0)
    want(lanes, "on the lane level a kernel says its waves and lanes: {waves = [2, 2], lanes = 64}")


def check_limits(kernel: Kernel, want: Want) -> None:
    """Check that each limit names a dynamic size, with its least and its largest value."""
    fits = isinstance(kernel.limits, tuple) and all(_is_limit(limit) for limit in kernel.limits)
    want(fits, f"limits are [name, least, most] of a size each, not {kernel.limits!r}")
    named = [limit[0] for limit in kernel.limits]
    want(len(set(named)) == len(named), f"limits name a size twice: {', '.join(named)}")


def _is_limit(limit: object) -> bool:
    match limit:
        case (str(), least, most) if type(least) is type(most) is int:
            return 0 <= least <= most <= MOST_OPEN
        case _:
            return False


def _is_wide(one: object, vector_bytes: int) -> bool:
    match one:
        case (str(), wider) if type(wider) is int:
            return wider in VECTOR_BYTES and wider > vector_bytes
        case _:
            return False


def check_argument(kind: Type, want: Want) -> None:
    """Check that an argument is an array or a scalar."""
    is_array = isinstance(kind, Memory) and kind.space == "global" and kind.dtype not in INTERNAL
    is_number = isinstance(kind, Scalar) and (kind.dtype not in INTERNAL or kind == INDEX_SCALAR)
    want(is_array or is_number, f"a call gives arrays and numbers, no {kind}")


def check_splits(op: Op, want: Want) -> None:
    """Check the kinds of an op's attributes, the number of its results, and its types."""
    for name, kind in _attributes_of(type(op)):
        if kind not in KNOWN:
            want(False, f"{name} is a {kind}, and a field holds one of {', '.join(sorted(KNOWN))}")
        if fault := _attribute_fault(name, kind, getattr(op, name)):
            want(False, fault)
    if op.gives is not None:
        want(len(op.results) == op.gives, f"has {op.gives} results, not {len(op.results)}")
    for v in op.results:
        check_type(v.type, want)


def _attributes_of(cls: type[Op]) -> tuple[tuple[str, str], ...]:
    """Return the fields that are neither operands nor regions, with their annotations."""
    if cls not in _ATTRIBUTES:
        kinds = ((name, field_type(cls, name)) for name in part_names(cls))
        _ATTRIBUTES[cls] = tuple((name, kind) for name, kind in kinds if kind not in (*OPERANDS, "Block"))
    return _ATTRIBUTES[cls]


_ATTRIBUTES: dict[type[Op], tuple[tuple[str, str], ...]] = {}


def check_places(op: Op, want: Want) -> None:
    """Check that every memory is in a field that the op declares, and in an address space declared for it."""
    touched = [v for v in op.operands if space_of(v.type)]
    if not touched and not (op.reads or op.writes or op.hands_on):
        return
    said = (*op.reads.items(), *op.writes.items(), *op.hands_on.items())
    given = [(getattr(op, name), name, spaces) for name, spaces in said]
    for v, name, spaces in given:
        if space_of(v.type) not in spaces:
            want(False, f"{name} must be in {' or '.join(spaces)}, and {v} is {v.type}")
    for v in touched:
        if not any(v == other for other, _, _ in given):
            want(False, f"does not say whether it reads or writes {v}, {v.type}")


def check_axes(op: Op, want: Want) -> None:
    """Check that axes which an op declares as corresponding exist and have equal extents."""
    for one, other in op.corresponding() or ():
        lengths = [v.type.shape[i] if 0 <= i < len(v.type.shape) else None for v, i in (one, other)]
        if lengths[0] is None or lengths[0] != lengths[1]:
            given = " and ".join(f"axis {i} of {v}, {v.type}," for v, i in (one, other))
            want(False, f"{given} do not run together")


def _attribute_fault(name: str, kind: str, part: object) -> str:
    """Return why an attribute has an invalid value; empty if it is valid."""
    fits, given = KINDS[kind]
    if not fits(part):
        return f"{name} is {given}, not {part!r}"
    if name in WORDS and part not in WORDS[name]:
        return f"{name} is one of {', '.join(map(repr, WORDS[name]))}, not {part!r}"
    least, most = COUNTS.get(name, (-FARTHEST, FARTHEST))
    if type(part) is int and kind == "int" and not least <= part <= most:
        return f"{name} is from {least} to {most}, not {part}"
    return ""


def check_type(kind: Type, want: Want) -> None:
    if fault := _type_fault(kind):
        want(False, fault)


@lru_cache(maxsize=1024)
def _type_fault(kind: Type) -> str:
    """Return why a type is invalid; empty if it is valid. Cached, because a kernel repeats few types many times."""
    if isinstance(kind, Scalar):
        return ""
    if isinstance(kind, Memory) and kind.is_open and kind.space == "shared":
        return f"{kind}: the sizes of a shared memory are numbers"
    extents = kind.extents if isinstance(kind, Memory) else kind.shape
    known = [extent for extent in extents if isinstance(extent, int)]
    least = 0 if isinstance(kind, Memory) and kind.space == "global" else 1  # arguments may be empty arrays
    if not 0 < len(extents) <= MOST_AXES or not all(least <= n < FARTHEST for n in known):
        return f"{kind} has an axis without elements, or more than {MOST_AXES} axes"
    most = MOST_SHARED if isinstance(kind, Memory) and kind.space == "shared" else MOST_ELEMENTS[type(kind)]
    if prod(known) > most:
        return f"{kind} has more than {most:,} elements"
    if isinstance(kind, Memory) and kind.placement and not _rows_can_be_so(kind):
        return f"{kind}: rows cannot have this placement"
    return ""


def _rows_can_be_so(memory: Memory) -> bool:
    if isinstance(memory.placement, Padded) and memory.space == "global":
        return memory.placement.elements > 0 and isinstance(memory.extents[-1], int)
    if isinstance(memory.placement, Columns):
        return memory.space == "global" and memory.placement.elements >= 0 and memory.rank > 1
    if memory.space != "shared":
        return False
    if isinstance(memory.placement, Padded):
        return memory.placement.elements > 0 and prod(memory.shape[:-1]) * row_elements(memory) <= MOST_SHARED
    placement, row = memory.placement, memory.shape[-1]
    if isinstance(placement, SwizzledByBits):
        return placement.chunk > 0 and row % (placement.chunk << max(placement.moves).bit_length()) == 0
    if isinstance(placement, Panels):
        if placement.width < 1 or row % placement.width or len(memory.shape) < 2:
            return False
        row = placement.width
    assert isinstance(placement, (Swizzled, Panels))
    is_power = placement.period > 0 and placement.period & (placement.period - 1) == 0
    return min(placement.chunk, placement.every) > 0 and is_power and row % (placement.chunk * placement.period) == 0
