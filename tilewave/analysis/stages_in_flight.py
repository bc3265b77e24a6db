"""How many pipeline stages of tiles, copied past the registers, keep enough bytes in flight."""

from __future__ import annotations

from tilewave.records import dataclass

MOST_STAGES = 4
"""As many as `unroll_stages` unrolls."""


@dataclass(frozen=True)
class StageRoom:
    """The shared memory of a processor, and the bytes in flight beyond which more make loads no faster."""

    shared_bytes: int
    in_flight_bytes: int

    def in_flight(self, step_bytes: int, stages: int, other_bytes: int = 0) -> int:
        """Return the useful bytes in flight with some stages of a step, in all workgroups that fit.

        `other_bytes`: shared memory of a workgroup besides its stages.
        """
        workgroups = self.shared_bytes // (other_bytes + stages * step_bytes)
        return min(workgroups * (stages - 1) * step_bytes, self.in_flight_bytes)

    def stages(self, step_bytes: int, least: int, other_bytes: int = 0) -> int:
        """Return the fewest stages that keep the most bytes in flight."""
        return max(
            range(least, MOST_STAGES + 1),
            key=lambda stages: (self.in_flight(step_bytes, stages, other_bytes), -stages),
        )
