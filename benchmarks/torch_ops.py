"""What `tilewave.ops` costs in torch: the host's part of a call, and the whole call, compared with torch's ops.

    python benchmarks/torch_ops.py [--rounds 11] [--sizes 1024 4096] [--host]

Rounds are interleaved: in each, every contestant runs a burst, and medians are printed. On a CUDA device times are of
events on the stream, and the host's part is the time until a call returns; on the CPU only the whole is measured.
With --host only the host's part is: of eager calls, compiled by `torch.compile`, and in a CUDA graph, each
compared with torch's op and a Triton kernel. It takes a minute at most.
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
        **attention_cases(device, dtype, size),
    }


def attention_cases(device: str, dtype: Any, size: int) -> dict[str, dict[str, Call]]:
    """16 heads of 128, of sequences as long as the size; on the CPU, 4 of 64."""
    heads, width = (16, 128) if device == "cuda" else (4, 64)
    q, k, v = (torch.randn(1, heads, size, width, device=device).to(dtype) for _ in range(3))
    found: dict[str, dict[str, Call]] = {}
    for causal in (False, True):

        def theirs(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        compiled = torch.compile(theirs, fullgraph=True)
        found[f"attention {size}{', causal' * causal}"] = {
            "tilewave": lambda causal=causal: ops.attention(q, k, v, causal=causal),
            "torch": lambda theirs=theirs: theirs(q, k, v),
            "torch.compile": lambda compiled=compiled: compiled(q, k, v),
        }
    return found


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


# the host's part ----------------------------------------------------------------------------------------------------

IN_GRAPH = 50
"""Calls that one graph records."""


def in_graph(call: Call) -> Call:
    """What launches a graph of many calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    return graph.replay


def host_cases(size: int) -> dict[str, dict[str, Call]]:
    """Operation → way to call it → call."""
    x, weight = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    bias, out = torch.randn(size, device="cuda").bfloat16(), torch.empty_like(x)
    pairs: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
        "softmax": (ops.softmax, lambda x: F.softmax(x, -1), (x,)),
        "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, (size,), w), (x, bias)),
        "layer_norm": (ops.layer_norm, lambda x, w, b: F.layer_norm(x, (size,), w, b), (x, bias, bias)),
        "matmul": (ops.matmul, torch.matmul, (x, weight)),
        "linear+gelu": (lambda x, w, b: ops.linear(x, w, b, activation="gelu"), layer, (x, weight, bias)),
    }
    found: dict[str, dict[str, Call]] = {
        name: ways("tilewave", ours, args) | ways("torch", theirs, args) for name, (ours, theirs, args) in pairs.items()
    }
    kernel = ops.softmax.kernel(x)
    found["softmax"]["kernel(x, y)"] = lambda: kernel(x, out)
    if (copy := triton_copy(x, out)) is not None:
        found["softmax"]["Triton, x and y"] = copy
    found["(torch.empty)"] = {"torch": lambda: torch.empty((size, size), dtype=x.dtype, device=x.device)}
    return found


def ways(whose: str, function: Any, args: tuple[Any, ...]) -> dict[str, Call]:
    compiled = torch.compile(function, fullgraph=True)
    for _ in range(3):
        function(*args), compiled(*args)
    return {
        whose: lambda: function(*args),
        f"{whose}, compiled": lambda: compiled(*args),
        f"{whose}, graph": in_graph(lambda: function(*args)),
    }


def triton_copy(x: Any, y: Any) -> Call | None:
    """A Triton kernel of two tensors and two numbers: what its launcher takes does not depend on what it does."""
    try:
        import triton  # noqa: PLC0415  it comes with torch for CUDA alone
        import triton.language as tl  # noqa: PLC0415
    except ImportError:
        return None
    kernel = triton.jit(_copy_rows)
    _copy_rows.__globals__["tl"] = tl
    rows, columns = x.shape
    return lambda: kernel[(rows,)](x, y, columns, x.stride(0), BLOCK=columns)


def _copy_rows(x, y, columns, step, BLOCK: "tl.constexpr"):  # type: ignore[no-untyped-def]  # noqa: F821
    row, at = tl.program_id(0), tl.arange(0, BLOCK)  # noqa: F821
    tl.store(y + row * step + at, tl.load(x + row * step + at, mask=at < columns), mask=at < columns)  # noqa: F821


def show_host(rounds: int) -> None:
    found = host_cases(128)
    results = {what: measured(calls, rounds, host) for what, calls in found.items()}
    for times in results.values():
        times.update({name: time / IN_GRAPH for name, time in times.items() if name.endswith("graph")})
    show(f"the host's part of a call, 128 x 128; of a graph of {IN_GRAPH}, for each call", results)


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
    print(f"{'':22}" + "".join(f"{name:>19}" for name in names))
    for what, times in results.items():
        print(f"{what:22}" + "".join(f"{times[name]:19.1f}" if name in times else f"{'–':>19}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--host", action="store_true", help="the host's part alone, on a CUDA device")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = given.sizes or ([1024, 4096, 8192] if device == "cuda" else [256, 1024])
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    print(f"{name}, torch {torch.__version__}, {dtype}, medians of {given.rounds} interleaved rounds, microseconds")
    with torch.no_grad():
        if device == "cuda":
            show_host(given.rounds)
        if given.host:
            return
        every = {what: calls for size in sizes for what, calls in cases(device, dtype, size).items()}
        show(
            "the whole call",
            {what: measured(calls, given.rounds, lambda call: burst(call, device)) for what, calls in every.items()},
        )


if __name__ == "__main__":
    main()
