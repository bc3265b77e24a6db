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
from tilewave.records import dataclass
from tilewave.renamed import current_options

T = TypeVar("T")


class ScaledMMAType(Enum):
    """Wave's matrix instructions with block scales, by name: no target has them."""

    F32_16x16x128_F8F6F4 = "f32_16x16x128_f8f6f4"
    F32_32x32x64_F8F6F4 = "f32_32x32x64_f8f6f4"
    GFX1250_F32_16x16x128_F8F6F4 = "gfx1250_f32_16x16x128_f8f6f4"


class MMAOperand(Enum):
    """Wave's names for the axes of a product."""

    M = "m"
    N = "n"
    K = "k"


@dataclass(frozen=True)
class GenericDot:
    """Wave's products by dot products of vectors, for few rows: accepted as `mma_type`, and targets choose how."""

    out_vec_size: int = 1
    k_vec_size: int = 4
    k_mult: int = 1
    along_dim: MMAOperand = MMAOperand.N


def index_symbol(name: str) -> Symbol:
    """Return the symbol of a name: `index_symbol("BLOCK_M")` is `sym.BLOCK_M`, `index_symbol("$WG0")` WORKGROUP_0."""
    found: Symbol = getattr(sym, name)
    return found


# -- compile options --------------------------------------------------------------------------------------------------

_PRINTED = "leave it out; `tilewave diff FILE` prints what every pass did"
_PASSES_TIMED = "leave it out; `tilewave diff FILE` prints the time of every pass"
_KERNELS_TIMED = "leave it out; `tilewave bench FILE` times kernels"
_SIMPLIFIED = "leave it out: every kernel is simplified"
_PASSES_DECIDE = "leave it out: passes decide it, and `tilewave diff FILE` prints what every pass did"
_STAGES = "leave it out; num_stages=… with SchedulingType.PREFETCH gives the stages of the software pipeline"
_CHECKED = "leave it out: every kernel is checked when it is compiled, and boundary tiles are predicated"
_ARITHMETIC = "leave it out: the kernel's own ops and dtypes decide its arithmetic"
_LAUNCHED = "leave it out: a call takes arrays of any strides, and launches on the device of its arrays"
_LOCATED = "leave it out: every op keeps the line of the kernel that it comes from"
_NAMED = "leave it out: a kernel has the name of its function; compiled.save(…) stores it"

HINTS = {
    **dict.fromkeys(
        (
            "capture_trace",
            "compile_to_mlir",
            "create_vmfb_file",
            "dump_binaries",
            "dump_intermediates",
            "dump_schedule",
            "mlir_print_ir_after_all",
            "print_grid",
            "print_ir_after",
            "print_ir_after_all",
            "print_ir_before",
            "print_mlir",
            "print_mlir_after_water",
            "print_mlir_before_water",
            "print_mlir_file",
            "print_signature",
            "print_trace_begin",
            "use_local_scope",
        ),
        _PRINTED,
    ),
    **dict.fromkeys(
        (
            "print_pass_times",
            "profile_pass",
            "profile_python_cprofile",
            "profile_python_repetitions",
            "profile_python_warmup",
            "profile_python_wrapper",
        ),
        _PASSES_TIMED,
    ),
    **dict.fromkeys(
        (
            "bench_with_constant_weights",
            "benchmark_batch_size",
            "benchmark_repetitions",
            "benchmark_results_file",
            "run_bench",
        ),
        _KERNELS_TIMED,
    ),
    **dict.fromkeys(
        (
            "canonicalize",
            "optimization_level",
            "postprocess",
        ),
        _SIMPLIFIED,
    ),
    **dict.fromkeys(
        (
            "cluster_barrier_delay",
            "coalescing_strategy_hint",
            "eliminate_epilogue",
            "enable_mark_hardware_transpose_candidates",
            "enable_swizzle",
            "iree_preprocessing_pass_pipeline",
            "linearize_reads",
            "linearize_shared_access",
            "minimize_shared_allocs",
            "override_schedule",
            "reorder_allocs",
            "scalarize_packed_math",
            "specialize",
            "use_buffer_load_ops",
            "use_buffer_ops",
            "use_buffer_store_ops",
            "use_global_to_shared",
            "use_scheduling_barriers",
            "waves_per_eu",
        ),
        _PASSES_DECIDE,
    ),
    **dict.fromkeys(
        ("multi_buffer_count",),
        _STAGES,
    ),
    **dict.fromkeys(
        (
            "check_water_analysis",
            "use_bound_check",
            "use_water_backend",
            "use_water_leak_check",
            "verify_region_captures",
        ),
        _CHECKED,
    ),
    **dict.fromkeys(
        (
            "denorm_fp_math_f32",
            "use_fast_math",
        ),
        _ARITHMETIC,
    ),
    **dict.fromkeys(
        (
            "allow_noncontiguous_runtime_buffers",
            "backend",
            "iree_launch_async",
            "kernel_launch_info",
            "kernel_usages",
            "num_devices",
            "wave_runtime",
        ),
        _LAUNCHED,
    ),
    **dict.fromkeys(
        (
            "codeobj",
            "func_name",
            "kernel_hash",
        ),
        _NAMED,
    ),
    **dict.fromkeys(("drop_debug_info_before_mlir", "enforce_locations", "location_capture_config"), _LOCATED),
}
"""Options that direct how Wave compiles, prints or times, and what to write instead: results do not depend on them."""

