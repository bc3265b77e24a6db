"""python -m tests.fuzz.sanitized: kernels with hostile tables of indices on the GPU, in one process, for sanitizers.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.fuzz.sanitized --seconds 100
    compute-sanitizer --tool racecheck python -m tests.fuzz.sanitized --seconds 100

Without torch's own pool of memory each array is an allocation, and memcheck sees an access beside it. Results are
compared with numpy's, too.
"""

from __future__ import annotations

import argparse
import time

from .indexed_kernels import IndexedKernels
from .judge import card


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitized", description=__doc__)
    p.add_argument("--seconds", type=float, default=100.0, help="stop after this time")
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    given = p.parse_args()
    if not card():
        p.error("this needs torch and a GPU that runs sm_90a")
    net, end, kinds = IndexedKernels(), time.monotonic() + given.seconds, []
    seed = given.seed
    while time.monotonic() < end:
        outcome = net.case_on(seed, "sm_90a")
        kinds.append(outcome.kind)
        if outcome.wrong:
            print(f"seed {seed}: {outcome}", flush=True)
        seed += 1
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))), flush=True)
    return 1 if any(kind not in ("agrees", "refused") for kind in kinds) else 0


if __name__ == "__main__":
    raise SystemExit(main())
