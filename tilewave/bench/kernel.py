"""Benchmark any kernels: those with the same arguments are checked, then timed in rounds against the first.

found = measure_kernels({"mine": compiled, "other": another}, KernelSettings(rounds=9))
found.rounds[0].time("mine").median     # seconds
found.to_json()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from tilewave.bench.arguments import Signature, make_arguments, signature, signature_text
from tilewave.bench.contestant import Advance, Contestant, LeftOut, first_line
from tilewave.bench.contestants import compile_ahead
from tilewave.bench.devices import Device, device_of, runs_on_a_gpu
from tilewave.bench.measured_on import BENCH, MeasuredOn, busy, load
from tilewave.bench.problem import Array
from tilewave.bench.reference import Accuracy, KernelReference
from tilewave.bench.rounds import FEWEST_ROUNDS, SHORT, Estimate, Mode, Rounds, play
from tilewave.compiled import Compiled, grid_of
from tilewave.errors import TilewaveError
from tilewave.records import dataclass
from tilewave.runtime.arrays import Parameter

ANY_NUMBER = 1.0
"""The default value of a scalar argument: a kernel's duration does not depend on it."""


@dataclass(frozen=True)
class KernelSettings:
    """How kernels are measured."""

    rounds: int = 15
    seed: int = 0
    modes: tuple[Mode, ...] = (SHORT,)
    """The modes on a GPU; a CPU has one fixed mode."""
    check_seconds: float | None = None
    """The approximate time limit of the interpreter for each kernel; None: CHECK_SECONDS."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Values of scalar arguments, by name; of those that are not named, ANY_NUMBER."""
    command: str = BENCH
    """The command that measures, for errors."""


@dataclass(frozen=True)
class Measured:
    """One kernel: what it is, and whether its result is right."""

    name: str
    target: str
    workgroups: int
    tiles: tuple[int, ...]
    config: str
    """The tiles that were chosen, and for which target; nothing where the author gives them."""
    accuracy: Accuracy
    agrees: bool
    """With the first kernel, on what both should compute."""

    def to_json(self) -> dict[str, Any]:
        a = self.accuracy
        difference = a.max_difference if math.isfinite(a.max_difference) else None
        return {
            "name": self.name,
            "target": self.target,
            "workgroups": self.workgroups,
            "tiles": list(self.tiles),
            **({"config": self.config} if self.config else {}),
            "passed": a.passed,
            "max_difference": difference,
            "errors": a.errors,
            "elements": a.elements,
            "no_numbers": a.numberless,
            "bitwise_equal": a.bitwise_equal,
            "computes_the_same": self.agrees,
            "checked_workgroups": a.workgroups,
        }


@dataclass(frozen=True)
class KernelReport:
    """What was found: a record of the machine, the arguments, every kernel, and every sample."""

    machine: MeasuredOn
    settings: KernelSettings
    parameters: tuple[Parameter, ...]
    kernels: tuple[Measured, ...]
    left_out: tuple[LeftOut, ...]
    rounds: tuple[Rounds, ...]
    """One for each mode; only those take part whose result is right."""
    launched_by: str
    load: float = 0.0
    """The load average of the machine before the benchmark; only for a CPU."""

    @property
    def passed(self) -> bool:
        return not self.left_out and all(kernel.accuracy.passed for kernel in self.kernels)

    @property
    def conclusion(self) -> str:
        """What the spread allows to say, in one sentence for each mode."""
        return " ".join(self._concluded(rounds) for rounds in self.rounds)

    def _concluded(self, rounds: Rounds) -> str:
        others = [name for name in rounds.contestants if name != rounds.baseline]
        if not others:
            return f"{rounds.baseline} ran alone: there is nothing to compare it with."
        if len(rounds.rounds) < FEWEST_ROUNDS:
            return f"Fewer than {FEWEST_ROUNDS} rounds cannot separate a difference from noise."
        passed = [compared(name, ratio) for name in others if (ratio := rounds.ratio(name))]
        return f"In this run, compared with {rounds.baseline}: {'; '.join(passed)}."

    @property
    def notes(self) -> list[str]:
        """What a reader must know."""
        passed = busy(self.load)
        passed += [f"{one.contestant} is left out: {one.why}" for one in self.left_out]
        for kernel in self.kernels:
            a = kernel.accuracy
            if a.errors:
                passed.append(f"{kernel.name} is wrong and not timed")
            if not a.bitwise_equal:
                passed.append(f"{kernel.name} is not deterministic from launch to launch, and is not timed")
            if not kernel.agrees:
                passed.append(f"{kernel.name} computes a different result than {self.kernels[0].name}")
            if a.numberless:
                share = f"{a.numberless} of {a.elements} elements"
                passed.append(f"{kernel.name}: {share} are NaN, in float64 too; check the range of its inputs")
        return passed

    def to_json(self) -> dict[str, Any]:
        return {
            **self.machine.to_json(),
            "arguments": [
                {"name": p.name, "shape": list(p.shape), "dtype": p.dtype.name, "written": p.written}
                for p in self.parameters
            ],
            "scalars": dict(self.settings.numbers),
            "rounds": self.settings.rounds,
            "seed": self.settings.seed,
            "launched_by": self.launched_by,
            "load": self.load,
            "passed": self.passed,
            "notes": self.notes,
            "conclusion": self.conclusion or None,
            "correctness": [kernel.to_json() for kernel in self.kernels],
            "modes": [rounds.to_json(0) for rounds in self.rounds],
        }


