"""The copies around a launch whose arrays are repacked: their code, their launches, and the memory between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.make import launch_of_code, maker
from tilewave.backend.nvidia.repacking import CopyGroup, RepackedArray, RowCopy, copy_groups, private_bytes
from tilewave.ir.launch import numbers_of
from tilewave.machine.chips import Chip
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cache import compile_key
from tilewave.runtime.cuda import CudaCode, CudaProgram
from tilewave.runtime.cuda_driver import cuda_driver
from tilewave.runtime.cuda_launch import LaunchTemplate
from tilewave.runtime.gpu_launch import LaunchShape
from tilewave.runtime.launch_numbers import InOrder
from tilewave.runtime.launch_sequence import LaunchSequence, Part, PrivateMemory, SequencedLaunch


class LaunchedCopy(NamedTuple):
    """Code of a copy, and what its launches compute."""

    program: CudaProgram
    launched: InOrder


@dataclass(frozen=True, eq=False)
class RowCopies:
    """Those of one kernel; a file brings the code of all that it may need."""

    chip: Chip
    private: PrivateMemory
    codes: dict[RowCopy, NvidiaCode] = field(default_factory=dict)
    _launched: dict[RowCopy, LaunchedCopy] = field(default_factory=dict)

    def code(self, copy: RowCopy) -> NvidiaCode:
        if copy not in self.codes:
            make = maker(compile_key(self.chip.name, repr(self.chip), str(copy.kernel)), self.chip)
            self.codes[copy] = make(Variant(), lambda _: copy.kernel)
        return self.codes[copy]

    def around(
        self,
        arrays: Sequence[RepackedArray],
        views: Sequence[ArrayView],
        on: tuple[int, int],
        main: LaunchTemplate,
    ) -> LaunchSequence:
        """A launch that finds these arrays repacked, `on` a device and one of its streams."""
        size = private_bytes(arrays, views)
        at = self.private.at_least(size, cuda_driver(main.launcher.function.name), *on).address
        before, after = (
            tuple(self._part(group, views, at, on) for group in groups) for groups in copy_groups(arrays, views)
        )
        return LaunchSequence(before, main, after, {r.array: at + r.offset_bytes for r in arrays})

    def _part(self, group: CopyGroup, views: Sequence[ArrayView], memory: int, on: tuple[int, int]) -> Part:
        program, launched = self._on_card(group.copy)

        def part(pointers: Sequence[int]) -> SequencedLaunch:
            here = [replace(v, pointer=pointer) for v, pointer in zip(views, pointers, strict=True)]
            arrays, numbers = group.bound(here, memory)
            workgroups, passed = launched(numbers)
            shape = LaunchShape((workgroups, 1, 1), starts_early=False)
            template = program.template(arrays, passed, *on, shape)
            return SequencedLaunch(template.launcher, template.at([x.pointer for x in arrays]))

        return part

    def _on_card(self, copy: RowCopy) -> LaunchedCopy:
        if copy not in self._launched:
            code, kernel = self.code(copy), copy.kernel
            launched = code.launches.in_order([v.name for v in numbers_of(kernel)], code.symbols)
            made = CudaCode(kernel.name, self.chip.cpu, code.ptx.encode(), launch_of_code(code, kernel), ())
            self._launched[copy] = LaunchedCopy(CudaProgram(made), launched)
        return self._launched[copy]
