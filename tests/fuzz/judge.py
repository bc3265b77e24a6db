"""Runs a program on a target in every way there is, and holds what comes out against the reference."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from tilewave.errors import TilewaveError

from . import source
from .data import Given, between_changed, given
from .program import FLOATS, Program
from .reference import F32_UNIT, Held, expected

TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
HOPPER_F8_UNIT = 2.0**-13
"""Hopper adds products of 8-bit floats with 13 bits after the leading one of the largest: docs/targets/nvidia.md."""

RUNS_ON_CARD = 3
"""What depends on who comes first does not show every time."""


@dataclass(frozen=True)
class Outcome:
    """`kind` is "agrees", "refused" or what was wrong; `way` how it ran; `decided` how many elements were compared."""

    kind: str
    way: str = ""
    text: str = ""
    decided: int = 0
    undecided: int = 0

    @property
    def wrong(self) -> bool:
        return self.kind not in ("agrees", "refused")

    @property
    def alike(self) -> tuple[str, str]:
        """What stays the same while a program shrinks."""
        return self.kind, self.way

    def __str__(self) -> str:
        return f"{self.way}: {self.kind}: {self.text}"


def plain(message: str) -> str:
    """A message without its numbers and names: its kind."""
    first = message.strip().split("\n")[0]
    return re.sub(r"\b[a-z]{1,4}\d+\w*\b|\d[\d,]*", "#", first)


@dataclass(frozen=True)
class Way:
    """One way to run a compiled kernel."""

    name: str
    run: Callable[[Any, list[Any], dict[str, int]], None]
    options: dict[str, Any] = field(default_factory=dict)
    f8_unit: float = F32_UNIT
    on_card: bool = False
    is_called: bool = False
    """The kernel itself is called, and compiles what it needs."""


def _interpret(**how) -> Callable[..., None]:
    return lambda compiled, arrays, symbols: compiled.interpret(*arrays, **how, **symbols)


def _emulate(**how) -> Callable[..., None]:
    return lambda compiled, arrays, symbols: compiled.emulate(*arrays, **how, **symbols)


def _call(compiled, arrays, symbols) -> None:
    compiled(*arrays, **symbols)


def ways(target: str, seed: int) -> list[Way]:
    if target == "numpy":
        return [Way("tiles", _interpret()), Way("tiles shuffled", _interpret(order="shuffled", seed=seed))]
    if target == "cpu":
        sets = instruction_sets()
        chosen = sets[seed % len(sets)]
        return [Way(f"cpu {chosen}", _call, {"instruction_set": chosen})]
    lanes = Way(f"{target} lanes", _interpret(level="lane", order="random", seed=seed), f8_unit=_f8_unit(target))
    if target == "sm_90a":
        native = Way("sm_90a card", _call, f8_unit=HOPPER_F8_UNIT, on_card=True)
        return [native] * RUNS_ON_CARD if card() else [lanes]
    return [
        lanes,
        Way(f"{target} emulated", _emulate()),
        Way(f"{target} emulated at random", _emulate(order="random", seed=seed)),
    ]


def ways_of(program: Program, target: str) -> list[Way]:
    found = ways(target, program.seed)
    if program.left_open and target == "cpu":
        found.append(Way("cpu called", _call, is_called=True))
    if program.left_open and target == "sm_90a" and card():
        found.append(Way("sm_90a called on the card", _call, f8_unit=HOPPER_F8_UNIT, on_card=True, is_called=True))
    return found


def _f8_unit(target: str) -> float:
    return HOPPER_F8_UNIT if target == "sm_90a" else F32_UNIT


@cache
def instruction_sets() -> list[str]:
    """Those of this machine that take every kernel."""
    from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here

    return [name for name, s in INSTRUCTION_SETS.items() if runs_here(s) and not s.matrix_unit]


@cache
def card() -> bool:
    """Whether a GPU is here that runs sm_90a, and torch to hold its arrays."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0))


# -- running --------------------------------------------------------------------------------------------------------


def load_kernel(program: Program) -> dict[str, Any]:
    """The names that the program's source defines."""
    text, name = source.kernel_source(program), f"<kernel {program.seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(text, name, "exec"), names)  # the text is ours
    return names


def compile_program(program: Program, target: str, **more: Any) -> Any:
    names = load_kernel(program)
    fields = {key: eval(text, names) for key, text in source.options(program).items()}
    return names["wave_compile"](names["WaveCompileOptions"](**fields, **more, target=target), names["kernel"])


def called_program(program: Program) -> Any:
    """The kernel as a function of arrays, numbers and symbols."""
    names = load_kernel(program)
    return partial(names["kernel"], subs=eval(source.options(program)["subs"], names))


def judge(program: Program, target: str, only: str = "") -> Outcome:
    """The first way in which the target disagrees, or that all agree; `only` names the one that is looked at."""
    with np.errstate(all="ignore"):
        outcome = Outcome("agrees", target)
        for outcome in outcomes(program, target, only):
            if outcome.kind != "agrees":
                break
        return outcome


