"""Where kernels are measured: this machine's CPU, or its GPU by way of torch; arrays there, and a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewave.backend.targets import TARGETS
from tilewave.bench.ablation import TARGET
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Bursts, Launching, torch_dtype, torch_on_the_gpu
from tilewave.bench.measure import PAUSE_SECONDS, SHORTEST_SECONDS, Calls
from tilewave.bench.measured_on import MeasuredOn, nvidia_gpu, this_cpu, this_gpu
from tilewave.bench.problem import Array
from tilewave.bench.rounds import Mode
from tilewave.compiled import Compiled
from tilewave.errors import TargetError
from tilewave.ir.types import DType
from tilewave.records import dataclass

CALLS = Mode("calls", SHORTEST_SECONDS, PAUSE_SECONDS, 0.0)
"""On a CPU: calls for so long, after a pause in which the threads of the one before come to rest."""


class Clock(Protocol):
    """Takes the samples of a round."""

    def take(self, order: Sequence[str]) -> list[float]:
        """The seconds of a launch, for each contestant in turn."""


@dataclass(frozen=True, eq=False)
class Stopwatch:
    """A clock, and how it measures: launches in a burst (0: each contestant has its own number), and in which words."""

    clock: Clock
    launches: int
    words: str


class Device(Protocol):
    """What a measurement needs of a machine."""

    def measured_on(self) -> MeasuredOn: ...
    def put(self, array: Array, dtype: DType) -> Any:
        """A copy of an array, where kernels find it."""

    def get(self, held: Any, dtype: DType) -> Array:
        """Return a copy of what `put` gave, after all launches have ended."""

    def refill(self, held: Any, array: Array, dtype: DType) -> None:
        """Write an array's elements into what `put` gave."""

    def modes(self, wanted: Sequence[Mode]) -> tuple[Mode, ...]:
        """Return the modes in which this device measures, given the wanted ones."""

    def stopwatch(self, launches: Mapping[str, Launch], mode: Mode) -> Stopwatch: ...


@dataclass(frozen=True)
class Cpu:
    """Arrays are numpy's."""

    def measured_on(self) -> MeasuredOn:
        return this_cpu()

    def put(self, array: Array, dtype: DType) -> Array:
        return np.array(array)

    def get(self, held: Array, dtype: DType) -> Array:
        return np.array(held)

    def refill(self, held: Array, array: Array, dtype: DType) -> None:
        np.copyto(held, array)

    def modes(self, wanted: Sequence[Mode]) -> tuple[Mode, ...]:
        return (CALLS,)

    def stopwatch(self, launches: Mapping[str, Launch], mode: Mode) -> Stopwatch:
        return Stopwatch(Calls.of(launches), 0, "Python")


@dataclass(frozen=True, eq=False)
class Gpu:
    """Arrays are torch's tensors."""

    torch: Any
    machine: MeasuredOn

    @staticmethod
    def here(command: str) -> Gpu:
        """Return the first GPU of this machine; an error that says what the command misses."""
        device, driver = nvidia_gpu(TARGET, command)
        torch = torch_on_the_gpu()
        return Gpu(torch, this_gpu(device, driver, torch, {}))

    def measured_on(self) -> MeasuredOn:
        return self.machine

    def put(self, array: Array, dtype: DType) -> Any:
        """By way of integers: torch takes no array of ml_dtypes."""
        return self.torch.from_numpy(array.view(_integers(dtype))).cuda().view(torch_dtype(self.torch, dtype))

    def get(self, held: Any, dtype: DType) -> Array:
        self.torch.cuda.synchronize()
        found: Array = held.view(getattr(self.torch, _integers(dtype))).cpu().numpy().view(dtype.numpy)
        return found

    def refill(self, held: Any, array: Array, dtype: DType) -> None:
        held.copy_(self.put(array, dtype))

    def modes(self, wanted: Sequence[Mode]) -> tuple[Mode, ...]:
        return tuple(wanted)

    def stopwatch(self, launches: Mapping[str, Launch], mode: Mode) -> Stopwatch:
        how = Launching.of(self.torch, launches)
        bursts = Bursts.of(how, launches, mode)
        return Stopwatch(bursts, bursts.launches, how.words)


def _integers(dtype: DType) -> str:
    """The integers of the same width; torch's bool is a byte."""
    return f"int{8 * dtype.bytes}"


def runs_on_a_gpu(compiled: Compiled) -> bool:
    return TARGETS[compiled.target].has_lanes


def device_of(compiled: Compiled, command: str) -> Device:
    """Return the device that a kernel runs on; an error in the command's name where this machine has none."""
    if not runs_on_a_gpu(compiled):
        return Cpu()
    if compiled.target != TARGET:
        raise TargetError(
            f"{compiled.name} was compiled for {compiled.target}, and kernels are measured on this machine's CPU or on "
            "an NVIDIA GPU",
            remedy="`tilewave emulate` runs its code here without the card, and `tilewave sim` predicts its time",
        )
    return Gpu.here(command)
