"""The overhead of a call in addition to the kernel's work: microseconds of Python and of the path into machine code.

    python benchmarks/call_overhead.py [--repeats 2000] [--size 64]

Printed are medians over runs of `--repeats` calls: arrays seen before, many sets of arrays in turn, and scalar
arguments; for a kernel that is called directly, and for a compiled one. On the CPU, the last line is the machine code
alone, called with the frame of an earlier call. Where torch has a GPU, the same is measured there: launches are
asynchronous, so what is timed is the host's part.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    cast,
    f16,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
RUNS = 9


def gemm_of(dtype: Any, tile: int) -> Any:
    @wave(
        [WorkgroupConstraint(M, tile, 0), WorkgroupConstraint(N, tile, 1), TilingConstraint(K, 64)],
    )
    def gemm(a: Memory[M, K, G, dtype], b: Memory[N, K, G, dtype], c: Memory[M, N, G, dtype]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc: Any) -> Any:
            return mma(read(a), read(b), acc)

        write(cast(total, dtype), c)

    return gemm


def scaled_of(dtype: Any, tile: int) -> Any:
    @wave([WorkgroupConstraint(M, tile, 0), WorkgroupConstraint(N, tile, 1)])
    def scaled(a: Memory[M, N, G, dtype], c: Memory[M, N, G, dtype], alpha: f32):
        write(cast(cast(read(a), f32) * alpha, dtype), c)

    return scaled


def microseconds(call: Callable[[], object], repeats: int, settle: Callable[[], object]) -> float:
    found = []
    for _ in range(RUNS):
        settle()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        found.append((time.perf_counter() - start) / repeats * 1e6)
        settle()
    return statistics.median(found)


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """Each call has other arrays than the one before it."""
    at = 0

    def call() -> object:
        nonlocal at
        at = (at + 1) % len(calls)
        return calls[at]()

    return call


def measure(
    device: str, make: Callable[[tuple[int, ...]], Any], dtype: Any, size: int, repeats: int, settle: Any
) -> None:
    gemm, scaled = gemm_of(dtype, 64), scaled_of(dtype, 64)
    shapes = ((size, size),) * 3
    a, b, c = (make(shape) for shape in shapes)
    gemm(a, b, c)
    compiled = next(iter(gemm.kept["call"]._kernels.values()))
    others = [[make(shape) for shape in shapes] for _ in range(64)]
    alphas = [0.25 * n for n in range(8)]
    rows: dict[str, Callable[[], object]] = {
        "compiled(a, b, c), arrays seen before": lambda: compiled(a, b, c),
        "kernel(a, b, c), arrays seen before": lambda: gemm(a, b, c),
        "kernel(a=a, b=b, c=c)": lambda: gemm(a=a, b=b, c=c),
        "kernel(a, b, c), 64 sets of arrays in turn": in_turn([lambda g=g: gemm(*g) for g in others]),
        "kernel(a, c, alpha=x), the same number": lambda: scaled(a, c, alpha=0.5),
        "kernel(a, c, alpha=x), 8 numbers in turn": in_turn([lambda x=x: scaled(a, c, alpha=x) for x in alphas]),
    }
    for name, call in rows.items():
        call()
        print(f"{device:6} {name:48} {microseconds(call, repeats, settle):8.2f} µs")
    if device == "cpu":
        alone = products(compiled, (a, b, c))
        print(f"{device:6} {'its products: machine code alone':48} {microseconds(alone, repeats, settle):8.2f} µs")


def products(compiled: Any, arrays: tuple[Any, ...]) -> Callable[[], object]:
    """The machine code of a kernel of one workgroup, with a frame that a call before left."""
    compiled(*arrays)
    program = compiled.build.program
    frame = program._frames[-1]
    return lambda: program._run(program._launcher, frame.address, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    measure("cpu", lambda s: rng.standard_normal(s).astype(np.float32), f32, given.size, given.repeats, lambda: None)
    try:
        import torch  # noqa: PLC0415  it may not be here

        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
    except ImportError as error:
        print(f"gpu    not measured: {error}")
        return
    measure(
        "gpu",
        lambda s: torch.randn(s, dtype=torch.float16, device="cuda"),
        f16,
        max(given.size, 64),
        given.repeats,
        torch.cuda.synchronize,
    )


if __name__ == "__main__":
    main()
