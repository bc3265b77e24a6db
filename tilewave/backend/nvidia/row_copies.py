"""The packing copies around a launch: their code, their launches, and the private memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cache

from tilewave.backend.nvidia.code import ALIGNED, NvidiaCode
from tilewave.backend.nvidia.make import launch_of_code, maker
from tilewave.backend.nvidia.packing import CopyGroup, PackedArray, RowCopy, copy_groups, private_bytes
from tilewave.ir.host_program import Number
from tilewave.ir.launch import numbers_of
from tilewave.ir.types import Memory
from tilewave.machine.chips import Chip
from tilewave.records import dataclass
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.cache import compile_key
from tilewave.runtime.cuda import CudaCode, CudaProgram
from tilewave.runtime.cuda_driver import CudaDriver, cuda_driver
from tilewave.runtime.gpu_launch import LaunchForm, LaunchFormula, LaunchPlace
from tilewave.runtime.launch_template import KnownLaunch, LaunchCode
from tilewave.runtime.private_memory import private_memory


@dataclass(frozen=True, eq=False)
class RowCopies:
    """The packing copies of one kernel; a file has the code of all that it may need."""

    kernel: str
    chip: Chip
    codes: dict[RowCopy, NvidiaCode] = field(default_factory=dict)

    def code(self, copy: RowCopy) -> NvidiaCode:
        if copy not in self.codes:
            make = maker(compile_key(self.chip.name, repr(self.chip), str(copy.kernel)), self.chip)
            self.codes[copy] = make(ALIGNED, lambda _: copy.kernel)
        return self.codes[copy]

    def prepare(self, arrays: Sequence[PackedArray], views: Sequence[ArrayView], number: int) -> None:
        """Load the copies for these arrays on a device."""
        for groups in copy_groups(arrays, views):
            for group in groups:
                self._program(group.copy).resources(number)

    def memory(self, arrays: Sequence[PackedArray], views: Sequence[ArrayView], on: LaunchPlace) -> int:
        """Return the address of private memory for these arrays."""
        return private_memory(cuda_driver(self.kernel)).at_least(private_bytes(arrays, views), *on, self.kernel)

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
        return self._program(group.copy).template(arrays, on).known([v.placed for v in arrays], numbers)

    def _program(self, copy: RowCopy) -> CudaProgram:
        programs = _programs(cuda_driver(self.kernel))
        found = programs.get((self.chip.cpu, copy))
        if found is None:
            made = self.code(copy)
            code = CudaCode(copy.kernel.name, self.chip.cpu, made.ptx.encode(), launch_of_copy(copy, made))
            found = programs[self.chip.cpu, copy] = CudaProgram(code)
        return found


@cache
def _programs(driver: CudaDriver) -> dict[tuple[str, RowCopy], CudaProgram]:
    """Return the packing copies that were loaded for any kernel, by architecture."""
    return {}


def _formula(copy: RowCopy, code: NvidiaCode) -> LaunchFormula:
    steps = code.launches.steps([v.name for v in numbers_of(copy.kernel)], code.symbols)

    def formula(numbers: Sequence[Number]) -> LaunchForm:
        workgroups, passed = steps(numbers)
        return LaunchForm(passed, (workgroups, 1, 1), uses_pdl=False)

    return formula


def launch_of_copy(copy: RowCopy, code: NvidiaCode) -> LaunchCode:
    """Return how a copy is launched; an exception where code is not that of the copy: a file may have any contents."""
    kernel = copy.kernel
    arrays = [(v.type.rank, v.type.dtype) for v in kernel.body.args if isinstance(v.type, Memory)]
    return LaunchCode(launch_of_code(code, kernel), arrays, len(numbers_of(kernel)), _formula(copy, code))
