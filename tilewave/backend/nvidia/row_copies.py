"""The packing copies around a launch: their code, their launches, and the private memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.make import launch_of_code, maker
from tilewave.backend.nvidia.packing import CopyGroup, PackedArray, RowCopy, copy_groups, private_bytes
from tilewave.ir.host_program import Number
from tilewave.ir.launch import numbers_of
from tilewave.ir.types import Memory
from tilewave.machine.chips import Chip
from tilewave.runtime.array_layouts import places_of
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cache import compile_key
from tilewave.runtime.cuda import CudaCode, CudaProgram
from tilewave.runtime.cuda_driver import cuda_driver
from tilewave.runtime.gpu_launch import LaunchForm, LaunchFormula
from tilewave.runtime.launch_template import KnownLaunch, LaunchCode, LaunchTemplate
from tilewave.runtime.private_memory import PrivateMemory


class LaunchPlace(NamedTuple):
    """A device by its number, and one of its streams."""

    number: int
    stream: int


@dataclass(frozen=True, eq=False)
class RowCopies:
    """The packing copies of one kernel; a file has the code of all that it may need."""

    chip: Chip
    private: PrivateMemory
    codes: dict[RowCopy, NvidiaCode] = field(default_factory=dict)
    _programs: dict[RowCopy, CudaProgram] = field(default_factory=dict)
    _templates: dict[tuple[RowCopy, LaunchPlace], LaunchTemplate] = field(default_factory=dict)

    def code(self, copy: RowCopy) -> NvidiaCode:
        if copy not in self.codes:
            make = maker(compile_key(self.chip.name, repr(self.chip), str(copy.kernel)), self.chip)
            self.codes[copy] = make(Variant(), lambda _: copy.kernel)
        return self.codes[copy]

    def memory(self, arrays: Sequence[PackedArray], views: Sequence[ArrayView], on: LaunchPlace) -> int:
        """Return the address of private memory for these arrays."""
        return self.private.at_least(private_bytes(arrays, views), cuda_driver(), *on)

    def launches(
        self, arrays: Sequence[PackedArray], views: Sequence[ArrayView], memory: int, on: LaunchPlace
    ) -> tuple[list[KnownLaunch], list[KnownLaunch]]:
        """Return the copies before and after a launch whose arrays are in private memory."""
        before, after = (
            [self._launch(group, views, memory, on) for group in groups] for groups in copy_groups(arrays, views)
        )
        return before, after

    def _launch(self, group: CopyGroup, views: Sequence[ArrayView], memory: int, on: LaunchPlace) -> KnownLaunch:
        arrays, numbers = group.bound(views, memory)
        if (group.copy, on) not in self._templates:
            self._templates[group.copy, on] = self._template(group.copy, arrays, on)
        return self._templates[group.copy, on].known(places_of(arrays), numbers)

    def _template(self, copy: RowCopy, arrays: Sequence[ArrayView], on: LaunchPlace) -> LaunchTemplate:
        code, kernel = self.code(copy), copy.kernel
        if copy not in self._programs:
            made = CudaCode(kernel.name, self.chip.cpu, code.ptx.encode(), launch_of_code(code, kernel), ())
            self._programs[copy] = CudaProgram(made)
        return self._programs[copy].by_template(arrays, len(numbers_of(kernel)), _formula(copy, code), *on)


def _formula(copy: RowCopy, code: NvidiaCode) -> LaunchFormula:
    steps = code.launches.steps([v.name for v in numbers_of(copy.kernel)], code.symbols)

    def formula(numbers: Sequence[Number]) -> LaunchForm:
        workgroups, passed = steps(numbers)
        return LaunchForm(passed, (workgroups, 1, 1), uses_pdl=False)

    return formula


def want_copy(copy: RowCopy, code: NvidiaCode) -> None:
    """Raise an exception where code cannot be launched as the copy: a file may have any contents."""
    kernel = copy.kernel
    arrays = [(v.type.rank, v.type.dtype) for v in kernel.body.args if isinstance(v.type, Memory)]
    LaunchCode(launch_of_code(code, kernel), arrays, len(numbers_of(kernel)), _formula(copy, code))
