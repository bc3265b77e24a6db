"""What a launch computes from the numbers of a call, kept by them: how many workgroups, and what is passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewave.forks import cached_property
from tilewave.ir.core import Value
from tilewave.ir.launch import HostLaunch, LaunchLines, launch_lines, numbers_of
from tilewave.ir.parse import parse

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

    def lines(self, given: Sequence[str], wanted: Sequence[str], prefix: str) -> LaunchLines:
        """The same as lines of Python, for numbers of these names in their order; of what is passed on, the wanted."""
        if isinstance(self.workgroups, int) and not self.text:
            return LaunchLines([], str(self.workgroups), [f"g{given.index(name)}" for name in wanted])
        return launch_lines(parse(self.text), given, wanted, prefix)

    @cached_property
    def _host(self) -> tuple[tuple[Value, ...], HostLaunch]:
        kernel = parse(self.text)
        return numbers_of(kernel), HostLaunch(kernel)
