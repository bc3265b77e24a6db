"""Kernel and options → `Compiled`: the one place where the stages meet."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from tilewave.analysis.reads import judged_schedule, reads_depend_on
from tilewave.analysis.schedule import Cut, Schedule, checked_schedule
from tilewave.analysis.visits import needed_values
from tilewave.errors import NOWHERE, CallError, SymbolError, TargetError, TilewaveError, here
from tilewave.forks import IMPORTING, cached_property
from tilewave.interp.tiles import interpret, touched
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Scatter, Write
from tilewave.ir.rewrite import walk
from tilewave.lang.kernel import WaveKernel, arguments, trace_kernel
from tilewave.lang.symbols import Expression, Symbol
from tilewave.pipeline.runner import Pass, Step, numbered, run
from tilewave.pipeline.why import Why
from tilewave.runtime.arrays import ArrayView, Parameter, check_call

if TYPE_CHECKING:
    from tilewave.backend.amd.build import AmdBuild, LaneResources
    from tilewave.backend.cpu.build import CpuBuild
    from tilewave.backend.nvidia.build import NvidiaBuild, NvidiaResources
    from tilewave.emulator import EmulationReport, LoopStatistics
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order as WaveOrder
    from tilewave.ir.places import Places
    from tilewave.passes.map_workgroups import Order

AMD, NVIDIA = ("gfx942", "gfx950"), ("sm_90a",)
TARGETS = ("cpu", *AMD, *NVIDIA, "numpy")
"""What a kernel can be compiled for; `numpy` is the interpreter."""


Schedules = dict[tuple[tuple[str, int], ...], Schedule]
"""By the values of the dynamic symbols."""

ORDERS = {"tile": ("launch", "shuffled"), "lane": ("in turn", "backwards", "random")}
"""The levels at which a kernel can be interpreted, and in which orders."""


class SchedulingType(Enum):
    """How loads and products of a loop overlap."""

    NONE = "none"
    PREFETCH = "prefetch"


@dataclass(frozen=True)
class WaveCompileOptions:
    """What a kernel is compiled with: sizes, target, and what stays open until the call."""

    subs: Mapping[Symbol, Any] = field(default_factory=dict)
    target: str | None = None
    schedule: SchedulingType = SchedulingType.NONE
    dynamic_symbols: Iterable[Symbol] = ()
    instruction_set: str | None = None
    """For the CPU: avx512, avx2, …; the best of this machine where it is not said."""
    buffers: int | None = None
    """How many steps of a loop shared memory holds at once; one for PREFETCH and four for Hopper's copy engine, or as
    many of these as fit, where it is not said."""


def set_default_run_config(options: WaveCompileOptions) -> WaveCompileOptions:
    """The options with what is unset filled in: the machine's GPU where there is one, else the CPU."""
    return options if options.target else replace(options, target="cpu")


