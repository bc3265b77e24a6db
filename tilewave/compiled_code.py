"""A compiled kernel as it is read: its IR after every pass, its code, and the resources that this needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tilewave.analysis.launch_counts import Count, workgroups_of
from tilewave.backend.protocol import Build, CountedLoop, Resources
from tilewave.backend.targets import TARGETS, quoted
from tilewave.errors import SavedKernelError, TargetError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.remarks import TILES
from tilewave.pipeline.runner import Step, numbered
from tilewave.renamed import current_name, current_pass

if TYPE_CHECKING:
    from tilewave.cycles import LoopCycles
    from tilewave.tune.choose import TileChoice

T = TypeVar("T")


class CompiledCode:
    """The steps and the code of a kernel; `Compiled` is the class of such kernels that can be called."""

    kernel: Kernel
    traced: Kernel
    tile_steps: tuple[Step, ...]
    target: str
    build: Build
    file: str
    choice: TileChoice | None

    @property
    def name(self) -> str:
        return self.kernel.name

    @cached_property
    def workgroups(self) -> Count:
        """The number of workgroups (CTAs) that one launch starts; for dynamic sizes a formula, or the most, as text.

        A persistent kernel starts fewer than it has tiles: on an H200 `132`.
        """
        found = self.build.workgroups
        return workgroups_of(self.kernel) if found is None else found

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kernel before and after every pass, those of the target included.

        Where tiles were chosen, remarks that advise other tiles are left out: the search compared those.
        """
        if self.file:
            self._has_no("steps")
        steps = numbered(self.tile_steps + self.build.steps)
        return steps if self.choice is None else tuple(step.without_remarks(TILES) for step in steps)

    def ir(self, pass_name: str = "") -> Kernel:
        """Return the kernel after a pass: "trace" for the traced function, by default the last pass, or a file's IR."""
        if self.file:
            if pass_name:
                self._has_no(f"kernel after {pass_name!r}", "ir() is the kernel that it has; ")
            return self.build.lanes or self.kernel
        pass_name = current_name(f"{self.name}.ir", pass_name, current_pass(pass_name))
        made = {"trace": self.traced}
        for step in self.steps:
            made[step.name] = made[""] = step.after
        if pass_name not in made:
            known = ", ".join(name for name in made if name)
            remedy = f"the passes are {known}"
            raise TargetError(f"{self.name}: no pass is called {pass_name!r}", loc=here(), remedy=remedy)
        return made[pass_name]

    @property
    def binaries(self) -> tuple[str, ...]:
        """The array layouts that machine code was compiled for so far: each class is compiled at its first call."""
        return self.build.binaries

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR of the kernel."""
        return self._found(self.build.llvm_ir, "LLVM IR")

    @property
    def asm(self) -> str:
        """The kernel's assembly."""
        has_code = self.file and self.build.code is not None
        return self._found(self.build.asm, "assembly", "code_object is the machine code; " if has_code else "")

    @property
    def code_object(self) -> bytes:
        return self._found(self.build.code, "object code")

    @property
    def resources(self) -> Resources:
        """Waves, matrix instructions, shared bytes, loads of each lane, registers, spilled bytes and occupancy.

        On NVIDIA what ptxas counts is None where this machine has no CUDA toolkit.
        """
        found = self.build.resources
        if found is None:
            raise TargetError(f"{self.name}: nothing is counted for {self.target}", loc=here())
        return found

    @property
    def loop_statistics(self) -> CountedLoop:
        """The counts of instructions in the K loop of the target's code."""
        found = self.build.loop
        if found is None:
            able = quoted(target for target in TARGETS.values() if target.counts_loops)
            what = f"{self.name}: there is no machine code to count for {self.target}"
            raise TargetError(what, loc=here(), remedy=f"compile it with target={able}")
        return found

    def loop_cycles(
        self, latencies: Sequence[float] | None = None, workgroups: int | None = None
    ) -> tuple[LoopCycles, ...]:
        """Return the cycles of the K loop for each latency of global loads, by a model of a compute unit.

        Latencies are in cycles: without them 500, 1000 and 1500. `workgroups` run on the compute unit at once; without
        a number as many as fit. Nothing is run or measured: `notes` of the result say what is not known.
        """
        found = self.build.cycles(latencies, workgroups)
        if found is None:
            able = quoted(target for target in TARGETS.values() if target.models_cycles)
            what = f"{self.name}: there is no model of a compute unit for {self.target}"
            raise TargetError(what, loc=here(), remedy=f"compile it with target={able}")
        return found

    def _found(self, found: T | None, what: str, instead: str = "") -> T:
        if found is None:
            self._has_no(what, instead)
        return found

    def _has_no(self, what: str, instead: str = "") -> NoReturn:
        if not self.file:
            raise TargetError(f"{self.name}: there is no {what} for {self.target}", loc=here())
        remedy = f"{instead}what wave_compile(…) returns has every step"
        raise SavedKernelError(
            f"{self.name} was loaded from {self.file}, which has no {what}", loc=here(), remedy=remedy
        )
