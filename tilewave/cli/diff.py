"""`tilewave diff`: what every pass did to a kernel."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from tilewave.backend.names import DEFAULT_TARGET, INTERPRETER
from tilewave.backend.targets import TARGETS, target_of
from tilewave.compile import wave_compile
from tilewave.compiled import Compiled
from tilewave.errors import SymbolError, TilewaveError, authors_traceback
from tilewave.explore.code import step_json
from tilewave.lang.kernel import WaveKernel, missing_sizes, missing_text
from tilewave.lang.symbols import HARDWARE, Symbol, sym
from tilewave.lang.tuning import Tune
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
from tilewave.machine import Machine
from tilewave.options import SchedulingType, WaveCompileOptions
from tilewave.pipeline.runner import Step, numbered_apart, pass_name
from tilewave.pipeline.tile_level import tile_level
from tilewave.records import dataclass
from tilewave.renamed import current_pass
from tilewave.tune.choose import TileChoice

T = TypeVar("T")
SPACES = {"shared": SHARED_ADDRESS_SPACE, "global": GLOBAL_ADDRESS_SPACE}


def diff_command(
    *,
    file: Path,
    set_: list[str],
    only: str,
    kernel: str,
    target: str | None,
    left_open: str,
    context: int,
    as_json: bool,
) -> None:
    only = current_pass(only)
    asked = [option for option, is_said in (("--target", target is not None), ("--open", left_open)) if is_said]
    names, wanted = parse_names(left_open), _target_with(only) if target is None else target
    compiled = compiled_in(file, parse_sizes(set_), wanted, asked=asked, left_open=names)
    found = named_kernels(compiled, kernel)
    if not found:
        raise TilewaveError(f"{file} defines no kernel" + (f" {kernel!r}" if kernel else ""))
    steps = {name: [s for s in c.steps if not only or s.name == only] for name, c in found.items()}
    for name, chosen in steps.items():
        if not chosen:
            known = ", ".join(s.name for s in found[name].steps)
            raise TilewaveError(f"unknown pass {only!r}", remedy=f"the passes of {name} are {known}")
    if as_json:
        print(json.dumps({name: [step_json(s, context) for s in chosen] for name, chosen in steps.items()}, indent=2))
    else:
        _print({name: found[name].config for name in found}, steps, context)


def _target_with(only: str) -> str:
    """The first target whose list has this pass, counted as its steps are: simplify, simplify_2."""
    common = [pass_name(p) for p in tile_level(None)]  # type: ignore[arg-type]
    for target in TARGETS.values():
        if only in numbered_apart([*common, *map(pass_name, target.passes())]):
            return target.name
    return DEFAULT_TARGET


def named_kernels(kernels: list[Compiled], wanted: str) -> dict[str, Compiled]:
    """Kernels by name; of one name, the second is name_2."""
    named = zip(numbered_apart(c.name for c in kernels), kernels, strict=True)
    return {name: c for name, c in named if not wanted or wanted in (name, c.name)}


def _print(configs: dict[str, str], steps: dict[str, list[Step]], context: int) -> None:
    console = Console()
    for name, chosen in steps.items():
        console.rule(f"[bold]{name}[/bold]")
        if configs[name]:
            console.print(f"tiles: {configs[name]}\n", highlight=False, markup=False)
        for step in chosen:
            console.print(f"[bold]{step.name}[/bold]  {escape(step.decision)}  [dim]{step.seconds * 1e3:.1f} ms[/dim]")
            console.print(Syntax(step.diff(context), "diff", background_color="default", word_wrap=True))
            for remarks in step.remarks:
                console.print(f"[yellow]remark[/yellow]  {escape(str(remarks))}", highlight=False)
            console.print()


def compiled_in(
    file: Path,
    sizes: dict[Symbol, Any],
    target: str = DEFAULT_TARGET,
    schedule: SchedulingType | None = None,
    asked: Sequence[str] = (),
    left_open: Sequence[Symbol] = (),
) -> list[Compiled]:
    """The compiled kernels of a file, or else its kernels compiled with `sizes` or with the file's own `subs`.

    `asked` are the options on the command line that say how kernels are compiled; `left_open` are the sizes that the
    file's `subs` are not to fix.
    """
    with _as_a_program(file):
        found = _found_in(file, sizes, asked)
        options = WaveCompileOptions(target=target, schedule=schedule)
        return found.compiled or _compile(found, sizes, options, left_open)


def fixed_in(
    file: Path,
    sizes: dict[Symbol, Any],
    option: str,
    target: str = DEFAULT_TARGET,
    asked: Sequence[str] = (),
    order: str = "",
    tune: Tune | None = None,
) -> list[Compiled]:
    """Compile the kernels of a file with all sizes fixed; `option` is the option that sets sizes.

    `order` is a mapping that replaces the kernels' own, `tune` what may be chosen where they leave tiles open.
    """
    with _as_a_program(file):
        found = _found_in(file, sizes, [*asked, *(["--map"] if order else [])])
        if order:
            found = replace(found, kernels=[kernel.ordered(order) for kernel in found.kernels])
        for c in found.compiled:
            if c.open_sizes:
                remedy = f"{file} compiles it itself: fix them there, in subs"
                raise TilewaveError(f"{c.name}: {missing_text(c.open_sizes)}", remedy=remedy)
        for kernel in found.kernels:
            want_sizes(kernel, {**kernel.subs, **found.subs, **sizes}, option)
        options = WaveCompileOptions(target=target, tune=tune)
        return found.compiled or _compile(found, sizes, options, ())


def compiled_for(
    machine: Machine, file: Path, sizes: dict[Symbol, Any], order: str = "", config: TileChoice | None = None
) -> list[Compiled]:
    """The kernels of a file as they are compiled for a machine's target, with sizes that --set says.

    `config` is what an earlier call chose, which is then not chosen again. A machine of a user's own file may have a
    chip without a target: what is not given cannot be chosen for it.
    """
    values: dict[str, Any] = {**config.values} if config else {}
    tune = Tune(**values) if config else None
    found = fixed_in(file, sizes, "--set", target_of(machine), order=order, tune=tune)
    for c in found:
        if c.chosen_for == INTERPRETER and c.choice is not None:
            what = f"{c.name} leaves tile sizes open, and no target is for {machine.target}, the chip of {machine.name}"
            given = ",".join(f"{symbol}=…" for symbol in c.choice.tiles)
            raise TilewaveError(what, remedy=f"pass --set {given}")
    return found


def kernels_in(file: Path) -> list[WaveKernel]:
    """The kernels of a file that it leaves uncompiled."""
    with _as_a_program(file):
        found = _found_in(file, {}, ())
        if found.compiled:
            raise TilewaveError(f"{file} compiles its kernels itself", remedy="leave wave_compile out of it")
        return found.kernels


def want_sizes(kernel: WaveKernel, said: Mapping[Symbol, Any], option: str) -> None:
    """Refuse a kernel of whose arrays a size is missing; `option` gives it, and the address spaces that are missing."""
    if missing := missing_sizes(kernel, said):
        spaces = [s for s in kernel.spaces() if s not in said]
        pairs = [*(f"{name}=…" for name in missing), *(f"{space}=shared" for space in spaces)]
        otherwise = "".join(f"\nor {space}=global" for space in spaces)
        raise TilewaveError(
            f"{kernel.name}: {missing_text(missing)}", remedy=f"pass {option} {','.join(pairs)}{otherwise}"
        )


@dataclass(frozen=True)
class _FileOfKernels:
    """What a Python file defines: kernels that it compiled itself, or else those that it left uncompiled."""

    file: Path
    compiled: list[Compiled]
    kernels: list[WaveKernel]
    subs: dict[Symbol, Any]
    symbols: dict[Symbol, None]

    def want_known(self, option: str, said: Iterable[Symbol]) -> None:
        """Refuse a symbol that none of its kernels has."""
        unknown = next((s for s in said if s not in self.symbols), None)
        if self.kernels and unknown is not None:
            raise TilewaveError(
                f"{option}: no kernel of {self.file} has a symbol {unknown}",
                remedy=f"its symbols are {', '.join(map(str, self.symbols))}",
            )

    def want_spaces(self, option: str, given: Mapping[Symbol, Any]) -> None:
        """Refuse a number as the value of an address space."""
        for space in (space for kernel in self.kernels for space in kernel.spaces()):
            if isinstance(given.get(space), int):
                raise TilewaveError(
                    f"{option}: {space} is an address space, not {given[space]}",
                    remedy=f"write {space}=shared or {space}=global",
                )


def _found_in(file: Path, sizes: dict[Symbol, Any], asked: Sequence[str]) -> _FileOfKernels:
    if file.is_dir():
        raise TilewaveError(f"{file} is a directory", remedy="name a Python file in it that defines kernels")
    if file.exists() and not file.is_file():  # a pipe would keep us waiting
        raise TilewaveError(f"{file} is not a plain file", remedy="name a Python file that defines kernels")
    names = runpy.run_path(str(file), run_name="tilewave_diff")
    compiled = _each_once(x for x in names.values() if isinstance(x, Compiled))
    if compiled and (sizes or asked):
        option = "--set" if sizes else asked[0]
        raise TilewaveError(
            f"{file} compiles its kernels itself", remedy=f"leave {option} out: it would change nothing"
        )
    if compiled:
        return _FileOfKernels(file, compiled, [], {}, {})
    kernels = _each_once(x for x in names.values() if isinstance(x, WaveKernel))
    subs = names["subs"](512, 512, 512) if callable(names.get("subs")) else {}
    known = dict.fromkeys([*(s for k in kernels for s in k.symbols()), *subs])
    known.update(dict.fromkeys(x for x in names.values() if isinstance(x, Symbol) and x not in HARDWARE))
    found = _FileOfKernels(file, [], kernels, subs, known)
    found.want_known("--set", sizes)
    found.want_spaces("--set", sizes)
    return found


@contextmanager
def _as_a_program(file: Path) -> Iterator[None]:
    """Run a file as a program: its neighbours can be imported, and its exceptions have Python's traceback."""
    path, arguments = list(sys.path), sys.argv
    sys.path.insert(0, str(file.resolve().parent))
    sys.argv = [str(file)]
    try:
        yield
    except TilewaveError:
        raise
    except Exception as error:
        print(authors_traceback(error), end="", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        sys.path[:], sys.argv = path, arguments


def _compile(
    found: _FileOfKernels, sizes: dict[Symbol, Any], wanted: WaveCompileOptions, left_open: Sequence[Symbol]
) -> list[Compiled]:
    found.want_known("--open", left_open)
    if both := [s for s in left_open if s in sizes]:
        raise TilewaveError(f"{both[0]} is in --set and in --open", remedy="leave it out of one of them")
    subs = {s: value for s, value in found.subs.items() if s not in left_open}
    options = replace(wanted, subs={**subs, **sizes})
    try:
        return [wave_compile(options, x) for x in found.kernels]
    except SymbolError as error:
        if not error.missing:
            raise
        raise SymbolError(error.what, loc=error.loc, remedy=_set_it(error)) from None


def _set_it(error: SymbolError) -> str:
    """Return the remedy of a command for a symbol without a value."""
    symbol = Symbol(error.missing)
    if symbol.code != symbol.name:
        return f"give it a value in the file: @wave(constraints, subs={{{symbol.code}: …}})"
    if error.example in map(str, SPACES.values()):
        return f"give it a value: --set {symbol}=shared, or --set {symbol}=global"
    return f"give it a value: --set {symbol}=…"


def _each_once(found: Iterable[T]) -> list[T]:
    """Without those that a file has under a second name."""
    return list({id(x): x for x in found}.values())


def parse_names(text: str) -> list[Symbol]:
    """`M,N` as symbols."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not name.isidentifier():
            raise TilewaveError(f"--open: {name!r} is no name of a size", remedy="write --open M,N,K")
    return [getattr(sym, name) for name in names]


def parse_sizes(texts: list[str]) -> dict[Symbol, Any]:
    """`M=512,SPACE=shared` as symbols and their values."""
    sizes: dict[Symbol, Any] = {}
    for part in ",".join(texts).split(","):
        if not part.strip():
            continue
        name, equals, value = (x.strip() for x in part.partition("="))
        if not equals or not name.isidentifier() or not (value.isdecimal() or value in SPACES):
            raise TilewaveError(f"--set: {part.strip()!r} is no size", remedy="write M=512 or ADDRESS_SPACE=shared")
        sizes[getattr(sym, name)] = SPACES[value] if value in SPACES else int(value)
    return sizes
