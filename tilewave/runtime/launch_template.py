"""A launch record for all arrays with one layout key: a program computes the rest, and machine code launches."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tilewave.ir.host_program import Number, Recorder
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.types import DType
from tilewave.runtime.array_layouts import Placed, placed_arrays, there_at_least, words_at
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.gpu_launch import (
    Address,
    GpuLaunch,
    LaunchForm,
    LaunchFormula,
    ScalarSlot,
    ScratchMemory,
    Stride,
    SymbolArgument,
    Table,
    TiledArray,
)
from tilewave.runtime.launch_frame import FrameLayout
from tilewave.runtime.native.compiled_program import CompilableProgram
from tilewave.runtime.native.engine import engine
from tilewave.runtime.native.records import LAUNCH, LAUNCHED, MAP, NativeRecord, in_memory, memory_for_maps, words
from tilewave.runtime.tensor_map import MAP_BYTES, Encoding, TensorMap, encoding, map_numbers


class LaunchChecker(Protocol):
    """The part of a kernel on its device that a launch record needs: what to do where the driver fails."""

    code: LaunchCode

    def want_launched(self, said: int) -> None:
        """Raise an error where machine code reports that the driver failed."""


class LaunchTemplate(NamedTuple):
    """A launch record on a stream; addresses and sizes are filled in at each launch."""

    address: int
    """The address of the record, first: machine code reads it where it finds the template in a cache."""
    launcher: LaunchChecker
    record: NativeRecord
    stream: int

    def launch(self, placed: Placed, numbers: Sequence[int]) -> bool:
        """Launch checked arrays; return False where this record does not serve these numbers."""
        return self.known(placed, numbers)()

    def known(self, placed: Placed, numbers: Sequence[int]) -> KnownLaunch:
        return KnownLaunch(self, words([*words_at(placed), *numbers]))


class KnownLaunch(NamedTuple):
    """The launch of given arrays, which can be made any number of times."""

    template: LaunchTemplate
    numbers: Any
    """The arrays' addresses, shapes and strides and the call's numbers, in memory."""

    def __call__(self) -> bool:
        """Launch; return False where the record does not serve these numbers."""
        address, launcher, _, stream = self.template
        said = engine().launch(address, ctypes.addressof(self.numbers), stream)
        launcher.want_launched(said)
        return bool(said == LAUNCHED)


class LaunchCode:
    """How code is launched with arrays of given ranks and dtypes on any device: the program that fills its launches."""

    def __init__(
        self, description: GpuLaunch, arrays: Sequence[tuple[int, DType]], count: int, formula: LaunchFormula
    ) -> None:
        """`arrays` are the rank and dtype of each array; a call has `count` scalar arguments besides."""
        self.description = description
        self._slots, self._dtypes = description.slots, [dtype for _, dtype in arrays]
        self._tiled = [slot for slot in self._slots if isinstance(slot, TiledArray)]
        self._maps = [(self._encoding(slot), memory_for_maps(len(slot.axes))) for slot in self._tiled]
        inputs = sum(1 + 2 * axes for axes, _ in arrays)
        own = sum(isinstance(slot, Table | ScratchMemory) for slot in self._slots)
        recorder = Recorder(inputs + count + own)
        self._arrays = placed_arrays(recorder.given, [axes for axes, _ in arrays])
        self._pointers = there_at_least(self._arrays)
        form = formula(recorder.given[inputs : inputs + count])
        recorder.want(*form.conditions, *(side <= MOST_WORKGROUPS for side in form.grid))
        stored = [*self._sides(), *self._words(form, iter(recorder.given[inputs + count :]))]
        mapped = [self._pointers[slot.array] for slot in self._tiled]
        program, (stores, grid, pointers) = recorder.finished(stored, [*form.grid, form.uses_pdl], mapped)
        layout = FrameLayout.of(description)
        memory = in_memory(program)
        self.compilable = CompilableProgram(program, memory, (*stores, *grid, *pointers))
        self._fields = {
            "program": memory,
            "numbers": program.numbers,
            "inputs": inputs + count,
            "stores": len(stores),
            "stored": words(stores),
            "grid": words(grid),
            "maps": len(self._maps),
            "encodings": words(self._encoded(pointers, layout)),
            **_frame(layout),
        }

    def record(self, driver: Mapping[str, int], fixed: Sequence[int]) -> NativeRecord:
        """Return a launch record with a driver's functions and the addresses of tables and scratch memory."""
        own = {"fixed": len(fixed), "fixed_words": words(fixed)}
        return NativeRecord(LAUNCH, {**self._fields, **own, **driver}, self._maps)

    def _sides(self) -> Iterator[Number]:
        """Yield the sizes and strides of tensor maps."""
        for slot in self._tiled:
            _, lengths, steps = self._arrays[slot.array]
            axes = slot.axes[::-1]
            sides = [lengths[axis] for axis in axes], [steps[axis] for axis in axes]
            yield from map_numbers(*sides, self._dtypes[slot.array].bytes)

    def _words(self, form: LaunchForm, fixed: Iterator[Number]) -> Iterator[Number]:
        """Yield the word of each parameter."""
        for slot in self._slots:
            match slot:
                case Address(array):
                    yield self._pointers[array]
                case Stride(array, axis):
                    yield self._arrays[array].steps[axis]
                case SymbolArgument(index) | ScalarSlot(index):
                    yield form.numbers[index]
                case TiledArray():
                    yield 0  # the tensor map is elsewhere in the frame
                case Table() | ScratchMemory():
                    yield next(fixed)

    def _encoding(self, slot: TiledArray) -> Encoding:
        assert len(slot.axes) == len(slot.box), f"a box of {slot.box} along axes {slot.axes}"
        return encoding(slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes, self._dtypes[slot.array])

    def _encoded(self, pointers: Sequence[int], layout: FrameLayout) -> list[int]:
        """Return all maps as records of `MAP`; each array's address is one of the program's numbers."""
        found = []
        for i, ((kind, room), pointer) in enumerate(zip(self._maps, pointers, strict=True)):
            box, sizes_at = ctypes.addressof(kind.box), layout.map_numbers_at[i]
            found += [i * MAP_BYTES, kind.dtype, kind.rank, pointer, sizes_at, sizes_at + 8 * kind.rank]
            found += [box, box + kind.units_at, kind.interleave, kind.swizzle, kind.promotion, kind.fill]
            found.append(ctypes.addressof(room))
        assert len(found) == len(self._maps) * len(MAP), "a word for each field"
        return found


def _frame(layout: FrameLayout) -> dict[str, Any]:
    """Return the frame's fields of a record of `LAUNCH`."""
    assert len(layout.image) % 8 == 0, "machine code copies words"
    return {
        "image": ctypes.create_string_buffer(layout.image, len(layout.image)),
        "frame_bytes": len(layout.image),
        "stores_at": layout.words_at,
        "pointers_at": layout.pointers_at,
        "parameters": len(layout.parameters_at),
        "parameters_at": words(layout.parameters_at),
        "config_at": layout.config_at,
        "attributes_at": layout.attributes_at,
        "attributes": len(layout.attributes),
        "uses_pdl": int(layout.uses_pdl),
    }


def tensor_map(slot: TiledArray, view: ArrayView) -> TensorMap:
    """Return the tensor map of an array in a slot; its `problem` says whether TMA can load the array."""
    sizes, strides = tuple([view.shape[a] for a in slot.axes]), tuple([view.strides[a] for a in slot.axes])
    return TensorMap(view.dtype, sizes, strides, slot.box, slot.swizzle_bytes, slot.l2_promotion_bytes)
