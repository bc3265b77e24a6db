"""A target that tilewave does not have, made as a newcomer would: a Backend, a Build, and a line in the table.

Its code is the kernel's text backwards, and it runs by reading that again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewave.backend.protocol import Backend, Build
from tilewave.emulator import EmulationReport, LoopStatistics
from tilewave.interp.tiles import interpret
from tilewave.ir.core import Kernel
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import unnamed
from tilewave.pipeline.runner import run
from tilewave.runtime.cache import compile_key, default_cache
from tilewave.runtime.call_checks import check_host_call

COUNTED = LoopStatistics("toy", "toy_1", *[1] * 13, 1, (4,), 1, (4,), 1, (4,), (4,), *[1] * 5)
MADE = []
"""The names of kernels whose code was made, and not found in the cache."""


def fold_toys(kernel):
    """A pass that no other target has."""
    return kernel


@dataclass(frozen=True)
class ToyResources:
    machine: str
    bricks: int
    loads: tuple = ()


@dataclass(frozen=True, eq=False)
class ToyBuild(Build):
    tiles: Kernel
    kept: bytes
    file: str = ""

    @cached_property
    def steps(self):
        return run(self.tiles, ToyBackend().passes())[1]

    def run(self, arrays, numbers, parameters):
        views = check_host_call(self.tiles.name, parameters, arrays)
        kernel = parse(self.kept[::-1].decode(), "toy.ir")
        names = [v.name for v in kernel.body.args][len(parameters) :]
        interpret(kernel, [v.numpy() for v in views], dict(zip(names, numbers, strict=True)), range(kernel.workgroups))

    def files(self):
        return {"toy": self.kept}

    @property
    def metrics(self):
        return {"bricks": self.resources.bricks}

    @property
    def code(self):
        return self.kept

    @property
    def resources(self):
        return ToyResources("toy_1", 8)

    @property
    def lanes(self):
        return None

    @property
    def emulated(self):
        return self

    def emulate(self, views, numbers, order, seed, check, limit):
        interpret(self.tiles, [v.numpy() for v in views], {}, range(self.tiles.workgroups))
        return EmulationReport

    @property
    def loop(self):
        return replace(COUNTED, kernel=self.tiles.name)


@dataclass(frozen=True)
class ToyBackend(Backend):
    name: str = "toy_1"

    kind = "a toy"
    device = "metal"
    is_emulated = True
    counts_loops = True
    takes_instruction_sets = True

    def build(self, tiles, places, options):
        key = compile_key(self.name, unnamed(tiles))
        code = default_cache().get(key)
        if code is None:
            MADE.append(tiles.name)
            code = str(tiles).encode()[::-1]
            default_cache().put(key, code)
        return ToyBuild(tiles, code)

    def load(self, contents, kernel):
        assert contents.about.number("bricks") == 8
        return ToyBuild(kernel, contents.member("code.toy"), contents.path)

    def stored(self, build):
        return {"bricks": 8}, {"code.toy": build.kept}

    def passes(self):
        return (fold_toys,)
