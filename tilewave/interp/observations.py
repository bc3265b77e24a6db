"""`assert_` and `debug_log` of authors, on whole tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.tile_run import TileRun
from tilewave.ir import ops as ir


def in_bounds(run: TileRun, op: ir.Observation) -> Array:
    """Return the elements of an op's tile that are in bounds; of a number, the number."""
    return np.asarray(run.env[op.x])[tuple(slice(max(0, int(run.env[n]))) for n in op.count)]


def check_assertion(run: TileRun, op: ir.Assert) -> tuple[Any, ...]:
    wrong = np.argwhere(~in_bounds(run, op).astype(bool))
    if len(wrong):
        at = [f"{d} = {run.env[start] + i}" for d, start, i in zip(op.dims, op.start, wrong[0], strict=True)]
        where = f" at {', '.join(at)}" if at else f" in workgroup {run.workgroup}"
        others = f" and {len(wrong) - 1:,} more of its tile" if len(wrong) > 1 else ""
        raise InterpreterError(f"assert_ fails{where}{others}" + (f": {op.text}" if op.text else ""), loc=op.loc)
    return ()


def log(run: TileRun, op: ir.DebugLog) -> tuple[Any, ...]:
    found = in_bounds(run, op)
    spans = zip(op.dims, op.start, found.shape, strict=True)
    where = ", ".join(f"{d} {run.env[start]} to {run.env[start] + n - 1}" for d, start, n in spans)
    print(
        f"{op.text}, workgroup {run.workgroup}" + (f", {where}:" if where else ":"), found, sep="\n" if where else " "
    )
    return ()
