"""The copies around a launch whose arrays are repacked: their code, their launches, and the memory between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.make import launch_of_code, maker
from tilewave.backend.nvidia.repacking import CopyGroup, RepackedArray, RowCopy, copy_groups, private_bytes
from tilewave.ir.launch import LaunchCode, numbers_of
from tilewave.machine.chips import Chip
from tilewave.runtime.array_places import ArrayPlaces
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cache import compile_key
from tilewave.runtime.cuda import CudaCode, CudaProgram, Prepared
from tilewave.runtime.cuda_driver import cuda_driver
from tilewave.runtime.cuda_launch import Launcher
from tilewave.runtime.gpu_launch import LaunchShape
from tilewave.runtime.launch_sequence import LaunchSequence, PrivateMemory, SequencedLaunch, SequenceFrames


class LaunchPlace(NamedTuple):
    """A device by its number, and one of its streams."""

    number: int
    stream: int


class LaunchedCopy(NamedTuple):
    """Code of a copy, and what its launches compute."""

    program: CudaProgram
    launched: LaunchCode


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

    def memory(self, arrays: Sequence[RepackedArray], views: Sequence[ArrayView], on: LaunchPlace) -> int:
        """The address of private memory for them."""
        return self.private.at_least(private_bytes(arrays, views), cuda_driver(), *on)

    def around(
        self,
        arrays: Sequence[RepackedArray],
        views: Sequence[ArrayView],
        memory: int,
        on: LaunchPlace,
        main: Prepared,
    ) -> Prepared:
        """A launch that finds these arrays in private memory, with the copies in front of it and behind it."""
        before, after = (
            [self._launch(group, views, memory, on) for group in groups] for groups in copy_groups(arrays, views)
        )
        assert isinstance(main.launcher, Launcher)
        launches = (*before, SequencedLaunch(main.launcher, main.frame), *after)
        return Prepared(LaunchSequence(), SequenceFrames(launches, len(before)), main.numbers)

    def _launch(self, group: CopyGroup, views: Sequence[ArrayView], memory: int, on: LaunchPlace) -> SequencedLaunch:
        program, launched = self._on_card(group.copy)
        arrays, numbers = group.bound(views, memory)
        workgroups, passed = launched(numbers)
        shape = LaunchShape((workgroups, 1, 1), starts_early=False)
        template = program.template(arrays, *on)
        return SequencedLaunch(template.launcher, template.at(ArrayPlaces.of_views(arrays), passed, shape))

    def _on_card(self, copy: RowCopy) -> LaunchedCopy:
        if copy not in self._launched:
            code, kernel = self.code(copy), copy.kernel
            launched = code.launches.in_order([v.name for v in numbers_of(kernel)], code.symbols)
            made = CudaCode(kernel.name, self.chip.cpu, code.ptx.encode(), launch_of_code(code, kernel), ())
            self._launched[copy] = LaunchedCopy(CudaProgram(made), launched)
        return self._launched[copy]