@dataclass(frozen=True, eq=False)
class Compiled:
    """A kernel with its sizes known; every step of its making can be looked at."""

    kernel: Kernel
    """The kernel on whole tiles: what its schedule and the interpreter read."""
    traced: Kernel
    tile_steps: tuple[Step, ...]
    target: str
    dynamic_symbols: tuple[str, ...]
    build: CpuBuild | AmdBuild | NvidiaBuild | None
    _remedy: str
    _schedules: Schedules = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.kernel.name

    def __repr__(self) -> str:
        tiles = "x".join(map(str, grid_of(self.kernel)))
        return f"<compiled {self.name} for {self.target}: {self.kernel.workgroups} workgroups, {tiles} tiles>"

    # -- running it

    def __call__(self, *arrays: Any, **symbols: int) -> None:
        """Run it on the device it was compiled for."""
        if self.cpu is not None:
            numbers: list[int] = []
            if symbols or self.dynamic_symbols:
                values = self._symbols(symbols)
                self.schedule_for(**values)
                numbers = [values[name] for name in self.dynamic_symbols]
            self.cpu.run(self._checked(arrays), numbers)
        elif self.gpu is not None:
            values = self._symbols(symbols) if symbols or self.dynamic_symbols else {}
            if values:
                self.schedule_for(**values)
            self.gpu.program.run(arrays, [values[name] for name in self.dynamic_symbols], self.parameters)
        else:
            self._interpret(arrays, symbols, list(range(self.kernel.workgroups)))

    def interpret(self, *arrays: Any, level: str = "tile", order: str = "", seed: int = 0, **symbols: int) -> None:
        """Run its IR in numpy, on whole tiles or lane by lane, and report races and memory that nobody wrote.

        level="tile": order="launch", or "shuffled": the workgroups in a random order.
        level="lane": order="in turn", "backwards" or "random": how the waves of a workgroup take turns.
        """
        if level not in ORDERS:
            raise CallError(f"{self.name}: the levels are {' and '.join(ORDERS)}, not {level!r}", loc=here())
        order = order or ORDERS[level][0]
        if order not in ORDERS[level]:
            known = " or ".join(map(repr, ORDERS[level]))
            raise CallError(f"{self.name}: at the {level} level the order is {known}, not {order!r}", loc=here())
        if level == "lane":
            self._interpret_lanes(arrays, symbols, order, seed)
            return
        workgroups = list(range(self.kernel.workgroups))
        if order == "shuffled":
            random.Random(seed).shuffle(workgroups)
        self._interpret(arrays, symbols, workgroups)

    def _interpret_lanes(self, arrays: Sequence[Any], symbols: Mapping[str, int], order: str, seed: int) -> None:
        with IMPORTING:
            from tilewave.interp.lanes import interpret_lanes  # noqa: PLC0415  few ask for it, and it is large

        if self.gpu is None:
            raise TargetError(
                f"{self.name}: lanes exist on GPUs, and it was compiled for {self.target}",
                loc=here(),
                remedy=f'compile it with target="{AMD[0]}"; no GPU is needed',
            )
        values = self._symbols(symbols)
        views = self._checked(arrays)
        self.schedule_for(**values)
        interpret_lanes(self.gpu.lanes, [v.numpy() for v in views], values, order, seed)

    def emulate(
        self,
        *arrays: Any,
        order: WaveOrder = "barrier",
        seed: int = 0,
        check: Check = "strict",
        limit: int | None = None,
        **symbols: int,
    ) -> EmulationReport:
        """Run the emitted machine code of an AMD chip on this CPU, and check its waits, barriers, races and bounds.

        order="barrier": each wave runs to its next barrier; "random": waves take turns at random. check="warn"
        reports what is found instead of raising at the first. A wave that takes more than `limit` instructions counts
        as endless; without it the limit follows from the arrays' sizes.
        """
        build = self._amd("machine code to emulate")
        values = self._symbols(symbols)
        views = self._checked(arrays)
        self.schedule_for(**values)
        numbers = [values[name] for name in self.dynamic_symbols]
        return build.program.emulate(views, numbers, order, seed, check, limit)

    def _amd(self, what: str) -> AmdBuild:
        if self.target not in AMD:
            chips = " or ".join(f'"{chip}"' for chip in AMD)
            what = f"{self.name}: there is no {what} for {self.target}"
            raise TargetError(what, loc=here(), remedy=f"compile it with target={chips}")
        return cast("AmdBuild", self.build)

    def _interpret(self, arrays: Sequence[Any], symbols: Mapping[str, int], workgroups: Sequence[int]) -> None:
        values = self._symbols(symbols)
        views = self._checked(arrays)
        self.schedule_for(**values)
        interpret(self.kernel, [v.numpy() for v in views], values, workgroups)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file that `tilewave.load` runs on machines where nothing is compiled."""
        with IMPORTING:
            from tilewave.saved.kernel import SavedKernel, write_kernel  # noqa: PLC0415  LLVM is heavy, as in _cpu_build

        facts = self.kernel, self.target, self.parameters, self.dynamic_symbols, self._remedy
        write_kernel(path, SavedKernel(*facts, self.build))

    def _checked(self, arrays: Sequence[Any]) -> tuple[ArrayView, ...]:
        try:
            return check_call(self.name, self.parameters, arrays, "cpu", NOWHERE)
        except CallError as error:  # looking for the author's line costs more than a small kernel
            raise CallError(error.what, loc=here(), remedy=error.remedy) from None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        written, _ = touched(self.kernel)
        memories, _ = arguments(self.kernel)
        return tuple(Parameter(m.name, m.type.shape, m.type.dtype, m in written) for m in memories)

    def _symbols(self, given: Mapping[str, int]) -> dict[str, int]:
        """The dynamic symbols of a call, each an int and none missing or unknown."""
        unknown = [name for name in given if name not in self.dynamic_symbols]
        missing = [name for name in self.dynamic_symbols if name not in given]
        if unknown:
            known = f"it takes {', '.join(self.dynamic_symbols)}" if self.dynamic_symbols else "it takes none"
            remedy = f"{known}; name it in WaveCompileOptions(dynamic_symbols=[{unknown[0]}])"
            raise CallError(f"{self.name} takes no symbol {unknown[0]}", loc=here(), remedy=remedy)
        if missing:
            remedy = f"write {self.name}(…, {missing[0]}=4)"
            raise CallError(f"{self.name} needs a value for {missing[0]}", loc=here(), remedy=remedy)
        for name, value in given.items():
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise CallError(f"{self.name}: {name} is {value!r}, no whole number of at least 1", loc=here())
        return {name: int(value) for name, value in given.items()}

    # -- looking at it

    @property
    def schedule(self) -> Schedule:
        """Which workgroup computes which tiles, in order."""
        if deciding := order_depends_on(self.kernel):
            given = ", ".join(f"{name}=…" for name in self.dynamic_symbols)
            raise CallError(
                f"{self.name}: the order depends on {', '.join(deciding)}",
                loc=here(),
                remedy=f"write schedule_for({given})",
            )
        values = dict.fromkeys(self.dynamic_symbols, 1)
        if reads_depend_on(self.kernel):  # they are judged with the values of a call
            return checked_schedule(self.kernel, values, self._remedy)
        return self.schedule_for(**values)

    def schedule_for(self, **symbols: int) -> Schedule:
        """The schedule for given dynamic symbols.

        An error if a tile is lost or computed twice, if a workgroup reads what another writes, or a tile outside.
        """
        values = self._symbols(symbols)
        key = tuple(sorted(values.items()))
        if key not in self._schedules:
            self._schedules[key] = judged_schedule(self.kernel, values, self._remedy)
        return self._schedules[key]

    @property
    def steps(self) -> tuple[Step, ...]:
        """What every pass did, the target's own included."""
        return numbered(self.tile_steps + (self.build.steps if self.build else ()))

    def why(self, *arrays: Any) -> Why:
        """Where passes could have helped and did not, and why; it prints as a table.

        With arrays, also what these keep the machine code of a GPU from.
        """
        found = Why.of(self.steps)
        if not arrays or self.gpu is None:
            return found
        return found.of_a_call(self.gpu.program.declined_for(arrays, self.parameters))

    def ir(self, pass_name: str = "") -> Kernel:
        """The kernel after a pass; "trace" is what the author's function gave; nothing is the last."""
        made = {"trace": self.traced}
        for step in self.steps:
            made[step.name] = made[""] = step.after
        if pass_name not in made:
            known = ", ".join(name for name in made if name)
            remedy = f"the passes are {known}"
            raise TargetError(f"{self.name}: no pass is called {pass_name!r}", loc=here(), remedy=remedy)
        return made[pass_name]

    @property
    def llvm_ir(self) -> str:
        """What was given to LLVM."""
        return self._built("LLVM IR").llvm_ir

    @property
    def asm(self) -> str:
        """The machine's instructions, as text."""
        return self._built("assembly").asm

    @property
    def code_object(self) -> bytes:
        return self._built("object code").code

    @property
    def resources(self) -> LaneResources | NvidiaResources:
        """Waves, the matrix instruction taken, shared bytes, and what each lane loads."""
        if self.gpu is None:
            raise TargetError(f"{self.name}: nothing is counted for {self.target}", loc=here())
        return self.gpu.resources

    @property
    def loop_statistics(self) -> LoopStatistics:
        """What stands in the K loop of an AMD chip's machine code."""
        return self._amd("machine code to count").program.statistics

    @property
    def cpu(self) -> CpuBuild | None:
        """What runs on this machine's cores, where it was compiled for them."""
        return cast("CpuBuild", self.build) if self.target == "cpu" else None

    @property
    def gpu(self) -> AmdBuild | NvidiaBuild | None:
        """What runs on a GPU, where it was compiled for one."""
        return cast("AmdBuild | NvidiaBuild", self.build) if self.target in (*AMD, *NVIDIA) else None

    def _built(self, what: str) -> CpuBuild | AmdBuild | NvidiaBuild:
        if self.build is None:
            raise TargetError(f"{self.name}: there is no {what} for {self.target}", loc=here())
        return self.build


