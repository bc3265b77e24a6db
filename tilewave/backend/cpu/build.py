"""From a tile-level kernel to a program for this machine's CPU, or another's: passes, lowering, LLVM, cache."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from math import prod
from typing import TYPE_CHECKING, Any

from tilewave.backend.assembler import assembled
from tilewave.backend.cpu.amx import ask_permission
from tilewave.backend.cpu.instruction_sets import (
    InstructionSet,
    host_features,
    host_instruction_set,
    instruction_set,
    runs_here,
)
from tilewave.backend.protocol import Build, ReplayedCall
from tilewave.errors import SavedKernelError, TargetError, here
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.rewrite import unnamed
from tilewave.lower.cpu.kernel import Lowered, lower, lower_with_lines
from tilewave.pipeline.runner import Step, run
from tilewave.records import dataclass
from tilewave.runtime.arrays import Parameter, numpy_data, quick_address
from tilewave.runtime.cache import compile_key, default_cache
from tilewave.runtime.call_checks import check_host_call, plain_pointers
from tilewave.runtime.cpu import CpuLaunch, CpuProgram, CpuReplay
from tilewave.runtime.overlaps import distances, layout_of
from tilewave.runtime.pool import default_threads
from tilewave.runtime.records import AGAIN

if TYPE_CHECKING:
    from tilewave.runtime.sizes import Size

KEPT_CALLS = 1024
"""Sets of arrays whose argument words a kernel keeps; beyond this many the cache is cleared."""
OBJECT = "code.o"
"""The member of a file with the machine code."""


@dataclass(frozen=True, eq=False)
class CpuBuild(Build):
    """Machine code for one kernel; its passes run again only on demand."""

    tiles: Kernel
    instruction_set: InstructionSet
    object_code: bytes
    launch: CpuLaunch
    file: str = ""
    """The file with the code, perhaps from another machine; "" where it was compiled here."""
    in_place: bool = False
    """Whether operands are read in place, without packing."""
    known: dict[tuple[int, ...], tuple[tuple[Parameter, ...], list[int]]] = field(default_factory=dict, repr=False)
    """Parameters and argument words of earlier calls, by the addresses of arrays with contiguous rows."""

    @cached_property
    def program(self) -> CpuProgram:
        if not runs_here(self.instruction_set):
            raise self._not_for_this_machine()
        if self.instruction_set.matrix_unit:
            ask_permission()
        try:
            return CpuProgram(self.object_code, self.launch)
        except RuntimeError as error:
            if not self.file:
                raise
            why = str(error).strip().splitlines() or ["LLVM does not say why"]
            what = f"{self.tiles.name}: {self.file}: {OBJECT} cannot be linked: {why[0]}"
            raise SavedKernelError(what, loc=here(), remedy=AGAIN) from None

    def _not_for_this_machine(self) -> TargetError:
        name, wanted = self.tiles.name, self.instruction_set.name
        what = f"{name}: this machine does not have {wanted}"
        remedy = "compile it without instruction_set"
        if self.file:
            what = f"{name}: {self.file} holds code for {wanted}, but {self._lacking()}"
            remedy = f'save it from WaveCompileOptions(instruction_set="{host_instruction_set(self.tiles).name}")'
        return TargetError(what, loc=here(), remedy=f"{remedy}, or run it in numpy: {name}.interpret(…)")

    def _lacking(self) -> str:
        wanted, ours = self.instruction_set.triple, host_instruction_set().triple
        if wanted != ours:
            return f"that is {wanted.partition('-')[0]}, and this machine is {ours.partition('-')[0]}"
        missing = [need for need in self.instruction_set.needs if need not in host_features()]
        return f"this machine has no {', '.join(missing)}"

    def prepare(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> None:
        self.program  # noqa: B018  linked when it is first asked for

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        """Run the kernel on this machine's cores."""
        self.program.call(self._words(arrays, parameters), numbers, default_threads())

    def replay(
        self, arrays: Sequence[Any], given: Mapping[str, Any], sized: Size, fresh: Collection[int]
    ) -> ReplayedCall | None:
        found, address = sized(arrays, given), quick_address(arrays)
        if address is None:
            return None
        written = {i for i, p in enumerate(found.parameters) if p.written}
        views = check_host_call(self.tiles.name, found.parameters, arrays)
        near = distances([layout_of(v.shape, v.strides, v.dtype.bytes) for v in views], written, fresh)
        same, program = tuple(found.numbers), self.program
        usual = program.replay(views, same)
        is_read = address is numpy_data and not near  # by machine code, which looks at nothing else
        latest: tuple[Sequence[int], CpuReplay] = (), usual

        def made(arrays: tuple[Any, ...], words: Sequence[int] = ()) -> int:
            nonlocal latest
            replay = usual
            if words:
                said, replay = latest
                if words != said:
                    numbers = sized.with_others(same, words)
                    if numbers is None:
                        return 1
                    replay = program.replay(views, numbers)
                    latest = words, replay
            if is_read:
                replay.on(arrays, default_threads())
                return 0
            at = [address(array) for array in arrays]
            for i, j, low, high in near:
                if low < at[j] - at[i] < high:
                    return 1
            replay(at, default_threads())
            return 0

        return made

    def _words(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> list[int]:
        """Return the argument words of the arrays; numpy arrays that were checked before are not checked again."""
        pointers = plain_pointers(parameters, arrays)
        if pointers is not None:
            known = self.known.get(pointers)
            if known is not None and known[0] is parameters:
                return known[1]
        words = self.program.words_of(check_host_call(self.tiles.name, parameters, arrays))
        if pointers is not None:
            if len(self.known) >= KEPT_CALLS:
                self.known.clear()
            self.known[pointers] = parameters, words
        return words

    def files(self) -> Mapping[str, bytes]:
        if self.asm is None or self.llvm_ir is None:
            return {"o": self.code}
        return {"s": self.asm.encode(), "o": self.code, "ll": self.llvm_ir.encode()}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {"instruction_set": self.instruction_set.name}

    @property
    def code(self) -> bytes:
        return self.object_code

    @cached_property
    def passed(self) -> tuple[Kernel, tuple[Step, ...]]:
        return run_passes(self.tiles, self.instruction_set, self.in_place)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.passed[1]

    @cached_property
    def llvm_ir(self) -> str | None:
        if self.file:
            return None
        return lower(self.passed[0], self.instruction_set).llvm_ir + self.instruction_set.runtime

    @cached_property
    def asm(self) -> str | None:
        if self.file:
            return None
        s = self.instruction_set
        llvm_ir = lower_with_lines(self.passed[0], s).llvm_ir + s.runtime
        return assembled(self.tiles.name, s.name, llvm_ir, s.machine._replace(gives="text")).asm


def build_cpu(tiles: Kernel, wanted: str | None, in_place: bool = False) -> CpuBuild:
    """Return machine code for a kernel, from the cache if it is there."""
    s = instruction_set(wanted, tiles)
    store = default_cache()
    key = compile_key("cpu in place" if in_place else "cpu", repr(s), unnamed(tiles))
    kept = store.get(key)
    if kept is None:
        lowered = lower(run_passes(tiles, s, in_place)[0], s)
        made = assembled(tiles.name, s.name, lowered.llvm_ir + s.runtime, s.machine)
        kept = _packed(made.code, lowered)
        store.put(key, kept)
    head, _, code = kept.partition(b"\n")
    return CpuBuild(tiles, s, code, _launch(json.loads(head)), in_place=in_place)


def run_passes(tiles: Kernel, s: InstructionSet, in_place: bool = False) -> tuple[Kernel, tuple[Step, ...]]:
    with IMPORTING:
        from tilewave.pipeline import cpu_lists as lists  # noqa: PLC0415  code from the cache needs no passes

    if in_place:
        return run(tiles, lists.cpu_in_place(s.block(tiles)))
    passes = lists.cpu_with_matrix_unit if s.matrix_unit else lists.cpu if s.broadcasts else lists.cpu_by_lane
    return run(tiles, passes(s.block(tiles), s.unit, s.panel_formats()))


def _packed(code: bytes, lowered: Lowered) -> bytes:
    """Return a program as stored in the cache: a line of JSON, then the object code."""
    launch = CpuLaunch(
        words=lowered.slots.count,
        packed_slots=tuple(p.slot for p in lowered.packed),
        packed_bytes=()
        if lowered.opening
        else tuple(prod(p.memory.shape) * p.memory.dtype.bytes for p in lowered.packed),
        scratch_slot=lowered.slots.scratch,
        scratch_bytes=lowered.scratch_bytes,
        item_bytes=tuple(m.type.dtype.bytes for m in lowered.slots.memories),
        opening=lowered.opening,
    )
    return json.dumps(asdict(launch)).encode() + b"\n" + code


def _launch(fields: dict[str, Any]) -> CpuLaunch:
    whole: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return CpuLaunch(**whole)
