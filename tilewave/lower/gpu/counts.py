"""Loop counters.

Windows on arrays advance by a fixed number of bytes per step. Where LLVM knows the trip count, it counts in those bytes
by itself (induction variable elimination); where only the launch knows it, LLVM would count the steps as well, so the
lowering counts in bytes.
"""

from __future__ import annotations

from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


@dataclass(frozen=True)
class StepCount:
    """A counter of steps: 0, 1, 2, … below `trips`."""

    f: LlvmFunction
    kind: str
    trips: str

    def goes_on(self, count: str) -> str:
        return self.f.value(f"icmp slt {self.kind} {count}, {self.trips}")

    def step(self, count: str) -> str:
        return count

    def following(self, count: str) -> str:
        return self.f.value(f"add nuw nsw {self.kind} {count}, 1")


@dataclass(frozen=True)
class ByteCount:
    """A counter of bytes: 0, `each`, 2 · `each`, … below `end`, in 32 unsigned bits."""

    f: LlvmFunction
    each: int
    end: str

    def goes_on(self, count: str) -> str:
        return self.f.value(f"icmp ult i32 {count}, {self.end}")

    def step(self, count: str) -> str:
        return self.f.value(f"udiv exact i32 {count}, {self.each}")

    def following(self, count: str) -> str:
        return self.f.value(f"add nuw i32 {count}, {self.each}")
