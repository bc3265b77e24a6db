"""Kernels with and without the ops by which authors observe them."""

from __future__ import annotations

from tilewave.ir.core import Kernel
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import DebugLog, Observation
from tilewave.ir.rewrite import rewrite


def has_observations(kernel: Kernel) -> bool:
    return any(isinstance(op, Observation) for op in kernel.body.all_ops)


def has_logs(kernel: Kernel) -> bool:
    return any(isinstance(op, DebugLog) for op in kernel.body.all_ops)


def without_observations(kernel: Kernel) -> Kernel:
    """Return the kernel as compiled code has it: without `assert_` and `debug_log`, and what only they need."""
    if not has_observations(kernel):
        return kernel
    return eliminate_dead_code(rewrite(kernel, lambda op: [] if isinstance(op, Observation) else None))
