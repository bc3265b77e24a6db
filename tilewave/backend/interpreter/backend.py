"""The interpreter as a target: nothing is compiled; tiles are computed in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewave.backend.protocol import Backend, Build, BuildOptions
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.ir.launch import bind
from tilewave.ir.types import Memory
from tilewave.pipeline.runner import Pass, Step
from tilewave.records import dataclass
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.call_checks import check_host_call
from tilewave.runtime.scalars import value_of

if TYPE_CHECKING:
    from tilewave.runtime.saved_file import Contents, Stored


@dataclass(frozen=True, eq=False)
class Interpreted(Build):
    """A kernel that is interpreted from its text."""

    tiles: Kernel

    @property
    def steps(self) -> tuple[Step, ...]:
        return ()

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        views = check_host_call(self.tiles.name, parameters, arrays)
        own = [v for v in self.tiles.body.args if not isinstance(v.type, Memory)]
        values = {v.name: value_of(word, v.type.dtype) for v, word in zip(own, numbers, strict=True)}
        interpret(bind(self.tiles, values), [v.numpy() for v in views], values)

    def files(self) -> Mapping[str, bytes]:
        return {"ir": str(self.tiles).encode()}


@dataclass(frozen=True)
class InterpreterBackend(Backend):
    name: str

    kind = "the interpreter"
    device = None
    interprets = True

    def build(self, tiles: Kernel, places: Places, options: BuildOptions) -> Interpreted:
        return Interpreted(tiles)

    def load(self, contents: Contents, kernel: Kernel) -> Interpreted:
        return Interpreted(kernel)

    def stored(self, build: Build) -> Stored:
        return {}, {}

    def passes(self) -> tuple[Pass, ...]:
        return ()
