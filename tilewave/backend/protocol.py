"""What a target says of itself, and what it makes of a kernel; everybody above asks these and knows no target by name.

A backend is light: LLVM, passes and drivers are imported when somebody builds, loads or runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tilewave.ir.core import Kernel
from tilewave.ir.places import Places
from tilewave.ir.reasons import Declined
from tilewave.pipeline.runner import Pass, Step

if TYPE_CHECKING:
    from tilewave.analysis.loads import LaneLoads
    from tilewave.emulator import EmulationReport
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order
    from tilewave.runtime.arrays import ArrayView, Parameter
    from tilewave.runtime.saved_file import Contents, Stored
    from tilewave.runtime.sizes import Size


@dataclass(frozen=True)
class BuildOptions:
    """How the author wants a kernel built, in words that every target reads."""

    prefetched: int = 0
    """Steps of a loop that loads are ahead; 0: they are not."""
    buffers: int | None = None
    """Steps that shared memory holds at once, where the author says it."""
    instruction_set: str | None = None
    in_place: bool = False
    """Whether operands are read in place, without packing before the launch."""
    sizes: tuple[tuple[str, int], ...] = ()
    """How large open sizes come at most, where that is known: what pays is judged by them, and nothing else."""


CallAgain = Callable[..., int]
"""A replayed launch: called with the arrays, of the same layout as those of an earlier call, and optionally new scalar
arguments as words, both in tuples. Returns 0 if launched; otherwise nothing was launched and a full call is needed.
"""


class CountedLoop(Protocol):
    """Instruction counts of the K loop of a kernel: a dataclass of numbers, and these."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def instructions_per_matrix(self) -> float: ...
    @property
    def heading(self) -> str:
        """For people: what the numbers are for."""

    @property
    def rows(self) -> Mapping[str, str]:
        """For people: the numbers, under what each of them is."""


class Emulated(Protocol):
    """Machine code that can be run on any CPU."""

    @abstractmethod
    def emulate(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        order: Order,
        seed: int,
        check: Check,
        limit: int | None,
    ) -> EmulationReport: ...


class Resources(Protocol):
    """What a workgroup takes of its machine; each vendor counts more."""

    @property
    def machine(self) -> str: ...
    @property
    def waves(self) -> tuple[int, ...]: ...
    @property
    def lanes(self) -> int:
        """Lanes of one wave."""

    @property
    def instructions(self) -> tuple[str, ...]:
        """The matrix instructions that were taken."""

    @property
    def shared_bytes(self) -> int: ...
    @property
    def loads(self) -> tuple[LaneLoads, ...]: ...
    @property
    def not_as_asked(self) -> tuple[str, ...]:
        """What the author wished and did not get, and why."""


@dataclass(frozen=True)
class LaneLaunch:
    """One launch of a call, for the interpreter of lanes."""

    kernel: Kernel
    views: tuple[ArrayView, ...]
    values: Mapping[str, Any]


class Build(Protocol):
    """A kernel for one target; what a target or a file does not have is None."""

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """What the target's own passes did."""

    @abstractmethod
    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        """On the target's device; `numbers` are the open symbols in the kernel's order."""

    def call(self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size) -> None:
        """Run it with what a call gives; a target that knows such calls from before need not ask for their sizes."""
        found = sized(arrays, given)
        self.run(arrays, found.numbers, found.parameters)

    def again(
        self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size, fresh: Collection[int]
    ) -> CallAgain | None:
        """Return the replayed launch for arrays with the same layout as these, which have been run; None: a full call.

        `fresh` are the indices of arrays that no other object refers to in any such call.
        """
        return None

    @abstractmethod
    def stored(self) -> Stored:
        """What a file must hold of it, for the backend's `load`."""

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """What a person may want to look at, by the suffix of a file's name."""

    def declined_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Declined, ...]:
        """What these arrays keep its code from, and why."""
        return ()

    def prepacked(self, array: Any, name: str) -> Any:
        """The operand of that name as launches had best find it, to be kept for many calls; itself where it is so."""
        return array

    @property
    def figures(self) -> Mapping[str, Any]:
        """What it takes of the machine, for tables and JSON."""
        return {}

    @property
    def lanes(self) -> Kernel | None:
        """What each lane does."""
        return None

    def lane_launches(self, views: Sequence[ArrayView], values: Mapping[str, Any]) -> Iterable[LaneLaunch]:
        """Return the lane-level launches of a call with these array layouts; `values` are its scalar arguments."""
        return () if self.lanes is None else (LaneLaunch(self.lanes, tuple(views), values),)

    @property
    def binaries(self) -> tuple[str, ...]:
        """Which arrays it has machine code for by now, one by one."""
        return ()

    @property
    def llvm_ir(self) -> str | None:
        return None

    @property
    def asm(self) -> str | None:
        return None

    @property
    def code(self) -> bytes | None:
        return None

    @property
    def resources(self) -> Resources | None:
        return None

    @property
    def assembled_figures(self) -> Mapping[str, Any]:
        """Registers, spills and occupancy from the vendor's assembler, which may take a second."""
        return {}

    @property
    def emulated(self) -> Emulated | None:
        return None

    @property
    def loop(self) -> CountedLoop | None:
        """Instruction counts of the K loop; an error where the kernel has none."""
        return None


class Backend(Protocol):
    """A target: a line of `TARGETS`."""

    name: str
    """As the author writes it, and as files and the cache know it."""
    kind: str
    """For people: `the CPU`."""
    device: str | None
    """The DLPack kind of device that arrays are on; None: no device, and it takes the CPU's arrays."""
    also_called: tuple[str, ...] = ()
    """What people write who mean one of its vendor's targets."""
    has_lanes: bool = False
    """Whether kernels can be interpreted lane by lane."""
    is_emulated: bool = False
    """Whether machine code can be run without the device."""
    counts_loops: bool = False
    """Whether the instructions of a K loop can be counted."""
    takes_instruction_sets: bool = False
    has_cost_model: bool = False
    """Whether `tilewave.tune` predicts how long a launch of its kernels takes, so that tiles can be tuned for it."""
    judges_by_sizes: bool = False
    """Whether its code of one tile may differ by how large open sizes come."""

    @property
    def most_bytes(self) -> int | None:
        """The most bytes of a tile in a workgroup; larger tiles must be split; None: no limit."""
        return None

    @abstractmethod
    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> Build:
        """A kernel on whole tiles, for this target; an error at the author's line where that cannot be."""

    @abstractmethod
    def load(self, contents: Contents, kernel: Kernel) -> Build:
        """What `Build.stored` gave to a file."""

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes after the tile level, in order, for their names: a kernel may need fewer."""

    def device_count(self) -> int:
        """How many devices of its kind are here; the machine's own memory is no device."""
        return 0

    def driver(self) -> str:
        """For people: the driver that runs its code, or why there is none; nothing where no driver is needed."""
        return ""

    def runs_on(self, number: int) -> bool:
        """Whether its code runs on that device of its kind."""
        return self.device == "cpu"

    def device_name(self, number: int) -> str:
        """For people: `NVIDIA A100 (sm_80)`."""
        return self.kind

    def check(self, options: BuildOptions) -> None:
        """Refuse what would be taken and change nothing."""
        return


def figures_of(resources: Any) -> dict[str, Any]:
    """The fields that a record of resources shows, its loads as text and last."""
    shown = [f.name for f in fields(resources) if f.repr and not f.name.startswith("loads")]
    return {**{name: getattr(resources, name) for name in shown}, "loads": [str(x) for x in resources.loads]}
