"""Training steps of a small GPT on an NVIDIA GPU, patched and with torch's own layers; then its losses and bits.

    python benchmarks/transformer_h200.py [--heads-of 64 128] [--width 768] [--layers 6] [--length 1024] [--batch 16]
                                          [--vocabulary 8192] [--sdpa cudnn flash] [--rounds 7] [--seconds 55]
    python benchmarks/transformer_h200.py --device cpu --heads-of 16 --width 32 --layers 1 --length 17 --batch 2

The model is that of examples/transformer.py in other sizes, trained in bfloat16 by autocast. A step is the forward
pass, the backward pass and AdamW; it is measured in a CUDA graph and eager, with torch's attention from cuDNN and from
flash attention. Contestants take turns in every round. Printed are median milliseconds, half the distance of the
quartiles, and the median ratio of torch's time to ours: above 1, ours is faster.

Then the example's own model is trained under `torch.use_deterministic_algorithms(True)`, twice: printed are the largest
distance of the losses from those in float64, compared with torch's, and whether both runs have the same bits in all
losses and parameters. That, and compiling what the other heads need, is done by further processes while the first
contestants are compiled; measuring begins when they have ended. What does not begin before `--seconds` have passed is
left out, and said to be. With `--rounds 0` kernels are compiled only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

os.environ.setdefault("TILEWAVE_BACKGROUND", "0")  # no step runs with a kernel that a better one will replace

import transformer as example

SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
OURS = "tilewave"
WARM_STEPS, BURST = 3, 3
Step = Callable[[Tensor], Tensor]
Contestants = dict[str, Callable[[], float]]
"""For each name, a function that runs a burst of steps and returns the milliseconds of one."""


class Clock:
    """The seconds since the start, and whether another part may begin."""

    def __init__(self, most_seconds: float) -> None:
        self.start, self.most_seconds = time.perf_counter(), most_seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def allows(self, what: str, seconds: float) -> bool:
        """Return whether a part that takes about so many seconds still fits; say so where it does not."""
        fits = self.seconds + seconds < self.most_seconds
        if not fits:
            self.say(f"left out: {what}")
        return fits

    def say(self, line: str) -> None:
        print(f"{self.seconds:6.1f} s  {line}", flush=True)


@contextmanager
def sizes(**given: int) -> Iterator[None]:
    """Give the example's model other sizes."""
    before = {name: getattr(example, name) for name in given}
    vars(example).update(given)
    try:
        yield
    finally:
        vars(example).update(before)


# speed ----------------------------------------------------------------------------------------------------------------


def contestants(given: argparse.Namespace, clock: Clock) -> Contestants:
    """Return what is measured for one size of heads; what fails to start is said and left out."""
    found: Contestants = {}
    is_cuda = given.device == "cuda"
    makers: dict[str, tuple[Callable[[str], nn.Module], Callable[[], AbstractContextManager[Any]]]] = {
        OURS: (example.patched, nullcontext)
    }
    if given.rounds and is_cuda:
        for name in given.sdpa:
            makers[f"torch, {name}"] = example.fresh, lambda name=name: sdpa_kernel(SDPA[name])
    elif given.rounds:
        makers["torch"] = example.fresh, nullcontext
    for name, (make, within) in makers.items():
        for way in ("graph", "eager") if is_cuda else ("eager",):
            before = clock.seconds
            try:
                found[f"{name}, {way}"] = ready(make(given.device), way, within)
            except Exception as error:
                clock.say(f"{name}, {way}: cannot run: {type(error).__name__}: {str(error).splitlines()[0]}")
                continue
            clock.say(f"{name}, {way}: compiled and warm after {clock.seconds - before:.1f} s")
    return found


def ready(model: nn.Module, way: str, within: Callable[[], AbstractContextManager[Any]]) -> Callable[[], float]:
    """Return a function that runs a burst of steps and returns the milliseconds of one, after steps to warm up."""
    device = next(model.parameters()).device
    data = example.sequences(example.BATCH, 0).to(device)
    with within():
        step = example.stepping_in_a_graph(model) if way == "graph" else example.stepping(model)
        for _ in range(WARM_STEPS):
            step(data)

    def burst() -> float:
        with within():
            return milliseconds(step, data)

    burst()
    return burst


def milliseconds(step: Step, data: Tensor) -> float:
    if data.device.type == "cpu":
        start = time.process_time()
        step(data)
        return (time.process_time() - start) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(BURST):
        step(data)
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / BURST