def compared(name: str, ratio: Estimate) -> str:
    """`x is 1.21 times as fast, more than noise`."""
    beyond = abs(ratio.median - 1) > ratio.spread
    judged = "more than noise" if beyond else "within noise"
    return f"{name} is {ratio.median:.2f} times as fast, {judged}"


def grouped(kernels: Mapping[str, Compiled], others: Mapping[str, Compiled]) -> list[dict[str, Compiled]]:
    """Group kernels by their arguments, and add each of `others` to the group that it is compared with."""
    groups: dict[Signature, dict[str, Compiled]] = {}
    for name, kernel in kernels.items():
        groups.setdefault(signature(kernel), {})[name] = kernel
    for name, kernel in others.items():
        beside = groups.get(signature(kernel)) or next(iter(groups.values()))
        beside[name] = kernel
        _require_same_sizes(beside)
    return list(groups.values())


def pieces(kernels: Mapping[str, Compiled], settings: KernelSettings) -> int:
    """How often `advance` is called, at most: for each check, and for each round in each mode."""
    on_a_gpu = any(runs_on_a_gpu(kernel) for kernel in kernels.values())
    return len(kernels) + (len(settings.modes) if on_a_gpu else 1) * settings.rounds


def measure_kernels(
    kernels: Mapping[str, Compiled], settings: KernelSettings, advance: Advance = lambda: None
) -> KernelReport:
    """Check and time kernels that take the same arguments; the first is what the others are compared with."""
    before, first = load(), _require_same_sizes(kernels)
    settings = replace(settings, numbers=scalar_values(kernels.values(), settings.numbers))
    device, arrays = device_of(first, settings.command), make_arguments(first, settings.seed)
    inputs = [device.put(x, p.dtype) for x, p in zip(arrays, first.parameters, strict=True)]
    numbers = settings.numbers
    found = [_contestant(name, kernel, inputs, arrays, device, numbers) for name, kernel in kernels.items()]
    compile_ahead(found)
    judge = _reference(first, arrays, settings)
    checked: list[Measured | LeftOut] = []
    for contestant, kernel in zip(found, kernels.values(), strict=True):
        own = judge if kernel is first else _reference(kernel, arrays, settings)
        checked.append(_checked(contestant, kernel, arrays, device, own, own.agrees_with(judge)))
        advance()
    right = {one.name for one in checked if isinstance(one, Measured) and one.accuracy.passed}
    takes_part = [one for one in found if one.name in right]
    rounds, words = _timed(takes_part, device, settings, advance) if takes_part else ((), "nothing")
    measured = tuple(one for one in checked if isinstance(one, Measured))
    left_out = tuple(one for one in checked if isinstance(one, LeftOut))
    facts = device.measured_on(), settings, first.parameters, measured, left_out
    return KernelReport(*facts, rounds, words, 0.0 if runs_on_a_gpu(first) else before)


