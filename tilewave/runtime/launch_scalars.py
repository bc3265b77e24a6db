"""What a launch computes from its scalar arguments: the workgroups and the numbers passed on, stored by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.host_program import Number
from tilewave.ir.launch import HostLaunch, LaunchNumbers, LaunchSteps, numbers_of
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.records import dataclass

KEPT_LAUNCHES = 4096
"""The most sets of scalar arguments that are stored; one more clears them all."""

Launched = tuple[int, Mapping[str, int]]
"""Workgroups, and every number that a launch passes to the kernel, by name."""


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """The launch computation of one kernel's code."""

    workgroups: int | str
    text: str
    """IR text of the kernel's indices and its launch; empty where all sizes are static."""
    _kept: dict[tuple[int, ...], Launched] = field(default_factory=dict, repr=False)

    def of(self, symbols: Mapping[str, int]) -> Launched:
        """Return the launch for the numbers of a call."""
        if isinstance(self.workgroups, int) and not self.text:
            return self.workgroups, symbols
        key = tuple(symbols.values())
        found = self._kept.get(key)
        if found is None:
            found = self._launched(symbols)
            if len(self._kept) >= KEPT_LAUNCHES:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _launched(self, symbols: Mapping[str, int]) -> Launched:
        numbers, host = self._host
        launched = host([symbols[v.name] for v in numbers])
        return launched.workgroups, {**symbols, **dict(zip(host.names, launched.numbers, strict=True))}

    def steps(self, given: Sequence[str], wanted: Sequence[str]) -> Callable[[Sequence[Number]], LaunchNumbers]:
        """Return the computation as recordable steps, from numbers in the order of `given` to those in `wanted`."""
        if self.text:
            return LaunchSteps(self._kernel, given, wanted)
        places, workgroups = [given.index(name) for name in wanted], self.workgroups
        assert isinstance(workgroups, int), "nothing computes them"
        return lambda numbers: LaunchNumbers(workgroups, tuple([numbers[place] for place in places]))

    @cached_property
    def _host(self) -> tuple[tuple[Value, ...], HostLaunch]:
        return numbers_of(self._kernel), HostLaunch(self._kernel)

    @cached_property
    def _kernel(self) -> Kernel:
        found = verify(parse(self.text))
        assert found.workgroups == self.workgroups, f"{found.workgroups} workgroups, and not {self.workgroups}"
        return found
