"""The explorer: questions in, JSON out; each answer is worked out once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tilewave.backend.targets import TARGETS, target_named
from tilewave.explore.choice import ExplorerChoice, ExplorerError
from tilewave.explore.code import code_json, passes_json
from tilewave.explore.kernels import Explored
from tilewave.explore.launch import launch_json, machine_of
from tilewave.machine import MACHINES, Machine
from tilewave.records import dataclass

KEPT = 64
"""Answers that are kept: some hundred kilobytes each."""


@dataclass(frozen=True, eq=False)
class Explorer:
    """What is explored, what is chosen at the start, and which machines can be chosen."""

    explored: Explored
    start: ExplorerChoice = field(default_factory=ExplorerChoice)
    machines: Mapping[str, Machine] = field(default_factory=lambda: dict(MACHINES))
    fresh: Callable[[], object] = lambda: None
    """What answers depend on in addition to the choice: for a file, its modification time."""
    kept: dict[tuple[str, ExplorerChoice, object], dict[str, Any]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """A file is run, and a kernel compiled, by one thread at a time."""

    def answer(self, question: str, choice: ExplorerChoice) -> dict[str, Any]:
        """One of QUESTIONS, answered; TilewaveError where the choice cannot be."""
        with self.lock:
            key = question, choice, self.fresh()
            if key not in self.kept:
                if len(self.kept) >= KEPT:
                    self.kept.clear()
                self.kept[key] = QUESTIONS[question](self, choice)
            return self.kept[key]

    def launch(self, choice: ExplorerChoice) -> dict[str, Any]:
        return launch_json(self.explored, choice, machine_of(choice, self.machines))

    def passes(self, choice: ExplorerChoice) -> dict[str, Any]:
        return passes_json(self._compiled(choice))

    def code(self, choice: ExplorerChoice) -> dict[str, Any]:
        return code_json(self._compiled(choice))

    def _compiled(self, choice: ExplorerChoice) -> Any:
        target = target_named(choice.target or machine_of(choice, self.machines).target)
        if target.name not in self.targets:
            raise ExplorerError(f"{target.name} has no code to show", remedy=f"choose {' or '.join(self.targets)}")
        return self.explored.compiled(choice, choice.map, target.name)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the targets that have code to show."""
        return tuple(name for name, target in TARGETS.items() if target.device)

    def offers(self) -> dict[str, Any]:
        """What the page can choose among."""
        return {
            "kernels": list(self.explored.kernels),
            "machines": {name: machine.target for name, machine in self.machines.items()},
            "targets": list(self.targets),
            "start": self.start.texts,
        }


QUESTIONS: dict[str, Callable[[Explorer, ExplorerChoice], dict[str, Any]]] = {
    "launch": Explorer.launch,
    "passes": Explorer.passes,
    "code": Explorer.code,
}
