"""The interface of targets: what a target provides, and what it makes of a kernel; callers know no target by name.

A backend imports LLVM, passes and drivers only when a kernel is built, loaded or run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.ir.remarks import Remark
from tilewave.pipeline.runner import Pass, Step
from tilewave.records import dataclass

if TYPE_CHECKING:
    from tilewave.analysis.loads import LaneLoads
    from tilewave.cycles import LoopCycles
    from tilewave.emulator import EmulationReport
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order
    from tilewave.runtime.arrays import ArrayView, Parameter
    from tilewave.runtime.call_class import NativeCalls
    from tilewave.runtime.saved_file import Contents, Stored
    from tilewave.runtime.sizes import Size


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build, common to all targets."""

    prefetched: int | None = None
    """Loop steps by which loads are ahead; 0: none; None: the target's choice."""
    num_stages: int | None = None
    """The stages of the software pipeline in shared memory; None: the target's choice."""
    instruction_set: str | None = None
    in_place: bool = False
    """Whether operands are read in place, without packing before the launch."""


ASSEMBLED = ("registers", "spilled_bytes", "resident_waves", "most_resident_waves", "occupancy")
"""The attributes of `Resources` that need the vendor's assembler."""

ReplayedCall = Callable[..., int]
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
        """The heading of the counts, for display."""

    @property
    def rows(self) -> Mapping[str, str]:
        """The counts by label, for display."""


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
    """The resources of a workgroup on a GPU; each vendor adds more.

    What the vendor's assembler counts (`ASSEMBLED`) is None on machines without it: on NVIDIA ptxas (CUDA toolkit).
    """

    @property
    def machine(self) -> str: ...
    @property
    def waves(self) -> tuple[int, ...]: ...
    @property
    def lanes(self) -> int:
        """Lanes of one wave."""

    @property
    def instructions(self) -> tuple[str, ...]:
        """The matrix instructions used."""

    @property
    def shared_bytes(self) -> int: ...
    @property
    def loads(self) -> tuple[LaneLoads, ...]: ...
    @property
    def registers(self) -> int | None:
        """Registers of one lane at the launch."""

    @property
    def spilled_bytes(self) -> int | None:
        """Bytes of one lane that do not fit in registers."""

    @property
    def resident_waves(self) -> int | None:
        """Waves of the kernel that share a CU or SM."""

    @property
    def most_resident_waves(self) -> int:
        """Waves that a CU or SM has room for."""

    @property
    def occupancy(self) -> float | None:
        """`resident_waves` as a fraction of `most_resident_waves`."""

    @property
    def not_as_asked(self) -> tuple[str, ...]:
        """Requests that were not met, and why."""


@dataclass(frozen=True)
class LaneLaunch:
    """One launch of a call, for the lane-level interpreter."""

    kernel: Kernel
    views: tuple[ArrayView, ...]
    values: Mapping[str, Any]