def outcomes(program: Program, target: str, only: str = "") -> Iterator[Outcome]:
    wanted: dict[float, list[dict[str, Held]]] = {}
    compiled: dict[str, Any] = {}
    for way in ways_of(program, target):
        if only and way.name != only:
            continue
        if way.f8_unit not in wanted:
            wanted[way.f8_unit] = [expected(call, way.f8_unit) for call in program.calls()]
        try:
            key = repr((way.options, way.is_called))
            if key not in compiled:
                prepared = called_program(program) if way.is_called else compile_program(program, target, **way.options)
                compiled[key] = prepared
        except TilewaveError as error:
            yield Outcome("refused", way.name, str(error))
            return
        except Exception as error:
            yield Outcome(f"compiling raised {type(error).__name__}", way.name, plain(str(error)) + "\n" + str(error))
            return
        for call, holds in zip(program.calls(), wanted[way.f8_unit], strict=True):
            yield attempt(call, way, compiled[key], holds)


def attempt(program: Program, way: Way, compiled: Any, wanted: dict[str, Held]) -> Outcome:
    arrays = given(program)
    found = OnCard(arrays) if way.on_card else None
    try:
        way.run(compiled, *arguments(program, found.tensors if found else [g.view for g in arrays.values()]))
        if found:
            found.bring_back()
    except TilewaveError as error:
        kind = type(error).__name__
        if kind in ("CallError", "CoverageError", "AccessError"):
            return Outcome("refused", way.name, str(error))
        return Outcome(f"{kind}: {plain(str(error))}", way.name, str(error))
    except Exception as error:
        return Outcome(f"running raised {type(error).__name__}", way.name, plain(str(error)) + "\n" + str(error))
    return compare(program, way, arrays, wanted)


def arguments(program: Program, arrays: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """What a call gives, in the author's order or by name."""
    known = dict(zip((a.name for a in program.arrays), arrays, strict=True))
    known |= {n.name: n.value for n in program.numbers}
    given = {p.name: known[p.name] for p in program.parameters}
    if program.by_name:
        return [], {**dict(reversed(given.items())), **dict(program.opens)}
    return list(given.values()), dict(program.opens)


class OnCard:
    """The same arrays on the GPU."""

    def __init__(self, arrays: dict[str, Given]) -> None:
        import torch

        self.arrays, self.buffers, self.tensors = arrays, [], []
        for g in arrays.values():
            buffer = torch.from_numpy(np.array(bytearray(g.before), np.uint8)).cuda()  # its frombuffer takes no 0 bytes
            item = g.view.itemsize
            first = (g.view.__array_interface__["data"][0] - g.memory.__array_interface__["data"][0]) // item
            kind = torch.bool if g.view.dtype == np.bool_ else getattr(torch, g.view.dtype.name)
            tensor = buffer.view(kind).as_strided(g.view.shape, [s // item for s in g.view.strides], first)
            self.buffers.append(buffer)
            self.tensors.append(tensor)

    def bring_back(self) -> None:
        import torch

        torch.cuda.synchronize()
        for g, buffer in zip(self.arrays.values(), self.buffers, strict=True):
            g.memory[...] = buffer.cpu().numpy().view(g.memory.dtype).reshape(g.memory.shape)


def compare(program: Program, way: Way, arrays: dict[str, Given], wanted: dict[str, Held]) -> Outcome:
    decided = undecided = 0
    for a in program.arrays:
        g, want = arrays[a.name], wanted[a.name]
        if between_changed(g):
            return Outcome("memory changed between the elements", way.name, a.name)
        if a.name not in program.written():
            if g.memory.tobytes() != g.before:
                return Outcome("an input changed", way.name, a.name)
            continue
        found = g.view.astype(np.float64 if a.dtype in FLOATS else np.bool_ if a.dtype == "bool" else np.int64)
        known = want.err != np.inf
        decided, undecided = decided + int(known.sum()), undecided + int((~known).sum())
        bad = ~agree(found, want)
        if bad.any():
            return Outcome("wrong numbers", way.name, described(a.name, found, want, bad))
    return Outcome("agrees", way.name, "", decided, undecided)


def agree(found: np.ndarray, want: Held) -> np.ndarray:
    if found.dtype == np.bool_:
        return (found == want.x) | (want.err > 0)
    both_nan = (found != found) & (want.x != want.x)
    near = np.abs(found.astype(np.float64) - want.x.astype(np.float64)) <= want.err
    return (found == want.x) | both_nan | (near & (want.err > 0)) | (want.err == np.inf)


def described(name: str, found: np.ndarray, want: Held, bad: np.ndarray) -> str:
    at = tuple(int(n[0]) for n in np.nonzero(bad))
    off = f" (within {want.err[at]:.3g})" if want.err[at] else ""
    place = f"{name}[{', '.join(map(str, at))}]"
    return f"{int(bad.sum())} of {bad.size} elements of {name}; {place} is {found[at]!s}, not {want.x[at]!s}{off}"
