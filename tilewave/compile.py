"""From a kernel and options to `Compiled`: the one place that calls trace, tile passes, analyses and the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from html import escape
from inspect import isfunction
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tilewave.analysis.every_size import EverySize, every_size, is_right_unseen
from tilewave.analysis.index_trace import needed_values
from tilewave.analysis.launch_counts import Count, workgroups_of
from tilewave.analysis.reads import reads_depend_on
from tilewave.analysis.schedule import WRITE_SOMETHING, Correction, Cut, Schedule, stores
from tilewave.analysis.size_proofs import Verdicts
from tilewave.backend.protocol import Backend, Build, BuildOptions, CountedLoop, Emulated, ReplayedCall, Resources
from tilewave.backend.targets import TARGETS, quoted, target_here, target_named, target_on, targets_on
from tilewave.errors import (
    NOWHERE,
    CallError,
    CoverageError,
    SavedKernelError,
    SymbolError,
    TargetError,
    TilewaveError,
    WrongDevice,
    here,
)
from tilewave.forks import IMPORTING, cached_property
from tilewave.interp.tiles import interpret, touched
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import BATCH_INVARIANT, Kernel, Value
from tilewave.ir.launch import bind, is_open, open_sizes
from tilewave.ir.remarks import TILES, Remark, RemarkKind
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.lang.assumptions import Assumed
from tilewave.lang.kernel import WaveKernel, arguments, no_grid, trace_kernel
from tilewave.lang.reordering import Reordering
from tilewave.lang.symbols import Expression, Symbol, want_no_hardware
from tilewave.lang.wave_words import HINTS, accepting_hints, remarks
from tilewave.pipeline.batch_invariant import want_batch_invariant
from tilewave.pipeline.runner import Pass, Step, numbered, run
from tilewave.pipeline.why import Why
from tilewave.renamed import OPTIONS, current_name, current_pass
from tilewave.runtime.array_layouts import ArrayPlaces
from tilewave.runtime.arrays import ArrayView, Parameter, check_host_call, place_of
from tilewave.runtime.call_class import CallLook, SeenCall
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.signature import Signature
from tilewave.runtime.sizes import SizedCall, Sizes
from tilewave.trace import TileLimits
from tilewave.tune.fixed import want_free
from tilewave.tune.space import tunable
from tilewave.tune.tune import Tune

if TYPE_CHECKING:
    from tilewave.emulator import EmulationReport
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order as WaveOrder
    from tilewave.interp.exact_check import PassCheck
    from tilewave.passes.grid.map_workgroups import TileOrder
    from tilewave.tune.choose import TileChoice
    from tilewave.tune.default import BySize

T = TypeVar("T")
Builder = Callable[[Kernel, Places], Build]
"""Compiles a kernel on whole tiles for a target."""

ORDERS = {"tile": ("launch", "shuffled"), "lane": ("in turn", "backwards", "random")}
"""The levels at which a kernel can be interpreted, and the orders of each."""


class SchedulingType(Enum):
    """How loads and products of a loop overlap; all but the first two are compiled as one of these."""

    NONE = "none"
    PREFETCH = "prefetch"
    MODULO = "modulo"
    FOUR_STAGE = "four_stage"
    PREFETCH_ATTENTION = "prefetch_attention"
    MANUAL = "manual"

    @property
    def taken(self) -> SchedulingType:
        """The schedule that this one is compiled as."""
        if self in (SchedulingType.NONE, SchedulingType.MANUAL):
            return SchedulingType.NONE
        return SchedulingType.PREFETCH

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The remarks of `why` on the schedule."""
        return () if self is self.taken else (NO_SCHEDULE.at(NOWHERE, asked=self.name, taken=self.taken.name),)


NO_SCHEDULE = RemarkKind(
    "SchedulingType.{asked} is taken as SchedulingType.{taken}: no pass orders a loop in that way",
    "write SchedulingType.{taken}, which is the same here",
)


@accepting_hints
@dataclass(frozen=True)
class WaveCompileOptions:
    """The options of a compilation: sizes, target, and what stays dynamic until the call."""

    subs: Mapping[Symbol, Any] = field(default_factory=dict)
    target: str | None = None
    schedule: SchedulingType = SchedulingType.NONE
    dynamic_symbols: Iterable[Symbol] = ()
    instruction_set: str | None = None
    """For the CPU: avx512, avx2, …; by default the best of this machine."""
    num_stages: int | None = None
    """The stages of a loop's software pipeline in shared memory; by default one for PREFETCH and four with TMA, or as
    many of these as fit."""
    max_sizes: Mapping[Symbol, int] = field(default_factory=dict)
    """The largest values of dynamic sizes that every workgroup takes whole."""
    tune: Tune | None = None
    """The tile sizes and orders to choose among, where none are given; by default the kernel's."""
    in_place: bool = False
    """For the CPU: whether operands of products are read in place, and not packed before each launch."""
    batch_invariant: bool = False
    """Whether the order of every sum depends on its depth, the tile and the dtype alone."""
    without_effect: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The names of Wave's options that were given and have no effect."""

    def __new__(cls, *given: Any, **named: Any) -> WaveCompileOptions:
        """Refuse unknown options with the nearest known one, before the fields are set."""
        known = [f.name for f in fields(cls) if f.repr]
        for name in named:
            if name not in cls.__dataclass_fields__ and name not in HINTS and name not in OPTIONS:
                raise _no_option(name, known)
        return super().__new__(cls)


