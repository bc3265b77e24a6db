"""Wave's names that a kernel written for it may use, and their meaning in tilewave.

A kernel's text needs no change: names that only direct Wave's compiler are accepted without effect, and `why()` says
so; names that tilewave does not have are refused with what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

from tilewave.errors import NOWHERE, TilewaveError, here
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.lang.pythons_own import FROM_NUMPY
from tilewave.lang.symbols import Symbol, sym
from tilewave.renamed import current_options

T = TypeVar("T")


class ScaledMMAType(Enum):
    """Wave's matrix instructions with block scales, by name: no target has them."""

    F32_16x16x128_F8F6F4 = "f32_16x16x128_f8f6f4"
    F32_32x32x64_F8F6F4 = "f32_32x32x64_f8f6f4"
    GFX1250_F32_16x16x128_F8F6F4 = "gfx1250_f32_16x16x128_f8f6f4"


def index_symbol(name: str) -> Symbol:
    """Return the symbol of a name: `index_symbol("BLOCK_M")` is `sym.BLOCK_M`."""
    found: Symbol = getattr(sym, name)
    return found


# -- compile options --------------------------------------------------------------------------------------------------

HINTS = frozenset(
    {
        "allow_noncontiguous_runtime_buffers",
        "bench_with_constant_weights",
        "benchmark_batch_size",
        "benchmark_repetitions",
        "canonicalize",
        "capture_trace",
        "check_water_analysis",
        "cluster_barrier_delay",
        "coalescing_strategy_hint",
        "codeobj",
        "denorm_fp_math_f32",
        "drop_debug_info_before_mlir",
        "eliminate_epilogue",
        "enable_mark_hardware_transpose_candidates",
        "enable_swizzle",
        "enforce_locations",
        "func_name",
        "iree_launch_async",
        "kernel_hash",
        "kernel_launch_info",
        "kernel_usages",
        "linearize_reads",
        "linearize_shared_access",
        "location_capture_config",
        "minimize_shared_allocs",
        "mlir_print_ir_after_all",
        "multi_buffer_count",
        "num_devices",
        "optimization_level",
        "postprocess",
        "print_grid",
        "print_ir_after",
        "print_ir_after_all",
        "print_ir_before",
        "print_mlir",
        "print_mlir_after_water",
        "print_mlir_before_water",
        "print_pass_times",
        "print_signature",
        "print_trace_begin",
        "profile_pass",
        "profile_python_cprofile",
        "profile_python_repetitions",
        "profile_python_warmup",
        "profile_python_wrapper",
        "reorder_allocs",
        "run_bench",
        "scalarize_packed_math",
        "specialize",
        "use_bound_check",
        "use_buffer_load_ops",
        "use_buffer_ops",
        "use_buffer_store_ops",
        "use_fast_math",
        "use_global_to_shared",
        "use_local_scope",
        "use_scheduling_barriers",
        "use_water_backend",
        "use_water_leak_check",
        "verify_region_captures",
        "wave_runtime",
        "waves_per_eu",
    }
)
"""Options that direct how Wave compiles, prints or times: a kernel's results do not depend on them."""

NO_EFFECT = RemarkKind(
    "the option {name} of Wave's has no effect",
    "leave it out; `tilewave diff` and `tilewave bench` show and time passes",
)


def accepting_hints(options: type[T]) -> type[T]:
    """Return the dataclass of options, extended to accept Wave's hints and list their names in `without_effect`."""
    fill: Callable[..., None] = options.__init__

    @wraps(fill)
    def init(self: T, *given: Any, **named: Any) -> None:
        hints = tuple(name for name in named if name in HINTS)
        kept = {name: x for name, x in named.items() if name not in HINTS}
        kept = current_options(options.__name__, kept)
        fill(self, *given, **kept)
        if hints:
            object.__setattr__(self, "without_effect", hints)

    setattr(options, "__init__", init)  # noqa: B010  mypy refuses an assignment to __init__
    return options


def remarks(without_effect: tuple[str, ...]) -> tuple[Remark, ...]:
    """Return the remarks of `why()` on options that were accepted without effect."""
    return tuple(NO_EFFECT.at(NOWHERE, name=name) for name in without_effect)


# -- names that are not there -----------------------------------------------------------------------------------------

_INDICES = "indices from memory are not supported yet; positions are expressions of symbols and iterators"
_ATOMICS = (
    "atomics are not supported; SplitConstraint(K, n) splits a sum among workgroups (split-K), added in a fixed order"
)
_NUMBERS = "random numbers are not supported; pass an array of them"
_SCALED = "scaled products are not supported; multiply by the scales before mma, or after it"

OF_OTHERS = {
    **FROM_NUMPY,
    "arange": "write self_index(N), a tile with the index of every element along N",
    "cdiv": "write ceiling(a / b) for sizes, (a + b - 1) // b for numbers of the kernel",
    "clamp": FROM_NUMPY["clip"],
    "full": "write Register[M, N, f32](1.0)",
    "program_id": "leave it out: constraints place the tiles; scalar(WORKGROUP_0) is the number of the workgroup",
    "relu": "write maximum(x, 0.0)",
    "store": "write write(tile, memory)",
    "zeros": "write Register[M, N, f32](0.0)",
}
"""Functions of numpy, torch and Triton that are spelt otherwise here."""

NOT_THERE = {
    **OF_OTHERS,
    **dict.fromkeys(("atomic_add", "atomic_min", "atomic_max", "scatter_add"), _ATOMICS),
    **dict.fromkeys(("gather", "gather_to_lds", "tensor_load_to_lds"), _INDICES),
    **dict.fromkeys(("rand", "random", "randn"), _NUMBERS),
    **dict.fromkeys(("scaled_mma", "f4e2m1fn", "f6e2m3fn", "f8e8m0fnu"), _SCALED),
    "bitcast": "bits cannot be reinterpreted as another dtype; cast(x, dtype) converts values",
    "topk": "write argmax(x, dim=…) k times, with select taking out what was found",
    "sigmoid": "write 1 / (1 + exp(-x))",
    "get_default_scheduling_params": "leave it out, and its result out of subs: passes decide how loops are scheduled",
    "schedule": "leave it out: passes decide how loops are scheduled, and `tilewave diff` shows them",
}
"""Names of Wave and other libraries that authors may look for, and what to write instead."""


class NoSuchName(TilewaveError, AttributeError):
    """A name that tilewave does not have; `hasattr` and `getattr(…, None)` treat it as any other missing attribute."""


def no_such_name(name: str) -> NoSuchName | None:
    """Return the error with tilewave's replacement for another library's name; None for any other name."""
    if name not in NOT_THERE:
        return None
    return NoSuchName(f"tilewave has no {name}", loc=here(), remedy=NOT_THERE[name])
