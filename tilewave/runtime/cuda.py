"""A kernel's PTX on whichever NVIDIA GPU its arrays are: assembled once per device, launched on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewave.errors import NOWHERE, CallError, here
from tilewave.forks import cached_property
from tilewave.ir.types import DType
from tilewave.runtime.array_layouts import ArrayPlaces, places_of
from tilewave.runtime.arrays import ArrayView, Parameter, check_call, device_number
from tilewave.runtime.call_class import CallLook, NativeCalls
from tilewave.runtime.cuda_driver import LEGACY_STREAMS, CudaDriver, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher, raise_failure
from tilewave.runtime.dlpack import Refused, dtype_word
from tilewave.runtime.foreign_arrays import DEVICES, Facts, key_of, machine_reader, stream_of
from tilewave.runtime.gpu_launch import GpuLaunch, LaunchFormula, SameGrid, ScratchMemory
from tilewave.runtime.launch_template import LaunchTemplate
from tilewave.runtime.native.records import LAUNCHED, UNKNOWN
from tilewave.runtime.scalars import word_maker
from tilewave.runtime.sizes import Size, SizedCall

Key = tuple[Any, ...]
"""What calls are known by."""

KEPT_CALLS = 1024
"""Kinds of calls that a program remembers; more different ones in turn, and it starts afresh."""


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


class LaunchKind(Protocol):
    """How a kernel is launched with arrays that lie alike."""

    def launch(self, places: ArrayPlaces, numbers: Sequence[int]) -> bool:
        """With arrays that have been checked; whether that was a launch of this kind, and has been made."""


@dataclass(frozen=True)
class GivenNumber:
    """A number that a call gives itself: where it stands among all, and whether it is but computed with."""

    index: int
    name: str
    dtype: DType

    @cached_property
    def word_of(self) -> Callable[[Any], int]:
        """What makes a word of its launch of it."""
        return word_maker(self.dtype)


@dataclass
class CudaProgram:
    """Code that can be called; the driver is asked for when it first is."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)
    _kinds: dict[Key, LaunchKind] = field(default_factory=dict, repr=False)
    """By how arrays lie; or by all that is to be said of arrays of which no look is sure."""
    _accepted: set[Key] = field(default_factory=set, repr=False)
    """Devices, dtypes and whatever else decides, of arrays that have been checked."""
    _native: NativeCalls | None = field(default=None, init=False, repr=False)
    """Makes the calls that machine code knows."""
    _caller: Callable[[Any, tuple[int, ...]], int] | None = field(default=None, init=False, repr=False)
    """The same for tensors that it can read."""
    _names: tuple[str, ...] = field(init=False, repr=False)
    _has_scratch: bool = field(init=False, repr=False)
    given: tuple[GivenNumber, ...] = field(default=(), kw_only=True)
    """The numbers that a call by names gives; others come with its arrays."""

    def __post_init__(self) -> None:
        self._names = tuple(p.name for p in self.code.parameters)
        self._has_scratch = any(isinstance(slot, ScratchMemory) for slot in self.code.launch.slots)

    def __call__(
        self, arrays: Sequence[object], numbers: Sequence[int] = (), parameters: tuple[Parameter, ...] | None = None
    ) -> None:
        """Launch it on the arrays' device and stream; nothing is copied and nothing waited for.

        `parameters` say what this call's arrays must be, where it is not the same for all.
        """
        found = SizedCall({}, tuple(numbers), self.code.parameters if parameters is None else parameters)
        facts, stream = self._facts(arrays)
        self._launch_new(arrays, found, stream if facts else None)

    def call(self, arrays: Sequence[object], given: Mapping[str, Any], sized: Size) -> None:
        """The same for a call that may be known by what it gives; else `sized` tells its numbers and parameters."""
        if len(given) != len(self.given):
            sized(arrays, given)  # a size that is given too is held against the arrays
        numbers = tuple([one.word_of(given[one.name]) for one in self.given]) if self.given else ()
        said = UNKNOWN if self._caller is None else self._caller(tuple(arrays), numbers)
        if said:
            self._call_closely(arrays, given, numbers, sized, said)

    def _call_closely(
        self, arrays: Sequence[object], given: Mapping[str, Any], numbers: tuple[int, ...], sized: Size, said: int
    ) -> None:
        """A call that machine code does not know: of other libraries' arrays, or such as were not there before."""
        if said != UNKNOWN:
            raise_failure(cuda_driver(self.code.kernel), self.code.kernel, said)
        facts, stream = self._facts(arrays)
        if not facts:
            self._launch_new(arrays, sized(arrays, given), None)
            return
        places, others = facts[:DEVICES], facts[DEVICES:]
        number = others[0][0]
        if self._native is not None and others in self._accepted:
            said = self._native(places, numbers, number, stream)
            if said == LAUNCHED:
                return
            raise_failure(cuda_driver(self.code.kernel), self.code.kernel, said)
        recording = self._recording(number, stream) if self._has_scratch else 0
        seen = sized.look.at(places, numbers)
        key = (seen.layout if seen else (places, numbers)), others, stream, recording
        kind = self._kinds.get(key) if seen is None or sized.knows(seen, places) else None
        if kind is None or not kind.launch(places, seen.numbers if seen else sized(arrays, given).numbers):
            kind = self._launch_new(arrays, sized(arrays, given), stream)
            self._remember(key, kind)
        if seen is not None and not recording and isinstance(kind, LaunchTemplate):
            self._know(sized.look).know(seen, number, stream, kind.record)

    def replay(self, arrays: Sequence[object], given: Mapping[str, Any]) -> Callable[..., int] | None:
        """The call of arrays that lie as these, which machine code knows by now."""
        facts, _ = self._facts(arrays)
        if not facts or self._native is None or facts[DEVICES:] not in self._accepted:
            return None
        numbers = tuple([one.word_of(given[one.name]) for one in self.given])
        found: Callable[..., int] | None
        found = self._native.replay(facts[:DEVICES], numbers, facts[DEVICES][0], self)
        return found

    def _remember(self, key: Key, kind: LaunchKind) -> None:
        if len(self._kinds) >= KEPT_CALLS:
            self._kinds.clear()
            self._accepted.clear()
        self._kinds[key] = kind
        self._accepted.add(key[1])

    def _know(self, look: CallLook) -> NativeCalls:
        """What machine code knows, with room for more."""
        reader = machine_reader()
        if self._native is None or self._native.reader is not reader:
            driver, kernel = cuda_driver(self.code.kernel), self.code.kernel
            asked = driver.address("cuStreamIsCapturing", kernel) if self._has_scratch else 0
            dtypes = [dtype_word(p.stored) for p in self.code.parameters]
            self._native = NativeCalls(look, dtypes, asked, reader)
            self._caller = self._native.with_tensors
        if len(self._native) >= KEPT_CALLS:
            self._native.forget()
        return self._native

    def _facts(self, arrays: Sequence[object]) -> tuple[Facts, int]:
        try:
            return key_of(arrays, self._names)
        except Refused as refused:
            raise self._told(refused) from None

    def _recording(self, number: int, stream: int) -> int:
        """The number of the recording that this launch goes into, which has scratch memory of its own; 0: it runs."""
        found = None if stream in LEGACY_STREAMS else cuda_driver(self.code.kernel).recording(number, stream)
        return 0 if found is None else found.number

    def _launch_new(self, arrays: Sequence[object], found: SizedCall, known_stream: int | None) -> LaunchKind:
        """Launch arrays that are looked at closely; the kind that serves all which lie alike."""
        driver = cuda_driver(self.code.kernel)
        try:
            views = check_call(self.code.kernel, found.parameters, arrays, "cuda", NOWHERE, driver.device_of)
            number = device_number(views)
            stream = stream_of(arrays, self._names, number) if known_stream is None else known_stream
            kind = self.launch_kind(views, found.numbers, number, stream, found.parameters)
        except (CallError, Refused) as error:  # looking for the author's line costs more than a launch
            raise self._told(error) from None
        launched = kind.launch(places_of(views), found.numbers)
        assert launched, "it is the launching of these arrays"
        return kind

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
        return self.by_template(views, len(numbers), SameGrid(self.code.launch.grid), number, stream)

    def by_template(
        self, views: Sequence[ArrayView], count: int, formula: LaunchFormula, number: int, stream: int
    ) -> LaunchTemplate:
        """Its launch with all that follows from how arrays lie worked out; a call has so many numbers."""
        return self._on(number).launcher.template(views, count, formula, stream)

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