OPTIONS_OF_OTHERS = {
    "num_warps": "the waves follow from constraints: WaveConstraint(M, BLOCK_M / 2), WaveConstraint(N, BLOCK_N / 4)",
    "num_ctas": "write GridConstraint(n) among the constraints for a persistent kernel of n workgroups",
    **dict.fromkeys(("arch", "device", "backend"), f"write target=…, one of {', '.join(TARGETS)}"),
}


def in_place_of_option(kernel: str, name: str, value: object) -> str:
    """Return what to write for an option of compilation that was given elsewhere; empty for what is none."""
    if name in OPTIONS_OF_OTHERS:
        return OPTIONS_OF_OTHERS[name]
    if name not in (f.name for f in fields(WaveCompileOptions) if f.repr):
        return ""
    shown = repr(value) if isinstance(value, (bool, int, str)) else "…"
    tuned = ", or @wave(constraints, tune=Tune(num_stages=(2, 3)))" if name == "num_stages" else ""
    return f"it is an option of compilation: write {kernel}.compile({name}={shown}){tuned}"


def _no_option(name: str, known: list[str]) -> TilewaveError:
    near = get_close_matches(name, known, 1, 0.6)
    guess = OPTIONS_OF_OTHERS.get(name) or (f"did you mean {near[0]}? " if near else "")
    listed = "" if name in OPTIONS_OF_OTHERS else f"The options are {', '.join(known)}."
    return TilewaveError(f"WaveCompileOptions has no {name}", loc=here(), remedy=f"{guess}{listed}")


def set_default_run_config(options: WaveCompileOptions) -> WaveCompileOptions:
    """Return the options with a default target: this machine's GPU, else the CPU.

    A kernel compiled without a target runs there too, or on the device of its call's arrays.
    """
    return replace(options, target=target_here()) if options.target is None else options


