"""What the cost models say of a launch: its time, its bottleneck, and what would be faster."""

from __future__ import annotations

from tilewave.records import dataclass

ADVICE = {
    "compute": "fewer or narrower products: a smaller problem, or a dtype of fewer bits",
    "loads": "operands that more workgroups share: another order of tiles, or larger batches",
    "latency": "more steps for each tile: a longer K, or several products in one launch",
    "memory": "fewer bytes: narrower dtypes, or this kernel fused with its neighbours",
    "launch": "several such launches in one, or fused with their neighbours",
    "packing": "operands that no launch copies: rows of a multiple of 16 bytes, or prepacked weights",
    "adding up parts": "more tiles, so that no sum is split: larger batches",
    "small grid": "more tiles, so that every thread has some: larger batches",
    "transposing": "operands stored along K",
    "caches": "larger problems, whose tiles are read less often",
    "elementwise": "fewer elements, or this kernel fused with its neighbours",
}
"""What would be faster, by the bottleneck of a launch."""


@dataclass(frozen=True)
class Prediction:
    """How long a launch is to take, and its bottleneck."""

    seconds: float
    error: float
    """One standard deviation, as a share."""
    limit: str
    """The bottleneck, in a few words."""
    fitted_on: str

    @property
    def advice(self) -> str:
        """What would be faster than this launch."""
        return ADVICE[self.limit]
