"""A package `wave_lang` whose language and compiler are tilewave's; only kernels and references are the checkout's own.

An import of a module in `OWN` runs the file of the checkout. Any other module of `wave_lang` has the names of tilewave,
and of `SUPPORT` what tests use of Wave beside its language. A name in neither is a `Missing`, which fails when used.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from enum import Enum
from functools import wraps
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import references
import sympy
import torch
from torch.overrides import TorchFunctionMode

import tilewave

OWN = (
    "wave_lang.kernel.wave.templates",
    "wave_lang.kernel.wave.nn",
    "wave_lang.kernel.wave.schedules",
    "wave_lang.kernel.wave.utils.torch_utils",
    "wave_lang.kernel.wave.utils.mxfp_utils",
    "wave_lang.kernel.wave.utils.reference_kernel_utils",
)
TO_WAVE = {
    torch.float16: tilewave.f16,
    torch.bfloat16: tilewave.bf16,
    torch.float32: tilewave.f32,
    torch.float64: tilewave.f64,
    torch.float8_e4m3fn: tilewave.f8e4m3fn,
    torch.float8_e4m3fnuz: tilewave.f8e4m3fnuz,
    torch.float8_e5m2: tilewave.f8e5m2,
    torch.float8_e5m2fnuz: tilewave.f8e5m2fnuz,
    torch.int8: tilewave.i8,
    torch.int16: tilewave.i16,
    torch.int32: tilewave.i32,
    torch.int64: tilewave.i64,
    torch.bool: tilewave.bool,
}
DELAYS = tuple(
    f"{what}_{kind}"
    for what, kind in (
        *((what, "DELAY") for what in ("READ_SHARED", "WRITE_SHARED", "READ_GLOBAL", "WRITE_GLOBAL")),
        *((what, "DELAY") for what in ("GLOBAL_TO_SHARED", "MMA", "VALU", "SHUFFLE")),
        *((what, "UNITS") for what in ("SHARED_MEMORY", "GLOBAL_MEMORY", "MMA", "VALU", "SHUFFLE")),
    )
)
STARRED = (
    *("GLOBAL_ADDRESS_SPACE", "SHARED_ADDRESS_SPACE", "THREAD_0", "THREAD_1", "THREAD_2"),
    *("WORKGROUP_0", "WORKGROUP_1", "WORKGROUP_2", "sympy", "index_symbol"),
)
ARCHITECTURE = "gfx90a gfx942 gfx950"
"""The chips that tests believe they run on, so that few are skipped; kernels run on the CPU."""
UNDER_WAY: set[str] = set()
"""The functions of templates that the current test has called."""


class MissingName(Exception):
    """A name of Wave's is used that neither tilewave nor the stand-in has."""


class Missing:
    """Stands for such a name until it is used."""

    def __init__(self, name: str) -> None:
        self.missing = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise MissingName(self.missing)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingName(f"{self.missing}.{name}")


def _range(dtype: torch.dtype) -> tuple[Any, Any]:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min, limits.max


