"""What a call checks before the launch where its author asks: contracts of index arrays, and assertions.

Assertions are evaluated by a kernel of their own (`transform/recorded_assertions.py`), which is compiled for the same
target. It says in which workgroup one is false first; the interpreter runs that workgroup, and names the element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewave.analysis.contracts import copied, copied_to_host, on_the_host, want_kept
from tilewave.arguments import KernelArguments
from tilewave.backend.protocol import Build
from tilewave.errors import InterpreterError, here
from tilewave.forks import cached_property
from tilewave.interpreted import interpret_tiles
from tilewave.ir.core import Kernel
from tilewave.ir.observations import has_logs
from tilewave.ir.types import Memory
from tilewave.records import dataclass
from tilewave.runtime.arrays import HOST, place_of
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.foreign_arrays import filled
from tilewave.transform.recorded_assertions import NONE, RecordedAssertions

Array = Any


@dataclass(frozen=True, eq=False)
class CompiledAssertions:
    """The kernel that evaluates assertions, compiled for a target."""

    recorded: RecordedAssertions
    target: str
    build: Build
    called: KernelArguments
    """The arguments of this kernel: those of the original, with `failed` after its arrays."""

    def record(self, arrays: Sequence[Array], values: Mapping[str, Any], failed: Array) -> None:
        """Store the least workgroup in which each assertion is false; the arrays stay as they are."""
        names = [v.name for v in self.recorded.kernel.body.args if isinstance(v.type, Memory)]
        given = [copied(x) if name in self.recorded.changed else x for name, x in zip(names, arrays, strict=False)]
        sized = self.called.sizes.of_call((*given, failed), values)
        self.build.run((*given, failed), sized.numbers, sized.parameters)


@dataclass(frozen=True, eq=False)
class Observed:
    """A kernel with its `assert_` and `debug_log`; its compiled code has neither."""

    kernel: Kernel
    """The kernel on whole tiles, for the interpreter."""
    compile: Callable[[], CompiledAssertions | None]

    @cached_property
    def assertions(self) -> CompiledAssertions | None:
        """What evaluates the assertions, compiled at the first call that checks them; None where there are none."""
        return self.compile()

    def want(self, called: KernelArguments, arrays: Sequence[Array], values: Mapping[str, Any]) -> None:
        """Raise where an assertion is false for these arrays, which stay as they are; print what is logged."""
        if self.assertions is not None:
            self._want_assertions(self.assertions, called, arrays, values)
        if has_logs(self.kernel):
            interpret_tiles(called, copied_to_host(arrays), values, None, self.kernel)

    def _want_assertions(
        self, compiled: CompiledAssertions, called: KernelArguments, arrays: Sequence[Array], values: Mapping[str, Any]
    ) -> None:
        called.sized(arrays, values)  # before anything is launched, an error where they do not fit the kernel
        assertions = compiled.recorded.assertions
        try:
            failed = _filled(arrays[0], len(assertions))
        except Refused:  # the arrays' library cannot be asked for another one
            interpret_tiles(called, copied_to_host(arrays), values, None, self.kernel)
            return
        compiled.record(arrays, values, failed)
        found = np.asarray(on_the_host(failed))
        first = int(found.min())
        if first == NONE:
            return
        interpret_tiles(called, copied_to_host(arrays), values, None, self.kernel, first)
        broken = assertions[int(found.argmin())]
        what = f"assert_ fails in workgroup {first}" + (f": {broken.text}" if broken.text else "")
        remedy = f"in the interpreter it holds: {called.name}'s code for {compiled.target} rounds differently"
        raise InterpreterError(what, loc=broken.loc, remedy=remedy)


def _filled(like: Array, count: int) -> Array:
    """Return what the least failing workgroups are recorded in, on the device of an array."""
    if place_of(like)[0] == HOST:
        return np.full(count, NONE, np.int32)
    return filled(like, count, NONE)


def want_checked(
    kernel: Kernel,
    observed: Observed | None,
    called: KernelArguments,
    arrays: Sequence[Array],
    values: Mapping[str, Any],
) -> None:
    """Raise where an array of indices breaks its contract, or an assertion is false."""
    if kernel.contracts:
        want_kept(kernel, arrays, called.sizes.of_call(arrays, values).values, here())
    if observed is not None:
        observed.want(called, arrays, values)
