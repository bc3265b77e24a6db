"""Count on how many kernels of a corpus each pass changes anything, for each target.

    python benchmarks/what_fires.py                      # all kernels of machine_code.py: 358 kernels, four targets
    python benchmarks/what_fires.py --target sm_90a
    python benchmarks/what_fires.py --json build/fires.json

A pass that changes none is a candidate for deletion, and one that changes a few for a look at what it earns there. A
pass that only checks, such as `check_shared_capacity`, changes nothing anywhere.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from machine_code import TARGETS, cases, compiled
from rich.progress import track

from tilewave.pipeline.runner import Step

Count = dict[str, Counter[str]]


def changing(steps: Iterable[Step]) -> set[str]:
    """Return the names of the passes that changed a kernel."""
    return {step.name for step in steps if step.changed}


def counted(targets: Iterable[str]) -> tuple[Count, Counter[str]]:
    """Return for each pass the number of kernels that it changes on each target, and the kernels of each target."""
    found: Count = {}
    kernels: Counter[str] = Counter()
    for _, case, target in track([one for one in cases() if one[2] in targets], "compiling"):
        steps = compiled(case, target).steps
        kernels[target] += 1
        for name in {step.name for step in steps}:
            found.setdefault(name, Counter())
        for name in changing(steps):
            found[name][target] += 1
    return found, kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the counts to a file")
    asked = parser.parse_args()
    targets = asked.target or TARGETS
    found, kernels = counted(targets)
    print(f"{'pass':<26}" + "".join(f"{t:>9}" for t in targets) + f"{'all':>7}")
    for name, by in sorted(found.items(), key=lambda item: (item[1].total(), item[0])):
        print(f"{name:<26}" + "".join(f"{by[t]:>9}" for t in targets) + f"{by.total():>7}")
    print(f"{'kernels':<26}" + "".join(f"{kernels[t]:>9}" for t in targets) + f"{kernels.total():>7}")
    if asked.json:
        asked.json.write_text(json.dumps({"kernels": kernels, "passes": found}, indent=1))


if __name__ == "__main__":
    main()