REMEDY = "Correct the formula, or name a mapping that is right on every grid, for example\n{example}"
EXAMPLES = {
    "plain": "    WorkgroupMapping(xcd_contiguous(8) >> grouped(4))",
    "persistent": "    GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop",
}


def wave_compile(options: WaveCompileOptions, kernel: WaveKernel) -> Compiled:
    """Compile a kernel; it is left as it was, and may be compiled again with other options."""
    _check_kinds(options, kernel)
    target = _known_target(set_default_run_config(options).target or "")
    _check_options(options, target)
    dynamic = _open_symbols(options.dynamic_symbols)
    traced = trace_kernel(kernel, options.subs, dynamic)
    final, steps = run(traced.ir, _tile_level(traced.order))
    kind = "plain" if "tile_of" in str(traced.ir) else "persistent"
    remedy = REMEDY.format(example=EXAMPLES[kind])
    schedules = {} if order_depends_on(final) else _first_schedule(final, dynamic, remedy)
    build: CpuBuild | AmdBuild | NvidiaBuild | None = None
    if target == "cpu":
        build = _cpu_build(final, options)
    elif target in (*AMD, *NVIDIA):
        build = _gpu_build(final, target, traced.places, options)
    return Compiled(final, traced.ir, steps, target, tuple(s.name for s in dynamic), build, remedy, schedules)


