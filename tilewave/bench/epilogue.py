"""What may follow the sums of a benchmark's GEMM: in float64 for the check, and how it changes an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewave.records import dataclass

BIAS_GELU = "bias+gelu"


@dataclass(frozen=True)
class Epilogue:
    """`finish(torch, sums, bias)` is exact, as far as float64 is."""

    name: str
    finish: Callable[[Any, Any, Any], Any]
    steepest: float
    """By how much it enlarges an error at most."""
    roundings: int
    """Roundings to C's dtype if each part is a separate kernel: one of the sums, one of each part but the last."""


def _unchanged(torch: Any, sums: Any, bias: Any) -> Any:
    return sums


def _bias_gelu(torch: Any, sums: Any, bias: Any) -> Any:
    x = sums + bias
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


NOTHING = Epilogue("", _unchanged, 1.0, 0)
EPILOGUES = {"": NOTHING, BIAS_GELU: Epilogue(BIAS_GELU, _bias_gelu, 1.13, 2)}
"""gelu is steepest at √2, where its slope is 1.1289."""
