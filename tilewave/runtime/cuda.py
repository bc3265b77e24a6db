"""A kernel's PTX on whichever NVIDIA GPU its arrays are: assembled once per device, launched on the current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from tilewave.errors import NOWHERE, CallError, here
from tilewave.ir.types import INDEX, DType
from tilewave.runtime.array_places import ArrayPlaces, Lie, apart_code, kinds_of, lie_code, places_of
from tilewave.runtime.arrays import ArrayView, Parameter, check_call, device_number
from tilewave.runtime.cuda_driver import LEGACY_STREAMS, CudaDriver, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import DEVICES, key_of, stream_of
from tilewave.runtime.gpu_launch import GpuLaunch, LaunchText, ScalarSlot, ScratchMemory
from tilewave.runtime.launch_template import LaunchTemplate, Prepared
from tilewave.runtime.scalars import word_of
from tilewave.runtime.sizes import Size, SizedCall

V = TypeVar("V")
_NONE: Sequence[int] = ()
Key = tuple[Any, ...]
"""What calls are known by: facts of all arrays, a stream, the graph that records it, and the numbers that decide."""

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
    """The launch of calls that have nothing to compute."""

    def launch(self, frame: object) -> None:
        pass


class LaunchKind(Protocol):
    """How a kernel is launched with arrays that lie alike."""

    def at(self, places: ArrayPlaces, numbers: Sequence[int]) -> Prepared | None:
        """With arrays that have been checked; None where that is no launch of this kind."""


class KnownSizes(NamedTuple):
    """The sizes of a call that somebody has found right."""

    numbers: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    def __call__(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        return SizedCall({}, self.numbers, self.parameters)

    def quick(self, places: ArrayPlaces, given: Mapping[str, Any]) -> tuple[Lie, tuple[int, ...]] | None:
        ranks = tuple([len(p.shape) for p in self.parameters])
        fit = [*map(tuple, places[1])] == [p.shape for p in self.parameters]
        apart = fit and apart_code(ranks, kinds_of(self.parameters))(*places)
        return (lie_code(ranks)(*places), self.numbers) if apart else None


@dataclass(frozen=True)
class GivenNumber:
    """A number that a call gives itself: where it stands among all, and whether it is but computed with."""

    index: int
    name: str
    dtype: DType

    @property
    def is_symbol(self) -> bool:
        return self.dtype == INDEX


@dataclass
class CudaProgram:
    """Code that can be called; the driver is asked for when it first is."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)
    _prepared: dict[Key, Prepared | None] = field(default_factory=dict, repr=False)
    """None where arrays came once."""
    _templates: dict[Key, LaunchKind] = field(default_factory=dict, repr=False)
    """By how arrays lie."""
    _names: tuple[str, ...] = field(init=False, repr=False)
    _has_scratch: bool = field(init=False, repr=False)
    given: tuple[GivenNumber, ...] = field(default=(), kw_only=True)
    """The numbers that a call by names gives; others come with its arrays."""

    def __post_init__(self) -> None:
        self._names = tuple(p.name for p in self.code.parameters)
        self._has_scratch = any(isinstance(slot, ScratchMemory) for slot in self.code.launch.slots)
        slots = [slot.index for slot in self.code.launch.slots if isinstance(slot, ScalarSlot)]
        self._scalars = [one.index for one in self.given if not one.is_symbol] if self.given else slots
        self._symbols = [one.name for one in self.given if one.is_symbol]
        self._words = [(one.name, one.dtype) for one in self.given if not one.is_symbol]

    def __call__(
        self, arrays: Sequence[object], numbers: Sequence[int] = (), parameters: tuple[Parameter, ...] | None = None
    ) -> None:
        """Launch it on the arrays' device and stream; nothing is copied and nothing waited for.

        `parameters` say what this call's arrays must be, where it is not the same for all.
        """
        sized = KnownSizes(tuple(numbers), self.code.parameters if parameters is None else parameters)
        deciding, scalars = numbers, _NONE
        if self._scalars:
            deciding = [n for i, n in enumerate(numbers) if i not in self._scalars]
            scalars = [numbers[i] for i in self._scalars]
        self._launch(arrays, {}, deciding, scalars, sized)

    def call(self, arrays: Sequence[object], given: Mapping[str, Any], sized: Size) -> None:
        """The same for a call that may be known by what it gives; else `sized` tells its numbers and parameters."""
        if len(given) != len(self.given):  # a size that is given too is yet to be held against the arrays
            found = sized(arrays, given)
            self(arrays, found.numbers, found.parameters)
            return
        symbols = [given[name] for name in self._symbols] if self._symbols else ()
        words = [word_of(given[name], dtype) for name, dtype in self._words] if self._words else ()
        self._launch(arrays, given, symbols, words, sized)

    def _launch(
        self,
        arrays: Sequence[object],
        given: Mapping[str, Any],
        deciding: Sequence[int],
        scalars: Sequence[int],
        sized: Size,
    ) -> None:
        """`deciding` are the numbers that more depends on than the kernel's own arithmetic, which has `scalars`."""
        try:
            facts, stream = key_of(arrays, self._names)
        except Refused as refused:
            raise self._told(refused) from None
        key: Key = ()
        if facts:
            key = facts, stream, self._has_scratch and self._recording(facts[DEVICES][0], stream), *deciding
        prepared = self._prepared.get(key)
        if prepared is None or (scalars and scalars != [prepared.numbers[i] for i in self._scalars]):
            self._launch_new(arrays, key, given, sized)
        else:
            prepared.launcher.launch(prepared.frame)

    def _launch_new(self, arrays: Sequence[object], key: Key, given: Mapping[str, Any], sized: Size) -> None:
        """Most arrays come once, and their launch leaves nothing behind; it is kept when they come again."""
        prepared = self._like(key, given, sized) or self._prepare(arrays, key, given, sized)
        prepared.launcher.launch(prepared.frame)
        known = self._prepared.get(key, prepared)
        if known is None:
            self._prepared[key] = prepared
            return
        if key and known is prepared:
            _kept(self._prepared, key, None)
        prepared.give_back()

    def _like(self, key: Key, given: Mapping[str, Any], sized: Size) -> Prepared | None:
        """The launch of arrays that lie as others before; what is not quickly seen is looked at closely."""
        if not key:
            return None
        facts, *rest = key
        places = facts[:DEVICES]
        found = sized.quick(places, given)
        if found is None:
            return None
        lie, numbers = found
        template = self._templates.get((lie, facts[DEVICES:], *rest))
        return None if template is None else template.at(places, numbers)

    def _recording(self, number: int, stream: int) -> int:
        """The number of the recording that this launch goes into, which has scratch memory of its own; 0: it runs."""
        found = None if stream in LEGACY_STREAMS else cuda_driver(self.code.kernel).recording(number, stream)
        return 0 if found is None else found.number

    def _prepare(self, arrays: Sequence[object], key: Key, given: Mapping[str, Any], sized: Size) -> Prepared:
        """The launch of arrays that are looked at closely; it is kept for these, and for all that lie alike."""
        found = sized(arrays, given)
        driver = cuda_driver(self.code.kernel)
        try:
            views = check_call(self.code.kernel, found.parameters, arrays, "cuda", NOWHERE, driver.device_of)
            number = device_number(views)
            stream = key[1] if key else stream_of(arrays, self._names, number)
            launch = self.launch_kind(views, found.numbers, number, stream, found.parameters)
        except (CallError, Refused) as error:  # looking for the author's line costs more than a launch
            raise self._told(error) from None
        places = places_of(views)
        prepared = launch.at(places, found.numbers)
        assert prepared is not None, "it is the launching of these arrays"
        if key:
            facts, *rest = key
            lie = lie_code(tuple([len(v.shape) for v in views]))(*places)
            _kept(self._templates, (lie, facts[DEVICES:], *rest), launch)
        return prepared

    def _told(self, error: CallError | Refused) -> CallError:
        """With the author's line."""
        if isinstance(error, CallError):
            return error.at(here())
        return CallError(f"{self.code.kernel}: {error.what}", loc=here(), remedy=error.remedy)

    def launch_kind(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        number: int,
        stream: int,
        parameters: tuple[Parameter, ...],
    ) -> LaunchKind:
        """How it is launched with arrays that lie as these, on the device of that number; they have been checked."""
        return self.by_template(views, LaunchText.of(len(numbers), self.code.launch.grid), number, stream)

    def by_template(self, views: Sequence[ArrayView], text: LaunchText, number: int, stream: int) -> LaunchTemplate:
        """Its launch with all that follows from how arrays lie worked out."""
        return self._on(number).launcher.template(views, text, stream)

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
