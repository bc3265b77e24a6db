"""For mypy: `Memory[M, K, SPACE, f16]`, `Register[M, N, f32]` and `alpha: f32` are annotations of kernels.

Their parts are values (symbols, an address space, a dtype), which mypy takes for types and refuses. With

    [tool.mypy]
    plugins = ["tilewave.mypy_plugin"]

a kernel's arguments are checked as what its body gets for them: memories are read and written, tiles have arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import AnalyzeTypeContext, Plugin
from mypy.types import Type

from tilewave.ir.types import DTYPES

GETS = {
    "tilewave.lang.types.Memory": "tilewave.lang.types.MemoryArgument",
    "tilewave.lang.types.Register": "tilewave.lang.values.Traced",
}
"""What a kernel's function, or a loop's, gets for an argument of each annotation."""

NUMBERS = {f"tilewave.api.{name}" for name in DTYPES}
"""The dtypes of annotations such as `alpha: f32`: a scalar argument, for which the body gets a tile without dims."""


class KernelPlugin(Plugin):
    """Reads annotations of kernels."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        if fullname in GETS:
            return lambda context: context.api.named_type(GETS[fullname], [])
        if fullname in NUMBERS:
            return lambda context: context.api.named_type(GETS["tilewave.lang.types.Register"], [])
        return None


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class; mypy calls this."""
    return KernelPlugin
