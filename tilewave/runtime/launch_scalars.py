"""What a launch computes from the numbers of a call, kept by them: how many workgroups, and what is passed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.host_program import Number
from tilewave.ir.launch import HostLaunch, LaunchNumbers, LaunchSteps, numbers_of
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify

KEPT_LAUNCHES = 4096
"""Sets of numbers that a program remembers; more than that in turn, and it starts afresh."""

Launched = tuple[int, Mapping[str, int]]
"""Workgroups, and every number that a launch passes on, by name."""


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """Of one kernel's code."""

    workgroups: int | str
    text: str
    """Of the kernel's indices and its launch; nothing where all its sizes are known."""
    _kept: dict[tuple[int, ...], Launched] = field(default_factory=dict, repr=False)

    def of(self, symbols: Mapping[str, int]) -> Launched:
        """`symbols` are the numbers of the call."""
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
        """The same step by step, for numbers of these names in their order; of what is passed on, the wanted."""
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