def race(given: argparse.Namespace, head: int, clock: Clock, others: Callable[[], None]) -> None:
    """Measure steps with heads of one size, after `others` has waited for other processes; print times and ratios."""
    shape = {"WIDTH": given.width, "HEADS": given.width // head, "LAYERS": given.layers, "LENGTH": given.length}
    with sizes(TOKENS=given.vocabulary, BATCH=given.batch, **shape):
        clock.say(f"heads of {head}: {', '.join(f'{name.lower()} {n}' for name, n in shape.items())}")
        calls = contestants(given, clock)
        others()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(given.rounds):
            if number > 1 and not clock.allows(f"rounds from {number + 1} on", 1.0):
                break
            for name in list(calls) if number % 2 else list(reversed(calls)):
                times[name].append(calls[name]())
    if given.rounds:
        report(times, clock)


def report(times: dict[str, list[float]], clock: Clock) -> None:
    for name, rounds in times.items():
        way = name.rpartition(", ")[2]
        ours = times.get(f"{OURS}, {way}")
        line = f"{name:22}{median(rounds):9.2f} ms ± {spread(rounds):.2f}"
        if ours is not None and not name.startswith(OURS):
            ratios = [theirs / mine for theirs, mine in zip(rounds, ours, strict=True)]
            line += f"    {median(ratios):.3f} ± {spread(ratios):.3f} of its time to ours"
        clock.say(line)


def spread(values: list[float]) -> float:
    """Return half the distance of the quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


# losses and bits ------------------------------------------------------------------------------------------------------


def train(given: argparse.Namespace, clock: Clock) -> None:
    """Train the example's model; print how far losses are from float64's and whether two runs have the same bits."""
    exact, _ = example.train(example.fresh("cpu", torch.float64), given.steps)
    clock.say(f"float64 on the CPU: {given.steps} steps, loss {exact[0]:.4f} to {exact[-1]:.4f}")
    theirs, _ = example.train(example.fresh(given.device), given.steps)
    clock.say(f"torch:    loss {theirs[-1]:.4f}, from float64 {example.apart(theirs, exact):.1e}")
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for number in range(2):
            model = example.patched(given.device)
            losses, _ = example.train(model, given.steps)
            runs.append((losses, [p.detach().clone() for p in model.parameters()]))
            far = example.apart(losses, exact)
            clock.say(f"{OURS}: loss {losses[-1]:.4f}, from float64 {far:.1e}, run {number + 1} of 2")
    finally:
        torch.use_deterministic_algorithms(False)
    (losses, parameters), (again, others) = runs
    same = torch.equal(losses, again), all(map(torch.equal, parameters, others))
    clock.say(f"the same bits in both runs: losses {same[0]}, parameters {same[1]}")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--heads-of", type=int, nargs="*", default=[64, 128], help="elements of a head; none: no race")
    for name, number in {"width": 768, "layers": 6, "length": 1024, "batch": 16, "vocabulary": 8192}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--sdpa", nargs="+", choices=SDPA, default=["cudnn", "flash"], help="torch's attention")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50, help="of the example's model; 0: it is not trained")
    parser.add_argument("--seconds", type=float, default=55.0, help="no part begins later")
    parser.add_argument("--alone", action="store_true", help="start no further processes")
    given = parser.parse_args(arguments)
    for head in given.heads_of:
        if given.width % head:
            parser.error(f"--heads-of {head}: does not divide the width, {given.width}")
    return given


class Helpers:
    """Processes that train the example's model, and compile what a race for each further size of heads needs."""

    def __init__(self, given: argparse.Namespace) -> None:
        shape = ("device", "width", "layers", "length", "batch", "vocabulary", "seconds")
        same = [f"--{name}={getattr(given, name)}" for name in shape]
        wanted = [["--heads-of", "--steps", f"{given.steps}"]] if given.steps else []
        wanted += [["--heads-of", f"{head}", "--rounds=0", "--steps=0"] for head in given.heads_of[1:]]
        start = [sys.executable, __file__, "--alone", *same]
        self.running = [subprocess.Popen([*start, *arguments]) for arguments in wanted]

    def wait(self, clock: Clock) -> None:
        """Wait until all have ended; end those that have not when the time is over."""
        for process in self.running:
            try:
                process.wait(max(1.0, clock.most_seconds - clock.seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                clock.say(f"not ended in time: {' '.join(process.args[-3:])}")
        self.running.clear()


def main(arguments: list[str] | None = None) -> None:
    given = parsed(arguments)
    clock = Clock(given.seconds)
    if given.alone or not given.heads_of:
        for head in given.heads_of:
            race(given, head, clock, lambda: None)
        if given.steps:
            train(given, clock)
        return
    helpers = Helpers(given)
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    clock.say(f"{name}, torch {torch.__version__}")
    for head in given.heads_of:
        if head == given.heads_of[0] or clock.allows(f"heads of {head}", 6.0):
            race(given, head, clock, lambda: helpers.wait(clock))


if __name__ == "__main__":
    main()
