"""A launch for all arrays that lie alike; a function of Python that is written for it fills frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_void_p
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewave.ir.launch import AT_LAUNCH, given_names
from tilewave.ir.python_code import code_of, pattern
from tilewave.ir.types import DType
from tilewave.runtime.array_places import ArrayNames, ArrayPlaces
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.gpu_launch import (
    Address,
    LaunchText,
    ScalarSlot,
    ScratchMemory,
    Slot,
    Stride,
    SymbolArgument,
    Table,
    TiledArray,
)
from tilewave.runtime.launch_frame import LaunchFrame
from tilewave.runtime.tensor_map import TensorMap, encoding, map_numbers

if TYPE_CHECKING:
    from tilewave.runtime.cuda_launch import Launcher

FrameCode = Callable[..., "tuple[LaunchFrame, int] | None"]
"""Addresses, shapes and strides of arrays, the numbers of a call, words that are fixed, and a stream → a frame, and
what the driver said of its tensor maps; None where the launch turns the numbers down."""


class Prepared(NamedTuple):
    """A launch that can be made again and again."""

    launcher: Any
    frame: Any
    numbers: Sequence[int]
    """Those of its call."""

    def give_back(self) -> None:
        if self.frame is not None:
            self.frame.give_back()


class LaunchTemplate(NamedTuple):
    """Where arrays are, and how long, is put in last."""

    launcher: Launcher
    code: FrameCode
    fixed: tuple[int, ...]
    stream: int

    def at(self, places: ArrayPlaces, numbers: Sequence[int]) -> Prepared | None:
        """The launch of arrays that have been checked; None where it turns the numbers down."""
        launcher, code, fixed, stream = self
        pointers, shapes, strides = places
        if 0 in pointers:
            # Lanes that must not touch an element look at their array's first one; an empty array has none.
            there = next(filter(None, pointers), 0)
            pointers = [pointer or there for pointer in pointers]
        found = code(pointers, shapes, strides, numbers, fixed, stream)
        if found is None:
            return None
        frame, failed = found
        if failed:
            raise launcher.failure("cuTensorMapEncodeTiled", failed)
        return Prepared(launcher, frame, numbers)


def frame_code(launcher: Launcher, arrays: Sequence[tuple[int, DType]], text: LaunchText) -> FrameCode:
    """`arrays` are how many axes each has, and of which dtype it is."""
    slots = launcher.description.slots
    of = ArrayNames([rank for rank, _ in arrays])
    tiled = [slot for slot in slots if isinstance(slot, TiledArray)]
    sides, encoded, called = _maps(tiled, of, arrays)
    fixed = count()
    words = [_word(slot, of, text, fixed) for slot in slots]
    packed = ", ".join([*sides, *words, *text.grid, *map(str, launcher.early.config), "stream"])
    lines = [
        *of.taken(),
        f"{given_names(text.given)} = numbers",
        *text.lines,
        f"frame = (early if {text.starts_early} else late)()",
        "memory, at, _, _, maps, _ = frame",
        f"pack(memory, at, {packed})",
        f"{pattern([pattern([f'm{i}', f'l{i}', f'w{i}']) for i in range(len(tiled))])} = maps",
        f"return frame, {' or '.join(encoded) or '0'}",
    ]
    called |= {"early": launcher.early.take, "late": launcher.late.take, "pack": launcher.early.pack, **AT_LAUNCH}
    if tiled:
        called["encode"] = launcher.encode
    return code_of("pointers, shapes, strides, numbers, fixed, stream", lines, called)


def _maps(
    tiled: Sequence[TiledArray], of: ArrayNames, arrays: Sequence[tuple[int, DType]]
) -> tuple[list[str], list[str], dict[str, Any]]:
    """The numbers that tensor maps are made of, what has the driver encode them, and what that calls."""
    sides: list[str] = []
    encoded: list[str] = []
    called: dict[str, Any] = {"c_void_p": c_void_p}
    for i, slot in enumerate(tiled):
        lengths, steps = ([names[slot.array][axis] for axis in reversed(slot.axes)] for names in (of.lengths, of.steps))
        sides += map_numbers(lengths, steps, arrays[slot.array][1].bytes)
        kind, (box, units, *how) = encoding(
            slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes, arrays[slot.array][1]
        )
        called |= {f"box{i}": box, f"units{i}": units}
        array = f"c_void_p({of.pointers[slot.array]})"
        said = [f"m{i}", *map(str, kind), array, f"l{i}", f"w{i}", f"box{i}", f"units{i}", *map(str, how)]
        encoded.append(f"encode({', '.join(said)})")
    return sides, encoded, called


def _word(slot: Slot, of: ArrayNames, text: LaunchText, fixed: Iterator[int]) -> str:
    """What is passed for a parameter; those that are fixed are numbered."""
    match slot:
        case Address(array):
            return of.pointers[array]
        case Stride(array, axis):
            return of.steps[array][axis]
        case SymbolArgument(index):
            return text.numbers[index]
        case ScalarSlot(index):
            x = text.numbers[index]
            return f"{x} if {x} < {1 << 63} else {x} - {1 << 64}"  # the bits of a float may look like a larger number
        case TiledArray():
            return "0"  # it has its bytes elsewhere
        case Table() | ScratchMemory():
            return f"fixed[{next(fixed)}]"


def tensor_map(slot: TiledArray, view: ArrayView) -> TensorMap:
    """The tensor map of an array in a slot; `problem` of it says whether the copy engine takes the array."""
    sizes, strides = tuple([view.shape[a] for a in slot.axes]), tuple([view.strides[a] for a in slot.axes])
    return TensorMap(view.dtype, sizes, strides, slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes)
