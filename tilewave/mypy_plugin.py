"""For mypy: `Memory[M, K, SPACE, f16]`, `Register[M, N, f32]` and `alpha: f32` are annotations of kernels.

Their parts are values of the author's (symbols, an address space, a dtype), which mypy takes for types and refuses.
With

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
"""`alpha: f32` is a number of the call, of which it gets a tile without dimensions."""


class KernelPlugin(Plugin):
    """Reads annotations of kernels."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        if fullname in GETS:
            return lambda context: context.api.named_type(GETS[fullname], [])
        if fullname in NUMBERS:
            return lambda context: context.api.named_type(GETS["tilewave.lang.types.Register"], [])
        return None


def plugin(version: str) -> type[Plugin]:
    """What mypy asks for."""
    return KernelPlugin
