"""What a kernel became: what every pass did to it, what it takes of its target, and its assembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tilewave.analysis.launch_counts import is_persistent, tiles_of
from tilewave.backend.names import MODELLED_TARGETS
from tilewave.compiled import Compiled
from tilewave.cycles import LoopCycles, by_line, by_reason
from tilewave.errors import TilewaveError, short_path
from tilewave.ir.ops.asynchronous import TmaLoad, TmaLoadMulticast, TmaStore
from tilewave.ir.ops.lane import Wgmma
from tilewave.ir.rewrite import walk
from tilewave.pipeline.runner import Step
from tilewave.pipeline.why import Why
from tilewave.sim.kernel import described
from tilewave.view.listing import Listing


def step_json(step: Step, context: int) -> dict[str, Any]:
    """Return what one pass did, as `tilewave diff --json` prints it."""
    return {
        "pass": step.name,
        "decision": step.decision,
        "seconds": step.seconds,
        "changed": step.changed,
        "diff": step.diff(context) if step.changed else "",
        "remarks": [row.record for row in Why.of([step])],
    }


def compiled_json(c: Compiled) -> dict[str, Any]:
    """What a kernel takes of its target, and what its passes left as it was: `tilewave compile --json`."""
    code = {} if c.build.code is None else {"code_bytes": len(c.build.code)}
    remarks = [row.record for row in reasons_of(c)]
    sizes = {"open_sizes": c.open_sizes} if c.open_sizes else {}
    chosen = {"chosen": c.choice.text} if c.choice else {}
    facts = {"target": c.target, **sizes, **launch_json(c), **chosen, "proof": str(c.proof), **code}
    return {**facts, **c.build.metrics, **hopper_json(c), **c.build.assembled_metrics, "remarks": remarks}


def launch_json(c: Compiled) -> dict[str, Any]:
    """Return the tiles, the workgroups that one launch starts, and whether each computes several tiles in turn.

    A kernel that was loaded from a file has no trace, and its key `persistent` is left out.
    """
    tiles = tiles_of(c.kernel)
    persistent = {} if c.file else {"persistent": is_persistent(c.traced, c.build.lanes or c.kernel)}
    return {**({} if tiles is None else {"tiles": tiles}), "workgroups": c.workgroups, **persistent}


def hopper_json(c: Compiled) -> dict[str, Any]:
    """Return the pipeline stages, arrays loaded and stored by TMA, shapes of wgmma and roles of warps.

    A kernel that was loaded from a file has no IR, and the result is empty.
    """
    ops = [] if c.file or not c.steps else [*walk(c.steps[-1].after.body)]
    loads = [op for op in ops if isinstance(op, TmaLoad | TmaLoadMulticast)]
    found = {
        "num_stages": max((op.mbarriers.type.shape[0] for op in loads), default=0),
        "tma_loads": [*dict.fromkeys(op.memory.name for op in loads)],
        "tma_stores": [*dict.fromkeys(op.memory.name for op in ops if isinstance(op, TmaStore))],
        "wgmma": [*dict.fromkeys("x".join(map(str, op.shape)) for op in ops if isinstance(op, Wgmma))],
        "roles": [asdict(role) for role in getattr(c.build.resources, "roles", ())] if ops else [],
    }
    return {name: value for name, value in found.items() if value}


def reasons_of(c: Compiled) -> Why:
    """Nothing of a kernel that was loaded from a file, which does not hold how it was made."""
    return Why(()) if c.file else c.why()


def loop_json(c: Compiled) -> dict[str, Any]:
    """Return the statistics of the K loop: `tilewave compile --stats --json`."""
    counted = c.loop_statistics
    return {**asdict(counted), "instructions_per_matrix": counted.instructions_per_matrix}


def cycles_json(loops: Sequence[LoopCycles]) -> dict[str, Any]:
    """Return the cycles of a K loop for some latencies: `tilewave cycles --json`."""
    first = loops[0]
    return {
        "kernel": first.kernel,
        "chip": first.chip,
        "waves": first.waves,
        "workgroups": first.workgroups,
        "instructions": dict(first.counts),
        "matrix_cycles": first.matrix_cycles,
        "by_latency": [_one_latency(loop) for loop in loops],
        "notes": [*dict.fromkeys(note for loop in loops for note in loop.notes)],
    }


def _one_latency(loop: LoopCycles) -> dict[str, Any]:
    return {
        "latency_cycles": loop.latency_cycles,
        "cycles": loop.cycles,
        "utilization": loop.utilization,
        "stall_cycles": by_reason(loop.stalls),
        "stalls": [
            {
                "reason": stall.reason,
                "cycles": stall.cycles,
                "place": stall.place,
                "line": stall.loc.line,
                "instruction": stall.instruction.text,
            }
            for stall in by_line(loop.stalls)
        ],
    }


def _loop_if_any(c: Compiled) -> dict[str, Any]:
    """Nothing where the target's code is not counted, or multiplies nothing in a loop."""
    try:
        return loop_json(c)
    except TilewaveError:
        return {}


def passes_json(c: Compiled, context: int = 3) -> dict[str, Any]:
    """The kernel as it was traced, and every step."""
    return {
        "kernel": described(c),
        "target": c.target,
        "traced": str(c.traced),
        "steps": [step_json(step, context) for step in c.steps],
    }


def code_json(c: Compiled) -> dict[str, Any]:
    """Return the assembly with the author's lines, and its `compile --stats`."""
    listing = Listing.of(c.asm)
    lines = [[line.text, line.line if line.file == listing.file else 0] for line in listing.lines]
    loop = _loop_if_any(c)
    facts = {
        "kernel": described(c),
        "target": c.target,
        "file": short_path(listing.file) if listing.file else "",
        "lines": lines,
    }
    cycles = cycles_json(c.loop_cycles()) if loop and c.target in MODELLED_TARGETS else {}
    return {**facts, "source": listing.source(), "figures": compiled_json(c), "loop": loop, "cycles": cycles}
