"""python -m tests.fuzz: run the nets for the given time."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .judge import TARGETS
from .nets import NETS
from .runner import Plan, Runner
from .surface import DEVICES


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--seconds", type=float, help="stop after this time")
    p.add_argument("--count", type=int, help="stop after so many seeds")
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    p.add_argument("--net", action="append", choices=sorted(NETS), help="a net; all of them where none is named")
    p.add_argument("--target", action="append", choices=TARGETS, help="a target of random kernels; all of them")
    p.add_argument("--device", action="append", choices=DEVICES, help="where random calls run; the CPU")
    p.add_argument("--out", type=Path, help="the folder that reproductions are written to")
    p.add_argument("--limit", type=float, default=60.0, help="seconds that one case may take")
    given = p.parse_args()
    if "cuda" in (given.device or ()) and not _has_cuda():
        p.error("--device cuda needs torch and a GPU that it can use")
    nets, targets = tuple(given.net or NETS), tuple(given.target or TARGETS)
    seconds = given.seconds if given.seconds or given.count else 60.0
    plan = Plan(nets, targets, given.seed, given.count, seconds, given.jobs, given.out, given.limit)
    plan.devices = tuple(given.device or DEVICES[:1])
    tally = Runner(plan, say=lambda text: print(text, flush=True)).run()
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
