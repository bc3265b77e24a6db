"""The GPU's side of a benchmark: operands, the product in float64, and bursts of launches between two events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes

from tilewave.bench.contestant import Contestant, Launch, first_line
from tilewave.bench.epilogue import NOTHING, Epilogue
from tilewave.bench.result import Checked, Shape
from tilewave.bench.rounds import Mode
from tilewave.errors import TargetError, TilewaveError
from tilewave.forks import IMPORTING
from tilewave.ir.types import FLOAT8, DType, dims
from tilewave.kernels import accumulator
from tilewave.records import dataclass

CHECKED_AT_ONCE = 1 << 25
"""Elements of C that are held against float64 at a time: 256 MB."""

GRAPH_SECONDS = 0.010
"""A longer burst is several replays of one graph."""

TRIED_LAUNCHES = 8
"""Launches in the graph that estimates the duration of one launch."""

F32_UNIT = 2.0**-23
"""The matrix unit cuts off what f32 cannot hold."""
FLOAT8_UNIT = 2.0**-13 / 32
"""Hopper adds products of 8-bit floats with fewer digits, 32 of them at a time."""


@dataclass(frozen=True, eq=False)
class Arena:
    """The operands of one shape, and outputs that contestants share: all of them read and write the same memory."""

    torch: Any
    shape: Shape
    dtype: DType
    a: Any
    b: Any
    outputs: dict[DType, Any]
    epilogue: Epilogue = NOTHING
    bias: Any = None
    """For each column of C, where the epilogue adds one."""

    @staticmethod
    def of(torch: Any, shape: Shape, dtype: DType, seed: int, epilogue: Epilogue = NOTHING) -> Arena:
        """Random normal numbers; for i8, whole numbers from -127 to 127."""
        m, n, k = shape
        _check_memory(torch, shape)
        generator = torch.Generator(device="cuda")
        generator.manual_seed(seed)
        a, b = (_random(torch, (rows, k), dtype, generator) for rows in (m, n))
        bias = _random(torch, (n,), dtype, generator) if epilogue.name else None
        return Arena(torch, shape, dtype, a, b, {}, epilogue, bias)

    def output(self, dtype: DType) -> Any:
        m, n, _ = self.shape
        if dtype not in self.outputs:
            self.outputs[dtype] = self.torch.empty((m, n), dtype=torch_dtype(self.torch, dtype), device="cuda")
        return self.outputs[dtype]

    def check(self, contestant: Contestant) -> Checked:
        """Launch it three times, each into a poisoned output."""
        first = self._fresh(contestant)
        error = self.relative_error(contestant.output)
        same = all(self.torch.equal(first, self._fresh(contestant)) for _ in range(2))
        lost = self.epilogue.roundings if contestant.kernels > 1 else 0
        bound = error_bound(self.shape[2], self.dtype, contestant.writes, self.epilogue.steepest, lost)
        return Checked(contestant.name, error, bound, same, contestant.writes, contestant.is_ours)

    def relative_error(self, c: Any) -> float:
        """‖c - want‖ / ‖a·bᵀ‖ in float64, some rows at a time; nan where c has an element that is none."""
        wide_b = _wide(self.b).T
        bias = None if self.bias is None else _wide(self.bias)
        rows = max(1, CHECKED_AT_ONCE // c.shape[1])
        off = self.torch.zeros((), dtype=self.torch.float64, device=c.device)
        whole = self.torch.zeros_like(off)
        for at in range(0, c.shape[0], rows):
            sums = _wide(self.a[at : at + rows]) @ wide_b
            whole += sums.square().sum()
            want = self.epilogue.finish(self.torch, sums, bias)
            off += (c[at : at + rows].double() - want).square().sum()
        return math.sqrt(off.item() / whole.item())

    def _fresh(self, contestant: Contestant) -> Any:
        """The bytes of one launch."""
        c = contestant.output
        c.fill_(math.nan if c.is_floating_point() else self.torch.iinfo(c.dtype).min)
        contestant.launch()
        self.torch.cuda.synchronize()
        return c.view(self.torch.uint8).clone()


def torch_dtype(torch: Any, dtype: DType) -> Any:
    return getattr(torch, dtype.numpy.name)


def _random(torch: Any, size: tuple[int, ...], dtype: DType, generator: Any) -> Any:
    wanted = torch_dtype(torch, dtype)
    if dtype.is_int:
        return torch.randint(-127, 128, size, generator=generator, device="cuda", dtype=wanted)
    return torch.randn(size, generator=generator, device="cuda").to(wanted)


def _check_memory(torch: Any, shape: Shape) -> None:
    """An error before anything is allocated that the GPU cannot hold."""
    m, n, k = shape
    needed, (free, _) = 16 * (m + n) * k + 24 * m * n, torch.cuda.mem_get_info()
    if needed > free:
        raise TilewaveError(
            f"a gemm of {dims(shape)} and its check need about {needed / 1e9:.1f} GB, "
            f"but only {free / 1e9:.1f} GB of the GPU's memory are free",
            remedy="choose a smaller shape",
        )


# -- is it right? ------------------------------------------------------------------------------------------------------


def _wide(x: Any) -> Any:
    return x.float().double()  # torch widens 8-bit floats to f32 only


def error_bound(k: int, dtype: DType, out: DType, steepest: float = 1.0, lost: int = 0) -> float:
    """What the relative error may be for numbers at random, whose partial sums are on average no larger than the whole.

    Each of k + 1 roundings is then at most a unit of the whole, and writing in a narrower dtype adds half a unit of it.
    What `lost` results in between were rounded by, and the sums' own error, an epilogue makes `steepest` times as large
    at most.
    """
    acc = accumulator(dtype)
    total = 0.0 if acc.is_int else (k + 1) * (FLOAT8_UNIT if dtype in FLOAT8 else F32_UNIT)
    narrow = out.is_float and (acc.is_int or out.bits < acc.bits)
    half = float(ml_dtypes.finfo(out.numpy).eps) / 2 if narrow else 0.0  # type: ignore[no-untyped-call]
    return steepest * (total + lost * half) + half


# -- how fast is it? ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Launching:
    """How many launches are made at once: recorded as a CUDA graph, or one after the other where that fails."""

    torch: Any
    stream: Any
    """Which records; nothing else runs on it."""
    words: str
    repeated: Callable[[Launch, int], Launch]
    fastest_seconds: float
    """The duration of one launch of the fastest contestant."""

    @staticmethod
    def of(torch: Any, launches: Mapping[str, Launch]) -> Launching:
        """All contestants in the same way, so that the gaps between launches are the same."""
        stream = torch.cuda.Stream()

        def recorded(launch: Launch, count: int) -> Launch:
            return _recorded(torch, stream, launch, count)

        how, words = recorded, "CUDA graphs"
        for name, launch in launches.items():
            try:
                recorded(launch, 1)
            except (RuntimeError, TilewaveError) as error:
                how, words = _in_a_row, f"plain launches, since {name} cannot be recorded: {first_line(error)}"
                break
        torch.cuda.synchronize()
        times = [_seconds(torch, how(launch, TRIED_LAUNCHES)) / TRIED_LAUNCHES for launch in launches.values()]
        return Launching(torch, stream, words, how, min(times))


def _recorded(torch: Any, stream: Any, launch: Launch, count: int) -> Launch:
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        launch()  # what a first call on a stream has to prepare cannot be recorded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            launch()
    replay: Launch = graph.replay
    return replay


def _in_a_row(launch: Launch, count: int) -> Launch:
    def run() -> None:
        for _ in range(count):
            launch()

    return run


def _seconds(torch: Any, run: Launch) -> float:
    """The fastest of three, after one that warms up."""
    run()
    return min(_timed(torch, run) for _ in range(3))


def _timed(torch: Any, run: Launch) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


@dataclass(frozen=True, eq=False)
class Bursts:
    """One burst for each contestant, as many launches long for all of them."""

    torch: Any
    mode: Mode
    replays: dict[str, Launch]
    repeats: int
    """Replays of the graph in a burst."""
    launches: int
    """In a burst."""

    @staticmethod
    def of(how: Launching, launches: Mapping[str, Launch], mode: Mode) -> Bursts:
        at_once = math.ceil(min(mode.burst_seconds, GRAPH_SECONDS) / how.fastest_seconds)
        repeats = math.ceil(mode.burst_seconds / (at_once * how.fastest_seconds))
        replays = {name: how.repeated(launch, at_once) for name, launch in launches.items()}
        for replay in replays.values():
            replay()
        how.torch.cuda.synchronize()
        return Bursts(how.torch, mode, replays, repeats, at_once * repeats)

    def take(self, order: Sequence[str]) -> list[float]:
        """The seconds of a launch, for each contestant in turn."""
        events = [self._burst(self.replays[name]) for name in order]
        self.torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) / 1e3 / self.launches for start, stop in events]

    def _burst(self, replay: Launch) -> tuple[Any, Any]:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.mode.idle_seconds:
            self.torch.cuda.synchronize()
            time.sleep(self.mode.idle_seconds)
        for _ in range(math.ceil(self.mode.warm_up * self.repeats)):
            replay()
        start.record()
        for _ in range(self.repeats):
            replay()
        stop.record()
        return start, stop


# -- the machine -------------------------------------------------------------------------------------------------------


def torch_on_the_gpu() -> Any:
    """torch, which holds the data and reaches cuBLAS; a TargetError where it is not here or sees no GPU."""
    try:
        with IMPORTING:
            import torch  # noqa: PLC0415  optional, and heavy
    except ImportError:
        raise TargetError(
            "tilewave bench needs torch, whose tensors hold the data and which calls cuBLAS; it is not installed",
            remedy="pip install torch",
        ) from None
    if not torch.cuda.is_available():
        raise TargetError(
            f"tilewave bench needs a torch that sees the GPU; torch {torch.__version__} does not",
            remedy="install a build of torch for this machine's CUDA driver",
        )
    return torch
