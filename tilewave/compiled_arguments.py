"""The arguments of a compiled kernel as its author sees them, and the schedule that they decide."""

from __future__ import annotations

from typing import Any

from tilewave.analysis.schedule import Schedule
from tilewave.analysis.size_proofs import Verdicts
from tilewave.arguments import KernelArguments
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.lang.assumptions import Assumed
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.signature import Signature
from tilewave.runtime.sizes import Sizes


class CompiledArguments:
    """The arguments of a kernel's calls; `Compiled` is the class of such kernels that can be called."""

    kernel: Kernel
    dynamic_symbols: tuple[str, ...]
    verdicts: Verdicts
    assumed: tuple[Assumed, ...]

    @cached_property
    def arguments(self) -> KernelArguments:
        """The arguments that calls pass."""
        return KernelArguments(self.kernel, self.dynamic_symbols, self.verdicts, self.assumed)

    @property
    def sizes(self) -> Sizes:
        return self.arguments.sizes

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that the arrays of each call give."""
        return self.arguments.open_sizes

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arrays that the kernel was compiled for; an error where sizes are dynamic."""
        return self.arguments.parameters

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The scalar arguments in the kernel's order: parameters such as `alpha: f32`, sizes and dynamic symbols."""
        return self.arguments.numbers

    @property
    def signature(self) -> Signature:
        """The author's parameters: arrays and scalars, in order."""
        return self.arguments.signature

    @property
    def schedule(self) -> Schedule:
        """The tiles of each workgroup, in order."""
        return self.arguments.schedule

    def schedule_for(self, /, **symbols: Any) -> Schedule:
        """Return the schedule for given dynamic symbols, and for parameters that decide it.

        Raises if a tile is lost or computed twice, if a workgroup reads what another writes, or a tile out of bounds.
        """
        return self.arguments.schedule_for(**symbols)

    def bound(self, /, **symbols: int) -> Kernel:
        """Return the kernel on whole tiles with these values of sizes and symbols."""
        return self.arguments.bound(**symbols)
