"""How many parts a length has, for static and dynamic lengths: a number, or code for the launch."""

from __future__ import annotations

from tilewave.ir.build import Builder
from tilewave.ir.core import Value
from tilewave.ir.ops import Add, FloorDiv, Mul
from tilewave.ir.types import INDEX_SCALAR, Extent


class LaunchSplits:
    """Counts parts; code for dynamic lengths is emitted once, into a builder for the launch."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._computed: dict[tuple[str, int, int], Value] = {}

    def parts(self, length: Extent, each: int, times: int = 1) -> Extent:
        """Return how many parts of `each` a length has, times `times`."""
        if isinstance(length, int):
            return -(-length // each) * times
        return self.counted(length, each, times).name

    def counted(self, size: str, each: int, times: int = 1) -> Value:
        """Return how many parts a dynamic size has, times `times`, emitted at most once for each combination."""
        if each == times == 1:
            return Value(size, INDEX_SCALAR)
        build, key = self._builder, (size, each, times)
        if key not in self._computed and times > 1:
            parts = self.counted(size, each)
            self._computed[key] = build.emit(Mul, parts, build.const(times), type=INDEX_SCALAR, name=f"{size}_groups")
        elif key not in self._computed:
            reached = build.binary(Add, Value(size, INDEX_SCALAR), build.const(each - 1))
            by = build.const(each)
            self._computed[key] = build.emit(FloorDiv, reached, by, type=INDEX_SCALAR, name=f"{size}_by_{each}")
        return self._computed[key]