NO_EFFECT = RemarkKind("the option {name} of Wave's has no effect", "{remedy}")


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

    def assign(self: T, name: str, x: Any) -> None:
        if name in HINTS:
            given: tuple[str, ...] = getattr(self, "without_effect")  # noqa: B009  every class of options has it
            name, x = "without_effect", (*given, name)
        object.__setattr__(self, name, getattr(type(self)(**{name: x}), name) if name != "without_effect" else x)

    setattr(options, "__init__", init)  # noqa: B010  mypy refuses an assignment to __init__
    setattr(options, "__setattr__", assign)  # noqa: B010  as above; compilation takes a copy
    return options


class WaveSchedule:
    """A function that orders the instructions of a loop for Wave's compiler; it is never run."""

    def __init__(self, name: str) -> None:
        self.name = name


class WaveSchedules:
    """Wave's module of schedules: `@wave_schedule.wave_schedule()` above a function, which then has no effect."""

    def wave_schedule(self, **_: object) -> Callable[[Callable[..., object]], WaveSchedule]:
        return lambda function: WaveSchedule(function.__name__)


wave_schedule = WaveSchedules()
NO_SCHEDULE_TAKEN = RemarkKind("the schedule {name} has no effect", "leave it out: passes order the ops of a loop")


def ignored(schedule: object) -> tuple[Remark, ...]:
    """Return the remark on a schedule of Wave's, and an error for anything else; () for None."""
    if schedule is None:
        return ()
    if not isinstance(schedule, WaveSchedule):
        remedy = "leave it out; wave_compile takes the options, then the kernel"
        raise TilewaveError(f"wave_compile: {schedule!r} is no schedule of Wave's", loc=here(), remedy=remedy)
    return (NO_SCHEDULE_TAKEN.at(NOWHERE, name=schedule.name),)


def remarks(without_effect: tuple[str, ...]) -> tuple[Remark, ...]:
    """Return the remarks of `why()` on options that were accepted without effect."""
    return tuple(NO_EFFECT.at(NOWHERE, name=name, remedy=HINTS[name]) for name in without_effect)


# -- names that are not there -----------------------------------------------------------------------------------------

_INDICES = "write read(memory, at={V: indices}), which takes elements at indices along V"
_SCALED = "numbers of six bits are not supported; f4e2m1fn, f8e4m3fn and f8e5m2 are"

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
    **dict.fromkeys(("scatter_add", "index_add"), "write atomic_add(tile, memory, at={V: indices})"),
    **dict.fromkeys(("scatter", "index_copy"), "write write(tile, memory, at={V: indices}), with Indices(unique=True)"),
    **dict.fromkeys(("gather", "index_select", "gather_to_lds", "tensor_load_to_lds"), _INDICES),
    "rand": "write tilewave.random(seed, self_index(N)), a random f32 of [0, 1) for each index",
    "randint": "write random_bits(seed, self_index(N)), 32 random bits as a u32 for each index",
    "randn": "write sqrt(log(1 - random(seed, 2 * index)) * -2) * cos(random(seed, 2 * index + 1) * 6.2831853)",
    "f6e2m3fn": _SCALED,
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
