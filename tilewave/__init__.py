"""A language and compiler for GPU tile kernels, in which the order of tiles is an object.

The names are defined in `tilewave.api`, which is imported at the first use of one of them: importing `tilewave` for its
version, or for modules that need no compiler, stays fast.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewave._version import __version__
from tilewave.forks import IMPORTING
from tilewave.hooks import Hooks

if TYPE_CHECKING:
    from tilewave.api import *  # noqa: F403

__all__ = [  # noqa: F405
    "GLOBAL_ADDRESS_SPACE",
    "SHARED_ADDRESS_SPACE",
    "THREAD_0",
    "THREAD_1",
    "THREAD_2",
    "WORKGROUP_0",
    "WORKGROUP_1",
    "WORKGROUP_2",
    "AddressSpace",
    "Assumption",
    "Compiled",
    "Constraint",
    "DataType",
    "DeviceConstraint",
    "Eq",
    "GenericDot",
    "GridConstraint",
    "HardwareConstraint",
    "IndexExpr",
    "IndexMapping",
    "IndexSymbol",
    "Indices",
    "IteratorBindings",
    "MMAOperand",
    "MMAType",
    "Max",
    "Memory",
    "MemoryLayout",
    "Min",
    "Ne",
    "Piecewise",
    "Ragged",
    "Register",
    "ReorderingConstraint",
    "ScaledMMAType",
    "SchedulingType",
    "SplitConstraint",
    "SymbolBind",
    "SymbolicAlias",
    "TilewaveError",
    "TilingConstraint",
    "Tune",
    "WaveCompileOptions",
    "WaveConstraint",
    "WorkgroupConstraint",
    "WorkgroupMapping",
    "__version__",
    "allocate",
    "apply_expr",
    "argmax",
    "argmin",
    "argsort",
    "assert_",
    "atomic_add",
    "atomic_and",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "autotune",
    "bf16",
    "bitcast",
    "broadcast",
    "cast",
    "ceil",
    "ceiling",
    "conditional",
    "cos",
    "cumsum",
    "debug_log",
    "erf",
    "exp",
    "exp2",
    "f4e2m1fn",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0fnu",
    "f16",
    "f32",
    "f64",
    "first_index",
    "floor",
    "fma",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "index_symbol",
    "iterate",
    "load",
    "log",
    "log1p",
    "log2",
    "log10",
    "mapping",
    "maximum",
    "minimum",
    "mma",
    "ordered_add",
    "permute",
    "prod",
    "random_bits",
    "read",
    "reciprocal",
    "reduction",
    "register",
    "rename",
    "roundeven",
    "rsqrt",
    "scalar",
    "scaled_mma",
    "scan",
    "select",
    "self_index",
    "set_default_run_config",
    "set_symbol",
    "shared_memory_barrier",
    "sin",
    "softsign",
    "sort",
    "sqrt",
    "sym",
    "tag",
    "tanh",
    "tanh_approx",
    "topk",
    "u8",
    "u16",
    "u32",
    "u64",
    "wave",
    "wave_compile",
    "wave_schedule",
    "workgroup_barrier",
    "write",
]

PYTHONS_OWN = ("abs", "all", "any", "bool", "max", "min", "random", "round", "sum")
"""Names of Python, its module `random` among them, that are tilewave's only as attributes of the module: a star import
leaves Python's alone."""

MODULES = ("kernels", "ops", "torch")
"""Submodules that are imported at their first use."""


def _torch_operators() -> ModuleType:
    with IMPORTING:
        return import_module("tilewave.torch.operators")


def _autotune(*given: Any, **named: Any) -> Any:
    with IMPORTING:
        tuning = import_module("tilewave.bench.tuning")
    return tuning.tune(*given, **named)


Hooks.torch_operators = _torch_operators
Hooks.autotune = _autotune

if not TYPE_CHECKING:  # type checkers take the names from the imports above, and report unknown ones

    def __getattr__(name: str) -> Any:
        if name in MODULES:
            with IMPORTING:
                return import_module(f"tilewave.{name}")
        if not name.startswith("__"):  # Python looks these up in every module
            with IMPORTING:
                api = import_module("tilewave.api")
            if name in (*__all__, *PYTHONS_OWN) and hasattr(api, name):
                globals()[name] = getattr(api, name)
            if name in globals():  # or a module that the import added, such as tilewave.errors
                return globals()[name]
            with IMPORTING:
                words = import_module("tilewave.lang.wave_words")
            if (absent := words.no_such_name(name)) is not None:
                raise absent
        raise AttributeError(f"module 'tilewave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PYTHONS_OWN, *MODULES})
