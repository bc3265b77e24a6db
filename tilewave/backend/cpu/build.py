"""A kernel on whole tiles → a program for this machine's CPU, or for another's: passes, lowering, LLVM, cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewave.backend.assembler import assembled
from tilewave.backend.cpu.amx import ask_permission
from tilewave.backend.cpu.instruction_sets import InstructionSet, instruction_set, runs_here
from tilewave.errors import TargetError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.rewrite import unnamed
from tilewave.lower.cpu.kernel import Lowered, lower
from tilewave.pipeline import lists
from tilewave.pipeline.runner import Step, run
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.cache import compile_key, default_cache
from tilewave.runtime.cpu import Launch, Program
from tilewave.runtime.pool import default_threads


@dataclass(frozen=True, eq=False)
class CpuBuild:
    """Machine code for one kernel; how it was made is worked out again when somebody asks."""

    tiles: Kernel
    instruction_set: InstructionSet
    code: bytes
    launch: Launch

    @cached_property
    def program(self) -> Program:
        if not runs_here(self.instruction_set):
            raise TargetError(
                f"{self.tiles.name}: this machine does not have {self.instruction_set.name}",
                loc=here(),
                remedy=f"compile it without instruction_set, or run it in numpy: {self.tiles.name}.interpret(…)",
            )
        if self.instruction_set.matrix_unit:
            ask_permission()
        return Program(self.code, self.launch)

    def run(self, views: Sequence[ArrayView], numbers: Sequence[int]) -> None:
        """Run it on this machine's cores."""
        self.program(views, numbers, default_threads() if self.tiles.workgroups > 1 else 1)

    @cached_property
    def passed(self) -> tuple[Kernel, tuple[Step, ...]]:
        return run_passes(self.tiles, self.instruction_set)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.passed[1]

    @cached_property
    def llvm_ir(self) -> str:
        return lower(self.passed[0], self.instruction_set).llvm_ir + self.instruction_set.runtime

    @cached_property
    def asm(self) -> str:
        s = self.instruction_set
        return assembled(self.tiles.name, s.name, self.llvm_ir, replace(s.machine, gives="text")).asm


def build_cpu(tiles: Kernel, wanted: str | None) -> CpuBuild:
    """Machine code for a kernel, from the cache where it was made before."""
    s = instruction_set(wanted, tiles)
    store = default_cache()
    key = compile_key("cpu", repr(s), unnamed(tiles))
    kept = store.get(key)
    if kept is None:
        lowered = lower(run_passes(tiles, s)[0], s)
        made = assembled(tiles.name, s.name, lowered.llvm_ir + s.runtime, s.machine)
        kept = _packed(made.code, lowered)
        store.put(key, kept)
    head, _, code = kept.partition(b"\n")
    return CpuBuild(tiles, s, code, _launch(json.loads(head)))


def run_passes(tiles: Kernel, s: InstructionSet) -> tuple[Kernel, tuple[Step, ...]]:
    passes = lists.cpu_with_matrix_unit if s.matrix_unit else lists.cpu
    return run(tiles, passes(s.rows, s.cols, s.unit, s.panel_formats()))


def _packed(code: bytes, lowered: Lowered) -> bytes:
    """How the cache keeps a program: a line of JSON, then the object code."""
    launch = Launch(
        words=lowered.slots.count,
        packed_slots=tuple(p.slot for p in lowered.packed),
        packed_bytes=tuple(p.bytes for p in lowered.packed),
        scratch_slot=lowered.slots.scratch,
        scratch_bytes=lowered.scratch_bytes,
        item_bytes=tuple(m.type.dtype.bytes for m in lowered.slots.memories),
    )
    return json.dumps(asdict(launch)).encode() + b"\n" + code


def _launch(fields: dict[str, Any]) -> Launch:
    whole: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Launch(**whole)
