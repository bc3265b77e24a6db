"""Run passes in order, verify the kernel after each, and record what each did."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewave.ir.core import Kernel
from tilewave.ir.faults import telling
from tilewave.ir.remarks import Remark
from tilewave.ir.verify import verify
from tilewave.records import dataclass

Pass = Callable[[Kernel], Kernel]


@dataclass(frozen=True)
class Step:
    """What one pass did."""

    name: str
    decision: str
    before: Kernel
    after: Kernel
    seconds: float
    remarks: tuple[Remark, ...] = ()
    """Remarks: where the pass could have helped and did not, and why."""

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def without_remarks(self, about: str) -> Step:
        """Return the step without its remarks about something."""
        return replace(self, remarks=tuple(remark for remark in self.remarks if remark.about != about))

    def diff(self, context: int = 3) -> str:
        """Return a unified diff of the IR texts, or "(unchanged)"."""
        before, after = str(self.before).splitlines(), str(self.after).splitlines()
        lines = list(difflib.unified_diff(before, after, lineterm="", n=context))[2:]
        return "\n".join(lines) or "(unchanged)"


def run(kernel: Kernel, passes: Sequence[Pass]) -> tuple[Kernel, tuple[Step, ...]]:
    steps = []
    verify(kernel)
    for p in passes:
        start = time.perf_counter()
        with telling(pass_name(p), kernel):
            said = p(kernel)
        after = kernel
        if said is not kernel:
            after = replace(said, remarks=())  # because remarks belong to the step
            verify(after)
        steps.append(Step(pass_name(p), decision(p), kernel, after, time.perf_counter() - start, said.remarks))
        kernel = after
    return kernel, tuple(steps)


def pass_name(p: Pass) -> str:
    """Return `map_workgroups` for the function of that name and for the class MapWorkgroups."""
    name = getattr(p, "__name__", type(p).__name__)
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def decision(p: Pass) -> str:
    """Return the text of a pass with its parameters."""
    return p.__name__ if hasattr(p, "__name__") else repr(p)


def after(steps: Iterable[Step], name: str, otherwise: Kernel) -> Kernel:
    """Return the kernel after a pass; `otherwise` where the list leaves the pass out."""
    return next((step.after for step in steps if step.name == name), otherwise)


def last_on_tiles(steps: Sequence[Step], start: Kernel) -> Kernel:
    """Return the last kernel at the tile level."""
    return next((step.after for step in reversed(steps) if step.after.level == "tile"), start)


def numbered(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps, with repeated names numbered: `simplify`, `simplify_2`."""
    steps = tuple(steps)
    names = numbered_apart(step.name for step in steps)
    return tuple(replace(step, name=name) for step, name in zip(steps, names, strict=True))


def numbered_apart(names: Iterable[str]) -> list[str]:
    """Return the names, with a number appended to the second of a kind, the third, …"""
    count: dict[str, int] = {}
    found = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name}_{count[name]}")
    return found
