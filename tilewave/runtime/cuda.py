"""A kernel's PTX on the NVIDIA GPU of its arrays: assembled once per device, launched on the current stream."""

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
"""The key of a launch record."""

KEPT_CALLS = 1024
"""The most launch records of a program; one more clears them all."""


@dataclass(frozen=True)
class CudaCode:
    """A kernel's compiled code: PTX or a cubin, its architecture, and how to launch it."""

    kernel: str
    """The kernel's name, which is also that of its entry point."""
    arch: str
    code: bytes
    launch: GpuLaunch
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class _Loaded:
    module: CudaModule
    launcher: Launcher


class LaunchKind(Protocol):
    """A launch record for arrays with the same layout key."""

    def launch(self, places: ArrayPlaces, numbers: Sequence[int]) -> bool:
        """Launch checked arrays; return False where this record does not serve these numbers."""


@dataclass(frozen=True)
class GivenNumber:
    """A scalar argument that the caller passes: its position among the launch's numbers, its name and dtype."""

    index: int
    name: str
    dtype: DType

    @cached_property
    def word_of(self) -> Callable[[Any], int]:
        """Converts a value to the word that a launch passes."""
        return word_maker(self.dtype)


@dataclass
class CudaProgram:
    """A kernel's code, callable; the driver is loaded at the first call."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)
    _kinds: dict[Key, LaunchKind] = field(default_factory=dict, repr=False)
    """Launch records by layout key; by all facts of the arrays where `CallLook` finds no key."""
    _accepted: set[Key] = field(default_factory=set, repr=False)
    """The devices, dtypes and further facts of arrays that have been checked."""
    _native: NativeCalls | None = field(default=None, init=False, repr=False)
    """Makes the calls whose class machine code knows."""
    _caller: Callable[[Any, tuple[int, ...]], int] | None = field(default=None, init=False, repr=False)
    """Makes a call of tensors that machine code can read."""
    _names: tuple[str, ...] = field(init=False, repr=False)
    _has_scratch: bool = field(init=False, repr=False)
    given: tuple[GivenNumber, ...] = field(default=(), kw_only=True)
    """The scalar arguments that a call passes by name; sizes come with its arrays."""

    def __post_init__(self) -> None:
        self._names = tuple(p.name for p in self.code.parameters)
        self._has_scratch = any(isinstance(slot, ScratchMemory) for slot in self.code.launch.slots)

    def __call__(
        self, arrays: Sequence[object], numbers: Sequence[int] = (), parameters: tuple[Parameter, ...] | None = None
    ) -> None:
        """Launch the kernel on the arrays' device and stream, without copies and without waiting.

        `parameters` describe this call's arrays, where they are not the same for all.
        """
        found = SizedCall({}, tuple(numbers), self.code.parameters if parameters is None else parameters)
        facts, stream = self._facts(arrays)
        self._launch_new(arrays, found, stream if facts else None)

    def call(self, arrays: Sequence[object], given: Mapping[str, Any], sized: Size) -> None:
        """Launch a call, by machine code where its class is known; else `sized` computes its numbers and parameters."""
        if len(given) != len(self.given):
            sized(arrays, given)  # raises where a size that is given too does not agree with the arrays
        numbers = tuple([one.word_of(given[one.name]) for one in self.given]) if self.given else ()
        said = UNKNOWN if self._caller is None else self._caller(tuple(arrays), numbers)
        if said:
            self._call_closely(arrays, given, numbers, sized, said)

    def _call_closely(
        self, arrays: Sequence[object], given: Mapping[str, Any], numbers: tuple[int, ...], sized: Size, said: int
    ) -> None:
        """Make a call that machine code does not know: arrays of other libraries, or the first call of a class."""
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
        """Return the replayed call for arrays with the layout of these; None where machine code cannot make it."""
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
        """Return the calls that machine code makes, cleared if they are too many."""
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
            raise self._described(refused) from None

    def _recording(self, number: int, stream: int) -> int:
        """Return the number of the graph capture that the launch is recorded in, which needs its scratch; else 0."""
        found = None if stream in LEGACY_STREAMS else cuda_driver(self.code.kernel).recording(number, stream)
        return 0 if found is None else found.number

    def _launch_new(self, arrays: Sequence[object], found: SizedCall, known_stream: int | None) -> LaunchKind:
        """Check the arrays, launch them, and return the launch record for arrays with the same layout."""
        driver = cuda_driver(self.code.kernel)
        try:
            views = check_call(self.code.kernel, found.parameters, arrays, "cuda", NOWHERE, driver.device_of)
            number = device_number(views)
            stream = stream_of(arrays, self._names, number) if known_stream is None else known_stream
            kind = self.launch_kind(views, found.numbers, number, stream, found.parameters)
        except (CallError, Refused) as error:  # looking up the author's line costs more than a launch
            raise self._described(error) from None
        launched = kind.launch(places_of(views), found.numbers)
        assert launched, "the launch was made for these arrays"
        return kind

    def _described(self, error: CallError | Refused) -> CallError:
        """Return the error with the author's line."""
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
        """Return the launch record for checked arrays with this layout on device `number`."""
        return self.by_template(views, len(numbers), SameGrid(self.code.launch.grid), number, stream)

    def by_template(
        self, views: Sequence[ArrayView], count: int, formula: LaunchFormula, number: int, stream: int
    ) -> LaunchTemplate:
        """Return the launch with everything computed that the layout decides; a call has `count` scalar arguments."""
        return self._on(number).launcher.template(views, count, formula, stream)

    def resources(self, number: int = 0) -> CudaResources:
        """Return registers, spills and shared bytes, as the driver of a device reports them."""
        return self._on(number).launcher.function.resources

    def log(self, number: int = 0) -> str:
        """Return the assembler's log."""
        return self._on(number).module.log

    def _on(self, number: int) -> _Loaded:
        return self._loaded.get(number) or self._load(cuda_driver(self.code.kernel), number)

    def _load(self, driver: CudaDriver, number: int) -> _Loaded:
        c = self.code
        driver.require(c.kernel, number, c.arch)
        module = CudaModule(driver, number, c.code, c.kernel)
        made = _Loaded(module, Launcher(module.function(c.kernel), c.launch, self._names))
        return self._loaded.setdefault(number, made)