class Build(Protocol):
    """A kernel for one target; what a target or a file does not have is None."""

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """The steps of the target's passes."""

    @abstractmethod
    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        """Run the kernel on the target's device; `numbers` are the dynamic symbols in the kernel's order."""

    def call(self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size) -> None:
        """Run the kernel with a call's arguments; a target may skip `sized` for calls that it has seen."""
        found = sized(arrays, given)
        self.run(arrays, found.numbers, found.parameters)

    def replay(
        self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size, fresh: Collection[int]
    ) -> ReplayedCall | None:
        """Return the replayed launch for arrays with the same layout as these, which have been run; None: a full call.

        `fresh` are the indices of arrays that share memory with no other array in any such call.
        """
        return None

    @property
    def native_calls(self) -> NativeCalls | None:
        """What makes calls of classes that were launched before by machine code, whatever their sizes."""
        return None

    def is_native(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> bool:
        """Return whether machine code makes calls such as this one, which has been made."""
        return False

    def prepare(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> None:
        """Do all that a call with arrays of this layout would wait for: compile, and load the code on their device."""
        return

    def compile_for(self, arrays: Sequence[Any]) -> None:
        """Compile the code for arrays of this layout, which need not be on the device, so that the cache has it."""
        self.code  # noqa: B018  compiled when it is first asked for

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return files for inspection, by suffix."""

    def remarks_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Remark, ...]:
        """Return remarks on what these arrays keep the code from."""
        return ()

    def prepacked(self, array: Any, name: str) -> Any:
        """Return the operand of that name packed for many calls; the array itself where packing does not help."""
        return array

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The resources of the build, for tables and JSON."""
        return {}

    @property
    def lanes(self) -> Kernel | None:
        """The lane-level kernel."""
        return None

    @property
    def workgroups(self) -> int | str | None:
        """The workgroups that one launch starts, or their formula; None: as many as the tile-level kernel has."""
        return None

    def lane_launches(self, views: Sequence[ArrayView], values: Mapping[str, Any]) -> Iterable[LaneLaunch]:
        """Return the lane-level launches of a call with these array layouts; `values` are its scalar arguments."""
        return () if self.lanes is None else (LaneLaunch(self.lanes, tuple(views), values),)

    @property
    def binaries(self) -> tuple[str, ...]:
        """Descriptions of the arrays that machine code exists for, one per variant."""
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
    def assembled_metrics(self) -> Mapping[str, Any]:
        """The attributes `ASSEMBLED` of the resources, which may take a second."""
        return {}

    @property
    def emulated(self) -> Emulated | None:
        return None

    @property
    def loop(self) -> CountedLoop | None:
        """Instruction counts of the K loop; an error where the kernel has none."""
        return None

    def cycles(self, latencies: Sequence[float] | None, workgroups: int | None) -> tuple[LoopCycles, ...] | None:
        """Return the cycles of the K loop for each latency of global loads; an error where the kernel has none."""
        return None


class Backend(Protocol):
    """A target: an entry of `TARGETS`."""

    name: str
    """The name of the target in code, files and the cache."""
    kind: str
    """The kind of target, for display: `the CPU`."""
    device: str | None
    """The DLPack kind of device that arrays are on; None: no device, and it takes the CPU's arrays."""
    also_called: tuple[str, ...] = ()
    """Other words for the vendor's targets, for hints in errors."""
    has_lanes: bool = False
    """Whether kernels can be interpreted lane by lane."""
    interprets: bool = False
    """Whether it runs the ops by which authors observe their kernels, `assert_` and `debug_log`."""
    is_emulated: bool = False
    """Whether machine code can be run without the device."""
    counts_loops: bool = False
    """Whether the instructions of a K loop can be counted."""
    models_cycles: bool = False
    """Whether the cycles of a K loop follow from a model of the compute unit."""
    takes_instruction_sets: bool = False
    has_cost_model: bool = False
    """Whether `tilewave.tune` has a cost model of its kernels, so that tiles can be tuned for it."""

    @property
    def most_bytes(self) -> int | None:
        """The most bytes of a tile in a workgroup; larger tiles must be split; None: no limit."""
        return None

    @abstractmethod
    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> Build:
        """Build a tile-level kernel for this target; raise an error at the source line where it cannot."""

    @abstractmethod
    def load(self, contents: Contents, kernel: Kernel) -> Build:
        """Return the build that `stored` wrote to a file."""

    @abstractmethod
    def stored(self, build: Build) -> Stored:
        """Return what a file must contain for `load` to return this build."""

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes after the tile level, in order, for their names: a kernel may need fewer."""

    def device_count(self) -> int:
        """Return the number of devices of its kind on this machine; host memory is not a device."""
        return 0

    def driver(self) -> str:
        """Return the driver, or why there is none, for display; "" where no driver is needed."""
        return ""

    def runs_on(self, number: int) -> bool:
        """Return whether its code runs on that device of its kind."""
        return self.device == "cpu"

    def device_name(self, number: int) -> str:
        """Return the device's name for display: `NVIDIA A100 (sm_80)`."""
        return self.kind

    def check(self, options: BuildOptions) -> None:
        """Raise an error for options that the target would silently ignore."""
        return


def metrics_of(resources: Any) -> dict[str, Any]:
    """Return the displayed fields of a record of resources, its loads as text and last."""
    shown = [f.name for f in fields(resources) if f.repr and not f.name.startswith("loads")]
    return {**{name: getattr(resources, name) for name in shown}, "loads": [str(x) for x in resources.loads]}


def occupancy_of(resident_waves: int | None, most: int) -> float | None:
    """Return resident waves as a fraction of the most, rounded for display."""
    return None if resident_waves is None else round(resident_waves / most, 4)