def _reference(kernel: Compiled, arrays: Sequence[Array], settings: KernelSettings) -> KernelReference:
    return KernelReference.of(kernel, arrays, settings.seed, settings.check_seconds, settings.numbers)


def scalar_values(kernels: Iterable[Compiled], given: Mapping[str, float]) -> dict[str, float]:
    """A value for each scalar argument of some kernels: the one given, or ANY_NUMBER."""
    dtypes = {name: dtype for kernel in kernels for name, dtype in kernel.signature.dtypes.items()}
    return {n: (float if t.is_float else int)(given.get(n, ANY_NUMBER)) for n, t in dtypes.items()}


def _require_same_sizes(kernels: Mapping[str, Compiled]) -> Compiled:
    """The first; an error where another takes other arguments, runs elsewhere, or waits for a symbol."""
    (first_name, first), *others = kernels.items()
    for name, kernel in kernels.items():
        if kernel.dynamic_symbols:
            passed = f"{name} takes {', '.join(kernel.dynamic_symbols)} at the call"
            raise TilewaveError(passed, remedy="to measure it, give them values in WaveCompileOptions(subs={…})")
    for name, kernel in others:
        if signature(kernel) != signature(first):
            raise TilewaveError(
                f"{name} takes {signature_text(kernel.parameters)}, "
                f"but {first_name} takes {signature_text(first.parameters)}",
                remedy="kernels are compared on the same arguments: give both the same sizes and dtypes",
            )
        if kernel.target != first.target:
            passed = f"{name} was compiled for {kernel.target}, but {first_name} for {first.target}"
            raise TilewaveError(passed, remedy="compile both for one target")
    return first


def _contestant(
    name: str,
    kernel: Compiled,
    inputs: Sequence[Any],
    arrays: Sequence[Array],
    device: Device,
    numbers: Mapping[str, float],
) -> Contestant:
    """Return the contestant of a kernel: read-only arguments are shared, and written ones are private copies."""
    held = [
        device.put(array, p.dtype) if p.written else shared
        for shared, array, p in zip(inputs, arrays, kernel.parameters, strict=True)
    ]
    writes = next(p.dtype for p in kernel.parameters if p.written)
    prepare = (lambda: kernel.code_object) if kernel.build is not None else tuple
    return Contestant(name, partial(kernel, *held, **numbers), held, writes, is_ours=True, prepare=prepare)


def _checked(
    contestant: Contestant,
    kernel: Compiled,
    arrays: Sequence[Array],
    device: Device,
    own: KernelReference,
    agrees: bool,
) -> Measured | LeftOut:
    try:
        once, repeated = (_launched(contestant, kernel, arrays, device) for _ in range(2))
    except (RuntimeError, TilewaveError) as error:
        return LeftOut(contestant.name, first_line(error), is_ours=True)
    ir = kernel.kernel
    facts = contestant.name, kernel.target, ir.workgroup_count, grid_of(ir), kernel.config
    return Measured(*facts, own.check(once, repeated), agrees)


def _launched(contestant: Contestant, kernel: Compiled, arrays: Sequence[Array], device: Device) -> list[Array]:
    """Return the arguments after one launch on freshly filled ones."""
    for held, array, p in zip(contestant.output, arrays, kernel.parameters, strict=True):
        if p.written:
            device.refill(held, array, p.dtype)
    contestant.launch()
    return [device.get(held, p.dtype) for held, p in zip(contestant.output, kernel.parameters, strict=True)]


def _timed(
    contestants: Sequence[Contestant], device: Device, settings: KernelSettings, advance: Advance
) -> tuple[tuple[Rounds, ...], str]:
    launches = {one.name: one.launch for one in contestants}
    baseline, made, words = contestants[0].name, [], ""
    for mode in device.modes(settings.modes):
        watch = device.stopwatch(launches, mode)
        rounds = play(tuple(launches), baseline, settings.rounds, settings.seed, watch.clock.take, advance)
        made.append(Rounds(mode, watch.launches, rounds, baseline))
        words = watch.words
    return tuple(made), words