def _data(x: Any) -> Any:
    """Return the data of a tensor; Wave's kernels take unsigned bytes where they declare i8."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().view(torch.int8) if x.dtype == torch.uint8 else x.detach()


S, CACHE = tilewave.sym.S, tilewave.MemoryLayout((tilewave.sym.CACHE, None, None))
EXTENDED = {
    "k_cache": CACHE,
    "v_cache": CACHE,
    "kv_indices": tilewave.MemoryLayout((tilewave.sym.KV_INDICES,)),
    "qo_indptr": tilewave.Indices(sorted=True),
}
MEMORIES: dict[tuple[str, str], dict[str, Any]] = {
    ("extend_attention", "extend_attention"): EXTENDED,
    ("extend_attention", "extend_attention_custom_mask"): EXTENDED,
    ("extend_attention_rpe", "extend_attention_rpe"): EXTENDED,
    ("paged_decode_attention", "phase_0"): {"request_indices": tilewave.MemoryLayout((S + 1,))},
    ("paged_decode_attention", "phase_1"): {"request_indices": tilewave.MemoryLayout((S + 1,))},
}
"""What tests know of arrays and the annotations of templates do not say: longer arrays than their dims, and contracts
of indices."""


class CompiledInTest:
    """A compiled kernel; calls take the data of tensors, whether or not they require gradients, as Wave's do."""

    def __init__(self, options: Any, kernel: Any, *schedules: Any) -> None:
        template = kernel.function.__module__.rpartition(".")[2]
        kernel = kernel.with_memories(**MEMORIES.get((template, kernel.name), {}))
        self.compiled = tilewave.wave_compile(options, kernel, *schedules)

    def __call__(self, *arrays: Any, **named: Any) -> None:
        self.compiled(*map(_data, arrays), **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


SUPPORT: dict[str, Any] = {
    "wave_compile": CompiledInTest,
    **{name: getattr(tilewave.sym, name) for name in DELAYS},
    "TORCH_DTYPE_TO_WAVE": TO_WAVE,
    "torch_dtype_to_wave": TO_WAVE.__getitem__,
    "torch_dtype_range": _range,
    "ceildiv": lambda a, b: -(-a // b),
    "clamp": lambda x, low, high: max(low, min(x, high)),
    "get_default_scheduling_params": lambda: {getattr(tilewave.sym, name): 1 for name in DELAYS},
    "get_default_arch": lambda: ARCHITECTURE,
    "get_mfma_load_elems_per_thread": lambda _: 4,
    "get_mfma_store_elems_per_thread": lambda _: 4,
    "generate_iree_ref": references.generate,
    "enable_scheduling_barriers": None,
    "check_individual_kernels": None,
    "is_water_available": lambda: False,
    "is_execution_engine_available": lambda: False,
    "is_waveasm_available": lambda: False,
    "check_leaks": lambda test: test,
    "CoalescingType": Enum("CoalescingType", "LINEAR WAVE_TILE_ALIGNED"),
    "math": math,
    "sympy": sympy,
}


class Sympy(ModuleType):
    """The sympy of a template, whose import is replaced: Piecewise is tilewave's, as sympy's refuses conditions that
    are not its own."""

    Piecewise = staticmethod(tilewave.Piecewise)

    def __getattr__(self, name: str) -> Any:
        return getattr(sympy, name)


class StandIn(ModuleType):
    """A module of Wave's with the names of tilewave."""

    __path__: ClassVar[list[str]] = []
    __all__ = (*STARRED, *DELAYS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in SUPPORT:
            return SUPPORT[name]
        if isinstance(sys.modules.get(f"{self.__name__}.{name}"), StandIn):
            return sys.modules[f"{self.__name__}.{name}"]
        if name == "wave_schedule" and self.__name__.endswith("wave_schedule"):
            return tilewave.wave_schedule.wave_schedule
        try:
            return getattr(tilewave, name)
        except AttributeError:
            return Missing(name)


class Finder:
    """Finds the modules of `wave_lang`, and loads them."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "wave_lang":
            return None
        if name.startswith(OWN):
            at = self.checkout.joinpath(*name.split("."))
            file = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
            spec = spec_from_file_location(name, file, submodule_search_locations=[str(at)] if at.is_dir() else None)
            if spec is not None and spec.loader is not None and "templates." in name:
                spec.loader.exec_module = _noting(spec.loader.exec_module)  # type: ignore[method-assign]
            return spec
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return


def _noting(run: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Return what runs a module of templates, and has its functions note that they are called."""

    def running(module: ModuleType) -> None:
        run(module)
        if hasattr(module, "sympy"):
            module.sympy = Sympy("sympy")
        if getattr(module, "Piecewise", None) is sympy.Piecewise:
            module.Piecewise = tilewave.Piecewise
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and function.__module__ == module.__name__ and "get_" in name:
                setattr(module, name, _noted(f"{module.__name__.rpartition('.')[2]}.{name}", function))

    return running


def _noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def noted(*given: Any, **named: Any) -> Any:
        UNDER_WAY.add(name)
        return function(*given, **named)

    return noted


class OnTheHost(TorchFunctionMode):
    """Makes tensors on the CPU where a test asks for a GPU."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function is torch.device:  # a name; what is made there is made here
            return function(*given, **(named or {}))
        named = {name: _host(x) for name, x in (named or {}).items()}
        if function is torch.Tensor.cuda:
            return given[0]
        return function(*map(_host, given), **named)


def _host(x: Any) -> Any:
    is_gpu = (isinstance(x, str) and x.startswith("cuda")) or (isinstance(x, torch.device) and x.type == "cuda")
    return "cpu" if is_gpu else x


def install(checkout: Path) -> None:
    """Make `import wave_lang` find the stand-in, and the shapes of tests ones that a CPU computes in seconds."""
    sys.meta_path.insert(0, Finder(checkout))  # type: ignore[arg-type]
    torch.testing.assert_close = references.assert_close
    sys.path.insert(0, str(checkout / "tests"))
    shapes = importlib.import_module("kernel.common.shapes")
    for name, given in vars(shapes)["_e2e_test_shapes"].items():
        vars(shapes)["_e2e_test_shapes"][name] = [_smaller(shape) for shape in given]


MOST = 2048


def _smaller(shape: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(n if n < MOST else 512 for n in shape)
    long = {f.name: 320 for f in fields(shape) if f.name.endswith("seq_len") and (getattr(shape, f.name) or 0) > MOST}
    return replace(shape, **long)
