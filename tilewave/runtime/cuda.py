"""A kernel's PTX on whichever NVIDIA GPU its arrays are: assembled once per device, launched on the current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tilewave.errors import NOWHERE, CallError, here
from tilewave.runtime.arrays import ArrayView, Parameter, Reaches, check_call, device_number
from tilewave.runtime.cuda_driver import CudaDriver, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher, LaunchTemplate
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import key_of, lie_of, stream_of
from tilewave.runtime.gpu_launch import GpuLaunch, LaunchShape, ScalarSlot, ScratchMemory
from tilewave.runtime.launch_sequence import LaunchSequence
from tilewave.runtime.sizes import Size

V = TypeVar("V")
Key = tuple[Any, ...]
"""What calls are known by: facts of all arrays, a stream, whether a graph records it, and the numbers that decide."""

KEPT_CALLS = 1024
"""Calls that a program remembers, and kinds of calls; more different ones in turn, and it starts afresh."""


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


class Nothing:
    """The launch of calls that have nothing to compute, wherever their arrays are."""

    @property
    def launcher(self) -> Nothing:
        return self

    def at(self, pointers: Sequence[int]) -> None:
        return None

    def launch(self, frame: object) -> None:
        pass

    def renumbered(self, frame: object, numbers: Sequence[int]) -> None:
        return None


Launch = LaunchTemplate | LaunchSequence | Nothing
"""What calls of one kind do, wherever their arrays are."""


class Prepared(NamedTuple):
    """A launch that can be made again and again."""

    launcher: Launcher | LaunchSequence | Nothing
    frame: Any
    numbers: tuple[int, ...]
    """Those in the frame."""


class Template(NamedTuple):
    """A launch for all arrays that lie alike."""

    launch: Launch
    reaches: Reaches
    numbers: tuple[int, ...]

    def at(self, pointers: Sequence[int]) -> Prepared:
        return Prepared(self.launch.launcher, self.launch.at(pointers), self.numbers)


@dataclass
class CudaProgram:
    """Code that can be called; the driver is asked for when it first is."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)
    _prepared: dict[Key, Prepared] = field(default_factory=dict, repr=False)
    _templates: dict[Key, Template] = field(default_factory=dict, repr=False)
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
            key = self._key(arrays, numbers if self._all_decide else self._decide(numbers))
        except Refused as refused:
            raise self._told(refused) from None
        wanted = self.code.parameters if parameters is None else parameters
        prepared = self._prepared.get(key) or self._like(key) or self._prepare(arrays, key, numbers, wanted)
        frame, launcher = prepared.frame, prepared.launcher
        if self._scalars and prepared.numbers[: len(numbers)] != tuple(numbers):
            frame = launcher.renumbered(frame, numbers)
        launcher.launch(frame)

    def call(self, arrays: Sequence[object], given: Mapping[str, Any], sized: Size) -> None:
        """The same for a call that may be known by what it gives; else `sized` tells its numbers and parameters."""
        key = self._key_of_call(arrays, given)
        prepared = self._prepared.get(key) or self._like(key)
        if prepared is None:
            found = sized(arrays, given)
            if not key:
                self(arrays, found.numbers, found.parameters)
                return
            prepared = self._prepare(arrays, key, found.numbers, found.parameters)
        prepared.launcher.launch(prepared.frame)

    def _key_of_call(self, arrays: Sequence[object], given: Mapping[str, Any]) -> Key:
        """Nothing where more decides than is told here: a size that is given is yet to be held against the arrays."""
        if self._scalars or self.deciding is None or len(given) != len(self.deciding):
            return ()
        try:
            return self._key(arrays, [given.get(name) for _, name in self.deciding] if given else ())
        except Refused:
            return ()

    def _key(self, arrays: Sequence[object], deciding: Sequence[Any]) -> Key:
        """All that decides a launch; nothing where some array is no guest's, and is looked at anew in every call."""
        facts, stream = key_of(arrays, self._names)
        if not facts:
            return ()
        recorded = self._has_scratch and self._is_recorded(facts[0][1], stream)
        return facts, stream, recorded, *deciding

    def _like(self, key: Key) -> Prepared | None:
        """The launch of arrays that lie as others before; where they are not apart, they are looked at closely."""
        if not key:
            return None
        facts, *rest = key
        template = self._templates.get((lie_of(facts), *rest))
        if template is None:
            return None
        pointers = [of_array[0] for of_array in facts]
        return _kept(self._prepared, key, template.at(pointers)) if template.reaches.apart(pointers) else None

    def _decide(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that more depends on than the kernel's own arithmetic, and that no array tells."""
        if self.deciding is not None:
            return [numbers[i] for i, _ in self.deciding]
        return [number for i, number in enumerate(numbers) if i not in self._scalars]

    def _is_recorded(self, number: int, stream: int) -> bool:
        """Whether this launch goes into a graph, which has scratch memory of its own."""
        return cuda_driver(self.code.kernel).capturing(number, stream)

    def _prepare(
        self, arrays: Sequence[object], key: Key, numbers: Sequence[int], parameters: tuple[Parameter, ...]
    ) -> Prepared:
        """The launch of arrays that are looked at closely; it is kept for these, and for all that lie alike."""
        driver = cuda_driver(self.code.kernel)
        try:
            views = check_call(self.code.kernel, parameters, arrays, "cuda", NOWHERE, driver.device_of)
            number = device_number(views)
            stream = key[1] if key else stream_of(arrays, self._names, number)
            launch = self.prepare(views, numbers, number, stream, parameters)
        except (CallError, Refused) as error:  # looking for the author's line costs more than a launch
            raise self._told(error) from None
        template = Template(launch, Reaches.of(parameters, views), tuple(numbers))
        prepared = template.at([v.pointer for v in views])
        if key:
            _kept(self._templates, (lie_of(key[0]), *key[1:]), template)
            _kept(self._prepared, key, prepared)
        return prepared

    def _told(self, error: CallError | Refused) -> CallError:
        """With the author's line."""
        if isinstance(error, CallError):
            return error.at(here())
        return CallError(f"{self.code.kernel}: {error.what}", loc=here(), remedy=error.remedy)

    def prepare(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        number: int,
        stream: int,
        parameters: tuple[Parameter, ...],
    ) -> Launch:
        """All that launches with such arrays need, on the device of that number; the arrays have been checked."""
        return self.template(views, numbers, number, stream)

    def template(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        number: int,
        stream: int,
        shape: LaunchShape | None = None,
    ) -> LaunchTemplate:
        """The same, where the sizes of a call decide how many workgroups there are."""
        return self._on(number).launcher.prepare(views, numbers, stream, shape)

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


def _kept(known: dict[Key, V], key: Key, value: V) -> V:
    """Remembered; what was remembered before is forgotten where it is too much."""
    if len(known) >= KEPT_CALLS:
        known.clear()
    known[key] = value
    return value