def _first_schedule(kernel: Kernel, dynamic: Sequence[Symbol], remedy: str) -> Schedules:
    """The schedule that no open symbol decides; where one decides what is read, the reads are judged at the call."""
    values = {s.name: 1 for s in dynamic}
    if reads_depend_on(kernel):
        checked_schedule(kernel, values, remedy)
        return {}
    return {tuple(sorted(values.items())): judged_schedule(kernel, values, remedy)}


def _check_options(options: WaveCompileOptions, target: str) -> None:
    """Refuse what would be taken and change nothing."""
    schedule: object = options.schedule
    if not isinstance(schedule, SchedulingType):
        named = next(
            (s for s in SchedulingType if str(schedule).lower() in (s.value, f"schedulingtype.{s.value}")), None
        )
        remedy = f"write schedule=SchedulingType.{(named or SchedulingType.PREFETCH).name}"
        raise TilewaveError(f"schedule is {schedule!r}, no SchedulingType", loc=here(), remedy=remedy)
    buffers: object = options.buffers
    if buffers is not None and (isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1):
        raise TilewaveError(f"buffers is {buffers!r}", loc=here(), remedy="a loop needs one buffer at least")
    if target in AMD and (options.buffers or 1) > 1 and schedule is SchedulingType.NONE:
        raise TilewaveError(
            f"buffers is {buffers}, but without PREFETCH a loop on {target} fills one and waits for it",
            loc=here(),
            remedy="write schedule=SchedulingType.PREFETCH, or leave buffers out",
        )
    if options.instruction_set is not None and target != "cpu":
        raise TilewaveError(
            f"instruction_set is {options.instruction_set!r}, but the target is {target}",
            loc=here(),
            remedy='instruction sets are those of the CPU: write target="cpu", or leave instruction_set out',
        )


