"""Several launches that a call makes one behind the other, in place of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilewave.runtime.cuda_driver import CudaDriver, DeviceMemory
from tilewave.runtime.cuda_launch import RECORDED, Launcher, LaunchFrame, LaunchTemplate


class SequencedLaunch(NamedTuple):
    """One of them, ready to be made."""

    launcher: Launcher
    frame: LaunchFrame


Part = Callable[[Sequence[int]], SequencedLaunch]
"""A launch for arrays at these addresses."""


@dataclass(frozen=True, eq=False)
class LaunchSequence:
    """A launch with others around it: `before` copies some arrays to memory of its own, and `after` copies back."""

    before: tuple[Part, ...]
    main: LaunchTemplate
    after: tuple[Part, ...]
    instead: Mapping[int, int]
    """Which arrays the launch finds elsewhere, and where."""

    @property
    def launcher(self) -> LaunchSequence:
        return self

    def at(self, pointers: Sequence[int]) -> tuple[SequencedLaunch, ...]:
        """The launches with arrays at these addresses."""
        own = [self.instead.get(array, pointer) for array, pointer in enumerate(pointers)]
        main = SequencedLaunch(self.main.launcher, self.main.at(own))
        return (*(part(pointers) for part in self.before), main, *(part(pointers) for part in self.after))

    def launch(self, launches: Sequence[SequencedLaunch]) -> None:
        for launcher, frame in launches:
            launcher.launch(frame)

    def renumbered(self, launches: Sequence[SequencedLaunch], numbers: Sequence[int]) -> tuple[SequencedLaunch, ...]:
        """The same with other numbers for the kernel's arithmetic, of which copies know nothing."""
        at = len(self.before)
        launcher, frame = launches[at]
        main = SequencedLaunch(launcher, launcher.renumbered(frame, numbers))
        return (*launches[:at], main, *launches[at + 1 :])


class PrivateMemory:
    """Memory of a kernel's own, which the launches on one stream share; it grows, and holds anything at first.

    Launches that a graph records share theirs with all graphs of the kernel, as with `ScratchMemory`. What became too
    small is kept, for launches that were prepared with it; each is larger by half at least, so that all of them
    together are no more than three times the last.
    """

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._kept: dict[tuple[int, int], list[DeviceMemory]] = {}

    def at_least(self, size: int, driver: CudaDriver, number: int, stream: int) -> DeviceMemory:
        recorded = driver.capturing(number, stream)
        kept = self._kept.setdefault((number, RECORDED if recorded else stream), [])
        if not kept or kept[-1].bytes < size:
            wanted = max(size, kept[-1].bytes * 3 // 2 if kept else 0)
            kept.append(DeviceMemory.unfilled(driver, number, wanted, self._kernel))
        return kept[-1]
