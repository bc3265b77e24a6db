"""The calls of a kernel on NVIDIA GPUs: each finds the launch of its class in one cache, mostly by machine code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewave.errors import NOWHERE, CallError, here
from tilewave.forks import cached_property
from tilewave.ir.types import DType
from tilewave.records import dataclass
from tilewave.runtime.array_layouts import Placed
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.call_cache import KEPT_CALLS, CallCache
from tilewave.runtime.call_checks import check_call, device_number
from tilewave.runtime.call_class import CallLook, NativeCalls
from tilewave.runtime.cuda_driver import LEGACY_STREAMS, cuda_driver
from tilewave.runtime.cuda_launch import raise_failure
from tilewave.runtime.dlpack import Refused, dtype_word
from tilewave.runtime.foreign_arrays import SeenArrays, machine_reader, seen_arrays, stream_of
from tilewave.runtime.gpu_launch import LaunchPlace
from tilewave.runtime.launch_template import LaunchTemplate
from tilewave.runtime.native.records import LAUNCHED, UNKNOWN
from tilewave.runtime.scalars import word_maker
from tilewave.runtime.sizes import Size, SizedCall


class ClassLaunch(Protocol):
    """What serves the calls of one class."""

    def launch(self, placed: Placed, numbers: Sequence[int]) -> bool:
        """Launch checked arrays; return False where this launch does not serve these numbers."""


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


class CudaCalls(ABC):
    """The calls of one kernel, without copies and without waiting, on the arrays' device and stream.

    `launches` is the one cache between a call and the driver. Its keys are bytes and tuples. Machine code looks up the
    bytes: the call's class, which a program computes of the arrays' places and the scalar arguments, with the device
    and the stream. A tuple is what Python looks up where machine code found nothing: the layout, which several classes
    may share, or all places where no program classifies the call; with the arrays' other facts, the stream, and the
    graph that is being recorded.
    """

    def __init__(
        self,
        kernel: str,
        parameters: tuple[Parameter, ...],
        given: tuple[GivenNumber, ...] = (),
        has_scratch: bool = False,
    ) -> None:
        """`given` are the scalar arguments that a call passes by name; sizes come with its arrays."""
        self.kernel, self.parameters, self.given = kernel, parameters, given
        self.launches: CallCache[Any, ClassLaunch] = CallCache(KEPT_CALLS)
        self._names, self._has_scratch = tuple(p.name for p in parameters), has_scratch
        self._accepted: set[tuple[Any, ...]] = set()
        """The devices and kinds of arrays that have been checked."""
        self.native: NativeCalls | None = None
        """Makes the calls whose class machine code knows."""
        self._caller: Callable[[Any, tuple[int, ...]], int] | None = None
        """Makes a call of tensors that machine code can read."""

    @abstractmethod
    def new_launch(
        self, views: Sequence[ArrayView], numbers: Sequence[int], on: LaunchPlace, parameters: Sequence[Parameter]
    ) -> ClassLaunch:
        """Return what launches checked arrays with this layout; `parameters` describe them."""

    def __call__(
        self, arrays: Sequence[object], numbers: Sequence[int] = (), parameters: tuple[Parameter, ...] | None = None
    ) -> None:
        """Launch the kernel without a look into the cache.

        `parameters` describe this call's arrays, where they are not the same for all.
        """
        found = SizedCall({}, tuple(numbers), self.parameters if parameters is None else parameters)
        seen, stream = self._seen(arrays)
        self._launch_new(arrays, found, None if seen is None else stream)

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
            raise_failure(cuda_driver(self.kernel), self.kernel, said)
        seen, stream = self._seen(arrays)
        if seen is None:
            self._launch_new(arrays, sized(arrays, given), None)
            return
        placed, others, number = seen.placed, seen[1:], seen.devices[0]
        if self.native is not None and others in self._accepted:
            said = self.native(placed, numbers, number, stream)
            if said == LAUNCHED:
                return
            raise_failure(cuda_driver(self.kernel), self.kernel, said)
        on = LaunchPlace(number, stream)
        recording = self._recording(on) if self._has_scratch else 0
        found = sized.look.at(placed, numbers)
        key = (found.layout if found else (placed, numbers)), others, stream, recording
        launch = self.launches.get(key) if found is None or sized.knows(found, placed) else None
        if launch is None or not launch.launch(placed, found.numbers if found else sized(arrays, given).numbers):
            launch = self.launches.keep(key, self._launch_new(arrays, sized(arrays, given), stream))
            self._accepted.add(others)
        if found is not None and not recording and isinstance(launch, LaunchTemplate):
            self.launches.keep(found.key_on(on), launch)
            self._serve(sized.look)

    def replay(self, arrays: Sequence[object], given: Mapping[str, Any]) -> Callable[..., int] | None:
        """Return the replayed call for arrays with the layout of these; None where machine code cannot make it."""
        seen, _ = self._seen(arrays)
        if seen is None or self.native is None or seen[1:] not in self._accepted:
            return None
        numbers = tuple([one.word_of(given[one.name]) for one in self.given])
        found: Callable[..., int] | None = self.native.replay(seen.placed, numbers, seen.devices[0], self)
        return found

    def is_native(self, arrays: Sequence[object], given: Mapping[str, Any]) -> bool:
        """Return whether machine code makes calls of this call's class."""
        seen, stream = self._seen(arrays)
        if seen is None or self.native is None or seen[1:] not in self._accepted:
            return False
        numbers = [one.word_of(given[one.name]) for one in self.given]
        return self.native.knows(seen.placed, numbers, LaunchPlace(seen.devices[0], stream))

    def _serve(self, look: CallLook) -> None:
        """Let machine code make the calls whose classes the cache has."""
        reader = machine_reader()
        if self.native is None or self.native.reader is not reader:
            asked = cuda_driver(self.kernel).address("cuStreamIsCapturing", self.kernel) if self._has_scratch else 0
            dtypes = [dtype_word(p.stored) for p in self.parameters]
            self.native = NativeCalls(look, dtypes, asked, reader, self.launches)
            self._caller = self.native.with_tensors

    def _seen(self, arrays: Sequence[object]) -> tuple[SeenArrays | None, int]:
        try:
            return seen_arrays(arrays, self._names)
        except Refused as refused:
            raise self._described(refused) from None

    def _recording(self, on: LaunchPlace) -> int:
        """Return the number of the graph capture that the launch is recorded in, which needs its scratch; else 0."""
        found = None if on.stream in LEGACY_STREAMS else cuda_driver(self.kernel).recording(*on)
        return 0 if found is None else found.number

    def _launch_new(self, arrays: Sequence[object], found: SizedCall, known_stream: int | None) -> ClassLaunch:
        """Check the arrays, launch them, and return what launches arrays with the same layout."""
        driver = cuda_driver(self.kernel)
        try:
            views = check_call(self.kernel, found.parameters, arrays, "cuda", NOWHERE, driver.device_of)
            number = device_number(views)
            stream = stream_of(arrays, self._names, number) if known_stream is None else known_stream
            launch = self.new_launch(views, found.numbers, LaunchPlace(number, stream), found.parameters)
        except (CallError, Refused) as error:  # looking up the author's line costs more than a launch
            raise self._described(error) from None
        launched = launch.launch([v.placed for v in views], found.numbers)
        assert launched, "the launch was made for these arrays"
        return launch

    def _described(self, error: CallError | Refused) -> CallError:
        """Return the error with the author's line."""
        if isinstance(error, CallError):
            return error.at(here())
        return CallError(f"{self.kernel}: {error.what}", loc=here(), remedy=error.remedy)