def _check_kinds(options: object, kernel: object) -> None:
    if isinstance(options, WaveKernel):
        raise TilewaveError(
            "wave_compile takes the options first, then the kernel",
            loc=here(),
            remedy=f"write wave_compile(options, {options.name})",
        )
    if not isinstance(options, WaveCompileOptions):
        raise TilewaveError(
            f"wave_compile needs options, not {options!r}",
            loc=here(),
            remedy="write wave_compile(WaveCompileOptions(subs={…}), kernel)",
        )
    if not isinstance(kernel, WaveKernel):
        raise TilewaveError(f"wave_compile needs a kernel, not {kernel!r}", loc=here(), remedy="decorate it: @wave(…)")


def _open_symbols(given: object) -> tuple[Symbol, ...]:
    """The symbols that stay open, each once."""
    if isinstance(given, (str, Expression)) or not isinstance(given, Iterable):
        raise SymbolError(
            f"dynamic_symbols is a list of symbols, not {given!r}",
            loc=here(),
            remedy=f"write dynamic_symbols=[{given}]",
        )
    symbols = tuple(dict.fromkeys(given))
    for s in symbols:
        if not isinstance(s, Symbol):
            raise SymbolError(f"dynamic_symbols: {s!r} is no symbol", loc=here(), remedy=f"write sym.{s}")
        if not s.name.isascii():
            remedy = "give it a name of ASCII letters: it becomes a parameter of the machine code"
            raise SymbolError(f"dynamic_symbols: {s} cannot stay open", loc=here(), remedy=remedy)
    return symbols


def order_depends_on(kernel: Kernel) -> list[str]:
    """The dynamic symbols that decide who computes which tiles, and when."""
    deciding = needed_values(kernel.body, lambda op: isinstance(op, (Write, Scatter)))
    return [symbol.name for symbol in arguments(kernel)[1] if symbol in deciding]


def grid_of(kernel: Kernel) -> tuple[int, ...]:
    """The tiles along each axis of the first memory that it writes."""
    return next(Cut.by(op).grid for op in walk(kernel.body) if isinstance(op, (Write, Scatter)))


def _tile_level(order: Order) -> tuple[Pass, ...]:
    with IMPORTING:
        from tilewave.pipeline.tile_level import tile_level  # noqa: PLC0415  `import tilewave` does not wait for passes

    return tile_level(order)


def _gpu_build(tiles: Kernel, target: str, places: Places, options: WaveCompileOptions) -> AmdBuild | NvidiaBuild:
    buffers = options.buffers
    prefetched = (buffers or 1) if options.schedule is SchedulingType.PREFETCH else 0
    if target in AMD:
        with IMPORTING:
            from tilewave.backend.amd.build import build_amd  # noqa: PLC0415  as above

        return build_amd(tiles, target, places, prefetched)
    with IMPORTING:
        from tilewave.backend.nvidia.build import build_nvidia  # noqa: PLC0415

    return build_nvidia(tiles, places, prefetched, buffers)


def _cpu_build(tiles: Kernel, options: WaveCompileOptions) -> CpuBuild:
    with IMPORTING:
        from tilewave.backend.cpu.build import build_cpu  # noqa: PLC0415  LLVM is heavy; `import tilewave` does not wait for it

    return build_cpu(tiles, options.instruction_set)


def _known_target(target: str) -> str:
    if target not in TARGETS:
        near = get_close_matches(target, TARGETS, 1, 0.3)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise TargetError(
            f"no target is called {target!r}", loc=here(), remedy=f"{guess}The targets are {', '.join(TARGETS)}."
        )
    return target
