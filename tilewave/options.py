"""The options of a compilation, and what is refused in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from difflib import get_close_matches
from enum import Enum
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from tilewave.backend.protocol import Backend, BuildOptions
from tilewave.backend.targets import TARGETS, quoted, target_here
from tilewave.errors import NOWHERE, SymbolError, TilewaveError, here
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.lang.kernel import WaveKernel, unsaid_sizes
from tilewave.lang.open_tiles import cut_by, said_of, tunable
from tilewave.lang.symbols import Expression, Symbol, want_no_hardware
from tilewave.lang.tuning import Tune
from tilewave.lang.wave_words import HINTS, accepting_hints
from tilewave.records import dataclass
from tilewave.renamed import OPTIONS
from tilewave.tune.space import IN_PLACE, NUM_STAGES

if TYPE_CHECKING:
    from tilewave.tune.choose import TileChoice


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
    schedule: SchedulingType | None = None
    """By default the target's choice: on AMD chips PREFETCH for loops that multiply."""
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


def as_chosen(options: WaveCompileOptions, choice: TileChoice) -> WaveCompileOptions:
    """Return the options with what was chosen, apart from what the kernel sets."""
    subs = {**options.subs, **choice.tiles}
    in_place, stages = bool(choice.knob(IN_PLACE)) or options.in_place, choice.knob(NUM_STAGES) or options.num_stages
    return replace(options, subs=subs, num_stages=stages, in_place=in_place, tune=None)


def checked_options(options: WaveCompileOptions, target: Backend) -> BuildOptions:
    """Return the target's part of the options; one that would have no effect is refused."""
    num_stages: object = options.num_stages
    if num_stages is not None and (isinstance(num_stages, bool) or not isinstance(num_stages, int) or num_stages < 1):
        raise TilewaveError(f"num_stages is {num_stages!r}", loc=here(), remedy="a loop needs one stage at least")
    wanted = BuildOptions(_steps_ahead(options), options.num_stages, options.instruction_set, options.in_place)
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


def _steps_ahead(options: WaveCompileOptions) -> int | None:
    """Return the loop steps by which loads are ahead; None leaves them to the target."""
    if options.schedule is None:
        return None
    _check_schedule(options.schedule)
    return (options.num_stages or 1) if options.schedule.taken is SchedulingType.PREFETCH else 0


def _check_schedule(schedule: object) -> None:
    if isinstance(schedule, SchedulingType):
        return
    named = next((s for s in SchedulingType if str(schedule).lower() in (s.value, f"schedulingtype.{s.value}")), None)
    remedy = f"write schedule=SchedulingType.{(named or SchedulingType.PREFETCH).name}"
    raise TilewaveError(f"schedule is {schedule!r}, no SchedulingType", loc=here(), remedy=remedy)


def check_tune(options: WaveCompileOptions, kernel: WaveKernel) -> None:
    """Refuse what is no `Tune`, and one that names symbols with a value; options may fix what a kernel's own names."""
    for tune, subs in ((options.tune, options.subs), (kernel.tune, {})):
        if tune is not None and not isinstance(tune, Tune):
            raise TilewaveError(f"tune is {tune!r}, no Tune", loc=here(), remedy="write tune=Tune(BLOCK_M=(64, 128))")
        want_free(tune, kernel, subs)


def check_kinds(options: object, kernel: object) -> None:
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


def open_symbols(given: object) -> tuple[Symbol, ...]:
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


# -- tiles that are given, and so cannot be tuned ----------------------------------------------------------------------


def _fixed_tiles(kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
    """Return the values of the symbols of tile sizes, wave parts and splits that `subs` or the kernel give."""
    said, sizes = said_of(kernel, subs, ()), unsaid_sizes(kernel, {})
    return {s: said[s] for s in cut_by(kernel) if s in said and s not in sizes}


def want_tunable(kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> None:
    """Raise an error for a kernel all of whose tiles are given."""
    if tunable(kernel, subs, ()):
        return
    fixed = _fixed_tiles(kernel, subs)
    if not fixed:
        what = f"nothing to tune: {kernel.name} gives all of its tiles"
        raise TilewaveError(what, remedy="use a symbol as a tile size: WorkgroupConstraint(M, BLOCK_M, 0)")
    raise TilewaveError(f"nothing to tune: {kernel.name} fixes {_values_text(fixed)}", remedy=_removing([*fixed]))


def want_free(tune: Tune | None, kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> None:
    """Raise an error for a `Tune` that names symbols with a value in `subs` or the kernel."""
    if tune is None:
        return
    named = {*tune.names}
    fixed = {s: value for s, value in _fixed_tiles(kernel, subs).items() if s.name in named}
    if fixed:
        what = f"Tune: nothing to tune: {kernel.name} fixes {_values_text(fixed)}"
        raise TilewaveError(what, loc=tune.loc, remedy=f"{_removing([*fixed])}, or from Tune")


def _values_text(values: Mapping[Symbol, Any]) -> str:
    return ", ".join(f"{s}={value}" for s, value in values.items())


def _removing(fixed: Sequence[Symbol]) -> str:
    return f"remove {', '.join(map(str, fixed))} from subs"
