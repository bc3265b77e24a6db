"""Loops of machine code, found from the control flow.

Compilers put a loop's blocks in any order: a masked block may come after the branch that ends an iteration, and an
iteration may begin in the middle of the text. So a loop is found from the control flow alone. Block a dominates block b
if every path to b leads through a; an edge from b back to such an a makes a the head of a loop, whose body is all that
leads to b without passing a.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.emulator.instruction import Instruction
from tilewave.emulator.program import Ending, ending_of
from tilewave.records import dataclass

FlowStep = tuple[Ending, int | None]
"""What an instruction does to the flow, and the position that it may lead to."""


@dataclass(frozen=True)
class MachineLoop:
    """Positions of a loop's instructions, in the order of a round."""

    body: tuple[int, ...]
    ends: tuple[int, ...]
    """The last instructions of a round."""
    later: tuple[int, ...]
    """What may run when the loop is over."""


def find_loops(instructions: Sequence[Instruction], entry: int, end: int) -> list[MachineLoop]:
    """The loops among the instructions from `entry` to `end`."""
    return find_loops_of_flow([(ending_of(one), one.target) for one in instructions], entry, end)


def find_loops_of_flow(steps: Sequence[FlowStep], entry: int, end: int) -> list[MachineLoop]:
    """Return the loops of any control flow, given as steps."""
    flow = _Flow(steps, entry, end)
    dominators = flow.dominators()
    ends: dict[int, list[int]] = {}
    for block in flow.order:
        for head in flow.after[block]:
            if head in dominators[block]:
                ends.setdefault(head, []).append(block)
    return [flow.loop(head, blocks) for head, blocks in sorted(ends.items())]


class _Flow:
    """Blocks by their first position, those that are reached."""

    def __init__(self, steps: Sequence[FlowStep], entry: int, end: int) -> None:
        inside = range(entry, end)
        targets = {t for at in inside if (t := steps[at][1]) is not None and t in inside}
        later = {at + 1 for at in inside if steps[at][0] != "falls through" and at + 1 < end}
        heads = sorted({entry, *targets, *later})
        self.entry = entry
        self.last = {head: after - 1 for head, after in zip(heads, [*heads[1:], end], strict=True)}
        self.after = {head: self._after(*steps[last], last, inside) for head, last in self.last.items()}
        self.order = self._reached([entry], set())

    def _after(self, ending: Ending, target: int | None, at: int, inside: range) -> list[int]:
        leads_on = [] if ending in ("branches", "ends", "jumps") else [at + 1]
        leads_away = [target] if ending in ("branches", "may branch") and target is not None else []
        return [head for head in (*leads_on, *leads_away) if head in inside]

    def _reached(self, first: Sequence[int], closed: set[int]) -> list[int]:
        """Blocks that these lead to, themselves first, without passing closed ones."""
        found, waiting = dict.fromkeys(head for head in first if head not in closed), list(first)
        while waiting:
            block = waiting.pop()
            new = [head for head in self.after[block] if head not in found and head not in closed]
            found.update(dict.fromkeys(new))
            waiting += new
        return list(found)

    def dominators(self) -> dict[int, set[int]]:
        before: dict[int, list[int]] = {head: [] for head in self.order}
        for block in self.order:
            for head in self.after[block]:
                before[head].append(block)
        found = {head: set(self.order) for head in self.order}
        found[self.entry] = {self.entry}
        changed = True
        while changed:
            changed = False
            for head in self.order:
                if head == self.entry:
                    continue
                now = {head} | set.intersection(*(found[b] for b in before[head]))
                changed |= now != found[head]
                found[head] = now
        return found

    def loop(self, head: int, ends: Sequence[int]) -> MachineLoop:
        blocks, waiting = {head}, [block for block in ends if block != head]
        while waiting:
            block = waiting.pop()
            if block not in blocks:
                blocks.add(block)
                waiting += [b for b in self.order if block in self.after[b]]
        exits = {out for block in blocks for out in self.after[block] if out not in blocks}
        in_text = sorted(blocks)
        at = in_text.index(head)
        later = sorted(self._reached(sorted(exits), blocks))
        return MachineLoop(
            self._positions(in_text[at:] + in_text[:at]), tuple(self.last[b] for b in ends), self._positions(later)
        )

    def _positions(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(at for head in blocks for at in range(head, self.last[head] + 1))
