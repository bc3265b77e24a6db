"""What a call should come to, by the rule of its function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import call_rules, call_rules_indices, call_rules_rows
from .call_arrays import Buffered
from .call_references import Result
from .call_rules import Asked, Expected, Unfit
from .calls import SHARED, Alias, Call, Laid

RULES: dict[str, Callable[[Asked], dict[str, Result]]] = {
    **call_rules.RULES,
    **call_rules_rows.RULES,
    **call_rules_indices.RULES,
}
"""By the name of the function."""


def expected(call: Call, arrays: dict[str, Buffered], device: str) -> Expected:
    """What the call should come to."""
    asked = Asked(call, arrays, device)
    for name, argument in call.arguments:
        if isinstance(argument, Laid) and argument.flaw in ("swapped", "misaligned"):
            asked.may_refuse = True
        asked.may_refuse |= name == call.other or (
            isinstance(argument, Laid) and argument.dtype == "i64" and device != "cpu"
        )
    asked.may_refuse |= device != "cpu" or (call.library == "torch" and call.function.startswith("kernels."))
    try:
        with np.errstate(all="ignore"):
            results = RULES[call.function](asked)
    except Unfit as why:
        return Expected(unfit=str(why))
    asked.may_refuse |= _overlapping(call, arrays, results)
    return Expected(results, may_refuse=asked.may_refuse)


def _overlapping(call: Call, arrays: dict[str, Buffered], results: dict[str, Result]) -> bool:
    return any(isinstance(call.get(name), Alias) for name in results) or any(
        isinstance(a, Laid) and a.flaw in SHARED for n, a in call.arguments if n in results
    )
