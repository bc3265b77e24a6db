"""Replace a loop of one iteration by its body, and a loop of none by its initial values.

Separate from `simplify`, because passes that look for loops around products find one for any depth, one step included.
Values that an iteration computes for the next alone are removed by DCE, before a later pass loads operands for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.residues import Residues
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import Const, Loop
from tilewave.ir.rewrite import replace_values, rewrite


def fold_trivial_loops(kernel: Kernel) -> Kernel:
    residues = Residues(kernel)
    known: dict[Value, Value] = {}

    def dissolve(op: Op) -> Sequence[Op] | None:
        rounds = residues.constant(op.trips) if isinstance(op, Loop) else None
        if not isinstance(op, Loop) or rounds is None or rounds > 1:
            return None
        if rounds < 1:
            known.update(zip(op.results, op.init, strict=True))
            return []
        (index, *carried), (*body, _) = op.body.args, op.body.ops
        known.update(zip(carried, op.init, strict=True))
        known.update(zip(op.results, op.body.yielded, strict=True))
        return [Const(0, results=(index,), loc=op.loc), *body]

    after = rewrite(kernel, dissolve)
    return eliminate_dead_code(replace_values(after, {v: _last(v, known) for v in known})) if known else after


def _last(v: Value, known: dict[Value, Value]) -> Value:
    while v in known:
        v = known[v]
    return v
