"""What `tilewave.ops` costs in torch: the host's part of a call, and the whole of it, beside torch's own.

    python benchmarks/torch_ops.py [--rounds 11] [--shapes small]

Rounds are interleaved: in each, every contestant runs a burst, and medians are printed. On a CUDA device times are of
events on the stream, and the host's part is the time until a call returns; on the CPU only the whole is measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tilewave import ops

BURST = 50
HOST_BURST = 200
Call = Callable[[], Any]


def layer(x: Any, weight: Any, bias: Any) -> Any:
    return F.gelu(F.linear(x, weight, bias))


def cases(device: str, dtype: Any, size: int) -> dict[str, dict[str, Call]]:
    """Operation → contestant → call."""
    x, weight, bias, scale = (
        torch.randn(*shape, device=device).to(dtype) for shape in ((size, size), (size, size), (size,), (size,))
    )
    compiled = {
        "linear": torch.compile(layer, fullgraph=True),
        "softmax": torch.compile(lambda x: F.softmax(x, -1), fullgraph=True),
        "rms_norm": torch.compile(lambda x, w: F.rms_norm(x, (size,), w), fullgraph=True),
    }
    return {
        f"matmul {size}": {"tilewave": lambda: ops.matmul(x, weight.T), "torch": lambda: x @ weight.T},
        f"linear+gelu {size}": {
            "tilewave": lambda: ops.linear(x, weight, bias, activation="gelu"),
            "torch": lambda: layer(x, weight, bias),
            "torch.compile": lambda: compiled["linear"](x, weight, bias),
        },
        f"softmax {size}": {
            "tilewave": lambda: ops.softmax(x),
            "torch": lambda: F.softmax(x, -1),
            "torch.compile": lambda: compiled["softmax"](x),
        },
        f"rms_norm {size}": {
            "tilewave": lambda: ops.rms_norm(x, scale),
            "torch": lambda: F.rms_norm(x, (size,), scale),
            "torch.compile": lambda: compiled["rms_norm"](x, scale),
        },
    }


def burst(call: Call, device: str) -> float:
    """Microseconds of one call, within a burst of them."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(BURST // 10):
            call()
        return (time.perf_counter() - start) / (BURST // 10) * 1e6
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(BURST):
        call()
    behind.record()
    behind.synchronize()
    return float(before.elapsed_time(behind)) / BURST * 1e3


def host(call: Call) -> float:
    """Microseconds until a call returns."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_BURST):
        call()
    found = (time.perf_counter() - start) / HOST_BURST * 1e6
    torch.cuda.synchronize()
    return found


def measured(calls: dict[str, Call], rounds: int, measure: Callable[[Call], float]) -> dict[str, float]:
    for call in calls.values():
        call()
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(measure(call))
    return {name: statistics.median(times) for name, times in found.items()}


def show(title: str, results: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}")
    names = list(dict.fromkeys(name for one in results.values() for name in one))
    print(f"{'':22}" + "".join(f"{name:>16}" for name in names))
    for what, times in results.items():
        print(f"{what:22}" + "".join(f"{times[name]:16.1f}" if name in times else f"{'–':>16}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sizes", type=int, nargs="+")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = given.sizes or ([1024, 4096, 8192] if device == "cuda" else [256, 1024])
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    print(f"{name}, torch {torch.__version__}, {dtype}, medians of {given.rounds} interleaved rounds, microseconds")
    with torch.no_grad():
        if device == "cuda":
            small = cases(device, dtype, 128)
            show("host, eager", {what: measured(calls, given.rounds, host) for what, calls in small.items()})
        every = {what: calls for size in sizes for what, calls in cases(device, dtype, size).items()}
        show(
            "the whole call",
            {what: measured(calls, given.rounds, lambda call: burst(call, device)) for what, calls in every.items()},
        )


if __name__ == "__main__":
    main()
