"""What a session found, for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from .session import Found, Tried
from .trial import Outcome

LEAST_KILLED_PERCENT = 90


def enough_killed(tried: Sequence[Tried]) -> bool:
    """Return whether at least 90 % of the mutants were killed, in whole numbers."""
    return 100 * _killed(tried) >= LEAST_KILLED_PERCENT * len(tried)


def _killed(tried: Sequence[Tried]) -> int:
    return sum(one.outcome is not Outcome.SURVIVED for one in tried)


def as_text(found: Found) -> str:
    """Return the counts, the tests that were left out, and each mutant that survived or timed out."""
    tried = found.tried
    counts = Counter(one.outcome for one in tried)
    parts = ["\n".join(("left out, because they are red without a mutant:", *found.red))] if found.red else []
    for outcome in (Outcome.SURVIVED, Outcome.TIMED_OUT):
        for one in tried:
            if one.outcome is outcome:
                where = f"{one.mutant.path}:{one.mutant.line}"
                parts.append("\n".join((f"{outcome.value}: {where} ({one.mutant.kind})", *one.difference)))
    numbers = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    share = f"{100 * _killed(tried) / len(tried):.0f} % of {len(tried)} mutants killed" if tried else "no mutants"
    return "\n\n".join((*parts, f"{share}: {numbers}; at least {LEAST_KILLED_PERCENT} % is asked for"))


def as_json(found: Found) -> str:
    """Return every mutant with its outcome, and the tests that were left out."""
    counts = Counter(one.outcome for one in found.tried)
    mutants = [
        {
            "file": one.mutant.path,
            "line": one.mutant.line,
            "kind": one.mutant.kind,
            "difference": list(one.difference),
            "outcome": one.outcome.value,
        }
        for one in found.tried
    ]
    numbers = {outcome.value: counts[outcome] for outcome in Outcome}
    return json.dumps({**numbers, "left_out": found.red, "mutants": mutants}, indent=2)