@dataclass(frozen=True, eq=False)
class Compiled:
    """A kernel with fixed tile sizes; its array sizes are static, or given by each call. Every step can be printed."""

    kernel: Kernel
    """The kernel on whole tiles, which the schedule and the interpreter read."""
    traced: Kernel
    tile_steps: tuple[Step, ...]
    target: str
    dynamic_symbols: tuple[str, ...]
    build: Build
    verdicts: Verdicts = field(repr=False)
    """What was proved or checked of the sizes that it was called with."""
    file: str = ""
    """The file that it was loaded from, without its steps; empty where it was compiled."""
    assumed: tuple[Assumed, ...] = ()
    """The author's assumptions on the scalar arguments and sizes of a call."""
    not_taken: tuple[Remark, ...] = ()
    """Remarks on options that were replaced or have no effect."""
    proved: tuple[Remark, ...] = ()
    """For a batch-invariant kernel, the order of each of its sums."""
    elsewhere: Callable[[str], Compiled] | None = field(default=None, repr=False)
    """Compiles the kernel for another device, that of a call's arrays, if its author named no target."""
    choice: TileChoice | None = None
    """The tile sizes that were chosen, where the author gave none, and why."""
    by_size: BySize[Compiled] | None = field(default=None, repr=False)
    """Where tile sizes are chosen by the sizes of each call: the kernel of each size bucket."""

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def chosen_for(self) -> str:
        """The target that the tile sizes were chosen for; empty where the author gave them."""
        return self.target if self.choice else ""

    @property
    def config(self) -> str:
        """The chosen tile sizes and order, and their target: `BLOCK_M=128, chosen for cpu`."""
        return f"{self.choice.text}, chosen for {self.target}" if self.choice else ""

    def __repr__(self) -> str:
        if self.open_sizes:
            most = {name: f" up to {most:,}" for name, _, most in self.kernel.limits}
            sizes = ", ".join(f"{name}{most.get(name, '')}" for name in self.open_sizes)
            return f"<compiled {self.name} for {self.target}: any {sizes}, {self.proof.verdict}>"
        tiles = "x".join(map(str, grid_of(self.kernel)))
        return f"<compiled {self.name} for {self.target}: {self.workgroups} workgroups, {tiles} tiles>"

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        """Yield what rich prints, and a notebook shows as a table."""
        yield "name", self.name
        yield "target", self.target
        if self.open_sizes:
            most = {name: f"up to {most:,}" for name, _, most in self.kernel.limits}
            yield "sizes", {name: most.get(name, "any") for name in self.open_sizes}
        else:
            yield "workgroups", self.workgroups
            yield "tiles", grid_of(self.kernel)
        yield "proof", self.proof.verdict
        for name, figure in ({} if self.file else self.build.metrics).items():
            if figure not in ((), []):
                yield name, figure

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_in_words(value))}</td></tr>"
            for name, value in self.__rich_repr__()
        )
        return f"<table>{cells}</table>"

    @cached_property
    def workgroups(self) -> Count:
        """The number of workgroups (CTAs) that one launch starts; for dynamic sizes a formula, or the most, as text.

        A persistent kernel starts fewer than it has tiles: on an H200 `132`.
        """
        found = self.build.workgroups
        return workgroups_of(self.kernel) if found is None else found

    # -- running it

    def __getitem__(self, grid: object) -> NoReturn:
        """Refuse `compiled[grid](…)`, as the kernel does."""
        raise no_grid(self.name, self.signature.names)

    def __call__(self, /, *arrays: Any, **named: Any) -> None:
        """Run the kernel on the device it was compiled for; arrays and scalars in the author's order, or by name."""
        values: Mapping[str, Any] = {}
        if named or self._takes_numbers:
            arrays, values = self._bound(arrays, named)
        self.launch(arrays, values)

    def launch(self, arrays: Sequence[Any], values: Mapping[str, Any]) -> None:
        """Run the kernel with arrays in its order, and scalar arguments by name, converted as `Signature` does."""
        try:
            if self.by_size is not None:
                self.by_size.of(_shapes(arrays)).launch(arrays, values)
                return
            self.build.call(arrays, values, self._sized)
        except WrongDevice as error:
            if self.elsewhere is None:
                raise _with_targets(error) from None
            self.elsewhere(place_of(arrays[0])[0]).launch(arrays, values)

    def replay(self, arrays: Sequence[Any], values: Mapping[str, Any], fresh: Collection[int]) -> ReplayedCall | None:
        """Return a replayed call for arrays with the same layout as these; `fresh` are those that no one else holds.

        It takes arrays of the same library with the same layout at any addresses. None where calls need the full check.
        """
        if self.by_size is not None:
            return self.by_size.of(_shapes(arrays)).replay(arrays, values, fresh)
        return self.build.replay(arrays, values, self._sized, fresh)

    @cached_property
    def _sized(self) -> _JudgedSizes:
        return _JudgedSizes(self)

    def interpret(self, /, *arrays: Any, level: str = "tile", order: str = "", seed: int = 0, **named: Any) -> None:
        """Run the kernel's IR in numpy, on whole tiles or lane by lane, and report races and uninitialized reads.

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
            self._interpret_lanes(*self._bound(arrays, named), order, seed)
            return
        self._interpret(*self._bound(arrays, named), seed if order == "shuffled" else None)

    def _interpret_lanes(self, arrays: Sequence[Any], values: Mapping[str, Any], order: str, seed: int) -> None:
        with IMPORTING:
            from tilewave.interp.lanes import interpret_lanes  # noqa: PLC0415  few ask for it, and it is large

        if self.build.lanes is None:
            first = next(target for target in TARGETS.values() if target.has_lanes)
            raise TargetError(
                f"{self.name}: lanes exist on GPUs, and it was compiled for {self.target}",
                loc=here(),
                remedy=f'compile it with target="{first.name}"; no GPU is needed',
            )
        sized = self.sizes.of_call(arrays, values)
        views = self._checked(arrays, sized)
        self._judged(sized)
        for launch in self.build.lane_launches(views, sized.values):
            kernel = bind(launch.kernel, launch.values)
            interpret_lanes(kernel, [v.numpy() for v in launch.views], launch.values, order, seed)

    def check_passes(self, /, *arrays: Any, **named: Any) -> PassCheck:
        """Check that every pass preserves what the kernel computes from these arrays, which are not changed.

        The kernel is interpreted after each pass, with floats as elements of a finite ring: orders of sums compare
        equal, and everything else is compared bit for bit. The result is false where a pass is wrong, and prints as a
        table.
        """
        with IMPORTING:
            from tilewave.interp.exact_check import check_passes  # noqa: PLC0415  few ask for it, and it is large

        if self.by_size is not None:
            return self.by_size.of(_shapes(arrays)).check_passes(*arrays, **named)
        given, values = self._bound(arrays, named)
        sized = self.sizes.of_call(given, values)
        views = self._checked(given, sized)
        self._judged(sized)
        held = {v.name: view.numpy() for v, view in zip(arguments(self.kernel)[0], views, strict=True)}
        return check_passes(self.traced, [(step.name, step.after) for step in self.steps], held, sized.values)

    def prepack(self, array: Any, name: str = "") -> Any:
        """Return an operand in the layout that launches read fastest, for weights that many calls use.

        `name` says which operand, where they need different layouts.
        Where each launch would copy the operand first, or lanes would load it, it is copied here once, and calls take
        the copy instead; later writes to the array do not reach it. An array with a good layout is returned unchanged.
        """
        try:
            return self.build.prepacked(array, name)
        except Refused as refused:
            remedy = refused.remedy.replace("{name}", "it")
            raise CallError(f"{self.name}: prepack: the array {refused.what}", loc=here(), remedy=remedy) from None

    def emulate(
        self,
        /,
        *arrays: Any,
        order: WaveOrder = "barrier",
        seed: int = 0,
        check: Check = "strict",
        limit: int | None = None,
        **named: Any,
    ) -> EmulationReport:
        """Run the emitted machine code on this CPU, and check its waits, barriers, races and bounds.

        order="barrier": each wave runs to its next barrier; "random": waves take turns at random. check="warn"
        reports problems instead of raising at the first. A wave that takes more than `limit` instructions counts as
        endless; by default the limit follows from the arrays' sizes.
        """
        emulated = self._emulated()
        arrays, values = self._bound(arrays, named)
        sized = self.sizes.of_call(arrays, values)
        views = self._checked(arrays, sized)
        self._judged(sized)
        return emulated.emulate(views, sized.numbers, order, seed, check, limit)

    def _emulated(self) -> Emulated:
        found = self.build.emulated
        if found is None:
            able = quoted(target for target in TARGETS.values() if target.is_emulated)
            what = f"{self.name}: there is no machine code to emulate for {self.target}"
            raise TargetError(what, loc=here(), remedy=f"compile it with target={able}")
        return found

    def _interpret(self, arrays: Sequence[Any], values: Mapping[str, Any], shuffled_by: int | None) -> None:
        sized = self.sizes.of_call(arrays, values)
        views = self._checked(arrays, sized)
        self._judged(sized)
        kernel = bind(self.kernel, sized.values)
        workgroups = list(range(kernel.workgroup_count))
        if shuffled_by is not None:
            random.Random(shuffled_by).shuffle(workgroups)
        interpret(kernel, [v.numpy() for v in views], sized.values, workgroups)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the kernel to a file that `tilewave.load` runs on machines where nothing is compiled."""
        with IMPORTING:
            from tilewave.saved.kernel import SavedKernel, write_kernel  # noqa: PLC0415  zipfile is heavy; few save

        facts = self.kernel, self.target, self.dynamic_symbols, self.verdicts
        write_kernel(path, SavedKernel(*facts, self.build, self.assumed))

    def _checked(self, arrays: Sequence[Any], sized: SizedCall) -> tuple[ArrayView, ...]:
        try:
            return check_host_call(self.name, sized.parameters, arrays)
        except WrongDevice as error:
            raise _with_targets(error) from None

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(self.kernel, touched(self.kernel)[0])

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that the arrays of each call give."""
        return self.sizes.passed

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arrays that the kernel was compiled for; an error where sizes are dynamic."""
        if self.open_sizes:
            raise CallError(
                f"{self.name}: the sizes of its arrays depend on {', '.join(self.open_sizes)}",
                loc=here(),
                remedy=f"any that agree will do; compile it with subs={{{self.open_sizes[0]}: …, …}} to fix them",
            )
        return self.sizes.of_values({v.name: 1 for v in self.numbers}).parameters

    @cached_property
    def numbers(self) -> tuple[Value, ...]:
        """The scalar arguments in the kernel's order: parameters such as `alpha: f32`, sizes and dynamic symbols."""
        return arguments(self.kernel)[1]

    @cached_property
    def _takes_numbers(self) -> bool:
        """Whether a call must pass a scalar argument; sizes come with its arrays."""
        return len(self.numbers) > len(self.open_sizes)

    @cached_property
    def signature(self) -> Signature:
        """The author's parameters: arrays and scalars, in order."""
        own = [v for v in self.kernel.body.args if v.name not in (*self.dynamic_symbols, *self.open_sizes)]
        dtypes = {v.name: v.type.dtype for v in own if v in self.numbers}
        return Signature(self.name, tuple(v.name for v in own), dtypes)

    def _bound(self, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arrays of a call, and its scalar arguments by name."""
        names = self.signature.names
        if named.keys() == self._symbol_names and len(given) == len(names) and not self.signature.dtypes:
            for value in named.values():
                if type(value) is not int or value < 1:
                    break
            else:  # the fast path: symbols are positive ints, and there are no scalar parameters
                return tuple(given), dict(named)
        call = self.signature.bind(given, named)
        if call.symbols or self.dynamic_symbols:
            return tuple(call.arrays), {**call.scalars, **self._symbols(call.symbols)}
        return tuple(call.arrays), dict(call.scalars)

    @cached_property
    def _symbol_names(self) -> frozenset[str]:
        return frozenset(self.dynamic_symbols)

    def _symbols(self, given: Mapping[str, Any], wanted: Sequence[str] | None = None) -> dict[str, int]:
        """Return the symbols of a call as ints; an error for a missing or unknown one. Array sizes may be missing."""
        unknown = [name for name in given if name not in (*self.dynamic_symbols, *self.open_sizes)]
        missing = [name for name in (self.dynamic_symbols if wanted is None else wanted) if name not in given]
        if unknown:
            known = f"it takes {', '.join(self.dynamic_symbols)}" if self.dynamic_symbols else "it takes none"
            otherwise = f"{known}; name it in WaveCompileOptions(dynamic_symbols=[{unknown[0]}])"
            remedy = in_place_of_option("kernel", unknown[0], given[unknown[0]]) or otherwise
            raise CallError(f"{self.name} takes no symbol {unknown[0]}", loc=here(), remedy=remedy)
        if missing:
            passed = ", ".join(f"{name}=…" for name in wanted or ())
            remedy = f"give all of them by name: {passed}" if passed else f"write {self.name}(…, {missing[0]}=4)"
            raise CallError(f"{self.name} needs a value for {missing[0]}", loc=here(), remedy=remedy)
        for name, value in given.items():
            least = 1 if name in self.proof.positive else 0
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise CallError(f"{self.name}: {name} is {value!r}, no whole number of at least {least}", loc=here())
        return {name: int(value) for name, value in given.items()}

    # -- inspection

    @property
    def schedule(self) -> Schedule:
        """The tiles of each workgroup, in order."""
        if deciding := list(self.open_sizes) or order_depends_on(self.kernel):
            given = ", ".join(f"{name}=…" for name in dict.fromkeys((*self.dynamic_symbols, *deciding)))
            raise CallError(
                f"{self.name}: the order depends on {', '.join(deciding)}",
                loc=here(),
                remedy=f"write schedule_for({given})",
            )
        return self.verdicts.first(dict.fromkeys(self.dynamic_symbols, 1))

    @property
    def proof(self) -> EverySize:
        """The proof that the kernel is correct for every size, or why new sizes are checked; prints as a sentence."""
        return self.verdicts.proof

    def schedule_for(self, /, **symbols: Any) -> Schedule:
        """Return the schedule for given dynamic symbols, and for parameters that decide it.

        Raises if a tile is lost or computed twice, if a workgroup reads what another writes, or a tile out of bounds.
        """
        own = self.signature.dtypes
        wanted = {v.name for v in self._deciding} & own.keys()
        scalars = self.signature.of_numbers(wanted | (own.keys() & symbols)).bind((), symbols)
        passed = self._symbols(scalars.symbols, (*self.dynamic_symbols, *self.open_sizes))
        return self._judged(self._of_names({**scalars.scalars, **passed}))

    @cached_property
    def _deciding(self) -> tuple[Value, ...]:
        """The scalar arguments that decide which workgroup computes which tiles, and what is read."""
        return deciding(self.kernel) if self.numbers else ()

    @cached_property
    def sizes_decide(self) -> bool:
        """Whether only sizes and symbols decide the schedule, and no parameter such as `n: i32`."""
        return all(v.type == INDEX_SCALAR for v in self._deciding)

    def want_assumed(self, values: Mapping[str, Any]) -> None:
        for condition in self.assumed:
            condition.want(self.name, values)

    def _judged(self, sized: SizedCall) -> Schedule:
        """Return the schedule for these numbers; it is checked once for each class of sizes."""
        self.want_assumed(sized.values)
        return self.verdicts.schedule(sized.numbers, sized.values)

    def bound(self, /, **symbols: int) -> Kernel:
        """Return the kernel on whole tiles with these values of sizes and symbols."""
        passed = self._symbols(symbols, (*self.dynamic_symbols, *self.open_sizes))
        return bind(self.kernel, self._of_names(passed).values)

    def _of_names(self, known: Mapping[str, Any]) -> SizedCall:
        """Return the call with these numbers, without its arrays; missing scalars decide nothing, and are 0."""
        return self.sizes.of_values({**dict.fromkeys(self.signature.dtypes, 0), **known})

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kernel before and after every pass, those of the target included.

        Where tiles were chosen, remarks that advise other tiles are left out: the search compared those.
        """
        if self.file:
            self._has_no("steps")
        steps = numbered(self.tile_steps + self.build.steps)
        return steps if self.choice is None else tuple(step.without_remarks(TILES) for step in steps)

    def why(self, *arrays: Any) -> Why:
        """Return the remarks of passes that did nothing, with their reasons; prints as a table.

        With arrays, it includes what their layouts keep a GPU's machine code from.
        """
        found = Why.of(self.steps).of_options(self.not_taken)
        found = found.of_sums(self.proved)
        if self.choice is not None:
            found = found.of_choice(self.choice.remarks())
        if not arrays:
            return found
        return found.of_a_call(self.build.remarks_for(arrays, self.sizes.of_call(arrays, {}).parameters))

    @property
    def binaries(self) -> tuple[str, ...]:
        """The array layouts that machine code was compiled for so far: each class is compiled at its first call."""
        return self.build.binaries

    def ir(self, pass_name: str = "") -> Kernel:
        """Return the kernel after a pass: "trace" for the traced function, by default the last pass, or a file's IR."""
        if self.file:
            if pass_name:
                self._has_no(f"kernel after {pass_name!r}", "ir() is the kernel that it has; ")
            return self.build.lanes or self.kernel
        pass_name = current_name(f"{self.name}.ir", pass_name, current_pass(pass_name))
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
        """The LLVM IR of the kernel."""
        return self._found(self.build.llvm_ir, "LLVM IR")

    @property
    def asm(self) -> str:
        """The kernel's assembly."""
        has_code = self.file and self.build.code is not None
        return self._found(self.build.asm, "assembly", "code_object is the machine code; " if has_code else "")

    @property
    def code_object(self) -> bytes:
        return self._found(self.build.code, "object code")

    @property
    def resources(self) -> Resources:
        """Waves, matrix instructions, shared bytes, loads of each lane, registers, spilled bytes and occupancy.

        On NVIDIA what ptxas counts is None where this machine has no CUDA toolkit.
        """
        found = self.build.resources
        if found is None:
            raise TargetError(f"{self.name}: nothing is counted for {self.target}", loc=here())
        return found

    @property
    def loop_statistics(self) -> CountedLoop:
        """The counts of instructions in the K loop of the target's code."""
        found = self.build.loop
        if found is None:
            able = quoted(target for target in TARGETS.values() if target.counts_loops)
            what = f"{self.name}: there is no machine code to count for {self.target}"
            raise TargetError(what, loc=here(), remedy=f"compile it with target={able}")
        return found

    def _found(self, found: T | None, what: str, instead: str = "") -> T:
        if found is None:
            self._has_no(what, instead)
        return found

    def _has_no(self, what: str, instead: str = "") -> NoReturn:
        if not self.file:
            raise TargetError(f"{self.name}: there is no {what} for {self.target}", loc=here())
        remedy = f"{instead}what wave_compile(…) returns has every step"
        raise SavedKernelError(
            f"{self.name} was loaded from {self.file}, which has no {what}", loc=here(), remedy=remedy
        )


def _in_words(value: object) -> str:
    """Return a value as text for a cell of a table."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {size}" for name, size in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


class _JudgedSizes:
    """The sizes of a kernel's calls; the kernel is checked for them before anything runs."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.sizes, self.verdicts = compiled, compiled.sizes, compiled.verdicts
        self._is_proved = self.verdicts.proof.holds

    def __call__(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        compiled = self.compiled
        sized = self.sizes.of_call(arrays, given)
        if not sized.is_right and compiled.numbers:
            compiled.want_assumed(sized.values)
            self.verdicts.want(sized.numbers, sized.values, [p.shape for p in sized.parameters])
            if compiled.sizes_decide:
                sized.note_right()
        return sized

    @cached_property
    def look(self) -> CallLook:
        compiled = self.compiled
        named = {v.name for v in compiled.numbers}
        deciding = {v.name for v in compiled.numbers if v.type == INDEX_SCALAR or v in compiled._deciding}
        telling = named if compiled.assumed else set() if self._is_proved else deciding
        return self.sizes.look(self.verdicts.surely if self._is_proved else None, telling)

    def knows(self, seen: SeenCall, places: ArrayPlaces) -> bool:
        if self.compiled.assumed and not self._is_assumed(seen.numbers):
            return False
        is_right = self._is_proved or not seen.numbers
        return is_right or self.verdicts.knows(seen.workgroups, seen.passed, places[1])

    def with_others(self, numbers: Sequence[int], given: Sequence[int]) -> tuple[int, ...] | None:
        found = list(numbers)
        for (at, decides), number in zip(self._given, given, strict=True):
            if decides and found[at] != number:
                return None
            found[at] = number
        return tuple(found)

    @cached_property
    def _given(self) -> list[tuple[int, bool]]:
        """The position of each scalar argument of a call, and whether it decides more than the values computed."""
        compiled, limits = self.compiled, self.sizes.limits
        numbers = [(i, v) for i, v in enumerate(compiled.numbers) if v.name not in limits]
        free = () if compiled.assumed else [v for _, v in numbers if v.type != INDEX_SCALAR]
        return [(i, v not in free or v in compiled._deciding) for i, v in numbers]

    def _is_assumed(self, numbers: Sequence[int]) -> bool:
        values = {v.name: n for v, n in zip(self.compiled.numbers, numbers, strict=True)}
        return all(condition.holds(values) for condition in self.compiled.assumed)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a call's arrays; by DLPack for arrays without a `shape`."""
    try:
        return [array.shape for array in arrays]
    except AttributeError:
        return [place_of(array)[1] for array in arrays]


def _with_targets(error: WrongDevice) -> WrongDevice:
    """Return the error with the targets that run on the array's device."""
    fitting = targets_on(error.device)
    return error.but(f"compile with target={quoted(fitting)}") if fitting else error


REMEDY = "Correct the formula, or name a mapping that is right on every grid, for example\n{example}"
MISPLACED = (
    "The order of tiles is right, and what is wrong is where this write puts them: correct its IndexMapping,\n"
    "or give the memory every dim that is cut over the grid"
)
EXAMPLES = {
    "plain": "    WorkgroupMapping(xcd_contiguous(8) >> grouped(4))",
    "persistent": "    GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop",
}


def wave_compile(options: WaveCompileOptions, kernel: WaveKernel) -> Compiled:
    """Compile a kernel; it is not changed, and may be compiled again with other options.

    Tile sizes without a value are chosen: for the sizes in `subs`, or for those of each call.
    """
    return compile_near(options, kernel, {})


def compile_near(options: WaveCompileOptions, kernel: WaveKernel, sizes: Mapping[Symbol, int]) -> Compiled:
    """Compile a kernel, first for a call with these sizes; it serves all sizes that the options leave dynamic."""
    _check_kinds(options, kernel)
    target = target_named(set_default_run_config(options).target or "")
    _check_tune(options, kernel)
    if tunable(kernel, options.subs, _open_symbols(options.dynamic_symbols)):
        compiled = _choosing(options, kernel, target, sizes)
    else:
        compiled = _compiled(options, kernel, target)

    @cache
    def there(device: str) -> Compiled:
        return wave_compile(replace(options, target=target_on(kernel.name, device).name), kernel)

    return replace(compiled, elsewhere=there) if options.target is None else compiled


def _compiled(
    options: WaveCompileOptions, kernel: WaveKernel, target: Backend, sizes: tuple[tuple[str, int], ...] = ()
) -> Compiled:
    """Compile a kernel with given tile sizes; `sizes` are the largest values of dynamic ones."""
    wanted = replace(_checked_options(options, target), sizes=sizes)
    return compile_with(options, kernel, lambda tiles, places: target.build(tiles, places, wanted))


def _choosing(
    options: WaveCompileOptions, kernel: WaveKernel, target: Backend, sizes: Mapping[Symbol, int]
) -> Compiled:
    """Compile with tile sizes of the cost model; where sizes are dynamic, for each size bucket at its first call."""
    with IMPORTING:
        from tilewave.tune.default import BySize, TunableKernel, largest_sizes  # noqa: PLC0415  most give their tiles
    with IMPORTING:
        from tilewave.tune.chosen import take  # noqa: PLC0415  as above

    tune: Tune | None = options.tune or kernel.tune
    facts = options.subs, tuple(options.dynamic_symbols), options.max_sizes, target.name, tune, options.num_stages
    tiles = TunableKernel.of(kernel, *facts)
    tiles = tiles.for_all_batches() if options.batch_invariant else tiles
    known: dict[tuple[Any, ...], Compiled] = {}

    def for_buckets(buckets: Mapping[Symbol, int] | None) -> Compiled:
        known_sizes = largest_sizes(buckets or {}) if target.judges_by_sizes else {}
        sizes = tuple((dim.name, n) for dim, n in known_sizes.items())

        def made(choice: TileChoice) -> Compiled:
            key = choice.text, sizes
            if key not in known:
                known[key] = _compiled(as_chosen(options, choice), tiles.decided(choice), target, sizes)
            return replace(known[key], choice=choice)

        return take(tiles.choices(buckets), made, tiles.nothing_fits)

    if not tiles.left_open:
        return for_buckets(None)
    serving = BySize(tiles.passed, for_buckets)
    return replace(serving.near({**tiles.typical, **sizes}), by_size=serving)


def as_chosen(options: WaveCompileOptions, choice: TileChoice) -> WaveCompileOptions:
    """Return the options with what was chosen, apart from what the kernel sets."""
    subs = {**options.subs, **choice.tiles}
    in_place = choice.is_in_place or options.in_place
    return replace(options, subs=subs, num_stages=choice.num_stages or options.num_stages, in_place=in_place, tune=None)


def compile_with(options: WaveCompileOptions, kernel: WaveKernel, build: Builder) -> Compiled:
    """Compile a kernel with a build function of the caller's, for the options' target."""
    target = target_named(set_default_run_config(options).target or "")
    dynamic = _open_symbols(options.dynamic_symbols)
    room = TileLimits(target.name, target.most_bytes)
    traced = trace_kernel(kernel, options.subs, dynamic, options.max_sizes, room)
    if not any(map(stores, walk(traced.ir.body))):
        raise CoverageError(f"{kernel.name} writes nothing", loc=kernel.loc, remedy=WRITE_SOMETHING)
    final, steps = run(traced.ir, _tile_level(traced.order))
    kind = "plain" if "tile_of" in str(traced.ir) else "persistent"
    rightly_ordered = kind == "plain" and not traced.order.doubt
    passed = MISPLACED if rightly_ordered else REMEDY.format(example=EXAMPLES[kind])
    remedy = Correction(passed, NOWHERE if rightly_ordered else traced.order.loc)
    if isinstance(traced.order, Reordering):
        passed = f"{traced.order.left_alone}\n{passed}".lstrip()
        remedy = replace(remedy, text=passed, coordinates=traced.order.coordinates)
    given = tuple(s for s in dynamic if s.name not in open_sizes(final))
    proof = every_size(traced.ir, str(traced.order), traced.order.doubt, traced.order.positive)
    verdicts = Verdicts(final, proof, remedy)
    if not is_open(final) and not order_depends_on(final) and not is_right_unseen(traced.ir, traced.order.doubt):
        verdicts.first({s.name: 1 for s in given})
    if options.batch_invariant:
        final = replace(final, sums=BATCH_INVARIANT)
    built = build(final, traced.places)
    proved = want_batch_invariant(kernel.name, final, built.steps) if options.batch_invariant else ()
    names = tuple(s.name for s in given)
    made = Compiled(final, traced.ir, steps, target.name, names, built, verdicts)
    return replace(
        made,
        assumed=traced.assumed,
        not_taken=(*options.schedule.remarks, *remarks(options.without_effect)),
        proved=proved,
    )


def _checked_options(options: WaveCompileOptions, target: Backend) -> BuildOptions:
    """Return the target's part of the options; one that would have no effect is refused."""
    _check_schedule(options.schedule)
    num_stages: object = options.num_stages
    if num_stages is not None and (isinstance(num_stages, bool) or not isinstance(num_stages, int) or num_stages < 1):
        raise TilewaveError(f"num_stages is {num_stages!r}", loc=here(), remedy="a loop needs one stage at least")
    prefetched = (options.num_stages or 1) if options.schedule.taken is SchedulingType.PREFETCH else 0
    wanted = BuildOptions(prefetched, options.num_stages, options.instruction_set, options.in_place)
    target.check(wanted)
    if wanted.in_place:
        _check_in_place(target)
    if wanted.instruction_set is not None and not target.takes_instruction_sets:
        able = [one for one in TARGETS.values() if one.takes_instruction_sets]
        kinds = " and ".join(dict.fromkeys(one.kind for one in able))
        raise TilewaveError(
            f"instruction_set is {wanted.instruction_set!r}, but the target is {target.name}",
            loc=here(),
            remedy=f"instruction sets are those of {kinds}: write target={quoted(able)}, or leave instruction_set out",
        )
    return wanted


def _check_in_place(target: Backend) -> None:
    """Refuse `in_place` on targets that pack no operands: those without instruction sets to choose from."""
    if not target.takes_instruction_sets:
        able = [one for one in TARGETS.values() if one.takes_instruction_sets]
        what = f"in_place is given, but on {target.name} nothing is packed before a launch"
        raise TilewaveError(what, loc=here(), remedy=f"leave it out, or write target={quoted(able)}")


def _check_schedule(schedule: object) -> None:
    if isinstance(schedule, SchedulingType):
        return
    named = next((s for s in SchedulingType if str(schedule).lower() in (s.value, f"schedulingtype.{s.value}")), None)
    remedy = f"write schedule=SchedulingType.{(named or SchedulingType.PREFETCH).name}"
    raise TilewaveError(f"schedule is {schedule!r}, no SchedulingType", loc=here(), remedy=remedy)


def _check_tune(options: WaveCompileOptions, kernel: WaveKernel) -> None:
    """Refuse what is no `Tune`, and one that names symbols with a value; options may fix what a kernel's own names."""
    for tune, subs in ((options.tune, options.subs), (kernel.tune, {})):
        if tune is not None and not isinstance(tune, Tune):
            raise TilewaveError(f"tune is {tune!r}, no Tune", loc=here(), remedy="write tune=Tune(BLOCK_M=(64, 128))")
        want_free(tune, kernel, subs)


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
        plain = f"the function {kernel.__name__}" if isfunction(kernel) else repr(kernel)
        raise TilewaveError(f"wave_compile needs a kernel, not {plain}", loc=here(), remedy="decorate it: @wave(…)")


def _open_symbols(given: object) -> tuple[Symbol, ...]:
    """Return the dynamic symbols, each once."""
    if isinstance(given, (str, Expression)) or not isinstance(given, Iterable):
        raise SymbolError(
            f"dynamic_symbols is a list of symbols, not {given!r}",
            loc=here(),
            remedy=f"write dynamic_symbols=[{given}]",
        )
    symbols = tuple(dict.fromkeys(given))
    want_no_hardware("dynamic_symbols", *symbols)
    for s in symbols:
        if not isinstance(s, Symbol):
            raise SymbolError(f"dynamic_symbols: {s!r} is no symbol", loc=here(), remedy=f"write sym.{s}")
        if not s.name.isascii():
            remedy = "give it a name of ASCII letters: it becomes a parameter of the machine code"
            raise SymbolError(f"dynamic_symbols: {s} cannot stay dynamic", loc=here(), remedy=remedy)
    return symbols


def deciding(kernel: Kernel) -> tuple[Value, ...]:
    """Return the scalar arguments that decide which workgroup computes which tiles, and what is read."""
    names = {*open_sizes(kernel), *order_depends_on(kernel), *reads_depend_on(kernel)}
    return tuple(v for v in arguments(kernel)[1] if v.name in names)


def order_depends_on(kernel: Kernel) -> list[str]:
    """Return the scalar arguments that decide which workgroup computes which tiles, and when."""
    deciding = needed_values(kernel.body, stores)
    return [symbol.name for symbol in arguments(kernel)[1] if symbol in deciding]


def grid_of(kernel: Kernel) -> tuple[int, ...]:
    """Return the tiles along each axis of the first memory that the kernel writes."""
    return next(Cut.by(op).grid for op in walk(kernel.body) if stores(op))


def _tile_level(order: TileOrder) -> tuple[Pass, ...]:
    with IMPORTING:
        from tilewave.pipeline.tile_level import tile_level  # noqa: PLC0415  `import tilewave` does not wait for passes

    return tile_level(order)
