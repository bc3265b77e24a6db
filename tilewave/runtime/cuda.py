"""A kernel's PTX on whichever NVIDIA GPU its arrays are: assembled once per device, launched on the current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewave.errors import NOWHERE, CallError, here
from tilewave.runtime.arrays import ArrayView, Parameter, check_call, device_number
from tilewave.runtime.cuda_driver import CudaDriver, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher, LaunchFrame
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import key_of, stream_of
from tilewave.runtime.gpu_launch import GpuLaunch, LaunchShape, ScalarSlot, ScratchMemory

KEPT_CALLS = 1024
"""Calls that a program remembers; more different ones in turn, and it starts afresh."""


@dataclass(frozen=True)
class CudaCode:
    """What a compiler made for one kernel: PTX or a cubin, for an architecture, and how to launch it."""

    kernel: str
    """The kernel's name, which is also that of its entry."""
    arch: str
    code: bytes
    launch: GpuLaunch
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class _Loaded:
    module: CudaModule
    launcher: Launcher


class NoLauncher:
    """For calls that have nothing to compute."""

    def launch(self, frame: LaunchFrame | None) -> None:
        pass

    def renumbered(self, frame: LaunchFrame | None, numbers: Sequence[int]) -> LaunchFrame | None:
        return frame


@dataclass(frozen=True)
class Prepared:
    """A launch that can be made again and again."""

    launcher: Launcher | NoLauncher
    frame: Any
    numbers: tuple[int, ...] = ()
    """Those in the frame."""


NOTHING = Prepared(NoLauncher(), None)


@dataclass
class CudaProgram:
    """Code that can be called; the driver is asked for when it first is."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)
    _prepared: dict[tuple[Any, ...], Prepared] = field(default_factory=dict, repr=False)
    _names: tuple[str, ...] = field(init=False, repr=False)
    _has_scratch: bool = field(init=False, repr=False)
    _scalars: set[int] = field(init=False, repr=False)
    _all_decide: bool = field(init=False, repr=False)
    deciding: tuple[tuple[int, str], ...] | None = field(default=None, kw_only=True)
    """Where the numbers stand that decide a launch beside its arrays, and their names; None: all numbers do."""

    def __post_init__(self) -> None:
        self._names = tuple(p.name for p in self.code.parameters)
        self._scalars = {slot.index for slot in self.code.launch.slots if isinstance(slot, ScalarSlot)}
        self._all_decide = self.deciding is None and not self._scalars
        self._has_scratch = any(isinstance(slot, ScratchMemory) for slot in self.code.launch.slots)

    def __call__(
        self, arrays: Sequence[object], numbers: Sequence[int] = (), parameters: tuple[Parameter, ...] | None = None
    ) -> None:
        """Launch it on the arrays' device and stream; nothing is copied and nothing waited for.

        `parameters` say what this call's arrays must be, where it is not the same for all.
        """
        try:
            facts, key = key_of(arrays), None
            if facts:
                number = facts[0][0]
                stream = stream_of(arrays, self._names, number)
                recorded = self._has_scratch and self._is_recorded(number, stream)
                key = (facts, stream, recorded, *(numbers if self._all_decide else self._decide(numbers)))
            prepared = None if key is None else self._prepared.get(key)
            if prepared is None:
                prepared = self._prepare(arrays, numbers, self.code.parameters if parameters is None else parameters)
                self._keep(key, prepared)
        except CallError as error:  # looking for the author's line costs more than a launch
            raise error.at(here()) from None
        except Refused as refused:
            raise CallError(f"{self.code.kernel}: {refused.what}", loc=here(), remedy=refused.remedy) from None
        frame, launcher = prepared.frame, prepared.launcher
        if self._scalars and prepared.numbers[: len(numbers)] != tuple(numbers):
            frame = launcher.renumbered(frame, numbers)
        launcher.launch(frame)

    def again(self, arrays: Sequence[object], given: Mapping[str, Any]) -> bool:
        """Launch what these arrays and numbers launched before; False where they did not, or are not all told so."""
        facts = key_of(arrays)
        if not facts or self._scalars or self.deciding is None or len(given) != len(self.deciding):
            return False  # a size that is given too is yet to be held against the arrays
        number = facts[0][0]
        try:
            stream = stream_of(arrays, self._names, number)
        except Refused:
            return False
        recorded = self._has_scratch and self._is_recorded(number, stream)
        named = [given.get(name) for _, name in self.deciding] if self.deciding else ()
        prepared = self._prepared.get((facts, stream, recorded, *named))
        if prepared is None:
            return False
        prepared.launcher.launch(prepared.frame)
        return True

    def _decide(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that more depends on than the kernel's own arithmetic, and that no array tells."""
        if self.deciding is not None:
            return [numbers[i] for i, _ in self.deciding]
        return [number for i, number in enumerate(numbers) if i not in self._scalars]

    def _is_recorded(self, number: int, stream: int) -> bool:
        """Whether this launch goes into a graph, which has scratch memory of its own."""
        return cuda_driver(self.code.kernel).capturing(number, stream)

    def _prepare(self, arrays: Sequence[object], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> Prepared:
        kernel = self.code.kernel
        driver = cuda_driver(kernel)
        views = check_call(kernel, parameters, arrays, "cuda", NOWHERE, driver.device_of)
        number = device_number(views)
        return self.prepare(views, numbers, number, stream_of(arrays, self._names, number), parameters)

    def prepare(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        number: int,
        stream: int,
        parameters: tuple[Parameter, ...],
    ) -> Prepared:
        """All that launches with these arrays need, on the device of that number; the arrays have been checked."""
        return self.prepared(views, numbers, number, stream)

    def prepared(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        number: int,
        stream: int,
        shape: LaunchShape | None = None,
    ) -> Prepared:
        """The same, where the sizes of a call decide how many workgroups there are."""
        launcher = self._on(number).launcher
        return Prepared(launcher, launcher.prepare(views, numbers, stream, shape), tuple(numbers))

    def _keep(self, key: tuple[Any, ...] | None, prepared: Prepared) -> None:
        if key is not None:
            if len(self._prepared) >= KEPT_CALLS:
                self._prepared.clear()
            self._prepared[key] = prepared

    def resources(self, number: int = 0) -> CudaResources:
        """Registers, spills and shared bytes, as the driver of a device counts them."""
        return self._on(number).launcher.function.resources

    def log(self, number: int = 0) -> str:
        """What the assembler said."""
        return self._on(number).module.log

    def _on(self, number: int) -> _Loaded:
        return self._loaded.get(number) or self._load(cuda_driver(self.code.kernel), number)

    def _load(self, driver: CudaDriver, number: int) -> _Loaded:
        c = self.code
        driver.require(c.kernel, number, c.arch)
        module = CudaModule(driver, number, c.code, c.kernel)
        made = _Loaded(module, Launcher(module.function(c.kernel), c.launch, self._names))
        return self._loaded.setdefault(number, made)
