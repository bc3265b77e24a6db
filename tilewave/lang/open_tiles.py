"""The tiles that a kernel's author leaves open: symbols in the numbers of constraints, without a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.lang.constraints import SplitConstraint, TilingConstraint, WaveConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, check_subs, given_subs, unsaid_sizes
from tilewave.lang.symbols import Expression, Symbol

Cut = WorkgroupConstraint | TilingConstraint | WaveConstraint | SplitConstraint
KINDS = (WorkgroupConstraint, TilingConstraint, WaveConstraint, SplitConstraint)
"""Constraints with a tunable number; the first kind that contains a symbol sets its role."""


def tunable(kernel: WaveKernel, subs: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> dict[Symbol, Cut]:
    """Return the symbols of tile sizes, wave parts and splits without a value, each with a constraint that it is in."""
    said = said_of(kernel, subs, dynamic)
    known = {*said, *unsaid_sizes(kernel, said), *dynamic}
    return {s: c for s, c in cut_by(kernel).items() if s not in known}


def cut_by(kernel: WaveKernel) -> dict[Symbol, Cut]:
    """Return the symbols in the numbers of constraints, each with the first constraint, by kind, that it is in."""
    found: dict[Symbol, Cut] = {}
    for kind in KINDS:
        for c in kernel.constraints:
            if isinstance(c, kind) and isinstance(number := _number(c), Expression):
                found.update({s: c for s in number.symbols() if s not in found})
    return found


def _number(c: Cut) -> Any:
    return c.parts if isinstance(c, SplitConstraint) else c.tile


def said_of(kernel: WaveKernel, subs: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> dict[Symbol, Any]:
    """What symbols are worth: as `subs` say, or else the kernel."""
    return {**{s: v for s, v in kernel.subs.items() if s not in dynamic}, **given_subs(subs)}


def known_values(said: Mapping[Symbol, Any], dynamic: Sequence[Symbol]) -> dict[Symbol, Any]:
    """Return the values of the symbols that do not depend on dynamic sizes."""

    def isknown_values(value: Any) -> bool:
        inner = value.symbols() if hasattr(value, "symbols") else ()
        return all(s not in dynamic and s in said and isknown_values(said[s]) for s in inner)

    return check_subs({s: v for s, v in said.items() if isknown_values(v)})
